// SPDX-License-Identifier: GPL-2.0

//! A bound on how many refusals a stranger can make us send.

/// Bounds how many refusals are answered (H9): a token bucket. Wide enough for the clients of a server whose NI
/// is down, narrow enough to leave the CPU to others; what invites another request is not counted
/// ([`Refusal::invites`](super::refusal::Refusal::invites)).
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
    /// Rejects that may follow each other without a pause. One more becomes possible each millisecond.
    pub const BURST: u32 = 1024;

    /// A full budget at `now_ms`, any monotonic clock in milliseconds.
    pub const fn new(now_ms: u64) -> Self {
        Self {
            tokens: Self::BURST,
            last_ms: now_ms,
        }
    }

    /// Whether one more refusal may be answered; counts it if so.
    pub fn take(&mut self, now_ms: u64) -> bool {
        let earned = now_ms.saturating_sub(self.last_ms);
        let earned = u32::try_from(earned).unwrap_or(u32::MAX);
        self.tokens = self.tokens.saturating_add(earned).min(Self::BURST);
        self.last_ms = now_ms.max(self.last_ms);
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
        assert!(b.take(1001));
        assert!(!b.take(1001));
        assert!(b.take(1002));
    }

    #[test]
    fn a_pause_fills_up() {
        let mut b = RejectBudget::new(0);
        for _ in 0..RejectBudget::BURST {
            assert!(b.take(0));
        }
        assert!(b.take(2));
        assert!(b.take(2));
        assert!(!b.take(2));
        // A clock that jumps back earns nothing and breaks nothing.
        assert!(!b.take(1));
        assert!(b.take(3));
        for _ in 0..RejectBudget::BURST {
            assert!(b.take(u64::MAX));
        }
        assert!(!b.take(u64::MAX));
    }
}
