// SPDX-License-Identifier: GPL-2.0

//! Memory regions of a device, shared between its queue pairs.
//!
//! Each queue pair has its own pool ([`MrPool`]), and takes idle regions there without any shared lock: a connection in
//! a steady state needs nothing else. A queue pair that needs one more region comes here. A policy that the driver
//! gives ([`MrPolicy`]) decides how many regions there may be, and whether the next one is new or an idle one of
//! another queue pair.
//!
//! A region that goes from one pool to another is idle: its invalidation has completed, so no key to it is valid, and
//! nothing that was posted with it is under way. A region belongs to a protection domain, as queue pairs do. If the
//! protection domains differ (another interface of the device), the region is destroyed and a new one is allocated in
//! its place.
//!
//! Context: [`Regions::add`] may sleep. The mutex of the list is held neither across a command to the device, nor
//! while memory is allocated; the lock of a pool is taken inside of it.
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
    mr_slots::DetachedMr,
    qp_mr_pool::MrPool,
    raw_mr::MrBudget, //
};

/// Usage of the regions when a queue pair needs one more.
#[derive(Clone, Copy)]
pub(crate) struct MrUsage {
    /// Regions that the driver may have of the device.
    pub(crate) limit: u32,
    /// Regions that are allocated.
    pub(crate) allocated: u32,
    /// Queue pairs that have, or need, regions.
    pub(crate) users: u32,
    /// Regions of the queue pair that needs another.
    pub(crate) held: u32,
}

/// Returns `None` to allocate a new region, or `Some(n)` to take an idle one from a queue pair that holds at least `n`.
/// Called again with `failed` if the allocation failed.
pub(crate) type MrPolicy = fn(MrUsage, failed: bool) -> Option<u32>;

/// Usage of the regions, for debugfs.
#[derive(Clone, Copy, Default)]
pub(crate) struct RegionsView {
    /// Regions that are allocated.
    pub(crate) allocated: u32,
    /// Regions that the driver may have; all bits set if the device does not report a limit.
    pub(crate) limit: u32,
    /// Number of times that a region went from one connection to another.
    pub(crate) moved: u64,
}

/// Number of pools that the list has room for at first.
const FIRST_POOLS: usize = 16;

/// Data under the mutex.
struct List {
    pools: KVVec<Arc<MrPool>>,
    /// Place where the next search for an idle region begins.
    next: usize,
    moved: u64,
}

/// Memory regions of the driver on a device.
#[pin_data]
pub(crate) struct Regions {
    budget: Arc<MrBudget>,
    policy: MrPolicy,
    #[pin]
    list: Mutex<List>,
}

impl Regions {
    /// Creates the list without any region, for at most `limit` regions. May sleep.
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

    /// Returns the usage, for debugfs. May sleep.
    pub(crate) fn view(&self) -> RegionsView {
        RegionsView {
            allocated: self.budget.allocated(),
            limit: self.budget.limit(),
            moved: self.list.lock().moved,
        }
    }

    /// Adds an idle region to `pool`. Sleeps.
    fn add(&self, pool: &Arc<MrPool>) -> Result {
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
                // The device has no more regions, or other queue pairs were faster.
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
        // Only its place in the budget is of use. Its key is dead, and no work request refers to it.
        drop(detached);
        pool.insert(pool.make(&self.budget)?)
    }

    /// Takes an idle region of another pool that has at least `least`. May sleep.
    fn idle(&self, pool: &Arc<MrPool>, least: u32) -> Option<DetachedMr> {
        let mut list = self.list.lock();
        // Some pools may have left the list.
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

        // The next search begins behind that pool, so that all pools are asked in turn.
        list.next = next.wrapping_add(at).wrapping_add(1) % len;
        list.moved = list.moved.wrapping_add(1);
        Some(detached)
    }

    /// Adds `pool` to the list if it is not there. Returns the number of pools. May sleep.
    fn register_pool(&self, pool: &Arc<MrPool>) -> Result<u32> {
        let mut larger = KVVec::new();

        loop {
            let mut list = self.list.lock();

            if list.pools.capacity() < larger.capacity() {
                for pool in list.pools.drain_all() {
                    // There is room.
                    let _ = larger.push_within_capacity(pool);
                }
                core::mem::swap(&mut list.pools, &mut larger);
            }
            let len = list.pools.len();

            if !list.has(pool) && list.pools.push_within_capacity(pool.clone()).is_ok() {
                pool.place().store(len, Relaxed);
            }
            if list.has(pool) {
                return Ok(u32::try_from(list.pools.len()).unwrap_or(u32::MAX));
            }
            drop(list);
            // Outside of the mutex, which queue pairs that are closed take.
            larger = KVVec::with_capacity(len.saturating_mul(2).max(FIRST_POOLS), GFP_KERNEL)?;
        }
    }

    /// Takes `pool` out of the list. May sleep.
    fn unregister_pool(&self, pool: &Arc<MrPool>) {
        let mut list = self.list.lock();

        if !list.has(pool) {
            return;
        }
        let at = pool.place().load(Relaxed);
        // The last pool gets its place.
        let Some(last) = list.pools.pop() else {
            return;
        };

        last.place().store(at, Relaxed);
        let gone = match list.pools.get_mut(at) {
            Some(place) => core::mem::replace(place, last),
            // It was the last pool.
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

/// Pool of a queue pair, with the list that it gets regions from. Must be dropped in process context, when the queue
/// pair is destroyed or can post no more.
pub(super) struct MrPoolHandle {
    pool: Arc<MrPool>,
    regions: Arc<Regions>,
}

impl MrPoolHandle {
    /// Creates the handle of a pool that has no other handle.
    pub(super) fn new(pool: Arc<MrPool>, regions: &Arc<Regions>) -> Self {
        Self {
            pool,
            regions: regions.clone(),
        }
    }

    /// Adds an idle region. Sleeps.
    ///
    /// # Errors
    ///
    /// `ENOBUFS` if the queue pair has as many regions as it may, or all of the device are in use; otherwise the error
    /// of the allocation.
    pub(super) fn add(&self) -> Result {
        self.regions.add(&self.pool)
    }

    /// Removes the pool from the list and destroys all its regions, as [`MrPool::destroy`]. Sleeps.
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
