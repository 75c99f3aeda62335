// SPDX-License-Identifier: GPL-2.0

//! Which peers may begin to connect now, and which wait for their turn.
//!
//! An NI has a few attempts to connect under way at a time ([`crate::proto::line`]); the other peers wait in
//! line, and the time that their attempts may take begins with their turn.
//!
//! Being called is a hint, and may be lost: who waits looks again every second by itself
//! ([`super::HOLD_LOOK_MS`]), and then calls whoever is next. Nothing is held by who waits, so nothing can be
//! left behind: the line knows NIDs, not peers.
//!
//! Context: process. A plain spin lock, taken inside a peer's lock, never the other way.
//!
//! # Invariants
//!
//! `under_way` is the number of attempts of ours that the policies of the peers have counted
//! ([`crate::proto::peer::Peer::start`]) and that have not ended their turn ([`super::Connection::end_turn`]).

use kernel::prelude::*;

use crate::proto::{
    line::{
        Place,
        UnderWay, //
    },
    nid::Nid, //
};

/// Peers that wait, in order. One that has gone since, or does not wait any more, may be among them.
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
    /// Those without a connection.
    first: Queue,
    /// Those that have one, and want more.
    more: Queue,
}

impl Line {
    /// Nobody waits.
    pub(super) const EMPTY: Self = Self {
        under_way: UnderWay::NONE,
        first: Queue::EMPTY,
        more: Queue::EMPTY,
    };

    /// Whether a peer may begin so many attempts now, which are `more` than the connection that it has; counts them.
    pub(super) fn enter(&mut self, attempts: u16, place: Place, more: bool) -> bool {
        let line = !self.first.is_empty() || (more && !self.more.is_empty());
        self.under_way.begin(attempts, place, line)
    }

    /// That peer waits from now on. Without memory it is not in line, and as good as called
    /// when it looks again.
    pub(super) fn join(&mut self, nid: Nid, more: bool) -> Place {
        let (queue, place) = match more {
            true => (&mut self.more, Place::Behind),
            false => (&mut self.first, Place::Waiting),
        };
        match queue.push(nid) {
            Ok(()) => place,
            Err(_) => Place::Called,
        }
    }

    /// An attempt has ended its turn, or was not begun.
    pub(super) fn leave(&mut self) {
        self.under_way.end();
    }

    /// Who is to begin now, if there is room.
    pub(super) fn next(&mut self) -> Option<Nid> {
        if !self.under_way.has_room() {
            return None;
        }
        self.first.pop().or_else(|| self.more.pop())
    }
}
