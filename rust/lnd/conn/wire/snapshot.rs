// SPDX-License-Identifier: GPL-2.0

//! State of the wire half for debugfs, copied under the connection lock in one go.

use kernel::prelude::*;

use super::Wire;
use crate::{
    lnd::stats::counters::Counts,
    proto::{
        cause::Cause,
        credits::Snapshot,
        tx::TxState,
        tx_queues::{
            Lengths,
            QueueKind, //
        }, //
    },
    rdma::handler::QpHandler, //
};

/// Where a transmit is listed.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum TxList {
    /// In a queue.
    Queue(QueueKind),
    /// It was posted, or waits for an answer, or for its key.
    Active,
}

/// A transmit.
pub(crate) struct TxView {
    pub(crate) list: TxList,
    pub(crate) index: u16,
    pub(crate) wrs: u16,
    pub(crate) answer: bool,
    pub(crate) status: i32,
    pub(crate) age_ms: i64,
    pub(crate) cookie: u64,
    pub(crate) message: bool,
    pub(crate) reply: bool,
    pub(crate) kind: u8,
}

/// The numbers of the wire half.
pub(crate) struct WireSnapshot {
    pub(crate) version: u16,
    pub(crate) credits: Snapshot,
    pub(crate) queues: Lengths,
    pub(crate) counts: Counts,
    /// Work requests of transmits that are posted.
    pub(crate) posted: u16,
    /// Transmits that are not over.
    pub(crate) in_use: usize,
    pub(crate) sq_free: u16,
    /// Receives that are posted.
    pub(crate) recvs: usize,
    pub(crate) qpn: u32,
    /// For how long the oldest transmit that is not over has waited, in milliseconds, and what for.
    pub(crate) oldest: Option<(i64, &'static str)>,
    /// The age of the oldest transmit, in milliseconds.
    pub(crate) oldest_ms: i64,
}

impl<C: QpHandler> Wire<C> {
    /// The numbers.
    pub(crate) fn numbers(&self) -> WireSnapshot {
        let (sq_free, recvs, qpn, recv_wrs) = self.link.as_ref().map_or((0, 0, 0, 0), |link| {
            let qp = link.qp();
            let recvs = qp.recvs_posted();
            (link.sq_free(), recvs, qp.number(), link.recv_wrs())
        });
        let ages = self.txs.transfers().map(|transfer| transfer.age_ms());
        let mut numbers = WireSnapshot {
            version: self.identity.version.wire(),
            credits: self.credits.snapshot(),
            queues: self.txs.lengths(),
            counts: self.counts.with_recv_wrs(recv_wrs),
            posted: 0,
            in_use: 0,
            sq_free,
            recvs,
            qpn,
            oldest: None,
            oldest_ms: ages.max().unwrap_or(0),
        };
        for (_, tx, transfer) in self.txs.pending() {
            numbers.in_use = numbers.in_use.saturating_add(1);
            if let TxState::Posted { wrs, .. } = tx.place() {
                numbers.posted = numbers.posted.saturating_add(wrs);
            }
            let age = transfer.age_ms();
            if numbers.oldest.is_none_or(|(oldest, _)| age >= oldest) {
                numbers.oldest = Some((age, waits_for(tx.timeout_cause())));
            }
        }
        numbers
    }

    /// Takes down every transmit that is not over; the caller has made room for as many as there are.
    pub(crate) fn list(&self, out: &mut KVVec<TxView>) {
        for line in [
            QueueKind::FreeOfCredit,
            QueueKind::Unreserved,
            QueueKind::Main,
        ] {
            for index in self.txs.waiting(line) {
                self.snapshot(index, TxList::Queue(line), out);
            }
        }
        for (index, tx, _) in self.txs.pending() {
            if matches!(
                tx.place(),
                TxState::Posted { .. } | TxState::Waiting | TxState::Held
            ) {
                self.snapshot(index, TxList::Active, out);
            }
        }
    }

    fn snapshot(&self, index: u16, list: TxList, out: &mut KVVec<TxView>) {
        let Some((tx, transfer, cookie)) = self.txs.look(index) else {
            return;
        };
        let (wrs, answer) = match tx.place() {
            TxState::Queued { wrs } => (wrs, false),
            TxState::Posted { wrs, answer } => (wrs, answer),
            TxState::Waiting => (0, true),
            _ => (0, false),
        };
        let (message, reply) = transfer.awaited();
        let _ = out.push_within_capacity(TxView {
            list,
            index,
            wrs,
            answer,
            status: tx.cause().map_or(0, |c| c.outcome(true).status),
            age_ms: transfer.age_ms(),
            cookie: cookie.0,
            message,
            reply,
            kind: tx.op().message().map_or(0, |kind| kind.wire()),
        });
    }
}

/// What a transmit waits for, by the cause of its deadline.
fn waits_for(cause: Cause) -> &'static str {
    match cause {
        Cause::DeadlineSending => "sending",
        Cause::DeadlineAnswer => "answer",
        _ => "queued",
    }
}
