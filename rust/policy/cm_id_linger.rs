// SPDX-License-Identifier: GPL-2.0

//! How long the connection manager's id outlives its connection.
//!
//! A DREQ can get lost. The CM repeats it until it is answered, but only while the id is there; the
//! queue pair and all the rest are freed long before. So the id stays behind alone, until the peer
//! has answered, the device goes, or the time is over.
//!
//! Where there is no route to the peer nothing is said at all: a message of the CM without a route
//! puts the queue pair that rxe sends them with into the error state, for good, and no node can be
//! connected to any more. To free an id says something, too, unless its DREQ is on its way. So the
//! id stays, mute, until there is a route. That holds for the answer to the peer's DREQ, too: if we did
//! not give it the CM does, when the id is freed.
//!
//! Where the address of this side is not on the device any more, nobody is ever told: the CM sends nothing
//! new. It does repeat what it sent before, as long as the id is there, and that is fatal in the same way. So
//! such an id goes at once.
//!
//! Context: any; the caller holds the connection's lock.

/// Ids that may wait for an answer at the same time on one NI. A peer that is gone for good answers none; what
/// would be more is freed at once.
const PARTING_MAX: usize = 32;

/// The same for ids that wait for a route: to free one of them does harm.
const MUTE_MAX: usize = 16_384;

/// Of those that wait for an answer so many may be one peer's once half of the places are taken: who breaks one
/// connection after the other and answers nothing leaves the other half to others.
const PARTING_OF_PEER: usize = 8;

/// Ids that wait for an answer.
#[derive(Clone, Copy, Debug)]
pub struct LingeringIds {
    /// All of the NI.
    pub all: usize,
    /// Those of the same peer.
    pub of_peer: usize,
}

/// Whether one more id may wait, for a route if `mute`, else for an answer, where `waiting` wait already and `alike` of
/// them for an answer: those that wait for a route, of which there may be many when a link is down, take no place of
/// the others. `alike` is only asked if it matters, for it takes time where there are many.
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

/// Where the farewell of one connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LingerState {
    /// Nothing was said.
    Open,
    /// Our DREQ is on its way; nothing was heard.
    Said,
    /// Something has to be said, and there was no route.
    Mute,
    /// The peer knows. If that was its own DREQ, the CM may owe it an answer.
    Heard,
    /// The id is not needed for it (any more), or must go anyway.
    Over,
    /// The connection is released, its id waits for the answer.
    Waits,
    /// The connection is released, its id waits for a route.
    WaitsMute,
    /// The id waits no more: whoever sees this frees it.
    Leave,
}

/// The farewell of one connection.
#[derive(Clone, Copy, Debug)]
pub struct CmIdLinger(LingerState);

impl CmIdLinger {
    /// Of a connection just made.
    pub const fn new() -> Self {
        Self(LingerState::Open)
    }

    /// Our DREQ is about to be sent, on a connection that was established.
    pub fn said(&mut self) {
        self.0 = match self.0 {
            LingerState::Open | LingerState::Mute => LingerState::Said,
            LingerState::WaitsMute => LingerState::Waits,
            // It is the answer, and there is none to that.
            LingerState::Heard => LingerState::Over,
            LingerState::Said | LingerState::Over | LingerState::Waits | LingerState::Leave => {
                self.0
            }
        };
    }

    /// There is no route to the peer. What was not said stays unsaid for now, and what was said must
    /// not be repeated: such an id does not wait. True: it does already, and is to be freed now.
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

    /// DREQ or DREP of the peer, or TimeWait is over. True: the id waited for this, and is to be freed now.
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

    /// The device or the NI goes, or it took too long. True: the id waited for this, and is to be freed now.
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

    /// Whether the peer has been told and has not answered, or could not be told.
    pub fn unanswered(&self) -> bool {
        matches!(self.0, LingerState::Said | LingerState::Mute)
    }

    /// Whether there is something to say once there is a route.
    pub fn is_mute(&self) -> bool {
        matches!(self.0, LingerState::Mute | LingerState::WaitsMute)
    }

    /// The connection is released. True: the id stays.
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

    /// Whether the id waits.
    pub fn waits(&self) -> bool {
        matches!(self.0, LingerState::Waits | LingerState::WaitsMute)
    }

    /// Whether the id has waited, and waits no more.
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
    fn what_the_peer_asked_is_answered_where_there_is_a_route() {
        // The peer's DREQ comes first, and there is no route: nobody frees the id yet, for that answers.
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
    fn what_the_peer_closed_needs_no_answer() {
        let mut f = CmIdLinger::new();
        assert!(!f.heard());
        f.said();
        assert!(!f.unanswered());
        assert!(!f.released());
    }

    #[test]
    fn without_a_route_nothing_is_said() {
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
    fn what_was_said_is_not_repeated_without_a_route() {
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

    /// Of one peer's: all.
    fn of_one(n: usize) -> LingeringIds {
        LingeringIds { all: n, of_peer: n }
    }

    /// None of this peer's.
    fn of_others(n: usize) -> LingeringIds {
        LingeringIds { all: n, of_peer: 0 }
    }

    #[test]
    fn who_waits_for_a_route_takes_no_place_of_others() {
        assert!(has_room(false, MUTE_MAX, || of_one(0)));
        assert!(has_room(false, MUTE_MAX, || of_others(PARTING_MAX - 1)));
        assert!(!has_room(false, MUTE_MAX, || of_others(PARTING_MAX)));
        // To free one of these does harm, whose it ever is.
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
        // Others come in all the same, each with some.
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
