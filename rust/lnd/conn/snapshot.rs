// SPDX-License-Identifier: GPL-2.0

//! State of a connection for debugfs: copied under its lock in one go, to be printed without it.
//!
//! Context: process.

use kernel::prelude::*;

pub(crate) use super::wire::snapshot::{
    TxList,
    TxView,
    WireSnapshot, //
};
use super::{
    Conn,
    Inner, //
};
use crate::{
    lnd::stats::closed_counters::SnapshotId,
    proto::{
        cause::Cause,
        conn_state::State,
        wire::decode, //
    },
    rdma::cm_path::Path, //
};

/// A received message that waits for the handshake to end.
pub(crate) struct RxView {
    pub(crate) kind: u8,
    pub(crate) credits: u8,
}

/// The numbers of a connection.
pub(crate) struct ConnSnapshot {
    pub(crate) active: bool,
    pub(crate) state: State,
    pub(crate) cause: Option<Cause>,
    /// Those of its wire half.
    pub(crate) wire: WireSnapshot,
    /// Requests that LNet has and has not returned the buffer of.
    pub(crate) with_lnet: u16,
    /// Milliseconds since something good was received.
    pub(crate) idle_ms: i64,
    pub(crate) peer_qpn: u32,
    /// What is known of its path.
    pub(crate) path: Path,
    pub(crate) doubted: bool,
    /// Its number, of those of its NI.
    pub(crate) number: u32,
}

/// A connection with all that it has to do.
pub(crate) struct ConnDetails {
    pub(crate) view: ConnSnapshot,
    pub(crate) txs: KVVec<TxView>,
    /// What came before the handshake was over.
    pub(crate) early: KVec<RxView>,
}

impl Conn {
    /// The numbers, for that list; not if it has them.
    pub(crate) fn view(&self, list: SnapshotId) -> Option<ConnSnapshot> {
        let path = self.cm.known_path();
        self.with(|inner| inner.wire.enter(list).then(|| self.snapshot(inner, path)))
    }

    /// The numbers, the transmits, and what came early. May sleep.
    pub(crate) fn details(&self) -> Result<ConnDetails> {
        let (nr_txs, nr_early) =
            self.with(|inner| (inner.wire.nr_txs(), inner.rx_queue.nr_parked()));
        let mut txs = KVVec::with_capacity(nr_txs, GFP_KERNEL)?;
        let mut early = KVec::with_capacity(nr_early, GFP_KERNEL)?;
        let path = self.cm.known_path();
        let view = self.with(|inner| {
            inner.wire.list(&mut txs);
            for msg in inner.rx_queue.parked() {
                // Nobody has judged it yet.
                let (kind, credits) = match decode(msg.bytes()) {
                    Ok(m) => (m.body.kind().wire(), m.env.credits),
                    Err(_) => (0, 0),
                };
                let _ = early.push_within_capacity(RxView { kind, credits });
            }
            self.snapshot(inner, path)
        });
        Ok(ConnDetails { view, txs, early })
    }

    fn snapshot(&self, inner: &Inner, path: Path) -> ConnSnapshot {
        ConnSnapshot {
            active: self.active,
            state: inner.state.state(),
            cause: inner.state.cause(),
            wire: inner.wire.numbers(),
            with_lnet: inner.rx_queue.owed(),
            idle_ms: inner.timers.idle_ms(),
            peer_qpn: self.cm.peer_qpn(),
            path,
            doubted: self.doubted(),
            number: inner.wire.meter().number(),
        }
    }
}
