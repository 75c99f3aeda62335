// SPDX-License-Identifier: GPL-2.0

//! Completion entry of a work request (`struct ib_cqe`): the function that the RDMA core calls when the work request
//! has ended. The entry is embedded in the object that posts, and the function finds that object from it.

use kernel::types::Opaque;

use crate::bindings;

/// The type of `ib_cqe.done`. Called where completions are polled ([`super::cq`]).
///
/// # Safety
///
/// Called by the core, with a valid completion of a work request that was posted with the entry.
pub(super) type Done = unsafe extern "C" fn(*mut bindings::ib_cq, *mut bindings::ib_wc);

/// Creates an entry that calls `done`.
pub(super) fn new(done: Done) -> Opaque<bindings::ib_cqe> {
    Opaque::new(bindings::ib_cqe { done: Some(done) })
}
