// SPDX-License-Identifier: GPL-2.0

//! Sending while memory is short.
//!
//! The driver allocates memory for a message or an answer without waiting, because the kernel may be able to clean its
//! pages only over this connection. If an allocation fails, the message or request waits ([`super::no_memory_queue`]),
//! and [`super::no_memory_retry`] tries again every few milliseconds. Only the retry may use the reserves: message
//! buffers of the connection, and mappings of the device. So a shortage of memory slows a connection down, and the
//! oldest message goes first.
//!
//! Answers and messages have separate reserves. An answer can be sent without help of the peer. A message may wait for
//! a credit, and so for an answer of the peer, which may be short of memory, too.
//!
//! Context: process; takes the connection lock briefly.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    no_memory_queue::{
        WaitingMsg,
        WaitingRequest, //
    },
    rx::Rx,
    Conn,
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
    rdma::work, //
};

/// Milliseconds between two retries.
const RETRY_MS: u32 = 5;

impl Conn {
    /// Returns whether the caller is the retry, which may use reserves.
    pub(super) fn may_use_reserves(&self) -> bool {
        let pid = kernel::current!().pid();
        self.with(|inner| inner.waiting.is_retried_by(pid))
    }

    /// Counts a shortage of memory: once for each message or request, however often it is retried.
    pub(super) fn count_shortage(&self) {
        if !self.may_use_reserves() {
            self.with(|inner| inner.wire.count(Count::NoMemory));
            self.ni.close_stats.no_memory();
        }
    }

    /// Queues a request until there is memory.
    ///
    /// # Errors
    ///
    /// Returns the request and its message if the connection is closed.
    pub(super) fn keep_request(
        self: &Arc<Self>,
        rx: KBox<Rx<Self>>,
        msg: Option<Message>,
        req: &RecvRequest,
    ) -> Result<(), (KBox<Rx<Self>>, Option<Message>)> {
        let mut inner = self.lock();
        if !inner.state.is_up() {
            return Err((rx, msg));
        }
        let req = req.keep();
        let kept = inner.waiting.add_request(WaitingRequest { rx, msg, req });
        kept.map_err(|full| (full.rx, full.msg))?;
        self.retry_soon();
        Ok(())
    }

    /// Queues a message until there is memory.
    ///
    /// # Errors
    ///
    /// Returns the message if the connection is closed, or if LNet has sent more messages than it has credits for.
    pub(super) fn keep_message(
        self: &Arc<Self>,
        msg: Message,
        req: &SendRequest,
    ) -> Result<(), Message> {
        let pid = kernel::current!().pid();
        let mut inner = self.lock();
        if !inner.state.is_up() {
            return Err(msg);
        }
        let (req, since) = (req.keep(), Timestamp::now());
        inner
            .waiting
            .add_message(WaitingMsg { msg, req, since }, pid)?;
        self.retry_soon();
        Ok(())
    }

    /// Arms the retry.
    pub(super) fn retry_soon(self: &Arc<Self>) {
        let _ = work::queue_delayed::<Self, SHORTAGE>(self.clone(), RETRY_MS);
    }
}
