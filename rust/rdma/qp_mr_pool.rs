// SPDX-License-Identifier: GPL-2.0

//! The memory regions of a QP.
//!
//! A pool begins empty and gets regions on demand, up to a fixed number: allocating one may take a firmware command of
//! the device, a server has thousands of QPs, and several QPs may be tried for one connection. [`super::mr_sharing`]
//! decides where regions come from, and whether an idle one goes to another QP.
//!
//! The pool keeps the mapping from `map` on until no key to it can be valid:
//! until the invalidation has completed, or the region is destroyed. A key is changed only
//! after a registration was posted with it, so that the message which carries it
//! and the region always agree.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    atomic::{
        Atomic,
        Relaxed, //
    },
    mr::{
        Mapped,
        Mr, //
    },
    mr_slots::{
        DetachedMr,
        MrSlots,
        RegParts,
        TakenMr, //
    },
    pd::Pd,
    raw_mr::{
        MrBudget,
        RawMr, //
    },
    sg::SgRef,
    sync::{
        new_spinlock_bh,
        SpinLockBh, //
    }, //
};

/// Number of slots that a pool allocates first.
const FIRST_SLOTS: usize = 8;

/// The memory regions of a QP.
#[pin_data]
pub(super) struct MrPool {
    qp_id: u64,
    pd: Arc<Pd>,
    max_pages: u32,
    most: u16,
    /// Number of its regions; changes under the lock.
    held: Atomic<u32>,
    /// Its place in the list of pools ([`super::mr_sharing`]).
    place: Atomic<usize>,
    #[pin]
    slots: SpinLockBh<MrSlots>,
}

impl MrPool {
    /// Creates a pool for up to `most` regions of `max_pages` pages. Sleeps.
    pub(super) fn new(qp_id: u64, pd: &Arc<Pd>, most: u16, max_pages: u32) -> Result<Arc<Self>> {
        let pd = pd.clone();
        let slots = MrSlots::new();

        Arc::pin_init(
            pin_init!(Self {
                qp_id,
                pd,
                max_pages,
                most,
                held: Atomic::new(0),
                place: Atomic::new(usize::MAX),
                slots <- new_spinlock_bh!(slots),
            }),
            GFP_KERNEL,
        )
    }

    /// Returns whether a region is idle. Any context.
    pub(super) fn has_idle(&self) -> bool {
        self.slots.lock().has_free()
    }

    /// Takes an idle region of this pool. Any context.
    pub(super) fn take_idle(&self) -> Option<TakenMr> {
        self.slots.lock().take_free()
    }

    /// Allocates a new region that it can use. Sleeps.
    ///
    /// # Errors
    ///
    /// As [`RawMr::alloc`]; `ENOMEM`.
    pub(super) fn make(&self, budget: &Arc<MrBudget>) -> Result<DetachedMr> {
        DetachedMr::new(RawMr::alloc(budget, &self.pd, self.max_pages)?)
    }

    /// Adds the region to the pool, as an idle one. Sleeps.
    ///
    /// # Errors
    ///
    /// `ENOBUFS` if the pool is full or destroyed; `ENOMEM`. Then the region is destroyed.
    pub(super) fn insert(&self, detached: DetachedMr) -> Result {
        let mut detached = detached;

        loop {
            self.make_room()?;
            let mut slots = self.slots.lock();

            match slots.add(detached) {
                Ok(()) => {
                    self.held.fetch_add(1, Relaxed);
                    return Ok(());
                }
                // Lost the race for the slot. Each retry means that another region was added, so this ends: the number
                // of regions is bounded.
                Err(back) => detached = back,
            }
        }
    }

    /// Makes room for one more region, outside of the lock.
    fn make_room(&self) -> Result {
        let len = {
            let slots = self.slots.lock();

            if slots.is_destroyed() {
                return Err(ENOBUFS);
            }
            if slots.has_room() {
                return Ok(());
            }
            slots.len()
        };
        let most = usize::from(self.most);

        if len >= most {
            return Err(ENOBUFS);
        }
        let mut larger = MrSlots::with_capacity(len.saturating_mul(2).max(FIRST_SLOTS).min(most))?;

        // Another thread may have been faster.
        self.slots.lock().move_into(&mut larger);
        // The smaller memory is freed after the lock.
        Ok(())
    }

    /// Removes an idle region for a QP that needs `max_pages`. Any context.
    pub(super) fn steal_idle(&self, max_pages: u32) -> Option<DetachedMr> {
        if self.max_pages < max_pages {
            return None;
        }
        let mut slots = self.slots.lock();
        let detached = slots.remove_free()?;

        self.held.fetch_sub(1, Relaxed);
        Some(detached)
    }

    /// Destroys one region that was not used since this was last called, if there is one. Sleeps.
    pub(super) fn drop_unused(&self) {
        let mut slots = self.slots.lock();
        let unused = slots.remove_unused();

        if unused.is_some() {
            self.held.fetch_sub(1, Relaxed);
        }
        drop(slots);
        drop(unused);
    }

    /// Returns the number of its regions.
    pub(super) fn held(&self) -> u32 {
        self.held.load(Relaxed)
    }

    /// Returns whether it has as many regions as it may have.
    pub(super) fn is_full(&self) -> bool {
        self.held() >= self.most.into()
    }

    /// Returns the number of pages of each region.
    pub(super) fn max_pages(&self) -> u32 {
        self.max_pages
    }

    /// Returns the protection domain of its regions.
    pub(super) fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// Returns its place in the list of pools, which the lock of that list protects.
    pub(super) fn place(&self) -> &Atomic<usize> {
        &self.place
    }

    /// Maps all of `sg` with the region. Sleeps, with some providers.
    ///
    /// # Errors
    ///
    /// `EINVAL` if one region cannot cover it, or the provider's error: then the region is idle again. `ENODEV` if the
    /// regions are destroyed.
    pub(super) fn map(&self, taken: TakenMr, sg: SgRef) -> Result<Mr<Mapped>> {
        let mut taken = taken;
        let nob = sg.nob();
        let region = match taken.map(&sg) {
            Ok(region) => region,
            Err(e) => {
                let back = self.slots.lock().put_unmapped(taken);

                // If the pool was destroyed, the region is destroyed here, outside the lock.
                drop(back);
                return Err(e);
            }
        };
        let put = self.slots.lock().put_mapped(taken, sg);

        match put {
            Ok(index) => Ok(Mr::new(index, self.qp_id, &region, nob)),
            // As above; no key of it is valid.
            Err(_) => Err(ENODEV),
        }
    }

    /// Undoes `map`.
    pub(super) fn unmap(&self, mr: Mr<Mapped>) {
        if mr.qp_id() == self.qp_id {
            self.invalidated(mr.index());
        }
    }

    /// Returns the parts of a registration, which is about to be posted.
    // Takes the parts of the token, so that the token is not moved.
    #[inline(always)]
    pub(super) fn register(&self, index: u16, rkey: u32) -> Option<RegParts> {
        self.slots.lock().register(index, rkey)
    }

    /// Frees a region whose invalidation has completed: its key is dead.
    pub(super) fn invalidated(&self, index: u16) {
        let sg = self.slots.lock().unmap(index);

        // Unmapped outside the lock, if this was the last.
        drop(sg);
    }

    /// Destroys all regions. Sleeps. Afterwards no key is valid.
    ///
    /// The send queue must be empty and closed: a registration would refer to a destroyed region.
    pub(super) fn destroy(&self) {
        let mut slots = self.slots.lock();
        let all = slots.destroy();

        self.held.store(0, Relaxed);
        drop(slots);
        drop(all);
    }
}
