// SPDX-License-Identifier: GPL-2.0

//! Build and submission of a transmit: it is queued, and posted if credits allow.
//!
//! Context: process; may sleep; re-entrant. The message is built and queued under the connection lock; its resources
//! are made before, without the lock.

use kernel::{
    alloc::flags::__GFP_NOWARN,
    prelude::*,
    sync::Arc, //
};

use super::{
    buf_pool::ReserveUse,
    no_memory::{
        is_shortage,
        NotReady, //
    },
    pump::BuildResult,
    rx::Rx,
    tx_payload::{
        new_slots,
        RdmaSink,
        SinkKey,
        TxPayload,
        GROW_BY, //
    },
    Conn, //
};
use crate::{
    lnd::{
        log,
        timestamp::Timestamp, //
    },
    proto::{
        cause::Cause,
        constants::IMMEDIATE_HEAD,
        credits::Repost,
        tx_state::Op,
        wire::{
            BodyOut,
            Cookie, //
        }, //
    },
    rdma::{
        buf::TxBuf,
        page_frags::PageVec, //
    }, //
};

/// Request that a transmit answers, until its buffer is posted again, and the meaning of the repost for the peer.
pub(super) type Answered = Option<(KBox<Rx<Conn>>, Repost)>;

impl Conn {
    /// Finalizes a transfer that was never posted, and counts it. Process context, no lock held.
    pub(super) fn give_up(&self, unsent: TxPayload, cause: Cause) {
        let mut unsent = unsent;
        self.ni.close_stats.messages(cause, unsent.messages());
        unsent.finish(Some(cause), false);
    }

    /// Gives back the message buffers of a transfer that is not queued, and frees its sink, whose key the peer does not
    /// know.
    #[cold]
    #[inline(never)]
    pub(super) fn undo(&self, bufs: [Option<TxBuf>; 2], sink: Option<RdmaSink>) {
        let qp = self.with(|inner| {
            if inner.state.is_up() {
                let bufs = bufs.into_iter().flatten();
                bufs.for_each(|buf| inner.buf_pool.put(buf));
            }
            inner.qp()
        });
        if let (Some(SinkKey::Mapped(mr)), Some(qp)) = (sink.map(|sink| sink.key), qp) {
            qp.unmap_mr(mr);
        }
    }

    /// Builds the message of a transmit, queues it, and posts the transmits that may be sent. `what` creates the
    /// transfer, which may begin now; it takes `slots` work requests, not counting those of a registration. `buf` may
    /// be a message buffer. Copies `payload` into the message ([`copy_payload`]). Posts the buffer of the request that
    /// it answers again, in front of it.
    ///
    /// # Errors
    ///
    /// Returns the transfer with its messages alone, see [`Conn::undo`]. If there is no memory, the request stays in
    /// its place.
    // There may be no memory for a box.
    #[expect(clippy::result_large_err)]
    #[inline(always)]
    pub(super) fn submit<'a>(
        self: &Arc<Self>,
        (op, slots): (Op, u16),
        what: impl FnOnce(Timestamp) -> TxPayload,
        (buf, payload): (Option<TxBuf>, Option<&PageVec>),
        answered: &mut Answered,
        body: impl FnOnce(Cookie) -> BodyOut<'a>,
    ) -> Result<(), (TxPayload, NotReady)> {
        let mut had = buf;
        let (what, why) = 'unsent: {
            let (mut guard, mut buf) = loop {
                let mut guard = self.lock();
                let inner = &mut *guard;
                if !inner.state.is_up() {
                    break 'unsent (what, NotReady::Lost(inner.state.end_cause()));
                }
                let Some(buf) = had.take().or_else(|| inner.buf_pool.take()) else {
                    drop(guard);
                    match self.make_buf(reserve_for(op)) {
                        Ok(buf) => had = Some(buf),
                        Err(e) => break 'unsent (what, e.into()),
                    }
                    continue;
                };
                if inner.txs.has_free() {
                    break (guard, buf);
                }
                had = Some(buf);
                drop(guard);
                if let Err(why) = self.grow() {
                    break 'unsent (what, why);
                }
            };
            let inner = &mut *guard;
            if let Some(Err(e)) = payload.map(|payload| copy_payload(&mut buf, payload)) {
                had = Some(buf);
                break 'unsent (what, NotReady::Lost(Cause::Local(e.to_errno())));
            }
            let now = Timestamp::now();
            if let Some((rx, how)) = answered.take() {
                if let Err(cause) = self.post_again(inner, rx, how, now) {
                    break 'unsent (what, NotReady::Lost(cause));
                }
            }
            let slots = match op {
                Op::GetReq | Op::PutAck => inner.limits.reg_and_send,
                _ => slots,
            };
            let at_once = self.at_once(inner);
            match inner.build((op, slots), what, buf, body, now, at_once) {
                Ok(BuildResult::Posted(Ok(()))) => {}
                // A transmit whose post fails ends with the connection.
                Ok(BuildResult::Posted(Err(cause))) => {
                    self.blame(inner, log::CloseReason::Post(cause))
                }
                Ok(BuildResult::Queued) if at_once.is_some() => {
                    self.pump_if_due(inner, false, Some(now));
                }
                Ok(BuildResult::Queued) => {}
                Err((what, cause)) => break 'unsent (what, NotReady::Lost(cause)),
            }
            if inner.liveness.begin() {
                if let Some(probe) = self.ni.probe() {
                    self.schedule_check(inner, probe.ms());
                }
            }
            return Ok(());
        };
        let mut transfer = what(Timestamp::now());
        self.undo([had, transfer.spare.take()], transfer.sink.take());
        Err((transfer, why))
    }

    /// Allocates a message buffer, if none is free, or takes one out of the reserve. Process context.
    #[cold]
    #[inline(never)]
    pub(super) fn make_buf(&self, whose: ReserveUse) -> Result<TxBuf> {
        match TxBuf::alloc(&self.hca()?.device) {
            Err(e) if is_shortage(e) && self.may_use_reserves() => {
                self.with(|inner| inner.buf_pool.take_reserved(whose).ok_or(e))
            }
            made => made,
        }
    }

    /// Creates more transmits, without waiting for memory. Process context.
    #[cold]
    #[inline(never)]
    pub(super) fn grow(&self) -> Result<(), NotReady> {
        let have = self.with(|inner| inner.txs.nr_slots());
        let want = have.saturating_add(GROW_BY.max(have / 2));
        let want = want.min(usize::from(u16::MAX));
        if want <= have {
            log::cannot(self.nid(), "make room for a message", ENOSPC);
            return Err(NotReady::Lost(Cause::NoResources));
        }
        // Reclaim may wait for the message that needs a slot.
        let mut bigger = new_slots(want, GFP_NOWAIT | __GFP_NOWARN)?;
        // The old tables are freed without the lock.
        self.with(|inner| inner.txs.grow(&mut bigger));
        Ok(())
    }
}

/// Copies the payload of an IMMEDIATE into a message buffer, behind its head: at most 3976 bytes. A copy is cheaper
/// than a mapping, works for pages of any shape, and is covered by the checksum. The caller holds the connection lock.
#[inline(always)]
fn copy_payload(buf: &mut TxBuf, payload: &PageVec) -> Result {
    if payload.nob() == 0 {
        return Ok(());
    }
    let end = IMMEDIATE_HEAD.checked_add(payload.nob()).ok_or(EMSGSIZE)?;
    let to = buf
        .as_mut_slice()
        .get_mut(IMMEDIATE_HEAD..end)
        .ok_or(EMSGSIZE)?;
    payload.copy_to_slice(0, to)
}

/// Returns the reserve for a transmit of that kind.
fn reserve_for(op: Op) -> ReserveUse {
    match op {
        Op::PutAck | Op::PutNak | Op::GetDone => ReserveUse::Answer,
        _ => ReserveUse::Message,
    }
}
