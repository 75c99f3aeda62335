// SPDX-License-Identifier: GPL-2.0

//! Lifetime of a CM id after its connection (Documentation/architecture.md, "Close").
//!
//! Without a route to the peer nothing is sent at all: a CM message without a route puts the queue pair that rxe uses
//! for such messages into the error state, permanently, and no node can be connected any more. Freeing an id also sends
//! a message, unless its DREQ and the answer to the peer's DREQ are on their way. So the id remains, mute, until there
//! is a route.
//!
//! If the local address is no longer on the device, the CM sends no new message, but repeats earlier ones while the id
//! exists, and that is fatal in the same way. So such an id is freed at once.
//!
//! Context: any; the caller holds the connection's lock.

/// Time for which an id waits for the peer's DREP, in milliseconds. The CM resends a DREQ after 4.3 s, the CM of OFED
/// after 17.2 s; on InfiniBand 2.1 s later.
pub const LINGER_MS: u32 = 25_000;

/// Milliseconds between two checks for a route to a peer that still needs a DREQ or reject.
pub const ROUTE_CHECK_MS: u32 = 1000;

/// Number of ids on one NI that may wait for an answer at the same time. A peer that is gone for good answers none;
/// further ids are freed at once.
const PARTING_MAX: usize = 32;

/// The same for ids that wait for a route, because freeing one of them does harm.
const MUTE_MAX: usize = 16_384;

/// Number of ids that may wait for an answer of one peer once half of the places are taken. A peer that breaks one
/// connection after the other and never answers leaves the other half to other peers.
const PARTING_OF_PEER: usize = 8;

/// Returns whether one more id may wait, for a route if `mute`, otherwise for an answer. `waiting` ids wait already;
/// `told` yields for each that waits for an answer whether it is of the same peer. Ids that wait for a route, of which
/// there may be many when a link is down, take no place of other ids. `told` is counted only if it matters.
pub fn has_room(mute: bool, waiting: usize, told: impl Iterator<Item = bool>) -> bool {
    if mute {
        // The others are few.
        return waiting < MUTE_MAX + PARTING_MAX;
    }
    let (mut all, mut of_peer) = (0usize, 0usize);
    for same_peer in told {
        all = all.saturating_add(1);
        of_peer = of_peer.saturating_add(usize::from(same_peer));
    }
    let half = PARTING_MAX / 2;
    all < half || (all < PARTING_MAX && of_peer < PARTING_OF_PEER)
}

/// Knowledge of the peer about the end of one connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum LingerState {
    /// Nothing was sent.
    #[default]
    Open,
    /// Our DREQ is on its way; nothing was received.
    Said,
    /// A message has to be sent, and there was no route.
    Mute,
    /// The peer knows. If it sent a DREQ of its own, the CM may owe it an answer.
    Heard,
    /// The id is no longer needed for the disconnect, or must be freed anyway.
    Over,
}

/// Disconnect of one connection; the default is the state of a new one.
#[derive(Clone, Copy, Debug, Default)]
pub struct CmIdLinger {
    state: LingerState,
    /// The connection was released, and its id stayed.
    stayed: bool,
}

impl CmIdLinger {
    /// Notes that our DREQ is about to be sent, on a connection that was established.
    pub fn said(&mut self) {
        self.state = match self.state {
            // Our DREQ is the answer, and needs none.
            LingerState::Heard | LingerState::Over => LingerState::Over,
            _ => LingerState::Said,
        };
    }

    /// Notes that our DREQ could not be sent. It is sent later.
    pub fn unsaid(&mut self) {
        if self.state == LingerState::Said {
            self.state = LingerState::Mute;
        }
    }

    /// Notes that there is no route to the peer. Nothing is sent for now, and an earlier message must not be repeated:
    /// such an id does not wait.
    pub fn no_route(&mut self) {
        self.state = match self.state {
            LingerState::Said | LingerState::Over => LingerState::Over,
            _ => LingerState::Mute,
        };
    }

    /// Notes a DREQ or DREP of the peer, or the end of TimeWait.
    pub fn heard(&mut self) {
        self.state = match self.state {
            LingerState::Said if self.stayed => LingerState::Over,
            LingerState::Open | LingerState::Said | LingerState::Heard => LingerState::Heard,
            // If it is mute, an answer may be owed.
            LingerState::Mute | LingerState::Over => self.state,
        };
    }

    /// Notes that the device or the NI goes, that it took too long, or that nothing must be sent any more.
    pub fn over(&mut self) {
        self.state = LingerState::Over;
    }

    /// Notes that the connection is released. Returns true if the id stays.
    #[must_use]
    pub fn released(&mut self) -> bool {
        match self.is_unanswered() {
            true => self.stayed = true,
            false => self.state = LingerState::Over,
        }
        self.waits()
    }

    /// Returns whether the peer has been notified and has not answered, or could not be notified.
    pub fn is_unanswered(&self) -> bool {
        matches!(self.state, LingerState::Said | LingerState::Mute)
    }

    /// Returns whether a message is to be sent once there is a route.
    pub fn is_mute(&self) -> bool {
        self.state == LingerState::Mute
    }

    pub fn waits(&self) -> bool {
        self.stayed && self.is_unanswered()
    }

    /// Returns whether the id has waited, and no longer waits: a caller that sees this after a change frees it.
    pub fn leaves(&self) -> bool {
        self.stayed && self.state == LingerState::Over
    }
}

#[cfg(any(test, ro2iblnd_kunit))]
#[cfg_attr(ro2iblnd_kunit, ::kernel::macros::kunit_tests(ro2ib_cm_id_linger))]
mod tests {
    use super::*;

    #[test]
    fn an_unanswered_farewell_keeps_the_id() {
        let mut f = CmIdLinger::default();
        assert!(!f.is_unanswered());
        f.said();
        assert!(f.is_unanswered());
        assert!(!f.waits());
        assert!(f.released());
        assert!(f.waits());
        assert!(!f.leaves());
        f.over();
        assert!(f.leaves() && !f.waits());
        f.over();
        assert!(f.leaves());
    }

    #[test]
    fn an_answer_ends_the_waiting() {
        let mut f = CmIdLinger::default();
        f.said();
        assert!(f.released());
        f.heard();
        assert!(f.leaves());
        f.heard();
        assert!(f.leaves());
    }

    #[test]
    fn dreq_of_the_peer_is_answered_when_a_route_exists() {
        // The peer's DREQ arrives first, and there is no route: the id is not freed yet, because that would send an
        // answer.
        let mut f = CmIdLinger::default();
        f.heard();
        assert!(!f.leaves());
        f.no_route();
        assert!(!f.leaves());
        assert!(f.is_mute());
        assert!(f.released());
        f.heard();
        assert!(!f.leaves());
        assert!(f.waits() && f.is_mute());
        // It crosses ours.
        let mut f = CmIdLinger::default();
        f.said();
        f.heard();
        assert!(!f.leaves());
        f.no_route();
        assert!(!f.leaves());
        assert!(f.released());
        // It comes while there is none.
        let mut f = CmIdLinger::default();
        f.no_route();
        assert!(!f.leaves());
        f.heard();
        assert!(!f.leaves());
        assert!(f.released());
        f.over();
        assert!(f.leaves());
    }

    #[test]
    fn an_answer_before_the_release_does_not() {
        let mut f = CmIdLinger::default();
        f.said();
        f.heard();
        assert!(!f.leaves());
        assert!(!f.released());
        f.over();
        assert!(!f.leaves());
    }

    #[test]
    fn id_does_not_linger_after_the_peers_dreq() {
        let mut f = CmIdLinger::default();
        f.heard();
        assert!(!f.leaves());
        f.said();
        assert!(!f.is_unanswered());
        assert!(!f.released());
    }

    #[test]
    fn id_without_a_route_is_kept() {
        let mut f = CmIdLinger::default();
        f.no_route();
        assert!(!f.leaves());
        assert!(f.is_mute() && f.is_unanswered());
        assert!(f.released());
        assert!(f.waits() && f.is_mute());
        f.no_route();
        assert!(!f.leaves());
        // There is one again.
        f.said();
        assert!(f.waits() && !f.is_mute());
        f.over();
        assert!(f.leaves());
    }

    #[test]
    fn dreq_is_not_repeated_without_a_route() {
        let mut f = CmIdLinger::default();
        f.said();
        f.no_route();
        assert!(!f.leaves());
        assert!(!f.is_unanswered());
        assert!(!f.released());
        let mut f = CmIdLinger::default();
        f.said();
        assert!(f.released());
        f.no_route();
        assert!(f.leaves());
        f.no_route();
        assert!(f.leaves());
    }

    #[test]
    fn a_mute_one_can_be_given_up() {
        let mut f = CmIdLinger::default();
        f.no_route();
        assert!(!f.leaves());
        assert!(f.released());
        f.over();
        assert!(f.leaves());
    }

    /// Returns ids that wait for an answer, some of them of the same peer.
    fn told(all: usize, of_peer: usize) -> impl Iterator<Item = bool> {
        (0..all).map(move |at| at < of_peer)
    }

    #[test]
    fn id_without_a_route_takes_no_linger_slot() {
        assert!(has_room(false, MUTE_MAX, told(0, 0)));
        assert!(has_room(false, MUTE_MAX, told(PARTING_MAX - 1, 0)));
        assert!(!has_room(false, MUTE_MAX, told(PARTING_MAX, 0)));
        // Freeing one of these does harm, whichever peer it belongs to.
        let all = MUTE_MAX + PARTING_MAX;
        let count = || (0..1).map(|_| unreachable!("thousands are counted for each of thousands"));
        assert!(has_room(true, all - 1, count()));
        assert!(!has_room(true, all, count()));
    }

    #[test]
    fn one_peer_leaves_half_of_the_places_to_others() {
        let half = PARTING_MAX / 2;
        let mut mine = 0;
        while has_room(false, mine, told(mine, mine)) {
            mine = mine.wrapping_add(1);
        }
        assert_eq!(mine, half);
        // Ids of other peers are accepted all the same, some of each.
        for all in half..PARTING_MAX {
            assert!(has_room(false, all, told(all, PARTING_OF_PEER - 1)));
            assert!(!has_room(false, all, told(all, PARTING_OF_PEER)));
        }
        assert!(!has_room(false, PARTING_MAX, told(PARTING_MAX, 0)));
    }

    #[test]
    fn an_attempt_that_failed_keeps_nothing() {
        let mut f = CmIdLinger::default();
        assert!(!f.released());
        f.said();
        f.over();
        assert!(!f.leaves());
    }
}
