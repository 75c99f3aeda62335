// SPDX-License-Identifier: GPL-2.0

//! Queue pair of a connection with the rights to post to it, which exist only between set-up and release. Turns errors
//! of posting into the cause to close the connection with.
//!
//! Context: any; part of the state that the connection lock protects, because the order on the wire must be the order
//! of the credits.
//!
//! # Invariants
//!
//! - `queues` is `None` once draining has begun: no work request can be posted any more.

use kernel::sync::Arc;

use crate::{
    lnd::timestamp::Timestamp,
    proto::cause::Cause,
    rdma::{
        qp::Qp,
        qp_create::QpParts,
        qp_handler::QpHandler,
        rq::{
            RecvQueue,
            RECV_BATCH, //
        },
        sq::SendQueue, //
    }, //
};

/// Queue pair of a connection, a `C`, with the rights to post.
pub(super) struct QpHandle<C: QpHandler> {
    qp: Arc<Qp<C>>,
    /// `None` once draining has begun.
    queues: Option<(SendQueue, RecvQueue)>,
    pub(super) recv_wrs: u64,
    last_send: Timestamp,
    /// The device refused a work request.
    pub(super) refused: bool,
}

/// Batch that was not posted, or not all of it: [`SendQueue::next_unposted`].
pub(super) struct Unposted {
    /// The driver called the device.
    pub(super) rang: bool,
}

impl<C: QpHandler> QpHandle<C> {
    /// Takes over a new queue pair.
    pub(super) fn new(parts: QpParts<C>) -> Self {
        Self {
            qp: parts.qp,
            queues: Some((parts.sq, parts.rq)),
            recv_wrs: 0,
            last_send: Timestamp::now(),
            refused: false,
        }
    }

    pub(super) fn qp(&self) -> &Arc<Qp<C>> {
        &self.qp
    }

    pub(super) fn sent_ms(&self) -> i64 {
        self.last_send.elapsed_ms()
    }

    /// Ends all posting: returns the arguments of [`Qp::drain`], once.
    pub(super) fn end_posting(&mut self) -> Option<(Arc<Qp<C>>, SendQueue, RecvQueue)> {
        let (sq, rq) = self.queues.take()?;
        Some((self.qp.clone(), sq, rq))
    }

    /// Returns the right to post sends, and the queue pair.
    ///
    /// # Errors
    ///
    /// Draining has begun, or there is no queue pair.
    #[inline(always)]
    pub(super) fn sq(this: &mut Option<Self>) -> Result<(&mut SendQueue, &Qp<C>), Cause> {
        match this {
            Some(Self {
                qp,
                queues: Some((sq, _)),
                ..
            }) => Ok((sq, qp)),
            _ => Err(Cause::Flushed),
        }
    }

    pub(super) fn sq_free(&self) -> u32 {
        let queues = self.queues.as_ref();
        queues.map_or(0, |(sq, _)| sq.free_slots(&self.qp))
    }

    /// Posts the pushed work requests. Returns whether there were any.
    ///
    /// # Errors
    ///
    /// Returns the unposted batch. Its work requests hold no memory of LNet any more, and no more can be pushed: the
    /// caller must close the connection.
    #[inline(always)]
    pub(super) fn flush(&mut self, now: Timestamp) -> Result<bool, Unposted> {
        if self.queues.as_ref().is_none_or(|(sq, _)| sq.is_empty()) {
            return Ok(false);
        }
        // The next message may return credits for these buffers, or ask for an answer that needs one.
        let recvs = self.post_pushed_recvs();
        let Some((sq, _)) = &mut self.queues else {
            return Ok(false);
        };
        if recvs.is_err() {
            sq.discard(&self.qp);
            return Err(Unposted { rang: false });
        }
        self.last_send = now;
        match sq.post(&self.qp) {
            Ok(()) => Ok(true),
            Err(_) => {
                self.refused = true;
                Err(Unposted { rang: true })
            }
        }
    }

    /// Pushes a receive; it is posted with the next sends, or by [`QpHandle::post_recvs`].
    #[inline(always)]
    pub(super) fn push_recv(&mut self, rx: C::Recv) -> Result<(), Cause> {
        let Some((_, rq)) = &mut self.queues else {
            return Err(Cause::Flushed);
        };
        rq.push(&self.qp, rx).map_err(|_| Cause::LocalFault)?;
        if rq.pending() < RECV_BATCH / 2 {
            return Ok(());
        }
        self.post_recvs()
    }

    /// Pushes a receive with a buffer in which an answer came.
    // Separate function, because the buffer for a request is most often a spare.
    #[inline(never)]
    pub(super) fn push_recv_again(&mut self, rx: C::Recv) -> Result<(), Cause> {
        self.push_recv(rx)
    }

    #[inline(never)]
    pub(super) fn post_recvs(&mut self) -> Result<(), Cause> {
        self.post_pushed_recvs()
    }

    #[inline(always)]
    fn post_pushed_recvs(&mut self) -> Result<(), Cause> {
        let Some((_, rq)) = &mut self.queues else {
            return Ok(());
        };
        let pushed = rq.pending() as u64;
        if pushed == 0 {
            return Ok(());
        }
        let posted = rq.post(&self.qp);
        // Receives that the device did not take will not complete.
        let nr_posted = posted
            .as_ref()
            .map_or_else(|e| e.posted.into(), |()| pushed);
        self.recv_wrs = self.recv_wrs.wrapping_add(nr_posted);
        self.refused |= posted.is_err();
        posted.map_err(|_| Cause::LocalFault)
    }
}
