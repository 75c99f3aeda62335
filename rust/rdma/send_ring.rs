// SPDX-License-Identifier: GPL-2.0

//! Slots of a send queue: resources of posted work requests, until they complete.
//!
//! [`SendRing`], inside the QP, is a ring of slots in posting order; a slot owns what its work
//! request refers to. Completions of a send queue come in posting order, so a completion also
//! retires all work requests before it that were not signalled.
//!
//! A failed work request keeps its resources in its slot, which is not used again: some providers (bnxt_re, cxgb4,
//! ocrdma; from their source) synthesise the completions of a queue pair in the error state before their device knows
//! that state, and the device may send from that memory until then. The QP has to be drained, or destroyed
//! ([`SendRing::release_unfinished`]).
//!
//! No locks: a slot is used by the send queue or by a completion, and completions come one after the other. Any context
//! except hard interrupts.

use core::{
    cell::UnsafeCell,
    mem::ManuallyDrop, //
};

use kernel::{
    container_of,
    pr_warn_once,
    prelude::*,
    types::Opaque, //
};

use super::{
    atomic::{
        Acquire,
        Atomic,
        Relaxed,
        Release, //
    },
    buf::TxBuf,
    cqe::{
        self,
        Done, //
    },
    mr_pool::MrPool,
    sg::SgRef,
    wc::Wc, //
};
use crate::bindings;

/// Outcome of the work requests that a completion retires together with its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PriorWrs {
    /// They succeeded: no completion was requested for them.
    Completed,
    /// It is not known: the queue was destroyed with them. So a key that one of them was to invalidate may be valid.
    Unknown,
}

impl PriorWrs {
    fn wc(self) -> Wc {
        match self {
            Self::Completed => Wc::SUCCESS,
            Self::Unknown => Wc::FLUSHED,
        }
    }
}

/// A work request of the send queue that has ended.
pub(crate) struct SendDone {
    /// Context that was given when it was pushed.
    pub(crate) ctx: u32,
    /// How it ended.
    pub(crate) wc: Wc,
    /// The message buffer of a send that succeeded.
    pub(crate) buf: Option<TxBuf>,
}

/// Resources of a work request while the device may use them.
#[derive(Default)]
pub(super) struct Resources {
    pub(super) ctx: u32,
    pub(super) buf: Option<TxBuf>,
    pub(super) memory: WrMemory,
}

/// Use of memory outside of the message by a work request.
#[derive(Default)]
pub(super) enum WrMemory {
    /// Nothing.
    #[default]
    None,
    /// It reads pages.
    Reads(SgRef),
    /// It invalidates the key of the region with that number. If that fails, the key dies with the region, which is not
    /// used until then.
    Invalidates(u16),
}

/// # Invariants
///
/// `owner` is what [`SendRing::new`] was given, and `index` is the place of this in the ring.
struct Slot<O> {
    cqe: Opaque<bindings::ib_cqe>,
    owner: *const O,
    index: u32,
    resources: UnsafeCell<Resources>,
}

/// The slots of a send queue, which an `O` owns.
///
/// # Invariants
///
/// The `used` slots from `tail` on are posted and belong to completions, the
/// others to the send queue; once `broken` is set, only those that it had found before. `tail`
/// is only written by completions, which do not run at the same time: they all come from one CQ.
pub(super) struct SendRing<O> {
    slots: KVVec<Slot<O>>,
    depth: u32,
    tail: Atomic<u32>,
    used: Atomic<u32>,
    /// A work request failed.
    broken: Atomic<bool>,
}

impl<O> SendRing<O> {
    /// Creates `depth` free slots, whose completions call `done` and find `owner`. Sleeps.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(super) fn new(depth: u16, done: Done, owner: *const O) -> Result<Self> {
        let mut slots = KVVec::with_capacity(depth.into(), GFP_KERNEL)?;

        for index in 0..u32::from(depth) {
            slots.push(
                // INVARIANT: They are pushed in order.
                Slot {
                    cqe: cqe::new(done),
                    owner,
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
            broken: Atomic::new(false),
        })
    }

    /// Returns the owner of the ring and the slot of which `wc` is a completion.
    ///
    /// # Safety
    ///
    /// `wc` is a valid completion of a work request with the entry of a slot of a `SendRing<O>`, and the owner of that
    /// ring lives for `'a`.
    #[inline]
    pub(super) unsafe fn find<'a>(wc: *const bindings::ib_wc) -> (&'a O, u32)
    where
        O: 'a,
    {
        // SAFETY: The caller guarantees that `wc` is valid, that its `wr_cqe` is in a slot, which
        // lives as long as its ring, and that the owner does.
        unsafe {
            let cqe = (*wc).__bindgen_anon_1.wr_cqe;
            let slot = &*container_of!(Opaque::cast_from(cqe), Slot<O>, cqe);

            (&*slot.owner, slot.index)
        }
    }

    /// Retires the work request in slot `index` and all before it. Releases the memory of those that succeeded, which
    /// keys of `mrs` cover. Returns `None` if the work request was not posted.
    ///
    /// # Safety
    ///
    /// Called for a completion of that slot with the outcome `wc`, and not for another one until the returned value is
    /// dropped. `prior` is true for the work requests before it.
    #[inline(always)]
    pub(super) unsafe fn retire(
        &self,
        index: u32,
        (wc, prior): (Wc, PriorWrs),
        mrs: &MrPool,
    ) -> Option<Retired<'_, O>> {
        let tail = self.tail.load(Relaxed);
        let distance = if index >= tail {
            index.wrapping_sub(tail)
        } else {
            index.wrapping_add(self.depth).wrapping_sub(tail)
        };

        if distance >= self.used.load(Acquire) {
            pr_warn_once!("completion for a send that was not posted\n");
            return None;
        }
        let n = distance.wrapping_add(1);

        let mut well = n;

        if !wc.status.is_success() {
            // INVARIANT: Set before any of these slots is given back.
            self.broken.store(true, Relaxed);
            well = match prior {
                PriorWrs::Completed => distance,
                PriorWrs::Unknown => 0,
            };
        }
        // SAFETY: By the type invariant they belong to us: they are the first of the used ones.
        unsafe { self.release_mappings(tail, well, mrs) };
        // INVARIANT: As above, and nothing else retires any until this is dropped.
        Some(Retired {
            ring: self,
            at: tail,
            left: n,
            n,
            wc,
            prior,
        })
    }

    /// Returns the last posted slot, if any.
    pub(super) fn last_used(&self) -> Option<u32> {
        let used = self.used.load(Acquire);

        if used == 0 {
            return None;
        }
        // Neither is more than the depth.
        let end = self.tail.load(Relaxed).wrapping_add(used);
        let end = if end > self.depth {
            end.wrapping_sub(self.depth)
        } else {
            end
        };

        Some(prev_index(end, self.depth))
    }

    /// Releases the memory that the `n` work requests from slot `at` on use, which succeeded.
    ///
    /// # Safety
    ///
    /// The caller owns these slots.
    #[inline(always)]
    unsafe fn release_mappings(&self, at: u32, n: u32, mrs: &MrPool) {
        let mut at = at;

        for _ in 0..n {
            let Some(slot) = self.slots.get(at as usize) else {
                return;
            };
            // SAFETY: Guaranteed by the caller.
            let resources = unsafe { &mut *slot.resources.get() };

            at = next_index(at, self.depth);
            if let WrMemory::None = resources.memory {
                continue;
            }
            match core::mem::take(&mut resources.memory) {
                WrMemory::Invalidates(mr) => mrs.invalidated(mr),
                WrMemory::Reads(pages) => drop(pages),
                WrMemory::None => {}
            }
        }
    }

    /// Releases the resources of failed work requests. Any context except hard interrupts.
    ///
    /// # Safety
    ///
    /// No completion will come any more, none is being handled, posting has ended, and the QP is drained or destroyed.
    pub(super) unsafe fn release_unfinished(&self) {
        for slot in &*self.slots {
            // SAFETY: By the caller's guarantee nothing else uses it.
            unsafe { *slot.resources.get() = Resources::default() };
        }
    }

    /// Returns the number of free slots. Completions have finished with these slots.
    #[inline]
    pub(super) fn free(&self) -> u32 {
        let used = self.used.load(Acquire);

        // A value that was set before any of these slots was given back is visible here.
        match self.broken.load(Relaxed) {
            true => 0,
            false => self.depth.saturating_sub(used),
        }
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
    /// The caller owns the slot, so there is one.
    #[inline(always)]
    pub(super) unsafe fn put(&self, index: u32, resources: Resources) -> *mut bindings::ib_cqe {
        // SAFETY: Guaranteed by the caller: there is such a slot.
        let slot = unsafe { self.slots.get_unchecked(index as usize) };

        // There is nothing to drop: a completion or `clear` has taken the old resources; nothing is put into a slot
        // whose work request failed.
        // SAFETY: Guaranteed by the caller.
        unsafe { slot.resources.get().write(resources) };
        slot.cqe.get()
    }

    /// Frees the resources of a work request that will not be posted.
    ///
    /// # Safety
    ///
    /// The caller owns the slot.
    pub(super) unsafe fn clear(&self, index: u32) {
        if let Some(slot) = self.slots.get(index as usize) {
            // SAFETY: Guaranteed by the caller.
            unsafe { *slot.resources.get() = Resources::default() };
        }
    }
}

/// Work requests that one completion retires, in posting order, see [`Self::each`]. The memory of those that succeeded
/// is already released, except the message buffers.
///
/// # Invariants
///
/// The `left` slots from `at` on are the last of the `n` that the completion
/// retires. They are used, and belong to this.
pub(crate) struct Retired<'a, O> {
    ring: &'a SendRing<O>,
    at: u32,
    left: u32,
    n: u32,
    wc: Wc,
    prior: PriorWrs,
}

impl<'a, O> Retired<'a, O> {
    /// Returns an iterator that retires each work request as it returns it; take all of them. An iterator, not a
    /// callback: the closure is not inlined into its caller, which cost 5 % more of the driver's instructions per
    /// message.
    #[inline(always)]
    pub(crate) fn each(self) -> impl Iterator<Item = SendDone> + 'a {
        // Not dropped, so that it stays in registers.
        let mut this = ManuallyDrop::new(self);

        core::iter::from_fn(move || this.next())
    }

    #[inline(always)]
    fn next(&mut self) -> Option<SendDone> {
        self.left = self.left.checked_sub(1)?;

        let slot = self.ring.slots.get(self.at as usize)?;

        self.at = next_index(self.at, self.ring.depth);
        // SAFETY: By the type invariant the slot belongs to us.
        let resources = unsafe { &mut *slot.resources.get() };
        // The completion belongs to the last one.
        let last = self.left == 0;
        let wc = if last { self.wc } else { self.prior.wc() };
        // Its other resources are already released if it succeeded.
        let buf = match wc.status.is_success() {
            true => resources.buf.take(),
            false => None,
        };
        let ctx = resources.ctx;

        if last {
            // INVARIANT: We are done with all of the slots.
            self.ring.tail.store(self.at, Relaxed);
            self.ring.used.fetch_sub(self.n, Release);
        }
        Some(SendDone { ctx, wc, buf })
    }
}

impl<O> Drop for Retired<'_, O> {
    fn drop(&mut self) {
        // Retires the work requests that the handler did not take.
        while self.left != 0 {
            drop(self.next());
        }
    }
}

/// Returns the index after `at` in a ring.
pub(super) fn next_index(at: u32, depth: u32) -> u32 {
    let next = at.wrapping_add(1);

    if next < depth {
        next
    } else {
        0
    }
}

/// Returns the index before `at` in a ring.
pub(super) fn prev_index(at: u32, depth: u32) -> u32 {
    if at == 0 {
        depth.wrapping_sub(1)
    } else {
        at.wrapping_sub(1)
    }
}
