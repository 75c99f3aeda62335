// SPDX-License-Identifier: GPL-2.0

//! The send queue of a QP.
//!
//! [`SendQueue`] is the one handle that work requests are pushed and posted
//! with. [`SendRing`], inside the QP, is a ring of slots in posting order; a
//! slot owns what its work request refers to. Completions of a send queue come in
//! posting order, so a completion also retires all work requests before it that
//! were not signalled.

use super::{
    mr::{
        Mapped,
        Mr,
        Valid, //
    },
    page::{
        TxBuf,
        MSG_BUF_LEN, //
    },
    qp::{
        Qp,
        QpHandler, //
    },
    sg::{
        SgCursor,
        SgMap, //
    },
    wc::Wc, //
};
use crate::bindings;
use core::cell::UnsafeCell;
use kernel::{
    container_of,
    error::to_result,
    ffi,
    pr_warn_once,
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Relaxed,
            Release, //
        },
        Arc, //
    },
    types::Opaque, //
};

/// How many work requests one batch holds.
pub(crate) const BATCH_WRS: usize = 32;
/// How many scatter/gather entries one batch holds.
pub(crate) const BATCH_SGES: usize = 128;

/// A work request of the send queue has ended.
pub(crate) struct SendDone {
    /// What was given when it was pushed.
    pub(crate) ctx: u32,
    /// How it ended.
    pub(crate) wc: Wc,
    /// The completion was for this one; if not, it ended silently before that one.
    pub(crate) told: bool,
    /// The message buffer of a send.
    pub(crate) buf: Option<TxBuf>,
}

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

/// Work requests could not be posted. The queue is closed now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PostError {
    /// This many, from the beginning of the batch, were posted: they complete.
    pub(crate) posted: u32,
    /// This many were not: there will be no completion for them, and what they
    /// owned is freed.
    pub(crate) rejected: u32,
    /// What the provider says.
    pub(crate) error: Error,
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
union AnyWr {
    send: bindings::ib_send_wr,
    rdma: bindings::ib_rdma_wr,
    reg: bindings::ib_reg_wr,
}

/// Work requests that are pushed and not posted yet.
///
/// # Invariants
///
/// The first `nr_wrs` elements of `wrs` are complete but for `next` and
/// `sg_list`; their scatter/gather entries follow each other in `sges`.
struct Batch {
    wrs: [AnyWr; BATCH_WRS],
    sges: [bindings::ib_sge; BATCH_SGES],
    nr_wrs: usize,
    nr_sges: usize,
}

// SAFETY: All members are integers, pointers that may be null, and unions of these.
unsafe impl pin_init::Zeroable for Batch {}

impl Batch {
    /// Lets the completion of the last work request be told, which retires those before it too: nothing waits
    /// on an unsignalled tail.
    fn signal_last(&mut self) {
        // SAFETY: It may always be called.
        let from = if unsafe { bindings::ro2ib_signal_all() } {
            0
        } else {
            self.nr_wrs.saturating_sub(1)
        };

        for wr in self.wrs.iter_mut().take(self.nr_wrs).skip(from) {
            // SAFETY: All members of the union begin with an `ib_send_wr`, and this one is complete.
            let send = unsafe { &mut wr.send };

            send.send_flags |= bindings::ib_send_flags_IB_SEND_SIGNALED as ffi::c_int;
        }
    }

    /// Makes a list of the work requests and lets them find their entries.
    fn link(&mut self) -> *const bindings::ib_send_wr {
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
    fn position(&self, wr: *const bindings::ib_send_wr, n: usize) -> usize {
        self.wrs
            .iter()
            .take(n)
            .position(|any| core::ptr::eq(core::ptr::from_ref(any).cast(), wr))
            .unwrap_or(n)
    }
}

/// The right to use the send queue of one QP.
///
/// There is one per QP, so its owner decides what is posted in which order. It
/// is used from any context but hard interrupts, typically under a lock of the
/// connection.
///
/// # Invariants
///
/// `next` is the index of the slot that the next work request gets. The slots of
/// the batch are the `nr_wrs` before it. All slots from `next` on, as many as are
/// neither used nor in the batch, belong to this.
pub(crate) struct SendQueue {
    qp_id: u64,
    depth: u32,
    next: u32,
    closed: bool,
    batch: KBox<Batch>,
}

// SAFETY: The pointers in the batch are only used while its QP is at hand, and what they point to
// belongs to no thread.
unsafe impl Send for SendQueue {}
// SAFETY: There is nothing to do with a shared reference but to read counters.
unsafe impl Sync for SendQueue {}

/// What a work request owns while the device may use it.
#[derive(Default)]
struct Resources {
    ctx: u32,
    buf: Option<TxBuf>,
    sg: Option<Arc<SgMap>>,
    invalidates: Option<u16>,
}

struct Slot<T: QpHandler> {
    cqe: Opaque<bindings::ib_cqe>,
    qp: *const Qp<T>,
    index: u32,
    resources: UnsafeCell<Resources>,
}

/// The slots of a send queue.
///
/// # Invariants
///
/// The `used` slots from `tail` on are posted and belong to completions, the
/// others to the [`SendQueue`]. `tail` is only written by completions, which do
/// not run at the same time: they all come from one CQ.
pub(super) struct SendRing<T: QpHandler> {
    slots: KVVec<Slot<T>>,
    depth: u32,
    tail: Atomic<u32>,
    used: Atomic<u32>,
}

impl<T: QpHandler> SendRing<T> {
    pub(super) fn new(depth: u16) -> Result<Self> {
        let mut slots = KVVec::with_capacity(depth.into(), GFP_KERNEL)?;

        for index in 0..u32::from(depth) {
            slots.push(
                Slot {
                    cqe: super::qp::new_cqe(Self::trampoline),
                    qp: core::ptr::null(),
                    index,
                    resources: UnsafeCell::new(Resources::default()),
                },
                GFP_KERNEL,
            )?;
        }
        // INVARIANT: No slot is used.
        Ok(Self {
            slots,
            depth: depth.into(),
            tail: Atomic::new(0),
            used: Atomic::new(0),
        })
    }

    /// Tells the slots where their QP is, once it is known.
    pub(super) fn set_qp(&mut self, qp: *const Qp<T>) {
        for slot in self.slots.iter_mut() {
            slot.qp = qp;
        }
    }

    /// # Safety
    ///
    /// Called by the core for a completion whose `wr_cqe` is that of a slot.
    unsafe extern "C" fn trampoline(_cq: *mut bindings::ib_cq, wc: *mut bindings::ib_wc) {
        // SAFETY: The core passes a valid completion, whose `wr_cqe` is the one of its work
        // request, which is in a slot.
        let (slot, wc) = unsafe {
            let cqe = (*wc).__bindgen_anon_1.wr_cqe;

            (
                &*container_of!(Opaque::cast_from(cqe), Slot<T>, cqe),
                Wc::from_raw(&*wc),
            )
        };
        // SAFETY: A QP outlives its completions.
        let qp = unsafe { &*slot.qp };

        qp.send_ring().complete(qp, slot.index, wc);
    }

    /// Retires the work request in slot `index` and all before it.
    fn complete(&self, qp: &Qp<T>, index: u32, wc: Wc) {
        let tail = self.tail.load(Relaxed);
        let used = self.used.load(Acquire);
        let distance = if index >= tail {
            index.wrapping_sub(tail)
        } else {
            index.wrapping_add(self.depth).wrapping_sub(tail)
        };

        if distance >= used {
            pr_warn_once!("completion for a send that was not posted\n");
            return;
        }
        let mut at = tail;

        for i in 0..=distance {
            let Some(slot) = self.slots.get(at as usize) else {
                return;
            };
            // SAFETY: By the type invariant the slot belongs to us: it is one of the used ones.
            let resources = unsafe { core::mem::take(&mut *slot.resources.get()) };
            let wc = if i == distance { wc } else { Wc::SUCCESS };

            // INVARIANT: We are done with the slot.
            at = after(at, self.depth);
            self.tail.store(at, Relaxed);
            self.used.fetch_sub(1, Release);

            if let (Some(mr), true) = (resources.invalidates, wc.status.is_success()) {
                qp.mr_pool().invalidated(mr);
            }
            drop(resources.sg);
            // After the last of these nothing of the QP may be touched any more.
            T::send_done(
                qp.handler(),
                SendDone {
                    ctx: resources.ctx,
                    wc,
                    told: i == distance,
                    buf: resources.buf,
                },
            );
        }
    }

    /// Takes the resources of a slot that is not used.
    ///
    /// # Safety
    ///
    /// The caller owns the slot.
    unsafe fn put(&self, index: u32, resources: Resources) -> *mut bindings::ib_cqe {
        match self.slots.get(index as usize) {
            Some(slot) => {
                // SAFETY: Guaranteed by the caller.
                unsafe { *slot.resources.get() = resources };
                slot.cqe.get()
            }
            None => core::ptr::null_mut(),
        }
    }
}

impl SendQueue {
    pub(super) fn new(qp_id: u64, depth: u16) -> Result<Self> {
        // INVARIANT: The batch is empty; all slots are free.
        Ok(Self {
            qp_id,
            depth: depth.into(),
            next: 0,
            closed: false,
            batch: KBox::init(pin_init::init_zeroed::<Batch>(), GFP_KERNEL)?,
        })
    }

    pub(super) fn is_of(&self, qp_id: u64) -> bool {
        self.qp_id == qp_id
    }

    /// How many more work requests the send queue can take.
    pub(crate) fn free_slots<T: QpHandler>(&self, qp: &Qp<T>) -> u32 {
        if self.qp_id != qp.id() {
            return 0;
        }
        // Acquire: what completions did with the slots is over.
        let used = qp.send_ring().used.load(Acquire);

        self.depth
            .saturating_sub(used)
            .saturating_sub(self.pending())
    }

    /// How many work requests are pushed and not posted.
    pub(crate) fn pending(&self) -> u32 {
        self.batch.nr_wrs as u32
    }

    /// What is left in the batch.
    pub(crate) fn room(&self) -> BatchRoom {
        BatchRoom {
            wrs: BATCH_WRS - self.batch.nr_wrs,
            sges: BATCH_SGES - self.batch.nr_sges,
        }
    }

    fn check<T: QpHandler>(&self, qp: &Qp<T>) -> Result<(), PushError> {
        if self.qp_id != qp.id() {
            Err(PushError::Foreign)
        } else if self.closed {
            Err(PushError::Closed)
        } else if self.free_slots(qp) == 0 {
            Err(PushError::NoSlot)
        } else if self.batch.nr_wrs == BATCH_WRS {
            Err(PushError::BatchFull)
        } else {
            Ok(())
        }
    }

    /// Appends up to `max` scatter/gather entries for the next `len` bytes at
    /// `cursor`; returns how many bytes they cover and how many they are. Leaves
    /// them uncounted until `push` is called.
    fn gather(
        &mut self,
        first: usize,
        max: usize,
        lkey: u32,
        cursor: &mut SgCursor,
        len: u32,
    ) -> (u32, usize) {
        let start = self.batch.nr_sges + first;
        let mut covered = 0;
        let mut n = 0;

        while n < max && covered < len {
            let Some(sge) = self.batch.sges.get_mut(start + n) else {
                break;
            };
            let Some((addr, length)) = cursor.take(len - covered) else {
                break;
            };

            *sge = bindings::ib_sge { addr, length, lkey };
            covered += length;
            n += 1;
        }
        (covered, n)
    }

    /// Fills in what all work requests have, and takes a slot.
    fn push<T: QpHandler>(
        &mut self,
        qp: &Qp<T>,
        nr_sges: usize,
        flags: bindings::ib_send_flags,
        resources: Resources,
        wr: AnyWr,
    ) {
        // SAFETY: By the type invariant the slot `next` is ours: `check` said that there is one.
        let cqe = unsafe { qp.send_ring().put(self.next, resources) };
        let batch = &mut *self.batch;

        if let Some(place) = batch.wrs.get_mut(batch.nr_wrs) {
            *place = wr;
            // SAFETY: All members of the union begin with an `ib_send_wr`.
            let send = unsafe { &mut place.send };

            send.__bindgen_anon_1.wr_cqe = cqe;
            send.num_sge = nr_sges as ffi::c_int;
            send.send_flags = flags as ffi::c_int;
            // INVARIANT: Complete; the entries were written by the caller.
            batch.nr_wrs += 1;
            batch.nr_sges += nr_sges;
            self.next = after(self.next, self.depth);
        }
    }

    /// Pushes a SEND of the first `nob` bytes of `buf`, followed by `extra`: the
    /// next so many bytes at a cursor, without a copy.
    ///
    /// # Errors
    ///
    /// [`PushError`]; the buffer comes back and the cursor has not moved.
    pub(crate) fn push_send<T: QpHandler>(
        &mut self,
        qp: &Qp<T>,
        ctx: u32,
        buf: TxBuf,
        nob: u32,
        extra: Option<(&mut SgCursor, u32)>,
        signaled: bool,
    ) -> Result<(), (PushError, TxBuf)> {
        if let Err(e) = self.check(qp) {
            return Err((e, buf));
        }
        if nob == 0 || nob as usize > MSG_BUF_LEN {
            return Err((PushError::Invalid, buf));
        }
        if self.room().sges == 0 {
            return Err((PushError::BatchFull, buf));
        }
        let mut nr_sges = 1;
        let mut sg = None;
        let mut flags = signal(signaled);

        if let Some((cursor, len)) = extra {
            let pos = cursor.pos();
            let max = (qp.max_send_sge() as usize).saturating_sub(1);

            if !cursor.map().is_for(qp.device()) {
                return Err((PushError::Foreign, buf));
            }
            let (covered, n) = self.gather(1, max, qp.local_dma_lkey(), cursor, len);

            if covered < len {
                let left = cursor.left();

                cursor.rewind(pos);
                let e = if n >= max {
                    PushError::TooManySges
                } else if left == 0 {
                    PushError::Invalid
                } else {
                    PushError::BatchFull
                };

                return Err((e, buf));
            }
            nr_sges += n;
            sg = Some(cursor.map().clone());
        }
        let inline = sg.is_none() && nob <= qp.max_inline();

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
        self.push(
            qp,
            nr_sges,
            flags,
            Resources {
                ctx,
                buf: Some(buf),
                sg,
                invalidates: None,
            },
            AnyWr {
                send: bindings::ib_send_wr {
                    opcode: bindings::ib_wr_opcode_IB_WR_SEND,
                    ..Default::default()
                },
            },
        );
        Ok(())
    }

    /// Pushes an RDMA WRITE of up to `max_len` bytes at `cursor` to
    /// `remote_addr`, and returns how many bytes one work request could take.
    /// Call it again for the rest.
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
        self.check(qp)?;
        if !cursor.map().is_for(qp.device()) {
            return Err(PushError::Foreign);
        }
        let max = (qp.max_send_sge() as usize).min(self.room().sges);

        if max == 0 {
            return Err(PushError::BatchFull);
        }
        let (covered, n) = self.gather(0, max, qp.local_dma_lkey(), cursor, max_len);

        if covered == 0 {
            return Err(PushError::Invalid);
        }
        self.push(
            qp,
            n,
            signal(signaled),
            Resources {
                ctx,
                sg: Some(cursor.map().clone()),
                ..Default::default()
            },
            AnyWr {
                rdma: bindings::ib_rdma_wr {
                    wr: bindings::ib_send_wr {
                        opcode: bindings::ib_wr_opcode_IB_WR_RDMA_WRITE,
                        ..Default::default()
                    },
                    remote_addr,
                    rkey,
                },
            },
        );
        Ok(covered)
    }

    /// Pushes the registration that makes the key of `mr` valid for writes of the
    /// other side.
    ///
    /// # Errors
    ///
    /// [`PushError`]; the token comes back.
    pub(crate) fn push_reg<T: QpHandler>(
        &mut self,
        qp: &Qp<T>,
        ctx: u32,
        mr: Mr<Mapped>,
        signaled: bool,
    ) -> Result<Mr<Valid>, (PushError, Mr<Mapped>)> {
        if let Err(e) = self.check(qp) {
            return Err((e, mr));
        }
        if mr.qp_id() != self.qp_id {
            return Err((PushError::Foreign, mr));
        }
        let Some(parts) = qp.mr_pool().register(&mr) else {
            return Err((PushError::Closed, mr));
        };

        self.push(
            qp,
            0,
            signal(signaled),
            Resources {
                ctx,
                ..Default::default()
            },
            AnyWr {
                reg: bindings::ib_reg_wr {
                    wr: bindings::ib_send_wr {
                        opcode: bindings::ib_wr_opcode_IB_WR_REG_MR,
                        ..Default::default()
                    },
                    mr: parts.mr,
                    key: parts.key,
                    access: (bindings::ib_access_flags_IB_ACCESS_LOCAL_WRITE
                        | bindings::ib_access_flags_IB_ACCESS_REMOTE_WRITE)
                        as ffi::c_int,
                },
            },
        );
        Ok(mr.into_valid())
    }

    /// Pushes the invalidation of the key of `mr`. Always signalled: when
    /// [`QpHandler::send_done`] tells of its success the key is dead, the memory
    /// is not mapped by it any more, and the region is free again. After a
    /// failure that is so when the regions are destroyed.
    ///
    /// # Errors
    ///
    /// [`PushError`]; the token comes back.
    pub(crate) fn push_inv<T: QpHandler>(
        &mut self,
        qp: &Qp<T>,
        ctx: u32,
        mr: Mr<Valid>,
    ) -> Result<(), (PushError, Mr<Valid>)> {
        if let Err(e) = self.check(qp) {
            return Err((e, mr));
        }
        if mr.qp_id() != self.qp_id {
            return Err((PushError::Foreign, mr));
        }
        let mut wr = bindings::ib_send_wr {
            opcode: bindings::ib_wr_opcode_IB_WR_LOCAL_INV,
            ..Default::default()
        };

        wr.ex.invalidate_rkey = mr.rkey();
        self.push(
            qp,
            0,
            signal(true),
            Resources {
                ctx,
                invalidates: Some(mr.index()),
                ..Default::default()
            },
            AnyWr { send: wr },
        );
        Ok(())
    }

    /// Posts everything that was pushed, with one call of the provider.
    ///
    /// # Errors
    ///
    /// [`PostError`] says exactly how many were posted. The queue is closed
    /// then: let the connection go.
    pub(crate) fn post<T: QpHandler>(&mut self, qp: &Qp<T>) -> Result<(), PostError> {
        let n = self.batch.nr_wrs;

        if n == 0 {
            return Ok(());
        }
        if self.qp_id != qp.id() {
            return Err(PostError {
                posted: 0,
                rejected: 0,
                error: EINVAL,
            });
        }
        self.batch.signal_last();
        let ring = qp.send_ring();
        let first = self.batch.link();
        let mut bad = first;

        // INVARIANT: The slots of the batch belong to completions from here on; these may come
        // before the call returns.
        ring.used.fetch_add(n as u32, Release);
        // SAFETY: `link` made a list of `n` work requests. What they refer to is owned by their
        // slots, or by the MR pool, for as long as the device may use it.
        let rc = unsafe { bindings::ro2ib_ib_post_send(qp.as_raw(), first, &mut bad) };

        qp.set_posted();
        self.batch.nr_wrs = 0;
        self.batch.nr_sges = 0;
        let Err(error) = to_result(rc) else {
            return Ok(());
        };

        // A provider that does not say which one was bad may have taken all of them.
        let posted = self.batch.position(bad, n);
        let rejected = n - posted;

        self.closed = true;
        for _ in 0..rejected {
            self.next = before(self.next, self.depth);
            // SAFETY: There will be no completion for this one, so it is ours again.
            unsafe { ring.put(self.next, Resources::default()) };
        }
        // INVARIANT: These belong to us again.
        ring.used.fetch_sub(rejected as u32, Release);
        Err(PostError {
            posted: posted as u32,
            rejected: rejected as u32,
            error,
        })
    }
}

/// The index after `at` in a ring.
fn after(at: u32, depth: u32) -> u32 {
    let next = at.wrapping_add(1);

    if next < depth {
        next
    } else {
        0
    }
}

/// The index before `at` in a ring.
fn before(at: u32, depth: u32) -> u32 {
    if at == 0 {
        depth.wrapping_sub(1)
    } else {
        at.wrapping_sub(1)
    }
}

fn signal(signaled: bool) -> bindings::ib_send_flags {
    if signaled {
        bindings::ib_send_flags_IB_SEND_SIGNALED
    } else {
        0
    }
}
