// SPDX-License-Identifier: GPL-2.0

//! The queue pair of a connection with the rights to post to it: what exists only between set-up
//! and release. Turns refusals into the cause to end the connection with.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use crate::{
    proto::cause::Cause,
    rdma::{
        batch::{
            BatchRoom,
            PostError, //
        },
        buf::{
            RxBuf,
            TxBuf, //
        },
        handler::QpHandler,
        mr::{
            Mapped,
            Mr,
            Valid, //
        },
        parts::QpParts,
        qp::Qp,
        rq::{
            RecvQueue,
            RECV_BATCH, //
        },
        sg::SgCursor,
        sq::SendQueue, //
    }, //
};

/// The link of a connection, a `C`.
pub(crate) struct Link<C: QpHandler> {
    qp: Arc<Qp<C>>,
    /// `None` once draining has begun.
    queues: Option<(SendQueue, RecvQueue)>,
    recv_wrs: u64,
}

impl<C: QpHandler> Link<C> {
    /// Takes over a new queue pair.
    pub(crate) fn new(parts: QpParts<C>) -> Self {
        Self {
            qp: parts.qp,
            queues: Some((parts.sq, parts.rq)),
            recv_wrs: 0,
        }
    }

    /// Receives pushed so far; once draining has begun, those that were posted.
    pub(crate) fn recv_wrs(&self) -> u64 {
        self.recv_wrs
    }

    /// The queue pair.
    pub(crate) fn qp(&self) -> &Arc<Qp<C>> {
        &self.qp
    }

    /// Takes the rights to post, for [`Qp::drain`].
    pub(crate) fn take_queues(&mut self) -> Option<(SendQueue, RecvQueue)> {
        let queues = self.queues.take();
        let unposted = queues.as_ref().map_or(0, |(_, rq)| rq.pending());
        let unposted = u64::try_from(unposted).unwrap_or(0);
        self.recv_wrs = self.recv_wrs.wrapping_sub(unposted);
        queues
    }

    fn sq(&mut self) -> Result<(&mut SendQueue, &Qp<C>), Cause> {
        match &mut self.queues {
            Some((sq, _)) => Ok((sq, &self.qp)),
            None => Err(Cause::Flushed),
        }
    }

    /// Finds out how many slots of the send queue are free, for [`Link::slots`].
    pub(crate) fn look_for_slots(&mut self) {
        if let Some((sq, _)) = &mut self.queues {
            sq.look_for_slots(&self.qp);
        }
    }

    /// Free slots of the send queue, of those that were when somebody looked.
    pub(crate) fn slots(&self) -> u16 {
        let free = self.queues.as_ref().map_or(0, |(sq, _)| sq.slots());
        u16::try_from(free).unwrap_or(u16::MAX)
    }

    /// Free slots of the send queue.
    pub(crate) fn sq_free(&self) -> u16 {
        let free = self
            .queues
            .as_ref()
            .map_or(0, |(sq, _)| sq.free_slots(&self.qp));
        u16::try_from(free).unwrap_or(u16::MAX)
    }

    /// What still fits into the batch.
    pub(crate) fn room(&self) -> BatchRoom {
        match &self.queues {
            Some((sq, _)) => sq.room(),
            None => BatchRoom { wrs: 0, sges: 0 },
        }
    }

    /// Posts the batch.
    pub(crate) fn post(&mut self) -> Result<(), PostError> {
        match &mut self.queues {
            Some((sq, _)) => sq.post(&self.qp),
            None => Err(PostError { posted: 0 }),
        }
    }

    /// Frees the batch instead: what could not be posted holds no memory of LNet's.
    pub(crate) fn discard(&mut self) {
        if let Some((sq, _)) = &mut self.queues {
            sq.discard(&self.qp);
        }
    }

    /// Pushes a SEND.
    pub(crate) fn push_send(&mut self, context: u32, buf: TxBuf, nob: u32) -> Result<(), Cause> {
        let (sq, qp) = self.sq()?;
        sq.push_send(qp, context, buf, nob, None, false)
            .map_err(|_| Cause::LocalFault)
    }

    /// Pushes an RDMA WRITE; returns how many bytes it moves.
    pub(crate) fn push_write(
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

    /// Work requests of one registration.
    pub(crate) fn reg_wrs(&self) -> u16 {
        self.qp.reg_wrs()
    }

    /// Pushes the registration of a sink, [`Link::reg_wrs`] work requests.
    pub(crate) fn push_reg(&mut self, context: u32, mr: Mr<Mapped>) -> Result<Mr<Valid>, Cause> {
        let (sq, qp) = self.sq()?;
        sq.push_reg(qp, context, mr, false)
            .map_err(|_| Cause::LocalFault)
    }

    /// Pushes the invalidation of a sink.
    pub(crate) fn push_inv(&mut self, context: u32, mr: Mr<Valid>) -> Result<(), Cause> {
        let (sq, qp) = self.sq()?;
        sq.push_inv(qp, context, mr).map_err(|_| Cause::LocalFault)
    }

    /// Pushes a receive; it is posted with the batch, or by [`Link::post_recvs`].
    pub(crate) fn push_recv(&mut self, buf: RxBuf) -> Result<(), Cause> {
        let Some((_, rq)) = &mut self.queues else {
            return Err(Cause::Flushed);
        };
        rq.push(&self.qp, buf).map_err(|_| Cause::LocalFault)?;
        self.recv_wrs = self.recv_wrs.wrapping_add(1);
        if rq.pending() < RECV_BATCH / 2 {
            return Ok(());
        }
        rq.post(&self.qp).map_err(|_| Cause::LocalFault)
    }

    /// Posts the receives that were pushed.
    pub(crate) fn post_recvs(&mut self) -> Result<(), Cause> {
        match &mut self.queues {
            Some((_, rq)) if rq.pending() > 0 => rq.post(&self.qp).map_err(|_| Cause::LocalFault),
            _ => Ok(()),
        }
    }
}
