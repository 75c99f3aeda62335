// SPDX-License-Identifier: GPL-2.0

//! Limit of an NI's concurrent attempts to connect, turns of the peers that wait, and how long messages wait meanwhile.
//!
//! A node may want to connect to a thousand peers at once. An attempt takes a queue pair, regions and buffers on both
//! sides, and has a fixed time limit: if all began at once, none would end in time. So no more than [`AT_A_TIME`] are
//! in flight; the other peers wait for their turn, and peers that have a connection wait behind those that have none.
//! The queue only counts them: the caller walks over its peers, from where the last walk ended, to the next one that
//! waits with the priority whose turn it is ([`ConnectQueue::next`]). So each peer has its turn within a round.
//!
//! Dead peers must not delay live ones: after a rack has lost its power there may be hundreds. So an attempt counts
//! only as long as it is likely to succeed: until its address was not found at the first try
//! ([`crate::proto::conn_state::ConnEvent::AddrTimeout`]), or for [`UNANSWERED_MS`] without an answer. And peers that
//! did not answer the last time may use [`SILENT_AT_A_TIME`] of the places, after all other peers (H45).
//!
//! Context: any; the caller holds the lock of the queue, and for a [`QueueState`] the lock of the peer.

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

/// Priority of a peer's attempt, the highest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConnectPriority {
    /// The peer has no connection, and no failure of it is known.
    First,
    /// The peer has no connection, and did not answer the last time ([`super::close_log::PeerHistory`]).
    Silent,
    /// The peer has a connection.
    More,
}

/// State of a peer in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueState {
    Nowhere,
    /// The peer waits with this priority, and is counted.
    Waits(ConnectPriority),
    /// It is the peer's turn.
    Called,
}

/// Attempts in flight, and numbers of peers that wait for their turn.
#[derive(Default)]
pub struct ConnectQueue {
    /// Attempts in flight.
    all: u32,
    /// Attempts in flight for peers that did not answer the last time.
    silent: u32,
    /// Peers that wait, by [`ConnectPriority`].
    waiting: [u32; 3],
}

impl ConnectQueue {
    /// Counts this number of attempts of a peer with that priority, and returns true, if there is room and no other
    /// peer goes before. Otherwise the peer waits. `state` is updated.
    #[must_use]
    pub fn enter(&mut self, claim: ConnectPriority, attempts: u16, state: &mut QueueState) -> bool {
        let is_called = *state == QueueState::Called;
        self.forget(state);
        let is_next = is_called || self.next().is_none_or(|next| next > claim);
        if is_next && self.has_room(claim) {
            self.all = self.all.saturating_add(attempts.into());
            if claim == ConnectPriority::Silent {
                self.silent = self.silent.saturating_add(attempts.into());
            }
            return true;
        }
        *state = QueueState::Waits(claim);
        if let Some(n) = self.waiting.get_mut(claim as usize) {
            *n = n.saturating_add(1);
        }
        false
    }

    /// Ends the wait of a peer for its turn.
    pub fn forget(&mut self, state: &mut QueueState) {
        if let QueueState::Waits(claim) = core::mem::replace(state, QueueState::Nowhere) {
            if let Some(n) = self.waiting.get_mut(claim as usize) {
                *n = one_less(*n);
            }
        }
    }

    /// Counts off an attempt with that priority that ended, was not begun, or takes so long that it no longer counts.
    pub fn leave(&mut self, claim: ConnectPriority) {
        self.all = one_less(self.all);
        if claim == ConnectPriority::Silent {
            self.silent = one_less(self.silent);
        }
    }

    /// Returns the priority of the peers of which one may begin now: the highest with which a peer waits.
    pub fn next(&self) -> Option<ConnectPriority> {
        let claims = [
            ConnectPriority::First,
            ConnectPriority::Silent,
            ConnectPriority::More,
        ];
        let mut waiting = claims.into_iter().zip(self.waiting);
        let next = waiting.find(|(claim, n)| *n > 0 && self.has_room(*claim));
        next.map(|(claim, _)| claim)
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

/// Returns how long a message may wait for a connection, in milliseconds: `usual_ms`, which is enough for one attempt
/// and some more. As long as LNet waits for it (`most_ms`), if the peer waits for its turn or has an attempt in flight,
/// of which each step has a limit of its own (`under_way`), or if its turn has just come (`called_ms_ago`; `None`: the
/// peer never waited for it). Never longer: a peer that connects again and again, and never gets established, always
/// has an attempt in flight.
pub fn pending_limit_ms(
    usual_ms: i64,
    most_ms: i64,
    under_way: bool,
    called_ms_ago: Option<u64>,
) -> i64 {
    let called = called_ms_ago.and_then(|ms| i64::try_from(ms).ok());
    match under_way || called.is_some_and(|ms| ms < usual_ms) {
        true => usual_ms.max(most_ms),
        false => usual_ms,
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

    /// Returns a queue in which all attempts are in flight.
    fn busy() -> ConnectQueue {
        let mut line = ConnectQueue::default();
        assert!(line.enter(First, 16, &mut QueueState::Nowhere));
        line
    }

    /// Ends all attempts of a queue that `busy` returned.
    fn end_all(line: &mut ConnectQueue) {
        (0..AT_A_TIME).for_each(|_| line.leave(First));
    }

    /// Lets a peer that does not wait begin one attempt. Returns whether it does. If it has to wait, it goes.
    fn begins(line: &mut ConnectQueue, claim: ConnectPriority) -> bool {
        let mut state = QueueState::Nowhere;
        let begins = line.enter(claim, 1, &mut state);
        line.forget(&mut state);
        begins
    }

    /// Calls a peer that waits.
    fn call(line: &mut ConnectQueue, state: &mut QueueState) {
        assert!(matches!(*state, QueueState::Waits(claim) if line.next() == Some(claim)));
        line.forget(state);
        *state = QueueState::Called;
    }

    #[test]
    fn attempts_over_the_limit_wait() {
        let mut line = ConnectQueue::default();
        for _ in 0..AT_A_TIME {
            assert!(begins(&mut line, First));
        }
        for mut state in [
            QueueState::Nowhere,
            QueueState::Called, //
        ] {
            assert!(!line.enter(First, 1, &mut state));
            assert_eq!(state, QueueState::Waits(First));
            assert!(!line.enter(First, 1, &mut state));
            assert_eq!(line.waiting, [1, 0, 0]);
            line.forget(&mut state);
        }
        assert_eq!((line.waiting, line.next()), ([0; 3], None));
        line.leave(First);
        assert!(begins(&mut line, First));
        assert!(!begins(&mut line, First));
    }

    #[test]
    fn attempt_waits_behind_waiting_peers() {
        let mut line = busy();
        let [mut one, mut two] = [QueueState::Nowhere; 2];
        for state in [&mut one, &mut two] {
            assert!(!line.enter(First, 1, state));
        }
        end_all(&mut line);
        // Neither another peer nor these begin before they are called.
        assert!(!begins(&mut line, First));
        assert!(!line.enter(First, 1, &mut one));
        call(&mut line, &mut one);
        assert!(line.enter(First, 1, &mut one));
        assert_eq!(one, QueueState::Nowhere);
        // The last one needs no call, and then any peer may begin.
        assert!(line.enter(First, 1, &mut two));
        assert_eq!((two, line.next()), (QueueState::Nowhere, None));
        assert!(begins(&mut line, First));
    }

    #[test]
    fn additional_connections_begin_last() {
        let mut line = busy();
        let mut states = [QueueState::Nowhere; 3];
        for (claim, state) in [More, Silent, First].into_iter().zip(&mut states) {
            assert!(!line.enter(claim, 1, state));
        }
        end_all(&mut line);
        for (state, claim) in states.iter_mut().rev().zip([First, Silent, More]) {
            assert_eq!(*state, QueueState::Waits(claim));
            call(&mut line, state);
        }
        assert_eq!(line.next(), None);
    }

    #[test]
    fn a_peer_that_loses_its_connection_waits_with_its_new_priority() {
        let mut line = busy();
        let mut state = QueueState::Nowhere;
        assert!(!line.enter(More, 1, &mut state));
        assert_eq!((state, line.waiting), (QueueState::Waits(More), [0, 0, 1]));
        assert!(!line.enter(First, 1, &mut state));
        assert_eq!((state, line.waiting), (QueueState::Waits(First), [1, 0, 0]));
    }

    /// Tests that a peer with several connections begins all of them, or none: the last may exceed the limit.
    #[test]
    fn several_begin_together() {
        let mut line = ConnectQueue::default();
        for _ in 0..2 {
            assert!(line.enter(More, 10, &mut QueueState::Nowhere));
        }
        assert!(!line.enter(More, 1, &mut QueueState::Called));
        for _ in 0..4 {
            line.leave(More);
            assert!(!line.has_room(First));
        }
        line.leave(More);
        assert!(line.has_room(First));
    }

    #[test]
    fn unresponsive_peers_leave_free_slots() {
        let mut line = ConnectQueue::default();
        for _ in 0..SILENT_AT_A_TIME {
            assert!(begins(&mut line, Silent));
        }
        let mut state = QueueState::Called;
        assert!(!line.enter(Silent, 1, &mut state));
        // It is not its turn yet, and it does not delay the others.
        assert_eq!(line.next(), None);
        for _ in 0..4 {
            assert!(begins(&mut line, First));
        }
        assert!(!line.has_room(More));
        // An attempt that ends makes room for its kind.
        line.leave(First);
        assert!(!line.has_room(Silent) && line.has_room(More));
        line.leave(Silent);
        assert_eq!(line.next(), Some(Silent));
        assert!(line.enter(Silent, 1, &mut state));
    }

    #[test]
    fn waiting_peer_waits_until_the_lnet_deadline() {
        let limit_ms = |under_way, called| pending_limit_ms(22_500, 50_000, under_way, called);
        assert_eq!(limit_ms(false, None), 22_500);
        assert_eq!(limit_ms(true, None), 50_000);
        assert_eq!(limit_ms(false, Some(22_499)), 50_000);
        assert_eq!(limit_ms(false, Some(22_500)), 22_500);
        assert_eq!(limit_ms(false, Some(u64::MAX)), 22_500);
        // With a short timeout of LNet's it is not less than usual.
        assert_eq!(pending_limit_ms(15_000, 8_000, true, None), 15_000);
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
