// SPDX-License-Identifier: GPL-2.0

//! How long messages of a peer wait for a connection, and the timer that ends those that have waited for longer.
//!
//! It depends on nothing else: not on an attempt of ours (a peer that asks all the time and never goes on leaves none),
//! not on a worker's turn (one may wait for minutes behind a device that hangs), not on a retry. As long as something
//! waits somebody looks after it.
//!
//! Context: the timer is a delayed work item of a queue in which nobody waits. It is armed with the peer's lock held.
//!
//! # Invariants
//!
//! While messages wait in a peer that is in its table the timer is armed, or is running and has not taken the lock yet. It is
//! armed for such a peer only; who takes one from the table cancels it afterwards.

use kernel::{
    prelude::*,
    sync::Arc,
    workqueue::WorkItem, //
};

use super::{
    Connection,
    Peer,
    PeerInner,
    PATIENCE, //
};
use crate::{
    lnd::pending::{
        Pending,
        PendingList, //
    },
    proto::cause::Cause,
    rdma::work::{
        self,
        NofsScope, //
    }, //
};

/// Milliseconds between two looks at messages that may wait for longer than usual.
const LOOK_MS: i64 = 1000;

impl<C: Connection> WorkItem<PATIENCE> for Peer<C> {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let _nofs = NofsScope::enter();
        let expired = this.with(|inner| {
            let limit = this.patience_ms(inner);
            let mut expired = PendingList::EMPTY;
            while let Some(pending) = inner.pending.pop_expired(limit) {
                expired.push_back(pending);
            }
            this.look_after(inner);
            expired
        });
        let n = expired.len();
        if n > 0 {
            this.ni.seen.messages(Cause::DeadlineConnecting, n);
            expired.fail(Cause::DeadlineConnecting);
        }
    }
}

impl<C: Connection> work::Timed<PATIENCE> for Peer<C> {
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
        let left = self
            .ni
            .pending_limit_ms()
            .saturating_sub(inner.pending.waited_ms());
        // Who is past that waits for a reason that may end at any time. And not to the millisecond, so that it has waited
        // for longer then.
        let ms = if left < 0 {
            LOOK_MS
        } else {
            left.saturating_add(1)
        };
        let _ = work::arm::<Self, PATIENCE>(self.clone(), u32::try_from(ms).unwrap_or(u32::MAX));
    }

    /// It is out of its table: nothing waits any more.
    pub(super) fn look_no_more(self: &Arc<Self>) {
        let _ = work::cancel::<Self, PATIENCE>(self);
    }

    /// Milliseconds that a message may wait for a connection. For as long as LNet waits for it, while the peer is in line or
    /// an attempt is under way: that has limits of its own for each of its steps. But no longer, for a peer that asks again
    /// and again, and never goes on, has one under way all the time.
    fn patience_ms(&self, inner: &PeerInner<C>) -> i64 {
        let limit = self.ni.pending_limit_ms();
        let since = self.ni.now_ms().saturating_sub(inner.called_ms);
        let late = inner.called_ms != 0 && i64::try_from(since).is_ok_and(|ms| ms < limit);
        if late || inner.place.is_in_line() || inner.policy.is_under_way() {
            limit.max(self.ni.message_limit_ms())
        } else {
            limit
        }
    }
}
