// SPDX-License-Identifier: GPL-2.0

//! Rate limited printing, which the kernel crate does not have.

use crate::bindings;

/// Whether one more message may be printed now: 10 in 5 seconds, for all that ask
/// here together. The kernel tells how many were left out. Any context.
pub(crate) fn allowed() -> bool {
    // SAFETY: No preconditions.
    unsafe { bindings::ro2ib_log_allowed() }
}

/// [`allowed`] with a count of its own, for what any stranger can provoke.
pub(crate) fn untrusted_allowed() -> bool {
    // SAFETY: No preconditions.
    unsafe { bindings::ro2ib_log_untrusted_allowed() }
}
