// SPDX-License-Identifier: GPL-2.0

//! Lifetime of a CM id after its connection.
//!
//! A DREQ can get lost. The CM repeats it until the peer answers, but only while the id exists; the queue pair and
//! everything else are freed long before. So the id remains alone, until the peer has answered, the device is removed,
//! or the time is over.
//!
//! Without a route to the peer nothing is sent at all: a CM message without a route puts the queue pair that rxe uses
//! for such messages into the error state, permanently, and no node can be connected any more. Freeing an id also sends
//! a message, unless its DREQ is on its way. So the id remains, mute, until there is a route. The same holds for the
//! answer to the peer's DREQ: if the driver does not send it, the CM does when the id is freed.
//!
//! If the local address is no longer on the device, the peer is never notified, because the CM sends no new message.
//! The CM still repeats earlier messages while the id exists, and that is fatal in the same way. So such an id is freed
//! at once.
//!
//! Context: any; the caller holds the connection's lock.

/// Number of ids on one NI that may wait for an answer at the same time. A peer that is gone for good answers none;
/// further ids are freed at once.
const PARTING_MAX: usize = 32;

/// The same for ids that wait for a route, because freeing one of them does harm.
const MUTE_MAX: usize = 16_384;

/// Number of ids that may wait for an answer of one peer once half of the places are taken. A peer that breaks one
/// connection after the other and never answers leaves the other half to other peers.
const PARTING_OF_PEER: usize = 8;

/// Ids that wait for an answer.
#[derive(Clone, Copy, Debug)]
pub struct LingeringIds {
    /// All ids of the NI.
    pub all: usize,
    /// Ids of the same peer.
    pub of_peer: usize,
}

/// Returns whether one more id may wait, for a route if `mute`, otherwise for an answer. `waiting` ids wait already;
/// `alike` returns how many of them wait for an answer. Ids that wait for a route, of which there may be many when a
/// link is down, take no place of other ids. `alike` is called only if it matters, because it takes time if there are
/// many.
pub fn has_room(mute: bool, waiting: usize, alike: impl FnOnce() -> LingeringIds) -> bool {
    if mute {
        // The others are few.
        return waiting < MUTE_MAX + PARTING_MAX;
    }
    let half = PARTING_MAX / 2;
    if waiting < half {
        return true;
    }
    let LingeringIds { all, of_peer } = alike();
    all < half || (all < PARTING_MAX && of_peer < PARTING_OF_PEER)
}

/// State of the disconnect of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LingerState {
    /// Nothing was sent.
    Open,
    /// Our DREQ is on its way; nothing was received.
    Said,
    /// A message has to be sent, and there was no route.
    Mute,
    /// The peer knows. If it sent a DREQ of its own, the CM may owe it an answer.
    Heard,
    /// The id is no longer needed for the disconnect, or must be freed anyway.
    Over,
    /// The connection is released, its id waits for the answer.
    Waits,
    /// The connection is released, its id waits for a route.
    WaitsMute,
    /// The id no longer waits: a caller that sees this frees it.
    Leave,
}

/// Disconnect of one connection.
#[derive(Clone, Copy, Debug)]
pub struct CmIdLinger(LingerState);

impl CmIdLinger {
    /// Creates the state of a new connection.
    pub const fn new() -> Self {
        Self(LingerState::Open)
    }

    /// Notes that our DREQ is about to be sent, on a connection that was established.
    pub fn said(&mut self) {
        self.0 = match self.0 {
            LingerState::Open | LingerState::Mute => LingerState::Said,
            LingerState::WaitsMute => LingerState::Waits,
            // Our DREQ is the answer, and needs none.
            LingerState::Heard => LingerState::Over,
            LingerState::Said | LingerState::Over | LingerState::Waits | LingerState::Leave => {
                self.0
            }
        };
    }

    /// Notes that there is no route to the peer. Nothing is sent for now, and an earlier message must not be repeated:
    /// such an id does not wait. Returns true if the id waits already, and must be freed now.
    #[must_use]
    pub fn no_route(&mut self) -> bool {
        match self.0 {
            LingerState::Open | LingerState::Heard => self.0 = LingerState::Mute,
            LingerState::Said => self.0 = LingerState::Over,
            LingerState::Waits => {
                self.0 = LingerState::Leave;
                return true;
            }
            LingerState::Mute | LingerState::Over | LingerState::WaitsMute | LingerState::Leave => {
            }
        }
        false
    }

    /// Notes a DREQ or DREP of the peer, or the end of TimeWait. Returns true if the id waited for it, and must be
    /// freed now.
    #[must_use]
    pub fn heard(&mut self) -> bool {
        let (next, waited) = match self.0 {
            LingerState::Open | LingerState::Said => (LingerState::Heard, false),
            LingerState::Waits => (LingerState::Leave, true),
            // An answer may be owed, and there was no route.
            LingerState::Mute | LingerState::WaitsMute => (self.0, false),
            LingerState::Heard | LingerState::Over | LingerState::Leave => (self.0, false),
        };
        self.0 = next;
        waited
    }

    /// Notes that the device or the NI goes, or that it took too long. Returns true if the id waited, and must be freed
    /// now.
    #[must_use]
    pub fn over(&mut self) -> bool {
        let waited = self.waits();
        self.0 = match self.0 {
            LingerState::Waits | LingerState::WaitsMute | LingerState::Leave => LingerState::Leave,
            LingerState::Open
            | LingerState::Said
            | LingerState::Mute
            | LingerState::Heard
            | LingerState::Over => LingerState::Over,
        };
        waited
    }

    /// Returns whether the peer has been notified and has not answered, or could not be notified.
    pub fn unanswered(&self) -> bool {
        matches!(self.0, LingerState::Said | LingerState::Mute)
    }

    /// Returns whether a message is to be sent once there is a route.
    pub fn is_mute(&self) -> bool {
        matches!(self.0, LingerState::Mute | LingerState::WaitsMute)
    }

    /// Notes that the connection is released. Returns true if the id stays.
    #[must_use]
    pub fn released(&mut self) -> bool {
        self.0 = match self.0 {
            LingerState::Said => LingerState::Waits,
            LingerState::Mute => LingerState::WaitsMute,
            LingerState::Open | LingerState::Heard | LingerState::Over => LingerState::Over,
            LingerState::Waits | LingerState::WaitsMute | LingerState::Leave => self.0,
        };
        self.waits()
    }

    /// Returns whether the id waits.
    pub fn waits(&self) -> bool {
        matches!(self.0, LingerState::Waits | LingerState::WaitsMute)
    }

    /// Returns whether the id has waited, and no longer waits.
    pub fn leaves(&self) -> bool {
        self.0 == LingerState::Leave
    }
}

impl Default for CmIdLinger {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(any(test, ro2iblnd_kunit))]
#[cfg_attr(ro2iblnd_kunit, ::kernel::macros::kunit_tests(ro2ib_cm_id_linger))]
mod tests {
    use super::*;

    #[test]
    fn an_unanswered_farewell_keeps_the_id() {
        let mut f = CmIdLinger::new();
        assert!(!f.unanswered());
        f.said();
        assert!(f.unanswered());
        assert!(!f.waits());
        assert!(f.released());
        assert!(f.waits());
        assert!(!f.leaves());
        assert!(f.over());
        assert!(!f.waits());
        assert!(f.leaves());
        assert!(!f.over());
        assert!(f.leaves());
    }

    #[test]
    fn an_answer_ends_the_waiting() {
        let mut f = CmIdLinger::new();
        f.said();
        assert!(f.released());
        assert!(f.heard());
        assert!(f.leaves());
        assert!(!f.heard());
    }

    #[test]
    fn dreq_of_the_peer_is_answered_when_a_route_exists() {
        // The peer's DREQ arrives first, and there is no route: the id is not freed yet, because that would send an
        // answer.
        let mut f = CmIdLinger::new();
        assert!(!f.heard());
        assert!(!f.no_route());
        assert!(f.is_mute());
        assert!(f.released());
        assert!(!f.heard());
        assert!(f.waits() && f.is_mute());
        // It crosses ours.
        let mut f = CmIdLinger::new();
        f.said();
        assert!(!f.heard());
        assert!(!f.no_route());
        assert!(f.released());
        // It comes while there is none.
        let mut f = CmIdLinger::new();
        assert!(!f.no_route());
        assert!(!f.heard());
        assert!(f.released());
        assert!(f.over());
        assert!(f.leaves());
    }

    #[test]
    fn an_answer_before_the_release_does_not() {
        let mut f = CmIdLinger::new();
        f.said();
        assert!(!f.heard());
        assert!(!f.released());
        assert!(!f.over());
        assert!(!f.leaves());
    }

    #[test]
    fn id_does_not_linger_after_the_peers_dreq() {
        let mut f = CmIdLinger::new();
        assert!(!f.heard());
        f.said();
        assert!(!f.unanswered());
        assert!(!f.released());
    }

    #[test]
    fn id_without_a_route_is_kept() {
        let mut f = CmIdLinger::new();
        assert!(!f.no_route());
        assert!(f.is_mute() && f.unanswered());
        assert!(f.released());
        assert!(f.waits() && f.is_mute());
        assert!(!f.no_route());
        // There is one again.
        f.said();
        assert!(f.waits() && !f.is_mute());
        assert!(f.over());
        assert!(f.leaves());
    }

    #[test]
    fn dreq_is_not_repeated_without_a_route() {
        let mut f = CmIdLinger::new();
        f.said();
        assert!(!f.no_route());
        assert!(!f.unanswered());
        assert!(!f.released());
        let mut f = CmIdLinger::new();
        f.said();
        assert!(f.released());
        assert!(f.no_route());
        assert!(f.leaves());
        assert!(!f.no_route());
    }

    #[test]
    fn a_mute_one_can_be_given_up() {
        let mut f = CmIdLinger::new();
        assert!(!f.no_route());
        assert!(f.released());
        assert!(f.over());
        assert!(f.leaves());
    }

    /// Returns ids that all belong to one peer.
    fn of_one(n: usize) -> LingeringIds {
        LingeringIds { all: n, of_peer: n }
    }

    /// Returns ids of other peers only.
    fn of_others(n: usize) -> LingeringIds {
        LingeringIds { all: n, of_peer: 0 }
    }

    #[test]
    fn id_without_a_route_takes_no_linger_slot() {
        assert!(has_room(false, MUTE_MAX, || of_one(0)));
        assert!(has_room(false, MUTE_MAX, || of_others(PARTING_MAX - 1)));
        assert!(!has_room(false, MUTE_MAX, || of_others(PARTING_MAX)));
        // Freeing one of these does harm, whichever peer it belongs to.
        let all = MUTE_MAX + PARTING_MAX;
        let count = || unreachable!("thousands are counted for each of thousands");
        assert!(has_room(true, all - 1, count));
        assert!(!has_room(true, all, count));
        // Few are not counted.
        assert!(has_room(false, PARTING_MAX / 2 - 1, || of_one(usize::MAX)));
    }

    #[test]
    fn one_peer_leaves_half_of_the_places_to_others() {
        let half = PARTING_MAX / 2;
        let mut mine = 0;
        while has_room(false, mine, || of_one(mine)) {
            mine = mine.wrapping_add(1);
        }
        assert_eq!(mine, half);
        // Ids of other peers are accepted all the same, some of each.
        for all in half..PARTING_MAX {
            let alike = |of_peer| LingeringIds { all, of_peer };
            assert!(has_room(false, all, || alike(PARTING_OF_PEER - 1)));
            assert!(!has_room(false, all, || alike(PARTING_OF_PEER)));
        }
        assert!(!has_room(false, PARTING_MAX, || of_others(PARTING_MAX)));
    }

    #[test]
    fn an_attempt_that_failed_keeps_nothing() {
        let mut f = CmIdLinger::new();
        assert!(!f.released());
        f.said();
        assert!(!f.over());
        assert!(!f.leaves());
    }
}
