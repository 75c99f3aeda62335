// SPDX-License-Identifier: GPL-2.0

//! Line of a connection in debugfs and for `lnetctl debug peer`.
//!
//! Context: process.

use kernel::fmt;

use super::Conn;
use crate::{
    lnd::{
        debugfs::role,
        stats::conn_counters::SnapshotId, //
    },
    proto::{
        cause::Cause,
        tx_table::QueueKind, //
    },
    rdma::{
        atomic::Relaxed,
        cm_path::Path, //
    }, //
};

impl Conn {
    /// Writes the line for the snapshot `list`, unless that snapshot has it already. The state is copied under the lock
    /// in one go, and printed without it.
    // The copy is large for the stack of the caller.
    #[inline(never)]
    pub(crate) fn show(&self, list: SnapshotId, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        // The table or the list may have shrunk meanwhile, so that the walk visits a peer or a connection twice.
        if core::mem::replace(&mut inner.list, list) == list {
            return Ok(());
        }
        let link = inner.link.as_ref();
        let (sq_free, recvs, qpn) = link.map_or((0, 0, 0), |link| {
            let qp = link.qp();
            (link.sq_free(), qp.recvs_posted(), qp.number())
        });
        let counts = link.map_or(inner.counts, |link| {
            inner.counts.with_recv_wrs(link.recv_wrs)
        });
        let state = inner.state.state();
        let cause = inner.state.cause().map_or("none", Cause::name);
        let credits = inner.credits;
        let [free_of_credit, unreserved, main] =
            QueueKind::ALL.map(|queue| inner.txs.queued(queue));
        let (peer_qpn, path, number) = (inner.peer_qpn, inner.path, inner.stats.who.number());
        let (with_lnet, idle_ms) = (inner.rx_queue.owed(), inner.idle_ms());
        // Transmits that are posted, or wait for an answer; the age of the oldest transmit, and what it waits for.
        let (mut active_txs, mut oldest_ms, mut oldest) = (0u16, 0, "none");
        for (_, slot) in inner.txs.pending() {
            let (tx, Some(transfer)) = (slot.tx(), slot.transfer()) else {
                continue;
            };
            let (waits_for, active) = match tx.timeout_cause() {
                Cause::DeadlineSending => ("sending", 1),
                Cause::DeadlineAnswer => ("answer", 1),
                _ => ("queued", 0),
            };
            active_txs = active_txs.saturating_add(active);
            let age_ms = transfer.age_ms();
            if age_ms >= oldest_ms {
                (oldest_ms, oldest) = (age_ms, waits_for);
            }
        }
        drop(guard);
        write!(
            f,
            "conn={} role={} state={state:?} depth={} credits={} outstanding={} reserved={} peer_held={} noops={}",
            self.nid(),
            role(self.active),
            credits.depth(),
            credits.credits(),
            credits.outstanding(),
            credits.reserved(),
            credits.peer_held(),
            credits.noops(),
        )?;
        write!(
            f,
            " q_main={main} q_nocred={free_of_credit} q_unreserved={unreserved} \
             with_lnet={with_lnet} sq_free={sq_free} recvs={recvs} idle_ms={idle_ms}",
        )?;
        counts.show(false, f)?;
        write!(
            f,
            " qpn={qpn} peer_qpn={peer_qpn} mtu={} oldest_ms={oldest_ms} oldest={oldest} suspect={} number={number}",
            path.mtu.unwrap_or(0),
            u8::from(self.is_doubted.load(Relaxed)),
        )?;
        show_path(&path, f)?;
        write!(f, " active_txs={active_txs} cause={cause}")?;
        counts.show(true, f)?;
        writeln!(f)
    }
}

fn show_path(path: &Path, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for (key, gid) in [("sgid", path.sgid), ("dgid", path.dgid)] {
        match gid {
            Some(gid) => write!(f, " {key}={gid}")?,
            None => write!(f, " {key}=none")?,
        }
    }
    write!(f, " port={}", path.port)?;
    for (key, n) in [
        ("tos", path.tos),
        ("sl", path.sl),
        ("retry_count", path.retry_count),
        ("rnr_retry_count", path.rnr_retry_count),
        ("ack_timeout", path.ack_timeout),
    ] {
        write!(f, " {key}={}", n.map_or(-1, i16::from))?;
    }
    Ok(())
}
