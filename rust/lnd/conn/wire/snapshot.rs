// SPDX-License-Identifier: GPL-2.0

//! State of a connection for debugfs and `lnetctl debug peer`: copied under its lock in one go, to be printed without
//! it.
//!
//! Context: process.

use kernel::prelude::*;

use crate::{
    lnd::{
        conn::{
            Conn,
            Inner, //
        },
        stats::conn_counters::{
            Counts,
            SnapshotId, //
        }, //
    },
    proto::{
        cause::Cause,
        conn_state::State,
        credits::Snapshot,
        tx_state::{
            Tx,
            TxState, //
        },
        tx_table::QueueKind,
        wire::{
            decode,
            Cookie,
            Version, //
        }, //
    },
    rdma::{
        atomic::Relaxed,
        cm_path::Path, //
    }, //
};

/// Transmit that is not finished.
pub(crate) struct TxSnapshot {
    /// Queue that it is in; `None` for posted transmits, and those that wait for an answer, or for their key.
    pub(crate) queue: Option<QueueKind>,
    pub(crate) index: u16,
    pub(crate) tx: Tx,
    pub(crate) age_ms: i64,
    pub(crate) cookie: Cookie,
    /// Whether LNet waits for a message, and for a reply.
    pub(crate) awaited: (bool, bool),
}

/// State of a connection.
pub(crate) struct ConnSnapshot {
    pub(crate) active: bool,
    pub(crate) state: State,
    pub(crate) cause: Option<Cause>,
    pub(crate) version: u16,
    pub(crate) credits: Snapshot,
    /// Lengths of [`QueueKind::ALL`].
    pub(crate) queued: [u16; 3],
    pub(crate) counts: Counts,
    /// Posted work requests of transmits.
    pub(crate) posted: u16,
    /// Transmits that are not finished.
    pub(crate) in_use: usize,
    /// Milliseconds that the oldest of them has waited, and what it waits for.
    pub(crate) oldest: (i64, &'static str),
    pub(crate) sq_free: u16,
    /// Posted receives.
    pub(crate) recvs: usize,
    pub(crate) qpn: u32,
    pub(crate) peer_qpn: u32,
    /// Path to the peer, as far as it is known.
    pub(crate) path: Path,
    /// Requests whose buffer LNet has and has not returned.
    pub(crate) with_lnet: u16,
    /// Milliseconds since a valid message was received.
    pub(crate) idle_ms: i64,
    pub(crate) doubted: bool,
    /// Its number among the connections of its NI.
    pub(crate) number: u32,
}

/// State of a connection with its transmits.
pub(crate) struct ConnDetails {
    pub(crate) view: ConnSnapshot,
    pub(crate) txs: KVVec<TxSnapshot>,
    /// Types and credits of messages that arrived before the end of the handshake.
    pub(crate) early: KVec<(u8, u8)>,
}

impl Conn {
    /// Returns the state for the snapshot `list`; `None` if that snapshot has it already.
    pub(crate) fn view(&self, list: SnapshotId) -> Option<ConnSnapshot> {
        self.with(|inner| inner.wire.enter(list).then(|| self.snapshot(inner)))
    }

    /// Returns the state with the transmits and the early messages. May sleep.
    pub(crate) fn details(&self) -> Result<ConnDetails> {
        let (nr_txs, nr_early) =
            self.with(|inner| (inner.wire.nr_txs(), inner.rx_queue.early().count()));
        let mut txs = KVVec::with_capacity(nr_txs, GFP_KERNEL)?;
        let mut early = KVec::with_capacity(nr_early, GFP_KERNEL)?;
        let view = self.with(|inner| {
            list_txs(inner, &mut txs);
            for rx in inner.rx_queue.early() {
                // The message is not decoded yet.
                let m = decode(rx.bytes());
                let _ = early.push_within_capacity(
                    m.map_or((0, 0), |m| (m.body.kind().wire(), m.env.credits)),
                );
            }
            self.snapshot(inner)
        });
        Ok(ConnDetails { view, txs, early })
    }

    fn snapshot(&self, inner: &Inner) -> ConnSnapshot {
        let wire = &inner.wire;
        let (sq_free, recvs, qpn, recv_wrs) = wire.link.as_ref().map_or((0, 0, 0, 0), |link| {
            let recvs = link.qp().recvs_posted();
            let sq_free = u16::try_from(link.sq_free()).unwrap_or(u16::MAX);
            (sq_free, recvs, link.qp().number(), link.recv_wrs())
        });
        let mut view = ConnSnapshot {
            active: self.active,
            state: inner.state.state(),
            cause: inner.state.cause(),
            version: Version::V2.wire(),
            credits: wire.credits.snapshot(),
            queued: QueueKind::ALL.map(|queue| wire.txs.queued(queue)),
            counts: wire.counts.with_recv_wrs(recv_wrs),
            posted: 0,
            in_use: 0,
            oldest: (0, "none"),
            sq_free,
            recvs,
            qpn,
            peer_qpn: inner.peer_qpn,
            path: inner.path,
            with_lnet: inner.rx_queue.owed(),
            idle_ms: inner.idle_ms(),
            doubted: self.is_doubted.load(Relaxed),
            number: wire.meter().number(),
        };
        for (_, slot) in wire.txs.pending() {
            let (tx, Some(transfer)) = (slot.tx(), slot.transfer()) else {
                continue;
            };
            view.in_use = view.in_use.saturating_add(1);
            if let TxState::Posted { wrs, .. } | TxState::Queued { wrs } = tx.place() {
                view.posted = view.posted.saturating_add(wrs);
            }
            let age_ms = transfer.age_ms();
            if age_ms >= view.oldest.0 {
                let waits_for = match tx.timeout_cause() {
                    Cause::DeadlineSending => "sending",
                    Cause::DeadlineAnswer => "answer",
                    _ => "queued",
                };
                view.oldest = (age_ms, waits_for);
            }
        }
        view
    }
}

/// Lists every unfinished transmit; the caller has made room for all of them.
fn list_txs(inner: &Inner, out: &mut KVVec<TxSnapshot>) {
    let txs = &inner.wire.txs;
    let queued =
        QueueKind::ALL.map(|queue| txs.waiting(queue).map(move |index| (Some(queue), index)));
    let active = txs.pending().filter_map(|(index, slot)| {
        matches!(
            slot.tx().place(),
            TxState::Posted { .. } | TxState::Waiting | TxState::Held
        )
        .then_some((None, index))
    });
    for (queue, index) in Iterator::chain(queued.into_iter().flatten(), active) {
        let (Some(slot), Some(cookie)) = (txs.get(index), txs.cookie(index)) else {
            continue;
        };
        let Some(transfer) = slot.transfer() else {
            continue;
        };
        let _ = out.push_within_capacity(TxSnapshot {
            queue,
            index,
            tx: *slot.tx(),
            age_ms: transfer.age_ms(),
            cookie,
            awaited: transfer.awaited(),
        });
    }
}
