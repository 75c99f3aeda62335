// SPDX-License-Identifier: GPL-2.0

//! Build of transmits, and the pump, which selects those that may be sent next, and posts them with one doorbell. A new
//! message alone that the pump would post at once passes the queues.
//!
//! Context: softirq and process context, under the connection lock: the order on the wire must be the order of the
//! credits.

use kernel::prelude::*;

use super::{
    qp_handle::QpHandle,
    tx_payload::TxPayload,
    Inner, //
};
use crate::{
    lnd::{
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

/// Conditions for the immediate post of a new transmit, as of [`Inner::pump`].
#[derive(Clone, Copy)]
pub(super) struct FastPathLimits {
    pub(super) patient: bool,
    pub(super) cksum: bool,
}

/// Result of the build of a transmit.
pub(super) enum BuildResult {
    /// It was posted, with its doorbell; or the post failed, with the cause to close the connection with.
    Posted(Result<(), Cause>),
    /// It is queued.
    Queued,
}

impl Inner {
    /// Builds a transmit: its message in `buf`, and `what` creates its transfer, which may begin now. Posting it takes
    /// `slots`. A message alone is posted if [`Inner::pump`] would have done nothing more than that; any other transmit
    /// is queued. `at_once`: the doorbell rings for it.
    ///
    /// # Errors
    ///
    /// Returns the creator of its transfer, and the reason: the message is too long, or there is no place.
    #[inline(always)]
    pub(super) fn build<'a, W: FnOnce(Timestamp) -> TxPayload>(
        &mut self,
        (op, slots): (Op, u16),
        what: W,
        buf: TxBuf,
        body: impl FnOnce(Cookie) -> BodyOut<'a>,
        now: Timestamp,
        at_once: Option<FastPathLimits>,
    ) -> Result<BuildResult, (W, Cause)> {
        let mut buf = buf;
        if matches!(op, Op::PutReq | Op::GetReq) && self.txs.lacks_reserve(&self.credits) {
            self.counts.one(Count::NoReserved);
        }
        let env = self.envelope();
        let Some((index, cookie, slot)) = self.txs.alloc(op) else {
            return Err((what, Cause::NoResources));
        };
        let Ok(nob) = encode(buf.as_mut_slice(), &env, &body(cookie)) else {
            self.txs.release(index);
            return Err((what, Cause::Local(EMSGSIZE.to_errno())));
        };
        let alone = slot.fill(what(now)).is_alone();
        if let (Some(how), true) = (at_once, alone) {
            let free = self.sq_slots();
            let (credits, patient) = (&mut self.credits, how.patient);
            if let Some(carried) = self.txs.try_pay((op, slots), credits, free, patient) {
                if let Some(transfer) = self.txs.post(index, op) {
                    let (stamps, _, total) = transfer.measured();
                    let sizes = (nob, total, carried);
                    self.stats.posted((op, index), stamps, sizes, now);
                }
                dk!(
                    Net,
                    "{}: transmit {:?}, tx {}, with {} credits",
                    self.identity.peer,
                    { op },
                    { index },
                    { carried }
                );
                let sent = self.send(index.into(), buf, nob, carried, how.cksum);
                let rang = self.ring(now);
                // Counted after the doorbell, because its completion waits for the lock, and before a failure of the
                // doorbell is handled.
                if sent.is_ok() {
                    self.pushed_last(index);
                }
                self.stats.flows();
                let rang = self.rang(rang);
                return Ok(BuildResult::Posted(sent.and(rang)));
            }
        }
        if let Some(transfer) = self.txs.queue(index, slots) {
            transfer.load(buf, nob);
        }
        Ok(BuildResult::Queued)
    }

    /// Returns the number of free slots of the send queue when [`Inner::pump`] last looked, less those used since.
    #[inline(always)]
    fn sq_slots(&mut self) -> u16 {
        let free = QpHandle::sq(&mut self.link).map_or(0, |(sq, _)| sq.slots());
        u16::try_from(free).unwrap_or(u16::MAX)
    }

    /// Returns whether [`Inner::pump`] would certainly do nothing, or only find again that there is no credit.
    #[inline(always)]
    pub(super) fn is_blocked(&self, probe: bool, patient: bool) -> bool {
        match self.txs.blocked(&self.credits, probe, patient) {
            Some(NextTx::NoCredit) => self.stats.stands_still_for(StallReason::Credit),
            blocked => blocked.is_some(),
        }
    }

    /// Posts all transmits that may be sent, with as few doorbells as possible. Posts a NOOP if there is no other
    /// message and `probe` is set, or the peer needs credits. `patient`: the caller comes back when LNet has taken the
    /// received requests. `cksum`: messages carry a checksum. Only while the connection is established.
    ///
    /// # Errors
    ///
    /// Returns the cause to close the connection with. Work requests that could not be posted are retired.
    #[inline(always)]
    pub(super) fn pump(
        &mut self,
        probe: bool,
        patient: bool,
        now: Timestamp,
        cksum: bool,
    ) -> Result<(), Cause> {
        let mut keepalive = probe;
        if let Ok((sq, qp)) = QpHandle::sq(&mut self.link) {
            sq.refresh_free_slots(qp);
        }
        let built = loop {
            let free = self.sq_slots();
            let next = self.txs.next(&mut self.credits, free, keepalive, patient);
            keepalive = false;
            let built = match next {
                NextTx::Post { index, op, carried } => self
                    .post_tx((op, index), carried, cksum, now)
                    // Work requests of an earlier step may be under way yet, and succeed.
                    .inspect_err(|cause| self.txs.latch(index, *cause)),
                NextTx::Part { index, wrs } => self.post_part(index, wrs),
                NextTx::Noop { carried } => self.post_noop(carried, cksum),
                blocked => {
                    self.rests(blocked);
                    break Ok(());
                }
            };
            if built.is_err() {
                break built;
            }
            // Most often that was all, or all that the peer has room for.
            if let Some(blocked) = self.txs.blocked(&self.credits, false, patient) {
                self.rests(blocked);
                break Ok(());
            }
        };
        // Also after a failure: pushed work requests complete only if they are posted.
        built.and(self.flush(now))
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
            (queued, credits.snapshot().credits)
        });
    }
}
