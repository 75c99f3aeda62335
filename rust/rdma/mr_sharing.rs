// SPDX-License-Identifier: GPL-2.0

//! The memory regions that we have of a device: who has them, and where the next one is from.
//!
//! Each queue pair has a pool of its own ([`MrPool`]), and takes what lies idle there without asking anybody: that is
//! all that happens while a connection works as it did before. Only who needs one more comes here. How many there may
//! be, and whether it is a new one or one that lies idle with another queue pair, is a policy that is given
//! ([`MrPolicy`]); it is not known here.
//!
//! A region that goes from one pool to another is idle: its invalidation has completed, so no key to it is valid, and
//! nothing that was posted with it is under way. It belongs to a protection domain, as queue pairs do. If that is
//! another one (of another interface of the device) the region is destroyed, and a new one made in its place.
//!
//! Context: [`Regions::take`] may sleep. The mutex of the list is held neither across a command to the device, nor
//! while memory is allocated for a pool; the lock of a pool is taken inside of it.
//!
//! # Invariants
//!
//! A pool is in the list from the first time that it needs a region until its [`MrPoolHandle`] is dropped.

use core::ops::Deref;

use kernel::{
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    }, //
};

use super::{
    atomic::Relaxed,
    mr::{
        Free,
        Mr, //
    },
    mr_pool::MrPool,
    mr_slots::DetachedMr,
    raw_mr::MrBudget, //
};

/// What is known when a queue pair needs one region more.
#[derive(Clone, Copy)]
pub(crate) struct MrUsage {
    /// Regions that we may have of the device.
    pub(crate) limit: u32,
    /// Regions that there are.
    pub(crate) allocated: u32,
    /// Queue pairs that have, or want, some.
    pub(crate) users: u32,
    /// Regions of the one that needs another.
    pub(crate) held: u32,
}

/// Returns `None` to allocate a new region, or `Some(n)` to take an idle one from a queue pair that holds at least `n`.
/// Called again with `failed` if the allocation failed.
pub(crate) type MrPolicy = fn(MrUsage, failed: bool) -> Option<u32>;

/// How regions are and were had, for people.
#[derive(Clone, Copy, Default)]
pub(crate) struct RegionsView {
    /// Regions that there are.
    pub(crate) allocated: u32,
    /// How many there may be; all bits set: the device does not say.
    pub(crate) limit: u32,
    /// How often one went from a connection to another.
    pub(crate) moved: u64,
}

/// What the mutex protects.
struct List {
    pools: KVVec<Arc<MrPool>>,
    /// Where the next search for an idle one begins.
    next: usize,
    moved: u64,
}

/// The memory regions that we have of a device.
#[pin_data]
pub(crate) struct Regions {
    budget: Arc<MrBudget>,
    policy: MrPolicy,
    #[pin]
    list: Mutex<List>,
}

impl Regions {
    /// None yet, and never more than `bound`. May sleep.
    pub(crate) fn new(limit: u32, policy: MrPolicy) -> Result<Arc<Self>> {
        let budget = Arc::new(MrBudget::new(limit), GFP_KERNEL)?;
        let list = List {
            pools: KVVec::new(),
            next: 0,
            moved: 0,
        };

        Arc::pin_init(
            pin_init!(Self {
                budget,
                policy,
                list <- kernel::new_mutex!(list, "Regions::list"),
            }),
            GFP_KERNEL,
        )
    }

    /// What people see. May sleep.
    pub(crate) fn view(&self) -> RegionsView {
        RegionsView {
            allocated: self.budget.allocated(),
            limit: self.budget.limit(),
            moved: self.list.lock().moved,
        }
    }

    /// A region for `pool`. Sleeps.
    fn take(&self, pool: &Arc<MrPool>) -> Result<Mr<Free>> {
        if let Some(mr) = pool.take_idle() {
            return Ok(mr);
        }
        if pool.is_full() {
            return Err(ENOBUFS);
        }
        let mut usage = MrUsage {
            limit: self.budget.limit(),
            allocated: self.budget.allocated(),
            users: self.register_pool(pool)?,
            held: pool.held(),
        };
        let mut idle = (self.policy)(usage, false);
        let mut why = ENOBUFS;
        if idle.is_none() {
            match pool.make(&self.budget) {
                Ok(detached) => return pool.insert(detached),
                // The device has no more, or others were faster.
                Err(e) => {
                    why = e;
                    usage.allocated = self.budget.allocated();
                    idle = (self.policy)(usage, true);
                }
            }
        }
        let least = idle.ok_or(why)?;
        let detached = self.idle(pool, least).ok_or(why)?;

        if detached.is_of(pool.pd()) {
            return pool.insert(detached);
        }
        // Only the place that it leaves in the budget is of use. Its key is dead, and nothing of it is under way.
        drop(detached);
        pool.insert(pool.make(&self.budget)?)
    }

    /// One that lies idle with another one than `pool`, which has `least` or more. May sleep.
    fn idle(&self, pool: &Arc<MrPool>, least: u32) -> Option<DetachedMr> {
        let mut list = self.list.lock();
        // Some may have left.
        let next = list.next.min(list.pools.len());
        let (front, back) = list.pools.split_at_checked(next).unwrap_or_default();
        let mut found = None;

        for (at, other) in Iterator::chain(back.iter(), front).enumerate() {
            if other.held() < least || Arc::ptr_eq(other, pool) {
                continue;
            }
            if let Some(detached) = other.steal_idle(pool.max_pages()) {
                found = Some((at, detached));
                break;
            }
        }
        let (at, detached) = found?;
        let len = list.pools.len().max(1);

        // The one behind it is asked first the next time, so that all are asked in turn.
        list.next = next.wrapping_add(at).wrapping_add(1) % len;
        list.moved = list.moved.wrapping_add(1);
        Some(detached)
    }

    /// Puts `pool` into the list if it is not there. Returns how many there are. May sleep.
    fn register_pool(&self, pool: &Arc<MrPool>) -> Result<u32> {
        let mut list = self.list.lock();
        let len = list.pools.len();

        if !list.has(pool) {
            list.pools.push(pool.clone(), GFP_KERNEL)?;
            pool.place().store(len, Relaxed);
        }
        Ok(u32::try_from(list.pools.len()).unwrap_or(u32::MAX))
    }

    /// Takes `pool` out of the list. May sleep.
    fn unregister_pool(&self, pool: &Arc<MrPool>) {
        let mut list = self.list.lock();

        if !list.has(pool) {
            return;
        }
        let at = pool.place().load(Relaxed);
        // The last one gets its place.
        let Some(last) = list.pools.pop() else {
            return;
        };

        last.place().store(at, Relaxed);
        let gone = match list.pools.get_mut(at) {
            Some(place) => core::mem::replace(place, last),
            // It was the last one.
            None => last,
        };

        drop(list);
        drop(gone);
    }
}

impl List {
    fn has(&self, pool: &Arc<MrPool>) -> bool {
        let at = pool.place().load(Relaxed);

        self.pools.get(at).is_some_and(|p| Arc::ptr_eq(p, pool))
    }
}

/// The pool of a queue pair, and where it gets regions from. Must be dropped in process context, when the queue pair is
/// destroyed or can post no more.
pub(super) struct MrPoolHandle {
    pool: Arc<MrPool>,
    regions: Arc<Regions>,
}

impl MrPoolHandle {
    /// A pool that nobody has but this.
    pub(super) fn new(pool: Arc<MrPool>, regions: &Arc<Regions>) -> Self {
        Self {
            pool,
            regions: regions.clone(),
        }
    }

    /// Takes a region. Sleeps.
    ///
    /// # Errors
    ///
    /// `ENOBUFS` if the queue pair has as many in use as it may, or all of the device are in use; else why none can be
    /// made.
    pub(super) fn take(&self) -> Result<Mr<Free>> {
        self.regions.take(&self.pool)
    }

    /// Destroys all regions: [`MrPool::destroy`]. Sleeps.
    pub(super) fn destroy(&self) {
        self.regions.unregister_pool(&self.pool);
        self.pool.destroy();
    }
}

impl Deref for MrPoolHandle {
    type Target = MrPool;

    fn deref(&self) -> &MrPool {
        &self.pool
    }
}

impl Drop for MrPoolHandle {
    fn drop(&mut self) {
        self.destroy();
    }
}
