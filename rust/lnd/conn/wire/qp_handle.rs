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

use kernel::{
    prelude::*,
    sync::Arc, //
};

use crate::{
    lnd::{
        conn::rx::{
            Rx,
            RxConn, //
        },
        timestamp::Timestamp, //
    },
    proto::cause::Cause,
    rdma::{
        batch::PushError,
        buf::TxBuf,
        mr::{
            Mapped,
            Mr,
            Valid, //
        },
        qp::Qp,
        qp_create::QpParts,
        rq::{
            RecvQueue,
            RECV_BATCH, //
        },
        sg::{
            SgCursor,
            SgRef, //
        },
        sq::SendQueue, //
    }, //
};

/// Queue pair of a connection, a `C`, with the rights to post.
pub(crate) struct QpHandle<C: RxConn> {
    qp: Arc<Qp<C>>,
    /// `None` once draining has begun.
    queues: Option<(SendQueue, RecvQueue)>,
    recv_wrs: u64,
    last_send: Timestamp,
    /// The device refused a work request.
    refused: bool,
}

/// Batch that was not posted, or not all of it: [`QpHandle::next_unposted`].
pub(super) struct Unposted {
    /// The driver called the device.
    pub(super) rang: bool,
}

impl<C: RxConn> QpHandle<C> {
    /// Takes over a new queue pair. May sleep.
    pub(crate) fn new(parts: QpParts<C>) -> Result<Self> {
        Ok(Self {
            qp: parts.qp,
            queues: Some((parts.sq, parts.rq)),
            recv_wrs: 0,
            last_send: Timestamp::now(),
            refused: false,
        })
    }

    /// Returns the number of receives pushed so far; once draining has begun, the number of posted receives.
    pub(super) fn recv_wrs(&self) -> u64 {
        self.recv_wrs
    }

    /// Returns whether the device refused a work request.
    pub(crate) fn is_refused(&self) -> bool {
        self.refused
    }

    /// Returns the queue pair.
    pub(super) fn qp(&self) -> &Arc<Qp<C>> {
        &self.qp
    }

    /// Returns the milliseconds since the last send.
    pub(super) fn sent_ms(&self) -> i64 {
        self.last_send.elapsed_ms()
    }

    /// Takes the rights to post, for [`Qp::drain`].
    pub(super) fn take_queues(&mut self) -> Option<(SendQueue, RecvQueue)> {
        let queues = self.queues.take();
        let unposted = queues.as_ref().map_or(0, |(_, rq)| rq.pending());
        let unposted = u64::try_from(unposted).unwrap_or(0);
        self.recv_wrs = self.recv_wrs.wrapping_sub(unposted);
        queues
    }

    #[inline]
    fn sq(&mut self) -> Result<(&mut SendQueue, &Qp<C>), Cause> {
        match &mut self.queues {
            Some((sq, _)) => Ok((sq, &self.qp)),
            None => Err(Cause::Flushed),
        }
    }

    /// Updates the number of free slots of the send queue, for [`QpHandle::slots`], too.
    #[inline]
    pub(super) fn refresh_free_slots(&mut self) -> u16 {
        let queues = self.queues.as_mut();
        let free = queues.map_or(0, |(sq, _)| sq.refresh_free_slots(&self.qp));
        u16::try_from(free).unwrap_or(u16::MAX)
    }

    /// Returns the number of free slots of the send queue at the last update, less those used since.
    #[inline]
    pub(super) fn slots(&self) -> u16 {
        let free = self.queues.as_ref().map_or(0, |(sq, _)| sq.slots());
        u16::try_from(free).unwrap_or(u16::MAX)
    }

    /// Returns the same number for one work request that is posted by itself; 0 if the batch has others.
    #[inline]
    pub(super) fn room(&self) -> u16 {
        match self.is_empty() {
            true => self.slots(),
            false => 0,
        }
    }

    /// Returns the number of free slots of the send queue.
    pub(super) fn sq_free(&self) -> u16 {
        let free = self
            .queues
            .as_ref()
            .map_or(0, |(sq, _)| sq.free_slots(&self.qp));
        u16::try_from(free).unwrap_or(u16::MAX)
    }

    /// Returns whether no work request is pushed.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.queues.as_ref().is_none_or(|(sq, _)| sq.is_empty())
    }

    /// Returns whether `wrs` more work requests fit into the batch, with `sges` gather elements.
    #[inline]
    pub(super) fn fits(&self, wrs: u16, sges: usize) -> bool {
        let Some((sq, _)) = &self.queues else {
            return false;
        };
        sq.fits(usize::from(wrs), sges)
    }

    /// Returns the context of the next pushed work request that the device did not take: it will not complete by
    /// itself.
    pub(super) fn next_unposted(&mut self) -> Option<u32> {
        let (sq, _) = self.queues.as_mut()?;
        sq.next_unposted()
    }

    /// Posts the batch.
    ///
    /// # Errors
    ///
    /// Returns the unposted batch. Its work requests hold no memory of LNet any more, and no more can be pushed: the
    /// caller must close the connection.
    #[inline(always)]
    pub(super) fn flush(&mut self, now: Timestamp) -> Result<(), Unposted> {
        // The next message may return credits for these buffers, or ask for an answer that needs one.
        if self.post_pushed_recvs().is_err() {
            if let Some((sq, _)) = &mut self.queues {
                sq.discard(&self.qp);
            }
            return Err(Unposted { rang: false });
        }
        self.last_send = now;
        match &mut self.queues {
            Some((sq, _)) => sq.post(&self.qp).map_err(|_| {
                self.refused = true;
                Unposted { rang: true }
            }),
            None => Err(Unposted { rang: true }),
        }
    }

    /// Pushes a SEND. The buffer comes back if the batch is full.
    #[inline(always)]
    pub(super) fn push_send(
        &mut self,
        context: u32,
        buf: TxBuf,
        nob: u32,
    ) -> Result<Option<TxBuf>, Cause> {
        let (sq, qp) = self.sq()?;
        match sq.push_send(qp, context, buf, nob, None, false) {
            Ok(()) => Ok(None),
            Err((PushError::BatchFull, buf)) => Ok(Some(buf)),
            Err(_) => Err(Cause::LocalFault),
        }
    }

    /// Pushes one RDMA WRITE of the first `len` bytes of `map`; see [`SendQueue::push_single_write`].
    #[inline(always)]
    pub(super) fn push_single_write(
        &mut self,
        context: u32,
        map: &SgRef,
        to: (u64, u32),
        len: u32,
    ) -> Result<bool, Cause> {
        let (sq, qp) = self.sq()?;
        sq.push_single_write(qp, context, map, to, len)
            .map_err(|_| Cause::LocalFault)
    }

    /// Pushes an RDMA WRITE; returns the number of bytes that it moves.
    pub(super) fn push_write(
        &mut self,
        context: u32,
        remote_addr: u64,
        rkey: u32,
        cursor: &mut SgCursor,
        len: u32,
    ) -> Result<u32, Cause> {
        let (sq, qp) = self.sq()?;
        sq.push_write(qp, context, remote_addr, rkey, cursor, len, false)
            .map_err(|_| Cause::LocalFault)
    }

    /// Returns the number of work requests of one registration.
    pub(crate) fn wrs_per_reg(&self) -> u16 {
        self.qp.wrs_per_reg()
    }

    /// Pushes the registration of a sink, [`QpHandle::wrs_per_reg`] work requests.
    #[inline(always)]
    pub(super) fn push_reg(&mut self, context: u32, mr: Mr<Mapped>) -> Result<Mr<Valid>, Cause> {
        let (sq, qp) = self.sq()?;
        sq.push_reg(qp, context, mr, false)
            .map_err(|_| Cause::LocalFault)
    }

    /// Pushes the invalidation of a sink.
    #[inline(always)]
    pub(super) fn push_inv(&mut self, context: u32, mr: Mr<Valid>) -> Result<(), Cause> {
        let (sq, qp) = self.sq()?;
        sq.push_inv(qp, context, mr).map_err(|_| Cause::LocalFault)
    }

    /// Pushes a receive; it is posted with the batch, or by [`QpHandle::post_recvs`].
    #[inline(always)]
    pub(crate) fn push_recv(&mut self, rx: KBox<Rx<C>>) -> Result<(), Cause> {
        let Some((_, rq)) = &mut self.queues else {
            return Err(Cause::Flushed);
        };
        rq.push(&self.qp, rx).map_err(|_| Cause::LocalFault)?;
        self.recv_wrs = self.recv_wrs.wrapping_add(1);
        if rq.pending() < RECV_BATCH / 2 {
            return Ok(());
        }
        self.post_recvs()
    }

    /// Pushes a receive with a buffer in which an answer came.
    // Separate function, because the buffer for a request is most often a spare.
    #[inline(never)]
    pub(super) fn push_recv_again(&mut self, rx: KBox<Rx<C>>) -> Result<(), Cause> {
        self.push_recv(rx)
    }

    /// Posts the pushed receives.
    #[inline(never)]
    pub(crate) fn post_recvs(&mut self) -> Result<(), Cause> {
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
        rq.post(&self.qp).map_err(|e| {
            // The others will not complete.
            let unposted = pushed.saturating_sub(e.posted.into());
            self.recv_wrs = self.recv_wrs.wrapping_sub(unposted);
            self.refused = true;
            Cause::LocalFault
        })
    }
}
