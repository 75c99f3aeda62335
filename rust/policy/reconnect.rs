// SPDX-License-Identifier: GPL-2.0

//! Reconnect policy of a peer: what a node remembers about it, and when it tries to connect again.
//!
//! If several connections are wanted, one attempt goes first, and the others follow when its connection is established.
//! So a dead peer costs one attempt, and after a storm each peer has one connection before any peer has two. A
//! connection that is missing later, because it broke or could not be made, is attempted after a pause, as long as
//! another one lives.
//!
//! Context: any; the caller holds the peer's lock. Randomness is an argument.

use crate::proto::{
    broken,
    constants::{
        PeerParams,
        RACES_MAX, //
    },
    reject::RetryWhy, //
};

/// Longest pause between two attempts, in milliseconds.
pub const BACKOFF_MAX_MS: u32 = 10_000;

/// Step of the back-off, in milliseconds.
const BACKOFF_STEP_MS: u32 = 50;

/// Longest pause after a lost race, in milliseconds. A peer that lost a race rejects our requests until it has counted
/// [`RACES_MAX`] of them, or until the CM repeats the peer's own request, after 4.3 s. With half of this pause on
/// average, that takes as long as this node takes to regard an unanswered request as lost
/// ([`STALE_REQUEST_MS`](crate::proto::handshake::STALE_REQUEST_MS)).
const RACE_PAUSE_MS: u32 = 50;

/// Shortest pause until a broken connection is replaced while others live, in milliseconds; up to the same time again
/// is added at random. A peer that shuts down has closed all its connections by then. A peer that first completes
/// active transfers takes a second for its last connection, too; then nothing is left to replace, or one attempt fails.
const REPLACE_MS: u32 = 1000;

/// Number of attempts to replace it.
const REPLACE_TRIES: u8 = 8;

/// Shortest life of a connection, in milliseconds. A connection that broke sooner counts as never established.
const LIVES_MS: u64 = 1000;

/// Number of such short-lived connections in a row after which the pause no longer grows. The pause is then at most 1.6
/// s.
const STILLBORN_MAX: u32 = 6;

/// Attempts and connections of a peer, counted; none by default.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReconnectState {
    /// Limits of the parameters for the next CONNREQ, learnt from earlier handshakes with the peer.
    pub known: PeerParams,
    active: u16,
    /// Active attempts that have not failed. The queue pairs of the others are not drained yet.
    in_flight: u16,
    passive: u16,
    /// An accepted request took too long to be established. Until a connection is established and no accepted request
    /// is left, accepted requests do not replace attempts of this node. Otherwise a series of such requests could do
    /// so.
    slow: bool,
    conns: u16,
    /// Races in a row that the peer lost.
    pub races: u8,
    /// Rejects in a row after which the next attempt begins soon: lost races, and numbers of old queue pairs.
    lost: u8,
    /// Attempts that failed in a row.
    pub failures: u32,
    /// Connections in a row that broke within [`LIVES_MS`].
    stillborn: u32,
    /// A retry is due: for the first connection, or for missing connections beside established ones.
    due: bool,
    /// The link change closed the last connection: reconnect when the link opens, even if no message waits.
    recall: bool,
    /// The active attempt began when there was no connection.
    first: bool,
    /// Attempts left for missing connections while a connection is established, until one breaks.
    tries: u8,
    /// Reason of the next pause before an attempt for a missing connection.
    pause: BackOff,
    /// All connections were closed on purpose, and no message has asked for one since.
    unwanted: bool,
}

/// Pause before an attempt for a missing connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum BackOff {
    /// No pause: the first connection is established, and the others follow.
    #[default]
    Rest,
    Broke,
    Failed,
}

impl ReconnectState {
    /// Returns whether to start an attempt for a message that has no connection.
    pub fn may_start(&self) -> bool {
        self.conns == 0 && !self.busy()
    }

    /// Counts attempts of this node that begin now: one for a message, or those that were due.
    pub fn begin(&mut self, attempts: u16) {
        self.cancel_retry();
        self.active = self.active.saturating_add(attempts);
        self.in_flight = self.in_flight.saturating_add(attempts);
        self.first = self.conns == 0;
        if self.pause == BackOff::Failed {
            self.pause = BackOff::Rest;
        }
        if self.first {
            self.unwanted = false;
            self.tries = 0;
        }
    }

    /// Returns how many attempts to start now that the pause is over. The caller counts them ([`Self::begin`]), or
    /// cancels the retry if there are none.
    pub fn due_attempts(&self, waiting: bool, conns_per_peer: u16) -> u16 {
        if !self.due || self.is_under_way() {
            0
        } else if self.conns == 0 {
            u16::from(waiting || self.recall)
        } else if self.pause == BackOff::Failed {
            // The peer may accept no more connections: one request finds out, and the others follow it.
            self.missing_conns(conns_per_peer).min(1)
        } else {
            self.missing_conns(conns_per_peer)
        }
    }

    /// Returns whether there is an established connection: for more of them, other peers may go first.
    pub fn has_conns(&self) -> bool {
        self.conns > 0
    }

    /// Marks a retry as due for a message that waits until the link opens ([`super::link_state`]). Returns true if the
    /// caller must schedule the retry, because no other event of the peer would send the message.
    #[must_use]
    pub fn hold(&mut self) -> bool {
        let holds = self.may_start();
        self.due |= holds;
        holds
    }

    /// Marks the peer for a reconnect if the link change closed its last connection. Returns true if the caller must
    /// schedule a retry, which is made whether a message waits or not.
    #[must_use]
    pub fn reconnect(&mut self) -> bool {
        self.recall |= self.conns == 0;
        self.hold()
    }

    /// Lets a due retry happen even if no message waits.
    pub fn force_retry(&mut self) {
        self.recall = self.due;
    }

    /// Returns whether the peer is to be connected when the link opens even if no message waits.
    pub fn is_recalled(&self) -> bool {
        self.recall && self.due
    }

    pub fn is_due(&self) -> bool {
        self.due
    }

    pub fn cancel_retry(&mut self) {
        self.recall = false;
        self.due = false;
    }

    /// Returns whether an active attempt is in flight (protocol section 4.8). A failed attempt is not, although some
    /// devices take long to drain its queue pair: a peer that rejects the requests of this node, and sends its own
    /// instead, would lose each race.
    pub fn connecting(&self) -> bool {
        self.in_flight > 0
    }

    /// Notes that an active attempt has failed. [`ReconnectState::failed`] follows when it is released.
    pub fn closing(&mut self) {
        self.in_flight = one_less(self.in_flight);
    }

    pub fn race_counted(&mut self) {
        self.races = self.races.saturating_add(1);
    }

    /// Counts an accepted request of the peer. It replaces a pending retry of this node. Other missing connections are
    /// attempted when that attempt is over ([`ReconnectState::more`]). The parameters of the request hold for its
    /// connection only: a small depth in it does not change what this node asks for later. Its incarnation becomes the
    /// peer's when the connection is established, because until then any host may have sent the request.
    pub fn accepting(&mut self) {
        self.passive = self.passive.saturating_add(1);
        self.races = 0;
        self.lost = 0;
        self.due &= self.slow;
    }

    /// Notes that an accepted request is not established yet. For a genuine request without packet loss that takes a
    /// moment only. The request may be forged, so neither it nor later requests replace attempts of this node (H43).
    pub fn slowed(&mut self) {
        // The attempt may be over by now.
        self.slow |= self.passive > 0;
    }

    /// Counts an attempt that became a connection, to the incarnation `stamp` of the peer.
    ///
    /// If this node began the attempt when there was no connection, the others follow, even if a connection of the peer
    /// was established first. If this is the only connection now, but there were others when the attempt began, the
    /// peer may be closing all its connections: then there is a pause.
    pub fn established(&mut self, active: bool, stamp: u64) {
        let alone = self.conns == 0;
        self.conns = self.conns.saturating_add(1);
        self.attempt_over(active);
        if active {
            self.in_flight = one_less(self.in_flight);
        }
        // A slow request may remain, whichever side opened this connection.
        self.slow &= self.passive > 0;
        // The connection replaces the retry that was due for the first one.
        self.due &= active || !alone;
        self.known.stamp = stamp;
        self.failures = 0;
        self.lost = 0;
        self.recall = false;
        if active && (alone || self.first) && !self.unwanted {
            self.tries = REPLACE_TRIES;
            self.pause = match self.first {
                true => BackOff::Rest,
                false => BackOff::Broke,
            };
        }
    }

    /// Counts a closed connection. If this node opened it, and it `broke`, it is replaced if others live
    /// ([`ReconnectState::more`]).
    pub fn closed(&mut self, broke: bool) {
        self.conns = one_less(self.conns);
        if self.conns == 0 {
            // Missing connections beside it. A message does not wait for them.
            self.tries = 0;
            self.due = false;
        } else if broke && !self.unwanted {
            self.tries = REPLACE_TRIES;
            self.pause = BackOff::Broke;
        }
    }

    /// Returns the milliseconds until a retry, if the caller must schedule one for waiting messages, after a connection
    /// that lived for `lived_ms` was closed. `bad`: it did not end because of an event of this node. The caller calls
    /// [`ReconnectState::closed`] first. A peer that accepts each connection and breaks it at once is retried with a
    /// pause.
    #[must_use]
    pub fn ended(&mut self, lived_ms: u64, bad: bool, waiting: bool, random: u32) -> Option<u32> {
        if !bad || lived_ms >= LIVES_MS {
            self.stillborn = 0;
            return None;
        }
        let pause = backoff(self.stillborn, random);
        self.stillborn = self.stillborn.saturating_add(1).min(STILLBORN_MAX);
        if pause == 0 || !waiting || !self.may_start() {
            return None;
        }
        self.due = true;
        Some(pause)
    }

    /// Returns the milliseconds until a retry for missing connections, if the caller must schedule one. To be called
    /// when a connection was established or closed, or an attempt of either side is over.
    #[must_use]
    pub fn more(&mut self, conns_per_peer: u16, random: u32) -> Option<u32> {
        if self.conns == 0 || self.busy() {
            return None;
        }
        if self.missing_conns(conns_per_peer) == 0 {
            self.tries = 0;
        }
        // Independent of the result: a peer may close each connection with a different cause.
        self.tries = self.tries.checked_sub(1)?;
        self.due = true;
        let tried = u32::from(REPLACE_TRIES.saturating_sub(self.tries));
        Some(match self.pause {
            BackOff::Rest => 0,
            BackOff::Broke => REPLACE_MS.saturating_add(below(REPLACE_MS, random)),
            BackOff::Failed => backoff(tried.saturating_add(1), random),
        })
    }

    /// Stops the replacement of connections, and attempts for missing ones: all connections are being closed on
    /// purpose, and some may take a while.
    pub fn no_more(&mut self) {
        self.unwanted = true;
        self.tries = 0;
        if self.conns > 0 {
            self.due = false;
        }
    }

    /// Returns the number of wanted connections that are neither established nor in flight.
    fn missing_conns(&self, conns_per_peer: u16) -> u16 {
        let ways = [self.conns, self.active, self.quick()];
        let there = ways.into_iter().fold(0, u16::saturating_add);
        conns_per_peer.saturating_sub(there)
    }

    /// Learns from a reject what to ask for next. While there is a connection, its incarnation is better knowledge of
    /// the peer than the reject's. Its queue depth is not: each connection has the depth that was right when it was
    /// made.
    fn learn(&mut self, why: RetryWhy) {
        match why {
            RetryWhy::SmallerDepth(depth) => self.known.depth = self.known.depth.min(depth),
            RetryWhy::FewerFrags(frags) => self.known.frags = self.known.frags.min(frags),
            RetryWhy::Stale(stamp) if self.conns == 0 => self.known.stamp = stamp,
            _ => {}
        }
    }

    /// Counts a failed attempt, and returns the milliseconds until the next, if the caller must schedule it. `why` is
    /// the invitation of the reject to try again (protocol section 4.6), if there was one; `waiting`: messages wait for
    /// a connection; `random` is uniform. A peer that is to be connected when the link opens
    /// ([`ReconnectState::reconnect`]) is, once, though no message waits.
    ///
    /// A failed attempt of the peer that replaced a retry of this node ([`ReconnectState::accepting`]) makes the retry
    /// due again. An attempt beside established connections is repeated for a while ([`ReconnectState::more`]).
    pub fn failed(
        &mut self,
        active: bool,
        why: Option<RetryWhy>,
        waiting: bool,
        random: u32,
    ) -> Option<u32> {
        if let Some(why) = why {
            self.learn(why);
        }
        if active {
            if !self.first {
                self.pause = BackOff::Failed;
            }
            let stale = why == Some(RetryWhy::StaleQp) && self.lost < RACES_MAX;
            if stale && self.conns > 0 && !self.unwanted {
                // No try: a device that uses a number again at once gets this answer until the peer's CM forgets the
                // number, after some seconds. One try was for all attempts that began together.
                self.lost = self.lost.saturating_add(1);
                self.tries = self.tries.saturating_add(1).min(REPLACE_TRIES);
                self.pause = BackOff::Broke;
            }
        }
        self.attempt_over(active);
        if !active && self.due {
            // The attempt had not replaced a retry.
            return None;
        }
        let retry = (why.is_some() || !active) && self.conns == 0;
        if retry && (waiting || self.recall) && !self.is_under_way() {
            self.due = true;
            return Some(self.pause(why, random));
        }
        None
    }

    /// Returns the milliseconds until the next attempt. A request that lost a race is repeated soon, as often as the
    /// peer counts races. So is a request with the number of an old queue pair, because a peer whose link was away for
    /// long may know several of these, and rejects one request for each.
    fn pause(&mut self, why: Option<RetryWhy>, random: u32) -> u32 {
        let soon = matches!(why, Some(RetryWhy::Race | RetryWhy::StaleQp));
        if soon && self.lost < RACES_MAX {
            self.lost = self.lost.saturating_add(1);
            return below(RACE_PAUSE_MS, random);
        }
        let pause = backoff(self.failures, random);
        self.failures = self.failures.saturating_add(1);
        pause
    }

    /// Returns whether there is no connection, no attempt and no pending retry.
    pub fn idle(&self) -> bool {
        self.conns == 0 && self.passive == 0 && !self.busy()
    }

    fn busy(&self) -> bool {
        self.is_under_way() || self.due
    }

    /// Returns whether an attempt of either side is in flight, not counting slow ones.
    pub fn is_under_way(&self) -> bool {
        self.active > 0 || self.quick() > 0
    }

    /// Returns the number of the peer's attempts that replace attempts of this node.
    fn quick(&self) -> u16 {
        match self.slow {
            true => 0,
            false => self.passive,
        }
    }

    fn attempt_over(&mut self, active: bool) {
        match active {
            true => self.active = one_less(self.active),
            false => self.passive = one_less(self.passive),
        }
    }
}

/// Returns a count of attempts or connections, less one. No count overflows: `conns_per_peer` bounds the attempts of
/// this node, and [`check_peer`](crate::proto::handshake::check_peer) the requests that it accepts.
fn one_less(count: u16) -> u16 {
    let less = count.checked_sub(1);
    less.unwrap_or_else(|| broken("an attempt or connection ends twice"))
}

/// Returns the pause before the next attempt, in milliseconds: 0 at first, then random below a limit that doubles, so
/// that peers that failed together do not reconnect together.
pub fn backoff(failures: u32, random: u32) -> u32 {
    if failures == 0 {
        return 0;
    }
    let doubled = 2u32.saturating_pow(failures.saturating_sub(1));
    let limit = BACKOFF_STEP_MS.saturating_mul(doubled).min(BACKOFF_MAX_MS);
    below(limit, random)
}

/// Returns a number from 1 to `limit`, which is not 0.
fn below(limit: u32, random: u32) -> u32 {
    random.checked_rem(limit).unwrap_or(0).saturating_add(1)
}

#[cfg(any(test, ro2iblnd_kunit))]
#[cfg_attr(ro2iblnd_kunit, ::kernel::macros::kunit_tests(ro2ib_reconnect))]
mod tests {
    use super::*;
    use crate::proto::constants::{
        MaxFrags,
        QueueDepth, //
    };

    fn peer() -> ReconnectState {
        ReconnectState {
            known: PeerParams {
                depth: QueueDepth::MIN,
                ..PeerParams::default()
            },
            ..ReconnectState::default()
        }
    }

    /// Returns the state with this number of connections, the first of them opened by this node.
    fn all_up(conns: u16) -> ReconnectState {
        let mut p = peer();
        let known = p.known;
        assert!(start(&mut p));
        p.established(true, known.stamp);
        assert_eq!(p.more(conns, 7), (conns > 1).then_some(0));
        let more = retry(&mut p, false, conns);
        assert_eq!(more, conns.saturating_sub(1));
        for _ in 0..more {
            p.established(true, known.stamp);
        }
        p
    }

    /// Returns the range of the pause after a connection broke.
    fn broke_ms() -> core::ops::RangeInclusive<u32> {
        REPLACE_MS..=2 * REPLACE_MS
    }

    /// Lets a message begin an attempt. Returns whether it does.
    fn start(p: &mut ReconnectState) -> bool {
        let starts = p.may_start();
        if starts {
            p.begin(1);
        }
        starts
    }

    /// Begins the attempts that are due. Returns how many.
    fn retry(p: &mut ReconnectState, waiting: bool, conns_per_peer: u16) -> u16 {
        let attempts = p.due_attempts(waiting, conns_per_peer);
        match attempts {
            0 => p.cancel_retry(),
            _ => p.begin(attempts),
        }
        attempts
    }

    /// Closes a connection on purpose. Returns whether nothing of the peer remains.
    fn closed(p: &mut ReconnectState) -> bool {
        p.closed(false);
        p.idle()
    }

    /// Lets a connection that this node opened break.
    fn breaks(p: &mut ReconnectState) {
        p.closed(true);
    }

    /// Action after a failed attempt.
    #[derive(Debug, PartialEq, Eq)]
    enum AfterFailure {
        /// Another attempt after this time, in milliseconds.
        RetryIn(u32),
        /// Nothing, because other attempts or connections remain.
        OthersRemain,
        /// The peer is forgotten.
        GiveUp,
    }

    /// Counts a failed attempt.
    fn failed(
        p: &mut ReconnectState,
        active: bool,
        why: Option<RetryWhy>,
        waiting: bool,
        random: u32,
    ) -> AfterFailure {
        match p.failed(active, why, waiting, random) {
            Some(ms) => AfterFailure::RetryIn(ms),
            None if p.idle() => AfterFailure::GiveUp,
            None => AfterFailure::OthersRemain,
        }
    }

    /// Lets an attempt of this node fail.
    fn fails(
        p: &mut ReconnectState,
        why: Option<RetryWhy>,
        waiting: bool,
        random: u32,
    ) -> AfterFailure {
        p.closing();
        failed(p, true, why, waiting, random)
    }

    #[test]
    fn a_link_change_beside_an_attempt_is_followed_by_a_reconnect() {
        let mut p = peer();
        let known = p.known;
        assert!(start(&mut p));
        p.established(true, known.stamp);
        assert_eq!(p.more(2, 7), Some(0));
        assert_eq!(retry(&mut p, false, 2), 1);
        p.closed(false);
        assert!(!p.reconnect());
        p.closing();
        let after = failed(&mut p, true, Some(RetryWhy::Early), false, 7);
        assert!(matches!(after, AfterFailure::RetryIn(_)));
        assert_eq!(retry(&mut p, false, 2), 1);
        p.closing();
        let after = failed(&mut p, true, Some(RetryWhy::Early), false, 7);
        assert!(matches!(after, AfterFailure::GiveUp));
    }

    #[test]
    fn reconnect_backs_off_after_immediate_closes() {
        let mut p = peer();
        let known = p.known;
        let mut paused = 0_u32;
        for times in 0..20 {
            assert!(start(&mut p));
            p.established(true, known.stamp);
            p.closed(false);
            match p.ended(3, true, true, u32::MAX - 1) {
                // The first time may be an accident.
                None => assert_eq!(times, 0),
                Some(ms) => {
                    assert!(ms <= BACKOFF_STEP_MS << 5);
                    paused = paused.saturating_add(ms);
                    assert!(!start(&mut p));
                    assert_eq!(retry(&mut p, true, 1), 1);
                    let _ = fails(&mut p, None, false, 7);
                }
            }
        }
        assert!(paused > 10 * BACKOFF_STEP_MS);
        // A connection that lived, or was closed here on purpose, resets the count.
        for (lived_ms, bad) in [(LIVES_MS, true), (3, false)] {
            assert!(start(&mut p));
            p.established(true, known.stamp);
            p.closed(false);
            assert_eq!(p.ended(lived_ms, bad, true, 7), None);
            assert!(start(&mut p));
            p.established(true, known.stamp);
            p.closed(false);
            assert_eq!(p.ended(3, true, true, 7), None);
        }
        // No message waits, or another connection is established.
        assert!(start(&mut p));
        assert_eq!(p.ended(3, true, true, 7), None);
        assert_eq!(fails(&mut p, None, false, 7), AfterFailure::GiveUp);
        assert_eq!(p.ended(3, true, false, 7), None);
        assert!(!p.is_due());
    }

    #[test]
    fn one_set_of_attempts_at_a_time() {
        let mut p = all_up(4);
        assert!(!start(&mut p));
        for _ in 0..3 {
            breaks(&mut p);
        }
        assert!(p.more(4, 7).is_some_and(|ms| broke_ms().contains(&ms)));
        assert_eq!(retry(&mut p, false, 4), 3);
        for _ in 0..2 {
            assert_eq!(fails(&mut p, None, true, 7), AfterFailure::OthersRemain);
            assert_eq!(p.more(4, 7), None);
        }
        let known = p.known;
        p.established(true, known.stamp);
        // Failed attempts are repeated, in whatever order they ended.
        assert!(p.more(4, 7).is_some_and(|ms| ms > 0));
        assert!(!start(&mut p));
        assert_eq!(retry(&mut p, false, 4), 1);
        p.established(true, known.stamp);
        assert_eq!(p.more(4, 7), Some(0));
        assert_eq!(retry(&mut p, false, 4), 1);
        p.established(true, known.stamp);
        assert_eq!(p.more(4, 7), None);
        for _ in 0..3 {
            assert!(!closed(&mut p));
        }
        assert!(closed(&mut p));
        assert!(start(&mut p));
        assert!(!start(&mut p));
    }

    #[test]
    fn one_goes_ahead_and_the_rest_follows() {
        let mut p = peer();
        let known = p.known;
        assert!(start(&mut p));
        // The peer does not answer: that was one attempt.
        assert_eq!(fails(&mut p, None, true, 7), AfterFailure::GiveUp);
        assert_eq!(p.more(4, 7), None);
        // After a closed link or a pause it is one attempt, too.
        assert!(p.hold());
        assert_eq!(retry(&mut p, true, 4), 1);
        p.established(true, known.stamp);
        assert_eq!(p.more(4, 7), Some(0));
        assert_eq!(retry(&mut p, false, 4), 3);
        for _ in 0..3 {
            p.established(true, known.stamp);
            assert_eq!(p.more(4, 7), None);
        }
        // All are gone, and the peer connects: it asks for as many as it wants.
        for _ in 0..4 {
            p.closed(false);
        }
        p.accepting();
        p.established(false, known.stamp);
        assert_eq!(p.more(4, 7), None);
    }

    #[test]
    fn further_connections_wait_for_the_attempt() {
        let mut p = peer();
        let known = p.known;
        for good in [true, false] {
            assert!(start(&mut p));
            p.accepting();
            p.established(true, known.stamp);
            assert_eq!(p.more(4, 7), None);
            if good {
                p.established(false, known.stamp);
            } else {
                assert_eq!(
                    failed(&mut p, false, None, false, 7),
                    AfterFailure::OthersRemain
                );
            }
            assert_eq!(p.more(4, 7), Some(0));
            assert_eq!(retry(&mut p, false, 4), if good { 2 } else { 3 });
            for _ in 0..if good { 2 } else { 3 } {
                p.established(true, known.stamp);
            }
            for _ in 0..4 {
                p.closed(false);
            }
        }
        // Both sides ask at once, and the peer's connection is established first.
        let mut p = peer();
        assert!(start(&mut p));
        p.accepting();
        p.established(false, known.stamp);
        assert_eq!(p.more(4, 7), None);
        p.established(true, known.stamp);
        assert_eq!(p.more(4, 7), Some(0));
        assert_eq!(retry(&mut p, false, 4), 2);
        // It is due, and the peer asks first: its connection counts.
        let mut p = peer();
        assert!(start(&mut p));
        p.established(true, known.stamp);
        assert_eq!(p.more(4, 7), Some(0));
        p.accepting();
        assert_eq!(retry(&mut p, false, 4), 0);
        p.established(false, known.stamp);
        assert_eq!(p.more(4, 7), Some(0));
        assert_eq!(retry(&mut p, false, 4), 2);
        // An administrator closes all, while the rest is under way: it is not made again.
        let mut p = peer();
        assert!(start(&mut p));
        p.established(true, known.stamp);
        assert_eq!(p.more(2, 7), Some(0));
        assert_eq!(retry(&mut p, false, 2), 1);
        p.no_more();
        assert_eq!(fails(&mut p, None, false, 7), AfterFailure::OthersRemain);
        assert_eq!(p.more(2, 7), None);
        assert!(closed(&mut p));
        // One is enough.
        let mut p = all_up(1);
        assert_eq!(p.more(1, 7), None);
    }

    #[test]
    fn a_reject_that_invites_a_retry_gets_one() {
        let mut p = peer();
        assert!(start(&mut p));
        assert_eq!(
            fails(&mut p, Some(RetryWhy::Stale(0)), true, 7),
            AfterFailure::RetryIn(0)
        );
        assert!(!start(&mut p));
        assert_eq!(retry(&mut p, true, 1), 1);
        assert_eq!(retry(&mut p, true, 1), 0);
        assert!(matches!(
            fails(&mut p, Some(RetryWhy::Stale(0)), true, 7),
            AfterFailure::RetryIn(1..)
        ));
        // A request accepted meanwhile stands for the retry.
        p.accepting();
        assert_eq!(retry(&mut p, true, 1), 0);
        // It fails: what waits has its own attempt.
        assert_eq!(failed(&mut p, false, None, false, 7), AfterFailure::GiveUp);
        p.accepting();
        assert!(matches!(
            failed(&mut p, false, None, true, 7),
            AfterFailure::RetryIn(1..)
        ));
        assert_eq!(retry(&mut p, true, 1), 1);
        assert_eq!(fails(&mut p, None, true, 7), AfterFailure::GiveUp);
    }

    /// Tests a slow attempt that was established after all, with no other in flight.
    #[test]
    fn a_peer_that_has_connected_is_waited_for_again() {
        let mut p = peer();
        let known = p.known;
        p.accepting();
        p.slowed();
        assert!(!p.is_under_way());
        p.established(false, known.stamp);
        p.closed(false);
        p.accepting();
        assert!(p.is_under_way() && !p.may_start());
    }

    /// Tests a request that may be forged.
    #[test]
    fn a_request_that_leads_nowhere_does_not_stand_for_ours() {
        let mut p = peer();
        let known = p.known;
        p.accepting();
        assert!(!p.may_start());
        p.slowed();
        // It is not forgotten meanwhile, and taken for no connection that is under way.
        assert!(!p.idle() && !p.is_under_way());
        assert!(start(&mut p));
        p.established(true, known.stamp);
        assert_eq!(p.more(2, 7), Some(0));
        assert_eq!(retry(&mut p, false, 2), 1);
        p.established(true, known.stamp);
        // Also not after another attempt of the peer has been established.
        p.accepting();
        p.established(false, known.stamp);
        for _ in 0..3 {
            p.closed(false);
        }
        assert!(p.may_start());
        assert!(p.hold());
        p.accepting();
        assert!(p.is_due() && !p.is_under_way());
        p.cancel_retry();
        assert!(p.may_start());
        // All attempts end, and nothing of the peer is left.
        for _ in 0..2 {
            assert!(!p.idle());
            let _ = failed(&mut p, false, None, false, 7);
        }
        assert!(p.idle());
        // The parameters of an attempt count only when it is established; those of a reject in between count.
        let other = PeerParams {
            stamp: known.stamp.wrapping_add(1),
            ..known
        };
        p.learn(RetryWhy::Stale(other.stamp));
        p.accepting();
        assert_eq!(p.known, other);
        let newer = PeerParams {
            stamp: other.stamp.wrapping_add(1),
            ..known
        };
        p.learn(RetryWhy::Stale(newer.stamp));
        assert_eq!(p.known, newer);
        p.established(false, known.stamp);
        assert_eq!(p.known.stamp, known.stamp);
    }

    /// Settings were changed here, or at the peer, since these were made.
    #[test]
    fn accepted_depth_is_learnt_while_connections_exist() {
        let depth = |n| QueueDepth::new(n).unwrap_or(QueueDepth::MIN);
        let mut p = all_up(4);
        p.known.depth = depth(32);
        let known = p.known;
        let few = MaxFrags::new(7).unwrap_or(MaxFrags::MAX);
        breaks(&mut p);
        assert!(p.more(4, 7).is_some());
        assert_eq!(retry(&mut p, false, 4), 1);
        p.learn(RetryWhy::SmallerDepth(depth(8)));
        assert_eq!(p.known.depth, depth(8));
        p.learn(RetryWhy::FewerFrags(few));
        assert_eq!(p.known.frags, few);
        // An attempt that began at the same time gets another reject.
        p.learn(RetryWhy::Stale(known.stamp.wrapping_add(1)));
        p.learn(RetryWhy::Race);
        assert_eq!((p.known.depth, p.known.frags), (depth(8), few));
        // The incarnation of the connections is better knowledge.
        assert_eq!(p.known.stamp, known.stamp);
        // An administrator wants less since it was asked.
        p.known.depth = depth(4);
        p.learn(RetryWhy::SmallerDepth(depth(8)));
        assert_eq!(p.known.depth, depth(4));
        // Or the administrator wants more: the parameters of a lost race say nothing of that.
        for _ in 0..3 {
            p.closed(false);
        }
        p.known.depth = depth(64);
        p.learn(RetryWhy::Race);
        assert_eq!(p.known.depth, depth(64));
    }

    /// Tests a peer with ko2iblnd, which rejects as long as a request of its own is in flight, even a lost one, but not
    /// more than 20 times: the next attempt does not wait for the CM's repetition after 4.3 s.
    #[test]
    fn test_failed_attempt_does_not_race_while_it_drains() {
        let mut p = all_up(3);
        breaks(&mut p);
        breaks(&mut p);
        assert!(p.more(3, 7).is_some());
        assert_eq!(retry(&mut p, false, 3), 2);
        assert!(p.connecting());
        p.closing();
        // The other attempt is in flight.
        assert!(p.connecting());
        p.closing();
        assert!(!p.connecting());
        // No further attempt begins before these are released.
        assert!(p.is_under_way());
        for _ in 0..2 {
            let _ = failed(&mut p, true, Some(RetryWhy::Race), true, 7);
            assert!(!p.connecting());
        }
        // The next attempt races again.
        p.closed(false);
        assert!(start(&mut p));
        assert!(p.connecting());
    }

    #[test]
    fn test_lost_race_is_run_again_soon() {
        check_soon(RetryWhy::Race);
    }

    #[test]
    fn test_old_queue_pair_number_is_replaced_soon() {
        check_soon(RetryWhy::StaleQp);
    }

    /// Tests a peer whose CM still knows the number that each attempt beside a connection gets.
    #[test]
    fn a_stale_reject_beside_a_connection_is_no_try() {
        let mut p = all_up(2);
        breaks(&mut p);
        let stale = |p: &mut ReconnectState| {
            assert!(p.more(2, 7).is_some_and(|ms| broke_ms().contains(&ms)));
            assert_eq!(retry(p, false, 2), 1);
            fails(p, Some(RetryWhy::StaleQp), false, 7)
        };
        for _ in 0..RACES_MAX {
            assert_eq!(stale(&mut p), AfterFailure::OthersRemain);
        }
        // Then each is a try, and there is an end.
        let mut tries: u8 = 0;
        while p.more(2, 7).is_some() {
            assert_eq!(retry(&mut p, false, 2), 1);
            let _ = fails(&mut p, Some(RetryWhy::StaleQp), false, 7);
            tries = tries.saturating_add(1);
        }
        assert_eq!(tries, REPLACE_TRIES);
    }

    #[test]
    fn stale_rejects_of_attempts_that_began_together_give_back_one_try() {
        let mut p = all_up(4);
        for _ in 0..3 {
            breaks(&mut p);
        }
        let mut rounds: u8 = 0;
        while p.more(4, 7).is_some() {
            for _ in 0..retry(&mut p, false, 4) {
                let _ = fails(&mut p, Some(RetryWhy::StaleQp), false, 7);
            }
            rounds = rounds.saturating_add(1);
        }
        // In the last of the free rounds, two of the three attempts are free.
        let free = RACES_MAX.div_ceil(3);
        assert_eq!(rounds, free.saturating_add(REPLACE_TRIES));
    }

    fn check_soon(why: RetryWhy) {
        let mut p = peer();
        let lose = |p: &mut ReconnectState, random| match fails(p, Some(why), true, random) {
            AfterFailure::RetryIn(ms) => {
                assert_eq!(retry(p, true, 1), 1);
                ms
            }
            _ => u32::MAX,
        };
        assert!(start(&mut p));
        // Any number, and the one with the longest pause.
        for random in [[0, 6, 997, u32::MAX, 49]; 4].into_iter().flatten() {
            assert!((1..=RACE_PAUSE_MS).contains(&lose(&mut p, random)));
        }
        assert_eq!(p.failures, 0);
        // A peer that rejects more often than that is retried with longer and longer pauses.
        let longest = (0..10).map(|_| lose(&mut p, u32::MAX)).max();
        assert!(longest.is_some_and(|ms| (1000..=BACKOFF_MAX_MS).contains(&ms)));
        let known = p.known;
        p.established(true, known.stamp);
        assert!(closed(&mut p));
        assert!(start(&mut p));
        assert_eq!(lose(&mut p, 6), 7);
    }

    #[test]
    fn a_closed_way_holds_and_recalls() {
        let mut p = peer();
        assert!(p.hold());
        assert!(!p.hold());
        assert!(!p.idle());
        assert!(!p.is_recalled());
        assert_eq!(retry(&mut p, true, 2), 1);
        let known = p.known;
        p.established(true, known.stamp);
        assert_eq!(p.more(2, 7), Some(0));
        assert_eq!(retry(&mut p, false, 2), 1);
        p.established(true, known.stamp);
        assert!(!p.reconnect());
        assert!(!closed(&mut p));
        assert!(!p.reconnect());
        assert!(closed(&mut p));
        assert!(p.reconnect());
        assert!(p.is_recalled() && !p.idle());
        assert_eq!(retry(&mut p, false, 2), 1);
        assert!(!p.is_recalled());
        // The attempt fails: it is not tried for ever.
        assert_eq!(fails(&mut p, None, false, 7), AfterFailure::GiveUp);
        assert!(p.reconnect());
        assert!(!p.idle());
        p.cancel_retry();
        assert!(p.idle());
        assert_eq!(retry(&mut p, false, 2), 0);
    }

    #[test]
    fn broken_connection_is_replaced_while_others_live() {
        let mut p = all_up(4);
        let known = p.known;
        breaks(&mut p);
        assert!(p.more(4, 7).is_some());
        // A second one breaks in the pause: one retry is for both.
        breaks(&mut p);
        assert_eq!(p.more(4, 7), None);
        assert_eq!(retry(&mut p, false, 4), 2);
        // And a third while these are made.
        breaks(&mut p);
        assert_eq!(p.more(4, 7), None);
        for _ in 0..2 {
            p.established(true, known.stamp);
        }
        assert!(p.more(4, 7).is_some_and(|ms| broke_ms().contains(&ms)));
        assert_eq!(retry(&mut p, false, 4), 1);
        // An attempt that fails is made again, with pauses, but not for ever.
        let mut tries = 1;
        loop {
            assert_eq!(fails(&mut p, None, false, 7), AfterFailure::OthersRemain);
            if p.more(4, 7).is_none() {
                break;
            }
            assert_eq!(retry(&mut p, false, 4), 1);
            tries = u8::saturating_add(tries, 1);
        }
        assert_eq!(tries, REPLACE_TRIES);
        assert!(!p.idle());
        // Until another breaks.
        breaks(&mut p);
        assert!(p.more(4, 7).is_some());
        assert_eq!(retry(&mut p, false, 4), 2);
    }

    #[test]
    fn nothing_is_replaced_that_all_went_with() {
        let mut p = all_up(2);
        let known = p.known;
        breaks(&mut p);
        assert!(p.more(2, 7).is_some());
        // The peer has closed them all, and does not want to be asked again.
        breaks(&mut p);
        assert_eq!(p.more(2, 7), None);
        assert_eq!(retry(&mut p, false, 2), 0);
        assert!(p.idle());
        // A message asks for one.
        assert!(start(&mut p));
        p.established(true, known.stamp);
        assert_eq!(p.more(2, 7), Some(0));
        assert!(closed(&mut p));
        // All wanted connections live, whichever side opened them.
        assert!(start(&mut p));
        p.established(true, known.stamp);
        for _ in 0..2 {
            p.accepting();
            p.established(false, known.stamp);
        }
        breaks(&mut p);
        assert_eq!(p.more(2, 7), None);
        assert_eq!(p.more(1, 7), None);
    }

    /// Tests that a message does not wait for the pause before a replacement: no connection is left to replace beside.
    #[test]
    fn a_message_does_not_wait_for_a_replacement() {
        let mut p = all_up(2);
        breaks(&mut p);
        assert!(p.more(2, 7).is_some());
        breaks(&mut p);
        assert!(p.may_start());
        assert!(start(&mut p));
        assert_eq!(retry(&mut p, true, 2), 0);
        // The same where the way is closed.
        let mut p = all_up(2);
        breaks(&mut p);
        assert!(p.more(2, 7).is_some());
        assert!(p.has_conns() && p.is_due());
        assert!(closed(&mut p));
        assert!(!(p.has_conns() && p.is_due()));
        assert!(p.hold());
    }

    /// Tests a peer that accepts a connection and closes the one before, again and again: there is a pause between two
    /// attempts.
    #[test]
    fn a_peer_that_closes_them_one_by_one_is_asked_with_pauses() {
        let mut p = peer();
        let known = p.known;
        assert!(start(&mut p));
        p.established(true, known.stamp);
        assert_eq!(p.more(2, 7), Some(0));
        for _ in 0..10 {
            assert_eq!(retry(&mut p, false, 2), 1);
            breaks(&mut p);
            p.established(true, known.stamp);
            let pause = p.more(2, 7);
            assert!(pause.is_some_and(|ms| broke_ms().contains(&ms)));
        }
        // Without a message it is not asked once all are gone.
        breaks(&mut p);
        assert_eq!(retry(&mut p, false, 2), 0);
        assert!(p.idle());
    }

    /// Tests a peer that keeps the first connection and closes the others, for any other cause.
    #[test]
    fn a_peer_that_keeps_one_only_is_left_with_it() {
        let mut p = peer();
        let known = p.known;
        assert!(start(&mut p));
        p.established(true, known.stamp);
        let mut rounds = 0;
        while p.more(4, 7).is_some() {
            assert_eq!(retry(&mut p, false, 4), 3);
            for _ in 0..3 {
                p.established(true, known.stamp);
                assert!(!closed(&mut p));
            }
            rounds = u8::saturating_add(rounds, 1);
            assert!(rounds < 100);
        }
        assert_eq!(rounds, REPLACE_TRIES);
    }

    /// Tests a peer with a limit of its own: `conns_per_peer` may be 127 here, and the peer takes 32 connections.
    #[test]
    fn a_peer_with_a_limit_is_not_asked_for_all_that_is_missing_again_and_again() {
        let mut p = peer();
        let known = p.known;
        assert!(start(&mut p));
        p.established(true, known.stamp);
        let (mut conns, mut refused) = (1u16, 0u16);
        while p.more(64, 7).is_some() {
            for _ in 0..retry(&mut p, false, 64) {
                if conns < 32 {
                    p.established(true, known.stamp);
                    conns = conns.saturating_add(1);
                } else {
                    assert_eq!(fails(&mut p, None, false, 7), AfterFailure::OthersRemain);
                    refused = refused.saturating_add(1);
                }
            }
        }
        assert_eq!(conns, 32);
        // All of the first round, and then one at a time.
        assert_eq!(refused, 31u16.saturating_add(REPLACE_TRIES.into()));
        // If the limit was exceeded for a moment only, the others follow.
        breaks(&mut p);
        assert!(p.more(34, 7).is_some());
        assert_eq!(retry(&mut p, false, 34), 3);
        p.established(true, known.stamp);
        for _ in 0..2 {
            assert_eq!(fails(&mut p, None, false, 7), AfterFailure::OthersRemain);
        }
        assert!(p.more(34, 7).is_some());
        assert_eq!(retry(&mut p, false, 34), 1);
        p.established(true, known.stamp);
        assert_eq!(p.more(34, 7), Some(0));
        assert_eq!(retry(&mut p, false, 34), 1);
    }

    /// Tests that no connection is added to a peer that was deleted, or whose connections were closed, without a
    /// message.
    #[test]
    fn closed_peer_gets_no_additional_connection() {
        // Established when it had been ended already.
        let mut p = peer();
        let known = p.known;
        assert!(start(&mut p));
        p.no_more();
        p.established(true, known.stamp);
        assert_eq!(p.more(4, 7), None);
        assert!(closed(&mut p));
        // Some end sooner than others, and the peer ends some, too.
        let mut p = all_up(4);
        breaks(&mut p);
        assert!(p.more(4, 7).is_some());
        p.no_more();
        assert!(!p.is_due());
        breaks(&mut p);
        assert_eq!(p.more(4, 7), None);
        p.closed(false);
        assert!(closed(&mut p));
        // A message is reason enough for all of them.
        assert!(start(&mut p));
        p.established(true, known.stamp);
        assert_eq!(p.more(4, 7), Some(0));
    }

    #[test]
    fn the_pause_grows_and_is_bounded() {
        assert_eq!(backoff(0, 12345), 0);
        for failures in 1..100 {
            for random in [0, 1, 49, 50, 9_999, u32::MAX] {
                let pause = backoff(failures, random);
                assert!(pause >= 1);
                assert!(pause <= BACKOFF_MAX_MS);
            }
        }
        assert!(backoff(1, u32::MAX) <= 50);
    }
}
