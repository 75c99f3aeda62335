// SPDX-License-Identifier: GPL-2.0

//! Statistics of a connection: latency histograms of its NI ([`crate::policy::latency`]), which are always on, and
//! trace points ([`crate::lnet::trace`]).
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

use kernel::prelude::*;

use crate::{
    lnd::timestamp::Timestamp,
    lnet::trace::{
        self,
        wanted,
        Event, //
    },
    policy::latency::{
        name,
        row,
        Histogram,
        Stage,
        Stamps,
        ROWS, //
    },
    proto::{
        cause::Cause,
        conn_state::{
            ConnEvent,
            State, //
        },
        nid::Nid,
        reject::RejectCause as Refusal,
        tx_state::Op,
        wire::MsgType, //
    },
    rdma::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        percpu_histogram::PercpuHistogram, //
    }, //
};

/// Latency histograms of an NI, 10 KiB on each CPU, and the numbers of its connections.
pub(crate) struct LatencyStats {
    rows: PercpuHistogram<ROWS>,
    /// Number of connections that were given a number.
    conns: Atomic<u32>,
}

impl LatencyStats {
    /// Creates empty histograms. May sleep.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            rows: PercpuHistogram::new()?,
            conns: Atomic::new(0),
        })
    }

    /// Returns a histogram; recording may go on meanwhile.
    pub(crate) fn histogram(&self, stage: Stage, op: Op) -> Histogram {
        Histogram::read(|word| row(stage, op).map_or(0, |row| self.rows.sum(row, word)))
    }
}

/// Resource that a queued transmit waits for.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum StallReason {
    Credit,
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
    rows: PercpuHistogram<ROWS>,
    pub(crate) who: trace::Conn,
    /// Resource that sending waits for, and since when.
    stall: Option<(StallReason, Timestamp)>,
}

impl ConnStats {
    /// Creates the statistics of a connection or attempt of `ni` with `peer`; the first one of an NI has the number 1.
    pub(crate) fn new(times: &LatencyStats, ni: Nid, peer: Nid, active: bool) -> Self {
        let number = times.conns.fetch_add(1, Relaxed).wrapping_add(1);
        Self {
            rows: times.rows.clone(),
            who: trace::Conn::new(&ni, &peer, number, active),
            stall: None,
        }
    }

    /// Calls `report` if the trace point is enabled. A closure that copies what it uses costs nothing otherwise.
    #[inline(always)]
    fn trace(&self, event: Event, report: impl FnOnce(&trace::Conn)) {
        if wanted(event) {
            cold(report, &self.who);
        }
    }

    pub(crate) fn state(&self, from: State, to: State, why: ConnEvent) {
        self.trace(Event::ConnState, move |who| who.state(&from, &to, &why));
    }

    pub(crate) fn over(&self, up: bool, cause: Cause, detail: Option<&str>) {
        self.trace(Event::Close, |who| closed(who, up, cause, detail));
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
            stamps.post(op, now);
            let queued = now.ns_since(stamps.queued);
            if queued > 0 {
                self.waited(op, queued, now);
            }
        }
        self.trace(Event::Post, move |who| {
            let nob = u32::try_from(nob).unwrap_or(u32::MAX);
            let bytes = match op {
                Op::Invalidate => 0,
                Op::PutDone | Op::GetDone => total.saturating_add(nob),
                _ => nob,
            };
            who.post(name(op.message()), tx.into(), bytes, credits.into());
        });
    }

    /// Records that a transmit was queued for `queued` nanoseconds.
    #[inline(never)]
    fn waited(&self, op: Op, queued: u64, now: Timestamp) {
        if let Some((StallReason::Credit, since)) = self.stall {
            self.record(Stage::Credit, op, now.ns_since(since).min(queued));
        }
        self.record(Stage::Queued, op, queued);
    }

    /// Traces a posted NOOP that returns credits.
    pub(crate) fn noop_posted(&self, credits: u8) {
        self.trace(Event::Post, move |who| {
            who.post(name(Some(MsgType::Noop)), u32::MAX, 0, credits.into());
        });
    }

    /// Returns whether the trace point of [`ConnStats::completed`] is enabled.
    #[inline]
    pub(crate) fn wants_completions() -> bool {
        wanted(Event::Complete)
    }

    /// Traces a completed work request of a transmit; `None`: of a NOOP.
    #[cold]
    pub(crate) fn completed(&self, of: Option<(Op, u16)>, result: Result<(), Cause>) {
        let (message, tx) = match of {
            Some((op, tx)) => (op.message(), tx.into()),
            None => (Some(MsgType::Noop), u32::MAX),
        };
        let result = result.map_or_else(Cause::name, |()| "ok");
        self.who.complete(name(message), tx, result);
    }

    /// Records that all work requests of a transmit have completed.
    #[inline]
    pub(crate) fn sent(&self, stamps: &Stamps<Timestamp>, now: Timestamp) {
        if let Some((op, posted)) = stamps.sent() {
            self.record(Stage::Wire, op, now.ns_since(posted));
        }
    }

    #[inline]
    pub(crate) fn received(&self, message: MsgType, nob: usize, credits: u8) {
        self.trace(Event::Receive, move |who| {
            let nob = u32::try_from(nob).unwrap_or(u32::MAX);
            who.receive(name(Some(message)), nob, credits.into());
        });
    }

    /// Records that the peer has answered the message of `op`, which was posted at `posted`.
    #[inline]
    pub(crate) fn answered(&self, op: Op, posted: Timestamp, now: Timestamp) {
        self.record(Stage::Answer, op, now.ns_since(posted));
    }

    /// Records that LNet has returned the buffer of a request.
    #[inline]
    pub(crate) fn given_back(&self, request: MsgType, received: Timestamp, now: Timestamp) {
        let op = match request {
            MsgType::Immediate => Op::Immediate,
            MsgType::PutReq => Op::PutReq,
            MsgType::GetReq => Op::GetReq,
            _ => return,
        };
        self.record(Stage::Lnet, op, now.ns_since(received));
    }

    /// Records that sending waits for `want`, as the last run of the pump did not. `state` returns the number of queued
    /// transmits and of credits, for the trace event.
    pub(crate) fn stalls(&mut self, want: StallReason, state: impl FnOnce() -> (u16, u8)) {
        self.flows();
        self.stall = Some((want, Timestamp::now()));
        self.trace(Event::Stall, |who| {
            let (queued, credits) = state();
            who.stall(want.name(), queued.into(), credits.into());
        });
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
            self.trace(Event::StallOver, |who| {
                who.stall_over(want.name(), Timestamp::now().ns_since(since));
            });
        }
    }

    /// Records that a message was in a stage for `ns` nanoseconds, unless it does not pass the stage.
    #[inline(always)]
    fn record(&self, stage: Stage, op: Op, ns: u64) {
        let Some(row) = row(stage, op) else {
            return;
        };
        // For a measurement of its cost: `make no-times`.
        if !cfg!(ro2iblnd_no_times) {
            self.rows.record(row, ns);
        }
        self.trace(Event::Stage, move |who| {
            who.stage(name(op.message()), stage.name(), ns);
        });
    }
}

#[cold]
#[inline(never)]
fn cold(report: impl FnOnce(&trace::Conn), who: &trace::Conn) {
    report(who);
}

fn closed(who: &trace::Conn, up: bool, cause: Cause, detail: Option<&str>) {
    who.close(up, cause.initiator(), cause.name(), detail.unwrap_or("-"));
}

/// Traces an attempt to connect with `peer` that ended before a connection object existed.
pub(crate) fn no_conn(ni: Nid, peer: Nid, cause: Cause) {
    if wanted(Event::Close) {
        closed(&trace::Conn::new(&ni, &peer, 0, true), false, cause, None);
    }
}

pub(crate) fn refused(ni: Option<Nid>, peer: Option<Nid>, why: &Refusal) {
    if wanted(Event::Refuse) {
        let ni = ni.as_ref().map(|nid| -> &dyn Display { nid });
        let peer = peer.as_ref().map(|nid| -> &dyn Display { nid });
        trace::refuse(ni, peer, why.name());
    }
}
