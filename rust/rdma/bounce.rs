// SPDX-License-Identifier: GPL-2.0

//! Bounce buffer: memory of the driver that stands in for LNet's.

use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    sync::aref::ARef, //
};

use super::{
    buf::Direction,
    device::Device,
    page_frags::PageVec,
    sg::{
        SgMap,
        SgRef, //
    }, //
};

/// Buffer for a sink that one memory region cannot cover: the device writes here, then the data is copied.
pub(crate) struct BounceBuf {
    pages: PageVec,
    map: Option<SgRef>,
}

impl BounceBuf {
    /// Allocates and maps `nob` zeroed bytes. Zeroed, because a peer may report bytes as written that it did not write,
    /// and old memory must not leak. Maps whole pages, because a copy for the device (swiotlb) begins at a page only
    /// then. May sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` for 0, `ENOMEM`, `EIO` if it cannot be mapped.
    pub(crate) fn alloc(device: ARef<Device>, nob: usize) -> Result<Self> {
        let pages = PageVec::alloc(nob.checked_next_multiple_of(PAGE_SIZE).ok_or(EINVAL)?)?;
        // SAFETY: The pages are our own.
        let map = unsafe { SgMap::map(device, &pages, Direction::FromDevice) }?;

        Ok(Self {
            pages,
            map: Some(map),
        })
    }

    /// Returns the mapping, until the data is copied out.
    pub(crate) fn map(&self) -> Option<&SgRef> {
        self.map.as_ref()
    }

    /// Copies the first `nob` bytes to the beginning of `to`. The buffer is
    /// unmapped before, so its key must be dead. Any context but hard interrupts.
    ///
    /// # Errors
    ///
    /// `EBUSY` if a work request or memory region still uses the mapping,
    /// `EINVAL` if either is shorter, `EOPNOTSUPP` for memory of a GPU.
    pub(crate) fn copy_to(&mut self, to: &PageVec, nob: usize) -> Result {
        if let Some(map) = self.map.take() {
            if !map.unmap() {
                return Err(EBUSY);
            }
        }
        to.copy_from(&self.pages, nob)
    }
}
