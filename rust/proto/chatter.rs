// SPDX-License-Identifier: GPL-2.0

//! How often a peer may send a NOOP that returns no credit.
//!
//! Everything else that it sends is bounded by credits. Such a NOOP only asks whether we are there: when nothing was
//! said for a while, a few times a second at most, whoever the peer is. One that sends them as fast as its link goes would
//! have a CPU for each of its connections do nothing else (H47).
//!
//! Context: any; the caller holds the connection's lock.

/// Those in a second that are taken.
const MOST: u16 = 256;

/// A second, in nanoseconds.
const SECOND_NS: u64 = 1_000_000_000;

/// Those of one connection in the second that is under way.
#[derive(Clone, Copy, Debug)]
pub struct Chatter {
    since_ns: u64,
    count: u16,
}

impl Chatter {
    /// None.
    pub const NONE: Self = Self {
        since_ns: 0,
        count: 0,
    };

    /// One has come, on any clock in nanoseconds. False: they are too many.
    #[must_use]
    pub fn take(&mut self, now_ns: u64) -> bool {
        if now_ns.saturating_sub(self.since_ns) >= SECOND_NS {
            *self = Self {
                since_ns: now_ns,
                count: 0,
            };
        }
        self.count = self.count.saturating_add(1);
        self.count <= MOST
    }
}

#[cfg(any(test, ro2iblnd_kunit))]
#[cfg_attr(ro2iblnd_kunit, ::kernel::macros::kunit_tests(ro2iblnd_proto_chatter))]
mod tests {
    use super::*;

    /// How many of `n` are taken, one every `every_ns`.
    fn taken(n: u32, every_ns: u64) -> u32 {
        let mut chatter = Chatter::NONE;
        let mut now_ns = 77u64;
        let mut taken = 0u32;
        for _ in 0..n {
            now_ns = now_ns.saturating_add(every_ns);
            taken = taken.saturating_add(chatter.take(now_ns).into());
        }
        taken
    }

    #[test]
    fn who_asks_whether_we_live_is_heard_for_ever() {
        // As often as anybody does, and ten times that.
        assert_eq!(taken(10_000, SECOND_NS / 4), 10_000);
        assert_eq!(taken(10_000, SECOND_NS / 40), 10_000);
    }

    #[test]
    fn who_does_nothing_else_is_not() {
        assert_eq!(taken(1_000, 1_000), 256);
        assert_eq!(taken(1_000, 0), 256);
        // However long it goes on.
        let in_100_s = taken(100_000, SECOND_NS / 1000);
        assert!((25_600..=25_856).contains(&in_100_s));
    }
}
