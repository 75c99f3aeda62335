// SPDX-License-Identifier: GPL-2.0

//! Module parameters that can change while the module runs. Any context.
//!
//! Those that are fixed at load time are part of [`NiConfig`](super::NiConfig).

use crate::bindings;

/// `cksum`: put a checksum into outgoing messages.
pub(crate) fn cksum() -> bool {
    // SAFETY: Reads one variable; no preconditions.
    unsafe { bindings::ro2ib_param_cksum() }
}

/// `timeout`: seconds until a stuck transfer closes its connection; never 0.
pub(crate) fn timeout() -> u32 {
    // SAFETY: Reads one variable, or computes LNet's value from two; no preconditions.
    unsafe { bindings::ro2ib_param_timeout() }
}

/// `retry_count`: transport retries of a queue pair, 0..=7.
pub(crate) fn retry_count() -> u8 {
    // SAFETY: Reads one variable; no preconditions.
    unsafe { bindings::ro2ib_param_retry_count() }
}

/// `rnr_retry_count`: receiver-not-ready retries of a queue pair, 0..=7; 7 is without end.
pub(crate) fn rnr_retry_count() -> u8 {
    // SAFETY: Reads one variable; no preconditions.
    unsafe { bindings::ro2ib_param_rnr_retry_count() }
}

/// `keepalive`: idle seconds after which a connection sends an empty message, if it should.
pub(crate) fn keepalive() -> Option<u32> {
    // SAFETY: Reads one variable; no preconditions.
    match unsafe { bindings::ro2ib_param_keepalive() } {
        0 => None,
        s => Some(s),
    }
}

/// `require_privileged_port`: refuse connection requests from ports 1024 and above.
pub(crate) fn require_privileged_port() -> bool {
    // SAFETY: Reads one variable; no preconditions.
    unsafe { bindings::ro2ib_param_require_privileged_port() }
}

/// `use_privileged_port`: connect from a port below 1024.
pub(crate) fn use_privileged_port() -> bool {
    // SAFETY: Reads one variable; no preconditions.
    unsafe { bindings::ro2ib_param_use_privileged_port() }
}
