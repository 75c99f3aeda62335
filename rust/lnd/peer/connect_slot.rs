// SPDX-License-Identifier: GPL-2.0

//! Turn of a peer in the connect queue of its NI ([`crate::policy::connect_queue`]), and its consequences.
//!
//! A call is a hint, and may be lost: a peer that waits checks again every second ([`super::RECHECK_MS`]), and then
//! calls the next peer. The queue stores addresses, not peers, and holds no reference. A peer that is forgotten removes
//! its entry.
//!
//! Context: process. The lock of the queue is a plain spin lock, which nests inside the peer lock; no memory is
//! allocated under it. A peer is called with neither held.
//!
//! # Invariants
//!
//! The attempts that the queue counts are the attempts of this node that the policies of the peers have counted
//! ([`crate::policy::reconnect::ReconnectState::start`]) and that have not ended their turn
//! ([`super::Connection::end_turn`]). Each attempt keeps the priority that it was counted with, and is counted off with
//! it.

use kernel::sync::Arc;

use super::{
    Connection,
    Peer,
    PeerInner,
    Peers,
    RECHECK_MS, //
};
use crate::policy::{
    connect_queue::{
        ConnectPriority,
        QueueState, //
    },
    link_state::SendPolicy, //
};

impl<C: Connection> Peers<C> {
    /// Ends the turn of an attempt of this node that entered with priority `claim`, and calls the next peer.
    pub(super) fn leave_line(&self, claim: ConnectPriority) {
        self.line.lock().leave(claim);
        self.call_next();
    }

    /// Calls the next peer in the queue, if there is room. Skips a peer that no longer exists.
    pub(super) fn call_next(&self) {
        loop {
            let next = self.line.lock().next();
            let Some((addr, place)) = next else { return };
            if let Some(peer) = self.table.get(addr) {
                if peer.call(place) {
                    return;
                }
            }
        }
    }
}

impl<C: Connection> Peer<C> {
    /// Ends the turn of an attempt that has ended, or that takes too long to make other peers wait. Does nothing if the
    /// turn has already ended.
    pub(crate) fn end_turn(&self, conn: &C) {
        if let Some(claim) = conn.end_turn() {
            self.peers.leave_line(claim);
        }
    }

    /// Ends the turn because the peer has not answered.
    pub(crate) fn does_not_answer(&self, conn: &C) {
        if let Some(claim) = conn.end_turn() {
            self.peers.line.lock().note(self.nid.addr(), false);
            self.peers.leave_line(claim);
        }
    }

    /// Records that the peer has answered a request of this node, with any answer.
    pub(crate) fn answers(&self) {
        self.peers.line.lock().note(self.nid.addr(), true);
    }

    /// Calls the peer, whose entry with state `place` was taken out of the queue. Returns false if the peer no longer
    /// wants the turn, or has another entry by now.
    fn call(self: &Arc<Self>, place: QueueState) -> bool {
        let now_ms = self.ni.now_ms();
        self.with(|inner| {
            if inner.place != place {
                return false;
            }
            if !inner.policy.is_due() {
                inner.place = QueueState::Nowhere;
                return false;
            }
            inner.place = QueueState::Called;
            inner.called_ms = now_ms;
            self.retry_in(inner, 0);
            true
        })
    }
}

impl<C: Connection> PeerInner<C> {
    /// Returns whether to start an attempt, because a message needs a connection and there is none. If the link is
    /// down, or the peer has to wait for its turn, a retry follows.
    pub(super) fn want(&mut self, peer: &Arc<Peer<C>>, passage: SendPolicy) -> bool {
        if passage == SendPolicy::Open {
            if !self.policy.may_start() {
                return false;
            }
            if self.has_turn(peer, 1, false) {
                return self.policy.start();
            }
        }
        if self.policy.hold() {
            peer.retry_in(self, RECHECK_MS);
        }
        false
    }

    /// Handles a due retry. Returns how many attempts to start, and whether to check again because it is not the peer's
    /// turn.
    pub(super) fn try_again(&mut self, peer: &Peer<C>) -> (u16, bool) {
        let conns_per_peer = peer.ni.lnet.conns_per_peer();
        let waiting = !self.pending.is_empty();
        let wanted = self.policy.would_retry(waiting, conns_per_peer);
        let more = self.policy.would_be_more();
        if wanted > 0 && !self.has_turn(peer, wanted, more) {
            return (0, true);
        }
        // The same number as `wanted`, because the lock is held.
        let started = self.policy.retry(waiting, conns_per_peer);
        (started, false)
    }

    /// Returns whether `attempts` attempts may start now, and counts them. Otherwise the peer waits in the queue,
    /// behind peers without a connection if the attempts are for `more` connections than it has.
    fn has_turn(&mut self, peer: &Peer<C>, attempts: u16, more: bool) -> bool {
        let mut line = peer.peers.line.lock();
        let claim = line.claim(peer.nid.addr(), more);
        let begins = line.enter(peer.nid.addr(), attempts, &mut self.place, claim);
        if begins {
            self.claim = claim;
        }
        begins
    }

    /// Takes the peer out of the queue, because the peer leaves its table.
    pub(super) fn leaves_line(&mut self, peer: &Peer<C>) {
        if self.place.waits() {
            peer.peers
                .line
                .lock()
                .forget(peer.nid.addr(), &mut self.place);
        }
    }
}
