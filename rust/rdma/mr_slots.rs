// SPDX-License-Identifier: GPL-2.0

//! The regions of one pool, by index, and the keys that the device knows: the data under the lock of
//! [`super::mr_pool`].
//!
//! Nothing here sleeps. Dropping a returned value may sleep: callers do that after the lock.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    pd::Pd,
    raw_mr::RawMr,
    sg::SgRef, //
};
use crate::bindings;

/// A region that belongs to no pool. It is not mapped, and no key to it is valid.
pub(super) struct DetachedMr {
    raw: RawMr,
    key_used: bool,
    device_rkey: u32,
}

impl DetachedMr {
    /// Returns whether queue pairs of `pd` can use it.
    pub(super) fn is_of(&self, pd: &Arc<Pd>) -> bool {
        self.raw.is_of(pd)
    }
}

impl From<RawMr> for DetachedMr {
    fn from(raw: RawMr) -> Self {
        let device_rkey = raw.get().rkey;

        Self {
            raw,
            key_used: false,
            device_rkey,
        }
    }
}

/// A slot for a region.
struct Entry {
    // `None` while it is being mapped: that may sleep, so it happens outside of the lock.
    raw: Option<RawMr>,
    // Set from `mapped` until no key to it can be valid.
    sg: Option<SgRef>,
    // The current key went into a posted registration: the next registration needs another key.
    key_used: bool,
    // The region of this slot went to another pool.
    is_vacant: bool,
    // The key that the device knows: that of the last registration, or the first one.
    device_rkey: u32,
    // `device_rkey` and `key_used` at the last call of `remove_unused`: both change with each use of the region.
    last_seen: Option<(u32, bool)>,
}

impl From<DetachedMr> for Entry {
    fn from(detached: DetachedMr) -> Self {
        Self {
            raw: Some(detached.raw),
            sg: None,
            key_used: detached.key_used,
            is_vacant: false,
            device_rkey: detached.device_rkey,
            last_seen: None,
        }
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
/// - An index is in `free`, once, exactly while no token for it exists, and its region is in its slot, not
///   mapped, without a valid key.
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

    /// Adds the region, and returns its index, which is not free. Gives the region back if there is no room.
    pub(super) fn add(&mut self, detached: DetachedMr) -> Result<u16, DetachedMr> {
        let hole = self.entries.iter().position(|e| e.is_vacant);
        let at = hole.unwrap_or(self.entries.len());
        let Ok(index) = u16::try_from(at) else {
            return Err(detached);
        };

        if self.destroyed || !self.has_room() {
            return Err(detached);
        }
        match self.entries.get_mut(at) {
            Some(hole) => *hole = detached.into(),
            None => {
                // There is room, so this cannot fail.
                let _ = self.entries.push_within_capacity(detached.into());
            }
        }
        Ok(index)
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
            entry.is_some_and(|e| e.last_seen == Some((e.device_rkey, e.key_used)))
        });

        for entry in entries.iter_mut() {
            entry.last_seen = Some((entry.device_rkey, entry.key_used));
        }
        // The regions that were not used for the longest time are first.
        let index = self.free.remove(unused?).ok()?;
        self.remove(index)
    }

    /// Removes a region that is not in `free` any more.
    fn remove(&mut self, index: u16) -> Option<DetachedMr> {
        let entry = self.entries.get_mut(usize::from(index))?;
        let raw = entry.raw.take()?;

        entry.is_vacant = true;
        Some(DetachedMr {
            raw,
            key_used: entry.key_used,
            device_rkey: entry.device_rkey,
        })
    }

    /// Takes a free region.
    pub(super) fn take_free(&mut self) -> Option<u16> {
        self.free.pop()
    }

    /// Makes a region free again.
    pub(super) fn put_free(&mut self, index: u16) {
        // There is room for all regions, so this cannot fail.
        let _ = self.free.push_within_capacity(index);
    }

    fn entry(&mut self, index: u16) -> Option<&mut Entry> {
        self.entries.get_mut(usize::from(index))
    }

    /// Takes a region out to be mapped, and returns whether it needs another key. `None`: the regions are destroyed.
    pub(super) fn check_out(&mut self, index: u16) -> Option<(RawMr, bool)> {
        let entry = self.entry(index)?;

        Some((entry.raw.take()?, entry.key_used))
    }

    /// Puts a region back. If it was mapped, it has another key and covers the list in `mapped`. Gives the region back
    /// if the regions were destroyed.
    pub(super) fn check_in(
        &mut self,
        index: u16,
        raw: RawMr,
        mapped: Option<Option<SgRef>>,
    ) -> Result<(), RawMr> {
        let Some(entry) = self.entry(index) else {
            return Err(raw);
        };

        entry.raw = Some(raw);
        if let Some(sg) = mapped {
            entry.key_used = false;
            entry.sg = sg;
        }
        Ok(())
    }

    /// Removes and returns the mapping of a region.
    pub(super) fn clear_mapping(&mut self, index: u16) -> Option<SgRef> {
        self.entry(index)?.sg.take()
    }

    /// Returns the fields for a registration with `rkey`, which is about to be posted.
    pub(super) fn register(&mut self, index: u16, rkey: u32) -> Option<RegParts> {
        let entry = self.entry(index)?;
        let raw = entry.raw.as_ref()?.as_raw();

        entry.key_used = true;
        Some(RegParts {
            mr: raw,
            key: rkey,
            device_rkey: core::mem::replace(&mut entry.device_rkey, rkey),
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
            if !entry.key_used {
                entry.sg = None;
            }
        }
        // The fields of an entry are dropped in order: first the region, then the mapping.
        core::mem::take(&mut self.entries)
    }
}
