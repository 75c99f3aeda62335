// SPDX-License-Identifier: GPL-2.0

//! Mapped memory together with the owner of its pages.
//!
//! The owner comes back only when nothing uses the mapping any more. Ending the life of the pages takes the owner, so
//! that does not compile while a device may access them.
//!
//! Context: any but hard interrupts, as far as the owner can be dropped there.

use core::mem::ManuallyDrop;

use kernel::pr_warn_once;

use super::sg::SgRef;

/// A mapping, and `keeper`, which keeps its pages.
///
/// # Invariants
///
/// The pages that `map` maps are valid for as long as `keeper` exists.
pub(crate) struct Mapping<K> {
    map: ManuallyDrop<SgRef>,
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
            map: ManuallyDrop::new(map),
            keeper: ManuallyDrop::new(keeper),
        }
    }

    /// Returns the mapping, for work requests and memory regions to share.
    #[inline]
    pub(crate) fn map(&self) -> &SgRef {
        &self.map
    }

    /// Unmaps the pages, and returns their owner. `None`: a work request or memory region still uses the mapping, which
    /// is a fault of the caller. The owner is lost then, because the device may access the pages for ever.
    #[inline]
    pub(crate) fn unmap(self) -> Option<K> {
        let mut this = ManuallyDrop::new(self);

        // SAFETY: `this` is not used any more.
        unsafe { this.take() }
    }

    /// Replaces the owner.
    ///
    /// # Safety
    ///
    /// The owner that `f` returns keeps the pages as the one before did, without a gap.
    pub(crate) unsafe fn with_keeper<N>(
        self,
        f: impl FnOnce(K) -> Result<N, K>,
    ) -> Result<Mapping<N>, Self> {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is not used any more.
        let (map, keeper) = unsafe {
            (
                ManuallyDrop::take(&mut this.map),
                ManuallyDrop::take(&mut this.keeper),
            )
        };

        match f(keeper) {
            // SAFETY: Guaranteed by the caller.
            Ok(keeper) => Ok(unsafe { Mapping::new(map, keeper) }),
            // SAFETY: As above.
            Err(keeper) => Err(unsafe { Self::new(map, keeper) }),
        }
    }

    /// Unmaps the pages, and takes the owner out.
    ///
    /// # Safety
    ///
    /// This is not used afterwards.
    #[inline]
    unsafe fn take(&mut self) -> Option<K> {
        // SAFETY: By the contract of this function, both are taken once.
        let (map, keeper) = unsafe {
            (
                ManuallyDrop::take(&mut self.map),
                ManuallyDrop::take(&mut self.keeper),
            )
        };

        if map.unmap() {
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
