// SPDX-License-Identifier: GPL-2.0

//! The send queue of a QP.
//!
//! [`SendQueue`] is the one handle that work requests are pushed and posted with: pushed into a [`Batch`], and posted
//! from it into the slots of the [`super::send_ring`]. Registrations are pushed in [`super::sq_reg`]. Any context
//! except hard interrupts.

use kernel::{
    ffi,
    prelude::*, //
};

use super::{
    batch::{
        AnyWr,
        Batch,
        PostError,
        PushError,
        RawBox, //
    },
    buf::{
        TxBuf,
        MSG_BUF_LEN, //
    },
    qp::Qp,
    qp_handler::QpHandler,
    send_ring::{
        next_index,
        prev_index,
        Resources,
        WrMemory, //
    },
    sg::{
        SgCursor,
        SgRef, //
    },
    wr_id::WrId, //
};
use crate::bindings;

/// The right to use the send queue of one QP.
///
/// There is one per QP, so its owner decides what is posted in which order. It
/// is used from any context but hard interrupts, typically under a lock of the
/// connection.
///
/// # Invariants
///
/// `next` is the index of the slot that the next work request gets. The slots of the batch are the `nr_wrs` before it.
/// All slots from `next` on, as many as are neither used nor in the batch, belong to this; `slots` are no more than
/// that, and none once it is closed. `batch` is the one that it was made with, because that points into itself.
pub(crate) struct SendQueue {
    qp_id: u64,
    depth: u32,
    next: u32,
    slots: u32,
    closed: bool,
    /// Range of the last batch that was not posted, and that [`Self::next_unposted`] has not returned.
    unposted: (usize, usize),
    batch: RawBox<Batch>,
}

// SAFETY: The pointers in the batch are only used while its QP is at hand, and what they point to
// belongs to no thread.
unsafe impl Send for SendQueue {}
// SAFETY: A shared reference only allows to read counters.
unsafe impl Sync for SendQueue {}

impl SendQueue {
    pub(super) fn new(qp_id: u64, depth: u16) -> Result<Self> {
        // INVARIANT: The batch is empty; all slots are free.
        Ok(Self {
            qp_id,
            depth: depth.into(),
            next: 0,
            slots: depth.into(),
            closed: false,
            unposted: (0, 0),
            batch: RawBox::zeroed()?,
        })
    }

    pub(super) fn is_of(&self, qp_id: u64) -> bool {
        self.qp_id == qp_id
    }

    /// Returns the number of work requests that the send queue can still take.
    pub(crate) fn free_slots<T: QpHandler>(&self, qp: &Qp<T>) -> u32 {
        if self.qp_id != qp.id() {
            return 0;
        }
        qp.send_ring().free().saturating_sub(self.pending())
    }

    /// Updates and returns the number of work requests that the send queue can still take.
    pub(crate) fn refresh_free_slots<T: QpHandler>(&mut self, qp: &Qp<T>) -> u32 {
        // INVARIANT: Only completions change it meanwhile, to more.
        self.slots = match self.closed {
            true => 0,
            false => self.free_slots(qp),
        };
        self.slots
    }

    /// Returns the number of work requests that it can take at least: what is left of the result of
    /// [`Self::refresh_free_slots`].
    pub(crate) fn slots(&self) -> u32 {
        self.slots
    }

    /// Returns the number of work requests that are pushed and not posted.
    pub(crate) fn pending(&self) -> u32 {
        self.batch.nr_wrs as u32
    }

    /// Returns whether all pushed work requests are posted.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.batch.nr_wrs == 0
    }

    /// Returns whether `wrs` more work requests, with `sges` scatter/gather entries, fit into the batch.
    #[inline]
    pub(crate) fn fits(&self, wrs: usize, sges: usize) -> bool {
        self.batch.fits(wrs) && self.batch.room() >= sges
    }

    /// Returns the context of the next work request that was pushed and could not be posted, or was discarded.
    pub(crate) fn next_unposted(&mut self) -> Option<u32> {
        let (at, end) = self.unposted;

        if at >= end {
            return None;
        }
        self.unposted = (at.wrapping_add(1), end);
        self.batch.ctxs.get(at).copied()
    }

    /// Checks whether `wrs` more work requests can be pushed.
    #[inline(always)]
    pub(super) fn check<T: QpHandler>(&mut self, qp: &Qp<T>, wrs: u32) -> Result<(), PushError> {
        if self.qp_id != qp.id() {
            return Err(PushError::Foreign);
        }
        if self.slots < wrs && self.refresh_free_slots(qp) < wrs {
            return Err(match self.closed {
                true => PushError::Closed,
                false => PushError::NoSlot,
            });
        }
        if !self.batch.fits(wrs as usize) {
            Err(PushError::BatchFull)
        } else {
            Ok(())
        }
    }

    /// Appends up to `max` scatter/gather entries for the next `len` bytes at `cursor`. Returns the number of bytes
    /// that they cover and the number of entries. The entries are not counted until `push` is called.
    fn gather(&mut self, max: usize, lkey: u32, cursor: &mut SgCursor, len: u32) -> (u32, usize) {
        // A start behind the end has no entries.
        let start = self.batch.nr_sges;
        let left = cursor.left();
        let Some(to) = self.batch.sges.get_mut(start..) else {
            return (0, 0);
        };
        let room = to.len().min(max);
        let n = to
            .get_mut(..room)
            .map_or(0, |to| cursor.gather(to, len, lkey));

        // It moved on, so it has no more left than before.
        (left.wrapping_sub(cursor.left()), n)
    }

    /// Takes a slot and writes a work request; `more` sets the fields that only its `opcode` has.
    ///
    /// # Safety
    ///
    /// `qp` is the one that this was made for, as [`Self::check`] has found.
    #[inline(always)]
    pub(super) unsafe fn push<T: QpHandler>(
        &mut self,
        qp: &Qp<T>,
        nr_sges: usize,
        opcode: bindings::ib_wr_opcode,
        flags: bindings::ib_send_flags,
        resources: Resources,
        more: impl FnOnce(&mut AnyWr),
    ) {
        let at = self.batch.nr_wrs;
        let (this, sg_list) = (self.batch.wr(at), self.batch.next_sge());
        let batch = &mut *self.batch;
        // Unreachable: `check()` made sure. `forget` keeps the drop glue out of the fast path.
        let Some(slots) = self.slots.checked_sub(1) else {
            return core::mem::forget(resources);
        };
        let Some(place) = batch.wrs.get_mut(at) else {
            return core::mem::forget(resources);
        };
        let Some(ctx) = batch.ctxs.get_mut(at) else {
            return core::mem::forget(resources);
        };

        *ctx = resources.ctx;
        // SAFETY: The caller guarantees that it is the ring of our queue pair; by the type invariant the slot `next` of
        // the ring is ours: there is at least one.
        unsafe { qp.send_ring().put(self.next, resources) };

        place.send = bindings::ib_send_wr {
            opcode,
            sg_list,
            num_sge: nr_sges as ffi::c_int,
            send_flags: flags as ffi::c_int,
            __bindgen_anon_1: bindings::ib_send_wr__bindgen_ty_1 {
                wr_id: WrId::Send(self.next).number(),
            },
            ..Default::default()
        };
        more(place);
        if let Some(last) = at.checked_sub(1).and_then(|at| batch.wrs.get_mut(at)) {
            // All members of the union begin with an `ib_send_wr`.
            last.send.next = this;
        }
        // INVARIANT: Complete; the entries were written by the caller. The slot is not free.
        batch.nr_wrs = at.wrapping_add(1);
        batch.nr_sges = batch.nr_sges.wrapping_add(nr_sges);
        self.next = next_index(self.next, self.depth);
        self.slots = slots;
    }

    /// Pushes a SEND of the first `nob` bytes of `buf`.
    ///
    /// # Errors
    ///
    /// [`PushError`]; the buffer comes back.
    #[inline(always)]
    pub(crate) fn push_send<T: QpHandler>(
        &mut self,
        qp: &Qp<T>,
        ctx: u32,
        buf: TxBuf,
        nob: u32,
        signaled: bool,
    ) -> Result<(), (PushError, TxBuf)> {
        if let Err(e) = self.check(qp, 1) {
            return Err((e, buf));
        }
        if nob == 0 || nob as usize > MSG_BUF_LEN {
            return Err((PushError::Invalid, buf));
        }
        if !buf.is_for(qp.device()) {
            return Err((PushError::Foreign, buf));
        }
        if self.batch.room() == 0 {
            return Err((PushError::BatchFull, buf));
        }
        let mut flags = signal(signaled || qp.signals_all());
        let inline = nob <= qp.max_inline();

        if inline {
            flags |= bindings::ib_send_flags_IB_SEND_INLINE;
        } else {
            buf.sync_for_device(nob as usize);
        }
        let header = self.batch.nr_sges;

        if let Some(sge) = self.batch.sges.get_mut(header) {
            *sge = bindings::ib_sge {
                addr: if inline { buf.virt() } else { buf.dma() },
                length: nob,
                lkey: qp.local_dma_lkey(),
            };
        }
        // SAFETY: It was checked above.
        unsafe {
            self.push(
                qp,
                1,
                bindings::ib_wr_opcode_IB_WR_SEND,
                flags,
                Resources {
                    ctx,
                    buf: Some(buf),
                    memory: WrMemory::None,
                },
                |_| {},
            )
        };
        Ok(())
    }

    /// Pushes one RDMA WRITE of the first `len` bytes of `map` to the address and key in `to`. Returns false, and
    /// pushes nothing, if one WRITE cannot cover them or the batch has no room.
    ///
    /// # Errors
    ///
    /// [`PushError`].
    #[inline(always)]
    pub(crate) fn push_single_write<T: QpHandler>(
        &mut self,
        qp: &Qp<T>,
        ctx: u32,
        map: &SgRef,
        (to, rkey): (u64, u32),
        len: u32,
    ) -> Result<bool, PushError> {
        match self.check(qp, 1) {
            Err(PushError::BatchFull) => return Ok(false),
            other => other?,
        }
        if !map.is_for(qp.device()) {
            return Err(PushError::Foreign);
        }
        let start = self.batch.nr_sges;
        let room = self.batch.room().min(qp.max_send_sge() as usize);
        let sges = self.batch.sges.get_mut(start..start.wrapping_add(room));
        let n = sges.and_then(|sges| map.gather(sges, len, qp.local_dma_lkey()));
        let Some(n @ 1..) = n else {
            return Ok(false);
        };
        // SAFETY: It was checked above.
        unsafe {
            self.push(
                qp,
                n,
                bindings::ib_wr_opcode_IB_WR_RDMA_WRITE,
                signal(qp.signals_all()),
                Resources {
                    ctx,
                    buf: None,
                    memory: WrMemory::Reads(map.clone()),
                },
                |wr| set_remote(wr, to, rkey),
            )
        };
        Ok(true)
    }

    /// Pushes an RDMA WRITE of up to `max_len` bytes at `cursor` to `remote_addr`, and returns the number of bytes that
    /// one work request could take. Call it again for the rest.
    ///
    /// # Errors
    ///
    /// [`PushError`]; the cursor has not moved.
    #[expect(clippy::too_many_arguments)]
    pub(crate) fn push_write<T: QpHandler>(
        &mut self,
        qp: &Qp<T>,
        ctx: u32,
        remote_addr: u64,
        rkey: u32,
        cursor: &mut SgCursor,
        max_len: u32,
        signaled: bool,
    ) -> Result<u32, PushError> {
        self.check(qp, 1)?;
        if !cursor.map().is_for(qp.device()) {
            return Err(PushError::Foreign);
        }
        let max = (qp.max_send_sge() as usize).min(self.batch.room());

        if max == 0 {
            return Err(PushError::BatchFull);
        }
        let (covered, n) = self.gather(max, qp.local_dma_lkey(), cursor, max_len);

        if covered == 0 {
            return Err(PushError::Invalid);
        }
        // SAFETY: It was checked above.
        unsafe {
            self.push(
                qp,
                n,
                bindings::ib_wr_opcode_IB_WR_RDMA_WRITE,
                signal(signaled || qp.signals_all()),
                Resources {
                    ctx,
                    buf: None,
                    memory: WrMemory::Reads(cursor.map().clone()),
                },
                |wr| set_remote(wr, remote_addr, rkey),
            )
        };
        Ok(covered)
    }

    /// Frees the work requests that were pushed and not posted, which will have no completion, and closes the queue.
    /// Close the connection then.
    pub(crate) fn discard<T: QpHandler>(&mut self, qp: &Qp<T>) {
        if self.qp_id != qp.id() {
            return;
        }
        self.close();
        self.unposted = (0, self.batch.nr_wrs);
        for _ in 0..self.batch.nr_wrs {
            self.next = prev_index(self.next, self.depth);
            // SAFETY: It is in the batch, so it is ours.
            unsafe { qp.send_ring().clear(self.next) };
        }
        // INVARIANT: The batch is empty; its slots are free.
        self.batch.nr_wrs = 0;
        self.batch.nr_sges = 0;
    }

    /// Posts everything that was pushed, with one call of the provider.
    ///
    /// # Errors
    ///
    /// [`PostError`] has the exact number of posted work requests; [`Self::next_unposted`] returns the others. The
    /// queue is closed then: close the connection.
    #[inline(always)]
    pub(crate) fn post<T: QpHandler>(&mut self, qp: &Qp<T>) -> Result<(), PostError> {
        let n = self.batch.nr_wrs;

        if n == 0 {
            return Ok(());
        }
        if self.qp_id != qp.id() {
            return Err(self.abandon_batch());
        }
        let ring = qp.send_ring();
        self.batch.end();
        let first = self.batch.wr(0).cast_const();
        let mut bad = first;

        // INVARIANT: The slots of the batch belong to completions from here on; these may come
        // before the call returns.
        ring.give(n as u32);
        // SAFETY: `end` made a list of `n` work requests. Their memory is owned by their slots, or by the MR pool, for
        // as long as the device may use it.
        let rc = unsafe { bindings::ro2ib_ib_post_send(qp.as_raw(), first, &mut bad) };

        qp.set_posted();
        self.batch.nr_wrs = 0;
        self.batch.nr_sges = 0;
        if rc == 0 {
            return Ok(());
        }

        Err(self.take_back(qp, bad, n))
    }

    /// Closes the queue: nothing more can be pushed.
    fn close(&mut self) {
        self.closed = true;
        // INVARIANT: It is closed.
        self.slots = 0;
    }

    /// Abandons the batch, which cannot be posted to another QP.
    #[cold]
    fn abandon_batch(&mut self) -> PostError {
        self.close();
        self.unposted = (0, self.batch.nr_wrs);
        // INVARIANT: The batch is empty; its slots have no owner.
        self.batch.nr_wrs = 0;
        self.batch.nr_sges = 0;
        PostError { posted: 0 }
    }

    /// Takes back those of `n` work requests that the provider has not posted: from `bad` on.
    #[cold]
    #[inline(never)]
    fn take_back<T: QpHandler>(
        &mut self,
        qp: &Qp<T>,
        bad: *const bindings::ib_send_wr,
        n: usize,
    ) -> PostError {
        // `bad` begins as the first: a provider that does not report which one was bad has taken none (rdmavt). If it
        // is none of them, the provider may have taken all.
        let posted = self.batch.position(bad, n);
        // `position` returns `n` at most.
        let rejected = n.wrapping_sub(posted);

        self.close();
        self.unposted = (posted, n);
        for _ in 0..rejected {
            self.next = prev_index(self.next, self.depth);
            // SAFETY: There will be no completion for this one, so it is ours again.
            unsafe { qp.send_ring().clear(self.next) };
        }
        // INVARIANT: These belong to us again.
        qp.send_ring().take_back(rejected as u32);
        PostError {
            posted: posted as u32,
        }
    }
}

#[inline(always)]
fn set_remote(wr: &mut AnyWr, addr: u64, rkey: u32) {
    // SAFETY: Whatever was there, these are integers.
    let rdma = unsafe { &mut wr.rdma };

    rdma.remote_addr = addr;
    rdma.rkey = rkey;
}

pub(super) fn signal(signaled: bool) -> bindings::ib_send_flags {
    if signaled {
        bindings::ib_send_flags_IB_SEND_SIGNALED
    } else {
        0
    }
}
