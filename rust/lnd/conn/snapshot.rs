// SPDX-License-Identifier: GPL-2.0

//! State of a connection for debugfs and `lnetctl debug peer`: copied under its lock in one go, to be printed without
//! it.
//!
//! Context: process.

use super::Conn;
use crate::{
    lnd::stats::conn_counters::{
        Counts,
        SnapshotId, //
    },
    proto::{
        cause::Cause,
        conn_state::State,
        credits::Credits,
        tx_table::QueueKind, //
    },
    rdma::{
        atomic::Relaxed,
        cm_path::Path, //
    }, //
};

/// State of a connection.
pub(crate) struct ConnSnapshot {
    pub(crate) active: bool,
    pub(crate) state: State,
    /// Name of the reason why it closes, or `none`.
    pub(crate) cause: &'static str,
    pub(crate) credits: Credits,
    /// Lengths of [`QueueKind::ALL`].
    pub(crate) queued: [u16; 3],
    pub(crate) counts: Counts,
    /// Number of transmits that are posted, or wait for an answer.
    pub(crate) active_txs: u16,
    /// Milliseconds that the oldest transmit has waited, and what it waits for.
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

impl Conn {
    /// Returns the state for the snapshot `list`; `None` if that snapshot has it already.
    pub(crate) fn view(&self, list: SnapshotId) -> Option<ConnSnapshot> {
        let mut inner = self.inner.lock();
        if core::mem::replace(&mut inner.list, list) == list {
            return None;
        }
        let (sq_free, recvs, qpn, recv_wrs) = inner.link.as_ref().map_or((0, 0, 0, 0), |link| {
            let recvs = link.qp().recvs_posted();
            let sq_free = u16::try_from(link.sq_free()).unwrap_or(u16::MAX);
            (sq_free, recvs, link.qp().number(), link.recv_wrs)
        });
        let mut view = ConnSnapshot {
            active: self.active,
            state: inner.state.state(),
            cause: inner.state.cause().map_or("none", Cause::name),
            credits: inner.credits,
            queued: QueueKind::ALL.map(|queue| inner.txs.queued(queue)),
            counts: inner.counts.with_recv_wrs(recv_wrs),
            active_txs: 0,
            oldest: (0, "none"),
            sq_free,
            recvs,
            qpn,
            peer_qpn: inner.peer_qpn,
            path: inner.path,
            with_lnet: inner.rx_queue.owed(),
            idle_ms: inner.idle_ms(),
            doubted: self.is_doubted.load(Relaxed),
            number: inner.stats.who.number(),
        };
        for (_, slot) in inner.txs.pending() {
            let (tx, Some(transfer)) = (slot.tx(), slot.transfer()) else {
                continue;
            };
            let (waits_for, active) = match tx.timeout_cause() {
                Cause::DeadlineSending => ("sending", 1),
                Cause::DeadlineAnswer => ("answer", 1),
                _ => ("queued", 0),
            };
            view.active_txs = view.active_txs.saturating_add(active);
            let age_ms = transfer.age_ms();
            if age_ms >= view.oldest.0 {
                view.oldest = (age_ms, waits_for);
            }
        }
        Some(view)
    }
}
