// SPDX-License-Identifier: GPL-2.0

//! Log of closed connections and rejected requests: the last events one by one, all events by cause, and the history of
//! each peer as long as there is room.
//!
//! The kernel log has each cause only once in a while, because a peer could flood it; this log counts all events. It
//! has a fixed size, in memory of the caller. Unknown hosts can push out only events of other unknown hosts. A peer
//! that connects and closes all the time does not push out events of others: of similar events of one peer, only the
//! last ones are kept, with the number of earlier ones.

use core::ops::DerefMut;

use crate::proto::{
    cause::{
        side,
        Cause,
        NAMES as CAUSES, //
    },
    nid::Nid,
    numbered,
    reject::CAUSE_NAMES as REFUSALS, //
};

numbered! {
    /// Kind of an event. Events are counted by kind and cause; rejects and ends are also kept one by one.
    EventKind: u8 {
        /// A connection ended that had been established.
        Closed = 0 "closed",
        /// An attempt ended without a connection, or never began because memory or a device was missing.
        Failed = 1 "failed",
        /// A message was returned to LNet with an error.
        Messages = 2 "messages",
        /// A peer asked for a connection, and this node rejected it.
        Refused = 3 "refused",
        Others = 4 "other",
    }
}

/// End of a connection, or rejected request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CloseEvent {
    /// Time in milliseconds since the epoch; of the last event if there were several.
    pub at_ms: u64,
    pub peer: Option<Nid>,
    pub what: EventKind,
    /// Whether this node had asked for the connection.
    pub active: bool,
    /// Out of [`side`].
    pub by: &'static str,
    /// Out of [`CAUSES`], or [`REFUSALS`] for [`EventKind::Refused`].
    pub why: &'static str,
    /// Detail, `-` if there is none: the reason in the peer's reject.
    pub detail: &'static str,
    /// NID that was asked for, if that was wrong in the request.
    pub asked: Option<Nid>,
    /// Number of similar events: this one, and earlier ones that it replaced.
    pub times: u32,
    /// Number of this event, or of the last of several, among all recorded events.
    pub number: u64,
}

impl CloseEvent {
    /// Unused entry, and a new event as long as it is not recorded.
    pub const EMPTY: Self = Self {
        at_ms: 0,
        peer: None,
        what: EventKind::Closed,
        active: false,
        by: side::LOCAL,
        why: "?",
        detail: "-",
        asked: None,
        times: 0,
        number: 0,
    };

    /// Returns whether it is recorded and similar to `other`. The peer chooses the NID that it asks for, so that does
    /// not count.
    fn is_like(&self, other: &Self) -> bool {
        // The most selective fields first.
        (self.peer, self.what, self.why) == (other.peer, other.what, other.why) && self.times > 0
    }
}

/// Number of similar events that are kept one by one.
pub const ALIKE: usize = 8;

/// Number of similar events that the kernel log has one by one.
const TOLD: u32 = 4;

/// Milliseconds after which another similar event is logged again.
const NEWS_MS: u64 = 60_000;

/// Earlier events that are similar to a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// Number of them with the new event, not counting forgotten ones.
    pub times: u32,
    /// Milliseconds since the previous one.
    since_ms: Option<u64>,
}

impl Recorded {
    /// Returns whether to log the event: of a series of similar events the first ones, and then the 8th, the 16th and
    /// so on.
    pub fn is_news(&self) -> bool {
        let later = self.since_ms.is_none_or(|ms| ms >= NEWS_MS);
        later || self.times <= TOLD || self.times.is_power_of_two()
    }

    /// Returns whether to log the number of similar events.
    pub fn are_many(&self) -> bool {
        self.times > TOLD
    }
}

/// The last events, in the memory `S`.
pub struct CloseLog<S> {
    /// In no order.
    events: S,
    written: u64,
}

impl<S: DerefMut<Target = [CloseEvent]>> CloseLog<S> {
    /// Creates an empty log in memory that has unused entries.
    pub const fn new(events: S) -> Self {
        Self { events, written: 0 }
    }

    /// Returns the number of events recorded so far, including events that were replaced.
    pub const fn written(&self) -> u64 {
        self.written
    }

    /// Records an event, and returns what is known of similar events. A reject that is similar to the newest event is
    /// counted there, because a rejected peer tries again and again. Of other similar events [`ALIKE`] are kept: the
    /// oldest of them is replaced, and counted with the next one. Otherwise an unused entry or the oldest event is
    /// replaced.
    pub fn note(&mut self, event: CloseEvent) -> Recorded {
        let event = CloseEvent {
            times: 1,
            number: self.written,
            ..event
        };
        self.written = self.written.saturating_add(1);
        let (mut kept, mut times, mut newest) = (0usize, event.times, None::<&CloseEvent>);
        for similar in self.events.iter().filter(|e| e.is_like(&event)) {
            kept = kept.saturating_add(1);
            times = times.saturating_add(similar.times);
            if newest.is_none_or(|newest| newest.number < similar.number) {
                newest = Some(similar);
            }
        }
        let noted = Recorded {
            times,
            since_ms: newest.map(|last| event.at_ms.saturating_sub(last.at_ms)),
        };
        let repeats = newest.is_some_and(|last| {
            last.number.saturating_add(1) == event.number && last.asked == event.asked
        });
        if event.what == EventKind::Refused && repeats {
            let recorded = self.events.iter_mut().filter(|e| e.times > 0);
            if let Some(newest) = recorded.max_by_key(|e| e.number) {
                newest.times = newest.times.saturating_add(event.times);
                newest.at_ms = event.at_ms;
                newest.number = event.number;
            }
            return noted;
        }
        let full = kept >= ALIKE;
        let others = self
            .events
            .iter_mut()
            .filter(|e| !full || e.is_like(&event));
        let Some(place) = others.min_by_key(|e| (e.times > 0, e.number)) else {
            return noted;
        };
        let gone = core::mem::replace(place, event);
        if full {
            let similar = self.events.iter_mut().filter(|e| e.is_like(&event));
            // The new event has the highest number.
            if let Some(next) = similar.min_by_key(|e| e.number) {
                next.times = next.times.saturating_add(gone.times);
            }
        }
        noted
    }

    /// Returns the first recorded event with this number or a later one.
    pub fn from(&self, number: u64) -> Option<CloseEvent> {
        let later = self
            .events
            .iter()
            .filter(|e| e.times > 0 && e.number >= number);
        later.min_by_key(|e| e.number).copied()
    }
}

/// Ends of a peer's connections, including those of earlier peer objects of the same address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerHistory {
    addr: u32,
    pub closed: u32,
    pub failed: u32,
    /// Ended connections and attempts, by cause; each count stays at its maximum.
    ends: [u16; CAUSES.len()],
    /// The peer did not answer the last attempt of this node.
    pub is_silent: bool,
    pub last: &'static str,
    /// Time of that in milliseconds since the epoch; 0 in an unused record.
    pub at_ms: u64,
}

impl PeerHistory {
    pub const EMPTY: Self = Self {
        addr: 0,
        closed: 0,
        failed: 0,
        ends: [0; CAUSES.len()],
        is_silent: false,
        last: "none",
        at_ms: 0,
    };

    fn is_of(&self, addr: u32) -> bool {
        self.at_ms != 0 && self.addr == addr
    }

    /// Yields the causes, and the number of connections and attempts that ended for each.
    pub fn ends(&self) -> impl Iterator<Item = (&'static str, u16)> + '_ {
        let all = CAUSES.iter().copied().zip(self.ends.iter().copied());
        all.filter(|(_, n)| *n > 0)
    }
}

/// Number of records of a set, of which the oldest is replaced.
pub const WAYS: usize = 8;

/// Returns the number of the set of `addr` in so many records.
fn set_of(addr: u32, records: usize) -> Option<usize> {
    // Addresses of a cluster differ in their low bits.
    let hash = addr ^ (addr >> 8) ^ (addr >> 16);
    usize::try_from(hash).ok()?.checked_rem(records / WAYS)
}

/// Records in `records`, whose length is a multiple of [`WAYS`], that a connection of `addr` ended, or with `up` false
/// an attempt; of this node if `active`.
pub fn record(
    records: &mut [PeerHistory],
    addr: u32,
    active: bool,
    up: bool,
    cause: Cause,
    at_ms: u64,
) {
    let set = set_of(addr, records.len());
    let mut sets = records.chunks_exact_mut(WAYS);
    let set = set.and_then(|set| sets.nth(set)).unwrap_or_default();
    // The record of the address, otherwise an unused one, otherwise the oldest.
    let Some(place) = set.iter_mut().min_by_key(|r| (!r.is_of(addr), r.at_ms)) else {
        return;
    };
    if !place.is_of(addr) {
        *place = PeerHistory {
            addr,
            ..PeerHistory::EMPTY
        };
    }
    place.closed = place.closed.saturating_add(up.into());
    place.failed = place.failed.saturating_add((!up).into());
    if let Some(n) = place.ends.get_mut(cause.number()) {
        *n = n.saturating_add(1);
    }
    place.last = cause.name();
    // Any host may have sent a request that failed.
    if active || up {
        let unanswered = matches!(cause, Cause::ConnectTimeout | Cause::Unreachable);
        place.is_silent = unanswered && !up;
    }
    place.at_ms = at_ms.max(1);
}

pub fn recorded(records: &[PeerHistory], addr: u32) -> Option<PeerHistory> {
    let mut sets = records.chunks_exact(WAYS);
    let set = sets.nth(set_of(addr, records.len())?)?;
    set.iter().find(|r| r.is_of(addr)).copied()
}

#[cfg(any(test, ro2iblnd_kunit))]
#[cfg_attr(ro2iblnd_kunit, ::kernel::macros::kunit_tests(ro2ib_close_log))]
mod tests {
    use super::*;
    use crate::proto::reject::RejectWhy;

    fn closed(at_ms: u64) -> CloseEvent {
        CloseEvent {
            at_ms,
            what: EventKind::Closed,
            why: "PeerClosed",
            ..CloseEvent::EMPTY
        }
    }

    fn refused(at_ms: u64, peer: u32) -> CloseEvent {
        CloseEvent {
            at_ms,
            peer: Some(Nid::new(0, peer)),
            what: EventKind::Refused,
            why: "Depth",
            ..CloseEvent::EMPTY
        }
    }

    fn of(trail: &CloseLog<&mut [CloseEvent]>, number: u64) -> Option<(u64, u32, u64)> {
        let event = trail.from(number)?;
        Some((event.number, event.times, event.at_ms))
    }

    #[test]
    fn the_oldest_event_makes_room() {
        let mut places = [CloseEvent::EMPTY; 4];
        let mut trail = CloseLog::new(places.as_mut_slice());
        assert_eq!(trail.from(0), None);
        for i in 0..10 {
            trail.note(closed(i));
        }
        assert_eq!(trail.written(), 10);
        for i in 0..6 {
            assert_eq!(of(&trail, i), Some((6, 1, 6)));
        }
        for i in 6..10 {
            assert_eq!(of(&trail, i), Some((i, 1, i)));
        }
        assert_eq!(trail.from(10), None);
    }

    #[test]
    fn refusals_that_are_alike_are_one() {
        let mut places = [CloseEvent::EMPTY; 4];
        let mut trail = CloseLog::new(places.as_mut_slice());
        for i in 0..1000 {
            trail.note(refused(i, 1));
        }
        trail.note(refused(1000, 2));
        trail.note(refused(1001, 1));
        assert_eq!(trail.written(), 1002);
        assert_eq!(of(&trail, 0), Some((999, 1000, 999)));
        assert_eq!(of(&trail, 1000), Some((1000, 1, 1000)));
        assert_eq!(of(&trail, 1001), Some((1001, 1, 1001)));
        // Closes are not merged: the time of each of the last ones is kept.
        trail.note(closed(1002));
        trail.note(closed(1003));
        assert_eq!(of(&trail, 1002), Some((1002, 1, 1002)));
        assert_eq!(of(&trail, 1003), Some((1003, 1, 1003)));
    }

    #[test]
    fn one_peer_does_not_push_out_the_ends_of_others() {
        let mut places = [CloseEvent::EMPTY; 16];
        let mut trail = CloseLog::new(places.as_mut_slice());
        let by = |peer: u32, at_ms: u64| CloseEvent {
            peer: Some(Nid::new(0, peer)),
            ..closed(at_ms)
        };
        trail.note(by(1, 0));
        trail.note(by(2, 1));
        for i in 2..1000 {
            trail.note(by(3, i));
        }
        assert_eq!(of(&trail, 0), Some((0, 1, 0)));
        assert_eq!(of(&trail, 1), Some((1, 1, 1)));
        // The last ones are kept one by one, and all are counted.
        assert_eq!(of(&trail, 2), Some((992, 991, 992)));
        for i in 993..1000 {
            assert_eq!(of(&trail, i), Some((i, 1, i)));
        }
        // Nor do two peers that are rejected in turns.
        for i in 1000..3000u32 {
            trail.note(refused(u64::from(i), i % 2));
        }
        assert_eq!(trail.written(), 3000);
        let there = places.iter().filter(|e| e.times > 0);
        assert_eq!(there.filter(|e| e.what == EventKind::Refused).count(), 16);
    }

    #[test]
    fn repeated_closes_are_logged_ever_less_often() {
        let mut places = [CloseEvent::EMPTY; 16];
        let mut trail = CloseLog::new(places.as_mut_slice());
        let mut at_ms = 0u64;
        let said = (1..=1024).filter(|times| {
            at_ms = at_ms.saturating_add(100);
            let noted = trail.note(closed(at_ms));
            assert_eq!(noted.times, *times);
            noted.is_news()
        });
        // 1 to 4, 8, 16, ... 1024.
        assert_eq!(said.count(), 12);
        // A rare event is logged each time.
        for _ in 0..20 {
            at_ms = at_ms.saturating_add(60_000);
            assert!(trail.note(closed(at_ms)).is_news());
        }
    }

    #[test]
    fn no_room_is_no_fault() {
        let mut trail = CloseLog::new([].as_mut_slice());
        trail.note(closed(1));
        assert_eq!(trail.from(0), None);
        record(&mut [], 1, true, true, Cause::PeerClosed, 1);
        assert_eq!(recorded(&[], 1), None);
        let mut few = [PeerHistory::EMPTY; WAYS - 1];
        record(&mut few, 1, true, true, Cause::PeerClosed, 1);
        assert_eq!(recorded(&few, 1), None);
    }

    #[test]
    fn records_are_kept_by_peer() {
        let mut records = [PeerHistory::EMPTY; 4 * WAYS];
        record(&mut records, 7, true, true, Cause::PeerClosed, 5);
        record(&mut records, 7, true, false, Cause::Unreachable, 6);
        record(&mut records, 8, true, true, Cause::Flushed, 7);
        let seven = recorded(&records, 7).unwrap_or(PeerHistory::EMPTY);
        assert_eq!(
            (seven.closed, seven.failed, seven.last, seven.at_ms),
            (1, 1, "Unreachable", 6)
        );
        record(&mut records, 7, true, true, Cause::PeerClosed, 8);
        let ends: [Option<(&str, u16)>; 3] = {
            let seven = recorded(&records, 7).unwrap_or(PeerHistory::EMPTY);
            let mut ends = seven.ends();
            [ends.next(), ends.next(), ends.next()]
        };
        assert_eq!(
            ends,
            [Some(("PeerClosed", 2)), Some(("Unreachable", 1)), None]
        );
        assert_eq!(recorded(&records, 9), None);
        // Address 0 does not match an unused record.
        assert_eq!(recorded(&records, 0), None);
    }

    #[test]
    fn unresponsive_peer_is_recorded_until_it_answers() {
        let mut records = [PeerHistory::EMPTY; 4 * WAYS];
        let mut is_silent = |active, up, cause| {
            record(&mut records, 7, active, up, cause, 5);
            recorded(&records, 7).is_some_and(|record| record.is_silent)
        };
        // A request in the name of the peer says nothing about it.
        assert!(!is_silent(false, false, Cause::ConnectTimeout));
        for cause in [Cause::ConnectTimeout, Cause::Unreachable] {
            assert!(is_silent(true, false, cause));
            assert!(is_silent(false, false, Cause::ConnectFailed));
            assert!(!is_silent(true, false, Cause::Refused));
            assert!(is_silent(true, false, cause));
            assert!(!is_silent(false, true, Cause::TransportRetry));
        }
    }

    #[test]
    fn the_oldest_record_of_a_set_makes_room() {
        let mut records = [PeerHistory::EMPTY; 4 * WAYS];
        let first = 1u32;
        // All of them in the same set.
        let peers = [0u32, 1, 2, 3, 4, 5, 6, 7, 8].map(|n| first.wrapping_add(n.wrapping_mul(4)));
        for (at, addr) in peers.iter().enumerate() {
            let at_ms = u64::try_from(at).unwrap_or(0).wrapping_add(1);
            record(&mut records, *addr, true, true, Cause::PeerClosed, at_ms);
        }
        assert_eq!(recorded(&records, first), None);
        assert!(peers
            .iter()
            .skip(1)
            .all(|addr| recorded(&records, *addr).is_some()));
        for addr in 0..100_000 {
            record(&mut records, addr, true, true, Cause::PeerClosed, 9);
        }
    }

    #[test]
    fn names_are_words() {
        for name in CAUSES.iter().chain(REFUSALS.iter()) {
            assert!(!name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric()));
        }
        assert_eq!(Cause::Told(-5).name(), "Told");
        assert_eq!(Cause::DeadlineAnswer.name(), "DeadlineAnswer");
        assert_eq!(RejectWhy::EARLY.name(), "Early");
    }

    /// Tests the table of statuses. A local status lowers the health of our NI, over which LNet reaches every other
    /// peer; at 0 LNet 2.17 says that the NI is down. So it is kept for what this node, its device or its
    /// administrator did.
    #[test]
    fn close_by_the_peer_does_not_lower_local_health() {
        use crate::proto::cause::{
            Health,
            ALL, //
        };
        for cause in ALL {
            for posted in [false, true] {
                let local = matches!(
                    cause.outcome(posted).health,
                    Health::LocalDropped | Health::LocalAborted | Health::LocalError
                );
                let ours = match cause.initiator() {
                    side::DEVICE | side::OPERATOR | side::LOCAL => true,
                    // It may have been our address that moved.
                    side::UNKNOWN => cause == Cause::AddressChanged,
                    _ => false,
                };
                // KUnit's takes no message.
                assert!(ours || !local);
            }
        }
        // Such a message can be sent again all the same.
        for cause in [Cause::PeerClosed, Cause::Flushed, Cause::Overtaken] {
            assert_eq!(cause.outcome(false).health, Health::RemoteDropped);
            assert!(cause.has(Cause::SPARES_MESSAGES | Cause::IS_RETRYABLE));
        }
    }
}
