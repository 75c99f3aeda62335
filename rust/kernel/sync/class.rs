// SPDX-License-Identifier: GPL-2.0

//! Classes of locks, for lockdep.

use crate::{
    bindings,
    types::Opaque, //
};

/// The class of a lock, for lockdep (`struct lock_class_key`).
#[repr(transparent)]
pub struct LockClassKey {
    inner: Opaque<bindings::lock_class_key>,
}

// SAFETY: The kernel uses it from any context, and locks what it changes.
unsafe impl Sync for LockClassKey {}

impl LockClassKey {
    /// Creates a key in static memory, which needs no registration.
    ///
    /// # Safety
    ///
    /// Before the key is used it is pinned in static memory, and it is never dropped.
    #[doc(hidden)]
    pub const unsafe fn new_static() -> Self {
        Self {
            inner: Opaque::zeroed(),
        }
    }

    /// Returns the pointer for C.
    pub fn as_ptr(&self) -> *mut bindings::lock_class_key {
        self.inner.get()
    }
}
