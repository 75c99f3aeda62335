// SPDX-License-Identifier: GPL-2.0

//! A point in time, in eight bytes: one reading of the clock serves whoever wants it under one lock.
//!
//! Any context but NMI.

use kernel::time::{
    ClockSource,
    Monotonic, //
};

/// Nanoseconds on the monotonic clock.
#[derive(Clone, Copy)]
pub(crate) struct Timestamp(u64);

impl Timestamp {
    /// Reads the clock.
    #[inline]
    pub(crate) fn now() -> Self {
        // It is never negative.
        Self(Monotonic::ktime_get() as u64)
    }

    /// Nanoseconds since `earlier`; 0 if that is later.
    #[inline]
    pub(crate) fn ns_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// It in nanoseconds.
    #[inline]
    pub(crate) fn ns(self) -> u64 {
        self.0
    }

    /// Milliseconds that have passed since.
    pub(crate) fn elapsed_ms(self) -> i64 {
        let ns = Self::now().ns_since(self);
        i64::try_from(ns / 1_000_000).unwrap_or(i64::MAX)
    }
}
