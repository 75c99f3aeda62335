// SPDX-License-Identifier: GPL-2.0

//! Work requests that are pushed and not posted yet, for one call of the provider.

use kernel::{
    ffi,
    prelude::*, //
};

use crate::bindings;

/// How many work requests one batch holds.
pub(crate) const BATCH_WRS: usize = 32;
/// How many scatter/gather entries one batch holds: five WRITEs of 26, so that 1 MiB in pages is two batches.
pub(crate) const BATCH_SGES: usize = 130;

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

/// What is left in the current batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchRoom {
    /// Work requests.
    pub(crate) wrs: usize,
    /// Scatter/gather entries.
    pub(crate) sges: usize,
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
/// The first `nr_wrs` elements of `wrs` are complete but for `next` and
/// `sg_list`; their scatter/gather entries follow each other in `sges`.
pub(super) struct Batch {
    pub(super) wrs: [AnyWr; BATCH_WRS],
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

    /// What is left.
    pub(super) fn room(&self) -> BatchRoom {
        BatchRoom {
            wrs: BATCH_WRS - self.nr_wrs,
            sges: BATCH_SGES - self.nr_sges,
        }
    }

    /// Lets the completion of the last work request be told, which retires those before it too:
    /// nothing waits on an unsignalled tail.
    pub(super) fn signal_last(&mut self) {
        // SAFETY: It may always be called.
        let from = if unsafe { bindings::ro2ib_signal_all() } {
            0
        } else {
            self.nr_wrs.saturating_sub(1)
        };

        let pushed = self.wrs.get_mut(from..self.nr_wrs);
        for wr in pushed.unwrap_or_default() {
            // SAFETY: All members of the union begin with an `ib_send_wr`, and this one is complete.
            let send = unsafe { &mut wr.send };

            send.send_flags |= bindings::ib_send_flags_IB_SEND_SIGNALED as ffi::c_int;
        }
    }

    /// Makes a list of the work requests and lets them find their entries.
    pub(super) fn link(&mut self) -> *const bindings::ib_send_wr {
        let first = self.wrs.as_mut_ptr();
        let sges = self.sges.as_mut_ptr();
        let mut nr_sges = 0;

        for i in 0..self.nr_wrs.min(BATCH_WRS) {
            // SAFETY: `i` is in bounds, and `i + 1` is if it is used. All members of the union
            // begin with an `ib_send_wr`. `nr_sges` stays in bounds by the type invariant.
            unsafe {
                let wr = &mut (*first.add(i)).send;

                wr.next = if i + 1 < self.nr_wrs {
                    first.add(i + 1).cast()
                } else {
                    core::ptr::null_mut()
                };
                wr.sg_list = sges.add(nr_sges);
                nr_sges += wr.num_sge as usize;
            }
        }
        first.cast()
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
