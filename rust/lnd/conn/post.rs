// SPDX-License-Identifier: GPL-2.0

//! Build of transmits; the pump, which selects those that may be sent next, and posts them with one doorbell; and their
//! work requests, from their push to their end. A new message alone that the pump would post at once passes the queues.
//!
//! Context: softirq and process context, under the connection lock: the order on the wire must be the order of the
//! credits.
//!
//! # Invariants
//!
//! A pushed work request has a context that identifies its transmit ([`index_of`]), and was counted in its transmit
//! before the next one is built.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    qp_handle::{
        QpHandle,
        Unposted, //
    },
    tx_payload::{
        SinkKey,
        TxPayload, //
    },
    Conn,
    Inner, //
};
use crate::{
    lnd::{
        log::CloseReason,
        stats::{
            conn_counters::Count,
            conn_latency::{
                ConnStats,
                StallReason, //
            }, //
        },
        timestamp::Timestamp, //
    },
    lnet::dk::dk,
    proto::{
        cause::Cause,
        tx_state::{
            Op,
            Tx,
            Wr, //
        },
        tx_table::{
            NextTx,
            QueueKind, //
        },
        wire::{
            encode,
            finalize_hdr,
            BodyOut,
            Cookie, //
        }, //
    },
    rdma::{
        batch::PushError,
        buf::TxBuf,
        sq::SendQueue,
        wc::WcStatus, //
    }, //
};

/// Context of a NOOP's work request. The other contexts are the index of their tx with perhaps one of the bits below.
/// The send queue returns the context with the completion.
const NOOP: u32 = u32::MAX;
/// Set in the context of a LOCAL_INV.
const INVALIDATE: u32 = 1 << 16;
/// Set in the context of a WRITE or registration in front of a message.
const IN_FRONT: u32 = 1 << 17;

/// Returns the index of the tx that a context belongs to; `None` for a NOOP.
#[inline(always)]
fn index_of(context: u32) -> Option<u16> {
    u16::try_from(context & !(INVALIDATE | IN_FRONT)).ok()
}

/// Returns the result of a request by its completion status, and which side is to blame.
pub(super) fn outcome(status: WcStatus) -> Result<(), Cause> {
    match status {
        WcStatus::Success => Ok(()),
        WcStatus::Flush => Err(Cause::Flushed),
        WcStatus::RetryExc | WcStatus::RnrRetryExc | WcStatus::RespTimeout => {
            Err(Cause::TransportRetry)
        }
        WcStatus::RemInvReq
        | WcStatus::RemAccess
        | WcStatus::RemOp
        | WcStatus::RemAbort
        | WcStatus::BadResp => Err(Cause::RemoteFault),
        WcStatus::LocLen
        | WcStatus::LocQpOp
        | WcStatus::LocProt
        | WcStatus::LocAccess
        | WcStatus::Fatal
        | WcStatus::General
        | WcStatus::Other(_) => Err(Cause::LocalFault),
    }
}

impl Conn {
    /// Builds a transmit: its message in `buf`, and `what` creates its transfer, which may begin now. Posting it takes
    /// `slots`. If the doorbell rings now, a message alone is posted if [`Conn::pump_now`] would have done nothing more
    /// than that; any other transmit is queued, and posted if it is due. Only while the connection is established.
    ///
    /// # Errors
    ///
    /// Returns the creator of its transfer, and the reason: the message is too long, or there is no place. A transmit
    /// whose post fails ends with the connection.
    #[inline(always)]
    pub(super) fn build<'a, W: FnOnce(Timestamp) -> TxPayload>(
        self: &Arc<Self>,
        inner: &mut Inner,
        (op, slots): (Op, u16),
        what: W,
        buf: TxBuf,
        body: impl FnOnce(Cookie) -> BodyOut<'a>,
        now: Timestamp,
    ) -> Result<(), (W, Cause)> {
        let mut buf = buf;
        if matches!(op, Op::PutReq | Op::GetReq) && inner.txs.lacks_reserve(&inner.credits) {
            inner.counts.one(Count::NoReserved);
        }
        let env = inner.envelope();
        let Some((index, cookie, slot)) = inner.txs.alloc(op) else {
            return Err((what, Cause::NoResources));
        };
        let Ok(nob) = encode(buf.as_mut_slice(), &env, &body(cookie)) else {
            inner.txs.release(index);
            return Err((what, Cause::Local(EMSGSIZE.to_errno())));
        };
        let alone = slot.fill(what(now)).is_alone();
        let rings = self.rings(inner);
        if rings && alone {
            let free = inner.sq_slots();
            let patient = !inner.rx_queue.is_empty();
            let credits = &mut inner.credits;
            if let Some(carried) = inner.txs.try_pay((op, slots), credits, free, patient) {
                if let Some(transfer) = inner.txs.post(index, op) {
                    let (stamps, _, total) = transfer.measured();
                    let sizes = (nob, total, carried);
                    inner.stats.posted((op, index), stamps, sizes, now);
                }
                dk!(
                    Net,
                    "{}: transmit {:?}, tx {}, with {} credits",
                    inner.identity.peer,
                    { op },
                    { index },
                    { carried }
                );
                let sent = inner.send(index.into(), buf, nob, carried, self.ni.cksum());
                let rang = inner.ring(now);
                // Counted after the doorbell, because its completion waits for the lock, and before a failure of the
                // doorbell is handled.
                if sent.is_ok() {
                    inner.pushed_last(index);
                }
                inner.stats.flows();
                let rang = inner.rang(rang);
                if let Err(cause) = sent.and(rang) {
                    self.blame(inner, CloseReason::Post(cause));
                }
                return Ok(());
            }
        }
        if let Some(transfer) = inner.txs.queue(index, slots) {
            transfer.load(buf, nob);
        }
        if rings {
            self.pump_if_due(inner, false, Some(now));
        }
        Ok(())
    }

    /// Posts the transmits that may be sent. Posts a NOOP if there is no other message, and the driver must probe the
    /// peer, or the peer needs credits. `now`: the time, if the caller has just read the clock.
    #[inline(always)]
    pub(super) fn pump(self: &Arc<Self>, inner: &mut Inner, probe: bool, now: Option<Timestamp>) {
        // The usual case.
        if inner.state.is_up() && (probe || !inner.txs.is_idle(&inner.credits)) {
            self.pump_if_due(inner, probe, now);
        }
    }

    /// Rings the doorbell for the queued work requests, unless it will ring soon anyway.
    #[inline(always)]
    pub(super) fn ring(self: &Arc<Self>, inner: &mut Inner, now: Timestamp) {
        // Most often nothing is queued, and the worker that calls LNet need not come back to ring.
        if inner.state.is_up() && !inner.txs.is_idle(&inner.credits) && self.rings(inner) {
            self.pump_if_due(inner, false, Some(now));
        }
    }

    /// Returns whether the doorbell rings for the work requests that are queued now. If not because the worker that
    /// calls LNet sends them, that worker rings when LNet has returned.
    #[inline]
    fn rings(&self, inner: &Inner) -> bool {
        let corked = || inner.upcall_task == kernel::current!().pid() && self.upcall.add_cork();
        inner.in_flight.rings(corked)
    }

    /// Posts the transmits that may be sent, if any is due. Only while the connection is established.
    #[inline(never)]
    fn pump_if_due(self: &Arc<Self>, inner: &mut Inner, probe: bool, now: Option<Timestamp>) {
        // A dead peer is noticed only if something is sent.
        let patient = !probe && !inner.rx_queue.is_empty();
        // The LNet half returns the credits of these requests, and pumps. The peer gets no early credits while some
        // requests wait for their turn with LNet: those will reach the high-water mark.
        let probe = probe || (!patient && inner.credits.starves_peer());
        if !inner.is_blocked(probe, patient) {
            self.pump_now(inner, probe, patient, now);
        }
    }

    /// Posts all transmits that may be sent, with as few doorbells as possible. Posts a NOOP if there is no other
    /// message and `probe` is set, or the peer needs credits. `patient`: the caller comes back when LNet has taken the
    /// received requests. Work requests that could not be posted are retired, and the connection is closed.
    // Separate function, so that the caller saves no registers.
    #[inline(never)]
    fn pump_now(
        self: &Arc<Self>,
        inner: &mut Inner,
        probe: bool,
        patient: bool,
        now: Option<Timestamp>,
    ) {
        let now = now.unwrap_or_else(Timestamp::now);
        let cksum = self.ni.cksum();
        let mut keepalive = probe;
        if let Ok((sq, qp)) = QpHandle::sq(&mut inner.link) {
            sq.refresh_free_slots(qp);
        }
        let built = loop {
            let free = inner.sq_slots();
            let next = inner.txs.next(&mut inner.credits, free, keepalive, patient);
            keepalive = false;
            let built = match next {
                NextTx::Post { index, op, carried } => inner
                    .post_tx((op, index), carried, cksum, now)
                    // Work requests of an earlier step may be under way yet, and succeed.
                    .inspect_err(|cause| inner.txs.latch(index, *cause)),
                NextTx::Part { index, wrs } => inner.post_part(index, wrs),
                NextTx::Noop { carried } => inner.post_noop(carried, cksum),
                blocked => {
                    inner.rests(blocked);
                    break Ok(());
                }
            };
            if built.is_err() {
                break built;
            }
            // Most often that was all, or all that the peer has room for.
            if let Some(blocked) = inner.txs.blocked(&inner.credits, false, patient) {
                inner.rests(blocked);
                break Ok(());
            }
        };
        // Also after a failure: pushed work requests complete only if they are posted.
        let rang = inner.flush(now);
        if let Err(cause) = built.and(rang) {
            self.blame(inner, CloseReason::Post(cause));
        }
    }
}

impl Inner {
    /// Returns the number of free slots of the send queue when [`Conn::pump_now`] last looked, less those used since.
    #[inline(always)]
    fn sq_slots(&mut self) -> u16 {
        let free = QpHandle::sq(&mut self.link).map_or(0, |(sq, _)| sq.slots());
        u16::try_from(free).unwrap_or(u16::MAX)
    }

    /// Returns whether [`Conn::pump_now`] would certainly do nothing, or only find again that there is no credit.
    #[inline(always)]
    pub(super) fn is_blocked(&self, probe: bool, patient: bool) -> bool {
        match self.txs.blocked(&self.credits, probe, patient) {
            Some(NextTx::NoCredit) => self.stats.stands_still_for(StallReason::Credit),
            blocked => blocked.is_some(),
        }
    }

    /// Notes why the pump posts nothing more.
    #[inline(always)]
    fn rests(&mut self, why: NextTx) {
        let (count, want) = match why {
            NextTx::NoSlots => (Count::NoSlots, StallReason::Slots),
            NextTx::NoCredit => (Count::NoCredit, StallReason::Credit),
            _ => return self.stats.flows(),
        };
        self.counts.one(count);
        if !self.stats.stands_still_for(want) {
            self.begins_to_stall(want);
        }
    }

    #[cold]
    #[inline(never)]
    fn begins_to_stall(&mut self, want: StallReason) {
        let (txs, credits) = (&self.txs, &self.credits);
        self.stats.stalls(want, || {
            let main = txs.queued(QueueKind::Main);
            let queued = match want {
                StallReason::Credit => main,
                StallReason::Slots => main.saturating_add(txs.queued(QueueKind::FreeOfCredit)),
            };
            (queued, credits.credits())
        });
    }
    /// Builds a NOOP that carries `credits`.
    #[inline(never)]
    fn post_noop(&mut self, credits: u8, cksum: bool) -> Result<(), Cause> {
        dk!(
            Net,
            "{}: transmit NOOP with {credits} credits",
            self.identity.peer
        );
        let env = self.envelope();
        let mut buf = self.buf_pool.take_for_noop().ok_or(Cause::LocalFault)?;
        let nob =
            encode(buf.as_mut_slice(), &env, &BodyOut::Noop).map_err(|_| Cause::LocalFault)?;
        self.send(NOOP, buf, nob, credits, cksum)?;
        self.in_flight.pushed();
        self.stats.noop_posted(credits);
        if self.noop.is_none() {
            self.noop = Some(Timestamp::now());
        }
        self.counts.one(Count::Wrs);
        self.counts.one(Count::Noops);
        Ok(())
    }

    /// Builds the work requests of a tx: REG_MR or WRITEs if needed, then the SEND; or LOCAL_INV alone.
    fn post_tx(
        &mut self,
        (op, index): (Op, u16),
        credits: u8,
        cksum: bool,
        now: Timestamp,
    ) -> Result<(), Cause> {
        let transfer = self.txs.transfer(index).ok_or(Cause::LocalFault)?;
        let (stamps, nob, total) = transfer.measured();
        self.stats
            .posted((op, index), stamps, (nob, total, credits), now);
        dk!(
            Net,
            "{}: transmit {op:?}, tx {index}, with {credits} credits",
            self.identity.peer
        );
        match op {
            Op::Invalidate => return self.post_inv(index),
            Op::GetReq | Op::PutAck => self.post_reg(index)?,
            Op::PutDone | Op::GetDone => self.post_all_writes(index)?,
            Op::Immediate | Op::PutReq | Op::PutNak => {
                let (buf, nob) = transfer.unload().ok_or(Cause::LocalFault)?;
                return self.post_send(index, buf, nob, credits, cksum);
            }
        }
        let (buf, nob) = self.transfer(index)?.unload().ok_or(Cause::LocalFault)?;
        self.post_send(index, buf, nob, credits, cksum)
    }

    /// Returns the transfer of a tx that is being posted.
    #[inline]
    fn transfer(&mut self, index: u16) -> Result<&mut TxPayload, Cause> {
        self.txs.transfer(index).ok_or(Cause::LocalFault)
    }

    /// Builds the SEND of a tx.
    #[inline(always)]
    fn post_send(
        &mut self,
        index: u16,
        buf: TxBuf,
        nob: usize,
        credits: u8,
        cksum: bool,
    ) -> Result<(), Cause> {
        self.send(index.into(), buf, nob, credits, cksum)?;
        self.pushed_last(index);
        Ok(())
    }

    /// Counts the pushed message or invalidation of a tx, the last of its work requests.
    #[inline(always)]
    fn pushed_last(&mut self, index: u16) {
        self.in_flight.pushed();
        self.pushed(index, 1);
    }

    /// Counts pushed work requests of a tx.
    #[inline(always)]
    fn pushed(&mut self, index: u16, wrs: u16) {
        if let Some(tx) = self.txs.tx(index) {
            tx.pushed(wrs);
        }
        self.counts.more(Count::Wrs, wrs);
    }

    /// Seals a message and pushes its SEND.
    #[inline(always)]
    fn send(
        &mut self,
        context: u32,
        buf: TxBuf,
        nob: usize,
        credits: u8,
        cksum: bool,
    ) -> Result<(), Cause> {
        let mut buf = buf;
        finalize_hdr(buf.as_mut_slice(), nob, credits, cksum).map_err(|_| Cause::LocalFault)?;
        let nob = u32::try_from(nob).map_err(|_| Cause::LocalFault)?;
        let (sq, qp) = QpHandle::sq(&mut self.link)?;
        match sq.push_send(qp, context, buf, nob, false) {
            Ok(()) => {}
            Err((PushError::BatchFull, buf)) => self.send_after_all(context, buf, nob)?,
            Err(_) => return Err(Cause::LocalFault),
        }
        self.counts.one(Count::TxMsgs);
        Ok(())
    }

    /// Pushes the SEND after a flush, when the batch was full.
    #[cold]
    #[inline(never)]
    fn send_after_all(&mut self, context: u32, buf: TxBuf, nob: u32) -> Result<(), Cause> {
        self.flush_full()?;
        let (sq, qp) = QpHandle::sq(&mut self.link)?;
        sq.push_send(qp, context, buf, nob, false)
            .map_err(|_| Cause::LocalFault)
    }

    /// Ensures that `wrs` more work requests with `sges` gather elements fit into the batch.
    #[inline]
    fn make_room(&mut self, wrs: u16, sges: usize) -> Result<(), Cause> {
        let (sq, _) = QpHandle::sq(&mut self.link)?;
        match sq.fits(wrs.into(), sges) {
            true => Ok(()),
            false => self.flush_full(),
        }
    }

    /// Registers the key of a sink. The registration goes into the send queue right in front of the message that tells
    /// the peer.
    fn post_reg(&mut self, index: u16) -> Result<(), Cause> {
        let (_, qp) = QpHandle::sq(&mut self.link)?;
        let wrs = qp.wrs_per_reg();
        self.make_room(wrs, 0)?;
        let transfer = self.txs.transfer(index).ok_or(Cause::LocalFault)?;
        let sink = transfer.sink.as_mut().ok_or(Cause::LocalFault)?;
        let SinkKey::Mapped(mr) = sink.key.take() else {
            return Err(Cause::LocalFault);
        };
        let (sq, qp) = QpHandle::sq(&mut self.link)?;
        let mr = sq.push_reg(qp, u32::from(index) | IN_FRONT, mr, false);
        sink.key = SinkKey::Valid(mr.map_err(|_| Cause::LocalFault)?);
        self.pushed(index, wrs);
        Ok(())
    }

    /// Invalidates the key of a sink.
    fn post_inv(&mut self, index: u16) -> Result<(), Cause> {
        self.make_room(1, 0)?;
        let sink = self.transfer(index)?.sink.as_mut();
        let SinkKey::Valid(mr) = sink.ok_or(Cause::LocalFault)?.key.take() else {
            return Err(Cause::LocalFault);
        };
        let (sq, qp) = QpHandle::sq(&mut self.link)?;
        sq.push_inv(qp, u32::from(index) | INVALIDATE, mr)
            .map_err(|_| Cause::LocalFault)?;
        self.pushed_last(index);
        Ok(())
    }

    /// Builds WRITEs of a tx that stays the first in line: `wrs`, if it has as many.
    // Separate function, as the next but one: most posted transmits are a message alone.
    #[inline(never)]
    fn post_part(&mut self, index: u16, wrs: u16) -> Result<(), Cause> {
        let (pushed, left) = self.post_writes(index, wrs)?;
        if pushed == 0 {
            // The tx would stay the first in line for ever.
            return Err(Cause::LocalFault);
        }
        self.txs.chunk_posted(index, pushed, left == 0);
        Ok(())
    }

    /// Builds the WRITEs of a tx that were not built yet.
    #[inline(always)]
    fn post_all_writes(&mut self, index: u16) -> Result<(), Cause> {
        // Most often a single WRITE is enough, and needs no cursor.
        let max_sge = self.max_sge;
        let transfer = self.txs.transfer(index).ok_or(Cause::LocalFault)?;
        if let Some((map, to, nob)) = transfer.single_write(max_sge) {
            let (sq, qp) = QpHandle::sq(&mut self.link)?;
            let pushed = sq.push_single_write(qp, u32::from(index) | IN_FRONT, map, to, nob);
            if pushed.map_err(|_| Cause::LocalFault)? {
                transfer.wrote(0);
                self.pushed(index, 1);
                return Ok(());
            }
        }
        match self.post_writes(index, u16::MAX)? {
            (_, 0) => Ok(()),
            // The sink is smaller than before.
            _ => Err(Cause::LocalFault),
        }
    }

    /// Moves the data: one WRITE for each piece of the peer's sink, more if the pages are scattered. Continues at the
    /// current position; returns the number of WRITEs that it pushed, at most `wrs`, and the number of bytes that are
    /// left.
    #[inline(never)]
    fn post_writes(&mut self, index: u16, wrs: u16) -> Result<(u16, u32), Cause> {
        let max_sge = self.max_sge;
        let context = u32::from(index) | IN_FRONT;
        let Some((mut cursor, mut left)) = self.transfer(index)?.writes() else {
            // An error, or zero bytes: only the message is sent.
            return Ok((0, 0));
        };
        let mut pushed = 0u16;
        while left > 0 && pushed < wrs {
            self.make_room(1, max_sge)?;
            let transfer = self.txs.transfer(index).ok_or(Cause::LocalFault)?;
            let remote = transfer.remote.as_mut().ok_or(Cause::LocalFault)?;
            let Some(to) = remote.first() else {
                break;
            };
            let (sq, qp) = QpHandle::sq(&mut self.link)?;
            let nob = to.nob.min(left);
            let moved = sq
                .push_write(qp, context, to.addr, remote.key, &mut cursor, nob, false)
                .map_err(|_| Cause::LocalFault)?;
            remote.advance(moved);
            self.pushed(index, 1);
            pushed = pushed.saturating_add(1);
            left = left.saturating_sub(moved);
        }
        self.transfer(index)?.wrote(left);
        Ok((pushed, left))
    }

    /// Rings the doorbell for the pushed work requests, because there is no room for more.
    #[cold]
    #[inline(never)]
    fn flush_full(&mut self) -> Result<(), Cause> {
        self.flush(Timestamp::now())
    }

    /// Rings the doorbell for the pushed work requests, if there are any.
    #[inline(always)]
    fn flush(&mut self, now: Timestamp) -> Result<(), Cause> {
        let rang = self.ring(now);
        self.rang(rang)
    }

    /// Rings the doorbell; [`Inner::rang`] follows under the same lock.
    #[inline(always)]
    fn ring(&mut self, now: Timestamp) -> Result<bool, Unposted> {
        let link = self.link.as_mut();
        link.map_or(Ok(false), |link| link.flush(now))
    }

    /// Handles the result of [`Inner::ring`]. All work requests that were pushed are counted in their transmits.
    #[inline(always)]
    fn rang(&mut self, rang: Result<bool, Unposted>) -> Result<(), Cause> {
        match rang {
            Ok(true) => self.counts.one(Count::Doorbells),
            Ok(false) => {}
            Err(unposted) => return self.lost(unposted),
        }
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn lost(&mut self, unposted: Unposted) -> Result<(), Cause> {
        if unposted.rang {
            self.counts.one(Count::Doorbells);
        }
        // Work requests that the device did not take will not complete by themselves.
        let next = |this: &mut Self| {
            let (sq, _) = QpHandle::sq(&mut this.link).ok()?;
            SendQueue::next_unposted(sq)
        };
        // The device has refused the first, and has not seen the others; or none, if it refused a receive.
        let mut refused = unposted.rang;
        while let Some(context) = next(self) {
            let tx = index_of(context).and_then(|index| self.txs.tx(index));
            if let (false, Some(tx)) = (refused, tx) {
                tx.take_back();
            }
            refused = false;
            self.retire_failed(context, Cause::LocalFault);
        }
        Err(Cause::LocalFault)
    }

    /// Handles a work request of the send queue that has succeeded: its context, and the message buffer of a send.
    #[inline(always)]
    pub(super) fn sent(&mut self, context: u32, buf: Option<TxBuf>, now: Timestamp) {
        self.counts.one(Count::Retired);
        self.retire(context, buf, Ok(()), Some(now));
    }

    /// Handles a work request in front of a message that has succeeded. Returns false if [`Inner::sent`] must do that.
    #[inline(always)]
    pub(super) fn sent_in_front(&mut self, context: u32) -> bool {
        if context & IN_FRONT == 0 || ConnStats::wants_completions() {
            return false;
        }
        let tx = index_of(context).and_then(|index| self.txs.tx(index));
        let done = tx.is_some_and(Tx::completed_in_front);
        if done {
            self.counts.one(Count::Retired);
        }
        done
    }

    /// Handles a work request of the send queue that has failed. Returns the cause to close the connection with, before
    /// the next completion is handled.
    pub(super) fn send_failed(&mut self, context: u32, status: WcStatus) -> Cause {
        self.counts.one(Count::Retired);
        let cause = outcome(status).err().unwrap_or(Cause::LocalFault);
        self.retire_failed(context, cause);
        if status == WcStatus::RnrRetryExc {
            self.counts.one(Count::Rnr);
        }
        cause
    }

    // Separate function, so that the other one knows that the send succeeded. There is no buffer: the device may still
    // use it.
    #[cold]
    #[inline(never)]
    fn retire_failed(&mut self, context: u32, cause: Cause) {
        self.retire(context, None, Err(cause), None);
    }

    /// Books the end of one send work request.
    #[inline(always)]
    fn retire(
        &mut self,
        context: u32,
        buf: Option<TxBuf>,
        result: Result<(), Cause>,
        now: Option<Timestamp>,
    ) {
        let index = index_of(context);
        if ConnStats::wants_completions() {
            let op = index.and_then(|index| Some((self.txs.get(index)?.tx().op(), index)));
            self.stats.completed(op, result);
        }
        let Some(index) = index else {
            self.in_flight.ended();
            self.credits.noop_completed();
            self.noop = (self.credits.noops() > 0).then(Timestamp::now);
            if let Some(buf) = buf {
                self.buf_pool.put_of_noop(buf);
            }
            return;
        };
        if let Some(buf) = buf {
            self.buf_pool.put(buf);
        }
        let last = context & IN_FRONT == 0;
        if last {
            self.in_flight.ended();
        }
        let wr = match context & INVALIDATE {
            0 => Wr::Any,
            _ => Wr::Invalidate,
        };
        let sent = self.txs.completed(index, wr, result);
        if let (Some(transfer), Some(now), true) = (sent, now, last) {
            self.stats.sent(&transfer.stamps, now);
        }
    }
}
