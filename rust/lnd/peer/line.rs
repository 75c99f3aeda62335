// SPDX-License-Identifier: GPL-2.0

//! Which peers may begin to connect now, and which wait for their turn.
//!
//! A node with a thousand peers may want to connect to all of them at once: when it boots, when its
//! link or its device comes back. An attempt takes a queue pair, regions and buffers on both sides, and a
//! fixed time after which it is given up. Begun all at once none of them ends in that time, what was made for
//! them is thrown away, and they begin again. So an NI has no more than [`AT_A_TIME`] under way; the others
//! wait in line, and the time they may take begins with their turn.
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
//! ([`crate::proto::peer::Peer::start`]).

use kernel::prelude::*;

use crate::proto::nid::Nid;

/// Attempts under way at a time on an NI, but for the last peer's, which may be several. Few enough that none
/// waits for the others until its time is over: with 64 some did, on two emulated CPUs.
const AT_A_TIME: u32 = 16;

/// Where a peer stands.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// Not in line.
    Nowhere,
    /// In line.
    Waiting,
    /// Called.
    Called,
}

/// The line.
pub(super) struct Line {
    under_way: u32,
    /// Who is called next, from the end.
    front: KVec<Nid>,
    /// Who came later, in order.
    back: KVec<Nid>,
}

impl Line {
    /// Nobody waits.
    pub(super) const EMPTY: Self = Self {
        under_way: 0,
        front: KVec::new(),
        back: KVec::new(),
    };

    /// Whether a peer may begin so many attempts now; counts them.
    pub(super) fn enter(&mut self, attempts: u16, place: Place) -> bool {
        let waits = !self.front.is_empty() || !self.back.is_empty();
        if self.under_way >= AT_A_TIME || (waits && place != Place::Called) {
            return false;
        }
        self.under_way = self.under_way.saturating_add(attempts.into());
        true
    }

    /// That peer waits from now on. Without memory it is not in line, and as good as called
    /// when it looks again.
    pub(super) fn join(&mut self, nid: Nid) -> Place {
        match self.back.push(nid, GFP_ATOMIC) {
            Ok(()) => Place::Waiting,
            Err(_) => Place::Called,
        }
    }

    /// So many attempts are over, or were not begun.
    pub(super) fn leave(&mut self, attempts: u16) {
        self.under_way = self.under_way.saturating_sub(attempts.into());
    }

    /// Who is to begin now, if there is room.
    pub(super) fn next(&mut self) -> Option<Nid> {
        if self.under_way >= AT_A_TIME {
            return None;
        }
        if self.front.is_empty() {
            core::mem::swap(&mut self.front, &mut self.back);
            self.front.reverse();
        }
        self.front.pop()
    }
}
