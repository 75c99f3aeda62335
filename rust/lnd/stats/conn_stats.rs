// SPDX-License-Identifier: GPL-2.0

//! What happens on a connection, measured and told to those who look: histograms of its NI
//! ([`super::latency`]), which are always on, and trace points ([`crate::lnet::trace`]).
//!
//! Each function is called where it happens, with the point in time that the caller has read for the whole
//! batch: nothing here reads a clock, but a stall that begins, and an end that is traced.
//!
//! Context: softirq and process; a part of what the connection lock protects.
//!
//! # Invariants
//!
//! `stall` is `Some` while the pump found something queued and could not post it, when it last looked.

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
        close_log::{
            cause_name,
            refusal_number,
            Initiator,
            REFUSALS, //
        },
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
        reject_reason::RejectCause as Refusal,
        tx::Op,
        wire::MsgType, //
    }, //
};

/// What sending may stand still for.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum StallReason {
    /// A credit of the peer's.
    Credit,
    /// Room in the send queue.
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

/// What is measured of a connection, and told to who looks.
pub(crate) struct ConnStats {
    times: Arc<LatencyStats>,
    who: trace::Conn,
    /// What sending stands still for, and since when.
    stall: Option<(StallReason, Timestamp)>,
}

impl ConnStats {
    /// Of a connection, or attempt, of `ni` with `peer`.
    pub(crate) fn new(times: &Arc<LatencyStats>, ni: Nid, peer: Nid, active: bool) -> Self {
        Self {
            times: times.clone(),
            who: trace::Conn::new(&ni, &peer, times.next_conn(), active),
            stall: None,
        }
    }

    /// The connection's number, of those of its NI.
    pub(crate) fn number(&self) -> u32 {
        self.who.number()
    }

    /// It has this queue pair from now on.
    pub(crate) fn set_qpn(&mut self, qpn: u32) {
        self.who.set_qpn(qpn);
    }

    /// It went from one state to another.
    pub(crate) fn state(&self, from: State, to: State, why: ConnEvent) {
        if wanted(trace::Event::ConnState) {
            self.who.state(&from, &to, &why);
        }
    }

    /// It is over.
    pub(crate) fn over(&self, up: bool, cause: Cause, detail: Option<&str>) {
        if wanted(trace::Event::Close) {
            let detail = detail.unwrap_or("-");
            self.who
                .close(up, &Initiator::of(cause), cause_name(cause), detail);
        }
    }

    /// A transmit is posted: with a message of `nob` bytes that returns credits, and up to `total` bytes that
    /// move by RDMA.
    #[inline(always)]
    pub(crate) fn posted(
        &self,
        (op, tx): (Op, u16),
        stamps: &mut Stamps<Timestamp>,
        (nob, total, credits): (usize, u32, u8),
        now: Timestamp,
    ) {
        let kind = TxKind::from(op);
        let queued = now.ns_since(stamps.posted(kind, now));
        self.note(Stage::Queued, kind, queued);
        if let Some((StallReason::Credit, since)) = self.stall {
            if matches!(op.cost(), Some(Cost::Credit | Cost::CreditAndReserve)) {
                self.note(Stage::Credit, kind, now.ns_since(since).min(queued));
            }
        }
        if wanted(trace::Event::Post) {
            self.tell_post(op, tx, nob, total, credits);
        }
    }

    #[cold]
    #[inline(never)]
    fn tell_post(&self, op: Op, tx: u16, nob: usize, total: u32, credits: u8) {
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

    /// A NOOP is posted that returns credits.
    pub(crate) fn noop_posted(&self, credits: u8) {
        if wanted(trace::Event::Post) {
            let name = TxKind::Noop.name();
            self.who.post(name, u32::MAX, 0, u32::from(credits));
        }
    }

    /// Whether anybody wants to hear of [`ConnStats::completed`].
    #[inline]
    pub(crate) fn wants_completions() -> bool {
        wanted(trace::Event::Complete)
    }

    /// A work request of a transmit is over; `None`: of a NOOP.
    #[cold]
    pub(crate) fn completed(&self, of: Option<(Op, u16)>, result: Result<(), Cause>) {
        let (kind, tx) = match of {
            Some((op, tx)) => (TxKind::from(op), u32::from(tx)),
            None => (TxKind::Noop, u32::MAX),
        };
        let result = result.map_or_else(cause_name, |()| "ok");
        self.who.complete(kind.name(), tx, result);
    }

    /// All work requests of a transmit are done.
    #[inline]
    pub(crate) fn sent(&self, stamps: &mut Stamps<Timestamp>, now: Timestamp) {
        if let Some((kind, since)) = stamps.sent(now) {
            self.note(Stage::Wire, kind, now.ns_since(since));
        }
    }

    /// A message was received.
    #[inline]
    pub(crate) fn received(&self, message: MsgType, nob: usize, credits: u8) {
        if wanted(trace::Event::Receive) {
            self.tell_receive(message, nob, credits);
        }
    }

    #[cold]
    #[inline(never)]
    fn tell_receive(&self, message: MsgType, nob: usize, credits: u8) {
        let name = TxKind::of_message(message).map_or("?", TxKind::name);
        let nob = u32::try_from(nob).unwrap_or(u32::MAX);
        self.who.receive(name, nob, u32::from(credits));
    }

    /// The peer has answered a transmit, of which [`Stamps::answered`] said `waited`.
    #[inline]
    pub(crate) fn answered(&self, waited: Option<(TxKind, Timestamp)>, now: Timestamp) {
        if let Some((kind, since)) = waited {
            self.note(Stage::Answer, kind, now.ns_since(since));
        }
    }

    /// LNet gave the buffer of a request back.
    #[inline]
    pub(crate) fn given_back(&self, message: MsgType, received: Timestamp, now: Timestamp) {
        if let Some(kind) = TxKind::of_message(message) {
            self.note(Stage::Lnet, kind, now.ns_since(received));
        }
    }

    /// Sending stands still for `want`, with so many transmits queued for it.
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

    /// Whether sending stood still for `want` when the pump looked last.
    #[inline]
    pub(crate) fn stands_still_for(&self, want: StallReason) -> bool {
        matches!(self.stall, Some((of, _)) if of == want)
    }

    /// Nothing that is queued waits for anything.
    #[inline(always)]
    pub(crate) fn flows(&mut self) {
        if self.stall.is_some() {
            self.flows_again();
        }
    }

    #[cold]
    #[inline(never)]
    fn flows_again(&mut self) {
        if let Some((want, since)) = self.stall.take() {
            if wanted(trace::Event::StallOver) {
                self.who
                    .stall_over(want.name(), Timestamp::now().ns_since(since));
            }
        }
    }

    #[inline]
    fn note(&self, stage: Stage, kind: TxKind, ns: u64) {
        self.times.note(stage, kind, ns);
        if wanted(trace::Event::Stage) {
            self.tell(stage, kind, ns);
        }
    }

    #[cold]
    #[inline(never)]
    fn tell(&self, stage: Stage, kind: TxKind, ns: u64) {
        self.who.stage(kind.name(), stage.name(), ns);
    }
}

/// An attempt to connect with `peer` ended before there was anything of it.
pub(crate) fn no_conn(ni: Nid, peer: Nid, cause: Cause, detail: Option<&str>) {
    if wanted(trace::Event::Close) {
        let detail = detail.unwrap_or("-");
        let who = trace::Conn::new(&ni, &peer, 0, true);
        who.close(false, &Initiator::of(cause), cause_name(cause), detail);
    }
}

/// A request of `peer` was refused.
pub(crate) fn refused(ni: Option<Nid>, peer: Option<Nid>, why: &Refusal) {
    if wanted(trace::Event::Refuse) {
        let name = REFUSALS.get(refusal_number(why)).copied().unwrap_or("?");
        let ni = ni.as_ref().map(|nid| -> &dyn Display { nid });
        let peer = peer.as_ref().map(|nid| -> &dyn Display { nid });
        trace::refuse(ni, peer, name);
    }
}
