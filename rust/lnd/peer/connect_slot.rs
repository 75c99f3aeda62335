// SPDX-License-Identifier: GPL-2.0

//! A peer's turn to connect: what [`super::connect_queue`] says about it, and what follows.
//!
//! Context: process. The line's lock is taken inside the peer's, and a peer is called with neither held.

use kernel::sync::Arc;

use super::{
    Connection,
    Peer,
    PeerInner,
    Peers,
    HOLD_LOOK_MS, //
};
use crate::{
    policy::{
        connect_queue::{
            ConnectPriority,
            QueueState, //
        },
        link_state::SendPolicy, //
    },
    proto::nid::Nid, //
};

impl<C: Connection> Peers<C> {
    /// An attempt of ours that began with that claim has ended its turn: who waits may begin.
    pub(super) fn leave_line(&self, claim: ConnectPriority) {
        self.line.lock().leave(claim);
        self.call_next();
    }

    /// Calls the next peer in line, if there is room. A peer that has gone meanwhile is passed over.
    pub(super) fn call_next(&self) {
        loop {
            let next = self.line.lock().next();
            let Some((addr, place)) = next else { return };
            let nid = Nid::new(self.ni.nid.net_number(), addr);
            if let Some(peer) = self.table.get(nid) {
                if peer.call(place) {
                    return;
                }
            }
        }
    }
}

impl<C: Connection> Peer<C> {
    /// An attempt is over, or takes so long that nobody should wait for it any more: who waits may begin. Nothing if
    /// it was said before.
    pub(crate) fn end_turn(&self, conn: &C) {
        if let Some(claim) = conn.end_turn() {
            self.peers.leave_line(claim);
        }
    }

    /// The same, because the peer has not answered.
    pub(crate) fn does_not_answer(&self, conn: &C) {
        if let Some(claim) = conn.end_turn() {
            self.peers.line.lock().note(self.nid, false);
            self.peers.leave_line(claim);
        }
    }

    /// The peer answers a request of ours, whatever it says.
    pub(crate) fn answers(&self) {
        self.peers.line.lock().note(self.nid, true);
    }

    /// Calls the peer, whose entry was taken out of the line where it had that `place`. False: the peer does not
    /// want the turn any more, or has another entry by now.
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
    /// A message wants a connection and there is none: whether to start an attempt. If the way is closed, or it is not
    /// its turn, a retry looks after it.
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
            peer.retry_in(self, HOLD_LOOK_MS);
        }
        false
    }

    /// A retry is due: how many attempts to start, and whether to look again because it is not its turn.
    pub(super) fn try_again(&mut self, peer: &Peer<C>) -> (u16, bool) {
        let conns_per_peer = peer.ni.lnet.conns_per_peer();
        let waiting = !self.pending.is_empty();
        let wanted = self.policy.would_retry(waiting, conns_per_peer);
        let more = self.policy.would_be_more();
        if wanted > 0 && !self.has_turn(peer, wanted, more) {
            return (0, true);
        }
        // As many as that: the lock is held.
        let started = self.policy.retry(waiting, conns_per_peer);
        (started, false)
    }

    /// Returns whether so many attempts may begin now, and counts them. Otherwise the peer waits in line, behind
    /// the peers without a connection if the attempts are for `more` than it has.
    fn has_turn(&mut self, peer: &Peer<C>, attempts: u16, more: bool) -> bool {
        let mut line = peer.peers.line.lock();
        let claim = line.claim(peer.nid, more);
        let begins = line.enter(peer.nid, attempts, &mut self.place, claim);
        if begins {
            self.claim = claim;
        }
        begins
    }

    /// Takes the peer out of the line, because the peer leaves its table.
    pub(super) fn leaves_line(&mut self, peer: &Peer<C>) {
        if self.place.waits() {
            peer.peers.line.lock().forget(peer.nid, &mut self.place);
        }
    }
}
