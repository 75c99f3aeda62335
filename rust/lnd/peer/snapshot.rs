// SPDX-License-Identifier: GPL-2.0

//! State of a peer for debugfs.
//!
//! Context: process; methods of [`PeerInner`] run under the peer lock.

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

impl<C: Connection> Peer<C> {
    /// Returns the connections, for debugfs. If memory is missing, some are left out.
    pub(crate) fn conns(&self) -> KVec<Arc<C>> {
        self.with(|inner| inner.conns.snapshot())
    }
}

impl<C: Connection> PeerInner<C> {
    /// Returns the number of consecutive races that the peer lost.
    pub(crate) fn races(&self) -> u8 {
        self.policy.races
    }

    /// Returns the number of consecutive failed attempts.
    pub(crate) fn failures(&self) -> u32 {
        self.policy.failures
    }

    /// Returns why the last connection or attempt ended, if there was none since.
    pub(crate) fn last_cause(&self) -> Option<Cause> {
        self.last_cause
    }

    /// Returns when a closed connection last received a valid message, on the NI's clock.
    pub(crate) fn heard_ms(&self) -> u64 {
        self.heard_ms
    }

    /// Returns the number of messages that wait for a connection.
    pub(crate) fn waiting(&self) -> usize {
        self.pending.len()
    }

    /// Returns the number of connections that messages may use.
    pub(crate) fn usable(&self) -> usize {
        self.conns.usable()
    }

    /// Returns how long the oldest waiting message has waited, in milliseconds; 0 if none waits.
    pub(crate) fn waited_ms(&self) -> i64 {
        self.pending.waited_ms()
    }

    /// Returns when the next attempt is due, on the NI's clock; `None` if none is due.
    pub(crate) fn retry_at_ms(&self) -> Option<u64> {
        self.policy.is_due().then_some(self.retry_ms)
    }

    /// Returns the number of connection objects.
    pub(crate) fn objects(&self) -> u16 {
        u16::try_from(self.conns.len()).unwrap_or(u16::MAX)
    }
}
