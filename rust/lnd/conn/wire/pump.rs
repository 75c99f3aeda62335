// SPDX-License-Identifier: GPL-2.0

//! Pump: selects the transmits that may be sent next, and posts them with one doorbell.
//!
//! Context: softirq and process context, under the connection lock: the order on the wire must be the order of the
//! credits.

use super::{
    qp_handle::QpHandle,
    Wire, //
};
use crate::{
    lnd::{
        conn::rx::RxConn,
        stats::{
            conn_counters::Count,
            conn_trace::StallReason, //
        },
        timestamp::Timestamp, //
    },
    proto::{
        cause::Cause,
        tx_queues::NextTx, //
    }, //
};

impl<C: RxConn> Wire<C> {
    /// Returns whether a NOOP must return the few credits there are: the peer has none, and LNet keeps so many requests
    /// that the high-water mark is out of reach.
    pub(crate) fn starves_peer(&self) -> bool {
        self.credits.starves_peer()
    }

    /// Returns whether [`Wire::pump`] would certainly do nothing, by one quick check; it may do nothing in other cases,
    /// too.
    #[inline(always)]
    pub(crate) fn is_idle(&self) -> bool {
        self.txs.is_idle(&self.credits)
    }

    /// Returns whether [`Wire::pump`] would do nothing, for certain.
    #[inline(always)]
    pub(crate) fn is_quiet(&self, probe: bool) -> bool {
        self.txs.is_quiet(&self.credits, probe)
    }

    /// Returns whether the last [`Wire::pump`] found no credit.
    #[inline]
    pub(crate) fn lacks_credit(&self) -> bool {
        self.stats.stands_still_for(StallReason::Credit)
    }

    /// Returns whether [`Wire::pump`] would only find that there is no credit.
    #[inline]
    pub(crate) fn is_starved(&self, probe: bool, patient: bool) -> bool {
        self.txs.is_starved(&self.credits, probe, patient)
    }

    /// Posts all transmits that may be sent, with as few doorbells as possible. Posts a NOOP if there is no other
    /// message and `probe` is set, or the peer needs credits. `patient`: the caller comes back when LNet has taken the
    /// received requests. `cksum`: messages carry a checksum. Only while the connection is established.
    ///
    /// # Errors
    ///
    /// Returns the cause to close the connection with. Work requests that could not be posted are retired.
    #[inline(always)]
    pub(crate) fn pump(
        &mut self,
        probe: bool,
        patient: bool,
        now: Timestamp,
        cksum: bool,
    ) -> Result<(), Cause> {
        let mut keepalive = probe;
        let mut free = self.link.as_mut().map_or(0, QpHandle::refresh_free_slots);
        let built = loop {
            let next = self.txs.next(&mut self.credits, free, keepalive, patient);
            keepalive = false;
            let built = match next {
                NextTx::Post { index, op, carried } => self
                    .post_tx((op, index), carried, cksum, now)
                    // Work requests of an earlier step may be under way yet, and succeed.
                    .inspect_err(|cause| self.txs.latch(index, *cause)),
                NextTx::Part { index, wrs } => self.post_part(index, wrs),
                NextTx::Noop { carried } => self.post_noop(carried, cksum),
                NextTx::NoSlots => {
                    self.counts.one(Count::NoSlots);
                    self.stalls(StallReason::Slots);
                    break Ok(());
                }
                NextTx::NoCredit => {
                    self.counts.one(Count::NoCredit);
                    self.stalls(StallReason::Credit);
                    break Ok(());
                }
                NextTx::Empty => {
                    self.stats.flows();
                    break Ok(());
                }
            };
            if built.is_err() {
                break built;
            }
            // Most often that was all.
            if self.txs.is_quiet(&self.credits, false) {
                self.stats.flows();
                break Ok(());
            }
            // Or all that the peer has room for.
            if self.txs.is_starved(&self.credits, false, patient) {
                self.counts.one(Count::NoCredit);
                self.stalls(StallReason::Credit);
                break Ok(());
            }
            free = self.link.as_ref().map_or(0, QpHandle::slots);
        };
        // Also after a failure: pushed work requests complete only if they are posted.
        built.and(self.flush(now))
    }

    /// Notes that no transmit may be sent for lack of `want`.
    #[inline]
    fn stalls(&mut self, want: StallReason) {
        if !self.stats.stands_still_for(want) {
            self.begins_to_stall(want);
        }
    }

    #[cold]
    #[inline(never)]
    fn begins_to_stall(&mut self, want: StallReason) {
        let queued = self.txs.lengths();
        let queued = match want {
            StallReason::Credit => queued.main,
            StallReason::Slots => queued.main.saturating_add(queued.free_of_credit),
        };
        let credits = self.credits.snapshot().credits;
        self.stats.stalls(want, queued, credits);
    }
}
