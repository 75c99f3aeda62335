// SPDX-License-Identifier: GPL-2.0

//! Quota of a connection in the device's memory regions.
//!
//! A device has a limited number of regions, and the driver is not its only user. Each connection gets regions as it
//! needs them and keeps them while it uses them, because making one may take a command of the device's firmware. A
//! timer gives idle regions back ([`LOOK_MS`]). While there are plenty, that is all. When half of the quota is in use,
//! a connection makes more regions only up to its fair share. Beyond that, and when the quota is used up, it takes idle
//! regions of connections that have more. So an idle connection that was early does not starve others, and a connection
//! with few regions never loses one to a connection with many.
//!
//! Any context; no state.

/// Returns how many regions the driver may have of a device that reports `max_mr`; the rest is for other users. A
/// device that reports 0 has no known limit.
pub const fn bound(max_mr: u32) -> u32 {
    match max_mr {
        0 => u32::MAX,
        // Not fewer than 1.
        n => n.saturating_sub(n / 4),
    }
}

/// Regions of so many pages have a large list of pages, 8 bytes each. mlx5 and qedr allocate a power of two for it, so
/// one page more than a power of two would double the memory of each region.
const MANY_PAGES: u32 = 256;

/// Returns the pages of a region that covers `whole` pages. Memory that begins inside of a page needs one page more.
/// Where that would double the size of each region there is none, and the driver copies such memory (Lustre has none).
pub const fn pages(whole: u32) -> u32 {
    if whole >= MANY_PAGES && whole.is_power_of_two() {
        whole
    } else {
        whole.saturating_add(1)
    }
}

/// Regions that a connection keeps however long they lie idle.
pub const KEPT: u32 = 2;

/// Milliseconds between two looks at the regions of a connection. Each look destroys one region that was not used since
/// the last look, if there are more than [`KEPT`]: one firmware command each.
pub const LOOK_MS: i64 = 10_000;

/// State when a connection needs one more region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MrDemand {
    /// Regions that the driver may have of the device.
    pub bound: u32,
    /// Regions of all connections.
    pub there: u32,
    /// Connections that have regions, or want some.
    pub users: u32,
    /// Regions of the connection that needs another.
    pub held: u32,
}

impl MrDemand {
    /// Returns where the connection gets its next region from. `None`: a new one, from the device. `Some(n)`: an idle
    /// one, from a connection that has at least `n`, as always if the device has no more (`failed`).
    pub fn idle_from(self, failed: bool) -> Option<u32> {
        let share = self.bound.checked_div(self.users).unwrap_or(u32::MAX);
        let plenty = self.there < self.bound / 2;
        let fair = self.there < self.bound && self.held < share.max(1);
        if !failed && (plenty || fair) {
            return None;
        }
        // A connection without regions takes any. Otherwise the other connection has the same number as this one
        // afterwards, or more: two that need one at the same time do not take it from each other for ever.
        Some(match self.held {
            0 => 1,
            n => n.saturating_add(2),
        })
    }
}

#[cfg(any(test, ro2iblnd_kunit))]
#[cfg_attr(ro2iblnd_kunit, ::kernel::macros::kunit_tests(ro2ib_mr_quota))]
mod tests {
    use super::*;

    const PLENTY: MrDemand = MrDemand {
        bound: 64,
        there: 0,
        users: 4,
        held: 0,
    };

    #[test]
    fn others_keep_a_quarter() {
        assert_eq!(bound(32), 24);
        assert_eq!(bound(1), 1);
        assert_eq!(bound(3), 3);
        assert_eq!(bound(0), u32::MAX);
        assert_eq!(bound(u32::MAX), u32::MAX - u32::MAX / 4);
    }

    #[test]
    fn no_region_takes_twice_the_memory_for_one_page() {
        // Pages of 4 KiB, 2 KiB, 64 KiB in 1 MiB.
        assert_eq!((pages(256), pages(512), pages(16)), (256, 512, 17));
        for whole in 0..5000 {
            let list = |pages: u32| pages.saturating_mul(8).next_power_of_two();
            assert!(pages(whole) < MANY_PAGES || list(pages(whole)) == list(whole.max(1)));
        }
    }

    #[test]
    fn below_half_regions_go_to_the_first_request() {
        let hog = MrDemand {
            there: 31,
            held: 31,
            ..PLENTY
        };
        assert_eq!(hog.idle_from(false), None);
        let all = MrDemand { there: 32, ..hog };
        assert_eq!(all.idle_from(false), Some(33));
    }

    #[test]
    fn the_rest_is_shared_fairly() {
        let late = MrDemand {
            there: 40,
            held: 15,
            ..PLENTY
        };
        assert_eq!(late.idle_from(false), None);
        let has_its_share = MrDemand { held: 16, ..late };
        assert_eq!(has_its_share.idle_from(false), Some(18));
        let full = MrDemand {
            there: 64,
            held: 3,
            ..PLENTY
        };
        assert_eq!(full.idle_from(false), Some(5));
        assert_eq!(late.idle_from(true), Some(17));
        let none = MrDemand { held: 0, ..full };
        assert_eq!(none.idle_from(false), Some(1));
    }

    #[test]
    fn more_users_than_regions() {
        let many = MrDemand {
            bound: 8,
            there: 6,
            users: 1000,
            held: 0,
        };
        assert_eq!(many.idle_from(false), None);
        let one = MrDemand { held: 1, ..many };
        assert_eq!(one.idle_from(false), Some(3));
        let nobody = MrDemand { users: 0, ..one };
        assert_eq!(nobody.idle_from(false), None);
    }
}
