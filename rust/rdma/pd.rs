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

use super::{
    atomic::{
        Atomic,
        Relaxed, //
    },
    device::Device, //
};
use crate::bindings;

/// A protection domain (`struct ib_pd`).
///
/// # Invariants
///
/// `pd` is a protection domain of `device` that only `drop` frees. `kept` is set if something that was made from it
/// stays for ever.
pub(crate) struct Pd {
    pd: NonNull<bindings::ib_pd>,
    kept: Atomic<bool>,
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
            kept: Atomic::new(false),
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

    /// Keeps the protection domain allocated for ever, because the device did not destroy a QP or a region of it. The
    /// device itself is released as usual.
    pub(super) fn keep(&self) {
        self.kept.store(true, Relaxed);
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        if self.kept.load(Relaxed) {
            // The core would warn, and free what its lists of QPs and its memory for local keys still refer to; the
            // number of the domain would be given out again, and keys of the region would fit the new owner's QPs.
            return;
        }
        // SAFETY: By the type invariant; what was made from it holds an `Arc<Pd>`, and is destroyed.
        unsafe { bindings::ro2ib_dealloc_pd(self.as_raw()) }
    }
}
