// SPDX-License-Identifier: GPL-2.0

//! Pump: selects the transmits that may be sent next, posts them with one doorbell, and handles their completions.
//!
//! Context: softirq and process context, under the connection lock: the order on the wire must be the order of the
//! credits.

use super::{
    post,
    qp_handle::{
        QpHandle,
        Unposted, //
    },
    Wire, //
};
use crate::{
    lnd::{
        conn::rx::RxConn,
        stats::{
            conn_counters::Count,
            conn_stats::{
                ConnStats,
                StallReason, //
            }, //
        },
        timestamp::Timestamp, //
    },
    policy::upcall_sched::WrRole,
    proto::{
        cause::Cause,
        tx_queues::NextTx, //
    },
    rdma::{
        buf::TxBuf,
        wc::WcStatus, //
    }, //
};

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

impl<C: RxConn> Wire<C> {
    /// Handles a work request of the send queue that has succeeded: its context, and the message buffer of a send.
    #[inline(always)]
    pub(crate) fn sent(&mut self, context: u32, buf: Option<TxBuf>, now: Timestamp) {
        self.counts.one(Count::Retired);
        self.retire(context, buf, Ok(()), Some(now));
    }

    /// Handles a work request in front of a message that has succeeded. Returns false if [`Wire::sent`] must handle it.
    #[inline(always)]
    pub(crate) fn sent_in_front(&mut self, context: u32) -> bool {
        if post::load_of(context) != WrRole::InFront || ConnStats::wants_completions() {
            return false;
        }
        let done = post::index_of(context).is_some_and(|index| self.txs.completed_in_front(index));
        if done {
            self.counts.one(Count::Retired);
        }
        done
    }

    /// Handles a work request of the send queue that has failed. Returns the cause to close the connection with, before
    /// the next completion is handled.
    pub(crate) fn send_failed(&mut self, context: u32, status: WcStatus) -> Cause {
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
        let index = post::index_of(context);
        if ConnStats::wants_completions() {
            let op = index.and_then(|index| Some((self.txs.op(index)?, index)));
            self.stats.completed(op, result);
        }
        if post::is_noop(context) {
            self.flight.ended(WrRole::Last);
            self.credits.noop_completed();
            self.noop = (self.credits.noops() > 0).then(Timestamp::now);
            if let Some(buf) = buf {
                self.buf_pool.put_of_noop(buf);
            }
            return;
        }
        if let Some(buf) = buf {
            self.buf_pool.put(buf);
        }
        let load = post::load_of(context);
        self.flight.ended(load);
        if let Some(index) = index {
            let sent = self.txs.completed(index, post::wr_of(context), result);
            if let (Some(clock), Some(now), WrRole::Last) = (sent, now, load) {
                self.stats.sent(clock, now);
            }
        }
    }

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

    /// Rings the doorbell for the pushed work requests, because there is no room for more.
    #[cold]
    #[inline(never)]
    pub(super) fn flush_full(&mut self) -> Result<(), Cause> {
        self.flush(Timestamp::now())
    }

    /// Rings the doorbell for the pushed work requests, if there are any.
    #[inline(always)]
    fn flush(&mut self, now: Timestamp) -> Result<(), Cause> {
        let Some(link) = self.link.as_mut() else {
            return Ok(());
        };
        if link.is_empty() {
            return Ok(());
        }
        let rang = link.flush(now);
        self.flushed(rang)
    }

    /// Handles the result of the doorbell for the pushed work requests.
    #[inline(always)]
    pub(super) fn flushed(&mut self, rang: Result<(), Unposted>) -> Result<(), Cause> {
        match rang {
            Ok(()) => {
                self.counts.one(Count::Doorbells);
                Ok(())
            }
            Err(unposted) => self.lost(unposted),
        }
    }

    #[cold]
    #[inline(never)]
    fn lost(&mut self, unposted: Unposted) -> Result<(), Cause> {
        if unposted.rang {
            self.counts.one(Count::Doorbells);
        }
        // Work requests that the device did not take will not complete by themselves.
        while let Some(context) = self.link.as_mut().and_then(QpHandle::next_unposted) {
            self.retire_failed(context, Cause::LocalFault);
        }
        Err(Cause::LocalFault)
    }
}
