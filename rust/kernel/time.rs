// SPDX-License-Identifier: GPL-2.0

//! Points in time and spans of it.
//!
//! C headers: `include/linux/ktime.h`, `include/linux/timekeeping.h`, `include/linux/jiffies.h`.

use core::{
    marker::PhantomData,
    ops, //
};

use crate::{
    bindings,
    ffi::{
        c_uint,
        c_ulong, //
    }, //
};

pub mod delay;

/// Nanoseconds of a microsecond.
pub const NSEC_PER_USEC: i64 = 1_000;
/// Nanoseconds of a millisecond.
pub const NSEC_PER_MSEC: i64 = 1_000_000;
/// Nanoseconds of a second.
pub const NSEC_PER_SEC: i64 = 1_000_000_000;

/// Ticks of the kernel's timer.
pub type Jiffies = c_ulong;
/// Milliseconds.
pub type Msecs = c_uint;

/// Ticks of so many milliseconds, rounded up.
#[inline]
pub fn msecs_to_jiffies(msecs: Msecs) -> Jiffies {
    // SAFETY: No preconditions.
    unsafe { bindings::ro2ibk_msecs_to_jiffies(msecs) }
}

/// A clock.
///
/// # Safety
///
/// The time is never negative.
pub unsafe trait ClockSource {
    /// Returns the time, in nanoseconds. Any context but NMI.
    fn ktime_get() -> i64;
}

/// Time since the node booted, without sleep.
pub struct Monotonic;

// SAFETY: `ktime_get()` is never negative.
unsafe impl ClockSource for Monotonic {
    fn ktime_get() -> i64 {
        // SAFETY: No preconditions.
        unsafe { bindings::ktime_get() }
    }
}

/// Time since 1970.
pub struct RealTime;

// SAFETY: `ktime_get_real()` is never negative.
unsafe impl ClockSource for RealTime {
    fn ktime_get() -> i64 {
        // SAFETY: No preconditions.
        unsafe { bindings::ro2ibk_ktime_get_real() }
    }
}

/// A point in time on a clock.
///
/// # Invariants
///
/// `inner` is not negative.
#[repr(transparent)]
#[derive(PartialEq, PartialOrd, Eq, Ord)]
pub struct Instant<C: ClockSource> {
    inner: i64,
    _c: PhantomData<C>,
}

impl<C: ClockSource> Clone for Instant<C> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<C: ClockSource> Copy for Instant<C> {}

impl<C: ClockSource> Instant<C> {
    /// Returns the present time.
    #[inline]
    pub fn now() -> Self {
        // INVARIANT: By the contract of `ClockSource`.
        Self {
            inner: C::ktime_get(),
            _c: PhantomData,
        }
    }

    /// Returns the time since then.
    #[inline]
    pub fn elapsed(&self) -> Delta {
        Self::now() - *self
    }
}

impl<C: ClockSource> ops::Sub for Instant<C> {
    type Output = Delta;

    #[inline]
    fn sub(self, other: Self) -> Delta {
        // Neither is negative, so this does not overflow.
        Delta {
            nanos: self.inner.wrapping_sub(other.inner),
        }
    }
}

/// A span of time; may be negative.
#[derive(Clone, Copy, PartialEq, PartialOrd, Eq, Ord, Debug)]
pub struct Delta {
    nanos: i64,
}

impl Delta {
    /// None.
    pub const ZERO: Self = Self { nanos: 0 };

    /// Creates a span of microseconds, saturating.
    #[inline]
    pub const fn from_micros(micros: i64) -> Self {
        Self {
            nanos: micros.saturating_mul(NSEC_PER_USEC),
        }
    }

    /// Creates a span of milliseconds, saturating.
    #[inline]
    pub const fn from_millis(millis: i64) -> Self {
        Self {
            nanos: millis.saturating_mul(NSEC_PER_MSEC),
        }
    }

    /// Returns the span in nanoseconds.
    #[inline]
    pub const fn as_nanos(self) -> i64 {
        self.nanos
    }

    /// Returns the span in microseconds, rounded up.
    #[inline]
    pub const fn as_micros_ceil(self) -> i64 {
        let whole = self.nanos / NSEC_PER_USEC;

        if self.nanos % NSEC_PER_USEC > 0 {
            whole + 1
        } else {
            whole
        }
    }

    /// Returns the span in whole milliseconds.
    #[inline]
    pub const fn as_millis(self) -> i64 {
        self.nanos / NSEC_PER_MSEC
    }
}
