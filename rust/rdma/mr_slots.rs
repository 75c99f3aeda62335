// SPDX-License-Identifier: GPL-2.0

//! The regions of one pool, by index, and the keys that the device knows: the data under the lock of
//! [`super::qp_mr_pool`].
//!
//! Nothing here sleeps. Dropping a returned value may sleep: callers do that after the lock.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    pd::Pd,
    raw_mr::{
        RawMr,
        Region, //
    },
    sg::SgRef, //
};
use crate::bindings;

/// A region of a pool, and the state of its key.
struct PooledMr {
    raw: RawMr,
    /// The current key went into a posted registration: the next registration needs another key.
    key_used: bool,
    /// The key that the device knows: that of the last registration, or the first one.
    device_rkey: u32,
}

/// A region without a slot: it is not mapped, and no key to it is valid.
pub(super) struct DetachedMr(KBox<PooledMr>);

impl DetachedMr {
    /// Creates a region that belongs to no pool. May sleep.
    pub(super) fn new(raw: RawMr) -> Result<Self> {
        let mr = PooledMr {
            device_rkey: raw.get().rkey,
            raw,
            key_used: false,
        };

        Ok(Self(KBox::new(mr, GFP_KERNEL)?))
    }

    /// Returns whether queue pairs of `pd` can use it.
    pub(super) fn is_of(&self, pd: &Arc<Pd>) -> bool {
        self.0.raw.is_of(pd)
    }
}

/// A region outside of its slot, to be mapped: that may sleep, so it happens without the lock. It is lost if this is
/// dropped.
pub(super) struct TakenMr {
    mr: KBox<PooledMr>,
    index: u16,
}

impl TakenMr {
    /// Maps all of `sg`, and makes its next key. Sleeps, with some providers.
    pub(super) fn map(&mut self, sg: &SgRef) -> Result<Region> {
        let region = self.mr.raw.map(sg, self.mr.key_used)?;

        self.mr.key_used = false;
        // A list that no single key covers.
        if region.length != u64::from(sg.nob()) {
            return Err(EINVAL);
        }
        Ok(region)
    }
}

/// A slot for a region.
#[derive(Default)]
struct Entry {
    // `None` while it is outside ([`TakenMr`]), or if the slot is vacant.
    mr: Option<KBox<PooledMr>>,
    // Set from `mapped` until no key to it can be valid.
    sg: Option<SgRef>,
    // The region of this slot went to another pool.
    is_vacant: bool,
    // Key of the region, and whether it is used, at the last call of `remove_unused`: each use changes one of them.
    last_seen: Option<(u32, bool)>,
}

impl Entry {
    fn key(&self) -> Option<(u32, bool)> {
        let mr = self.mr.as_ref()?;

        Some((mr.device_rkey, mr.key_used))
    }
}

/// Fields of a region for a work request.
pub(super) struct RegParts {
    pub(super) mr: *mut bindings::ib_mr,
    pub(super) key: u32,
    /// The key that the device knows until then: dead, because the region is free.
    pub(super) device_rkey: u32,
}

/// The regions of a pool, in slots.
///
/// # Invariants
///
/// - `free` has room for as many as `entries` has.
/// - An index is in `free`, once, exactly while its region is in its slot, not mapped, without a valid key.
pub(super) struct MrSlots {
    entries: KVec<Entry>,
    free: KVec<u16>,
    /// No region is added any more.
    destroyed: bool,
}

impl MrSlots {
    /// Creates an empty list without room.
    pub(super) fn new() -> Self {
        Self {
            entries: KVec::new(),
            free: KVec::new(),
            destroyed: false,
        }
    }

    /// Creates an empty list with room for `n` regions. May sleep.
    pub(super) fn with_capacity(n: usize) -> Result<Self> {
        Ok(Self {
            entries: KVec::with_capacity(n, GFP_KERNEL)?,
            free: KVec::with_capacity(n, GFP_KERNEL)?,
            destroyed: false,
        })
    }

    /// Returns the number of slots.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether the regions were destroyed, so that none is added any more.
    pub(super) fn is_destroyed(&self) -> bool {
        self.destroyed
    }

    /// Returns whether one more region can be added.
    pub(super) fn has_room(&self) -> bool {
        self.entries.len() < self.entries.capacity() || self.entries.iter().any(|e| e.is_vacant)
    }

    /// Moves all slots into `larger`, which is empty, if that has more room. Leaves the old memory in `larger`.
    pub(super) fn move_into(&mut self, larger: &mut Self) {
        if larger.entries.capacity() <= self.entries.capacity() || self.destroyed {
            return;
        }
        // There is room, so none of these can fail.
        for entry in self.entries.drain_all() {
            let _ = larger.entries.push_within_capacity(entry);
        }
        for index in self.free.drain_all() {
            let _ = larger.free.push_within_capacity(index);
        }
        // INVARIANT: Both were made with the same room.
        core::mem::swap(&mut self.entries, &mut larger.entries);
        core::mem::swap(&mut self.free, &mut larger.free);
    }

    /// Adds a slot with the region, which is free. Gives it back if there is no room.
    pub(super) fn add(&mut self, mr: DetachedMr) -> Result<(), DetachedMr> {
        let hole = self.entries.iter().position(|e| e.is_vacant);
        let at = hole.unwrap_or(self.entries.len());
        let Ok(index) = u16::try_from(at) else {
            return Err(mr);
        };

        if self.destroyed || !self.has_room() {
            return Err(mr);
        }
        let entry = Entry {
            mr: Some(mr.0),
            ..Entry::default()
        };

        match self.entries.get_mut(at) {
            Some(hole) => *hole = entry,
            None => {
                // There is room, so this cannot fail.
                let _ = self.entries.push_within_capacity(entry);
            }
        }
        self.put_free(index);
        Ok(())
    }

    /// Removes the region that became free last. It goes to another pool.
    pub(super) fn remove_free(&mut self) -> Option<DetachedMr> {
        let index = self.free.pop()?;
        self.remove(index)
    }

    /// Removes a free region that was not used since the last call, if there is one.
    pub(super) fn remove_unused(&mut self) -> Option<DetachedMr> {
        let entries = &mut self.entries;
        let unused = self.free.iter().position(|index| {
            let entry = entries.get(usize::from(*index));
            entry.is_some_and(|e| e.last_seen.is_some() && e.last_seen == e.key())
        });

        for entry in entries.iter_mut() {
            entry.last_seen = entry.key();
        }
        // The regions that were not used for the longest time are first.
        let index = self.free.remove(unused?).ok()?;
        self.remove(index)
    }

    /// Removes a region that is not in `free` any more.
    fn remove(&mut self, index: u16) -> Option<DetachedMr> {
        let entry = self.entry(index)?;
        let mr = entry.mr.take()?;

        entry.is_vacant = true;
        Some(DetachedMr(mr))
    }

    /// Returns whether a region is free.
    pub(super) fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// Takes a free region out of its slot.
    pub(super) fn take_free(&mut self) -> Option<TakenMr> {
        let index = self.free.pop()?;
        let mr = self.entry(index)?.mr.take()?;

        Some(TakenMr { mr, index })
    }

    fn entry(&mut self, index: u16) -> Option<&mut Entry> {
        self.entries.get_mut(usize::from(index))
    }

    /// Puts a region back that covers the list `sg` now. Returns the index of its slot; gives both back if the regions
    /// were destroyed.
    pub(super) fn put_mapped(
        &mut self,
        taken: TakenMr,
        sg: SgRef,
    ) -> Result<u16, (TakenMr, SgRef)> {
        let index = taken.index;
        let Some(entry) = self.entry(index) else {
            return Err((taken, sg));
        };

        entry.mr = Some(taken.mr);
        entry.sg = Some(sg);
        Ok(index)
    }

    /// Puts a region back that is not mapped. Gives it back if the regions were destroyed.
    pub(super) fn put_unmapped(&mut self, taken: TakenMr) -> Result<(), TakenMr> {
        let index = taken.index;
        let Some(entry) = self.entry(index) else {
            return Err(taken);
        };

        entry.mr = Some(taken.mr);
        self.put_free(index);
        Ok(())
    }

    /// Frees a region whose key is dead, and returns its mapping.
    pub(super) fn unmap(&mut self, index: u16) -> Option<SgRef> {
        let entry = self.entry(index)?;
        let sg = entry.sg.take();

        self.put_free(index);
        sg
    }

    // There is room for all regions, so this cannot fail.
    fn put_free(&mut self, index: u16) {
        let _ = self.free.push_within_capacity(index);
    }

    /// Returns the fields for a registration with `rkey`, which is about to be posted.
    pub(super) fn register(&mut self, index: u16, rkey: u32) -> Option<RegParts> {
        let mr = self.entry(index)?.mr.as_mut()?;

        mr.key_used = true;
        Some(RegParts {
            mr: mr.raw.as_raw(),
            key: rkey,
            device_rkey: core::mem::replace(&mut mr.device_rkey, rkey),
        })
    }

    /// Removes all regions for good. Dropping the result sleeps.
    ///
    /// A region that is being mapped now is dropped by the thread that maps it: no key of it is valid.
    pub(super) fn destroy(&mut self) -> impl Sized {
        self.destroyed = true;
        self.free.clear();
        for entry in self.entries.iter_mut() {
            // Mapped, and its registration never posted: the thread that mapped it may be about to give the memory
            // back, and must find it unmapped. Hence inside the lock.
            if !entry.mr.as_ref().is_some_and(|mr| mr.key_used) {
                entry.sg = None;
            }
        }
        // The fields of an entry are dropped in order: first the region, then the mapping.
        core::mem::take(&mut self.entries)
    }
}
