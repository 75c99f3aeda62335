// SPDX-License-Identifier: GPL-2.0

//! State of a peer for debugfs and `lnetctl debug peer`.
//!
//! Context: process.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    Connection,
    Peer,
    PeerInner, //
};
use crate::proto::cause::Cause;

/// State of a peer.
pub(crate) struct PeerSnapshot {
    /// Number of connection objects.
    pub(crate) objects: u16,
    /// Number of connections that messages may use.
    pub(crate) usable: usize,
    /// Number of messages that wait for a connection.
    pub(crate) waiting: usize,
    /// Milliseconds that the oldest of them has waited; 0 if none waits.
    pub(crate) waited_ms: i64,
    /// Number of consecutive races that the peer lost.
    pub(crate) races: u8,
    /// Number of consecutive failed attempts.
    pub(crate) failures: u32,
    /// Cause of the end of the last connection or attempt, if there was none since.
    pub(crate) last_cause: Option<Cause>,
    /// Time of the last valid message on a closed connection, on the NI's clock.
    pub(crate) heard_ms: u64,
    /// Time of the next attempt, on the NI's clock; `None` if none is due.
    pub(crate) retry_at_ms: Option<u64>,
}

impl<C: Connection> Peer<C> {
    /// Returns its state.
    pub(crate) fn snapshot(&self) -> PeerSnapshot {
        self.with(|inner| PeerSnapshot {
            objects: inner.objects(),
            usable: inner.conns.usable(),
            waiting: inner.pending.len(),
            waited_ms: inner.pending.waited_ms(),
            races: inner.policy.races,
            failures: inner.policy.failures,
            last_cause: inner.last_cause,
            heard_ms: inner.heard_ms,
            retry_at_ms: inner.policy.is_due().then_some(inner.retry_ms),
        })
    }

    /// Returns the connections. If memory is missing, some are left out.
    pub(crate) fn conns(&self) -> KVec<Arc<C>> {
        self.with(|inner| inner.conns.snapshot())
    }
}

impl<C: Connection> PeerInner<C> {
    /// Returns the number of connection objects.
    pub(crate) fn objects(&self) -> u16 {
        u16::try_from(self.conns.len()).unwrap_or(u16::MAX)
    }
}
