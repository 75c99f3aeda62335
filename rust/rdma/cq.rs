// SPDX-License-Identifier: GPL-2.0

//! Completion queues: one for each QP.
//!
//! When a device is removed, its driver frees what the completion queue uses as soon as its clients (the CM is one)
//! have gone. So a queue holds an id that is bound to the device, because the CM waits for that id. Process context.

use core::ptr::NonNull;

use kernel::{
    error::from_err_ptr,
    ffi,
    prelude::*, //
};

use super::{
    cm_ref::CmRef,
    pd::Pd,
    work::OwnedQueue, //
};
use crate::bindings;

/// The function that handles the completions of one poll.
///
/// # Safety
///
/// Called with the context of the queue and an array of that number of completions. Not called by two threads at a
/// time.
pub(super) type RoundFn =
    unsafe extern "C" fn(*mut ffi::c_void, *mut bindings::ib_wc, n: ffi::c_int);

/// The function that handles an asynchronous event of the QP that uses the queue.
///
/// # Safety
///
/// Called with a valid event, and the context of the queue.
pub(super) type EventFn = unsafe extern "C" fn(*mut bindings::ib_event, *mut ffi::c_void);

/// A completion queue.
///
/// # Invariants
///
/// `raw` came from `ro2ib_cq_create()`, and only `drop` destroys it. `_id` is bound to its device, except that an
/// abandoned queue is not used any more.
pub(super) struct Cq {
    raw: NonNull<bindings::ro2ib_cq>,
    _id: CmRef,
}

// SAFETY: A completion queue may be used and destroyed by any thread.
unsafe impl Send for Cq {}
// SAFETY: A shared reference allows to read the pointer, and to call functions that exclude each other.
unsafe impl Sync for Cq {}

impl Cq {
    /// Creates a queue of `nr_cqe` entries for the device of `pd`, whose interrupts go to completion vector `vector`
    /// (taken modulo their number). `round` handles its completions: in a softirq, or in an item of `queue` if the
    /// device is a software provider. `event` handles the events of the QP that uses it, in any context. May sleep; not
    /// in a handler of `id`.
    ///
    /// # Errors
    ///
    /// `ENODEV` if `id` is not bound to that device, `ENOMEM` if a queue of the device cannot be that long; otherwise
    /// those of the provider.
    ///
    /// # Safety
    ///
    /// `round` and `event` may be called with `context` until the queue is dropped or abandoned, which is before
    /// `queue` is dropped.
    pub(super) unsafe fn create(
        (id, pd): (&CmRef, &Pd),
        nr_cqe: u32,
        vector: u32,
        queue: &OwnedQueue,
        (round, event): (RoundFn, EventFn),
        context: *mut ffi::c_void,
    ) -> Result<Self> {
        let device = pd.device();

        if !id.is_bound_to(device) {
            return Err(ENODEV);
        }
        if nr_cqe > device.attrs().max_cqe {
            return Err(ENOMEM);
        }
        let queue = match device.uses_irq_completions() {
            true => core::ptr::null_mut(),
            false => queue.as_raw(),
        };
        // SAFETY: `device` is valid and registered: `id` is bound to it. The caller guarantees the rest.
        let raw = from_err_ptr(unsafe {
            bindings::ro2ib_cq_create(
                device.as_raw(),
                nr_cqe,
                vector,
                queue,
                Some(round),
                Some(event),
                context,
            )
        })?;

        // INVARIANT: It was made here; that `id` is bound was seen above.
        Ok(Self {
            raw: NonNull::new(raw).ok_or(ENOMEM)?,
            _id: id.clone(),
        })
    }

    pub(super) fn as_raw(&self) -> *mut bindings::ro2ib_cq {
        self.raw.as_ptr()
    }

    /// Handles the completions that are in the queue; from here on only this function does. When the QP was destroyed
    /// before, no completion is left afterwards. Sleeps.
    ///
    /// # Safety
    ///
    /// Not called by two threads at a time.
    pub(super) unsafe fn quiesce(&self) {
        // SAFETY: By the type invariant it is valid; the caller guarantees the rest.
        unsafe { bindings::ro2ib_cq_quiesce(self.as_raw()) }
    }

    /// Polls the queue soon, because the device may have raised an event that was lost. Any context.
    pub(super) fn poll(&self) {
        // SAFETY: By the type invariant it is valid, and a poll that is on the way ends before it is freed.
        unsafe { bindings::ro2ib_cq_poll(self.as_raw()) }
    }

    /// Returns whether a QP uses the queue.
    pub(super) fn is_used(&self) -> bool {
        // SAFETY: By the type invariant it is valid, and was not abandoned: see `abandon`.
        unsafe { bindings::ro2ib_cq_is_used(self.as_raw()) }
    }

    /// Cuts the queue off, because its QP was not destroyed, and logs that. Neither `round` nor `event` is called any
    /// more, and none of them runs. The queue is not freed when this is dropped. Sleeps.
    ///
    /// # Safety
    ///
    /// The last call, except that of `drop`.
    pub(super) unsafe fn abandon(&self) {
        // SAFETY: By the type invariant it is valid.
        unsafe { bindings::ro2ib_cq_abandon(self.as_raw()) }
    }
}

impl Drop for Cq {
    /// Waits until no round is under way. If the device does not destroy it, it stays, and is cut off.
    fn drop(&mut self) {
        // SAFETY: By the type invariant it is ours, and the id, which goes afterwards, keeps the device. The QP that
        // used the queue owns it, and is gone, unless it has abandoned it.
        unsafe { bindings::ro2ib_cq_destroy(self.as_raw()) }
    }
}
