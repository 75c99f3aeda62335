// SPDX-License-Identifier: GPL-2.0

//! Reference count that saturates, as `refcount_t`.
//!
//! Not all kernel crates have a type for `refcount_t`. A count that nears overflow stays where it is, and the object is
//! never destroyed. Any context; no locks.

use super::atomic::{
    Acquire,
    Atomic,
    Full,
    Relaxed, //
};

/// Count from which on it saturates.
const LIMIT: u32 = 1 << 31;

/// Value of a saturated count: as far from both ends as possible.
const SATURATED: u32 = LIMIT + (1 << 30);

/// Number of users of an object.
///
/// # Invariants
///
/// It is no less than the number of users, or has been [`LIMIT`].
pub(crate) struct Refcount(Atomic<u32>);

impl Refcount {
    /// Creates a count of `n` users.
    pub(crate) fn new(n: u32) -> Self {
        Self(Atomic::new(n))
    }

    /// Counts one more user. The caller is a user already.
    pub(crate) fn get(&self) {
        if self.0.fetch_add(1, Relaxed) >= LIMIT {
            self.saturate();
        }
    }

    /// Counts one more user, unless the last one has gone.
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

    /// Counts one user less. Returns whether that was the last one.
    #[must_use]
    pub(crate) fn put(&self) -> bool {
        let users = self.0.fetch_sub(1, Full);

        if users > LIMIT {
            self.saturate();
        }
        users == 1
    }

    /// Makes the caller a user again. The last user has just gone, and nothing else counts any more.
    pub(crate) fn resurrect(&self) {
        self.0.store(1, Relaxed);
    }

    fn saturate(&self) {
        // INVARIANT: It was `LIMIT`.
        self.0.store(SATURATED, Relaxed);
    }
}
