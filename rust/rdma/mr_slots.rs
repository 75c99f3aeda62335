// SPDX-License-Identifier: GPL-2.0

//! The regions of one pool, by index, and the keys that the device knows: the data under the lock of
//! [`super::mr_pool`].
//!
//! Nothing here sleeps, but to drop what is handed out may: callers do that after the lock.

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

/// A region that belongs to no pool. It is mapped nowhere, and no key to it is valid.
pub(super) struct DetachedMr {
    raw: RawMr,
    key_used: bool,
    device_rkey: u32,
}

impl DetachedMr {
    /// Whether queue pairs of `pd` can use it.
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

/// A place for a region.
struct Entry {
    // Not there while it is being mapped: that may sleep, so it is not done under the lock.
    raw: Option<RawMr>,
    // Set from `mapped` until no key to it can be valid.
    sg: Option<SgRef>,
    // The current key went into a posted registration: the next one needs another.
    key_used: bool,
    // The region that was here went to another pool.
    is_vacant: bool,
    // The key that the device knows: of the last registration, or of the beginning.
    device_rkey: u32,
    // `device_rkey` and `key_used` when `remove_unused` last looked: both change with each use of the region.
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

/// What a work request needs to know of a region.
pub(super) struct RegParts {
    pub(super) mr: *mut bindings::ib_mr,
    pub(super) key: u32,
    /// The key that the device knows until then: dead, as the region is free.
    pub(super) device_rkey: u32,
}

/// The regions of a pool.
///
/// # Invariants
///
/// - `free` has room for as many as `entries` has.
/// - An index is in `free`, once, exactly while nobody has a token for it, and its region is there, mapped
///   nowhere, without a valid key.
pub(super) struct MrSlots {
    entries: KVec<Entry>,
    free: KVec<u16>,
    /// Nothing is added any more.
    destroyed: bool,
}

impl MrSlots {
    /// None, and no room.
    pub(super) fn new() -> Self {
        Self {
            entries: KVec::new(),
            free: KVec::new(),
            destroyed: false,
        }
    }

    /// None, with room for `n`. May sleep.
    pub(super) fn with_capacity(n: usize) -> Result<Self> {
        Ok(Self {
            entries: KVec::with_capacity(n, GFP_KERNEL)?,
            free: KVec::with_capacity(n, GFP_KERNEL)?,
            destroyed: false,
        })
    }

    /// How many places there are.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether nothing is added any more.
    pub(super) fn is_destroyed(&self) -> bool {
        self.destroyed
    }

    /// Whether one more can be added.
    pub(super) fn has_room(&self) -> bool {
        self.entries.len() < self.entries.capacity() || self.entries.iter().any(|e| e.is_vacant)
    }

    /// Goes on in `larger`, which is empty, if that has more room. What was used before is there afterwards.
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

    /// A place for the region, which is not free; else it is given back.
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

    /// Takes the region out that was free last. It goes to another pool.
    pub(super) fn remove_free(&mut self) -> Option<DetachedMr> {
        let index = self.free.pop()?;
        self.remove(index)
    }

    /// Takes a free region out that was not used since this was last called, if there is one.
    pub(super) fn remove_unused(&mut self) -> Option<DetachedMr> {
        let entries = &mut self.entries;
        let unused = self.free.iter().position(|index| {
            let entry = entries.get(usize::from(*index));
            entry.is_some_and(|e| e.last_seen == Some((e.device_rkey, e.key_used)))
        });

        for entry in entries.iter_mut() {
            entry.last_seen = Some((entry.device_rkey, entry.key_used));
        }
        // Those that were not used for longest are first.
        let index = self.free.remove(unused?).ok()?;
        self.remove(index)
    }

    /// Takes a region out that is in `free` no more.
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

    /// Takes a free one.
    pub(super) fn take_free(&mut self) -> Option<u16> {
        self.free.pop()
    }

    /// That one is free again.
    pub(super) fn put_free(&mut self, index: u16) {
        // There is room for all of them, so this cannot fail.
        let _ = self.free.push_within_capacity(index);
    }

    fn entry(&mut self, index: u16) -> Option<&mut Entry> {
        self.entries.get_mut(usize::from(index))
    }

    /// Takes a region out to map it, and whether it needs another key. `None`: they are destroyed.
    pub(super) fn check_out(&mut self, index: u16) -> Option<(RawMr, bool)> {
        let entry = self.entry(index)?;

        Some((entry.raw.take()?, entry.key_used))
    }

    /// Puts it back; it covers `sg` and has had another key, if it was mapped. Given back: they were destroyed.
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

    /// It covers nothing any more: what it did.
    pub(super) fn clear_mapping(&mut self, index: u16) -> Option<SgRef> {
        self.entry(index)?.sg.take()
    }

    /// The key `rkey` goes into a registration, which is about to be posted.
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

    /// Takes all out, for good. To drop them sleeps.
    ///
    /// A region that is being mapped now goes with whoever maps it: it has no key that is valid.
    pub(super) fn destroy(&mut self) -> impl Sized {
        self.destroyed = true;
        self.free.clear();
        for entry in self.entries.iter_mut() {
            // Mapped, and its registration never posted: whoever mapped it may be about to
            // give the memory back, and must find it unmapped. Hence inside the lock.
            if !entry.key_used {
                entry.sg = None;
            }
        }
        // The fields of an entry are dropped in order: first the region, then the mapping.
        core::mem::take(&mut self.entries)
    }
}
