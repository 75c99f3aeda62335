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
    prelude::*,
    sync::Arc, //
};

use crate::bindings;

/// Number of words of a row.
const ROW: usize = 64;

/// Memory of a histogram.
///
/// # Invariants
///
/// The pointer was returned by `ro2ib_percpu_alloc()`, and was not freed.
struct Memory(NonNull<u64>);

// SAFETY: Only the functions of `rust/helpers/percpu.c` use what it points to, and those may be called on any CPU.
unsafe impl Send for Memory {}
// SAFETY: As above.
unsafe impl Sync for Memory {}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: By the type invariant; nothing uses it any more.
        unsafe { bindings::ro2ib_percpu_free(self.0.as_ptr()) };
    }
}

/// Reference to `ROWS` rows of 64 words on each CPU. The first word of a row is a sum. Word `n` counts the numbers
/// whose highest bit is bit `n`. A number below 512 counts as 511.
///
/// # Invariants
///
/// `raw` is the pointer of `_memory`, which has `ROWS * ROW` words.
#[derive(Clone)]
pub(crate) struct PercpuHistogram<const ROWS: usize> {
    // Here too, because each recorded number needs it.
    raw: NonNull<u64>,
    _memory: Arc<Memory>,
}

// SAFETY: As `Memory`.
unsafe impl<const ROWS: usize> Send for PercpuHistogram<ROWS> {}
// SAFETY: As above.
unsafe impl<const ROWS: usize> Sync for PercpuHistogram<ROWS> {}

impl<const ROWS: usize> PercpuHistogram<ROWS> {
    /// Creates it with all words 0. May sleep.
    pub(crate) fn new() -> Result<Self> {
        let n = u32::try_from(ROWS.checked_mul(ROW).ok_or(EOVERFLOW)?)?;
        // SAFETY: No preconditions.
        let raw = NonNull::new(unsafe { bindings::ro2ib_percpu_alloc(n) }).ok_or(ENOMEM)?;
        // INVARIANT: It was just made.
        let memory = Memory(raw);
        Ok(Self {
            raw,
            _memory: Arc::new(memory, GFP_KERNEL)?,
        })
    }

    /// Counts `n` in the row, and adds it to the sum. Does nothing if there is no such row. Any context except NMI.
    #[inline(always)]
    pub(crate) fn record(&self, row: usize, n: u64) {
        if row >= ROWS {
            return;
        }
        // SAFETY: By the type invariant, and there is such a row.
        unsafe { bindings::ro2ib_percpu_record(self.raw.as_ptr(), row, n) };
    }

    /// Returns the word `word` of the row, summed over all CPUs, which may count meanwhile. 0 if there is no such word.
    pub(crate) fn sum(&self, row: usize, word: usize) -> u64 {
        if row >= ROWS || word >= ROW {
            return 0;
        }
        // Both are in range, so the index fits 32 bits, as the number of all words did.
        let at = row.wrapping_mul(ROW).wrapping_add(word) as u32;

        // SAFETY: By the type invariant, and there is such a word.
        unsafe { bindings::ro2ib_percpu_sum(self.raw.as_ptr(), at) }
    }
}
