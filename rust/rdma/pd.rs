// SPDX-License-Identifier: GPL-2.0

//! Protection domains, and the lock for making completion queues of a device.

use core::ptr::NonNull;

use kernel::{
    error::from_err_ptr,
    prelude::*,
    sync::{
        aref::ARef,
        Arc,
        Mutex, //
    }, //
};

use super::device::Device;
use crate::bindings;

/// A protection domain (`struct ib_pd`).
///
/// # Invariants
///
/// `pd` is a protection domain of `device` that only `drop` frees.
#[pin_data(PinnedDrop)]
pub(crate) struct Pd {
    pd: NonNull<bindings::ib_pd>,
    device: ARef<Device>,
    /// Held while completion queues are requested; see [`super::cq`].
    #[pin]
    cqs: Mutex<()>,
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
        Arc::pin_init(
            try_pin_init!(Self {
                cqs <- kernel::new_mutex!((), "Pd::cqs"),
                pd: {
                    // SAFETY: `device` is valid and registered.
                    let pd = from_err_ptr(unsafe { bindings::ro2ib_alloc_pd(device.as_raw()) })?;

                    // INVARIANT: It is ours; nothing fails behind this.
                    NonNull::new(pd).ok_or(ENOMEM)?
                },
                device,
            }? Error),
            GFP_KERNEL,
        )
    }

    pub(super) fn cqs(&self) -> &Mutex<()> {
        &self.cqs
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

#[pinned_drop]
impl PinnedDrop for Pd {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: By the type invariant; what was made from it holds an `Arc<Pd>`.
        unsafe { bindings::ro2ib_dealloc_pd(self.as_raw()) }
    }
}
