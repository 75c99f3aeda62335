// SPDX-License-Identifier: GPL-2.0

//! Memory together with the owner of its pages, and with its mapping while a device may access it.
//!
//! The owner comes back only when nothing uses the mapping any more. Ending the life of the pages takes the owner, so
//! that does not compile while a device may access them.
//!
//! Context: any but hard interrupts, as far as the owner can be dropped there.

use core::mem::ManuallyDrop;

use kernel::pr_warn_once;

use super::sg::SgRef;

/// A mapping, if there is one, and `keeper`, which keeps its pages.
///
/// # Invariants
///
/// The pages that `map` maps are valid for as long as `keeper` exists.
pub(crate) struct Mapping<K> {
    map: ManuallyDrop<Option<SgRef>>,
    keeper: ManuallyDrop<K>,
}

impl<K> Mapping<K> {
    /// Joins a mapping and the owner of its pages.
    ///
    /// # Safety
    ///
    /// The pages that `map` maps are valid until `keeper` is dropped, or given to what takes it by value.
    pub(crate) unsafe fn new(map: SgRef, keeper: K) -> Self {
        // INVARIANT: Guaranteed by the caller.
        Self {
            map: ManuallyDrop::new(Some(map)),
            keeper: ManuallyDrop::new(keeper),
        }
    }

    /// Takes an owner whose pages are not mapped.
    #[inline(always)]
    pub(crate) fn none(keeper: K) -> Self {
        // INVARIANT: There is no mapping.
        Self {
            map: ManuallyDrop::new(None),
            keeper: ManuallyDrop::new(keeper),
        }
    }

    /// Returns the mapping, for work requests and memory regions to share.
    #[inline]
    pub(crate) fn map(&self) -> Option<&SgRef> {
        self.map.as_ref()
    }

    /// Returns the owner.
    #[inline]
    pub(crate) fn keeper(&self) -> &K {
        &self.keeper
    }

    /// Returns the owner for changes.
    ///
    /// # Safety
    ///
    /// It must keep the pages as before, without a gap.
    pub(crate) unsafe fn keeper_mut(&mut self) -> &mut K {
        &mut self.keeper
    }

    /// Unmaps the pages, and returns their owner. `None`: a work request or memory region still uses the mapping, which
    /// is a fault of the caller. The owner is lost then, because the device may access the pages for ever.
    #[inline(always)]
    pub(crate) fn unmap(self) -> Option<K> {
        let mut this = ManuallyDrop::new(self);

        // SAFETY: `this` is not used any more.
        unsafe { this.take() }
    }

    /// Returns the owner, if there is no mapping.
    ///
    /// # Errors
    ///
    /// Returns this if there is one.
    #[inline(always)]
    pub(crate) fn into_unmapped(self) -> Result<K, Self> {
        if self.map.is_some() {
            return Err(self);
        }
        let mut this = ManuallyDrop::new(self);

        // SAFETY: It is taken once: `this` is not used any more. There is no mapping to be dropped.
        Ok(unsafe { ManuallyDrop::take(&mut this.keeper) })
    }

    /// Unmaps the pages, and takes the owner out.
    ///
    /// # Safety
    ///
    /// This is not used afterwards.
    #[inline(always)]
    unsafe fn take(&mut self) -> Option<K> {
        // SAFETY: By the contract of this function, both are taken once.
        let (map, keeper) = unsafe {
            (
                ManuallyDrop::take(&mut self.map),
                ManuallyDrop::take(&mut self.keeper),
            )
        };

        if map.is_none_or(SgRef::unmap) {
            return Some(keeper);
        }
        lose(keeper);
        None
    }
}

impl<K> Drop for Mapping<K> {
    fn drop(&mut self) {
        // SAFETY: It ends here.
        drop(unsafe { self.take() });
    }
}

#[cold]
#[inline(never)]
fn lose<K>(keeper: K) {
    pr_warn_once!("memory is returned to its owner while the device still uses it\n");
    core::mem::forget(keeper);
}
