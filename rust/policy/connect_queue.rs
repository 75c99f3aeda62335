// SPDX-License-Identifier: GPL-2.0

//! Limit and queue of an NI's concurrent attempts to connect, and how long messages wait meanwhile.
//!
//! A node may want to connect to a thousand peers at once. An attempt takes a queue pair, regions and buffers on both
//! sides, and has a fixed time limit: if all began at once, none would end in time. So no more than [`AT_A_TIME`] are
//! in flight; the other peers wait in the queue, and peers that have a connection wait behind those that have none.
//!
//! Dead peers must not delay live ones: after a rack has lost its power there may be hundreds. So an attempt counts
//! only as long as it is likely to succeed: until its address was not found at the first try
//! ([`crate::proto::conn_state::ConnEvent::AddrTimeout`]), or for [`UNANSWERED_MS`] without an answer. And peers that
//! did not answer the last time may use [`SILENT_AT_A_TIME`] of the places, after all other peers (H45).
//!
//! Context: any; the caller holds the lock of the queue.

use core::ops::DerefMut;

use super::addr_hash;
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

/// Recommended number of peers in the queue, which takes 64 KiB. Further peers look again every second, and join when
/// there is room.
pub const ROOM: usize = 8192;

/// Recommended number of buckets: with a thousand dead peers hardly one is forgotten.
pub const QUIET: usize = 1024;

/// Priority of a peer's attempt, the highest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConnectPriority {
    /// The peer has no connection, and no failure of it is known.
    First,
    /// The peer has no connection, and did not answer the last time.
    Silent,
    /// The peer has a connection.
    More,
}

/// Place of a peer. A peer has an entry in the queue if it is `Queued`, and no more than one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueState {
    /// The peer does not wait.
    Nowhere,
    /// In the queue, with this priority.
    Queued(ConnectPriority),
    /// The peer waits, but the queue had no room. The peer looks again every second, and joins the queue then.
    Outside,
    /// Called: it is the peer's turn.
    Called,
}

impl QueueState {
    /// Returns whether the peer waits for its turn.
    pub fn waits(self) -> bool {
        matches!(self, Self::Queued(_) | Self::Outside)
    }
}

/// Addresses of peers that did not answer, in one bucket; 0 is unused.
pub type UnresponsiveBucket = [u32; 4];

/// Entry of a peer in the queue: its address and its priority.
pub type QueuedPeer = (u32, ConnectPriority);

/// Unused entry.
pub const UNUSED: QueuedPeer = (0, ConnectPriority::First);

/// Attempts in flight, and peers that wait for their turn.
///
/// # Invariants
///
/// The first `len` entries of `waiting` are used, in the order of their arrival.
pub struct ConnectQueue<W, B> {
    /// Attempts in flight.
    all: u32,
    /// Attempts in flight for peers that did not answer the last time.
    silent: u32,
    waiting: W,
    len: usize,
    /// Peers that did not answer the last time: a peer object is gone with its last attempt. A peer whose bucket is
    /// full replaces another peer there, which then counts as unknown again.
    unanswered: B,
    salt: u64,
}

impl<W, B> ConnectQueue<W, B>
where
    W: DerefMut<Target = [QueuedPeer]>,
    B: DerefMut<Target = [UnresponsiveBucket]>,
{
    /// Creates an empty queue in this memory, which never grows; `salt` is random.
    pub fn new(waiting: W, unanswered: B, salt: u64) -> Self {
        Self {
            all: 0,
            silent: 0,
            waiting,
            len: 0,
            unanswered,
            salt,
        }
    }

    /// Returns the bucket of the peer with that address.
    fn bucket(&mut self, addr: u32) -> Option<&mut UnresponsiveBucket> {
        let at = addr_hash::index(addr, self.salt, self.unanswered.len());
        self.unanswered.get_mut(at)
    }

    /// Returns whether the peer with that address did not answer the last time.
    fn is_silent(&mut self, addr: u32) -> bool {
        self.bucket(addr).is_some_and(|of| of.contains(&addr))
    }

    /// Records whether the peer with that address has answered.
    pub fn note(&mut self, addr: u32, answered: bool) {
        if let Some(bucket) = self.bucket(addr) {
            let old = *bucket;
            let others = old.into_iter().filter(|of| *of != addr && *of != 0);
            // The newest is the first, so the oldest is replaced.
            let mut quiet = (!answered).then_some(addr).into_iter().chain(others);
            *bucket = core::array::from_fn(|_| quiet.next().unwrap_or(0));
        }
    }

    /// Counts this number of attempts of the peer with that address, and returns their priority, if there is room and
    /// no other peer goes before. Otherwise the peer joins the queue, unless it waits there. `more`: the peer has a
    /// connection. `place` is updated.
    #[must_use]
    pub fn enter(
        &mut self,
        addr: u32,
        attempts: u16,
        place: &mut QueueState,
        more: bool,
    ) -> Option<ConnectPriority> {
        let claim = match more {
            true => ConnectPriority::More,
            false if self.is_silent(addr) => ConnectPriority::Silent,
            false => ConnectPriority::First,
        };
        let others = |next| next <= claim && *place != QueueState::Called;
        if self.has_room(claim) && !self.first().is_some_and(|(_, next)| others(next)) {
            self.forget(addr, place);
            self.all = self.all.saturating_add(attempts.into());
            if claim == ConnectPriority::Silent {
                self.silent = self.silent.saturating_add(attempts.into());
            }
            return Some(claim);
        }
        if *place != QueueState::Queued(claim) {
            self.forget(addr, place);
            *place = QueueState::Outside;
            // Half of the places are for peers without a connection that answer.
            let room = self.waiting.len();
            let end = match claim {
                ConnectPriority::First => room,
                ConnectPriority::Silent | ConnectPriority::More => room / 2,
            };
            if let Some(entry) = self.waiting.iter_mut().take(end).nth(self.len) {
                *entry = (addr, claim);
                self.len = self.len.saturating_add(1);
                *place = QueueState::Queued(claim);
            }
        }
        None
    }

    /// Removes the peer with that address from the queue.
    pub fn forget(&mut self, addr: u32, place: &mut QueueState) {
        let old = core::mem::replace(place, QueueState::Nowhere);
        let mut waiting = self.waiting.iter().take(self.len);
        if let (QueueState::Queued(_), Some(at)) = (old, waiting.position(|(of, _)| *of == addr)) {
            let _ = self.remove(at);
        }
    }

    /// Counts off an attempt with that priority that ended, was not begun, or takes so long that it no longer counts.
    pub fn leave(&mut self, claim: ConnectPriority) {
        self.all = one_less(self.all);
        if claim == ConnectPriority::Silent {
            self.silent = one_less(self.silent);
        }
    }

    /// Removes the peer that is to begin now, if there is room, and returns its entry.
    pub fn next(&mut self) -> Option<QueuedPeer> {
        match self.has_room(ConnectPriority::First) {
            true => self.first().and_then(|(at, _)| self.remove(at)),
            false => None,
        }
    }

    /// Returns the index and the priority of the entry whose turn is next.
    fn first(&self) -> Option<(usize, ConnectPriority)> {
        let silent = self.has_room(ConnectPriority::Silent);
        let waiting = self.waiting.iter().take(self.len).enumerate();
        let waiting = waiting
            .map(|(at, (_, claim))| (at, *claim))
            .filter(|(_, claim)| silent || *claim != ConnectPriority::Silent);
        // No entry goes before the first of the highest priority, so the search ends there.
        let highest = waiting
            .clone()
            .find(|(_, claim)| *claim == ConnectPriority::First);
        highest.or_else(|| waiting.min_by_key(|(_, claim)| *claim))
    }

    /// Removes an entry. Later entries move up.
    fn remove(&mut self, at: usize) -> Option<QueuedPeer> {
        let behind = self.waiting.get_mut(at..self.len)?;
        let entry = *behind.first()?;
        behind.rotate_left(1);
        self.len = self.len.saturating_sub(1);
        Some(entry)
    }

    /// Returns whether a peer with that priority may begin.
    fn has_room(&self, claim: ConnectPriority) -> bool {
        let spare = claim != ConnectPriority::Silent || self.silent < SILENT_AT_A_TIME;
        spare && self.all < AT_A_TIME
    }
}

/// Returns a count of attempts, less one.
fn one_less(count: u32) -> u32 {
    let less = count.checked_sub(1);
    less.unwrap_or_else(|| broken("an attempt ends its turn twice"))
}

/// Progress of a peer while messages wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerProgress {
    /// The peer waits for its turn to connect.
    pub in_line: bool,
    /// Milliseconds since its turn came, if it ever waited for it.
    pub called_ms_ago: Option<u64>,
    /// An attempt of either side is in flight.
    pub under_way: bool,
}

/// Returns how long a message may wait for a connection, in milliseconds: `usual_ms`, which is enough for one attempt
/// and some more. As long as LNet waits for it (`most_ms`), if the peer is in the queue, has just been called, or has
/// an attempt in flight, of which each step has a limit of its own. Never longer: a peer that connects again and again,
/// and never gets established, always has an attempt in flight.
pub fn pending_limit_ms(usual_ms: i64, most_ms: i64, meanwhile: PeerProgress) -> i64 {
    let called = meanwhile.called_ms_ago.map(i64::try_from);
    let late = called.is_some_and(|ago| ago.is_ok_and(|ms| ms < usual_ms));
    if late || meanwhile.in_line || meanwhile.under_way {
        usual_ms.max(most_ms)
    } else {
        usual_ms
    }
}

/// Returns the milliseconds until the next check of messages of which the oldest has waited for `waited_ms`: when it
/// will have waited longer than `limit_ms`, and within [`LOOK_MS`], because the limit may change at any time.
pub fn next_look_ms(limit_ms: i64, waited_ms: i64) -> u32 {
    let left = limit_ms.saturating_sub(waited_ms).saturating_add(1);
    u32::try_from(left.max(1)).map_or(LOOK_MS, |left| left.min(LOOK_MS))
}

/// Longest time in milliseconds between two checks of messages that wait.
const LOOK_MS: u32 = 1000;

#[cfg(any(test, ro2iblnd_kunit))]
#[cfg_attr(ro2iblnd_kunit, ::kernel::macros::kunit_tests(ro2ib_connect_queue))]
mod tests {
    use super::{
        ConnectPriority::{
            First,
            More,
            Silent, //
        },
        *, //
    };

    type TestQueue<'a> = ConnectQueue<&'a mut [QueuedPeer], &'a mut [UnresponsiveBucket]>;

    /// Returns a queue in that memory.
    fn queue<'a>(
        room: &'a mut [QueuedPeer],
        buckets: &'a mut [UnresponsiveBucket],
    ) -> TestQueue<'a> {
        ConnectQueue::new(room, buckets, 0x9e37_79b9_7f4a_7c15)
    }

    /// Returns a queue with that room, in which all attempts are in flight.
    fn busy(room: &mut [QueuedPeer]) -> TestQueue<'_> {
        let mut line = queue(room, &mut []);
        let mut place = QueueState::Nowhere;
        assert_eq!(line.enter(9, 16, &mut place, false), Some(First));
        line
    }

    /// Ends all attempts of a queue that `busy` returned.
    fn end_all(line: &mut TestQueue<'_>) {
        (0..AT_A_TIME).for_each(|_| line.leave(First));
    }

    /// Lets a peer that does not wait begin one attempt. Returns its priority.
    fn begins(line: &mut TestQueue<'_>, addr: u32) -> Option<ConnectPriority> {
        line.enter(addr, 1, &mut QueueState::Nowhere, false)
    }

    #[test]
    fn so_many_begin_and_no_more() {
        let mut line = queue(&mut [], &mut []);
        for addr in 1..=AT_A_TIME {
            assert_eq!(begins(&mut line, addr), Some(First));
        }
        for mut place in [
            QueueState::Nowhere,
            QueueState::Outside,
            QueueState::Queued(First),
            QueueState::Called,
        ] {
            assert_eq!(line.enter(99, 1, &mut place, false), None);
        }
        line.leave(First);
        assert_eq!(begins(&mut line, 99), Some(First));
        assert_eq!(begins(&mut line, 99), None);
    }

    #[test]
    fn attempt_waits_behind_queued_peers() {
        let mut room = [UNUSED; 8];
        let mut line = busy(&mut room);
        let mut place = QueueState::Nowhere;
        assert_eq!(line.enter(1, 1, &mut place, false), None);
        assert_eq!(place, QueueState::Queued(First));
        end_all(&mut line);
        // Neither another peer nor the peer itself begins before it is called.
        assert_eq!(line.enter(2, 1, &mut QueueState::Nowhere, false), None);
        assert_eq!(line.enter(1, 1, &mut place, false), None);
        assert_eq!(line.next(), Some((1, First)));
        place = QueueState::Called;
        assert_eq!(line.enter(1, 1, &mut place, false), Some(First));
        assert_eq!(place, QueueState::Nowhere);
        // No peer waits any more: then any peer may begin.
        assert_eq!(line.next(), Some((2, First)));
        assert_eq!(begins(&mut line, 3), Some(First));
    }

    #[test]
    fn additional_connections_queue_last() {
        let mut room = [UNUSED; 8];
        let mut buckets = [[0; 4]; 4];
        let mut line = queue(&mut room, &mut buckets);
        line.note(2, false);
        let mut place = QueueState::Nowhere;
        assert_eq!(line.enter(9, 16, &mut place, false), Some(First));
        for (addr, more) in [(1, true), (2, false), (3, false)] {
            let mut place = QueueState::Nowhere;
            assert!(line.enter(addr, 1, &mut place, more).is_none() && place.waits());
        }
        end_all(&mut line);
        for entry in [(3, First), (2, Silent), (1, More)] {
            assert_eq!(line.next(), Some(entry));
        }
        assert_eq!(line.next(), None);
        assert!(!QueueState::Nowhere.waits() && !QueueState::Called.waits());
        assert!(QueueState::Outside.waits());
    }

    /// Tests that peers whose messages expire before their turn are forgotten, and come back with LNet's next message.
    #[test]
    fn the_line_is_no_longer_than_there_are_peers() {
        let mut room = [UNUSED; 1024];
        let mut line = busy(&mut room);
        for round in 0..100u32 {
            for addr in 0..500u32 {
                let more = addr % 3 == 0;
                let mut place = QueueState::Nowhere;
                assert!(line.enter(addr, 1, &mut place, more).is_none() && place.waits());
                // The peer looks again.
                assert!(line.enter(addr, 1, &mut place, more).is_none() && place.waits());
                if round < 99 {
                    line.forget(addr, &mut place);
                    assert_eq!(place, QueueState::Nowhere);
                }
            }
        }
        assert_eq!(line.len, 500);
    }

    #[test]
    fn a_peer_that_loses_its_connection_has_one_entry() {
        let mut room = [UNUSED; 8];
        let mut line = busy(&mut room);
        let mut place = QueueState::Nowhere;
        assert_eq!(line.enter(1, 1, &mut place, true), None);
        assert_eq!(place, QueueState::Queued(More));
        assert_eq!(line.enter(1, 1, &mut place, false), None);
        assert_eq!((place, line.len), (QueueState::Queued(First), 1));
        end_all(&mut line);
        assert_eq!(line.next(), Some((1, First)));
        assert_eq!(line.len, 0);
    }

    #[test]
    fn queue_moves_up() {
        let mut room = [UNUSED; 4];
        let mut line = busy(&mut room);
        let mut places = [QueueState::Nowhere; 6];
        for (addr, place) in (1..).zip(&mut places) {
            assert_eq!(line.enter(addr, 1, place, false), None);
        }
        // Without room they look again.
        let [one, two, three, four, five, six] = &mut places;
        assert_eq!((*five, *six), (QueueState::Outside, QueueState::Outside));
        line.forget(5, five);
        line.forget(2, two);
        assert_eq!(line.enter(6, 1, six, false), None);
        assert_eq!(*six, QueueState::Queued(First));
        end_all(&mut line);
        // A peer outside does not overtake them.
        assert_eq!(line.enter(2, 1, two, false), None);
        assert_eq!(*two, QueueState::Outside);
        for (addr, place) in [(1, one), (3, three), (4, four), (6, six)] {
            assert_eq!(line.next(), Some((addr, First)));
            *place = QueueState::Called;
            assert_eq!(line.enter(addr, 1, place, false), Some(First));
        }
        assert_eq!(line.next(), None);
        assert_eq!(line.enter(2, 1, two, false), Some(First));
    }

    /// Tests that a thousand peers that want more connections, or did not answer, leave places for other peers.
    #[test]
    fn test_half_of_the_places_are_for_peers_without_a_connection() {
        for (more, silent, claim) in [(true, false, More), (false, true, Silent)] {
            let (mut room, mut buckets) = ([UNUSED; 8], [[0; 4]; 16]);
            let mut line = queue(&mut room, &mut buckets);
            assert_eq!(
                line.enter(9, 16, &mut QueueState::Nowhere, false),
                Some(First)
            );
            let mut join = |addr, more| {
                line.note(addr, !silent || addr >= 100);
                let mut place = QueueState::Nowhere;
                assert_eq!(line.enter(addr, 1, &mut place, more), None);
                place
            };
            for addr in 10..20 {
                let place = match addr < 14 {
                    true => QueueState::Queued(claim),
                    false => QueueState::Outside,
                };
                assert_eq!(join(addr, more), place);
            }
            for addr in 100..104 {
                assert_eq!(join(addr, false), QueueState::Queued(First));
            }
            assert_eq!(join(104, false), QueueState::Outside);
        }
    }

    /// Tests that a peer with several connections begins all of them, or none: the last may exceed the limit.
    #[test]
    fn several_begin_together() {
        let mut line = queue(&mut [], &mut []);
        for _ in 0..2 {
            assert!(line.enter(1, 10, &mut QueueState::Nowhere, true).is_some());
        }
        assert_eq!(line.enter(1, 1, &mut QueueState::Called, true), None);
        for _ in 0..4 {
            line.leave(More);
            assert!(!line.has_room(First));
        }
        line.leave(More);
        assert!(line.has_room(First));
    }

    #[test]
    fn unresponsive_peers_leave_free_slots() {
        let mut buckets = [[0; 4]; 64];
        let mut line = queue(&mut [], &mut buckets);
        (1..=20).for_each(|addr| line.note(addr, false));
        for addr in 1..=SILENT_AT_A_TIME {
            assert_eq!(begins(&mut line, addr), Some(Silent));
        }
        assert_eq!(line.enter(20, 1, &mut QueueState::Called, false), None);
        for addr in 100..104 {
            assert_eq!(begins(&mut line, addr), Some(First));
        }
        assert!(!line.has_room(More));
        // An attempt that ends makes room for its kind.
        line.leave(First);
        assert!(!line.has_room(Silent) && line.has_room(More));
        line.leave(Silent);
        assert_eq!(
            line.enter(20, 1, &mut QueueState::Called, false),
            Some(Silent)
        );
    }

    #[test]
    fn unresponsive_peer_is_recorded_until_it_answers() {
        let mut buckets = [[0; 4]; 64];
        let mut line = queue(&mut [], &mut buckets);
        let rack = 0x0a00_0100..0x0a00_0140u32;
        for addr in rack.clone() {
            assert!(!line.is_silent(addr));
            line.note(addr, false);
            line.note(addr, false);
        }
        // No other peer is taken for one of them, and hardly one of them is forgotten.
        assert!(!(0x0a00_0200..0x0a00_0600u32).any(|addr| line.is_silent(addr)));
        let known = rack.clone().filter(|addr| line.is_silent(*addr));
        assert!(known.count() > 60);
        for addr in rack {
            line.note(addr, true);
        }
        assert!(line.unanswered.iter().flatten().all(|quiet| *quiet == 0));
        // The newest of many is known.
        for addr in 1..1000 {
            line.note(addr, false);
            assert!(line.is_silent(addr));
        }
    }

    const NOTHING: PeerProgress = PeerProgress {
        in_line: false,
        called_ms_ago: None,
        under_way: false,
    };

    #[test]
    fn queued_peer_waits_until_the_lnet_deadline() {
        let limit_ms = |meanwhile| pending_limit_ms(22_500, 50_000, meanwhile);
        assert_eq!(limit_ms(NOTHING), 22_500);
        let in_line = PeerProgress {
            in_line: true,
            ..NOTHING
        };
        let under_way = PeerProgress {
            under_way: true,
            ..NOTHING
        };
        let called = |ms| PeerProgress {
            called_ms_ago: Some(ms),
            ..NOTHING
        };
        assert_eq!(limit_ms(in_line), 50_000);
        assert_eq!(limit_ms(under_way), 50_000);
        assert_eq!(limit_ms(called(22_499)), 50_000);
        assert_eq!(limit_ms(called(22_500)), 22_500);
        assert_eq!(limit_ms(called(u64::MAX)), 22_500);
        // With a short timeout of LNet's it is not less than usual.
        assert_eq!(pending_limit_ms(15_000, 8_000, under_way), 15_000);
    }

    #[test]
    fn pending_check_runs_each_second_and_at_the_limit() {
        for waited_ms in [0_i64, 1, 14_001, i64::MIN] {
            assert_eq!(next_look_ms(15_000, waited_ms), LOOK_MS);
        }
        for waited_ms in [14_002_i64, 14_999, 15_000] {
            let then = waited_ms.saturating_add(i64::from(next_look_ms(15_000, waited_ms)));
            assert_eq!(then, 15_001);
        }
        for waited_ms in [15_001, i64::MAX] {
            assert_eq!(next_look_ms(15_000, waited_ms), 1);
        }
        assert_eq!(next_look_ms(i64::MAX, 0), LOOK_MS);
    }
}
