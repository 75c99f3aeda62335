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

/// Received message that waits for the end of the handshake.
pub(crate) struct RxView {
    pub(crate) kind: u8,
    pub(crate) credits: u8,
}

/// Counters of a connection.
pub(crate) struct ConnSnapshot {
    pub(crate) active: bool,
    pub(crate) state: State,
    pub(crate) cause: Option<Cause>,
    /// Counters of its wire half.
    pub(crate) wire: WireSnapshot,
    /// Requests whose buffer LNet has and has not returned.
    pub(crate) with_lnet: u16,
    /// Milliseconds since a valid message was received.
    pub(crate) idle_ms: i64,
    pub(crate) peer_qpn: u32,
    /// Path to the peer, as far as it is known.
    pub(crate) path: Path,
    pub(crate) doubted: bool,
    /// Its number among the connections of its NI.
    pub(crate) number: u32,
}

/// State of a connection with its transmits.
pub(crate) struct ConnDetails {
    pub(crate) view: ConnSnapshot,
    pub(crate) txs: KVVec<TxView>,
    /// Messages that arrived before the end of the handshake.
    pub(crate) early: KVec<RxView>,
}

impl Conn {
    /// Returns the counters for the snapshot `list`; `None` if that snapshot has them already.
    pub(crate) fn view(&self, list: SnapshotId) -> Option<ConnSnapshot> {
        self.with(|inner| inner.wire.enter(list).then(|| self.snapshot(inner)))
    }

    /// Returns the counters, the transmits, and the early messages. May sleep.
    pub(crate) fn details(&self) -> Result<ConnDetails> {
        let (nr_txs, nr_early) =
            self.with(|inner| (inner.wire.nr_txs(), inner.rx_queue.early().count()));
        let mut txs = KVVec::with_capacity(nr_txs, GFP_KERNEL)?;
        let mut early = KVec::with_capacity(nr_early, GFP_KERNEL)?;
        let view = self.with(|inner| {
            inner.wire.list(&mut txs);
            for rx in inner.rx_queue.early() {
                // The message is not decoded yet.
                let (kind, credits) = match decode(rx.bytes()) {
                    Ok(m) => (m.body.kind().wire(), m.env.credits),
                    Err(_) => (0, 0),
                };
                let _ = early.push_within_capacity(RxView { kind, credits });
            }
            self.snapshot(inner)
        });
        Ok(ConnDetails { view, txs, early })
    }

    fn snapshot(&self, inner: &Inner) -> ConnSnapshot {
        ConnSnapshot {
            active: self.active,
            state: inner.state.state(),
            cause: inner.state.cause(),
            wire: inner.wire.numbers(),
            with_lnet: inner.rx_queue.owed(),
            idle_ms: inner.idle_ms(),
            peer_qpn: inner.peer_qpn,
            path: inner.path,
            doubted: self.doubted(),
            number: inner.wire.meter().number(),
        }
    }
}
