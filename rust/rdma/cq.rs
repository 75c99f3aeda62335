// SPDX-License-Identifier: GPL-2.0

//! Shares of the completion queues that the RDMA core keeps per device.
//!
//! When a device is removed, the core frees these queues as soon as its clients (the CM is one) have gone; it does not
//! wait for references to the device. So a share holds an id that is bound to the device, because the CM waits for that
//! id.
//!
//! The core allocates a whole array of queues for each caller that finds no queue with room, even if another caller
//! does so at the same time. So callers are serialised per protection domain (one per interface of the driver). Process
//! context.

use core::ptr::NonNull;

use kernel::{
    error::from_err_ptr,
    prelude::*, //
};

use super::{
    cm_ref::CmRef,
    device::Device,
    pd::Pd, //
};
use crate::bindings;

/// Returns where completions of `device` are polled.
///
/// Hardware raises them in an interrupt: then `IB_POLL_SOFTIRQ` (irq_poll, in batches) is the
/// shortest way. A software provider (rxe, siw) raises them in a work item of its own, where a
/// softirq costs a switch to ksoftirqd: then `IB_POLL_WORKQUEUE` saves one context switch in six.
/// The handlers of [`super::qp_handler::QpHandler`] must be fit for softirq either way: they may not sleep.
fn poll_context(device: &Device) -> bindings::ib_poll_context {
    if device.uses_irq_completions() {
        bindings::ib_poll_context_IB_POLL_SOFTIRQ
    } else {
        bindings::ib_poll_context_IB_POLL_WORKQUEUE
    }
}

/// A number of entries in a completion queue that is shared with others.
///
/// # Invariants
///
/// `cq` came from `ib_cq_pool_get()` for `nr_cqe` entries, which only `drop`
/// gives back. `_id` is bound to the device of `cq`.
pub(super) struct CqShare {
    cq: NonNull<bindings::ib_cq>,
    nr_cqe: u32,
    _id: CmRef,
}

// SAFETY: Shares may be used and given back by any thread.
unsafe impl Send for CqShare {}
// SAFETY: There is nothing to do with a shared reference but to read the pointer.
unsafe impl Sync for CqShare {}

impl CqShare {
    /// Reserves `nr_cqe` entries, if possible in a queue whose interrupts go to
    /// completion vector `hint` (taken modulo their number), of the device of `pd`. May sleep; not in
    /// a handler of `id`.
    ///
    /// # Errors
    ///
    /// `ENODEV` if `id` is not bound to that device, or the device goes; `ENOMEM`, also if no
    /// completion queue of the device can be that long.
    pub(super) fn get(id: &CmRef, pd: &Pd, nr_cqe: u32, hint: i32) -> Result<Self> {
        let device = pd.device();

        if !id.is_bound_to(device) {
            return Err(ENODEV);
        }
        // The core would make queues that are too short for as long as there is memory.
        if nr_cqe > device.attrs().max_cqe {
            return Err(ENOMEM);
        }
        let one_at_a_time = pd.cqs().lock();
        // SAFETY: `device` is valid and registered.
        let cq = from_err_ptr(unsafe {
            bindings::ro2ib_cq_get(device.as_raw(), nr_cqe, hint, poll_context(device))
        });

        drop(one_at_a_time);
        // INVARIANT: It came from `ib_cq_pool_get()`; that `id` is bound was seen above.
        Ok(Self {
            cq: NonNull::new(cq?).ok_or(ENOMEM)?,
            nr_cqe,
            _id: id.clone(),
        })
    }

    pub(super) fn as_raw(&self) -> *mut bindings::ib_cq {
        self.cq.as_ptr()
    }

    /// Waits until all completions that are in the queue, of any QP, have been handled. When a QP was destroyed before,
    /// none of its completions is left afterwards. Sleeps.
    pub(super) fn quiesce(&self) {
        // SAFETY: By the type invariant it is valid.
        unsafe { bindings::ro2ib_cq_quiesce(self.as_raw()) }
    }
}

impl Drop for CqShare {
    fn drop(&mut self) {
        // SAFETY: By the type invariant, the id, which goes afterwards, keeps it from being freed; the
        // QP that uses it owns it and is gone.
        unsafe { bindings::ib_cq_pool_put(self.as_raw(), self.nr_cqe) }
    }
}
