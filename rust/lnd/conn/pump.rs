// SPDX-License-Identifier: GPL-2.0

//! Build of transmits, and the pump, which selects those that may be sent next, and posts them with one doorbell. A new
//! message alone that the pump would post at once passes the queues.
//!
//! Context: softirq and process context, under the connection lock: the order on the wire must be the order of the
//! credits.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    qp_handle::QpHandle,
    tx_payload::TxPayload,
    Conn,
    Inner, //
};
use crate::{
    lnd::{
        log::CloseReason,
        stats::{
            conn_counters::Count,
            conn_latency::StallReason, //
        },
        timestamp::Timestamp, //
    },
    lnet::dk::dk,
    proto::{
        cause::Cause,
        tx_state::Op,
        tx_table::{
            NextTx,
            QueueKind, //
        },
        wire::{
            encode,
            BodyOut,
            Cookie, //
        }, //
    },
    rdma::buf::TxBuf, //
};

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
}
