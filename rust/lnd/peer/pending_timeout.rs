// SPDX-License-Identifier: GPL-2.0

//! Timer that fails messages of a peer that have waited too long for a connection; [`crate::policy::pending_timeout`]
//! defines the limit.
//!
//! The timer depends on nothing else: not on an attempt of this node (a peer that sends requests all the time and never
//! continues leaves none), not on the turn of a worker (a worker may wait for minutes behind a device that hangs), not
//! on a retry. While messages wait, the timer runs once a second: LNet, which deletes an NI, waits for its messages,
//! too, and these must not wait for the pause before another attempt.
//!
//! Context: the timer is a delayed work item on a queue where a waiting item delays no other item. It is armed with the
//! peer lock held.
//!
//! # Invariants
//!
//! While messages wait in a peer that is in its table, the timer is armed, or is running and has not taken the lock
//! yet. It is armed only for such a peer; the code that takes a peer from the table cancels the timer afterwards.

use kernel::{
    prelude::*,
    sync::Arc,
    workqueue::WorkItem, //
};

use super::{
    Connection,
    Peer,
    PeerInner,
    HOLD_LOOK_MS,
    PATIENCE, //
};
use crate::{
    lnd::pending::Pending,
    policy::{
        link_state::SendPolicy,
        pending_timeout::{
            PeerProgress,
            PendingTimeout, //
        }, //
    },
    proto::cause::Cause,
    rdma::work::{
        self,
        NofsScope, //
    }, //
};

impl<C: Connection> WorkItem<PATIENCE> for Peer<C> {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let _nofs = NofsScope::enter();
        let expired = this.with(|inner| {
            let expired = inner.pending.take_expired(this.patience_ms(inner));
            this.look_after(inner);
            expired
        });
        let n = expired.len();
        if n > 0 {
            let cause = this.what_was_missing();
            this.ni.close_stats.messages(cause, n);
            expired.fail(cause);
        }
        if !this.ni.is_listed() {
            this.drop_pending();
        }
    }
}

impl<C: Connection> work::DelayedItem<PATIENCE> for Peer<C> {
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
        self.look_after(inner);
    }

    /// Arms the timer, unless it is armed, or no message waits.
    fn look_after(self: &Arc<Self>, inner: &PeerInner<C>) {
        if inner.gone || inner.pending.is_empty() {
            return;
        }
        let ms = self.patience().look_in_ms(inner.pending.waited_ms());
        let ms = ms.min(HOLD_LOOK_MS);
        let _ = work::queue_delayed::<Self, PATIENCE>(self.clone(), ms);
    }

    /// Cancels the timer of a peer that is out of its table, because no message waits any more.
    pub(super) fn look_no_more(self: &Arc<Self>) {
        let _ = work::cancel::<Self, PATIENCE>(self);
    }

    /// Returns why messages that waited too long had no connection: a peer that could not be asked is not blamed.
    fn what_was_missing(&self) -> Cause {
        match self.ni.passage() {
            SendPolicy::Open => Cause::DeadlineConnecting,
            SendPolicy::Hold | SendPolicy::Refuse => self.ni.way(|way| way.why()),
        }
    }

    fn patience(&self) -> PendingTimeout {
        PendingTimeout::new(self.ni.pending_limit_ms(), self.ni.message_limit_ms())
    }

    /// Returns how long a message may wait for a connection, in milliseconds.
    fn patience_ms(&self, inner: &PeerInner<C>) -> i64 {
        let since = self.ni.now_ms().saturating_sub(inner.called_ms);
        self.patience().limit_ms(PeerProgress {
            in_line: inner.place.waits(),
            called_ms_ago: (inner.called_ms != 0).then_some(since),
            under_way: inner.policy.is_under_way(),
        })
    }
}
