// SPDX-License-Identifier: GPL-2.0

//! Which peers may begin to connect now, and which wait for their turn.
//!
//! An NI has a few attempts to connect under way at a time ([`crate::proto::line`]); the other peers wait in
//! line, and the time that their attempts may take begins with their turn.
//!
//! Being called is a hint, and may be lost: who waits looks again every second by itself
//! ([`super::HOLD_LOOK_MS`]), and then calls whoever is next. Nothing is held by who waits, so nothing can be
//! left behind: the line knows NIDs, not peers. Of addresses it remembers who did not answer the last time, for whom there are
//! fewer places.
//!
//! Context: process. A plain spin lock, taken inside a peer's lock, never the other way.
//!
//! # Invariants
//!
//! `under_way` is the number of attempts of ours that the policies of the peers have counted
//! ([`crate::proto::peer::Peer::start`]) and that have not ended their turn ([`super::Connection::end_turn`]). Each is
//! counted off as what it was counted for: the attempt keeps that.

use kernel::prelude::*;

use crate::proto::{
    line::{
        Claim,
        Place,
        Quiet,
        Unanswered,
        UnderWay,
        QUIET, //
    },
    nid::Nid, //
};

/// Peers that wait, in order. One that has gone since, or does not wait any more, may be among them: it is passed over when
/// it is called.
struct Queue {
    /// Who is called next, from the end.
    front: KVec<Nid>,
    /// Who came later, in order.
    back: KVec<Nid>,
}

impl Queue {
    const EMPTY: Self = Self {
        front: KVec::new(),
        back: KVec::new(),
    };

    fn is_empty(&self) -> bool {
        self.front.is_empty() && self.back.is_empty()
    }

    fn push(&mut self, nid: Nid) -> Result {
        Ok(self.back.push(nid, GFP_ATOMIC)?)
    }

    fn pop(&mut self) -> Option<Nid> {
        if self.front.is_empty() {
            core::mem::swap(&mut self.front, &mut self.back);
            self.front.reverse();
        }
        self.front.pop()
    }
}

/// The line.
pub(super) struct Line {
    under_way: UnderWay,
    unanswered: Unanswered,
    quiet: KVec<Quiet>,
    /// Those without a connection.
    first: Queue,
    /// Of these: those that did not answer the last time.
    silent: Queue,
    /// Those that have one, and want more.
    more: Queue,
}

impl Line {
    /// Nobody waits. `salt` is random. May sleep.
    pub(super) fn new(salt: u64) -> Result<Self> {
        Ok(Self {
            under_way: UnderWay::NONE,
            unanswered: Unanswered::new(salt),
            quiet: KVec::from_elem([0; 4], QUIET, GFP_KERNEL)?,
            first: Queue::EMPTY,
            silent: Queue::EMPTY,
            more: Queue::EMPTY,
        })
    }

    /// What that peer wants one for, which has a connection if it wants `more`.
    pub(super) fn claim(&self, nid: Nid, more: bool) -> Claim {
        match more {
            true => Claim::More,
            false if self.unanswered.has(&self.quiet, nid.addr()) => Claim::Silent,
            false => Claim::First,
        }
    }

    /// Whether that peer has answered.
    pub(super) fn note(&mut self, nid: Nid, answered: bool) {
        self.unanswered.note(&mut self.quiet, nid.addr(), answered);
    }

    /// Whether a peer may begin so many attempts now; counts them.
    pub(super) fn enter(&mut self, attempts: u16, place: Place, claim: Claim) -> bool {
        let first = !self.first.is_empty();
        let silent = !self.silent.is_empty();
        let line = match claim {
            Claim::First => first,
            Claim::Silent => first || silent,
            Claim::More => {
                let silent = silent && self.under_way.has_room(Claim::Silent);
                first || silent || !self.more.is_empty()
            }
        };
        self.under_way.begin(attempts, claim, place, line)
    }

    /// That peer waits from now on. Without memory it is not in line, and as good as called
    /// when it looks again.
    pub(super) fn join(&mut self, nid: Nid, claim: Claim) -> Place {
        let (queue, place) = match claim {
            Claim::First => (&mut self.first, Place::Waiting),
            Claim::Silent => (&mut self.silent, Place::Waiting),
            Claim::More => (&mut self.more, Place::Behind),
        };
        match queue.push(nid) {
            Ok(()) => place,
            Err(_) => Place::Called,
        }
    }

    /// An attempt with that claim has ended its turn, or was not begun.
    pub(super) fn leave(&mut self, claim: Claim) {
        self.under_way.end(claim);
    }

    /// Who is to begin now, if there is room.
    pub(super) fn next(&mut self) -> Option<Nid> {
        if !self.under_way.has_room(Claim::First) {
            return None;
        }
        if let Some(first) = self.first.pop() {
            return Some(first);
        }
        let silent = match self.under_way.has_room(Claim::Silent) {
            true => self.silent.pop(),
            false => None,
        };
        silent.or_else(|| self.more.pop())
    }
}
