// SPDX-License-Identifier: GPL-2.0

//! Point in time, in eight bytes: one reading of the clock serves all code that runs under one lock.
//!
//! Context: any except NMI.

use kernel::time::{
    ClockSource,
    Monotonic, //
};

/// Nanoseconds on the monotonic clock.
#[derive(Clone, Copy)]
pub(crate) struct Timestamp(u64);

impl Timestamp {
    #[inline]
    pub(crate) fn now() -> Self {
        // The clock is never negative.
        Self(Monotonic::ktime_get() as u64)
    }

    /// Returns the nanoseconds since `earlier`; 0 if `earlier` is later.
    #[inline]
    pub(crate) fn ns_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    #[inline]
    pub(crate) fn ns(self) -> u64 {
        self.0
    }

    /// Returns the milliseconds that have passed since.
    pub(crate) fn elapsed_ms(self) -> i64 {
        let ns = Self::now().ns_since(self);
        i64::try_from(ns / 1_000_000).unwrap_or(i64::MAX)
    }
}
