// SPDX-License-Identifier: GPL-2.0

//! Timer for the next attempt to connect to a peer; its work is in [`super::conn_events`].
//!
//! The code that finds a retry due arms the timer, while it still holds the peer lock. Therefore the timer is not armed
//! for a retry that is no longer due, and does not delay a retry that other code wants sooner. It is not armed for a
//! peer that is out of its table. Otherwise the NI could not be deleted before the timer has run.

use kernel::sync::Arc;

use super::{
    Connection,
    Peer,
    PeerInner,
    RECHECK_MS,
    RETRY, //
};
use crate::rdma::{
    random,
    work, //
};

/// Time in milliseconds over which reconnects of peers without a waiting message are spread when the link comes up.
const RECALL_SPREAD_MS: u32 = 200;

impl<C: Connection> work::DelayedItem<RETRY> for Peer<C> {
    fn queue(&self) -> &work::OwnedQueue {
        &self.ni.workers.control
    }
}

impl<C: Connection> Peer<C> {
    /// Schedules a retry that has just become due, in `ms` milliseconds. An armed timer belongs to an earlier retry
    /// that is no longer due, or the retry has to come sooner now.
    pub(super) fn retry_in(self: &Arc<Self>, inner: &mut PeerInner<C>, ms: u32) {
        if inner.gone {
            return;
        }
        self.note_retry(inner, ms);
        work::mod_delayed::<Self, RETRY>(self.clone(), ms);
    }

    /// Checks again later, because a due retry cannot be made now. Does not delay a timer that was armed meanwhile.
    pub(super) fn check_later(self: &Arc<Self>, inner: &mut PeerInner<C>) {
        if !inner.gone && work::queue_delayed::<Self, RETRY>(self.clone(), RECHECK_MS) {
            self.note_retry(inner, RECHECK_MS);
        }
    }

    /// Cancels the retry, because none is due or the peer is out of its table.
    pub(super) fn cancel_retry_timer(self: &Arc<Self>) {
        let _ = work::cancel::<Self, RETRY>(self);
    }

    /// Schedules a due retry soon, but not at the same moment as those of all other peers.
    pub(super) fn recall_soon(self: &Arc<Self>, inner: &mut PeerInner<C>) {
        self.retry_in(inner, random::u32() % RECALL_SPREAD_MS);
    }

    /// Records for debugfs that the next attempt is due in `ms` milliseconds.
    fn note_retry(&self, inner: &mut PeerInner<C>, ms: u32) {
        inner.retry_ms = self.ni.now_ms().saturating_add(u64::from(ms));
    }
}
