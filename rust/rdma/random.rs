// SPDX-License-Identifier: GPL-2.0

//! Random numbers. Any context.

use crate::bindings;

/// Returns an unpredictable random number.
pub(crate) fn u32() -> u32 {
    // SAFETY: No preconditions.
    unsafe { bindings::get_random_u32() }
}

/// Returns an unpredictable random number.
pub(crate) fn u64() -> u64 {
    // SAFETY: No preconditions.
    unsafe { bindings::get_random_u64() }
}
