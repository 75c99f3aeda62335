// SPDX-License-Identifier: GPL-2.0

//! A bound on how many refusals a stranger can make us send.

/// Bounds how many refusals are answered (H9): a token bucket.
///
/// A request that may not be answered is dropped: the requester repeats it as
/// if the packet had been lost. The InfiniBand CM drops silently when the
/// handler of the request returns `-ENOMEM`, and rejects by itself for any
/// other error (`cm_destroy_id()` in drivers/infiniband/core/cm.c).
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct RejectBudget {
    tokens: u32,
    last_ms: u64,
}

impl RejectBudget {
    /// Rejects that may follow each other without a pause.
    pub const BURST: u32 = 64;
    /// Milliseconds in which one more reject becomes possible.
    pub const REFILL_MS: u64 = 10;

    /// A full budget at `now_ms`, any monotonic clock in milliseconds.
    pub const fn new(now_ms: u64) -> Self {
        Self {
            tokens: Self::BURST,
            last_ms: now_ms,
        }
    }

    /// Whether one more refusal may be answered; counts it if so.
    pub fn take(&mut self, now_ms: u64) -> bool {
        let earned = now_ms
            .saturating_sub(self.last_ms)
            .checked_div(Self::REFILL_MS)
            .unwrap_or(0);
        if earned > 0 {
            let earned = u32::try_from(earned).unwrap_or(u32::MAX);
            self.tokens = self.tokens.saturating_add(earned).min(Self::BURST);
            // Time that earned no whole token is not lost.
            let used = u64::from(earned).saturating_mul(Self::REFILL_MS);
            self.last_ms = match self.tokens {
                Self::BURST => now_ms,
                _ => self.last_ms.saturating_add(used),
            };
        }
        match self.tokens.checked_sub(1) {
            Some(left) => {
                self.tokens = left;
                true
            }
            None => false,
        }
    }
}

#[cfg(any(test, ro2iblnd_kunit))]
#[cfg_attr(ro2iblnd_kunit, ::kernel::macros::kunit_tests(ro2iblnd_proto_budget))]
mod tests {
    use super::*;

    #[test]
    fn a_burst_then_the_rate() {
        let mut b = RejectBudget::new(1000);
        for _ in 0..RejectBudget::BURST {
            assert!(b.take(1000));
        }
        assert!(!b.take(1000));
        assert!(!b.take(1009));
        assert!(b.take(1010));
        assert!(!b.take(1019));
        assert!(b.take(1020));
    }

    #[test]
    fn odd_time_is_not_lost_and_a_pause_fills_up() {
        let mut b = RejectBudget::new(0);
        for _ in 0..RejectBudget::BURST {
            assert!(b.take(0));
        }
        assert!(b.take(15));
        assert!(!b.take(15));
        assert!(b.take(20));
        // A clock that jumps back earns nothing and breaks nothing.
        assert!(!b.take(3));
        for _ in 0..RejectBudget::BURST {
            assert!(b.take(u64::MAX));
        }
        assert!(!b.take(u64::MAX));
    }
}
