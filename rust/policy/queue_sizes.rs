// SPDX-License-Identifier: GPL-2.0

//! Sizes of the queues of a connection.
//!
//! With depth `d` and `r` work requests per registration, traffic as the credits allow it needs `3d + 2` SENDs
//! (requests, answers, PUT_DONEs, NOOPs), `d` WRITEs if the transfers are small, `d * r` for registrations and
//! `d` LOCAL_INVs. `r` is 1, but 2 on rxe.
//!
//! A queue has room for these, and has a power of two as size, because adapters and rxe round it up anyway. WRITEs of
//! large transfers use the free slots: each moves a page for every gather element, so the 61 slots of depth 8 are 7
//! MiB, and no path holds as much. Slots are counted exactly, and a chain that does not fit goes in parts
//! ([`crate::proto::tx_table`]): a shorter queue only means waiting. With room for all chains at a time the send queue
//! was most of the memory of an idle connection.

use crate::proto::{
    constants::QueueDepth,
    tx_table::NOOP_SLOTS, //
};

/// Reserved places of a queue: for the drain markers, and the one that a ring leaves empty.
const OTHERS: u16 = 3;

/// Places of the smallest queue: chains go in parts of some length at any depth.
const LEAST: u16 = 64;

/// Returns the slots of the send queue, within the limit of the device. A registration takes `reg_wrs` of them.
pub fn send_queue(depth: QueueDepth, reg_wrs: u16, device_max: u32) -> u16 {
    let d = u16::from(depth.get());
    let sends = d.saturating_mul(3).saturating_add(NOOP_SLOTS);
    let small = d.saturating_mul(reg_wrs.saturating_add(2));
    let all = sends.saturating_add(small).saturating_add(OTHERS);
    let queue = all.max(LEAST).checked_next_power_of_two();
    let device = u16::try_from(device_max)
        .unwrap_or(u16::MAX)
        // Drain markers have slots of their own.
        .saturating_sub(2);
    queue.unwrap_or(u16::MAX).saturating_sub(OTHERS).min(device)
}

/// Returns the greatest depth up to `wanted` whose receives fit into a queue of the device, and for which there are
/// enough memory regions, so that one connection alone never lacks one if no more credits than that are given out.
pub fn deepest(wanted: QueueDepth, device_max: u32, max_regions: u32) -> QueueDepth {
    // The drain marker has a slot of its own.
    let receives = u16::try_from(device_max)
        .unwrap_or(u16::MAX)
        .saturating_sub(1);
    let room = receives.saturating_sub(QueueDepth::MIN.rx_buffers()) / 2;
    let most = QueueDepth::new(room.saturating_add(1)).unwrap_or(QueueDepth::MAX);
    let most_regions = u16::try_from(max_regions).unwrap_or(u16::MAX) / REGIONS;
    let covered = QueueDepth::new(most_regions.max(1)).unwrap_or(QueueDepth::MAX);
    wanted.min(most).min(covered)
}

/// Memory regions of a connection for each of its credits.
const REGIONS: u16 = 3;

/// Returns the number of memory regions: one for each sink of this node, at most `from_lnet`, one for each of the
/// peer's requests, and the same number again for regions whose invalidation has not completed when the peer already
/// has its credit back.
pub fn memory_regions(depth: QueueDepth, from_lnet: QueueDepth) -> u16 {
    u16::from(depth.get())
        .saturating_mul(2)
        .saturating_add(u16::from(from_lnet.get()))
}

/// Queue pairs that are tried for one connection.
pub const DEPTH_ATTEMPTS: u8 = 8;

/// Search for a queue depth that the device has room for: the wanted depth if possible, otherwise by bisection the
/// largest that [`DEPTH_ATTEMPTS`] can find.
///
/// # Invariants
///
/// `good < bad`: at `bad` there was no queue pair, at `good` there was one (0: at none so far), and `now` lies
/// between them, or is `good` once more for the last attempt.
#[derive(Clone, Copy, Debug)]
pub struct DepthSearch {
    good: u16,
    bad: u16,
    now: QueueDepth,
    left: u8,
    /// A greater depth failed after a smaller one had succeeded, so the depth is the cause.
    is_depth: bool,
    /// `now` is the result of an earlier search: it is taken if there is room for it.
    remembered: bool,
}

impl DepthSearch {
    /// Creates a search that begins with `wanted`.
    pub fn new(wanted: QueueDepth) -> Self {
        // INVARIANT: nothing is known to work, nothing to fail.
        Self {
            good: 0,
            bad: wanted.wire().saturating_add(1),
            now: wanted,
            left: DEPTH_ATTEMPTS.saturating_sub(1),
            is_depth: false,
            remembered: false,
        }
    }

    /// Returns the depth to try.
    pub fn now(&self) -> QueueDepth {
        self.now
    }

    /// Notes that a queue pair of depth [`DepthSearch::now`] was created. Returns true to keep it, and false to destroy
    /// it because a larger one is worth the attempt (and an attempt is left to come back).
    #[must_use]
    pub fn had(&mut self) -> bool {
        let at = self.now.wire();
        let gap = self.bad.saturating_sub(at);
        if self.remembered {
            return true;
        }
        // Not for a gain of a single credit, or of an eighth at most.
        if self.left < 2 || at <= self.good || gap <= 2.max(at / 8) {
            return true;
        }
        // INVARIANT: `now` was between the two.
        self.good = at;
        !self.aim()
    }

    /// Notes that there is no queue pair of that depth. Returns false if no smaller one is left to try, or no attempt.
    #[must_use]
    pub fn failed(&mut self) -> bool {
        let at = self.now.wire();
        self.remembered = false;
        self.is_depth |= self.good > 0 && at > self.good;
        // INVARIANT: `now` was above `good`, or was `good`, which then is no more.
        self.bad = at;
        if self.good >= at {
            self.good = 0;
        }
        if self.left == 0 {
            return false;
        }
        self.aim()
    }

    /// Chooses the next depth, and counts the attempt.
    fn aim(&mut self) -> bool {
        let middle = self.good.saturating_add(self.bad) / 2;
        // The last attempt uses a depth that is known to work.
        let next = if self.left == 1 && self.good > 0 {
            self.good
        } else {
            middle.max(self.good)
        };
        match QueueDepth::new(next) {
            Some(depth) => {
                self.now = depth;
                self.left = self.left.saturating_sub(1);
                true
            }
            None => false,
        }
    }
}

/// Milliseconds for which a device is believed to have no room for deeper queues.
pub const DEPTH_KEPT_MS: u64 = 60_000;

/// Result of the last search on a device, with which the next one begins. Otherwise each connection would try a depth
/// for which the device has no room, at the cost of some firmware commands. It is forgotten after [`DEPTH_KEPT_MS`],
/// because room may be made. A search for a smaller depth changes nothing.
///
/// Eight bytes, for an atomic: of two searches that end at the same time one is remembered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DepthMemory(u64);

impl DepthMemory {
    const DEPTH_BITS: u32 = 8;

    /// Creates it from the result of [`DepthMemory::bits`].
    pub fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Returns it as a number; 0: nothing.
    pub fn bits(self) -> u64 {
        self.0
    }

    /// Returns a search for `wanted` that begins at `now_ms`.
    pub fn search(self, wanted: QueueDepth, now_ms: u64) -> DepthSearch {
        let search = DepthSearch::new(wanted);
        let depth = u8::try_from(self.0 & 0xff).unwrap_or(0);
        // A clock that went back is no reason to believe it for longer.
        let age = now_ms.checked_sub(self.0 >> Self::DEPTH_BITS);
        match QueueDepth::new(depth.into()) {
            Some(now) if now < wanted && age.is_some_and(|age| age < DEPTH_KEPT_MS) => {
                DepthSearch {
                    now,
                    remembered: true,
                    ..search
                }
            }
            _ => search,
        }
    }

    /// Returns what is to be remembered after `search`, which ended at `now_ms` with a queue pair.
    ///
    /// Use does not extend the life of a remembered depth. A failure with another cause than the depth is not
    /// remembered, for example of a device that had no queue pair left for a moment.
    #[must_use]
    pub fn after(self, search: &DepthSearch, now_ms: u64) -> Self {
        if !search.is_depth {
            return self;
        }
        let time = now_ms.checked_shl(Self::DEPTH_BITS).unwrap_or(0);
        Self(time | u64::from(search.now.get()))
    }
}

/// Returns the number of receive buffers beyond those of the protocol, which replace buffers that LNet keeps.
pub fn spare_buffers(depth: QueueDepth) -> usize {
    usize::from(depth.get().clamp(4, 32))
}

#[cfg(any(test, ro2iblnd_kunit))]
#[cfg_attr(ro2iblnd_kunit, ::kernel::macros::kunit_tests(ro2ib_queue_sizes))]
mod tests {
    use super::*;
    use crate::proto::tx_table::PART;

    #[test]
    fn no_depth_is_tried_that_the_device_cannot_have() {
        for max in 0..1200 {
            let got = deepest(QueueDepth::MAX, max, u32::MAX);
            let takes = |d: QueueDepth| u32::from(d.rx_buffers()).saturating_add(1) <= max;
            assert!(takes(got) || got == QueueDepth::MIN);
            let more = QueueDepth::new(u16::from(got.get()).saturating_add(1));
            assert!(more.is_none_or(|more| !takes(more)));
            assert_eq!(deepest(QueueDepth::MIN, max, u32::MAX), QueueDepth::MIN);
        }
    }

    #[test]
    fn no_depth_is_tried_that_there_are_no_regions_for() {
        for regions in 0..1000 {
            let got = deepest(QueueDepth::MAX, u32::MAX, regions);
            let takes = |d: QueueDepth| u32::from(memory_regions(d, d)) <= regions;
            assert!(takes(got) || got == QueueDepth::MIN);
            let more = QueueDepth::new(u16::from(got.get()).saturating_add(1));
            assert!(more.is_none_or(|more| !takes(more)));
        }
    }

    #[test]
    fn send_queue_fits_all_that_credits_allow() {
        for d in 1..=255 {
            for reg_wrs in 1..=2 {
                let sq = send_queue(depth(d), reg_wrs, 32768);
                // Messages, and small transfers both ways.
                let each = reg_wrs.saturating_add(5);
                let small = d.saturating_mul(each).saturating_add(NOOP_SLOTS);
                assert!(sq >= small && sq <= 32766);
                // The room that costs no more memory is used.
                let places = sq.saturating_add(OTHERS);
                assert!(places.is_power_of_two());
                assert!(places == LEAST || small > places.div_euclid(2).saturating_sub(OTHERS));
                assert!(send_queue(depth(d), reg_wrs, 512) <= 510);
                // The parts of a chain fit into any queue.
                assert!(sq >= PART.saturating_add(NOOP_SLOTS));
            }
        }
        // The defaults of rxe, and the deepest that ko2iblnd has in use.
        assert_eq!(send_queue(depth(8), 2, u32::MAX), 61);
        assert_eq!(send_queue(depth(128), 2, u32::MAX), 1021);
    }

    fn depth(d: u16) -> QueueDepth {
        QueueDepth::new(d).unwrap_or(QueueDepth::MIN)
    }

    /// Returns the result of a search on a device that has room for `limit`, and its number of attempts.
    fn search(wanted: u16, limit: u16) -> (u16, u8) {
        let mut search = DepthSearch::new(depth(wanted));
        for attempt in 1..=DEPTH_ATTEMPTS {
            let d = search.now().wire();
            if d <= limit {
                if search.had() {
                    return (d, attempt);
                }
            } else if !search.failed() {
                return (0, attempt);
            }
        }
        (0, u8::MAX)
    }

    #[test]
    fn the_depth_is_found_in_eight_attempts() {
        for wanted in 1..=255 {
            assert_eq!(search(wanted, wanted), (wanted, 1));
            assert_eq!(search(wanted, 0).0, 0);
            for limit in 1..wanted {
                let (found, attempts) = search(wanted, limit);
                assert!(found >= 1 && found <= limit);
                assert!(attempts <= DEPTH_ATTEMPTS);
                // No worse than halving alone, which needs as many attempts for 1 of 255.
                assert!(found.saturating_mul(2) >= limit);
                // Better where attempts are left.
                assert!(limit < 16 || found >= limit.saturating_sub(limit.div_ceil(4)));
            }
        }
        assert_eq!(search(255, 100), (99, 7));
    }

    #[test]
    fn a_depth_that_worked_once_may_fail_later() {
        let mut search = DepthSearch::new(depth(64));
        assert!(search.failed());
        assert_eq!(search.now().wire(), 32);
        assert!(!search.had());
        // Now nothing works any more.
        for _ in 3..DEPTH_ATTEMPTS {
            assert!(search.failed());
        }
        assert_eq!(search.now().wire(), 32);
        assert!(!search.failed());
    }

    /// Searches as [`search`], on a device that is remembered.
    fn again(memory: &mut DepthMemory, wanted: u16, limit: u16, now_ms: u64) -> (u16, u8) {
        let mut search = memory.search(depth(wanted), now_ms);
        for attempt in 1..=DEPTH_ATTEMPTS {
            let d = search.now().wire();
            if d <= limit {
                if search.had() {
                    *memory = memory.after(&search, now_ms);
                    return (d, attempt);
                }
            } else if !search.failed() {
                return (0, attempt);
            }
        }
        (0, u8::MAX)
    }

    #[test]
    fn a_depth_is_looked_for_once() {
        let mut memory = DepthMemory::default();
        assert_eq!(again(&mut memory, 255, 100, 1000), (99, 7));
        for now_ms in (1000..1000 + DEPTH_KEPT_MS).step_by(1000) {
            assert_eq!(again(&mut memory, 255, 100, now_ms), (99, 1));
        }
        // A smaller depth is found at once, and says nothing about larger ones.
        assert_eq!(again(&mut memory, 8, 100, 5000), (8, 1));
        assert_eq!(again(&mut memory, 255, 100, 6000), (99, 1));
        // It is used all the time, and still forgotten.
        assert_eq!(again(&mut memory, 255, 255, 1000 + DEPTH_KEPT_MS), (255, 1));
        assert_eq!(again(&mut memory, 255, 100, 2000 + DEPTH_KEPT_MS), (99, 7));
        // Less room than before.
        let (found, attempts) = again(&mut memory, 255, 20, 3000 + DEPTH_KEPT_MS);
        assert!((16..=20).contains(&found) && attempts > 1);
        let after = again(&mut memory, 255, 20, 4000 + DEPTH_KEPT_MS);
        assert_eq!(after, (found, 1));
        assert_eq!(DepthMemory::from_bits(memory.bits()), memory);
        // A clock that goes back.
        assert!(again(&mut memory, 255, 20, 0).1 > 1);
    }

    #[test]
    fn only_a_depth_that_is_the_cause_is_remembered() {
        // The device had no queue pair left for a moment, at any depth.
        for failures in 1..DEPTH_ATTEMPTS {
            let mut search = DepthSearch::new(depth(255));
            for _ in 0..failures {
                assert!(search.failed());
            }
            while !search.had() {}
            let memory = DepthMemory::default().after(&search, 1000);
            assert_eq!(memory, DepthMemory::default());
        }
        // There is room for half of it, and for no more.
        let mut memory = DepthMemory::default();
        assert_eq!(again(&mut memory, 8, 4, 1000), (4, 5));
        assert_eq!(again(&mut memory, 8, 4, 2000), (4, 1));
    }

    #[test]
    fn a_remembered_search_ends_as_any() {
        for kept in 1..=255u8 {
            for limit in (0..=255).step_by(5) {
                let mut memory = DepthMemory::from_bits(kept.into());
                let (found, attempts) = again(&mut memory, 255, limit, 0);
                assert!(found <= limit && attempts <= DEPTH_ATTEMPTS);
                assert!(found >= 1 || limit <= 2);
            }
        }
    }
}
