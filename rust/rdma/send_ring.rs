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

use core::cell::UnsafeCell;

use kernel::{
    pr_warn_once,
    prelude::*, //
};

use super::{
    atomic::{
        Acquire,
        Atomic,
        Relaxed,
        Release, //
    },
    buf::TxBuf,
    completion_receiver::CompletionReceiver,
    qp_mr_pool::MrPool,
    sg::SgRef,
    wc::Wc, //
};

/// Outcome of the work requests that a completion retires together with its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PriorWrs {
    /// They succeeded: no completion was requested for them.
    Completed,
    /// It is not known: the queue was destroyed with them. So a key that one of them was to invalidate may be valid.
    Unknown,
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

/// The slots of a send queue.
///
/// # Invariants
///
/// The `used` slots from `tail` on are posted and belong to completions, the
/// others to the send queue; once `broken` is set, only those that it had found before. `tail`
/// is only written by completions, which do not run at the same time: they all come from one CQ.
pub(super) struct SendRing {
    slots: KVVec<UnsafeCell<Resources>>,
    depth: u32,
    tail: Atomic<u32>,
    used: Atomic<u32>,
    /// A work request failed.
    broken: Atomic<bool>,
}

impl SendRing {
    /// Creates `depth` free slots. Sleeps.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(super) fn new(depth: u16) -> Result<Self> {
        let mut slots = KVVec::with_capacity(depth.into(), GFP_KERNEL)?;

        for _ in 0..depth {
            slots.push(UnsafeCell::new(Resources::default()), GFP_KERNEL)?;
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

    /// Ends the work request in slot `index`, which has the outcome `wc`, and all before it, as `prior` says: passes
    /// them to `round` in posting order. Releases the memory of those that succeeded, of which `mrs` has the keys.
    ///
    /// # Safety
    ///
    /// Called for the completion of that slot, and not by two threads at a time.
    #[inline(always)]
    pub(super) unsafe fn retire<R>(
        &self,
        (index, wc, prior): (u32, Wc, PriorWrs),
        mrs: &MrPool,
        round: &mut impl CompletionReceiver<R>,
    ) {
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
        if wc.status.is_success() && prior == PriorWrs::Completed {
            let mut at = tail;

            for _ in 0..=distance {
                // SAFETY: By the type invariant the slot belongs to completions: it is one of the first used ones.
                unsafe { self.succeeded(at, mrs, round) };
                at = next_index(at, self.depth);
            }
            // INVARIANT: We are done with the slots.
            self.tail.store(at, Relaxed);
            self.used.fetch_sub(distance.wrapping_add(1), Release);
        } else {
            // SAFETY: Guaranteed by the caller; the slots are used.
            unsafe { self.retire_failed(distance, (wc, prior), mrs, round) }
        }
    }

    /// Passes a work request that has succeeded to `round`.
    ///
    /// # Safety
    ///
    /// The slot is used, and belongs to the caller.
    #[inline(always)]
    unsafe fn succeeded<R>(&self, at: u32, mrs: &MrPool, round: &mut impl CompletionReceiver<R>) {
        let Some(slot) = self.slots.get(at as usize) else {
            return;
        };
        // SAFETY: Guaranteed by the caller.
        let resources = unsafe { &mut *slot.get() };

        if !matches!(resources.memory, WrMemory::None) {
            match core::mem::take(&mut resources.memory) {
                WrMemory::Invalidates(mr) => mrs.invalidated(mr),
                WrMemory::Reads(pages) => drop(pages),
                WrMemory::None => {}
            }
        }
        round.sent(resources.ctx, resources.buf.take());
    }

    /// Ends the first `distance` used slots as `prior` says, and the next one with the outcome `wc`.
    ///
    /// # Safety
    ///
    /// As of [`Self::retire`]; so many slots are used.
    #[cold]
    #[inline(never)]
    unsafe fn retire_failed<R>(
        &self,
        distance: u32,
        (wc, prior): (Wc, PriorWrs),
        mrs: &MrPool,
        round: &mut impl CompletionReceiver<R>,
    ) {
        let mut at = self.tail.load(Relaxed);

        // INVARIANT: Set before any of these slots is given back.
        self.broken.store(true, Relaxed);
        for left in (0..=distance).rev() {
            let outcome = match (left, prior) {
                (0, _) => wc,
                (_, PriorWrs::Completed) => Wc::SUCCESS,
                (_, PriorWrs::Unknown) => Wc::FLUSHED,
            };

            if outcome.status.is_success() {
                // SAFETY: By the type invariant the slot belongs to completions: it is one of the first used ones.
                unsafe { self.succeeded(at, mrs, round) };
            } else if let Some(slot) = self.slots.get(at as usize) {
                // SAFETY: As above.
                round.send_failed(unsafe { (*slot.get()).ctx }, outcome);
            }
            at = next_index(at, self.depth);
        }
        // INVARIANT: We are done with the slots.
        self.tail.store(at, Relaxed);
        self.used.fetch_sub(distance.wrapping_add(1), Release);
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

    /// Releases the resources of failed work requests. Any context except hard interrupts.
    ///
    /// # Safety
    ///
    /// No completion will come any more, none is being handled, posting has ended, and the QP is drained, destroyed or
    /// abandoned ([`Self::abandon`]).
    pub(super) unsafe fn release_unfinished(&self) {
        for slot in &*self.slots {
            // SAFETY: By the caller's guarantee nothing else uses it.
            unsafe { *slot.get() = Resources::default() };
        }
    }

    /// Leaves the message buffers of all work requests that have not succeeded to the device, for ever, because it did
    /// not destroy the QP and may send from them: their pages must not get other contents. Process context.
    ///
    /// Pages of LNet ([`WrMemory::Reads`]) are unmapped and go back to LNet all the same, which ends no message and no
    /// NI without them. An IOMMU then stops the device. Without an IOMMU the device may still send what the next owner
    /// puts there, but only to this peer, whose connection is closed. The key of a region is not valid any more, unless
    /// the device refuses that, too.
    ///
    /// # Safety
    ///
    /// As of [`Self::release_unfinished`], except that the QP exists and that no completion will be handled.
    pub(super) unsafe fn abandon(&self) {
        for slot in &*self.slots {
            // SAFETY: By the caller's guarantee nothing else uses it.
            if let Some(buf) = unsafe { (*slot.get()).buf.take() } {
                buf.abandon();
            }
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
    pub(super) unsafe fn put(&self, index: u32, resources: Resources) {
        // SAFETY: Guaranteed by the caller: there is such a slot.
        let slot = unsafe { self.slots.get_unchecked(index as usize) };

        // There is nothing to drop: a completion or `clear` has taken the old resources; nothing is put into a slot
        // whose work request failed.
        // SAFETY: Guaranteed by the caller.
        unsafe { slot.get().write(resources) };
    }

    /// Frees the resources of a work request that will not be posted.
    ///
    /// # Safety
    ///
    /// The caller owns the slot.
    pub(super) unsafe fn clear(&self, index: u32) {
        if let Some(slot) = self.slots.get(index as usize) {
            // SAFETY: Guaranteed by the caller.
            unsafe { *slot.get() = Resources::default() };
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
