// SPDX-License-Identifier: GPL-2.0

//! Rate limits on connection requests, in total and for each source address: how many are rejected with an answer, and
//! how many are accepted.
//!
//! No address uses up more than a [`SourceBucket`], so that something is left for other addresses. The buckets are
//! memory of the caller, always the same number, for any number of requests. A peer cannot foresee which addresses
//! share one ([`super::addr_hash`]), so an attacker cannot choose addresses that share a victim's bucket. When
//! some dozen addresses have used up the total, each bucket still gets one request now and then: in all the same number
//! again as the rate restores.
//!
//! Requests beyond the limit are dropped: the requester repeats them as if the packet had been lost. The InfiniBand CM
//! drops silently when the handler of the request returns `-ENOMEM`, and rejects by itself for any other error
//! (`cm_destroy_id()` in drivers/infiniband/core/cm.c).
//!
//! Context: any; the caller holds the lock of the rate limit.

use core::ops::DerefMut;

use super::addr_hash;
use crate::proto::{
    reject::RejectCause,
    require, //
};

/// Size of the budget, and how fast it is restored.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Rates {
    /// Requests of all addresses together without a pause.
    burst: u32,
    /// Milliseconds until one more becomes possible.
    ms: u32,
    /// Further requests that may use the overdraft.
    overdraft: u32,
    /// Requests of one address without a pause; several may share that.
    part_burst: u32,
    /// Milliseconds until it may use one more.
    part_ms: u32,
}

/// Rejects that are answered (H9). Large enough for the clients of a server whose NI is down, small enough to leave the
/// CPU to other tasks. A reject that invites another request ([`RejectCause::invites`]) may use the overdraft: after a
/// restart of this node every peer gets one, and must not wait.
pub const REFUSALS: Rates = Rates {
    burst: 1024,
    ms: 1,
    overdraft: 16384,
    part_burst: 128,
    part_ms: 8,
};

/// Requests that are accepted (H44), in units of [`timer_units`]. Each request costs a queue pair for a while. When the
/// connection is closed, the CM keeps a timer for twice the packet life time that the request states: up to 2.3 hours.
/// The rates keep the number of these timers below a million, whatever the requests state. All addresses together have
/// room for three storms of ten thousand clients with four connections each.
pub const TAKEN: Rates = Rates {
    burst: 163_840,
    ms: 1,
    overdraft: 0,
    part_burst: 512,
    part_ms: 100,
};

/// Returns how many units of [`TAKEN`] a request costs whose packet life time is 4.096 us * 2^`packet_life_time`.
///
/// Ten for the longest timer (2.3 hours), in proportion to the timer for others, and one at least. Honest requests
/// state 0.3 s (RoCE) or what the subnet manager says, a few seconds; they cost one.
pub fn timer_units(packet_life_time: u8) -> u32 {
    /// Exponent of the longest timer, which the CM uses for all larger values, too.
    const LONGEST: u8 = 30;
    const MOST: u32 = 10;

    let halvings = LONGEST.saturating_sub(packet_life_time);
    let times = 1u32.checked_shl(halvings.into()).unwrap_or(u32::MAX);
    MOST.div_ceil(times)
}

/// Recommended number of buckets: in a cluster of ten thousand clients some twenty share one.
pub const PARTS: usize = 512;

/// Use by the addresses that share a bucket; the default is none.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct SourceBucket {
    /// Time when all use is restored.
    restored_ms: u64,
    taken_ms: u64,
}

/// Rate limit of all addresses, with the buckets in the memory `B`. The times are on any clock in milliseconds.
pub struct RateLimit<B> {
    rates: Rates,
    /// Time when all use is restored.
    restored_ms: u64,
    salt: u64,
    buckets: B,
}

impl<B: DerefMut<Target = [SourceBucket]>> RateLimit<B> {
    /// Creates an unused limit, from unused buckets. `salt` is random.
    pub const fn new(rates: Rates, salt: u64, buckets: B) -> Self {
        Self {
            rates,
            restored_ms: 0,
            salt,
            buckets,
        }
    }

    /// Counts a request that came from `addr`: one of its bucket, and `units` of the total. All requests without an
    /// address share one bucket. `overdraws`: the request may use the overdraft.
    ///
    /// # Errors
    ///
    /// The budget that is exhausted, of the bucket or of all addresses together; nothing is counted then.
    pub fn take(
        &mut self,
        addr: Option<u32>,
        now_ms: u64,
        units: u32,
        overdraws: bool,
    ) -> Result<(), RejectCause> {
        let rates = self.rates;
        let ms = rates.ms.saturating_mul(units);
        let burst = match overdraws {
            true => rates.burst.saturating_add(rates.overdraft),
            false => rates.burst,
        };
        let buckets = self.buckets.len();
        let place = addr_hash::index(addr.unwrap_or(0), self.salt, buckets);
        let none = RejectCause::TooOftenInAll;
        let bucket = self.buckets.get_mut(place).ok_or(none)?;
        // Each bucket gets its share of what is restored.
        let share_ms = u64::try_from(buckets).map_or(u64::MAX, |all| all.saturating_mul(ms.into()));
        let is_due = now_ms.saturating_sub(bucket.taken_ms) >= share_ms;
        let after = |restored_ms: u64, ms: u32| restored_ms.max(now_ms).saturating_add(ms.into());
        let fits = |after_ms: u64, burst: u32, ms: u32| {
            after_ms.saturating_sub(now_ms) <= burst.saturating_mul(ms).into()
        };
        let bucket_ms = after(bucket.restored_ms, rates.part_ms);
        let fits_bucket = fits(bucket_ms, rates.part_burst, rates.part_ms);
        require(fits_bucket, RejectCause::TooOften)?;
        let all_ms = after(self.restored_ms, ms);
        let fits_all = fits(all_ms, burst, rates.ms) || is_due;
        require(fits_all, RejectCause::TooOftenInAll)?;
        self.restored_ms = all_ms;
        bucket.restored_ms = bucket_ms;
        bucket.taken_ms = now_ms;
        Ok(())
    }
}

#[cfg(any(test, ro2iblnd_kunit))]
#[cfg_attr(ro2iblnd_kunit, ::kernel::macros::kunit_tests(ro2ib_request_rate))]
mod tests {
    use super::*;

    const SALT: u64 = 0x9e37_79b9_7f4a_7c15;

    const UNUSED: SourceBucket = SourceBucket {
        restored_ms: 0,
        taken_ms: 0,
    };

    type TestLimit<'a> = RateLimit<&'a mut [SourceBucket]>;

    /// Budget whose buckets do not matter: each request has another source.
    struct Whole<'a> {
        budget: TestLimit<'a>,
        next: u32,
    }

    impl<'a> Whole<'a> {
        fn new(parts: &'a mut [SourceBucket]) -> Self {
            Self {
                budget: RateLimit::new(REFUSALS, SALT, parts),
                next: 0,
            }
        }

        fn take(&mut self, now_ms: u64, invites: bool) -> bool {
            // None of them is due once the whole is used up.
            self.budget.buckets.fill(SourceBucket {
                taken_ms: now_ms,
                ..UNUSED
            });
            self.next = self.next.wrapping_add(1);
            let addr = Some(self.next);
            self.budget.take(addr, now_ms, 1, invites).is_ok()
        }
    }

    #[test]
    fn a_burst_then_the_rate() {
        let mut parts = [UNUSED; 64];
        let mut b = Whole::new(&mut parts);
        for _ in 0..REFUSALS.burst {
            assert!(b.take(1000, false));
        }
        assert!(!b.take(1000, false));
        assert!(b.take(1001, false));
        assert!(!b.take(1001, false));
        assert!(b.take(1002, false));
    }

    #[test]
    fn an_invitation_may_overdraw() {
        let mut parts = [UNUSED; 64];
        let mut b = Whole::new(&mut parts);
        for _ in 0..REFUSALS.burst {
            assert!(b.take(0, false));
        }
        assert!(!b.take(0, false));
        for _ in 0..REFUSALS.overdraft {
            assert!(b.take(0, true));
        }
        assert!(!b.take(0, true));
        assert!(b.take(1, true));
        // Others wait until the debt is paid.
        assert!(!b.take(u64::from(REFUSALS.overdraft), false));
        assert!(b.take(u64::from(REFUSALS.overdraft) + 2, false));
    }

    #[test]
    fn a_pause_fills_up() {
        let mut parts = [UNUSED; 64];
        let mut b = Whole::new(&mut parts);
        for _ in 0..REFUSALS.burst {
            assert!(b.take(0, false));
        }
        assert!(b.take(2, false));
        assert!(b.take(2, false));
        assert!(!b.take(2, false));
        // A clock that jumps back earns nothing and breaks nothing.
        assert!(!b.take(1, false));
        assert!(b.take(3, false));
        for _ in 0..REFUSALS.burst {
            assert!(b.take(u64::MAX / 2, false));
        }
        assert!(!b.take(u64::MAX / 2, false));
    }

    /// Returns how many rejects `addr` gets at once at `now_ms`.
    fn gets(b: &mut TestLimit<'_>, addr: u32, now_ms: u64) -> usize {
        (0..100_000)
            .take_while(|_| b.take(Some(addr), now_ms, 1, true).is_ok())
            .count()
    }

    #[test]
    fn one_address_leaves_most_to_others() {
        let burst = usize::try_from(REFUSALS.part_burst).unwrap_or(0);
        let mut parts = [UNUSED; 64];
        let mut b = RateLimit::new(REFUSALS, SALT, &mut parts[..]);
        assert_eq!(gets(&mut b, 7, 0), burst);
        assert_eq!(b.take(Some(8), 0, 1, false), Ok(()));
        // It may try as often as it likes; it gets more by and by, and no more than its part.
        for turn in 1..=10u64 {
            let ms = turn.saturating_mul(u64::from(REFUSALS.part_ms));
            assert_eq!(gets(&mut b, 7, ms), 1);
            assert_eq!(b.take(Some(8), ms, 1, false), Ok(()));
        }
        assert_eq!(gets(&mut b, 7, 1 << 40), burst);
    }

    #[test]
    fn every_node_of_a_cluster_is_answered_after_a_restart() {
        // An eighth of them, and an eighth of five thousand nodes with three connections each.
        let mut parts = [UNUSED; PARTS / 8];
        let mut b = RateLimit::new(REFUSALS, SALT, &mut parts[..]);
        let told = (0..625u32)
            .flat_map(|n| [n; 3])
            .filter(|n| b.take(Some(0x0a00_0000 | n), 0, 1, true).is_ok())
            .count();
        assert_eq!(told, 3 * 625);
    }

    #[test]
    fn request_without_an_address_has_its_own_bucket() {
        let mut parts = [UNUSED; 4];
        let mut b = RateLimit::new(REFUSALS, SALT, &mut parts[..]);
        let told = (0..1000).filter(|_| b.take(None, 0, 1, true).is_ok());
        assert_eq!(told.count(), REFUSALS.part_burst as usize);
        let mut b = RateLimit::new(REFUSALS, SALT, &mut [][..]);
        assert_eq!(b.take(Some(1), 0, 1, true), Err(RejectCause::TooOftenInAll));
    }

    #[test]
    fn frequent_reconnects_of_one_address_are_throttled_alone() {
        let mut parts = [UNUSED; PARTS];
        let mut b = RateLimit::new(TAKEN, SALT, &mut parts[..]);
        let mut tried = |addr, ms| b.take(Some(addr), ms, 1, false).is_ok();
        // Ten thousand clients with one each, and some with 32.
        assert!((0..10_000u32).all(|n| tried(0x0a00_0000 | n, 0)));
        assert!((0..100u32).all(|n| (0..32).all(|_| tried(0x0b00_0000 | n, 0))));
        // One tries a thousand times a second, for ten minutes.
        let taken = (3_000_000..3_600_000u64).filter(|ms| tried(7, *ms)).count();
        assert!((6_500..6_550).contains(&taken));
        // Other addresses are accepted, except those that share its bucket.
        let others = (0..1000u32).map(|n| tried(0x0c00_0000 | n, 3_600_000));
        assert!(others.filter(|taken| *taken).count() > 980);
        // The log says which budget it was.
        while b.take(Some(7), 3_600_000, 1, false).is_ok() {}
        assert_eq!(
            b.take(Some(7), 3_600_000, 1, false),
            Err(RejectCause::TooOften)
        );
    }

    /// Tests that ten thousand clients may lose all of their four connections three times in three minutes. Whatever
    /// the salt, no request is dropped, though a tenth of the clients ask three times because the server is busy.
    #[test]
    fn three_storms_of_forty_thousand_requests_are_taken() {
        for salt in [SALT, 1, 0x0123_4567_89ab_cdef] {
            let mut parts = [UNUSED; PARTS];
            let mut b = RateLimit::new(TAKEN, salt, &mut parts[..]);
            for begun in [1_000, 61_000, 121_000u64] {
                for n in 0..10_000u32 {
                    let asks = if n % 10 == 0 { 12 } else { 4 };
                    let addr = Some(0x0a00_0000 | n);
                    for _ in 0..asks {
                        let taken = b.take(addr, begun, timer_units(18), false);
                        assert_eq!(taken, Ok(()));
                    }
                }
            }
        }
    }

    #[test]
    fn there_are_never_a_million_timers() {
        assert_eq!(timer_units(0), 1);
        assert_eq!(timer_units(30), 10);
        assert_eq!(timer_units(u8::MAX), 10);
        for life in 0..=30u8 {
            let timer_ms = 1u32
                .checked_shl(u32::from(life).saturating_add(1))
                .unwrap_or(0)
                / 256;
            let costs_ms = TAKEN.ms.saturating_mul(timer_units(life));
            // Timers of the long run, and timers of a burst.
            let running = timer_ms.checked_div(costs_ms).unwrap_or(u32::MAX);
            let burst = TAKEN
                .burst
                .checked_div(timer_units(life))
                .unwrap_or(u32::MAX);
            let timers = running.saturating_add(burst);
            assert!(timers < 1_000_000);
        }
    }

    #[test]
    fn exhausted_total_leaves_each_bucket_a_request() {
        let mut parts = [UNUSED; PARTS];
        let mut b = RateLimit::new(TAKEN, SALT, &mut parts[..]);
        let (mut honest, mut made, mut spent) = (0u32, 0u32, 0u32);
        // A hundred addresses with the longest timers, each as fast as it can, for an hour; and one that tries
        // every four seconds.
        for ms in (10_000..3_610_000u64).step_by(100) {
            for addr in 0..100u32 {
                let asks = if ms == 10_000 { TAKEN.part_burst } else { 1 };
                for _ in 0..asks {
                    let addr = Some(0x0a00_0000 | addr);
                    match b.take(addr, ms, timer_units(30), false) {
                        Ok(()) => made = made.saturating_add(1),
                        Err(RejectCause::TooOftenInAll) => spent = spent.saturating_add(1),
                        Err(_) => {}
                    }
                }
            }
            let addr = Some(0x0b00_0001);
            if ms % 4_000 == 0 && b.take(addr, ms, timer_units(18), false).is_ok() {
                honest = honest.saturating_add(1);
            }
        }
        assert!(spent > 0);
        // All of its requests: it may have one in 0.5 s.
        assert_eq!(honest, 900);
        assert!(made < 500_000);
    }
}
