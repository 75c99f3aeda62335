// SPDX-License-Identifier: GPL-2.0

//! Lists of page fragments, mapped for a device.

use core::{
    mem::ManuallyDrop,
    ops::Deref,
    pin::Pin, //
};

use kernel::{
    alloc::flags::__GFP_NOWARN,
    prelude::*,
    sync::{
        aref::ARef,
        Arc,
        UniqueArc, //
    },
    types::Opaque, //
};

use super::{
    buf::Direction,
    device::{
        Device,
        RegionPage, //
    },
    gpu::{
        GpuMemOps,
        MemKind, //
    },
    object_reserve::Reserve,
    page_frags::{
        PageVec,
        Pages, //
    },
    return_code::check, //
};
use crate::bindings;

/// The elements of a list, freed when dropped.
///
/// # Invariants
///
/// A zeroed list, one with room of `ro2ib_sg_list_reserve()`, or a filled one; a filled one does not move.
struct Table(Opaque<bindings::ro2ib_sg_list>);

impl Table {
    /// Makes a list without elements.
    fn empty() -> Self {
        // INVARIANT: Zeroed.
        Self(Opaque::zeroed())
    }

    /// Makes a list that keeps room for `n` elements. May sleep.
    fn with_room(n: u32) -> Result<Self> {
        let this = Self::empty();

        // INVARIANT: It has the room now, and is not filled.
        // SAFETY: The list is zeroed.
        check(unsafe { bindings::ro2ib_sg_list_reserve(this.0.get(), n) })?;
        Ok(this)
    }

    fn get(&self) -> *mut bindings::sg_table {
        // SAFETY: The list is valid.
        unsafe { &raw mut (*self.0.get()).table }
    }

    /// Returns its first element.
    fn list(&self) -> *mut bindings::scatterlist {
        // SAFETY: By the type invariant it is initialised.
        unsafe { (*self.get()).sgl }
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        // SAFETY: By the type invariant, and nothing uses it any more.
        unsafe { bindings::ro2ib_sg_list_free(self.0.get()) }
    }
}

/// Owner of the mapping of a list, which has to unmap it.
enum MappedBy {
    /// The list is not mapped.
    None,
    /// The kernel's DMA layer.
    Kernel,
    /// The provider of the GPU memory.
    Gpu(&'static dyn GpuMemOps),
}

/// A scatterlist that is mapped for a device, see [`SgRef`].
///
/// # Invariants
///
/// Unless `mapped_by` is `None`, `table` is an allocated table of pages that are valid for as long as this is mapped,
/// and `mapped_by` has mapped its first `used` elements for `device` in the direction `direction`. `mapped_by` is
/// `None` only for the owner of a [`UniqueArc`].
pub(crate) struct SgMap {
    table: Table,
    mapped_by: MappedBy,
    device: ARef<Device>,
    direction: Direction,
    nob: u32,
    used: u32,
    nr_mapped: u32,
    /// Pages of the kernel's size in a region that covers it; 0 if no region can.
    region_pages: u32,
    /// Keeps the pages of the driver; the contract of [`SgMap::map`] keeps others.
    own: Option<Arc<Pages>>,
    /// The reserve that this goes back to, and its user.
    reserve: Option<(Arc<SgReserve>, u64)>,
}

/// Mappings that need no memory.
pub(crate) type SgReserve = Reserve<SgMap>;

// SAFETY: Mappings belong to no thread, and neither do the pages: those of the driver (`Pages: Send`), or LNet's, by
// the contract of `SgMap::map`.
unsafe impl Send for SgMap {}
// SAFETY: Nothing changes after construction.
unsafe impl Sync for SgMap {}

impl SgMap {
    /// Maps all of `pages`. Does not wait for memory, because some pages become clean only when the caller has sent
    /// them: reclaim could wait for the caller. Process context.
    ///
    /// # Errors
    ///
    /// * `EINVAL`: there is nothing to map, or less than `pages` states.
    /// * `ENOMEM`: there is no memory right now.
    /// * `EIO`: there is no room to map it.
    /// * `EREMOTEIO`: the device cannot reach the memory.
    /// * `EXDEV`: only some pages are memory of a GPU.
    /// * `ENXIO`: memory of a GPU has no provider.
    /// * `EFAULT`: the provider does not map all of it.
    ///
    /// # Safety
    ///
    /// The fragments and pages of `pages` stay as they are until the last reference to the result is gone. Those of
    /// [`PageVec::alloc`] do.
    pub(crate) unsafe fn map(
        device: ARef<Device>,
        pages: &PageVec,
        direction: Direction,
    ) -> Result<SgRef> {
        // Built in its place: a move costs more than the rest of this function.
        let this = UniqueArc::new_uninit(GFP_NOWAIT | __GFP_NOWARN)?;
        let mut this = this.write(Self::unmapped(device, Table::empty()));

        Self::fill(&mut this, pages, direction)?;
        Ok(SgRef::new(this.into()))
    }

    /// Makes a reserve of `n` mappings for up to `pieces` pieces of memory each. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn reserve(device: &ARef<Device>, n: usize, pieces: u32) -> Result<Arc<SgReserve>> {
        let mut all = KVec::with_capacity(n, GFP_KERNEL)?;

        for _ in 0..n {
            // A list has one element more than there are pieces.
            let table = Table::with_room(pieces.saturating_add(1))?;
            let map = UniqueArc::new(Self::unmapped(device.clone(), table), GFP_KERNEL)?;

            all.push(map, GFP_KERNEL)?;
        }
        Reserve::new(all)
    }

    /// Maps all of `pages` with an object of a reserve, which `user` takes, without allocating memory. The object
    /// returns to the reserve when it is unmapped. Process context.
    ///
    /// # Errors
    ///
    /// Those of [`Self::map`]. `ENOMEM`: the reserve has no object for `user`, or `pages` has too many pieces.
    ///
    /// # Safety
    ///
    /// As [`Self::map`].
    pub(crate) unsafe fn map_reserved(
        (reserve, user): (&Arc<SgReserve>, u64),
        pages: &PageVec,
        direction: Direction,
    ) -> Result<SgRef> {
        let mut this = reserve.take(user).ok_or(ENOMEM)?;

        if let Err(e) = Self::fill(&mut this, pages, direction) {
            reserve.put(this, user);
            return Err(e);
        }
        this.reserve = Some((reserve.clone(), user));
        Ok(SgRef::new(this.into()))
    }

    fn unmapped(device: ARef<Device>, table: Table) -> Self {
        // INVARIANT: Not mapped.
        Self {
            table,
            mapped_by: MappedBy::None,
            device,
            direction: Direction::ToDevice,
            nob: 0,
            used: 0,
            nr_mapped: 0,
            region_pages: 0,
            own: None,
            reserve: None,
        }
    }

    /// Fills the list of an unmapped object, and maps it.
    fn fill(this: &mut UniqueArc<Self>, pages: &PageVec, direction: Direction) -> Result {
        let (bvecs, n, offset, nob) = pages.as_raw();
        let mut run = bindings::ro2ib_sg_shape::default();
        // Pages that stand for memory of a GPU may be neighbours although that memory is not contiguous.
        let merge = !pages.is_gpu();
        let list = this.table.0.get();

        // INVARIANT: (of `Table`) It does not move: this is in the memory of a `UniqueArc`, and stays there.
        // SAFETY: `list` and `run` are valid for writes, and the list is not mapped; `pages` guarantees the rest.
        check(unsafe {
            bindings::ro2ib_sg_list_fill(list, bvecs, n, offset, nob, merge, &mut run)
        })?;
        // SAFETY: The first `run.used` elements of `table` were filled just now, and they are not mapped.
        let mapped_by =
            unsafe { Self::map_table(&this.device, &this.table, pages, &mut run, direction) }?;

        // INVARIANT: Filled and mapped above. `pages.own()` keeps the pages.
        this.mapped_by = mapped_by;
        this.direction = direction;
        this.nob = nob;
        this.used = run.used;
        // SAFETY: `table` is initialised.
        this.nr_mapped = unsafe { (*this.table.get()).nents };
        this.region_pages = run.pages;
        this.own = pages.own();
        Ok(())
    }

    /// Maps the elements of a table for a device, and returns the owner of the mapping.
    ///
    /// # Safety
    ///
    /// The first `run.used` elements of `table` are those of `pages`, and not mapped.
    unsafe fn map_table(
        device: &Device,
        table: &Table,
        pages: &PageVec,
        run: &mut bindings::ro2ib_sg_shape,
        direction: Direction,
    ) -> Result<MappedBy> {
        let (sgt, used, dir) = (table.get(), run.used, direction.as_raw());
        let gpu = match pages.kind() {
            MemKind::Host => {
                // SAFETY: By the contract of this function, and `device` is registered.
                let rc = unsafe { bindings::ro2ib_dma_map_sgt(device.as_raw(), sgt, used, dir) };
                return check(rc).map(|()| MappedBy::Kernel);
            }
            MemKind::Gpu(gpu) => gpu,
        };
        let (dev, list) = (device.dma_device(), table.list());

        // SAFETY: By the contract of this function; nothing was merged. `device` is registered.
        let n = unsafe { gpu.map(dev, list, used, direction) };
        if n <= 0 {
            return Err(match n {
                _ if pages.is_mixed() => EXDEV,
                0 => ENXIO,
                _ => EFAULT,
            });
        }
        // SAFETY: `table` is initialised, and was mapped just now.
        let rc = unsafe { bindings::ro2ib_sgt_is_mapped(sgt, n, pages.as_raw().3, run) };
        if check(rc).is_err() {
            // SAFETY: Mapped just now with these arguments, and nothing uses the mapping.
            unsafe { gpu.unmap(dev, list, used, direction) };
            return Err(EFAULT);
        }
        Ok(MappedBy::Gpu(gpu))
    }

    /// Returns the number of bytes that it covers.
    pub(crate) fn nob(&self) -> u32 {
        self.nob
    }

    /// Returns the number of separate DMA ranges.
    pub(crate) fn nr_mapped(&self) -> u32 {
        self.nr_mapped
    }

    /// Returns whether one memory region of `max_pages` pages of the size `page` can cover it. It can if there are no
    /// gaps inside: every fragment except the first begins, and every one except the last ends, at the edge of a kernel
    /// page. With smaller pages the region may need one or two pages less than are counted here.
    pub(crate) fn can_register(&self, max_pages: u32, page: RegionPage) -> bool {
        let in_all = self.region_pages.saturating_mul(page.per_kernel_page());

        in_all != 0 && in_all.min(page.max_pages_for(self.nob)) <= max_pages
    }

    /// Returns the direction of the data.
    pub(crate) fn direction(&self) -> Direction {
        self.direction
    }

    /// Returns the device it is mapped for.
    pub(crate) fn device(&self) -> &ARef<Device> {
        &self.device
    }

    /// Returns whether it is mapped for `device`.
    pub(super) fn is_for(&self, device: &Device) -> bool {
        self.device.same(device)
    }

    /// Writes entries for its first `len` bytes, and returns their number; `None` if there is no room for all of them,
    /// or if it covers fewer bytes.
    #[inline]
    pub(super) fn gather(&self, to: &mut [bindings::ib_sge], len: u32, lkey: u32) -> Option<usize> {
        let room = u32::try_from(to.len()).unwrap_or(u32::MAX);
        let mut pos = bindings::ro2ib_sg_pos {
            sg: self.table.list(),
            at: 0,
            left: self.nob,
        };

        // SAFETY: `pos` is the beginning of the list, which this keeps; there is room for as many entries.
        let n = unsafe { bindings::ro2ib_sg_gather(&mut pos, to.as_mut_ptr(), room, len, lkey) };
        (self.nob.wrapping_sub(pos.left) == len).then_some(n as usize)
    }

    pub(super) fn table(&self) -> *mut bindings::sg_table {
        self.table.get()
    }
}

impl SgMap {
    /// Unmaps it, if it is mapped. Nothing may use it any more.
    #[inline]
    fn release(&mut self) {
        let (sgt, used) = (self.table.get(), self.used);

        // INVARIANT: It is not mapped any more.
        match core::mem::replace(&mut self.mapped_by, MappedBy::None) {
            MappedBy::None => {}
            MappedBy::Kernel => {
                let (dev, dir) = (self.device.as_raw(), self.direction.as_raw());

                // SAFETY: By the type invariant it is mapped, and nothing uses it any more.
                unsafe { bindings::ro2ib_dma_unmap_sgt(dev, sgt, used, dir) }
            }
            MappedBy::Gpu(gpu) => {
                let dev = self.device.dma_device();

                // SAFETY: As above. The device is the same, and so is what its DMA goes through.
                unsafe { gpu.unmap(dev, self.table.list(), used, self.direction) }
            }
        }
    }
}

impl Drop for SgMap {
    fn drop(&mut self) {
        self.release();
    }
}

/// A counted reference to a mapped scatterlist.
///
/// Work requests and memory regions that use the list hold one. Dropping the last one unmaps the list, and gives memory
/// of a reserve back; this is legal in any context but hard interrupts.
#[derive(Clone)]
pub(crate) struct SgRef(ManuallyDrop<Arc<SgMap>>);

impl SgRef {
    fn new(map: Arc<SgMap>) -> Self {
        Self(ManuallyDrop::new(map))
    }

    /// Returns a cursor at its beginning.
    pub(crate) fn cursor(&self) -> SgCursor {
        SgCursor {
            // INVARIANT: The beginning of the first element.
            pos: SgPos(bindings::ro2ib_sg_pos {
                sg: self.table.list(),
                at: 0,
                left: self.nob,
            }),
            map: self.clone(),
        }
    }

    /// Drops the reference. Returns whether it was the last one, so that the list is unmapped now.
    pub(crate) fn unmap(self) -> bool {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is not used any more.
        let map = unsafe { ManuallyDrop::take(&mut this.0) };

        give_back(map)
    }
}

impl Deref for SgRef {
    type Target = SgMap;

    #[inline]
    fn deref(&self) -> &SgMap {
        &self.0
    }
}

impl Drop for SgRef {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: It is not used any more.
        let map = unsafe { ManuallyDrop::take(&mut self.0) };

        if map.reserve.is_some() {
            give_back(map);
        }
    }
}

/// Drops a reference to a list that may belong to a reserve. Returns whether it was the last one.
#[inline(never)]
fn give_back(map: Arc<SgMap>) -> bool {
    let Some(map) = Arc::into_unique_or_drop(map) else {
        return false;
    };
    // SAFETY: It is not moved.
    let mut map = unsafe { Pin::into_inner_unchecked(map) };

    // Otherwise it is dropped.
    if let Some((reserve, user)) = map.reserve.take() {
        map.release();
        map.own = None;
        reserve.put(map, user);
    }
    true
}

/// Position of a [`SgCursor`].
///
/// # Invariants
///
/// `sg` is an element of the map's list, and `at` an offset inside it, unless
/// `left` is 0.
struct SgPos(bindings::ro2ib_sg_pos);

/// Cursor in a [`SgMap`] that advances as work requests take ranges of it.
pub(crate) struct SgCursor {
    map: SgRef,
    pos: SgPos,
}

// SAFETY: `pos` points into `map`, which is `Send` and `Sync`.
unsafe impl Send for SgCursor {}
// SAFETY: As above.
unsafe impl Sync for SgCursor {}

impl SgCursor {
    /// Returns the number of bytes that are left.
    pub(crate) fn left(&self) -> u32 {
        self.pos.0.left
    }

    /// Returns the map it walks through.
    pub(crate) fn map(&self) -> &SgRef {
        &self.map
    }

    /// Advances by `nob` bytes, or to the end.
    // Not inlined: it needs stack, and few transfers begin behind the first byte.
    #[cold]
    pub(crate) fn skip(&mut self, nob: u32) {
        let mut scrap = [bindings::ib_sge::default(); 16];
        let mut todo = nob;

        while todo > 0 && self.left() > 0 {
            let before = self.left();
            self.gather(&mut scrap, todo, 0);
            todo = todo.saturating_sub(before.saturating_sub(self.left()));
        }
    }

    /// Writes entries for the next `len` bytes, as far as there is room, and advances. Returns their number.
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
