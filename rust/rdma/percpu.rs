// SPDX-License-Identifier: GPL-2.0

//! Numbers that every CPU has of its own, so that counting shares no cache line and takes no lock.
//!
//! C header: `include/linux/percpu.h`.

use core::ptr::NonNull;

use kernel::{
    error::code::ENOMEM,
    prelude::*, //
};

use crate::bindings;

/// `N` numbers on each CPU, which count what happened and sum up how much it was.
///
/// # Invariants
///
/// The pointer is what `ro2ib_percpu_alloc(N)` returned, and was not freed.
pub(crate) struct PerCpu<const N: usize>(NonNull<u64>);

// SAFETY: Only the functions of `rust/helpers/percpu.c` use what it points to, and those may be called on
// any CPU.
unsafe impl<const N: usize> Send for PerCpu<N> {}
// SAFETY: As above.
unsafe impl<const N: usize> Sync for PerCpu<N> {}

impl<const N: usize> PerCpu<N> {
    /// All of them 0. May sleep.
    pub(crate) fn new() -> Result<Self> {
        let n = u32::try_from(N)?;
        // SAFETY: No preconditions.
        let raw = unsafe { bindings::ro2ib_percpu_alloc(n) };
        // INVARIANT: It was just made.
        Ok(Self(NonNull::new(raw).ok_or(ENOMEM)?))
    }

    /// Adds 1 to the number `one` and `n` to the number `sum`; nothing if one of them is not there. Any
    /// context but NMI.
    #[inline]
    pub(crate) fn count(&self, one: usize, sum: usize, n: u64) {
        if one >= N || sum >= N {
            return;
        }
        // SAFETY: By the type invariant, and both are less than `N`, which fits 32 bits.
        unsafe { bindings::ro2ib_percpu_count(self.0.as_ptr(), one as u32, sum as u32, n) };
    }

    /// The number `at`, summed up over all CPUs; others may count meanwhile. 0 if it is not there.
    pub(crate) fn sum(&self, at: usize) -> u64 {
        if at >= N {
            return 0;
        }
        // SAFETY: By the type invariant, and `at` is less than `N`, which fits 32 bits.
        unsafe { bindings::ro2ib_percpu_sum(self.0.as_ptr(), at as u32) }
    }
}

impl<const N: usize> Drop for PerCpu<N> {
    fn drop(&mut self) {
        // SAFETY: By the type invariant; nobody uses it any more.
        unsafe { bindings::ro2ib_percpu_free(self.0.as_ptr()) };
    }
}
