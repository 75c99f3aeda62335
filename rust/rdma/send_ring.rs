// SPDX-License-Identifier: GPL-2.0

//! The slots of a send queue: what posted work requests own, until they complete.
//!
//! [`SendRing`], inside the QP, is a ring of slots in posting order; a slot owns what its work
//! request refers to. Completions of a send queue come in posting order, so a completion also
//! retires all work requests before it that were not signalled.

use core::cell::UnsafeCell;

use kernel::{
    container_of,
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

use super::{
    buf::TxBuf,
    qp::{
        Qp,
        QpHandler, //
    },
    sg::SgMap,
    wc::Wc, //
};
use crate::bindings;

/// A work request of the send queue has ended.
pub(crate) struct SendDone {
    /// What was given when it was pushed.
    pub(crate) ctx: u32,
    /// How it ended.
    pub(crate) wc: Wc,
    /// The message buffer of a send.
    pub(crate) buf: Option<TxBuf>,
}

/// What a work request owns while the device may use it.
#[derive(Default)]
pub(super) struct Resources {
    pub(super) ctx: u32,
    pub(super) buf: Option<TxBuf>,
    pub(super) sg: Option<Arc<SgMap>>,
    pub(super) invalidates: Option<u16>,
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
        let distance = if index >= tail {
            index.wrapping_sub(tail)
        } else {
            index.wrapping_add(self.depth).wrapping_sub(tail)
        };

        if distance >= self.used.load(Acquire) {
            pr_warn_once!("completion for a send that was not posted\n");
            return;
        }
        let n = distance.wrapping_add(1);

        // Before the handler may take a lock, which nobody shall hold while memory is unmapped.
        self.let_go(qp, tail, n, wc);
        T::sends_done(
            qp.handler(),
            &mut SendsDone {
                ring: self,
                at: tail,
                left: n,
                n,
                wc,
            },
        );
    }

    /// Retires all that is left: the marker behind them has come back with `wc`.
    ///
    /// After a post that failed in the middle the last one that was posted is not signalled.
    pub(super) fn drained(&self, qp: &Qp<T>, wc: Wc) {
        let used = self.used.load(Acquire);

        if used == 0 {
            return;
        }
        // Neither is more than the depth.
        let end = self.tail.load(Relaxed).wrapping_add(used);
        let end = if end > self.depth {
            end.wrapping_sub(self.depth)
        } else {
            end
        };

        self.complete(qp, before(end, self.depth), wc);
    }

    /// Lets go of the memory that the `n` work requests from slot `at` on use.
    fn let_go(&self, qp: &Qp<T>, at: u32, n: u32, wc: Wc) {
        let mut at = at;

        for left in (0..n).rev() {
            let Some(slot) = self.slots.get(at as usize) else {
                return;
            };
            // SAFETY: By the type invariant the slot belongs to us: it is one of the used ones.
            let resources = unsafe { &mut *slot.resources.get() };

            at = after(at, self.depth);
            if let Some(mr) = resources.invalidates.take() {
                if left != 0 || wc.status.is_success() {
                    qp.mr_pool().invalidated(mr);
                }
            }
            drop(resources.sg.take());
        }
    }

    /// How many slots are posted. What completions did with the others is over.
    pub(super) fn used(&self) -> u32 {
        self.used.load(Acquire)
    }

    /// Gives `n` more slots to completions, before they are posted.
    pub(super) fn give(&self, n: u32) {
        // INVARIANT: The caller's slots, in order, are what follows the used ones.
        self.used.fetch_add(n, Release);
    }

    /// Takes the last `n` slots back, for which there will be no completion.
    pub(super) fn take_back(&self, n: u32) {
        // INVARIANT: They belong to the caller again.
        self.used.fetch_sub(n, Release);
    }

    /// Puts what a work request owns into a slot that is not used.
    ///
    /// # Safety
    ///
    /// The caller owns the slot.
    pub(super) unsafe fn put(&self, index: u32, resources: Resources) -> *mut bindings::ib_cqe {
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

/// The work requests that one completion retires, in posting order.
///
/// # Invariants
///
/// The `left` slots from `at` on are the last of the `n` that the completion
/// retires. They are used, and belong to this.
pub(crate) struct SendsDone<'a, T: QpHandler> {
    ring: &'a SendRing<T>,
    at: u32,
    left: u32,
    n: u32,
    wc: Wc,
}

impl<T: QpHandler> Iterator for SendsDone<'_, T> {
    type Item = SendDone;

    #[inline]
    fn next(&mut self) -> Option<SendDone> {
        self.left = self.left.checked_sub(1)?;

        let slot = self.ring.slots.get(self.at as usize)?;

        self.at = after(self.at, self.ring.depth);
        // SAFETY: By the type invariant the slot belongs to us.
        let resources = unsafe { &mut *slot.resources.get() };
        // The rest of it is gone already.
        let (ctx, buf) = (resources.ctx, resources.buf.take());
        // The completion is for the last; the others ended silently before it.
        let last = self.left == 0;

        if last {
            // INVARIANT: We are done with all of the slots.
            self.ring.tail.store(self.at, Relaxed);
            self.ring.used.fetch_sub(self.n, Release);
        }
        Some(SendDone {
            ctx,
            wc: if last { self.wc } else { Wc::SUCCESS },
            buf,
        })
    }
}

impl<T: QpHandler> Drop for SendsDone<'_, T> {
    fn drop(&mut self) {
        // What the handler did not want to know of is retired all the same.
        while self.left != 0 {
            drop(self.next());
        }
    }
}

/// The index after `at` in a ring.
pub(super) fn after(at: u32, depth: u32) -> u32 {
    let next = at.wrapping_add(1);

    if next < depth {
        next
    } else {
        0
    }
}

/// The index before `at` in a ring.
pub(super) fn before(at: u32, depth: u32) -> u32 {
    if at == 0 {
        depth.wrapping_sub(1)
    } else {
        at.wrapping_sub(1)
    }
}
