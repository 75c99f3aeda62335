// SPDX-License-Identifier: GPL-2.0

//! Per-CPU histograms: counting shares no cache line and takes no lock.
//!
//! C header: `include/linux/percpu.h`.

use core::ptr::NonNull;

use kernel::{
    error::code::{
        ENOMEM,
        EOVERFLOW, //
    },
    prelude::*, //
};

use crate::bindings;

/// Number of words of a row.
const ROW: usize = 64;

/// `ROWS` rows of 64 words on each CPU. The first word of a row is a sum. Word `n` counts the numbers whose highest bit
/// is bit `n`. A number below 512 counts as 511.
///
/// # Invariants
///
/// The pointer is what `ro2ib_percpu_alloc(ROWS * ROW)` returned, and was not freed.
pub(crate) struct PercpuHistogram<const ROWS: usize>(NonNull<u64>);

// SAFETY: Only the functions of `rust/helpers/percpu.c` use what it points to, and those may be called on
// any CPU.
unsafe impl<const ROWS: usize> Send for PercpuHistogram<ROWS> {}
// SAFETY: As above.
unsafe impl<const ROWS: usize> Sync for PercpuHistogram<ROWS> {}

impl<const ROWS: usize> PercpuHistogram<ROWS> {
    /// Creates it with all words 0. May sleep.
    pub(crate) fn new() -> Result<Self> {
        let n = u32::try_from(ROWS.checked_mul(ROW).ok_or(EOVERFLOW)?)?;
        // SAFETY: No preconditions.
        let raw = unsafe { bindings::ro2ib_percpu_alloc(n) };
        // INVARIANT: It was just made.
        Ok(Self(NonNull::new(raw).ok_or(ENOMEM)?))
    }

    /// Counts `n` in the row, and adds it to the sum. Does nothing if there is no such row. Any context except NMI.
    #[inline]
    pub(crate) fn record(&self, row: usize, n: u64) {
        if row >= ROWS {
            return;
        }
        // SAFETY: By the type invariant, and there is such a row.
        unsafe { bindings::ro2ib_percpu_record(self.0.as_ptr(), row, n) };
    }

    /// Returns the word `word` of the row, summed over all CPUs, which may count meanwhile. 0 if there is no such word.
    pub(crate) fn sum(&self, row: usize, word: usize) -> u64 {
        if row >= ROWS || word >= ROW {
            return 0;
        }
        // Both are in range, so the index fits 32 bits, as the number of all words did.
        let at = row.wrapping_mul(ROW).wrapping_add(word) as u32;

        // SAFETY: By the type invariant, and there is such a word.
        unsafe { bindings::ro2ib_percpu_sum(self.0.as_ptr(), at) }
    }
}

impl<const ROWS: usize> Drop for PercpuHistogram<ROWS> {
    fn drop(&mut self) {
        // SAFETY: By the type invariant; nothing uses it any more.
        unsafe { bindings::ro2ib_percpu_free(self.0.as_ptr()) };
    }
}
