// SPDX-License-Identifier: GPL-2.0

//! Count of connections that closed because the device refused a work request.
//!
//! Some providers promise an operation and refuse the work request that needs it. Small messages pass
//! there, so every connection comes up, and ends with the first bulk transfer. Without a limit the
//! driver would reconnect for ever.
//!
//! A peer cannot make a provider refuse a work request, because the driver checks what a peer sends
//! before it posts.
//!
//! Any context; no state.

/// So many connections in a row that ended because the device refused a work request are no accident.
pub const MANY: u8 = 8;

/// A connection that lived for so many milliseconds worked: it begins a new row.
const WORKED_MS: u64 = 10_000;

/// Milliseconds between two connections of a row, at most.
const ROW_MS: u64 = 60_000;

/// The connections of a device that ended in a row because the device refused a work request.
///
/// Eight bytes, for an atomic: of two connections that end at the same time one may not be counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PostFailures(u64);

impl PostFailures {
    const COUNT_BITS: u32 = 8;

    /// Returns what [`PostFailures::bits`] returned.
    pub fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Returns it as a number; 0: none.
    pub fn bits(self) -> u64 {
        self.0
    }

    /// Adds a connection that lived for `lived_ms` milliseconds and ended at `now_ms` on any clock.
    #[must_use]
    pub fn after(self, lived_ms: u64, now_ms: u64) -> Self {
        let last_ms = self.0 >> Self::COUNT_BITS;
        let goes_on = lived_ms < WORKED_MS && now_ms.saturating_sub(last_ms) < ROW_MS;
        let count = if goes_on { self.count() } else { 0 };
        let time = now_ms.checked_shl(Self::COUNT_BITS).unwrap_or(0);
        Self(time | u64::from(count.saturating_add(1)))
    }

    /// Returns whether the device is of no use.
    pub fn are_many(self) -> bool {
        self.count() >= MANY
    }

    fn count(self) -> u8 {
        u8::try_from(self.0 & 0xff).unwrap_or(u8::MAX)
    }
}

#[cfg(any(test, ro2iblnd_kunit))]
#[cfg_attr(ro2iblnd_kunit, ::kernel::macros::kunit_tests(ro2ib_refused_posts))]
mod tests {
    use super::*;

    #[test]
    fn many_connections_in_a_row_are_no_accident() {
        let mut failures = PostFailures::default();
        for n in 1..=MANY {
            assert!(!failures.are_many());
            // The first one may have worked for long.
            let lived_ms = if n == 1 { 1_000_000 } else { 5 };
            failures = failures.after(
                lived_ms,
                u64::from(n).saturating_mul(1_600).saturating_add(2_000_000),
            );
        }
        assert!(failures.are_many());
        assert_eq!(PostFailures::from_bits(failures.bits()), failures);
        // The count does not overflow.
        for n in 0..1000u64 {
            failures = failures.after(0, n.saturating_add(2_020_000));
            assert!(n > ROW_MS || failures.are_many());
        }
    }

    #[test]
    fn single_failures_are_forgotten() {
        let mut failures = PostFailures::default();
        for n in 0..100u64 {
            let now_ms = n.saturating_mul(ROW_MS);
            failures = failures.after(5, now_ms);
            assert!(!failures.are_many());
            // A connection that worked.
            failures = failures.after(WORKED_MS, now_ms.saturating_add(1));
            assert!(!failures.are_many());
        }
    }
}
