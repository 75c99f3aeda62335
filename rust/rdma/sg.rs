// SPDX-License-Identifier: GPL-2.0

//! Lists of page fragments, mapped for a device.

use kernel::{
    error::to_result,
    prelude::*,
    sync::{
        aref::ARef,
        Arc, //
    },
    types::Opaque, //
};

use super::{
    buf::Direction,
    device::Device,
    pages::PageVec, //
};
use crate::bindings;

/// A scatterlist that is mapped for a device, and unmapped when dropped.
///
/// Work requests and memory regions that use it hold an [`Arc`] of it, so that
/// it is unmapped after the last of them. Dropping it is legal in any context
/// but hard interrupts.
///
/// # Invariants
///
/// `table` is an allocated table of pages that are valid for as long as this
/// lives; its first `used` elements are mapped for `device` in the direction
/// `direction`.
pub(crate) struct SgMap {
    table: Opaque<bindings::sg_table>,
    device: ARef<Device>,
    direction: Direction,
    nob: u32,
    used: u32,
    nr_mapped: u32,
    /// How many a region has that covers it; 0 if none can.
    region_pages: u32,
    // Keeps our own pages; those of `PageVec::from_raw` are kept by its contract.
    _pages: PageVec,
}

// SAFETY: Mappings belong to no thread, and neither do the pages (`PageVec: Send`).
unsafe impl Send for SgMap {}
// SAFETY: Nothing changes after construction.
unsafe impl Sync for SgMap {}

impl SgMap {
    /// Maps all of `pages`. Allocates with `GFP_NOFS`, so it may sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` if there is nothing to map, or less than `pages` says, `EOPNOTSUPP`
    /// for memory of a GPU, `ENOMEM`, `EIO` if it cannot be mapped.
    pub(crate) fn map(
        device: ARef<Device>,
        pages: &PageVec,
        direction: Direction,
    ) -> Result<Arc<Self>> {
        if pages.is_gpu() {
            return Err(EOPNOTSUPP);
        }
        let table = Opaque::<bindings::sg_table>::zeroed();
        let (bvecs, n, offset, nob) = pages.as_raw();
        let mut run = bindings::ro2ib_run::default();

        // SAFETY: `table` and `run` are valid for writes; `pages` guarantees the rest.
        to_result(unsafe {
            bindings::ro2ib_sgt_from_bvec(table.get(), bvecs, n, offset, nob, &mut run)
        })?;
        let (dev, dir) = (device.as_raw(), direction.as_raw());
        // SAFETY: So many elements of `table` were filled, and `device` is registered.
        let mapped =
            to_result(unsafe { bindings::ro2ib_dma_map_sgt(dev, table.get(), run.used, dir) });
        if let Err(e) = mapped {
            // SAFETY: `table` was allocated and is not mapped.
            unsafe { bindings::ro2ib_sgt_free(table.get()) };
            return Err(e);
        }
        // SAFETY: `table` is initialised.
        let nr_mapped = unsafe { (*table.get()).nents };
        // INVARIANT: Allocated and mapped above; the table may move, only its lists are pointed
        // at. `pages.share()` keeps the pages.
        let this = Self {
            table,
            device,
            direction,
            nob,
            used: run.used,
            nr_mapped,
            region_pages: run.pages,
            _pages: pages.share(),
        };

        Ok(Arc::new(this, GFP_KERNEL)?)
    }

    /// How many bytes it covers.
    pub(crate) fn nob(&self) -> u32 {
        self.nob
    }

    /// How many separate DMA ranges there are.
    pub(crate) fn nr_mapped(&self) -> u32 {
        self.nr_mapped
    }

    /// Whether one memory region of `max_pages` pages can cover it: no gaps
    /// inside, that is, every fragment but the first begins and every one but the
    /// last ends at the edge of a page.
    pub(crate) fn can_register(&self, max_pages: u32) -> bool {
        self.region_pages != 0 && self.region_pages <= max_pages
    }

    /// Which way the data goes.
    pub(crate) fn direction(&self) -> Direction {
        self.direction
    }

    /// Whether it is mapped for `device`.
    pub(super) fn is_for(&self, device: &Device) -> bool {
        self.device.same(device)
    }

    /// A cursor at its beginning.
    pub(crate) fn cursor(self: &Arc<Self>) -> SgCursor {
        SgCursor {
            // INVARIANT: The beginning of the first element.
            pos: SgPos(bindings::ro2ib_sg_pos {
                // SAFETY: By the type invariant the table is initialised.
                sg: unsafe { (*self.table.get()).sgl },
                at: 0,
                left: self.nob,
            }),
            map: self.clone(),
        }
    }

    pub(super) fn table(&self) -> *mut bindings::sg_table {
        self.table.get()
    }
}

impl Drop for SgMap {
    fn drop(&mut self) {
        // SAFETY: By the type invariant it is mapped and allocated, and nothing uses it any more.
        unsafe {
            bindings::ro2ib_dma_unmap_sgt(
                self.device.as_raw(),
                self.table.get(),
                self.used,
                self.direction.as_raw(),
            );
            bindings::ro2ib_sgt_free(self.table.get());
        }
    }
}

/// Where a [`SgCursor`] is.
///
/// # Invariants
///
/// `sg` is an element of the map's list, and `at` an offset inside it, unless
/// `left` is 0.
#[derive(Clone, Copy)]
pub(super) struct SgPos(bindings::ro2ib_sg_pos);

/// A place in a [`SgMap`] that moves forward as work requests take ranges of it.
pub(crate) struct SgCursor {
    map: Arc<SgMap>,
    pos: SgPos,
}

// SAFETY: `pos` points into `map`, which is `Send` and `Sync`.
unsafe impl Send for SgCursor {}
// SAFETY: As above.
unsafe impl Sync for SgCursor {}

impl SgCursor {
    /// How many bytes are left.
    pub(crate) fn left(&self) -> u32 {
        self.pos.0.left
    }

    /// The map it walks through.
    pub(crate) fn map(&self) -> &Arc<SgMap> {
        &self.map
    }

    pub(super) fn pos(&self) -> SgPos {
        self.pos
    }

    /// Goes back to an earlier position of this cursor.
    pub(super) fn rewind(&mut self, pos: SgPos) {
        self.pos = pos;
    }

    /// Moves on by `nob` bytes, or to the end.
    pub(crate) fn skip(&mut self, nob: u32) {
        let mut scrap = [bindings::ib_sge::default(); 16];
        let mut todo = nob;

        while todo > 0 && self.left() > 0 {
            let before = self.left();
            self.gather(&mut scrap, todo, 0);
            todo = todo.saturating_sub(before.saturating_sub(self.left()));
        }
    }

    /// Writes entries for the next `len` bytes, as far as there is room for them, and moves on;
    /// returns how many.
    pub(super) fn gather(&mut self, to: &mut [bindings::ib_sge], len: u32, lkey: u32) -> usize {
        let room = u32::try_from(to.len()).unwrap_or(u32::MAX);

        // INVARIANT: It moves to a place in the same list.
        // SAFETY: By the type invariant of `SgPos`, and `map` keeps the list; there is room for as
        // many entries.
        let n =
            unsafe { bindings::ro2ib_sg_gather(&mut self.pos.0, to.as_mut_ptr(), room, len, lkey) };

        n as usize
    }
}
