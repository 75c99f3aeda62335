// SPDX-License-Identifier: GPL-2.0

//! A peer as people see it.
//!
//! Context: process; what is of [`PeerInner`] is asked with the peer's lock held.

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
    /// The connections, for people; without memory not all of them.
    pub(crate) fn conns(&self) -> KVec<Arc<C>> {
        self.with(|inner| inner.conns.snapshot())
    }

    /// For people: the next try is in so many milliseconds.
    pub(super) fn note_retry(&self, inner: &mut PeerInner<C>, ms: u32) {
        inner.retry_ms = self.ni.now_ms().saturating_add(u64::from(ms));
    }
}

impl<C: Connection> PeerInner<C> {
    /// Races lost by the peer in a row.
    pub(crate) fn races(&self) -> u8 {
        self.policy.races()
    }

    /// Attempts that failed in a row.
    pub(crate) fn failures(&self) -> u32 {
        self.policy.failures()
    }

    /// Why the last connection or attempt ended, if none was made since.
    pub(crate) fn last_cause(&self) -> Option<Cause> {
        self.last_cause
    }

    /// When something good was last heard on a connection that is over, on the NI's clock.
    pub(crate) fn heard_ms(&self) -> u64 {
        self.heard_ms
    }

    /// Messages that wait for a connection.
    pub(crate) fn waiting(&self) -> usize {
        self.pending.len()
    }

    /// Number of connections that messages may use.
    pub(crate) fn usable(&self) -> usize {
        self.conns.usable()
    }

    /// Milliseconds that the oldest waiting message has waited; 0 if none waits.
    pub(crate) fn waited_ms(&self) -> i64 {
        self.pending.waited_ms()
    }

    /// When the next try is due, on the NI's clock; `None` if none is.
    pub(crate) fn retry_at_ms(&self) -> Option<u64> {
        self.policy.is_due().then_some(self.retry_ms)
    }

    /// Number of connection objects.
    pub(crate) fn objects(&self) -> u16 {
        u16::try_from(self.conns.len()).unwrap_or(u16::MAX)
    }
}
