// SPDX-License-Identifier: GPL-2.0

//! Connect queue of an NI: which peers may start an attempt now, and which wait for their turn. The file has the memory
//! of [`crate::policy::connect_queue`].
//!
//! An NI has a few attempts under way at a time. The other peers wait in the queue, and the time limit of their
//! attempts begins with their turn.
//!
//! A call is a hint, and may be lost: a peer that waits checks again every second ([`super::RECHECK_MS`]), and then
//! calls the next peer. The queue stores addresses, not peers, and holds no reference. A peer that is forgotten removes
//! its entry.
//!
//! Context: process. A plain spin lock, which nests inside a peer lock, never the other way. No memory is allocated
//! under it.
//!
//! # Invariants
//!
//! The attempts that `line` counts are the attempts of this node that the policies of the peers have counted
//! ([`crate::policy::reconnect::ReconnectState::start`]) and that have not ended their turn
//! ([`super::Connection::end_turn`]). Each attempt keeps the priority that it was counted with, and is counted off with
//! it.

use kernel::prelude::*;

use crate::{
    policy::connect_queue::{
        self,
        ConnectPriority,
        QueueState,
        UnresponsiveBucket,
        UnresponsivePeers,
        QUIET,
        ROOM, //
    },
    proto::nid::Nid, //
};

/// Connect queue of an NI.
pub(super) struct ConnectWaiters {
    line: connect_queue::ConnectQueue<KVec<u32>>,
    unanswered: UnresponsivePeers,
    quiet: KVec<UnresponsiveBucket>,
}

impl ConnectWaiters {
    /// Creates an empty queue. `salt` is random. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(super) fn new(salt: u64) -> Result<Self> {
        let room = || KVec::from_elem(0, ROOM, GFP_KERNEL);
        Ok(Self {
            line: connect_queue::ConnectQueue::new(room()?, room()?, room()?),
            unanswered: UnresponsivePeers::new(salt),
            quiet: KVec::from_elem([0; 4], QUIET, GFP_KERNEL)?,
        })
    }

    /// Returns the priority of a peer. `more`: the peer has a connection already.
    pub(super) fn claim(&self, nid: Nid, more: bool) -> ConnectPriority {
        match more {
            true => ConnectPriority::More,
            false if self.unanswered.has(&self.quiet, nid.addr()) => ConnectPriority::Silent,
            false => ConnectPriority::First,
        }
    }

    /// Records whether a peer has answered.
    pub(super) fn note(&mut self, nid: Nid, answered: bool) {
        self.unanswered.note(&mut self.quiet, nid.addr(), answered);
    }

    /// Returns whether a peer may start `attempts` attempts now; see [`connect_queue::ConnectQueue::enter`].
    pub(super) fn enter(
        &mut self,
        nid: Nid,
        attempts: u16,
        place: &mut QueueState,
        claim: ConnectPriority,
    ) -> bool {
        self.line.enter(nid.addr(), attempts, place, claim)
    }

    /// Removes a peer from the queue.
    pub(super) fn forget(&mut self, nid: Nid, place: &mut QueueState) {
        self.line.forget(nid.addr(), place);
    }

    /// Ends the turn of an attempt with that priority, also of one that was not started.
    pub(super) fn leave(&mut self, claim: ConnectPriority) {
        self.line.leave(claim);
    }

    /// Takes out the peer that may start now, if there is room. Returns its address, and the state that it had.
    pub(super) fn next(&mut self) -> Option<(u32, QueueState)> {
        self.line.next()
    }
}
