// SPDX-License-Identifier: GPL-2.0

//! Which peers of an NI may begin to connect now, and which wait for their turn: the memory of
//! [`crate::policy::connect_queue`].
//!
//! An NI has a few attempts to connect under way at a time; the other peers wait in line, and the time that their
//! attempts may take begins with their turn.
//!
//! A call is a hint, and may be lost: a peer that waits looks again every second ([`super::HOLD_LOOK_MS`]), and
//! calls the next peer then. The line knows addresses, not peers, and holds no reference. A peer that is forgotten
//! takes its entry out.
//!
//! Context: process. A plain spin lock, taken inside a peer's lock, never the other way. Nothing is allocated under
//! it.
//!
//! # Invariants
//!
//! The attempts that `line` counts are those of ours that the policies of the peers have counted
//! ([`crate::policy::reconnect::ReconnectState::start`]) and that have not ended their turn
//! ([`super::Connection::end_turn`]). Each is counted off as what it was counted for: the attempt keeps that.

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

/// The line of an NI.
pub(super) struct ConnectWaiters {
    line: connect_queue::ConnectQueue<KVec<u32>>,
    unanswered: UnresponsivePeers,
    quiet: KVec<UnresponsiveBucket>,
}

impl ConnectWaiters {
    /// Makes an empty line. `salt` is random. May sleep.
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

    /// Returns what that peer wants a connection for. `more`: it has one.
    pub(super) fn claim(&self, nid: Nid, more: bool) -> ConnectPriority {
        match more {
            true => ConnectPriority::More,
            false if self.unanswered.has(&self.quiet, nid.addr()) => ConnectPriority::Silent,
            false => ConnectPriority::First,
        }
    }

    /// Notes whether that peer has answered.
    pub(super) fn note(&mut self, nid: Nid, answered: bool) {
        self.unanswered.note(&mut self.quiet, nid.addr(), answered);
    }

    /// Returns whether a peer may begin so many attempts now; see [`connect_queue::ConnectQueue::enter`].
    pub(super) fn enter(
        &mut self,
        nid: Nid,
        attempts: u16,
        place: &mut QueueState,
        claim: ConnectPriority,
    ) -> bool {
        self.line.enter(nid.addr(), attempts, place, claim)
    }

    /// Takes a peer out of the line.
    pub(super) fn forget(&mut self, nid: Nid, place: &mut QueueState) {
        self.line.forget(nid.addr(), place);
    }

    /// An attempt with that claim has ended its turn, or was not begun.
    pub(super) fn leave(&mut self, claim: ConnectPriority) {
        self.line.leave(claim);
    }

    /// Takes out the peer that is to begin now, if there is room: its address, and the place that it had.
    pub(super) fn next(&mut self) -> Option<(u32, QueueState)> {
        self.line.next()
    }
}
