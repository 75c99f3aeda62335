// SPDX-License-Identifier: GPL-2.0

//! The receive queue of a QP.
//!
//! [`RecvQueue`] is the one handle that buffers are pushed and posted with; their slots are in the
//! [`super::recv_ring`]. Any context except hard interrupts; its owner serialises its users.

use kernel::prelude::*;

use super::{
    batch::{
        PostError,
        RawBox, //
    },
    buf::MSG_BUF_LEN,
    qp::Qp,
    qp_handler::QpHandler,
    recv_ring::RecvBuffer,
    wr_id::WrId, //
};
use crate::bindings;

/// Number of receives in one batch.
pub(crate) const RECV_BATCH: usize = 16;

/// Receives that are pushed and not posted yet.
///
/// # Invariants
///
/// It stays where it is. Each work request has its own entry of `sges`, and is followed by the next one.
struct Batch {
    wrs: [bindings::ib_recv_wr; RECV_BATCH],
    sges: [bindings::ib_sge; RECV_BATCH],
}

// SAFETY: All members are integers and pointers that may be null, and unions of these.
unsafe impl pin_init::Zeroable for Batch {}

impl Batch {
    /// Creates an empty batch. Sleeps.
    fn new() -> Result<RawBox<Self>> {
        let this = RawBox::<Self>::zeroed()?;
        // SAFETY: It is valid; only an address is taken.
        let sges = unsafe { &raw mut (*this.as_ptr()).sges }.cast::<bindings::ib_sge>();
        let mut next = core::ptr::null_mut();

        // INVARIANT: A box stays where it is.
        for at in (0..RECV_BATCH).rev() {
            let (wr, sge) = (wr(&this, at), sges.wrapping_add(at));

            // SAFETY: Both are elements of the arrays, which are of the same length, and nothing refers to them yet.
            unsafe {
                (*sge).length = MSG_BUF_LEN as u32;
                (*wr).num_sge = 1;
                (*wr).sg_list = sge;
                (*wr).next = core::mem::replace(&mut next, wr);
            }
        }
        Ok(this)
    }
}

/// Returns the work request at `at`, for C.
#[inline(always)]
fn wr(batch: &RawBox<Batch>, at: usize) -> *mut bindings::ib_recv_wr {
    // SAFETY: It is valid; only an address is taken.
    let wrs = unsafe { &raw mut (*batch.as_ptr()).wrs };

    wrs.cast::<bindings::ib_recv_wr>().wrapping_add(at)
}

/// The right to use the receive queue of one QP.
///
/// Used from any context but hard interrupts.
///
/// # Invariants
///
/// The first `pending` elements of the batch are complete, and are for the slots before `next`.
pub(crate) struct RecvQueue {
    qp_id: u64,
    next: usize,
    pending: usize,
    closed: bool,
    batch: RawBox<Batch>,
}

// SAFETY: The pointers in the batch are only used while its QP is at hand, and what they point to
// belongs to no thread.
unsafe impl Send for RecvQueue {}
// SAFETY: A shared reference only allows to read counters.
unsafe impl Sync for RecvQueue {}

impl RecvQueue {
    pub(super) fn new(qp_id: u64) -> Result<Self> {
        // INVARIANT: The batch is empty.
        Ok(Self {
            qp_id,
            next: 0,
            pending: 0,
            closed: false,
            batch: Batch::new()?,
        })
    }

    pub(super) fn is_of(&self, qp_id: u64) -> bool {
        self.qp_id == qp_id
    }

    /// Returns the number of receives that are pushed and not posted.
    pub(crate) fn pending(&self) -> usize {
        self.pending
    }

    /// Pushes a receive into `buf`.
    ///
    /// # Errors
    ///
    /// Gives the buffer back if the batch is full (post it), if the receive queue is full, if a post failed earlier, or
    /// if it is mapped for another device.
    #[inline(always)]
    pub(crate) fn push<T: QpHandler>(&mut self, qp: &Qp<T>, buf: T::Recv) -> Result<(), T::Recv> {
        let mut buf = buf;

        if self.qp_id != qp.id() || self.closed {
            return Err(buf);
        }
        let raw = buf.buf_mut().filter(|raw| raw.is_for(qp.device()));
        let dma = raw.map(|raw| {
            raw.sync_for_device(MSG_BUF_LEN);
            raw.dma()
        });
        let Some(dma) = dma else {
            return Err(buf);
        };
        let slots = qp.recv_ring().slots();
        let batch = &mut *self.batch;
        let (Some(slot), Some(wr), Some(sge)) = (
            slots.get(self.next),
            batch.wrs.get_mut(self.pending),
            batch.sges.get_mut(self.pending),
        ) else {
            return Err(buf);
        };

        if !slot.is_free() {
            return Err(buf);
        }
        sge.addr = dma;
        sge.lkey = qp.local_dma_lkey();
        // The index is less than the depth, which is a `u16`.
        wr.__bindgen_anon_1.wr_id = WrId::Recv(self.next as u32).number();
        // SAFETY: We are the right to use the queue of this QP, and the slot is free.
        unsafe { slot.put(buf) };
        // INVARIANT: Complete.
        self.pending = self.pending.wrapping_add(1);
        self.next = next_index(self.next, slots.len());
        Ok(())
    }

    /// Posts everything that was pushed, with one call of the provider.
    ///
    /// # Errors
    ///
    /// [`PostError`]; the buffers that were not posted are freed and the queue is closed: close the connection.
    #[inline(always)]
    pub(crate) fn post<T: QpHandler>(&mut self, qp: &Qp<T>) -> Result<(), PostError> {
        let n = self.pending;

        if n == 0 {
            return Ok(());
        }
        if self.qp_id != qp.id() {
            return Err(PostError { posted: 0 });
        }
        let first = wr(&self.batch, 0);
        let last = wr(&self.batch, n.wrapping_sub(1));
        // SAFETY: `n` is not 0, and no more than there are.
        let next = unsafe { core::mem::replace(&mut (*last).next, core::ptr::null_mut()) };
        let mut bad = first.cast_const();

        // SAFETY: This is a list of `n` receives; the buffers are owned by their slots.
        let rc = unsafe { bindings::ro2ib_ib_post_recv(qp.as_raw(), first, &mut bad) };

        // INVARIANT: It is followed by that again.
        // SAFETY: As above.
        unsafe { (*last).next = next };
        self.pending = 0;
        if rc == 0 {
            qp.set_posted();
            return Ok(());
        }
        Err(self.take_back(qp, bad, n))
    }

    /// Takes back those of `n` receives that the provider has not posted: from `bad` on.
    #[cold]
    #[inline(never)]
    fn take_back<T: QpHandler>(
        &mut self,
        qp: &Qp<T>,
        bad: *const bindings::ib_recv_wr,
        n: usize,
    ) -> PostError {
        // `bad` begins as the first: a provider that does not report which one was bad has taken none (rdmavt). If it
        // is none of them, the provider may have taken all.
        let posted = (0..n)
            .find(|at| core::ptr::eq(wr(&self.batch, *at), bad))
            .unwrap_or(n);
        let slots = qp.recv_ring().slots();
        // The `n` slots before `next`, around the end of the ring. There are no fewer: each was free when its receive
        // was pushed.
        let mut at = match self.next.checked_sub(n) {
            Some(at) => at,
            None => self.next.wrapping_add(slots.len()).wrapping_sub(n),
        };

        self.closed = true;
        if posted != 0 {
            qp.set_posted();
        }
        for i in 0..n {
            let slot = slots.get(at);

            at = next_index(at, slots.len());
            if let (Some(slot), true) = (slot, i >= posted) {
                // SAFETY: We are the right to use the queue of this QP, which did not take this one.
                unsafe { slot.take_back() };
            }
        }
        PostError {
            posted: posted as u32,
        }
    }
}

/// Returns the index after `at` in a ring.
fn next_index(at: usize, len: usize) -> usize {
    let next = at.wrapping_add(1);

    if next < len {
        next
    } else {
        0
    }
}
