// SPDX-License-Identifier: GPL-2.0

//! Protection domains.

use core::ptr::NonNull;

use kernel::{
    error::from_err_ptr,
    prelude::*,
    sync::{
        aref::ARef,
        Arc, //
    }, //
};

use super::device::Device;
use crate::bindings;

/// A protection domain (`struct ib_pd`).
///
/// # Invariants
///
/// `pd` is a protection domain of `device` that only `drop` frees.
pub(crate) struct Pd {
    pd: NonNull<bindings::ib_pd>,
    device: ARef<Device>,
}

// SAFETY: A protection domain may be used and freed by any thread.
unsafe impl Send for Pd {}
// SAFETY: The operations on a protection domain are thread safe.
unsafe impl Sync for Pd {}

impl Pd {
    /// Allocates a protection domain. May sleep.
    ///
    /// # Errors
    ///
    /// Those of the provider.
    pub(crate) fn alloc(device: ARef<Device>) -> Result<Arc<Self>> {
        // SAFETY: `device` is valid and registered.
        let pd = from_err_ptr(unsafe { bindings::ro2ib_alloc_pd(device.as_raw()) })?;
        // INVARIANT: It is ours.
        let pd = Self {
            pd: NonNull::new(pd).ok_or(ENOMEM)?,
            device,
        };

        Ok(Arc::new(pd, GFP_KERNEL)?)
    }

    /// Returns its device.
    pub(crate) fn device(&self) -> &ARef<Device> {
        &self.device
    }

    /// Returns the key for local DMA addresses of the whole memory. Local use only.
    pub(crate) fn local_dma_lkey(&self) -> u32 {
        // SAFETY: By the type invariant.
        unsafe { bindings::ro2ib_pd_lkey(self.as_raw()) }
    }

    pub(super) fn as_raw(&self) -> *mut bindings::ib_pd {
        self.pd.as_ptr()
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        // SAFETY: By the type invariant; what was made from it holds an `Arc<Pd>`.
        unsafe { bindings::ro2ib_dealloc_pd(self.as_raw()) }
    }
}
