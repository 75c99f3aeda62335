// SPDX-License-Identifier: GPL-2.0

//! Shares of the completion queues that the RDMA core keeps per device.

use core::ptr::NonNull;

use kernel::{
    error::from_err_ptr,
    prelude::*,
    sync::aref::ARef, //
};

use super::device::Device;
use crate::bindings;

/// Where completions of `device` are polled: the one place that decides it.
///
/// Hardware raises them in an interrupt: then `IB_POLL_SOFTIRQ` (irq_poll, in batches) is the
/// shortest way. A software provider (rxe, siw) raises them in a work item of its own, where a
/// softirq costs a switch to ksoftirqd: then `IB_POLL_WORKQUEUE` saves one context switch in six.
/// The handlers of [`super::handler::QpHandler`] must be fit for softirq either way: they may not sleep.
fn poll_context(device: &Device) -> bindings::ib_poll_context {
    if device.is_software() {
        bindings::ib_poll_context_IB_POLL_WORKQUEUE
    } else {
        bindings::ib_poll_context_IB_POLL_SOFTIRQ
    }
}

/// A number of entries in a completion queue that is shared with others.
///
/// # Invariants
///
/// `cq` came from `ib_cq_pool_get()` for `nr_cqe` entries, which only `drop`
/// gives back.
pub(crate) struct CqShare {
    cq: NonNull<bindings::ib_cq>,
    nr_cqe: u32,
    device: ARef<Device>,
}

// SAFETY: Shares may be used and given back by any thread.
unsafe impl Send for CqShare {}
// SAFETY: There is nothing to do with a shared reference but to read the pointer.
unsafe impl Sync for CqShare {}

impl CqShare {
    /// Reserves `nr_cqe` entries, if possible in a queue whose interrupts go to
    /// completion vector `hint` (taken modulo their number). May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, also if no completion queue of the device can be that long.
    pub(crate) fn get(device: ARef<Device>, nr_cqe: u32, hint: i32) -> Result<Self> {
        // The core would make queues that are too short for as long as there is memory.
        if nr_cqe > device.attrs().max_cqe {
            return Err(ENOMEM);
        }
        // SAFETY: `device` is valid and registered.
        let cq = from_err_ptr(unsafe {
            bindings::ro2ib_cq_get(device.as_raw(), nr_cqe, hint, poll_context(&device))
        })?;

        // INVARIANT: It came from `ib_cq_pool_get()`.
        Ok(Self {
            cq: NonNull::new(cq).ok_or(ENOMEM)?,
            nr_cqe,
            device,
        })
    }

    /// How many entries were reserved.
    pub(crate) fn nr_cqe(&self) -> u32 {
        self.nr_cqe
    }

    /// The device it belongs to.
    pub(crate) fn device(&self) -> &ARef<Device> {
        &self.device
    }

    pub(super) fn as_raw(&self) -> *mut bindings::ib_cq {
        self.cq.as_ptr()
    }
}

impl Drop for CqShare {
    fn drop(&mut self) {
        // SAFETY: By the type invariant; the QP that uses it owns it and is gone.
        unsafe { bindings::ib_cq_pool_put(self.as_raw(), self.nr_cqe) }
    }
}
