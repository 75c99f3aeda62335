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
    sync::Arc,
    workqueue::WorkItem, //
};

use super::{
    Connection,
    Peer,
    PeerInner,
    PENDING, //
};
use crate::{
    policy::{
        link_state::SendPolicy,
        pending_timeout::PeerProgress, //
    },
    proto::cause::Cause,
    rdma::work::NofsScope, //
};

impl<C: Connection> WorkItem<PENDING> for Peer<C> {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let _nofs = NofsScope::enter();
        let expired = this.with(|inner| {
            let expired = inner.pending.take_expired(this.pending_limit_ms(inner));
            this.arm_pending_timer(inner);
            expired
        });
        let n = expired.len();
        if n > 0 {
            let cause = this.missing_cause();
            this.ni.close_stats.messages(cause, n);
            expired.fail(cause);
        }
        if !this.ni.is_listed() {
            this.drop_pending();
        }
    }
}

impl<C: Connection> Peer<C> {
    /// Returns why messages that waited too long had no connection: a peer that could not be asked is not blamed.
    fn missing_cause(&self) -> Cause {
        match self.ni.passage() {
            SendPolicy::Open => Cause::DeadlineConnecting,
            SendPolicy::Hold | SendPolicy::Refuse => self.ni.way(|way| way.why()),
        }
    }

    /// Returns how long a message may wait for a connection, in milliseconds.
    fn pending_limit_ms(&self, inner: &PeerInner<C>) -> i64 {
        let since = self.ni.now_ms().saturating_sub(inner.called_ms);
        self.pending_timeout().limit_ms(PeerProgress {
            in_line: inner.place.waits(),
            called_ms_ago: (inner.called_ms != 0).then_some(since),
            under_way: inner.policy.is_under_way(),
        })
    }
}
