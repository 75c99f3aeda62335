// SPDX-License-Identifier: GPL-2.0

//! Network namespace in which ids of the connection manager are created. Any context.

use core::{
    marker::PhantomData,
    ptr::NonNull, //
};

#[cfg(ro2iblnd_kunit)]
use kernel::prelude::*;

use crate::bindings;

/// A network namespace, to create ids in.
#[derive(Clone, Copy)]
pub(crate) struct NetNs<'a> {
    net: NonNull<bindings::net>,
    _net: PhantomData<&'a bindings::net>,
}

#[cfg(ro2iblnd_kunit)]
impl NetNs<'static> {
    /// Returns the initial namespace.
    ///
    /// # Errors
    ///
    /// None in practice.
    pub(crate) fn init() -> Result<Self> {
        Ok(Self {
            // SAFETY: No preconditions.
            net: NonNull::new(unsafe { bindings::ro2ib_init_net() }).ok_or(ENODEV)?,
            _net: PhantomData,
        })
    }
}

impl<'a> NetNs<'a> {
    /// Wraps a raw pointer.
    ///
    /// # Safety
    ///
    /// `net` is valid for all of `'a`.
    pub(crate) unsafe fn from_raw(net: NonNull<bindings::net>) -> Self {
        Self {
            net,
            _net: PhantomData,
        }
    }

    pub(super) fn as_raw(self) -> *mut bindings::net {
        self.net.as_ptr()
    }
}
