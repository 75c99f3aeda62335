// SPDX-License-Identifier: GPL-2.0

//! A bound on how many refusals a stranger can make us send.

/// Bounds how many refusals are answered (H9): a token bucket. Wide enough for the clients of a server whose NI
/// is down, narrow enough to leave the CPU to others. What invites another request
/// ([`Refusal::invites`](super::refusal::Refusal::invites)) may overdraw it: after a restart of ours every peer
/// gets one, and must not wait for the bucket to fill.
///
/// A request that may not be answered is dropped: the requester repeats it as
/// if the packet had been lost. The InfiniBand CM drops silently when the
/// handler of the request returns `-ENOMEM`, and rejects by itself for any
/// other error (`cm_destroy_id()` in drivers/infiniband/core/cm.c).
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct RejectBudget {
    /// Above [`Self::OVERDRAFT`]: credit; below: debt.
    tokens: u32,
    last_ms: u64,
}

impl RejectBudget {
    /// Rejects that may follow each other without a pause. One more becomes possible each millisecond.
    pub const BURST: u32 = 1024;

    /// How many more of those that invite another request.
    pub const OVERDRAFT: u32 = 16384;

    const FULL: u32 = Self::BURST + Self::OVERDRAFT;

    /// A full budget at `now_ms`, any monotonic clock in milliseconds.
    pub const fn new(now_ms: u64) -> Self {
        Self {
            tokens: Self::FULL,
            last_ms: now_ms,
        }
    }

    /// Whether one more refusal may be answered; counts it if so.
    pub fn take(&mut self, now_ms: u64, invites: bool) -> bool {
        let earned = now_ms.saturating_sub(self.last_ms);
        let earned = u32::try_from(earned).unwrap_or(u32::MAX);
        self.tokens = self.tokens.saturating_add(earned).min(Self::FULL);
        self.last_ms = now_ms.max(self.last_ms);
        let least = if invites { 0 } else { Self::OVERDRAFT };
        if self.tokens <= least {
            return false;
        }
        self.tokens = self.tokens.saturating_sub(1);
        true
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
            assert!(b.take(1000, false));
        }
        assert!(!b.take(1000, false));
        assert!(b.take(1001, false));
        assert!(!b.take(1001, false));
        assert!(b.take(1002, false));
    }

    #[test]
    fn an_invitation_may_overdraw() {
        let mut b = RejectBudget::new(0);
        for _ in 0..RejectBudget::BURST {
            assert!(b.take(0, false));
        }
        assert!(!b.take(0, false));
        for _ in 0..RejectBudget::OVERDRAFT {
            assert!(b.take(0, true));
        }
        assert!(!b.take(0, true));
        assert!(b.take(1, true));
        // Others wait until the debt is paid.
        assert!(!b.take(u64::from(RejectBudget::OVERDRAFT), false));
        assert!(b.take(u64::from(RejectBudget::OVERDRAFT) + 2, false));
    }

    #[test]
    fn a_pause_fills_up() {
        let mut b = RejectBudget::new(0);
        for _ in 0..RejectBudget::BURST {
            assert!(b.take(0, false));
        }
        assert!(b.take(2, false));
        assert!(b.take(2, false));
        assert!(!b.take(2, false));
        // A clock that jumps back earns nothing and breaks nothing.
        assert!(!b.take(1, false));
        assert!(b.take(3, false));
        for _ in 0..RejectBudget::BURST {
            assert!(b.take(u64::MAX, false));
        }
        assert!(!b.take(u64::MAX, false));
    }
}
