// SPDX-License-Identifier: GPL-2.0

//! What is kept of connections that are over and of requests that were refused: the last of them one
//! by one, all of them by cause, and those of a peer as long as there is room.
//!
//! The log says each cause once in a while, because a peer can make it say more; here nothing is left
//! out. All of it is of fixed size: memory is the caller's, and a stranger can push out no more than
//! what other strangers did.

use core::fmt;

use super::{
    cause::Cause,
    nid::Nid,
    refusal::Cause as Refusal,
    reject::{
        Refused,
        RejectWhy, //
    }, //
};

/// What became of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// It was up, and ended.
    Closed,
    /// An attempt ended without one, or never began for want of memory or of a device.
    Failed,
    /// A peer asked for one, and we refused.
    Refused,
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Closed => "closed",
            Self::Failed => "failed",
            Self::Refused => "refused",
        })
    }
}

/// Who began the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// This node: a limit was reached, something could not be had, or the peer could not be believed.
    Us,
    /// The peer, or its device: it said so.
    Peer,
    /// Nobody: the other side was not heard any more.
    Path,
    /// The device here.
    Device,
    /// The administrator of this node, or the shutdown of the NI.
    Operator,
    /// It cannot be told.
    Unknown,
}

impl By {
    /// Who began what ended for that cause.
    pub const fn of(cause: Cause) -> Self {
        match cause {
            Cause::Shutdown | Cause::AdminClose | Cause::PeerDeleted | Cause::Denied => {
                Self::Operator
            }
            Cause::PeerClosed
            | Cause::Refused
            | Cause::RemoteFault
            | Cause::Overtaken
            | Cause::NoListener
            | Cause::Told(_) => Self::Peer,
            Cause::Unreachable | Cause::ConnectTimeout | Cause::TransportRetry => Self::Path,
            Cause::LocalFault
            | Cause::DeviceGone
            | Cause::LinkDown
            | Cause::AddressChanged
            | Cause::Moved => Self::Device,
            Cause::ConnectFailed | Cause::Flushed => Self::Unknown,
            Cause::PeerRestarted
            | Cause::Protocol
            | Cause::NoResources
            | Cause::DeadlineConnecting
            | Cause::DeadlineQueued
            | Cause::DeadlineSending
            | Cause::DeadlineAnswer
            | Cause::Local(_) => Self::Us,
        }
    }
}

impl fmt::Display for By {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Us => "us",
            Self::Peer => "peer",
            Self::Path => "path",
            Self::Device => "device",
            Self::Operator => "operator",
            Self::Unknown => "unknown",
        })
    }
}

/// Names of [`Cause`] without spaces, for programs.
pub const CAUSES: [&str; 28] = [
    "Shutdown",
    "AdminClose",
    "PeerClosed",
    "PeerRestarted",
    "Protocol",
    "Unreachable",
    "Refused",
    "ConnectFailed",
    "ConnectTimeout",
    "NoResources",
    "LocalFault",
    "RemoteFault",
    "TransportRetry",
    "Flushed",
    "DeadlineConnecting",
    "DeadlineQueued",
    "DeadlineSending",
    "DeadlineAnswer",
    "DeviceGone",
    "AddressChanged",
    "Told",
    "Local",
    "LinkDown",
    "Overtaken",
    "Moved",
    "PeerDeleted",
    "Denied",
    "NoListener",
];

/// Where a cause is in [`CAUSES`].
pub const fn cause_number(cause: Cause) -> usize {
    match cause {
        Cause::Shutdown => 0,
        Cause::AdminClose => 1,
        Cause::PeerClosed => 2,
        Cause::PeerRestarted => 3,
        Cause::Protocol => 4,
        Cause::Unreachable => 5,
        Cause::Refused => 6,
        Cause::ConnectFailed => 7,
        Cause::ConnectTimeout => 8,
        Cause::NoResources => 9,
        Cause::LocalFault => 10,
        Cause::RemoteFault => 11,
        Cause::TransportRetry => 12,
        Cause::Flushed => 13,
        Cause::DeadlineConnecting => 14,
        Cause::DeadlineQueued => 15,
        Cause::DeadlineSending => 16,
        Cause::DeadlineAnswer => 17,
        Cause::DeviceGone => 18,
        Cause::AddressChanged => 19,
        Cause::Told(_) => 20,
        Cause::Local(_) => 21,
        Cause::LinkDown => 22,
        Cause::Overtaken => 23,
        Cause::Moved => 24,
        Cause::PeerDeleted => 25,
        Cause::Denied => 26,
        Cause::NoListener => 27,
    }
}

/// The name of a cause.
pub fn cause_name(cause: Cause) -> &'static str {
    CAUSES.get(cause_number(cause)).copied().unwrap_or("?")
}

/// Names of the reasons to refuse a request, for programs.
pub const REFUSALS: [&str; 23] = [
    "Port",
    "Wire",
    "OldVersion",
    "NotAConnReq",
    "ForeignDestination",
    "ForeignSource",
    "NotReady",
    "NoSuchNi",
    "OtherNet",
    "OwnNid",
    "SourceAddress",
    "StaleDestination",
    "NoDepth",
    "Depth",
    "NoFrags",
    "Frags",
    "MsgSize",
    "StalePeer",
    "Race",
    "NoResources",
    "AcceptFailed",
    "Denied",
    "TooMany",
];

/// Where a reason is in [`REFUSALS`].
pub const fn refusal_number(why: &Refusal) -> usize {
    match why {
        Refusal::Port(_) => 0,
        Refusal::Wire(_) => 1,
        Refusal::OldVersion => 2,
        Refusal::NotAConnReq => 3,
        Refusal::ForeignDestination => 4,
        Refusal::ForeignSource => 5,
        Refusal::NotReady => 6,
        Refusal::NoSuchNi(_) => 7,
        Refusal::OtherNet => 8,
        Refusal::OwnNid => 9,
        Refusal::SourceAddress => 10,
        Refusal::StaleDestination => 11,
        Refusal::NoDepth => 12,
        Refusal::Depth(_) => 13,
        Refusal::NoFrags => 14,
        Refusal::Frags(_) => 15,
        Refusal::MsgSize(_) => 16,
        Refusal::StalePeer => 17,
        Refusal::Race => 18,
        Refusal::NoResources(_) => 19,
        Refusal::AcceptFailed => 20,
        Refusal::Denied => 21,
        Refusal::TooMany => 22,
    }
}

/// Why the peer refused us, in one word.
pub const fn rejected_name(why: &Refused) -> &'static str {
    match why {
        Refused::NoListener => "NoListener",
        Refused::Cm(_) => "Cm",
        Refused::Malformed(_) => "Malformed",
        Refused::OldVersion => "OldVersion",
        Refused::NoAgreement(_) => "NoAgreement",
        Refused::Reason(why) => match why {
            RejectWhy::ConnRace => "ConnRace",
            RejectWhy::NoResources => "NoResources",
            RejectWhy::Fatal => "Fatal",
            RejectWhy::ConnUncompat => "ConnUncompat",
            RejectWhy::ConnStale => "ConnStale",
            RejectWhy::RdmaFrags => "RdmaFrags",
            RejectWhy::MsgQueueSize => "MsgQueueSize",
            RejectWhy::InvalidSrvId => "InvalidSrvId",
            RejectWhy::Early => "Early",
            RejectWhy::Unknown(_) => "Unknown",
        },
    }
}

/// One end of a connection, or one refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Milliseconds since the epoch; of the last one if there were several.
    pub at_ms: u64,
    /// The peer, if it is known.
    pub peer: Option<Nid>,
    /// What happened.
    pub what: What,
    /// Whether we had asked for the connection.
    pub active: bool,
    /// Who began.
    pub by: By,
    /// Out of [`CAUSES`], or [`REFUSALS`] for [`What::Refused`].
    pub why: &'static str,
    /// More about it, `-` if there is none: what the peer said when it refused.
    pub detail: &'static str,
    /// The NID that was asked for, if that is what was wrong with the request.
    pub asked: Option<Nid>,
    /// How many of them, one after the other.
    pub times: u32,
}

impl Event {
    /// A place where nothing is yet.
    pub const EMPTY: Self = Self {
        at_ms: 0,
        peer: None,
        what: What::Closed,
        active: false,
        by: By::Unknown,
        why: "?",
        detail: "-",
        asked: None,
        times: 0,
    };

    fn is_like(&self, other: &Self) -> bool {
        (self.what, self.peer, self.why, self.asked)
            == (other.what, other.peer, other.why, other.asked)
    }
}

/// The last events, in memory of the caller's: always the same slice.
#[derive(Clone, Copy, Debug, Default)]
pub struct Trail {
    /// Places written so far.
    written: u64,
}

impl Trail {
    /// Nothing happened yet.
    pub const fn new() -> Self {
        Self { written: 0 }
    }

    /// Places written so far, those included that were written over since.
    pub const fn written(&self) -> u64 {
        self.written
    }

    /// Takes down an event. A refusal that is like the newest one is counted there, for a peer that is
    /// refused tries again and again.
    pub fn note(&mut self, places: &mut [Event], event: Event) {
        let newest = self.written.checked_sub(1);
        if let Some(newest) = newest.and_then(|n| at(n, places.len())) {
            if let Some(newest) = places.get_mut(newest) {
                if event.what == What::Refused && newest.is_like(&event) {
                    newest.times = newest.times.saturating_add(event.times);
                    newest.at_ms = event.at_ms;
                    return;
                }
            }
        }
        if let Some(place) = at(self.written, places.len()).and_then(|at| places.get_mut(at)) {
            *place = event;
            self.written = self.written.saturating_add(1);
        }
    }

    /// The event with that number, of those that are still there: the first number to ask for is
    /// [`Trail::first`].
    pub fn get(&self, places: &[Event], number: u64) -> Option<Event> {
        if number >= self.written || number < self.first(places.len()) {
            return None;
        }
        places.get(at(number, places.len())?).copied()
    }

    /// Number of the oldest event that is still there, if there are `places`.
    pub fn first(&self, places: usize) -> u64 {
        self.written
            .saturating_sub(u64::try_from(places).unwrap_or(u64::MAX))
    }
}

fn at(number: u64, places: usize) -> Option<usize> {
    let places = u64::try_from(places).ok()?;
    usize::try_from(number.checked_rem(places)?).ok()
}

/// What a peer's connections ended of, also of earlier objects of that peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    addr: u32,
    /// Connections that were up and ended.
    pub closed: u32,
    /// Attempts that ended without a connection.
    pub failed: u32,
    /// Both, by cause; each stays at the largest number when it is reached.
    ends: [u16; CAUSES.len()],
    /// The last cause.
    pub last: &'static str,
    /// When that was, in milliseconds since the epoch; 0 if this is nobody's.
    pub at_ms: u64,
}

impl Record {
    /// Nobody's.
    pub const EMPTY: Self = Self {
        addr: 0,
        closed: 0,
        failed: 0,
        ends: [0; CAUSES.len()],
        last: "none",
        at_ms: 0,
    };

    /// The causes there were, and how often: connections and attempts together.
    pub fn ends(&self) -> impl Iterator<Item = (&'static str, u16)> + '_ {
        let all = CAUSES.iter().copied().zip(self.ends.iter().copied());
        all.filter(|(_, n)| *n > 0)
    }
}

/// Places among which the oldest makes room.
pub const WAYS: usize = 8;

fn places_of(addr: u32, records: usize) -> usize {
    // Addresses of a cluster differ in their low bits.
    let hash = addr ^ (addr >> 8) ^ (addr >> 16);
    let sets = records.checked_div(WAYS).unwrap_or(0);
    usize::try_from(hash)
        .unwrap_or(0)
        .checked_rem(sets)
        .unwrap_or(0)
}

/// Takes down in `records`, a multiple of [`WAYS`], that a connection of `addr` ended, or with `up`
/// false an attempt.
pub fn record(records: &mut [Record], addr: u32, up: bool, cause: Cause, at_ms: u64) {
    let set = places_of(addr, records.len());
    let Some(set) = records.chunks_exact_mut(WAYS).nth(set) else {
        return;
    };
    let known = set.iter().position(|r| r.at_ms != 0 && r.addr == addr);
    let oldest = || {
        let by_age = set.iter().enumerate().min_by_key(|(_, r)| r.at_ms);
        by_age.map(|(i, _)| i)
    };
    let Some(place) = known.or_else(oldest) else {
        return;
    };
    let Some(place) = set.get_mut(place) else {
        return;
    };
    if known.is_none() {
        *place = Record {
            addr,
            ..Record::EMPTY
        };
    }
    let count = if up {
        &mut place.closed
    } else {
        &mut place.failed
    };
    *count = count.saturating_add(1);
    if let Some(n) = place.ends.get_mut(cause_number(cause)) {
        *n = n.saturating_add(1);
    }
    place.last = cause_name(cause);
    place.at_ms = at_ms.max(1);
}

/// What was taken down of `addr`.
pub fn recorded(records: &[Record], addr: u32) -> Option<Record> {
    let set = records
        .chunks_exact(WAYS)
        .nth(places_of(addr, records.len()))?;
    set.iter().find(|r| r.at_ms != 0 && r.addr == addr).copied()
}

#[cfg(any(test, ro2iblnd_kunit))]
#[cfg_attr(ro2iblnd_kunit, ::kernel::macros::kunit_tests(ro2iblnd_proto_trail))]
mod tests {
    use super::*;

    fn closed(at_ms: u64) -> Event {
        Event {
            at_ms,
            what: What::Closed,
            why: "PeerClosed",
            times: 1,
            ..Event::EMPTY
        }
    }

    fn refused(at_ms: u64, peer: u32) -> Event {
        Event {
            at_ms,
            peer: Some(Nid::new(0, peer)),
            what: What::Refused,
            why: "Depth",
            times: 1,
            ..Event::EMPTY
        }
    }

    #[test]
    fn the_oldest_event_makes_room() {
        let (mut trail, mut places) = (Trail::new(), [Event::EMPTY; 4]);
        assert_eq!(trail.get(&places, 0), None);
        for i in 0..10 {
            trail.note(&mut places, closed(i));
        }
        assert_eq!(trail.written(), 10);
        assert_eq!(trail.first(places.len()), 6);
        for i in 0..6 {
            assert_eq!(trail.get(&places, i), None);
        }
        for i in 6..10 {
            assert_eq!(trail.get(&places, i), Some(closed(i)));
        }
        assert_eq!(trail.get(&places, 10), None);
    }

    #[test]
    fn refusals_that_are_alike_are_one() {
        let (mut trail, mut places) = (Trail::new(), [Event::EMPTY; 4]);
        for i in 0..1000 {
            trail.note(&mut places, refused(i, 1));
        }
        trail.note(&mut places, refused(1000, 2));
        trail.note(&mut places, refused(1001, 1));
        assert_eq!(trail.written(), 3);
        let first = trail.get(&places, 0).unwrap_or(Event::EMPTY);
        assert_eq!((first.times, first.at_ms), (1000, 999));
        // Closes are not: when each of them was says something.
        trail.note(&mut places, closed(1002));
        trail.note(&mut places, closed(1003));
        assert_eq!(trail.written(), 5);
    }

    #[test]
    fn no_room_is_no_fault() {
        let mut trail = Trail::new();
        trail.note(&mut [], closed(1));
        assert_eq!(trail.written(), 0);
        assert_eq!(trail.get(&[], 0), None);
        record(&mut [], 1, true, Cause::PeerClosed, 1);
        assert_eq!(recorded(&[], 1), None);
        let mut few = [Record::EMPTY; WAYS - 1];
        record(&mut few, 1, true, Cause::PeerClosed, 1);
        assert_eq!(recorded(&few, 1), None);
    }

    #[test]
    fn records_are_kept_by_peer() {
        let mut records = [Record::EMPTY; 4 * WAYS];
        record(&mut records, 7, true, Cause::PeerClosed, 5);
        record(&mut records, 7, false, Cause::Unreachable, 6);
        record(&mut records, 8, true, Cause::Flushed, 7);
        let seven = recorded(&records, 7).unwrap_or(Record::EMPTY);
        assert_eq!(
            (seven.closed, seven.failed, seven.last, seven.at_ms),
            (1, 1, "Unreachable", 6)
        );
        record(&mut records, 7, true, Cause::PeerClosed, 8);
        let ends: [Option<(&str, u16)>; 3] = {
            let seven = recorded(&records, 7).unwrap_or(Record::EMPTY);
            let mut ends = seven.ends();
            [ends.next(), ends.next(), ends.next()]
        };
        assert_eq!(
            ends,
            [Some(("PeerClosed", 2)), Some(("Unreachable", 1)), None]
        );
        assert_eq!(recorded(&records, 9), None);
        // Address 0 is no record that was never written.
        assert_eq!(recorded(&records, 0), None);
    }

    #[test]
    fn the_oldest_record_of_a_set_makes_room() {
        let mut records = [Record::EMPTY; 4 * WAYS];
        let first = 1u32;
        // All of them in the same set.
        let peers = [0u32, 1, 2, 3, 4, 5, 6, 7, 8].map(|n| first.wrapping_add(n.wrapping_mul(4)));
        for (at, addr) in peers.iter().enumerate() {
            let at_ms = u64::try_from(at).unwrap_or(0).wrapping_add(1);
            record(&mut records, *addr, true, Cause::PeerClosed, at_ms);
        }
        assert_eq!(recorded(&records, first), None);
        assert!(peers
            .iter()
            .skip(1)
            .all(|addr| recorded(&records, *addr).is_some()));
        for addr in 0..100_000 {
            record(&mut records, addr, true, Cause::PeerClosed, 9);
        }
    }

    #[test]
    fn names_are_words() {
        for name in CAUSES.iter().chain(REFUSALS.iter()) {
            assert!(!name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric()));
        }
        assert_eq!(cause_name(Cause::Told(-5)), "Told");
        assert_eq!(cause_name(Cause::DeadlineAnswer), "DeadlineAnswer");
        assert_eq!(
            REFUSALS.get(refusal_number(&Refusal::Denied)),
            Some(&"Denied")
        );
        assert_eq!(rejected_name(&Refused::Reason(RejectWhy::Early)), "Early");
    }
}
