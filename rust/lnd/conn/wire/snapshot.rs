// SPDX-License-Identifier: GPL-2.0

//! State of the wire half for debugfs, copied under the connection lock in one go.

use kernel::prelude::*;

use super::Wire;
use crate::{
    lnd::{
        conn::{
            rx::RxConn,
            transfer::Transfer, //
        },
        stats::conn_counters::Counts, //
    },
    proto::{
        cause::Cause,
        credits::Snapshot,
        tx_state::TxState,
        tx_table::{
            Lengths,
            QueueKind, //
        },
        wire::Version, //
    }, //
};

/// List that a transmit is in.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum TxList {
    /// A queue.
    Queue(QueueKind),
    /// Posted transmits, and those that wait for an answer, or for their key.
    Active,
}

/// Transmit for debugfs.
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

/// Counters of the wire half.
pub(crate) struct WireSnapshot {
    pub(crate) version: u16,
    pub(crate) credits: Snapshot,
    pub(crate) queues: Lengths,
    pub(crate) counts: Counts,
    /// Posted work requests of transmits.
    pub(crate) posted: u16,
    /// Transmits that are not finished.
    pub(crate) in_use: usize,
    pub(crate) sq_free: u16,
    /// Posted receives.
    pub(crate) recvs: usize,
    pub(crate) qpn: u32,
    /// Milliseconds that the oldest unfinished transmit has waited, and what it waits for.
    pub(crate) oldest: Option<(i64, &'static str)>,
    /// Age of the oldest transmit, in milliseconds.
    pub(crate) oldest_ms: i64,
}

impl<C: RxConn> Wire<C> {
    /// Returns the counters.
    pub(crate) fn numbers(&self) -> WireSnapshot {
        let (sq_free, recvs, qpn, recv_wrs) = self.link.as_ref().map_or((0, 0, 0, 0), |link| {
            let qp = link.qp();
            let recvs = qp.recvs_posted();
            let sq_free = u16::try_from(link.sq_free()).unwrap_or(u16::MAX);
            (sq_free, recvs, qp.number(), link.recv_wrs())
        });
        let transfers = self.txs.iter().filter_map(|(_, slot)| slot.transfer());
        let ages = transfers.map(Transfer::age_ms);
        let mut numbers = WireSnapshot {
            version: Version::V2.wire(),
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
        for (_, slot) in self.txs.pending() {
            let (tx, Some(transfer)) = (slot.tx(), slot.transfer()) else {
                continue;
            };
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

    /// Lists every unfinished transmit; the caller has made room for all of them.
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
        for (index, slot) in self.txs.pending() {
            if matches!(
                slot.tx().place(),
                TxState::Posted { .. } | TxState::Waiting | TxState::Held
            ) {
                self.snapshot(index, TxList::Active, out);
            }
        }
    }

    fn snapshot(&self, index: u16, list: TxList, out: &mut KVVec<TxView>) {
        let Some(slot) = self.txs.get(index) else {
            return;
        };
        let (tx, Some(transfer), Some(cookie)) =
            (slot.tx(), slot.transfer(), self.txs.cookie(index))
        else {
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

/// Returns what a transmit waits for, by the cause of its deadline.
fn waits_for(cause: Cause) -> &'static str {
    match cause {
        Cause::DeadlineSending => "sending",
        Cause::DeadlineAnswer => "answer",
        _ => "queued",
    }
}
