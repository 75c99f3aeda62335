// SPDX-License-Identifier: GPL-2.0

//! Work requests that are pushed and not posted yet, for one call of the provider.

use core::{
    ops::{
        Deref,
        DerefMut, //
    },
    ptr::NonNull, //
};

use kernel::{
    ffi,
    prelude::*, //
};

use crate::bindings;

/// Number of work requests in one batch.
pub(crate) const BATCH_WRS: usize = 32;
/// Number of scatter/gather entries in one batch: five WRITEs of 30, so 1 MiB in pages takes two batches.
pub(crate) const BATCH_SGES: usize = 150;

/// Reason why a work request was not pushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PushError {
    /// The send queue has no free slot.
    NoSlot,
    /// The batch is full: post it and try again.
    BatchFull,
    /// The queue is closed, because a post failed.
    Closed,
    /// The arguments are of another QP or device.
    Foreign,
    /// The arguments make no sense.
    Invalid,
}

/// Work requests could not be posted. Their queue is closed now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PostError {
    /// Number of work requests, from the beginning of the batch, that were posted: they complete. The others have no
    /// completion, and what they owned is freed.
    pub(crate) posted: u32,
}

/// A box of something that C reads by pointers into it.
///
/// Such pointers are made from the one here, not from a reference: Rust may assume that a later reference to the
/// contents is the only way to them.
///
/// # Invariants
///
/// `ptr` is from [`KBox::into_raw`], and owned.
pub(super) struct RawBox<T> {
    ptr: NonNull<T>,
}

impl<T: pin_init::Zeroable> RawBox<T> {
    /// Allocates a zeroed value. Sleeps.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(super) fn zeroed() -> Result<Self> {
        let raw = KBox::into_raw(KBox::init(pin_init::init_zeroed::<T>(), GFP_KERNEL)?);

        // INVARIANT: It is from there, and nothing else has it.
        Ok(Self {
            ptr: NonNull::new(raw).ok_or(ENOMEM)?,
        })
    }
}

impl<T> RawBox<T> {
    /// Returns the pointer to make others from.
    #[inline(always)]
    pub(super) fn as_ptr(&self) -> *mut T {
        self.ptr.as_ptr()
    }
}

impl<T> Deref for RawBox<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: By the type invariant.
        unsafe { self.ptr.as_ref() }
    }
}

impl<T> DerefMut for RawBox<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: By the type invariant.
        unsafe { self.ptr.as_mut() }
    }
}

impl<T> Drop for RawBox<T> {
    fn drop(&mut self) {
        // SAFETY: By the type invariant.
        drop(unsafe { KBox::from_raw(self.ptr.as_ptr()) });
    }
}

#[repr(C)]
pub(super) union AnyWr {
    pub(super) send: bindings::ib_send_wr,
    pub(super) rdma: bindings::ib_rdma_wr,
    pub(super) reg: bindings::ib_reg_wr,
}

/// Work requests that are pushed and not posted yet.
///
/// # Invariants
///
/// It stays where it is. The first `nr_wrs` elements of `wrs` are complete, and a list: each is followed by the next
/// one, the last by none. Their scatter/gather entries follow each other in `sges`, and their contexts are in `ctxs`.
pub(super) struct Batch {
    pub(super) wrs: [AnyWr; BATCH_WRS],
    pub(super) ctxs: [u32; BATCH_WRS],
    pub(super) sges: [bindings::ib_sge; BATCH_SGES],
    pub(super) nr_wrs: usize,
    pub(super) nr_sges: usize,
}

// SAFETY: All members are integers, pointers that may be null, and unions of these.
unsafe impl pin_init::Zeroable for Batch {}

impl RawBox<Batch> {
    /// Returns the work request at `at`, for C.
    #[inline(always)]
    pub(super) fn wr(&self, at: usize) -> *mut bindings::ib_send_wr {
        // SAFETY: By the type invariant; only an address is taken.
        let wrs = unsafe { &raw mut (*self.as_ptr()).wrs };

        // All members of the union begin with an `ib_send_wr`.
        wrs.cast::<AnyWr>().wrapping_add(at).cast()
    }

    /// Returns where the entries of the next work request begin; behind the last if there is no room for any.
    #[inline(always)]
    pub(super) fn next_sge(&self) -> *mut bindings::ib_sge {
        // SAFETY: As above.
        let sges = unsafe { &raw mut (*self.as_ptr()).sges };

        sges.cast::<bindings::ib_sge>().wrapping_add(self.nr_sges)
    }

    /// Returns which of the first `n` work requests `wr` is; `n` if none.
    pub(super) fn position(&self, wr: *const bindings::ib_send_wr, n: usize) -> usize {
        // `Iterator::position` counts with a check of overflow, which is a panic.
        (0..n)
            .find(|at| core::ptr::eq(self.wr(*at), wr))
            .unwrap_or(n)
    }
}

impl Batch {
    /// Returns whether `wrs` more work requests, of at most a batch, fit into it.
    #[inline(always)]
    pub(super) fn fits(&self, wrs: usize) -> bool {
        self.nr_wrs <= BATCH_WRS.saturating_sub(wrs)
    }

    /// Returns the number of free scatter/gather entries.
    #[inline(always)]
    pub(super) fn room(&self) -> usize {
        BATCH_SGES.saturating_sub(self.nr_sges)
    }

    /// Completes the list of work requests, which is not empty: requests a completion for the last one, which also
    /// retires those before it. So nothing waits on an unsignalled tail.
    #[inline(always)]
    pub(super) fn end(&mut self) {
        #[cfg(ro2iblnd_test_hooks)]
        // SAFETY: It may always be called.
        if unsafe { bindings::ro2ib_signal_all() } {
            self.signal_all();
        }
        let last = self.nr_wrs.wrapping_sub(1);

        if let Some(wr) = self.wrs.get_mut(last) {
            // SAFETY: All members of the union begin with an `ib_send_wr`, and this one is complete.
            let wr = unsafe { &mut wr.send };

            wr.send_flags |= bindings::ib_send_flags_IB_SEND_SIGNALED as ffi::c_int;
        }
    }

    #[cfg(ro2iblnd_test_hooks)]
    #[cold]
    #[inline(never)]
    fn signal_all(&mut self) {
        for wr in self.wrs.iter_mut().take(self.nr_wrs) {
            // SAFETY: All members of the union begin with an `ib_send_wr`, and this one is complete.
            let send = unsafe { &mut wr.send };

            send.send_flags |= bindings::ib_send_flags_IB_SEND_SIGNALED as ffi::c_int;
        }
    }
}
