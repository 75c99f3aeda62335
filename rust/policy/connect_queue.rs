// SPDX-License-Identifier: GPL-2.0

//! Limit and queue of an NI's concurrent attempts to connect.
//!
//! A node with a thousand peers may want to connect to all of them at once: when it boots, or when its link or device
//! comes back. An attempt takes a queue pair, regions and buffers on both sides, and has a fixed time limit. If all
//! attempts began at once, none would end in time, their objects would be discarded, and they would begin again. So no
//! more than [`AT_A_TIME`] are in flight; the other peers wait in the queue.
//!
//! Dead peers must not delay live ones: after a rack has lost its power there may be hundreds of dead peers, and each
//! attempt ends only by its time limit. So an attempt counts only as long as it is likely to succeed: it stops to count
//! when its address was not found at the first try ([`crate::proto::conn_state::ConnEvent::AddrTimeout`]), or the peer
//! has not answered for [`UNANSWERED_MS`].
//!
//! Peers that never answer must not take all places either: otherwise other peers would wait for longer than LNet does.
//! Peers that did not answer the last time may use [`SILENT_AT_A_TIME`] of the places, after all other peers (H45).
//!
//! A peer without a connection goes before peers that want more connections: after a storm each peer has one connection
//! before any peer has two.
//!
//! Context: any; the caller holds the lock of the queue.

use core::ops::{
    Deref,
    DerefMut, //
};

use super::salted_hash;
use crate::proto::broken;

/// Attempts in flight at a time on an NI. A peer with several connections may exceed it. Small enough that no attempt
/// spends its time limit waiting for the others: with 64 some did, on two emulated CPUs.
pub const AT_A_TIME: u32 = 16;

/// Places for peers that did not answer the last time. Other peers need only a few places, because a live peer answers
/// at once. But after a rack has lost its power hundreds of peers are silent, and may all come back at the same time.
pub const SILENT_AT_A_TIME: u32 = 12;

/// Time in milliseconds that a step of an attempt (to find the address, or from there to the answer) may take while the
/// attempt still counts. Sixteen attempts in that time are eight a second, a third of the rate of two emulated CPUs
/// with much other load (a thousand in 41 s); so attempts that are made in their turn do not pile up. A peer with
/// several connections begins with one ([`super::reconnect`]), so a dead peer takes no more.
pub const UNANSWERED_MS: u32 = 2000;

/// Priority of a peer's attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectPriority {
    /// The peer has no connection, and no failure of it is known.
    First,
    /// The peer has no connection, and did not answer the last time.
    Silent,
    /// The peer has a connection.
    More,
}

/// Addresses of peers that did not answer, in one bucket; 0 is unused.
pub type UnresponsiveBucket = [u32; 4];

/// Recommended number of buckets: with a thousand dead peers hardly one is forgotten.
pub const QUIET: usize = 1024;

/// Table of peers that did not answer the last time, in the memory `B`, which never grows: a peer object is gone with
/// its last attempt. A peer whose bucket is full replaces another peer there, which then counts as unknown again.
pub struct UnresponsivePeers<B> {
    buckets: B,
    salt: u64,
}

impl<B: Deref<Target = [UnresponsiveBucket]> + DerefMut> UnresponsivePeers<B> {
    /// Creates the table over unused buckets; `salt` is random.
    pub fn new(buckets: B, salt: u64) -> Self {
        Self { buckets, salt }
    }

    /// Returns whether the peer with this address did not answer.
    fn has(&self, addr: u32) -> bool {
        let at = salted_hash::index(addr, self.salt, self.buckets.len());
        self.buckets
            .get(at)
            .is_some_and(|place| place.contains(&addr))
    }

    /// Records whether the peer answered.
    fn note(&mut self, addr: u32, answered: bool) {
        let at = salted_hash::index(addr, self.salt, self.buckets.len());
        let Some(place) = self.buckets.get_mut(at) else {
            return;
        };
        if answered {
            let mine = place.iter_mut().filter(|quiet| **quiet == addr);
            mine.for_each(|quiet| *quiet = 0);
        } else if !place.contains(&addr) {
            // The newest is the first, so the oldest is replaced.
            let free = place.iter().position(|quiet| *quiet == 0).unwrap_or(3);
            if let Some(all) = place.get_mut(..=free) {
                all.rotate_right(1);
            }
            let [first, ..] = place;
            *first = addr;
        }
    }
}

/// Place of a peer. A peer has an entry in a queue if it is `Waiting` or `Behind`, and no more than one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueState {
    /// The peer does not wait.
    Nowhere,
    /// In the queue, without a connection.
    Waiting,
    /// In the queue, behind all peers without a connection: the peer has one, and wants more.
    Behind,
    /// The peer waits, but its queue had no room. The peer looks again every second, and joins the queue then.
    Outside,
    /// Called: it is the peer's turn.
    Called,
}

impl QueueState {
    /// Returns whether the peer waits for its turn.
    pub fn waits(self) -> bool {
        matches!(self, Self::Waiting | Self::Behind | Self::Outside)
    }

    /// Returns whether the peer has to join a queue. `more`: it has a connection, and wants more. A peer that
    /// stands behind the others and has lost its connection joins the others.
    pub fn is_to_join(self, more: bool) -> bool {
        match self {
            Self::Waiting => false,
            Self::Behind => !more,
            Self::Nowhere | Self::Outside | Self::Called => true,
        }
    }
}

/// Number of peers in a queue, which takes 16 KiB. Further peers look again every second, and join when there is room.
pub const ROOM: usize = 4096;

/// Addresses in order: a ring in the memory `M`, which never grows.
///
/// # Invariants
///
/// `head` is an index of `ring`, or 0. `len` entries from there on are used.
struct PeerRing<M> {
    ring: M,
    head: usize,
    len: usize,
}

impl<M: Deref<Target = [u32]> + DerefMut> PeerRing<M> {
    fn new(ring: M) -> Self {
        Self {
            ring,
            head: 0,
            len: 0,
        }
    }

    fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the index of the entry number `n` from the head.
    fn at(&self, n: usize) -> usize {
        self.head
            .wrapping_add(n)
            .checked_rem(self.ring.len())
            .unwrap_or(0)
    }

    /// Adds an address. Returns false if there is no room.
    fn push(&mut self, addr: u32) -> bool {
        if self.len >= self.ring.len() {
            return false;
        }
        let at = self.at(self.len);
        if let Some(entry) = self.ring.get_mut(at) {
            *entry = addr;
            self.len = self.len.wrapping_add(1);
        }
        true
    }

    fn pop(&mut self) -> Option<u32> {
        self.len = self.len.checked_sub(1)?;
        let addr = self.ring.get(self.head).copied();
        self.head = self.at(1);
        addr
    }

    /// Removes an address, if it is there. Later entries move up.
    fn remove(&mut self, addr: u32) {
        let mut left = 0;
        for n in 0..self.len {
            let Some(entry) = self.ring.get(self.at(n)).copied() else {
                return;
            };
            if entry == addr {
                continue;
            }
            let to = self.at(left);
            if let Some(to) = self.ring.get_mut(to) {
                *to = entry;
            }
            left = left.wrapping_add(1);
        }
        self.len = left;
    }
}

/// Attempts in flight, and peers that wait for their turn.
pub struct ConnectQueue<M, B> {
    under_way: ConnectsInFlight,
    unanswered: UnresponsivePeers<B>,
    /// Peers without a connection.
    first: PeerRing<M>,
    /// Peers without a connection that did not answer the last time.
    silent: PeerRing<M>,
    /// Peers that have a connection, and want more.
    more: PeerRing<M>,
}

impl<M, B> ConnectQueue<M, B>
where
    M: Deref<Target = [u32]> + DerefMut,
    B: Deref<Target = [UnresponsiveBucket]> + DerefMut,
{
    /// Creates an empty queue. Each list has as much room as its memory.
    pub fn new([first, silent, more]: [M; 3], unanswered: UnresponsivePeers<B>) -> Self {
        Self {
            under_way: ConnectsInFlight::NONE,
            unanswered,
            first: PeerRing::new(first),
            silent: PeerRing::new(silent),
            more: PeerRing::new(more),
        }
    }

    /// Returns the priority of the peer with that address. `more`: it has a connection already.
    pub fn claim(&self, addr: u32, more: bool) -> ConnectPriority {
        match more {
            true => ConnectPriority::More,
            false if self.unanswered.has(addr) => ConnectPriority::Silent,
            false => ConnectPriority::First,
        }
    }

    /// Records whether the peer with that address has answered.
    pub fn note(&mut self, addr: u32, answered: bool) {
        self.unanswered.note(addr, answered);
    }

    /// Returns whether the peer with that address may begin this number of attempts now, and then counts them.
    /// Otherwise the peer joins the queue, unless it waits there. `place` is updated.
    #[must_use]
    pub fn enter(
        &mut self,
        addr: u32,
        attempts: u16,
        place: &mut QueueState,
        claim: ConnectPriority,
    ) -> bool {
        let first = !self.first.is_empty();
        let silent = !self.silent.is_empty();
        let line = match claim {
            ConnectPriority::First => first,
            ConnectPriority::Silent => first || silent,
            ConnectPriority::More => {
                let silent = silent && self.under_way.has_room(ConnectPriority::Silent);
                first || silent || !self.more.is_empty()
            }
        };
        if self.under_way.begin(attempts, claim, *place, line) {
            self.forget(addr, place);
            return true;
        }
        if place.is_to_join(claim == ConnectPriority::More) {
            self.forget(addr, place);
            let (queue, joined) = match claim {
                ConnectPriority::First => (&mut self.first, QueueState::Waiting),
                ConnectPriority::Silent => (&mut self.silent, QueueState::Waiting),
                ConnectPriority::More => (&mut self.more, QueueState::Behind),
            };
            *place = match queue.push(addr) {
                true => joined,
                false => QueueState::Outside,
            };
        }
        false
    }

    /// Removes the peer with that address from the queue.
    pub fn forget(&mut self, addr: u32, place: &mut QueueState) {
        match core::mem::replace(place, QueueState::Nowhere) {
            QueueState::Waiting => {
                self.first.remove(addr);
                self.silent.remove(addr);
            }
            QueueState::Behind => self.more.remove(addr),
            QueueState::Nowhere | QueueState::Outside | QueueState::Called => {}
        }
    }

    /// Counts off an attempt with that priority, which has ended its turn or was not begun.
    pub fn leave(&mut self, claim: ConnectPriority) {
        self.under_way.end(claim);
    }

    /// Removes the peer that is to begin now, if there is room, and returns its address and its place.
    pub fn next(&mut self) -> Option<(u32, QueueState)> {
        if !self.under_way.has_room(ConnectPriority::First) {
            return None;
        }
        if let Some(addr) = self.first.pop() {
            return Some((addr, QueueState::Waiting));
        }
        let silent = match self.under_way.has_room(ConnectPriority::Silent) {
            true => self.silent.pop(),
            false => None,
        };
        match silent {
            Some(addr) => Some((addr, QueueState::Waiting)),
            None => self.more.pop().map(|addr| (addr, QueueState::Behind)),
        }
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        [self.first.len, self.silent.len, self.more.len]
            .iter()
            .fold(0, |sum, len| sum.saturating_add(*len))
    }

    /// Returns whether no peer waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Returns a count of attempts, less one.
fn one_less(count: u32) -> u32 {
    let less = count.checked_sub(1);
    less.unwrap_or_else(|| broken("an attempt ends its turn twice"))
}

/// Attempts in flight.
#[derive(Clone, Copy, Debug)]
pub struct ConnectsInFlight {
    all: u32,
    /// Attempts for peers that did not answer the last time.
    silent: u32,
}

impl ConnectsInFlight {
    /// No attempts.
    pub const NONE: Self = Self { all: 0, silent: 0 };

    /// Counts attempts of a peer, and returns true, if there is room for its `claim`, and no peer is before it. `line`:
    /// other peers wait.
    #[must_use]
    pub fn begin(
        &mut self,
        attempts: u16,
        claim: ConnectPriority,
        place: QueueState,
        line: bool,
    ) -> bool {
        if !self.has_room(claim) || (line && place != QueueState::Called) {
            return false;
        }
        self.all = self.all.saturating_add(attempts.into());
        if claim == ConnectPriority::Silent {
            self.silent = self.silent.saturating_add(attempts.into());
        }
        true
    }

    /// Counts off an attempt with that priority that ended, or was not begun, or takes so long that it no longer
    /// counts.
    pub fn end(&mut self, claim: ConnectPriority) {
        self.all = one_less(self.all);
        if claim == ConnectPriority::Silent {
            self.silent = one_less(self.silent);
        }
    }

    /// Returns whether a peer with that priority may be called.
    pub fn has_room(&self, claim: ConnectPriority) -> bool {
        let spare = claim != ConnectPriority::Silent || self.silent < SILENT_AT_A_TIME;
        spare && self.all < AT_A_TIME
    }
}

#[cfg(any(test, ro2iblnd_kunit))]
#[cfg_attr(ro2iblnd_kunit, ::kernel::macros::kunit_tests(ro2ib_connect_queue))]
mod tests {
    use super::*;

    #[test]
    fn so_many_begin_and_no_more() {
        let mut under_way = ConnectsInFlight::NONE;
        for _ in 0..AT_A_TIME {
            assert!(under_way.begin(1, ConnectPriority::First, QueueState::Nowhere, false));
        }
        for place in [
            QueueState::Nowhere,
            QueueState::Waiting,
            QueueState::Behind,
            QueueState::Called,
        ] {
            assert!(!under_way.begin(1, ConnectPriority::First, place, false));
        }
        under_way.end(ConnectPriority::First);
        assert!(
            under_way.has_room(ConnectPriority::First)
                && under_way.begin(1, ConnectPriority::First, QueueState::Nowhere, false)
        );
        assert!(!under_way.has_room(ConnectPriority::First));
    }

    #[test]
    fn attempt_waits_behind_queued_peers() {
        let mut under_way = ConnectsInFlight::NONE;
        assert!(!under_way.begin(1, ConnectPriority::First, QueueState::Nowhere, true));
        assert!(!under_way.begin(1, ConnectPriority::First, QueueState::Waiting, true));
        assert!(under_way.begin(1, ConnectPriority::First, QueueState::Called, true));
        // No peer waits any more: then any peer may begin.
        assert!(under_way.begin(1, ConnectPriority::First, QueueState::Nowhere, false));
    }

    #[test]
    fn additional_connections_queue_last() {
        for more in [false, true] {
            assert!(QueueState::Nowhere.is_to_join(more) && QueueState::Called.is_to_join(more));
            assert!(!QueueState::Waiting.is_to_join(more));
        }
        // Until it has none any more.
        assert!(!QueueState::Behind.is_to_join(true) && QueueState::Behind.is_to_join(false));
        assert!(QueueState::Outside.is_to_join(true));
        for place in [QueueState::Waiting, QueueState::Behind, QueueState::Outside] {
            assert!(place.waits());
        }
        assert!(!QueueState::Nowhere.waits() && !QueueState::Called.waits());
    }

    /// Returns a queue with that room, in which all attempts are in flight.
    fn busy<const N: usize>(
        room: &mut [[u32; N]; 3],
    ) -> ConnectQueue<&mut [u32], &mut [UnresponsiveBucket]> {
        let room = room.each_mut().map(|list| &mut list[..]);
        let mut line = ConnectQueue::new(room, UnresponsivePeers::new(&mut [][..], 0));
        let mut place = QueueState::Nowhere;
        assert!(line.enter(9, 16, &mut place, ConnectPriority::First));
        line
    }

    /// Tests that peers whose messages expire before their turn are forgotten, and come back with LNet's next message.
    #[test]
    fn the_line_is_no_longer_than_there_are_peers() {
        let mut room = [[0; 1024]; 3];
        let mut line = busy(&mut room);
        for round in 0..100u32 {
            for addr in 0..1000u32 {
                let claim = match addr % 3 {
                    0 => ConnectPriority::First,
                    1 => ConnectPriority::Silent,
                    _ => ConnectPriority::More,
                };
                let mut place = QueueState::Nowhere;
                assert!(!line.enter(addr, 1, &mut place, claim) && place.waits());
                // The peer looks again.
                assert!(!line.enter(addr, 1, &mut place, claim) && place.waits());
                if round < 99 {
                    line.forget(addr, &mut place);
                    assert_eq!(place, QueueState::Nowhere);
                }
            }
        }
        assert_eq!(line.len(), 1000);
    }

    #[test]
    fn a_peer_that_loses_its_connection_has_one_entry() {
        let mut room = [[0; 8]; 3];
        let mut line = busy(&mut room);
        let mut place = QueueState::Nowhere;
        assert!(!line.enter(1, 1, &mut place, ConnectPriority::More));
        assert_eq!(place, QueueState::Behind);
        assert!(!line.enter(1, 1, &mut place, ConnectPriority::First));
        assert_eq!((place, line.len()), (QueueState::Waiting, 1));
        for _ in 0..16 {
            line.leave(ConnectPriority::First);
        }
        assert_eq!(line.next(), Some((1, QueueState::Waiting)));
        assert!(line.is_empty());
    }

    #[test]
    fn queue_moves_up() {
        let mut room = [[0; 4]; 3];
        let mut line = busy(&mut room);
        // The ring has been used before.
        for addr in [7, 8] {
            let mut place = QueueState::Nowhere;
            assert!(!line.enter(addr, 1, &mut place, ConnectPriority::First));
            line.forget(addr, &mut place);
        }
        line.first.head = 3;
        let mut places = [QueueState::Nowhere; 6];
        for (addr, place) in (1..).zip(&mut places) {
            assert!(!line.enter(addr, 1, place, ConnectPriority::First));
        }
        // Without room they look again.
        let [one, two, three, four, five, six] = &mut places;
        assert_eq!((*five, *six), (QueueState::Outside, QueueState::Outside));
        line.forget(5, five);
        line.forget(2, two);
        assert!(!line.enter(6, 1, six, ConnectPriority::First));
        assert_eq!(*six, QueueState::Waiting);
        for _ in 0..16 {
            line.leave(ConnectPriority::First);
        }
        // A peer outside does not overtake them.
        assert!(!line.enter(2, 1, two, ConnectPriority::First) && *two == QueueState::Outside);
        for (addr, place) in [(1, one), (3, three), (4, four), (6, six)] {
            assert_eq!(line.next(), Some((addr, QueueState::Waiting)));
            *place = QueueState::Called;
            assert!(line.enter(addr, 1, place, ConnectPriority::First));
        }
        assert_eq!(line.next(), None);
        assert!(line.enter(2, 1, two, ConnectPriority::First));
    }

    /// Tests that a peer with several connections begins all of them, or none: the last may exceed the limit.
    #[test]
    fn several_begin_together() {
        let mut under_way = ConnectsInFlight::NONE;
        assert!(under_way.begin(10, ConnectPriority::First, QueueState::Nowhere, false));
        assert!(under_way.begin(10, ConnectPriority::First, QueueState::Nowhere, false));
        assert!(!under_way.begin(1, ConnectPriority::First, QueueState::Called, true));
        for _ in 0..4 {
            under_way.end(ConnectPriority::First);
            assert!(!under_way.has_room(ConnectPriority::First));
        }
        under_way.end(ConnectPriority::First);
        assert!(under_way.has_room(ConnectPriority::First));
    }

    #[test]
    fn unresponsive_peers_leave_free_slots() {
        let mut under_way = ConnectsInFlight::NONE;
        for _ in 0..SILENT_AT_A_TIME {
            assert!(under_way.begin(1, ConnectPriority::Silent, QueueState::Nowhere, false));
        }
        assert!(!under_way.begin(1, ConnectPriority::Silent, QueueState::Called, false));
        for _ in SILENT_AT_A_TIME..AT_A_TIME {
            assert!(under_way.begin(1, ConnectPriority::First, QueueState::Nowhere, false));
        }
        assert!(!under_way.has_room(ConnectPriority::More));
        // An attempt that ends makes room for its kind.
        under_way.end(ConnectPriority::First);
        assert!(
            !under_way.has_room(ConnectPriority::Silent)
                && under_way.has_room(ConnectPriority::More)
        );
        under_way.end(ConnectPriority::Silent);
        assert!(under_way.begin(1, ConnectPriority::Silent, QueueState::Called, true));
    }

    #[test]
    fn unresponsive_peer_is_recorded_until_it_answers() {
        let mut buckets = [[0; 4]; 64];
        let mut unanswered = UnresponsivePeers::new(&mut buckets[..], 0x9e37_79b9_7f4a_7c15);
        let rack = 0x0a00_0100..0x0a00_0140u32;
        for addr in rack.clone() {
            assert!(!unanswered.has(addr));
            unanswered.note(addr, false);
            unanswered.note(addr, false);
        }
        // No other peer is taken for one of them, and hardly one of them is forgotten.
        assert!(!(0x0a00_0200..0x0a00_0600u32).any(|addr| unanswered.has(addr)));
        let known = rack.clone().filter(|addr| unanswered.has(*addr));
        assert!(known.count() > 60);
        for addr in rack {
            unanswered.note(addr, true);
        }
        assert!(unanswered.buckets.iter().flatten().all(|quiet| *quiet == 0));
        // The newest of many is known.
        for addr in 1..1000 {
            unanswered.note(addr, false);
            assert!(unanswered.has(addr));
        }
    }
}
