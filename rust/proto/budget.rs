// SPDX-License-Identifier: GPL-2.0

//! A bound on how many refusals strangers can make us send, and on each one's part of them.

/// What one address has left of the refusals; several may share one of these.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Part {
    /// Milliseconds worth of them, at [`Self::MS`] each.
    ms: u32,
    last_ms: u64,
}

impl Part {
    /// Refusals that one address may get without a pause: after a restart of ours each peer that has a part with others
    /// gets its own.
    pub const BURST: u32 = 128;

    /// Milliseconds until one more becomes possible.
    pub const MS: u32 = 8;

    const FULL_MS: u32 = Self::BURST * Self::MS;

    /// Nobody has used anything of it.
    pub const FULL: Self = Self {
        ms: Self::FULL_MS,
        last_ms: 0,
    };

    fn earn(&mut self, now_ms: u64) {
        let earned = now_ms.saturating_sub(self.last_ms);
        let earned = u32::try_from(earned).unwrap_or(u32::MAX);
        self.ms = self.ms.saturating_add(earned).min(Self::FULL_MS);
        self.last_ms = now_ms.max(self.last_ms);
    }

    fn has_some(&self) -> bool {
        self.ms >= Self::MS
    }

    fn spend(&mut self) {
        self.ms = self.ms.saturating_sub(Self::MS);
    }
}

/// Bounds how many refusals are answered (H9): a token bucket. Wide enough for the clients of a server whose NI
/// is down, narrow enough to leave the CPU to others. What invites another request
/// ([`Refusal::invites`](super::refusal::Refusal::invites)) may overdraw it: after a restart of ours every peer
/// gets one, and must not wait for the bucket to fill.
///
/// No address uses up more than a [`Part`] of it, so that others are told, too. The parts are the caller's memory, and
/// always as many, whoever asks: an address has the one that its hash says. Which addresses share one is not to be
/// foreseen, so nobody can choose whom he keeps from his answers.
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
    salt: u64,
}

impl RejectBudget {
    /// Rejects that may follow each other without a pause. One more becomes possible each millisecond.
    pub const BURST: u32 = 1024;

    /// How many more of those that invite another request.
    pub const OVERDRAFT: u32 = 16384;

    /// Parts there should be: of a cluster of ten thousand clients some twenty share one.
    pub const PARTS: usize = 512;

    const FULL: u32 = Self::BURST + Self::OVERDRAFT;

    /// A full budget at `now_ms`, any monotonic clock in milliseconds. `salt` is random.
    pub const fn new(now_ms: u64, salt: u64) -> Self {
        Self {
            tokens: Self::FULL,
            last_ms: now_ms,
            salt,
        }
    }

    /// Whether one more refusal may be answered, of a request that came from `addr`; counts it if so. All who have no
    /// address have one part together.
    pub fn take(
        &mut self,
        parts: &mut [Part],
        addr: Option<u32>,
        now_ms: u64,
        invites: bool,
    ) -> bool {
        let earned = now_ms.saturating_sub(self.last_ms);
        let earned = u32::try_from(earned).unwrap_or(u32::MAX);
        self.tokens = self.tokens.saturating_add(earned).min(Self::FULL);
        self.last_ms = now_ms.max(self.last_ms);
        let Some(part) = parts.get_mut(self.place(addr, parts.len())) else {
            return false;
        };
        part.earn(now_ms);
        let least = if invites { 0 } else { Self::OVERDRAFT };
        if self.tokens <= least || !part.has_some() {
            return false;
        }
        self.tokens = self.tokens.saturating_sub(1);
        part.spend();
        true
    }

    fn place(&self, addr: Option<u32>, parts: usize) -> usize {
        // The bits of a sum of products with random numbers, of which the upper ones are mixed best.
        let addr = u64::from(addr.unwrap_or(0));
        let hash = (addr ^ self.salt).wrapping_mul(self.salt | 1) >> 32;
        usize::try_from(hash)
            .unwrap_or(0)
            .checked_rem(parts)
            .unwrap_or(0)
    }
}

#[cfg(any(test, ro2iblnd_kunit))]
#[cfg_attr(ro2iblnd_kunit, ::kernel::macros::kunit_tests(ro2iblnd_proto_budget))]
mod tests {
    use super::*;

    const SALT: u64 = 0x9e37_79b9_7f4a_7c15;

    /// A budget whose parts do not matter: each request is somebody else's.
    struct Whole {
        budget: RejectBudget,
        parts: [Part; 64],
        next: u32,
    }

    impl Whole {
        fn new(now_ms: u64) -> Self {
            Self {
                budget: RejectBudget::new(now_ms, SALT),
                parts: [Part::FULL; 64],
                next: 0,
            }
        }

        fn take(&mut self, now_ms: u64, invites: bool) -> bool {
            self.parts = [Part::FULL; 64];
            self.next = self.next.wrapping_add(1);
            let addr = Some(self.next);
            self.budget.take(&mut self.parts, addr, now_ms, invites)
        }
    }

    #[test]
    fn a_burst_then_the_rate() {
        let mut b = Whole::new(1000);
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
        let mut b = Whole::new(0);
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
        let mut b = Whole::new(0);
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

    /// How many refusals `addr` gets at once at `now_ms`.
    fn gets(b: &mut RejectBudget, parts: &mut [Part], addr: u32, now_ms: u64) -> usize {
        (0..100_000)
            .take_while(|_| b.take(parts, Some(addr), now_ms, true))
            .count()
    }

    #[test]
    fn one_address_leaves_most_to_others() {
        let burst = usize::try_from(Part::BURST).unwrap_or(0);
        let mut b = RejectBudget::new(0, SALT);
        let mut parts = [Part::FULL; 64];
        assert_eq!(gets(&mut b, &mut parts, 7, 0), burst);
        assert!(b.take(&mut parts, Some(8), 0, false));
        // It may try as often as it likes; it gets more by and by, and no more than its part.
        for turn in 1..=10u64 {
            let ms = turn.saturating_mul(u64::from(Part::MS));
            assert_eq!(gets(&mut b, &mut parts, 7, ms), 1);
            assert!(b.take(&mut parts, Some(8), ms, false));
        }
        assert_eq!(gets(&mut b, &mut parts, 7, 1 << 40), burst);
    }

    #[test]
    fn a_cluster_is_told_after_a_restart() {
        let mut b = RejectBudget::new(0, SALT);
        // An eighth of them, and an eighth of five thousand nodes with three connections each.
        let mut parts = [Part::FULL; RejectBudget::PARTS / 8];
        let told = (0..625u32)
            .flat_map(|n| [n; 3])
            .filter(|n| b.take(&mut parts, Some(0x0a00_0000 | n), 0, true))
            .count();
        assert_eq!(told, 3 * 625);
    }

    #[test]
    fn who_has_no_address_has_a_part_and_no_room_is_no_fault() {
        let mut b = RejectBudget::new(0, SALT);
        let mut parts = [Part::FULL; 4];
        let told = (0..1000).filter(|_| b.take(&mut parts, None, 0, true));
        assert_eq!(told.count(), Part::BURST as usize);
        assert!(!b.take(&mut [], Some(1), 0, true));
    }
}
