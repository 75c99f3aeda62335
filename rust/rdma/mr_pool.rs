// SPDX-License-Identifier: GPL-2.0

//! The memory regions of a QP.
//!
//! A pool begins without any and gets regions as they are needed, up to a number that
//! is known from the start: allocating one may take a command of the device's firmware,
//! a server has thousands of QPs, and of those that are tried for a connection only one
//! is used. Where they are from, and whether one that lies idle goes to another QP, is
//! not decided here ([`super::mr_sharing`]).
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
    buf::Direction,
    mr::{
        Free,
        Mapped,
        Mr, //
    },
    mr_slots::{
        DetachedMr,
        MrSlots,
        RegParts, //
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
    /// Regions that it has; changes under the lock.
    held: Atomic<u32>,
    /// Its place in the list of pools ([`super::mr_sharing`]).
    place: Atomic<usize>,
    #[pin]
    slots: SpinLockBh<MrSlots>,
}

impl MrPool {
    /// A pool for `most` regions of `max_pages` pages. Sleeps.
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

    /// Takes a region that lies idle here. Any context.
    pub(super) fn take_idle(&self) -> Option<Mr<Free>> {
        let index = self.slots.lock().take_free()?;

        Some(Mr::new(index, self.qp_id))
    }

    /// Makes a new region that it can use. Sleeps.
    ///
    /// # Errors
    ///
    /// As [`RawMr::alloc`].
    pub(super) fn make(&self, budget: &Arc<MrBudget>) -> Result<DetachedMr> {
        Ok(RawMr::alloc(budget, &self.pd, self.max_pages)?.into())
    }

    /// The region is one of its own from now on, and is taken. Sleeps.
    ///
    /// # Errors
    ///
    /// `ENOBUFS` if it has as many as it may have, or is destroyed; `ENOMEM`. Then the region is destroyed.
    pub(super) fn insert(&self, detached: DetachedMr) -> Result<Mr<Free>> {
        let mut detached = detached;

        loop {
            self.make_room()?;
            let mut slots = self.slots.lock();

            match slots.add(detached) {
                Ok(index) => {
                    self.held.fetch_add(1, Relaxed);
                    return Ok(Mr::new(index, self.qp_id));
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

        // Somebody may have been faster.
        self.slots.lock().move_into(&mut larger);
        // What is too small now goes after the lock.
        Ok(())
    }

    /// Gives a region away that lies idle, for queue pairs that need `max_pages`. Any context.
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

    /// How many regions there are.
    pub(super) fn held(&self) -> u32 {
        self.held.load(Relaxed)
    }

    /// Whether it has as many as it may have.
    pub(super) fn is_full(&self) -> bool {
        self.held() >= self.most.into()
    }

    /// Pages of each.
    pub(super) fn max_pages(&self) -> u32 {
        self.max_pages
    }

    /// The protection domain of its regions.
    pub(super) fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// Its place in the list of pools; whoever has the lock of that list uses it.
    pub(super) fn place(&self) -> &Atomic<usize> {
        &self.place
    }

    /// Gives a free region back.
    pub(super) fn put(&self, mr: Mr<Free>) {
        if mr.qp_id() == self.qp_id {
            self.slots.lock().put_free(mr.index());
        }
    }

    /// Lets a region cover all of `sg`, and makes its next key. Sleeps, with some providers.
    pub(super) fn map(&self, mr: Mr<Free>, sg: SgRef) -> Result<Mr<Mapped>, (Mr<Free>, Error)> {
        if mr.qp_id() != self.qp_id || sg.direction() != Direction::FromDevice {
            return Err((mr, EINVAL));
        }
        // The caller has the only token, so it is there unless the pool is destroyed.
        let Some((raw, key_used)) = self.slots.lock().check_out(mr.index()) else {
            return Err((mr, ENODEV));
        };
        let nob = sg.nob();
        // It is nobody's but ours.
        let region = raw.map(&sg, key_used);
        let covers = region
            .as_ref()
            .is_ok_and(|region| region.length == u64::from(nob));
        let mapped = region.is_ok().then(|| covers.then_some(sg));

        let check_in = self.slots.lock().check_in(mr.index(), raw, mapped);

        if check_in.is_err() {
            // The pool was destroyed meanwhile: the region goes here, and no key of it is valid.
            return Err((mr, ENODEV));
        }
        match region {
            Ok(region) if covers => Ok(mr.into_mapped(&region, nob)),
            Ok(_) => Err((mr, EINVAL)),
            Err(e) => Err((mr, e)),
        }
    }

    /// Undoes `map`.
    pub(super) fn unmap(&self, mr: Mr<Mapped>) -> Mr<Free> {
        if mr.qp_id() == self.qp_id {
            let sg = self.slots.lock().clear_mapping(mr.index());

            // Unmapped outside the lock, if this was the last.
            drop(sg);
        }
        mr.into_free()
    }

    /// The parts of a registration, which is about to be posted.
    // The token stays where it is: by parts.
    #[inline(always)]
    pub(super) fn register(&self, index: u16, rkey: u32) -> Option<RegParts> {
        self.slots.lock().register(index, rkey)
    }

    /// The invalidation of a region has completed: its key is dead.
    pub(super) fn invalidated(&self, index: u16) {
        let mut slots = self.slots.lock();
        let sg = slots.clear_mapping(index);

        slots.put_free(index);
        drop(slots);
        // Unmapped outside the lock, if this was the last.
        drop(sg);
    }

    /// Destroys all regions. Sleeps. Afterwards no key is valid.
    ///
    /// The send queue must be empty and closed: a registration would refer to
    /// what is gone.
    pub(super) fn destroy(&self) {
        let mut slots = self.slots.lock();
        let all = slots.destroy();

        self.held.store(0, Relaxed);
        drop(slots);
        drop(all);
    }
}
