// SPDX-License-Identifier: GPL-2.0

//! Work requests that are pushed and not posted yet, for one call of the provider.

use kernel::{
    ffi,
    prelude::*, //
};

use crate::bindings;

/// How many work requests one batch holds.
pub(crate) const BATCH_WRS: usize = 32;
/// How many scatter/gather entries one batch holds: five WRITEs of 30, so that 1 MiB in pages is two batches.
pub(crate) const BATCH_SGES: usize = 150;

/// Why a work request was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PushError {
    /// The send queue has no free slot.
    NoSlot,
    /// The batch is full: post it and try again.
    BatchFull,
    /// It would need more scatter/gather entries than a work request may have.
    TooManySges,
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
    /// This many, from the beginning of the batch, were posted: they complete.
    /// For the others there will be no completion, and what they owned is freed.
    pub(crate) posted: u32,
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
/// It stays where it is. The first `nr_wrs` elements of `wrs` are complete, and a list: each is followed by the next one,
/// the last by none. Their scatter/gather entries follow each other in `sges`, and their contexts are in `ctxs`.
pub(super) struct Batch {
    pub(super) wrs: [AnyWr; BATCH_WRS],
    pub(super) ctxs: [u32; BATCH_WRS],
    pub(super) sges: [bindings::ib_sge; BATCH_SGES],
    pub(super) nr_wrs: usize,
    pub(super) nr_sges: usize,
}

// SAFETY: All members are integers, pointers that may be null, and unions of these.
unsafe impl pin_init::Zeroable for Batch {}

impl Batch {
    /// Empty.
    pub(super) fn new() -> Result<KBox<Self>> {
        KBox::init(pin_init::init_zeroed::<Self>(), GFP_KERNEL)
    }

    /// Whether `wrs` more work requests, of at most a batch, fit into it.
    #[inline(always)]
    pub(super) fn fits(&self, wrs: usize) -> bool {
        self.nr_wrs <= BATCH_WRS.saturating_sub(wrs)
    }

    /// How many scatter/gather entries are left.
    #[inline(always)]
    pub(super) fn room(&self) -> usize {
        BATCH_SGES.saturating_sub(self.nr_sges)
    }

    /// Where the entries of the next work request begin; behind the last if there is no room for any.
    #[inline(always)]
    pub(super) fn next_sge(&mut self) -> *mut bindings::ib_sge {
        self.sges.as_mut_ptr().wrapping_add(self.nr_sges)
    }

    /// The list of the work requests, of which there is one at least. The completion of the last one is told, which
    /// retires those before it too: nothing waits on an unsignalled tail.
    #[inline(always)]
    pub(super) fn end(&mut self) -> *const bindings::ib_send_wr {
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
        self.wrs.as_ptr().cast()
    }

    #[cold]
    #[inline(never)]
    fn signal_all(&mut self) {
        for wr in self.wrs.iter_mut().take(self.nr_wrs) {
            // SAFETY: All members of the union begin with an `ib_send_wr`, and this one is complete.
            let send = unsafe { &mut wr.send };

            send.send_flags |= bindings::ib_send_flags_IB_SEND_SIGNALED as ffi::c_int;
        }
    }

    /// Which of the first `n` work requests `wr` is; `n` if none.
    pub(super) fn position(&self, wr: *const bindings::ib_send_wr, n: usize) -> usize {
        self.wrs
            .iter()
            .take(n)
            .position(|any| core::ptr::eq(core::ptr::from_ref(any).cast(), wr))
            .unwrap_or(n)
    }
}
