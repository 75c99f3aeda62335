// SPDX-License-Identifier: GPL-2.0

//! Statistics of a connection: latency histograms of its NI ([`super::latency`]), which are always on, and trace points
//! ([`crate::lnet::trace`]).
//!
//! The caller passes the time that it has read for the whole batch. The functions here read the clock only when a stall
//! begins, and when the end of a stall is traced.
//!
//! Context: softirq and process; part of the state that the connection lock protects.
//!
//! # Invariants
//!
//! `stall` is `Some` while the last run of the pump found a queued transmit that it could not post.

use core::fmt::Display;

use kernel::sync::Arc;

use super::latency::LatencyStats;
use crate::{
    lnd::timestamp::Timestamp,
    lnet::trace::{
        self,
        wanted, //
    },
    policy::{
        close_log::Initiator,
        latency::{
            Stage,
            Stamps,
            TxKind, //
        }, //
    },
    proto::{
        cause::Cause,
        conn_state::{
            ConnEvent,
            State, //
        },
        credits::Cost,
        nid::Nid,
        reject_cause::RejectCause as Refusal,
        tx_state::Op,
        wire::MsgType, //
    }, //
};

/// Resource that a queued transmit waits for.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum StallReason {
    /// Credit of the peer.
    Credit,
    /// Slot of the send queue.
    Slots,
}

impl StallReason {
    fn name(self) -> &'static str {
        match self {
            Self::Credit => "credit",
            Self::Slots => "slots",
        }
    }
}

/// Measurements of a connection for histograms and trace points.
pub(crate) struct ConnStats {
    times: Arc<LatencyStats>,
    who: trace::Conn,
    /// Resource that sending waits for, and since when.
    stall: Option<(StallReason, Timestamp)>,
}

impl ConnStats {
    /// Creates the statistics of a connection or attempt of `ni` with `peer`.
    pub(crate) fn new(times: &Arc<LatencyStats>, ni: Nid, peer: Nid, active: bool) -> Self {
        Self {
            times: times.clone(),
            who: trace::Conn::new(&ni, &peer, times.next_conn(), active),
            stall: None,
        }
    }

    /// Returns the number of the connection within its NI.
    pub(crate) fn number(&self) -> u32 {
        self.who.number()
    }

    /// Sets the number of the queue pair.
    pub(crate) fn set_qpn(&mut self, qpn: u32) {
        self.who.set_qpn(qpn);
    }

    /// Traces a change of the state.
    pub(crate) fn state(&self, from: State, to: State, why: ConnEvent) {
        if wanted(trace::Event::ConnState) {
            self.who.state(&from, &to, &why);
        }
    }

    /// Traces the close.
    pub(crate) fn over(&self, up: bool, cause: Cause, detail: Option<&str>) {
        if wanted(trace::Event::Close) {
            let detail = detail.unwrap_or("-");
            self.who
                .close(up, &Initiator::of(cause), cause.name(), detail);
        }
    }

    /// Records a posted transmit: a message of `nob` bytes that returns `credits`, with up to `total` bytes that move
    /// by RDMA.
    #[inline(always)]
    pub(crate) fn posted(
        &self,
        (op, tx): (Op, u16),
        stamps: &mut Stamps<Timestamp>,
        (nob, total, credits): (usize, u32, u8),
        now: Timestamp,
    ) {
        if op != Op::Invalidate {
            let kind = TxKind::from(op);
            let queued = now.ns_since(stamps.posted(kind, now));
            if queued > 0 {
                self.waited((op, kind), queued, now);
            }
        }
        if wanted(trace::Event::Post) {
            self.trace_post(op, tx, nob, total, credits);
        }
    }

    /// Records that a transmit was queued for `queued` nanoseconds.
    #[inline(never)]
    fn waited(&self, (op, kind): (Op, TxKind), queued: u64, now: Timestamp) {
        if let Some((StallReason::Credit, since)) = self.stall {
            if matches!(op.cost(), Some(Cost::Credit | Cost::CreditAndReserve)) {
                self.record_stage(Stage::Credit, kind, now.ns_since(since).min(queued));
            }
        }
        self.record_stage(Stage::Queued, kind, queued);
    }

    #[cold]
    #[inline(never)]
    fn trace_post(&self, op: Op, tx: u16, nob: usize, total: u32, credits: u8) {
        let nob = u32::try_from(nob).unwrap_or(u32::MAX);
        let bytes = match op {
            Op::Invalidate => 0,
            Op::PutDone | Op::GetDone => total.saturating_add(nob),
            _ => nob,
        };
        let name = TxKind::from(op).name();
        self.who
            .post(name, u32::from(tx), bytes, u32::from(credits));
    }

    /// Traces a posted NOOP that returns credits.
    pub(crate) fn noop_posted(&self, credits: u8) {
        if wanted(trace::Event::Post) {
            let name = TxKind::Noop.name();
            self.who.post(name, u32::MAX, 0, u32::from(credits));
        }
    }

    /// Returns whether the trace point of [`ConnStats::completed`] is enabled.
    #[inline]
    pub(crate) fn wants_completions() -> bool {
        wanted(trace::Event::Complete)
    }

    /// Traces a completed work request of a transmit; `None`: of a NOOP.
    #[cold]
    pub(crate) fn completed(&self, of: Option<(Op, u16)>, result: Result<(), Cause>) {
        let (kind, tx) = match of {
            Some((op, tx)) => (TxKind::from(op), u32::from(tx)),
            None => (TxKind::Noop, u32::MAX),
        };
        let result = result.map_or_else(Cause::name, |()| "ok");
        self.who.complete(kind.name(), tx, result);
    }

    /// Records that all work requests of a transmit have completed.
    #[inline]
    pub(crate) fn sent(&self, stamps: &mut Stamps<Timestamp>, now: Timestamp) {
        if let Some((kind, since)) = stamps.sent() {
            self.record_stage(Stage::Wire, kind, now.ns_since(since));
        }
    }

    /// Traces a received message.
    #[inline]
    pub(crate) fn received(&self, message: MsgType, nob: usize, credits: u8) {
        if wanted(trace::Event::Receive) {
            self.trace_receive(message, nob, credits);
        }
    }

    #[cold]
    #[inline(never)]
    fn trace_receive(&self, message: MsgType, nob: usize, credits: u8) {
        let name = TxKind::of_message(message).map_or("?", TxKind::name);
        let nob = u32::try_from(nob).unwrap_or(u32::MAX);
        self.who.receive(name, nob, u32::from(credits));
    }

    /// Records that the peer has answered a transmit; `waited` is the result of [`Stamps::answered`].
    #[inline]
    pub(crate) fn answered(&self, waited: Option<(TxKind, Timestamp)>, now: Timestamp) {
        if let Some((kind, since)) = waited {
            self.record_stage(Stage::Answer, kind, now.ns_since(since));
        }
    }

    /// Records that LNet has returned the buffer of a request.
    #[inline]
    pub(crate) fn given_back(&self, message: MsgType, received: Timestamp, now: Timestamp) {
        if let Some(kind) = TxKind::of_message(message) {
            self.record_stage(Stage::Lnet, kind, now.ns_since(received));
        }
    }

    /// Records that sending waits for `want`, with `queued` transmits.
    pub(crate) fn stalls(&mut self, want: StallReason, queued: u16, credits: u8) {
        if self.stands_still_for(want) {
            return;
        }
        self.flows();
        self.stall = Some((want, Timestamp::now()));
        if wanted(trace::Event::Stall) {
            let (queued, credits) = (u32::from(queued), u32::from(credits));
            self.who.stall(want.name(), queued, credits);
        }
    }

    /// Returns whether the last run of the pump waited for `want`.
    #[inline]
    pub(crate) fn stands_still_for(&self, want: StallReason) -> bool {
        matches!(self.stall, Some((of, _)) if of == want)
    }

    /// Records that no queued transmit waits for a credit or a slot.
    #[inline(always)]
    pub(crate) fn flows(&mut self) {
        if self.stall.is_some() {
            self.end_stall();
        }
    }

    #[cold]
    #[inline(never)]
    fn end_stall(&mut self) {
        if let Some((want, since)) = self.stall.take() {
            if wanted(trace::Event::StallOver) {
                self.who
                    .stall_over(want.name(), Timestamp::now().ns_since(since));
            }
        }
    }

    #[inline]
    fn record_stage(&self, stage: Stage, kind: TxKind, ns: u64) {
        self.times.record(stage, kind, ns);
        if wanted(trace::Event::Stage) {
            self.trace_stage(stage, kind, ns);
        }
    }

    #[cold]
    #[inline(never)]
    fn trace_stage(&self, stage: Stage, kind: TxKind, ns: u64) {
        self.who.stage(kind.name(), stage.name(), ns);
    }
}

/// Traces an attempt to connect with `peer` that ended before a connection object existed.
pub(crate) fn no_conn(ni: Nid, peer: Nid, cause: Cause, detail: Option<&str>) {
    if wanted(trace::Event::Close) {
        let detail = detail.unwrap_or("-");
        let who = trace::Conn::new(&ni, &peer, 0, true);
        who.close(false, &Initiator::of(cause), cause.name(), detail);
    }
}

/// Traces a rejected request of `peer`.
pub(crate) fn refused(ni: Option<Nid>, peer: Option<Nid>, why: &Refusal) {
    if wanted(trace::Event::Refuse) {
        let ni = ni.as_ref().map(|nid| -> &dyn Display { nid });
        let peer = peer.as_ref().map(|nid| -> &dyn Display { nid });
        trace::refuse(ni, peer, why.name());
    }
}
