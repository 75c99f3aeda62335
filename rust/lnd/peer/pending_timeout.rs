// SPDX-License-Identifier: GPL-2.0

//! The timer that ends messages of a peer that have waited for a connection for too long;
//! [`crate::policy::pending_timeout`] says how long that is.
//!
//! It depends on nothing else: not on an attempt of ours (a peer that asks all the time and never goes on leaves none),
//! not on a worker's turn (one may wait for minutes behind a device that hangs), not on a retry. As long as something
//! waits somebody looks after it, once a second: LNet, which deletes an NI, waits for its messages, too, and they are
//! not to wait for the pause before another attempt.
//!
//! Context: the timer is a delayed work item of a queue in which who waits holds up nobody. It is armed with the peer's
//! lock held.
//!
//! # Invariants
//!
//! While messages wait in a peer that is in its table the timer is armed, or is running and has not taken the lock yet.
//! It is armed for such a peer only; who takes one from the table cancels it afterwards.

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
            this.ni.seen.messages(cause, n);
            expired.fail(cause);
        }
        if !this.ni.is_listed() {
            this.let_go();
        }
    }
}

impl<C: Connection> work::DelayedItem<PATIENCE> for Peer<C> {
    fn queue(&self) -> &work::OwnedQueue {
        &self.ni.workers.control
    }
}

impl<C: Connection> Peer<C> {
    /// A message waits behind all others, or, if it has waited before (`again`), in front of them.
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

    /// Arms the timer, unless it is armed, or nothing waits.
    fn look_after(self: &Arc<Self>, inner: &PeerInner<C>) {
        if inner.gone || inner.pending.is_empty() {
            return;
        }
        let ms = self.patience().look_in_ms(inner.pending.waited_ms());
        let ms = ms.min(HOLD_LOOK_MS);
        let _ = work::queue_delayed::<Self, PATIENCE>(self.clone(), ms);
    }

    /// It is out of its table: nothing waits any more.
    pub(super) fn look_no_more(self: &Arc<Self>) {
        let _ = work::cancel::<Self, PATIENCE>(self);
    }

    /// Why what has waited for too long had no connection: a peer that nobody could ask is not to blame.
    fn what_was_missing(&self) -> Cause {
        match self.ni.passage() {
            SendPolicy::Open => Cause::DeadlineConnecting,
            SendPolicy::Hold | SendPolicy::Refuse => self.ni.way(|way| way.why()),
        }
    }

    fn patience(&self) -> PendingTimeout {
        PendingTimeout::new(self.ni.pending_limit_ms(), self.ni.message_limit_ms())
    }

    /// Milliseconds that a message may wait for a connection.
    fn patience_ms(&self, inner: &PeerInner<C>) -> i64 {
        let since = self.ni.now_ms().saturating_sub(inner.called_ms);
        self.patience().limit_ms(PeerProgress {
            in_line: inner.place.waits(),
            called_ms_ago: (inner.called_ms != 0).then_some(since),
            under_way: inner.policy.is_under_way(),
        })
    }
}
