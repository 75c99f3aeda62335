// SPDX-License-Identifier: GPL-2.0

//! How many attempts to connect an NI has under way, and who may begin another.
//!
//! A node with a thousand peers may want to connect to all of them at once: when it boots, when its
//! link or its device comes back. An attempt takes a queue pair, regions and buffers on both sides,
//! and a fixed time after which it is given up. Begun all at once none of them ends in that time, what
//! was made for them is thrown away, and they begin again. So no more than [`AT_A_TIME`] are under way;
//! the other peers wait in line.
//!
//! Peers that are dead must not hold up those that live: after a rack has lost its power there may be hundreds of
//! them, and each attempt ends by its time limit only. So an attempt has its turn for as long as it may still be
//! one of those that go on: it counts no more when its address was not found at the first try
//! ([`crate::proto::conn::Event::AddrTimeout`]), or nobody has answered for [`UNANSWERED_MS`].
//!
//! And who has no connection at all goes before those that want more of them: after a storm each peer has one before
//! anybody has two.
//!
//! Context: any; the caller holds the lock of the line.

/// Attempts under way at a time on an NI, but for the last peer's, which may be several. Few enough that none
/// waits for the others until its time is over: with 64 some did, on two emulated CPUs.
pub const AT_A_TIME: u32 = 16;

/// Milliseconds that a step of an attempt may take, to find the address, or from there to the answer, and the attempt still
/// counts. Sixteen in that time are eight a second, a third of what two emulated CPUs made with much beside (a thousand in
/// 41 s); so those that are made in their turn do not pile up. Of a peer with several connections one goes ahead
/// ([`crate::proto::peer`]), so one that is dead takes no more of it.
pub const UNANSWERED_MS: u32 = 2000;

/// Where a peer stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Not in line.
    Nowhere,
    /// In line.
    Waiting,
    /// In line, behind all who have no connection: it has one, and wants more.
    Behind,
    /// Called: it is its turn.
    Called,
}

impl Place {
    /// Whether it is in line.
    pub fn is_in_line(self) -> bool {
        matches!(self, Self::Waiting | Self::Behind)
    }

    /// Whether it is to go into the line, for one that is `more` than it has. Who stands behind and has none any more goes
    /// to the others.
    pub fn is_to_join(self, more: bool) -> bool {
        match self {
            Self::Waiting => false,
            Self::Behind => !more,
            Self::Nowhere | Self::Called => true,
        }
    }
}

/// The attempts that are under way.
#[derive(Clone, Copy, Debug)]
pub struct UnderWay(u32);

impl UnderWay {
    /// None.
    pub const NONE: Self = Self(0);

    /// Whether a peer may begin some now, which counts them: if there is room, and nobody stands in
    /// front of it. `line`: somebody waits.
    #[must_use]
    pub fn begin(&mut self, attempts: u16, place: Place, line: bool) -> bool {
        if !self.has_room() || (line && place != Place::Called) {
            return false;
        }
        self.0 = self.0.saturating_add(attempts.into());
        true
    }

    /// One is over, or was not begun after all, or takes so long that it counts no more.
    pub fn end(&mut self) {
        self.0 = self.0.saturating_sub(1);
    }

    /// Whether somebody may be called.
    pub fn has_room(&self) -> bool {
        self.0 < AT_A_TIME
    }
}

#[cfg(any(test, ro2iblnd_kunit))]
#[cfg_attr(ro2iblnd_kunit, ::kernel::macros::kunit_tests(ro2iblnd_line))]
mod tests {
    use super::*;

    #[test]
    fn so_many_begin_and_no_more() {
        let mut under_way = UnderWay::NONE;
        for _ in 0..AT_A_TIME {
            assert!(under_way.begin(1, Place::Nowhere, false));
        }
        for place in [Place::Nowhere, Place::Waiting, Place::Behind, Place::Called] {
            assert!(!under_way.begin(1, place, false));
        }
        under_way.end();
        assert!(under_way.has_room() && under_way.begin(1, Place::Nowhere, false));
        assert!(!under_way.has_room());
    }

    #[test]
    fn nobody_overtakes_the_line() {
        let mut under_way = UnderWay::NONE;
        assert!(!under_way.begin(1, Place::Nowhere, true));
        assert!(!under_way.begin(1, Place::Waiting, true));
        assert!(under_way.begin(1, Place::Called, true));
        // Nobody waits any more: then whoever comes.
        assert!(under_way.begin(1, Place::Nowhere, false));
    }

    #[test]
    fn who_wants_more_stands_behind() {
        for more in [false, true] {
            assert!(Place::Nowhere.is_to_join(more) && Place::Called.is_to_join(more));
            assert!(!Place::Waiting.is_to_join(more));
        }
        // Until it has none any more.
        assert!(!Place::Behind.is_to_join(true) && Place::Behind.is_to_join(false));
        assert!(Place::Behind.is_in_line() && Place::Waiting.is_in_line());
        assert!(!Place::Nowhere.is_in_line() && !Place::Called.is_in_line());
    }

    /// A peer with several connections begins all of them, or none: the last may go beyond the limit.
    #[test]
    fn several_begin_together() {
        let mut under_way = UnderWay::NONE;
        assert!(under_way.begin(10, Place::Nowhere, false));
        assert!(under_way.begin(10, Place::Nowhere, false));
        assert!(!under_way.begin(1, Place::Called, true));
        for _ in 0..4 {
            under_way.end();
            assert!(!under_way.has_room());
        }
        under_way.end();
        assert!(under_way.has_room());
    }

    #[test]
    fn ends_are_not_counted_below_none() {
        let mut under_way = UnderWay::NONE;
        under_way.end();
        assert!(under_way.begin(u16::MAX, Place::Nowhere, false));
        for _ in 0..=u16::MAX {
            under_way.end();
        }
        assert!(under_way.begin(1, Place::Nowhere, false));
    }
}
