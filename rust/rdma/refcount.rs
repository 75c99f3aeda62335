// SPDX-License-Identifier: GPL-2.0

//! A count of those who use something, which the last of them destroys.
//!
//! As `refcount_t` of the kernel, which has no type in all of the kernel crates: a count that nears
//! overflow stays where it is, and what is counted is never destroyed. Any context; no locks.

use super::atomic::{
    Acquire,
    Atomic,
    Full,
    Relaxed, //
};

/// From here on it is not counted any more.
const LIMIT: u32 = 1 << 31;

/// Where it stays then: as far from both ends as can be.
const SATURATED: u32 = LIMIT + (1 << 30);

/// How many use something.
///
/// # Invariants
///
/// It is no less than the number of users, or has been [`LIMIT`].
pub(crate) struct Refcount(Atomic<u32>);

impl Refcount {
    /// `n` users.
    pub(crate) fn new(n: u32) -> Self {
        Self(Atomic::new(n))
    }

    /// One more, counted by one who is a user already.
    pub(crate) fn get(&self) {
        if self.0.fetch_add(1, Relaxed) >= LIMIT {
            self.saturate();
        }
    }

    /// One more, unless the last one has gone.
    pub(crate) fn try_get(&self) -> bool {
        let mut users = self.0.load(Relaxed);

        while users != 0 {
            if users >= LIMIT {
                self.saturate();
                return true;
            }
            // INVARIANT: It is one more user, and less than `LIMIT` now.
            match self.0.cmpxchg(users, users + 1, Acquire) {
                Ok(_) => return true,
                Err(now) => users = now,
            }
        }
        false
    }

    /// One less; whether that was the last one.
    #[must_use]
    pub(crate) fn put(&self) -> bool {
        let users = self.0.fetch_sub(1, Full);

        if users > LIMIT {
            self.saturate();
        }
        users == 1
    }

    /// The last one has just gone, and there will be no other: there is one again.
    pub(crate) fn resurrect(&self) {
        self.0.store(1, Relaxed);
    }

    fn saturate(&self) {
        // INVARIANT: It was `LIMIT`.
        self.0.store(SATURATED, Relaxed);
    }
}
