// SPDX-License-Identifier: GPL-2.0

//! Rate limit of log messages, which the kernel crate does not have.

use crate::bindings;

/// Returns whether one more message may be printed now: 10 in 5 seconds for all callers together. The kernel logs how
/// many were suppressed. Any context.
pub(crate) fn allowed() -> bool {
    // SAFETY: No preconditions.
    unsafe { bindings::ro2ib_log_allowed() }
}

/// Returns the same as [`allowed`], with a count of its own, for messages that any host of the network can provoke.
pub(crate) fn untrusted_allowed() -> bool {
    // SAFETY: No preconditions.
    unsafe { bindings::ro2ib_log_untrusted_allowed() }
}
