// SPDX-License-Identifier: GPL-2.0

//! Bounce buffer: memory of the driver that stands in for LNet's.

use kernel::{
    page::PAGE_SIZE,
    pr_warn_once,
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
    /// The pages that the data is for.
    to: PageVec,
}

impl BounceBuf {
    /// Allocates and maps as many zeroed bytes as `to` has, for which the data is. Zeroed, because a peer may report
    /// bytes as written that it did not write, and old memory must not leak. Maps whole pages, because a copy for the
    /// device (swiotlb) begins at a page only then.
    ///
    /// # Errors
    ///
    /// `EINVAL` for 0, `ENOMEM`, `EIO` if it cannot be mapped.
    pub(crate) fn alloc(device: ARef<Device>, to: PageVec) -> Result<Self> {
        let whole = to.nob().checked_next_multiple_of(PAGE_SIZE);
        let pages = PageVec::alloc(whole.ok_or(EINVAL)?)?;
        // SAFETY: The pages are our own.
        let map = unsafe { SgMap::map(device, &pages, Direction::FromDevice) }?;

        Ok(Self {
            pages,
            map: Some(map),
            to,
        })
    }

    /// Returns the mapping, until the data is copied out.
    pub(crate) fn map(&self) -> Option<&SgRef> {
        self.map.as_ref()
    }

    /// Unmaps the buffer, whose key must be dead. Any context except hard interrupts.
    ///
    /// # Errors
    ///
    /// `EBUSY` if a work request or memory region still uses the mapping.
    pub(crate) fn unmap(&mut self) -> Result {
        if self.map.take().is_none_or(SgRef::unmap) {
            return Ok(());
        }
        pr_warn_once!("a bounce buffer is unmapped while the device still uses it\n");
        Err(EBUSY)
    }

    /// Copies the first `nob` bytes to the pages that they are for. The buffer is
    /// unmapped before, so its key must be dead. Any context except hard interrupts.
    ///
    /// # Errors
    ///
    /// `EBUSY` if a work request or memory region still uses the mapping,
    /// `EINVAL` if it is shorter, `EOPNOTSUPP` for memory of a GPU.
    pub(crate) fn copy_out(&mut self, nob: u32) -> Result {
        self.unmap()?;
        let nob = usize::try_from(nob)?;
        self.to.copy_from(&self.pages, nob)
    }
}
