// SPDX-License-Identifier: GPL-2.0

//! Wait for memory to send, or for a memory region.
//!
//! Documentation/flow-control.md, section "Sending without memory", has the rules. The work item [`SHORTAGE`] is the
//! retry, which alone may use the reserves. LNet's calls and the retry use idle regions only. If none is idle, the
//! worker of the queue pair adds one ([`Conn::add_regions`]), and the retry runs then.
//!
//! Context: process; takes the connection lock briefly.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    rx::Rx,
    Conn,
    Inner,
    SHORTAGE, //
};
use crate::{
    lnd::{
        stats::conn_counters::Count,
        timestamp::Timestamp, //
    },
    lnet::{
        Message,
        RecvRequest,
        SendRequest, //
    },
    proto::{
        broken,
        cause::Cause,
        conn_state::Worker, //
    },
    rdma::work, //
};

const RETRY_MS: u32 = 5;

/// Returns whether an error is a lack of memory, or of room to map memory for the device (`EIO`): with an IOMMU, or
/// where memory bounces. A retry may succeed.
pub(super) fn is_shortage(e: Error) -> bool {
    e == ENOMEM || e == EIO
}

/// Reason why a message could not be prepared, or did not become a transmit.
pub(super) enum NotReady {
    /// There is no memory at the moment ([`is_shortage`]).
    Short(Error),
    /// No memory region is idle. One may be added.
    NoneIdle,
    /// A resource is missing, or the memory is not suitable for a transfer.
    Here(Error),
    /// No memory region is idle, and none could be added.
    NoRegion(Error),
    /// The pages are a GPU's, and its provider does not map them, or the transfer needs a copy by the CPU. It was
    /// logged and counted.
    Gpu(Error),
    /// The connection was closed for this cause, or it cannot take the message because of it.
    Lost(Cause),
}

impl NotReady {
    /// Returns the error for the peer and for LNet.
    pub(super) fn error(&self) -> Error {
        match self {
            Self::Short(e) | Self::Here(e) | Self::NoRegion(e) | Self::Gpu(e) => *e,
            Self::NoneIdle => ENOBUFS,
            Self::Lost(_) => ENOTCONN,
        }
    }

    /// Returns the cause to report if the message ends.
    pub(super) fn cause(&self) -> Cause {
        match self {
            Self::Short(_) | Self::NoneIdle | Self::NoRegion(_) => Cause::NoResources,
            Self::Here(e) | Self::Gpu(e) => Cause::Local(e.to_errno()),
            Self::Lost(cause) => *cause,
        }
    }

    /// Returns whether a retry may succeed.
    pub(super) fn may_pass(&self) -> bool {
        matches!(self, Self::Short(_) | Self::NoneIdle)
    }
}

impl From<Error> for NotReady {
    fn from(e: Error) -> Self {
        match is_shortage(e) {
            true => Self::Short(e),
            false => Self::Here(e),
        }
    }
}

impl Inner {
    fn is_retry(&self) -> bool {
        self.retrier == Some(kernel::current!().pid())
    }
}

impl Conn {
    /// Returns whether the caller is the retry, which may use reserves.
    pub(super) fn may_use_reserves(&self) -> bool {
        self.with(|inner| inner.is_retry())
    }

    /// Returns whether regions are being added.
    pub(super) fn adds_regions(&self) -> bool {
        self.with(|inner| inner.wanted_regions > 0)
    }

    /// Returns why no region is idle. One transfer of the retry fails for each region that could not be added.
    #[cold]
    pub(super) fn no_region(&self) -> NotReady {
        let failed = self.with(|inner| match inner.is_retry() {
            true => inner.add_failed.take(),
            false => None,
        });
        failed.map_or(NotReady::NoneIdle, NotReady::NoRegion)
    }

    /// Counts a shortage of memory, unless the connection is closed: once for each message or request, however often it
    /// is retried. The wait for a region is no shortage, and one that the retry finds after it is not counted. Returns
    /// false if the connection is closed.
    pub(super) fn count_shortage(&self, why: &NotReady) -> bool {
        let (up, counts) = self.with(|inner| {
            let up = inner.state.is_up();
            let counts = match why {
                NotReady::NoneIdle => false,
                NotReady::NoRegion(_) => up,
                _ => up && !inner.is_retry(),
            };
            if counts {
                inner.counts.one(Count::NoMemory);
            }
            (up, counts)
        });
        if counts {
            self.ni.close_stats.no_memory();
        }
        if let (true, NotReady::NoRegion(_)) = (counts, why) {
            self.ni.close_stats.no_region();
        }
        up
    }

    /// Queues a request until there is memory, or a region.
    ///
    /// # Errors
    ///
    /// Returns the request and its message if the connection is closed.
    pub(super) fn keep_request(
        self: &Arc<Self>,
        rx: KBox<Rx<Self>>,
        msg: Option<Message>,
        req: &RecvRequest,
        why: &NotReady,
    ) -> Result<(), (KBox<Rx<Self>>, Option<Message>)> {
        let mut inner = self.inner.lock();
        if !inner.state.is_up() {
            return Err((rx, msg));
        }
        let kept = inner.waiting_requests.push((rx, msg, req.keep()));
        kept.map_err(|(rx, msg, _)| (rx, msg))?;
        self.retry_later(&mut inner, why);
        Ok(())
    }

    /// Queues a message until there is memory, or a region. A message that is retried keeps the time at which it began
    /// to wait.
    ///
    /// # Errors
    ///
    /// Returns the message if the connection is closed, or if LNet has sent more messages than it has credits for.
    pub(super) fn keep_message(
        self: &Arc<Self>,
        msg: Message,
        req: &SendRequest,
        why: &NotReady,
    ) -> Result<(), Message> {
        let mut inner = self.inner.lock();
        if !inner.state.is_up() {
            return Err(msg);
        }
        let is_retried = inner.is_retry();
        let since = inner.retried_since.take_if(|_| is_retried);
        let unsent = (msg, req.keep(), since.unwrap_or_else(Timestamp::now));
        let kept = inner.waiting_msgs.push(unsent);
        kept.map_err(|(msg, ..)| msg)?;
        self.retry_later(&mut inner, why);
        Ok(())
    }

    /// Arms the retry, and has a region added for a message or request that begins to wait for one. The retry requests
    /// one more only if all are there that were requested: others may have used them.
    fn retry_later(self: &Arc<Self>, inner: &mut Inner, why: &NotReady) {
        if let NotReady::NoneIdle = why {
            if !inner.is_retry() {
                inner.wanted_regions = inner.wanted_regions.saturating_add(1);
                inner.add_failed = None;
            }
            inner.wanted_regions = inner.wanted_regions.max(1);
            self.kick(Worker::QueuePair);
        } else {
            // A region is tried again once there is memory.
            inner.add_failed = None;
        }
        self.retry_soon();
    }

    /// Adds the memory regions that messages and requests wait for. Runs in the worker that destroys the queue pair,
    /// so the queue pair stays. A transfer may have found an idle region since it began to wait.
    pub(super) fn add_regions(self: &Arc<Self>) {
        let next = |inner: &mut Inner| {
            let waiting = inner.waiting_requests.len() + inner.waiting_msgs.len();
            inner.wanted_regions = inner.wanted_regions.min(waiting);
            let wanted = inner.wanted_regions > 0 && inner.state.is_up();
            inner.qp().filter(|_| wanted)
        };
        while let Some(qp) = self.with(next) {
            let added = qp.add_mr();
            self.with(|inner| {
                inner.add_failed = added.err();
                // Only this function lowers the number.
                let left = inner.wanted_regions.checked_sub(1);
                let left = left.unwrap_or_else(|| {
                    broken("a memory region was added without a request for one")
                });
                inner.wanted_regions = if added.is_ok() { left } else { 0 };
            });
            work::mod_delayed::<Self, SHORTAGE>(self.clone(), 0);
        }
    }

    pub(super) fn retry_soon(self: &Arc<Self>) {
        let _ = work::queue_delayed::<Self, SHORTAGE>(self.clone(), RETRY_MS);
    }
}
