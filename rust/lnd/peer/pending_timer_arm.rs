// SPDX-License-Identifier: GPL-2.0

//! List of messages of a peer that wait for a connection, with the timer of [`super::pending_timer`].
//!
//! Context: the peer lock is held, except for [`Peer::cancel_pending_timer`].

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    Connection,
    Peer,
    PeerInner,
    PENDING,
    RECHECK_MS, //
};
use crate::{
    lnd::pending::Pending,
    policy::pending_timeout::PendingTimeout,
    rdma::work, //
};

impl<C: Connection> work::DelayedItem<PENDING> for Peer<C> {
    fn queue(&self) -> &work::OwnedQueue {
        &self.ni.workers.control
    }
}

impl<C: Connection> Peer<C> {
    /// Keeps a message behind all others or, if it has waited before (`again`), in front of them.
    pub(super) fn keep(
        self: &Arc<Self>,
        inner: &mut PeerInner<C>,
        pending: KBox<Pending>,
        again: bool,
    ) {
        if again {
            inner.pending.push_front(pending);
        } else {
            inner.pending.push_back(pending);
        }
        self.arm_pending_timer(inner);
    }

    /// Arms the timer, unless it is armed, or no message waits.
    pub(super) fn arm_pending_timer(self: &Arc<Self>, inner: &PeerInner<C>) {
        if inner.gone || inner.pending.is_empty() {
            return;
        }
        let ms = self.pending_timeout().look_in_ms(inner.pending.waited_ms());
        let ms = ms.min(RECHECK_MS);
        let _ = work::queue_delayed::<Self, PENDING>(self.clone(), ms);
    }

    /// Cancels the timer of a peer that is out of its table, because no message waits any more.
    pub(super) fn cancel_pending_timer(self: &Arc<Self>) {
        let _ = work::cancel::<Self, PENDING>(self);
    }

    /// Returns the limit for messages that wait for a connection.
    pub(super) fn pending_timeout(&self) -> PendingTimeout {
        PendingTimeout::new(self.ni.pending_limit_ms(), self.ni.message_limit_ms())
    }
}
