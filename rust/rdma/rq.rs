// SPDX-License-Identifier: GPL-2.0

//! The receive queue of a QP.
//!
//! [`RecvQueue`] is the one handle that buffers are pushed and posted with; their slots are in the
//! [`super::recv_ring`]. Any context but hard interrupts; its owner sees to it that it is used by
//! one at a time.

use kernel::prelude::*;

use super::{
    batch::PostError,
    buf::{
        RxBuf,
        MSG_BUF_LEN, //
    },
    handler::QpHandler,
    qp::Qp, //
};
use crate::bindings;

/// How many receives one batch holds.
pub(crate) const RECV_BATCH: usize = 16;

/// Receives that are pushed and not posted yet.
struct Batch {
    wrs: [bindings::ib_recv_wr; RECV_BATCH],
    sges: [bindings::ib_sge; RECV_BATCH],
}

// SAFETY: All members are integers and pointers that may be null, and unions of these.
unsafe impl pin_init::Zeroable for Batch {}

/// The right to use the receive queue of one QP.
///
/// Used from any context but hard interrupts.
///
/// # Invariants
///
/// The first `pending` elements of the batch are complete but for `next` and
/// `sg_list`, and are for the slots before `next`.
pub(crate) struct RecvQueue {
    qp_id: u64,
    next: usize,
    pending: usize,
    closed: bool,
    batch: KBox<Batch>,
}

// SAFETY: The pointers in the batch are only used while its QP is at hand, and what they point to
// belongs to no thread.
unsafe impl Send for RecvQueue {}
// SAFETY: There is nothing to do with a shared reference but to read counters.
unsafe impl Sync for RecvQueue {}

impl RecvQueue {
    pub(super) fn new(qp_id: u64) -> Result<Self> {
        // INVARIANT: The batch is empty.
        Ok(Self {
            qp_id,
            next: 0,
            pending: 0,
            closed: false,
            batch: KBox::init(pin_init::init_zeroed::<Batch>(), GFP_KERNEL)?,
        })
    }

    pub(super) fn is_of(&self, qp_id: u64) -> bool {
        self.qp_id == qp_id
    }

    /// How many receives are pushed and not posted.
    pub(crate) fn pending(&self) -> usize {
        self.pending
    }

    /// Pushes a receive into `buf`.
    ///
    /// # Errors
    ///
    /// Gives the buffer back if the batch is full (post it), if the receive
    /// queue is full, if a post failed earlier, or if it is of another device.
    #[inline(always)]
    pub(crate) fn push<T: QpHandler>(&mut self, qp: &Qp<T>, buf: RxBuf) -> Result<(), RxBuf> {
        if self.qp_id != qp.id() || self.closed || !buf.is_for(qp.device()) {
            return Err(buf);
        }
        let slots = qp.recv_ring().slots();
        let batch = &mut *self.batch;
        let (Some(slot), Some(wr), Some(sge)) = (
            slots.get(self.next),
            batch.wrs.get_mut(self.pending),
            batch.sges.get_mut(self.pending),
        ) else {
            return Err(buf);
        };

        // Those in the batch are still free, but there are not enough others to get round to them.
        if !slot.is_free() || self.pending >= slots.len() {
            return Err(buf);
        }
        buf.sync_for_device(MSG_BUF_LEN);
        *sge = bindings::ib_sge {
            addr: buf.dma(),
            length: MSG_BUF_LEN as u32,
            lkey: qp.local_dma_lkey(),
        };
        *wr = bindings::ib_recv_wr {
            num_sge: 1,
            ..Default::default()
        };
        // SAFETY: We are the right to use the queue of this QP, and the slot is free.
        wr.__bindgen_anon_1.wr_cqe = unsafe { slot.put(buf) };
        // INVARIANT: Complete.
        self.pending = self.pending.wrapping_add(1);
        self.next = after(self.next, slots.len());
        Ok(())
    }

    /// Posts everything that was pushed, with one call of the provider.
    ///
    /// # Errors
    ///
    /// [`PostError`]; the buffers that were not posted are freed and the queue
    /// is closed: let the connection go.
    pub(crate) fn post<T: QpHandler>(&mut self, qp: &Qp<T>) -> Result<(), PostError> {
        let n = self.pending;

        if n == 0 {
            return Ok(());
        }
        if self.qp_id != qp.id() {
            return Err(PostError { posted: 0 });
        }
        let slots = qp.recv_ring().slots();
        let start = if self.next >= n {
            self.next - n
        } else {
            (self.next + slots.len()).saturating_sub(n)
        };
        let mut at = start;
        let first = self.batch.wrs.as_mut_ptr();
        let sges = self.batch.sges.as_mut_ptr();

        for i in 0..n {
            // SAFETY: `i` is in bounds, and `i + 1` no more than behind the last.
            unsafe {
                let wr = &mut *first.add(i);

                wr.next = first.add(i.wrapping_add(1));
                wr.sg_list = sges.add(i);
            }
            if let Some(slot) = slots.get(at) {
                // The completion may come before the call returns.
                slot.give();
            }
            at = after(at, slots.len());
        }
        // SAFETY: `n` is not 0.
        unsafe { (*first.add(n - 1)).next = core::ptr::null_mut() };
        self.pending = 0;

        let mut bad = first.cast_const();
        // SAFETY: A list of `n` receives was made above; the buffers are owned by their slots.
        let rc = unsafe { bindings::ro2ib_ib_post_recv(qp.as_raw(), first, &mut bad) };
        if rc == 0 {
            qp.set_posted();
            return Ok(());
        }

        // A provider that does not say which one was bad may have taken all of them.
        let posted = self
            .batch
            .wrs
            .iter()
            .take(n)
            .position(|wr| core::ptr::eq(wr, bad))
            .unwrap_or(n);

        self.closed = true;
        if posted != 0 {
            qp.set_posted();
        }
        at = start;
        for i in 0..n {
            let slot = slots.get(at);

            at = after(at, slots.len());
            if let (Some(slot), true) = (slot, i >= posted) {
                // SAFETY: We are the right to use the queue of this QP, which did not take this one.
                unsafe { slot.take_back() };
            }
        }
        Err(PostError {
            posted: posted as u32,
        })
    }
}

/// The index after `at` in a ring.
fn after(at: usize, len: usize) -> usize {
    let next = at.wrapping_add(1);

    if next < len {
        next
    } else {
        0
    }
}
