// SPDX-License-Identifier: GPL-2.0

//! Module parameters that can change while the module runs. Any context.
//!
//! Parameters that are fixed at load time are part of [`NiConfig`](super::NiConfig).

use crate::bindings;

/// Returns `cksum`: whether to put a checksum into outgoing messages.
pub(crate) fn cksum() -> bool {
    // SAFETY: Reads one variable; no preconditions.
    unsafe { bindings::ro2ib_param_cksum() }
}

/// Returns `require_privileged_port`: whether to reject connection requests from ports 1024 and above.
pub(crate) fn require_privileged_port() -> bool {
    // SAFETY: Reads one variable; no preconditions.
    unsafe { bindings::ro2ib_param_require_privileged_port() }
}

/// Returns `use_privileged_port`: whether to connect from a port below 1024.
pub(crate) fn use_privileged_port() -> bool {
    // SAFETY: Reads one variable; no preconditions.
    unsafe { bindings::ro2ib_param_use_privileged_port() }
}
