// SPDX-License-Identifier: GPL-2.0

//! Events of the connections of a peer: a connection is established or released, or the next attempt is due.
//!
//! Context: process; may sleep.

use kernel::{
    sync::Arc,
    workqueue::WorkItem, //
};

use super::{
    Connection,
    Peer,
    RECHECK_MS,
    RETRY, //
};
use crate::{
    policy::{
        link_state::{
            SendPolicy,
            RECALL_MS, //
        },
        reconnect::{
            PeerParams,
            RetryReject, //
        }, //
    },
    proto::{
        cause::Cause,
        handshake::STALE_REQUEST_MS, //
    },
    rdma::{
        random,
        work::NofsScope, //
    }, //
};

impl<C: Connection> WorkItem<RETRY> for Peer<C> {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let _nofs = NofsScope::enter();
        if this.ni.passage() != SendPolicy::Open {
            return this.wait_for_link();
        }
        let listed = this.ni.is_listed();
        let turn = this.with(|inner| {
            if !listed {
                let _ = inner.policy.cancel_retry();
            }
            let turn = inner.try_again(&this);
            if turn.is_err() {
                this.check_later(inner);
            }
            turn
        });
        match turn {
            Err(()) => {}
            Ok(Some((attempts, turn))) => (0..attempts).for_each(|_| this.attempt(turn)),
            Ok(None) => {
                // Messages may wait for the release of a connection, which is running at this moment.
                this.serve_waiting();
                // LNet deletes the NI: the cause of the last attempt, which may have been the peer's, is not why
                // messages fail.
                this.forget((!listed).then_some(Cause::Shutdown), true);
            }
        }
        // The peer had its turn, and may not have used it; or a call was lost.
        this.peers.call_next();
    }
}

impl<C: Connection> Peer<C> {
    /// Keeps a retry waiting for the link to come up, for a limited time.
    fn wait_for_link(self: &Arc<Self>) {
        // Waiting messages delay the deletion of the NI.
        if !self.ni.is_listed() {
            self.drop_retry(Cause::Shutdown);
            // A peer with a closing connection is kept.
            return self.refuse_waiting();
        }
        if self.ni.passage() == SendPolicy::Refuse {
            self.refuse_waiting();
        }
        let now_ms = self.ni.now_ms();
        let again = self.with(|inner| {
            let policy = &mut inner.policy;
            let recalled = policy.is_recalled() && now_ms.saturating_sub(inner.lost_ms) < RECALL_MS;
            // More connections beside established ones wait for the link, too.
            let more = policy.has_conns() && policy.is_due();
            let wanted = !inner.pending.is_empty() || recalled || more;
            // A connection released meanwhile may have asked for a retry.
            if !wanted || self.ni.is_stopping() {
                let _ = policy.cancel_retry();
                return false;
            }
            // The pause after an attempt may have ended meanwhile, and the retry with it.
            let again = policy.hold() || policy.is_due();
            if again {
                self.check_later(inner);
            }
            again
        });
        if !again {
            self.forget(Some(self.ni.way(|way| way.why())), true);
        }
    }

    /// Publishes a connection that was just established. The caller calls [`Peer::flush_pending`] next, for the
    /// messages that wait. Called by the connection's control worker.
    pub(crate) fn established(self: &Arc<Self>, conn: &Arc<C>, known: PeerParams) {
        let now_ms = self.ni.now_ms();
        self.end_turn(conn);
        if conn.is_active() || conn.is_confirmed() {
            self.answers();
        }
        let stale = self.with(|inner| {
            inner.policy.established(conn.is_active(), known);
            inner.last_cause = None;
            inner.conns.publish(conn, true);
            now_ms.saturating_sub(inner.asked_ms) >= STALE_REQUEST_MS
        });
        // The walk begins with the connections that were listed last. The request of a passive connection came when the
        // connection was listed. So the incarnation of connections listed later is not older, even if `conn` waited
        // long for the first message of the peer.
        let mut is_later = !conn.is_active();
        self.for_each_conn(|other| {
            is_later &= !Arc::ptr_eq(other, conn);
            let (old, new) = if is_later {
                (conn, other)
            } else {
                (other, conn)
            };
            // A host that sends into a queue pair may have guessed its number.
            let is_over = || new.is_confirmed() || old.is_doubted();
            if conn.is_up() && other.is_stale(known.stamp) && is_over() {
                old.fail(Cause::PeerRestarted);
            } else if !conn.is_active() && !Arc::ptr_eq(other, conn) {
                if other.is_active() && stale {
                    other.overtaken();
                }
                other.doubt(false);
            }
        });
    }

    /// Sends the waiting messages over `conn`, which was established. `None`: `conn` is already closing, so waiting
    /// messages go over another connection, or wait for one. Requests further connections that are due. Called by the
    /// blocking worker of `conn`; may take long, because LNet may send another message from inside.
    pub(crate) fn flush_pending(self: &Arc<Self>, conn: Option<&Arc<C>>) {
        self.connect_missing();
        match conn {
            Some(conn) => self.flush(conn.clone(), true),
            None => self.serve_waiting(),
        }
    }

    /// Handles the release of a connection object; `moved` if the NI's address is on another device than before. Called
    /// by the blocking worker of the connection, as its last step.
    pub(crate) fn released(
        self: &Arc<Self>,
        conn: &Arc<C>,
        attempt_failed: bool,
        retry: Option<RetryReject>,
        cause: Cause,
        moved: bool,
    ) {
        // Before the peer lock, because the connection lock is taken here.
        let (heard_ms, lived_ms) = (conn.heard_ms(), conn.lived_ms());
        {
            let mut inner = self.inner.lock();
            inner.heard_ms = inner.heard_ms.max(heard_ms);
            inner.conns.remove(conn);
        }
        self.end_turn(conn);
        if attempt_failed {
            let cause = if moved { Cause::Moved } else { cause };
            self.attempt_over(conn.is_active(), retry, cause);
            return;
        }
        let moved = moved && !cause.has(Cause::IS_WANTED) && !self.ni.is_stopping();
        let lost = self.ni.passage() != SendPolicy::Open && !self.ni.is_stopping();
        let now_ms = self.ni.now_ms();
        let broke = conn.is_active() && cause.has(Cause::IS_RETRYABLE);
        let bad = !cause.has(Cause::IS_OURS);
        let random = random::u32();
        let retries = self.with(|inner| {
            inner.last_cause = Some(cause);
            let _ = inner.policy.closed();
            let waiting = !inner.pending.is_empty() && !inner.gone;
            let pause = inner.policy.ended(lived_ms, bad, waiting, random);
            inner.lost_ms = now_ms;
            if broke {
                inner.policy.broke();
            }
            // Waiting messages reconnect below.
            let recall = (lost && !cause.has(Cause::IS_WANTED)
                || moved && inner.pending.is_empty())
                && !inner.gone
                && inner.policy.reconnect();
            match pause {
                Some(ms) => self.retry_in(inner, ms),
                None if recall && lost => self.retry_in(inner, RECHECK_MS),
                // The peer may not know yet that its side of the connection is dead.
                None if recall => self.recall_soon(inner),
                None => return false,
            }
            true
        });
        if !retries {
            self.connect_missing();
        }
        // Messages that arrived while the connection was closing need another one.
        self.serve_waiting();
        self.forget(Some(cause), true);
    }
}
