// SPDX-License-Identifier: GPL-2.0

//! Memory that devices may access: mappings, scatterlists, and lists of page fragments.
//!
//! Software devices have virtual DMA: a DMA address is the address. Memory of other devices has DMA
//! addresses that are never CPU addresses, by one of three layers that the seed chooses: a constant
//! offset; an IOMMU, which joins elements of a list; or bounce buffers, which the CPU and the device
//! do not share, so that only a sync or the end of the mapping copies the data.
//!
//! Every access of a device is checked against the mappings that live: address, direction, and
//! whether the driver has synchronised the memory for the device.
//!
//! Memory of a GPU has an address that the CPU cannot use, and another address for devices, which
//! the GPU's provider returns.

use std::collections::{
    hash_map::Entry,
    BTreeMap, //
};

use crate::{
    decl::{
        k::*,
        r::*, //
    },
    fixed_hash::{
        Hash,
        Map, //
    },
    lock,
    mem,
    rng::Rng,
    sched,
    verbs::Dev,
    world::{
        self,
        violation,
        w,
        Fault, //
    }, //
};

/// DMA layer of the devices of a world that are not software.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Layer {
    /// A DMA address is the address and a constant.
    Direct,
    /// Each mapping has DMA addresses of its own; elements of a list may become one.
    Iommu,
    /// As with an IOMMU, and the device uses a copy of the memory. Elements of a list lose their
    /// offset within a page.
    Bounced,
}

struct Mapping {
    len: u64,
    dir: i32,
    dev: usize,
    /// Address for the CPU.
    cpu: u64,
    /// Memory that the device uses instead.
    copy: Option<Box<[u8]>>,
    /// The next element of the list is part of the same element for the device.
    joined: bool,
    /// Number of bytes from the start that belong to the device.
    devices: u64,
    /// The CPU has owned the memory since it was mapped.
    was_cpus: bool,
    /// Elements of work requests that have not ended.
    users: u32,
}

/// Mappings of a world.
///
/// INVARIANT: `pages` has the number of mappings of `live` that have bytes of a page, by the number of
/// the page for the CPU.
pub struct Maps {
    /// By DMA address.
    live: BTreeMap<(u64, u64), Mapping>,
    pages: Map<u64, u32>,
    nr: u64,
    layer: Layer,
    /// Next DMA address that was not used yet.
    next: u64,
    rng: Rng,
    /// Lists that the provider of a GPU has mapped: device, elements, direction.
    gpu: BTreeMap<usize, (usize, u32, bool)>,
    /// Buffers that were allocated for a device, whether they still exist or not.
    near: Map<u64, usize>,
    /// Device that can map no list of pages, while there is one, and the error.
    pub refuses: Option<(usize, u32)>,
    /// Device that has no room to map anything, while there is one.
    pub full: Option<usize>,
    /// Number of lists of pages that were mapped.
    pub lists: usize,
}

/// First DMA address of devices that are not software. No address of the CPU is as large.
const BUS: u64 = 1 << 52;

impl Maps {
    /// Creates the mappings of a world: none.
    pub fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0xd3a0_ad25);
        Self {
            live: BTreeMap::new(),
            pages: Map::with_capacity_and_hasher(128, Hash::default()),
            nr: 0,
            layer: rng.of(&[Layer::Direct, Layer::Iommu, Layer::Bounced]),
            next: 2 * BUS,
            rng,
            gpu: BTreeMap::new(),
            near: Map::with_capacity_and_hasher(128, Hash::default()),
            refuses: None,
            lists: 0,
            full: None,
        }
    }
}

/// Returns the numbers of the pages that have some of these bytes.
fn pages(addr: u64, len: u64) -> impl Iterator<Item = u64> {
    addr / PAGE..(addr + len.max(1)).div_ceil(PAGE)
}

impl Maps {
    fn insert(&mut self, addr: u64, m: Mapping) {
        self.nr += 1;
        for page in pages(m.cpu, m.len) {
            *self.pages.entry(page).or_default() += 1;
        }
        self.live.insert((addr, self.nr), m);
    }

    fn remove(&mut self, key: (u64, u64)) -> Option<Mapping> {
        let m = self.live.remove(&key)?;
        for page in pages(m.cpu, m.len) {
            if let Entry::Occupied(mut n) = self.pages.entry(page) {
                *n.get_mut() -= 1;
                if *n.get() == 0 {
                    n.remove();
                }
            }
        }
        Some(m)
    }

    /// Returns the mapping of a device that begins at a DMA address.
    fn at(&mut self, dev: usize, addr: u64, dir: i32) -> Option<((u64, u64), &mut Mapping)> {
        self.live
            .range_mut((addr, 0)..=(addr, u64::MAX))
            .find(|(_, m)| m.dir == dir && m.dev == dev)
            .map(|(key, m)| (*key, m))
    }

    /// Returns the start of the mapping of a device that has the byte at a DMA address, and may be
    /// written if `write`.
    fn of_byte(&mut self, dev: usize, addr: u64, write: bool) -> Option<(u64, &mut Mapping)> {
        self.live
            .range_mut(..=(addr, u64::MAX))
            .rev()
            .take(16)
            .find(|((start, _), m)| m.dev == dev && addr - start < m.len && write == (m.dir != 0))
            .map(|((start, _), m)| (*start, m))
    }

    /// Returns false if no page of these bytes is in any mapping.
    fn may_be_mapped(&self, addr: u64, len: u64) -> bool {
        pages(addr, len).any(|page| self.pages.contains_key(&page))
    }
}

/// Bit of an address that marks memory of a GPU.
pub const GPU: u64 = 1 << 62;

/// Returns the layer that maps memory for a device. `None`: the device has virtual DMA.
fn layer(dev: *const ib_device) -> Option<Layer> {
    // SAFETY: Devices stay until the world ends.
    match unsafe { (*dev.cast::<Dev>()).software } {
        true => None,
        false => Some(w().maps.layer),
    }
}

/// Maps memory in one piece, and returns its DMA address.
fn map(dev: *const ib_device, cpu: u64, len: u64, dir: i32) -> u64 {
    map_by(layer(dev), dev, cpu, len, dir)
}

fn map_by(layer: Option<Layer>, dev: *const ib_device, cpu: u64, len: u64, dir: i32) -> u64 {
    let maps = &mut w().maps;
    let addr = match layer {
        None => cpu,
        Some(Layer::Direct) => cpu + BUS,
        Some(Layer::Iommu) => maps.next + cpu % PAGE,
        // As swiotlb: nothing keeps the offset within a page.
        Some(Layer::Bounced) => maps.next,
    };
    let own = matches!(layer, Some(Layer::Iommu | Layer::Bounced));
    if own {
        // Mappings do not adjoin.
        maps.next = (addr + len).next_multiple_of(PAGE) + PAGE;
    }
    let copy = (layer == Some(Layer::Bounced)).then(|| {
        // SAFETY: The caller has mapped memory that is there.
        unsafe { core::slice::from_raw_parts(cpu as *const u8, len as usize) }.into()
    });
    maps.insert(
        addr,
        Mapping {
            len,
            dir,
            dev: dev as usize,
            cpu,
            copy,
            joined: false,
            devices: len,
            was_cpus: false,
            users: 0,
        },
    );
    addr
}

/// Returns whether memory of a device has to be synchronised.
fn needs_sync(dev: *const ib_device) -> bool {
    matches!(layer(dev), Some(Layer::Iommu | Layer::Bounced))
}

fn unmap(dev: *const ib_device, addr: u64, len: u64, dir: i32) {
    let strict = needs_sync(dev);
    let maps = &mut w().maps;
    let found = maps
        .live
        .range((addr, 0)..=(addr, u64::MAX))
        .find(|(_, m)| m.len == len && m.dir == dir && m.dev == dev as usize)
        .map(|(k, _)| *k);
    let Some(m) = found.and_then(|key| maps.remove(key)) else {
        violation("unmaps what is not mapped");
    };
    // With a constant offset, mappings of the same memory cannot be told apart.
    if strict && m.users != 0 {
        violation("memory is unmapped under a work request");
    }
    if let (Some(copy), true) = (&m.copy, dir != 0) {
        // SAFETY: The memory is there as long as it is mapped.
        unsafe { core::ptr::copy_nonoverlapping(copy.as_ptr(), m.cpu as *mut u8, copy.len()) };
    }
}

/// Calls `f` for the pieces of memory at a DMA address, with the memory that the device uses.
/// Returns false if not all of it is mapped so.
fn pieces(
    dev: *const Dev,
    mut addr: u64,
    mut len: u64,
    write: bool,
    mut f: impl FnMut(&mut Mapping, u64, u64),
) -> bool {
    let maps = &mut w().maps;
    while len != 0 {
        let Some((start, m)) = maps.of_byte(dev as usize, addr, write) else {
            return false;
        };
        let at = addr - start;
        let n = len.min(m.len - at);
        f(m, at, n);
        addr += n;
        len -= n;
        if len != 0 && !m.joined {
            return false;
        }
    }
    true
}

/// Returns the address at which the device finds the byte `at` of a mapping.
fn memory(m: &mut Mapping, at: u64) -> *mut u8 {
    match &mut m.copy {
        Some(copy) => &raw mut copy[at as usize],
        None => (m.cpu + at) as *mut u8,
    }
}

/// Checks an element of a work request that is posted, and notes that it is in use.
pub fn post(dev: *const Dev, addr: u64, len: u64, write: bool) {
    let owned = |m: &mut Mapping, at: u64, n: u64| {
        m.users += 1;
        if at + n > m.devices {
            violation("memory is posted that belongs to the CPU");
        }
    };
    if !pieces(dev, addr, len, write, owned) {
        violation("memory is posted that is not mapped so for the device");
    }
}

/// Notes that an element of a work request is not in use any more. Its memory may be gone if its
/// queue pair could not be drained, or its node lost its power.
pub fn unpost(dev: *const Dev, addr: u64, len: u64, write: bool) {
    pieces(dev, addr, len, write, |m, _, _| {
        m.users = m.users.saturating_sub(1)
    });
}

/// Reads memory as the device does. Returns false if it is not mapped so.
pub fn read(dev: *const Dev, addr: u64, len: u64, to: &mut Vec<u8>) -> bool {
    pieces(dev, addr, len, false, |m, at, n| {
        // SAFETY: It is mapped, so it is there.
        to.extend_from_slice(unsafe { core::slice::from_raw_parts(memory(m, at), n as usize) });
    })
}

/// Writes memory as the device does. Returns false if it is not mapped so.
pub fn write(dev: *const Dev, addr: u64, data: &[u8]) -> bool {
    let mut rest = data;
    pieces(dev, addr, data.len() as u64, true, |m, at, n| {
        if at + n > m.devices {
            violation("a device writes memory that belongs to the CPU");
        }
        let (now, later) = rest.split_at(n as usize);
        rest = later;
        // SAFETY: It is mapped, so it is there.
        unsafe { core::ptr::copy_nonoverlapping(now.as_ptr(), memory(m, at), now.len()) };
    })
}

/// Returns whether an address is the CPU's, so that a provider can copy inline data from it.
pub fn is_cpus(dev: *const Dev, addr: u64) -> bool {
    // SAFETY: Devices stay until the world ends.
    addr < BUS || unsafe { (*dev).software }
}

/// Returns the number of mappings of a device.
pub fn left(dev: *const Dev) -> usize {
    if none() {
        return 0;
    }
    w().maps
        .live
        .values()
        .filter(|m| m.dev == dev as usize)
        .count()
}

/// Counts the message buffers that are mapped for a device to receive into. While the world is
/// idle, no other memory is mapped for that.
pub fn receive_buffers(dev: *const Dev) -> usize {
    w().maps
        .live
        .values()
        .filter(|m| m.dev == dev as usize && m.dir != 0 && m.len == PAGE)
        .count()
}

/// Counts the message buffers that are mapped for a device to send from.
pub fn send_buffers(dev: *const Dev) -> usize {
    w().maps
        .live
        .values()
        .filter(|m| m.dev == dev as usize && m.dir == 0 && m.len == PAGE)
        .count()
}

/// Returns whether there is no mapping at all.
pub fn none() -> bool {
    w().maps.live.is_empty()
}

/// Drops the mappings of a node that lost its power.
pub fn forget(dev: *const Dev) {
    let maps = &mut w().maps;
    let its: Vec<_> = maps
        .live
        .iter()
        .filter(|(_, m)| m.dev == dev as usize)
        .map(|(key, _)| *key)
        .collect();
    for key in its {
        maps.remove(key);
    }
    maps.gpu.retain(|_, m| m.0 != dev as usize);
}

/// Checks that no device may access any byte of the memory.
pub fn not_mapped(addr: u64, len: u64, what: &str) {
    let maps = &w().maps;
    if !maps.may_be_mapped(addr, len) {
        return;
    }
    let end = addr + len.max(1);
    if maps
        .live
        .values()
        .any(|m| m.cpu < end && m.cpu + m.len > addr)
    {
        violation(&format!("memory is {what} while a device may touch it"));
    }
}

/// Checks an access of the device to memory, a write if `write`.
pub fn touch(dev: *const Dev, addr: u64, len: u64, write: bool) -> bool {
    pieces(dev, addr, len, write, |_, _, _| {})
}

/// Allocates the buffers separately, so that each is checked when it is freed.
#[no_mangle]
pub unsafe extern "C" fn ro2ib_bufs_alloc(
    dev: *mut ib_device,
    n: *mut u32,
    wait: bool,
) -> *mut c_void {
    let buf = mem::kzalloc(PAGE as usize, wait);
    // SAFETY: By the contract of this function.
    unsafe { *n = 1 };
    if !buf.is_null() {
        w().maps.near.insert(buf as u64, dev as usize);
    }
    buf
}

#[no_mangle]
pub unsafe extern "C" fn ro2ib_bufs_free(bufs: *mut c_void, _n: u32) {
    // SAFETY: By the contract of this function.
    unsafe { mem::ro2ibk_kfree(bufs) };
}

#[no_mangle]
pub unsafe extern "C" fn ro2ib_dma_map_buf(
    dev: *mut ib_device,
    buf: *mut c_void,
    len: usize,
    dir: i32,
    addr: *mut u64,
) -> i32 {
    sched::point();
    if world::fails(Fault::Dma) || w().maps.full == Some(dev as usize) {
        return -(EIO as i32);
    }
    // Memory that a connection keeps for long must be near the device.
    if w().maps.near.get(&(buf as u64)) != Some(&(dev as usize)) {
        violation("a message buffer was not allocated near its device");
    }
    // SAFETY: By the contract of this function.
    unsafe { *addr = map(dev, buf as u64, len as u64, dir) };
    0
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_dma_unmap_buf(dev: *mut ib_device, addr: u64, len: usize, dir: i32) {
    unmap(dev, addr, len as u64, dir);
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_dma_needs_sync(dev: *mut ib_device, _addr: u64) -> bool {
    needs_sync(dev)
}

/// Number of bytes of a buffer that are spoilt when the device gets the buffer to write into.
const SPOILT: u64 = 256;

/// Gives the first bytes of a buffer to the CPU, or to the device.
fn sync(dev: *mut ib_device, addr: u64, len: usize, dir: i32, to_device: bool) {
    if !needs_sync(dev) {
        violation("memory is synchronised that need not be");
    }
    let Some((_, m)) = w().maps.at(dev as usize, addr, dir) else {
        violation("memory is synchronised that is not mapped so");
    };
    let n = (len as u64).min(m.len);
    if len as u64 > m.len {
        violation("more is synchronised than is mapped");
    }
    if to_device && !m.was_cpus {
        violation("memory is given to the device that the CPU did not own");
    }
    m.was_cpus = true;
    m.devices = if to_device { m.devices.max(n) } else { 0 };
    let Some(copy) = &mut m.copy else {
        return;
    };
    let cpu = m.cpu as *mut u8;
    // SAFETY: The memory is there as long as it is mapped.
    unsafe {
        match (to_device, dir != 0) {
            (true, false) => core::ptr::copy_nonoverlapping(cpu, copy.as_mut_ptr(), n as usize),
            (false, true) => core::ptr::copy_nonoverlapping(copy.as_ptr(), cpu, n as usize),
            // The CPU must not read the old contents.
            (true, true) => cpu.write_bytes(0x5a, n.min(SPOILT) as usize),
            (false, false) => {}
        }
    }
}

#[no_mangle]
pub unsafe extern "C" fn ro2ib_dma_sync_for_cpu(
    dev: *mut ib_device,
    addr: u64,
    len: usize,
    dir: i32,
) {
    sync(dev, addr, len, dir, false);
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_dma_sync_for_device(
    dev: *mut ib_device,
    addr: u64,
    len: usize,
    dir: i32,
) {
    sync(dev, addr, len, dir, true);
}

/// Element of a list. As in the kernel, the first elements of a mapped list have the DMA addresses
/// and lengths, whose number may be smaller.
#[derive(Clone, Copy)]
pub struct Sg {
    /// Address of the memory.
    page: u64,
    /// Length of the memory in bytes.
    len: u32,
    last: bool,
    /// Address for a device; 0 while the element is not mapped.
    pub addr: u64,
    /// Length for a device in bytes.
    pub dma_len: u32,
}

/// Returns the elements of a mapped table, as the device has them.
pub fn elements<'a>(sgt: *mut sg_table) -> &'a [Sg] {
    // SAFETY: The caller has a table that was made below.
    unsafe { core::slice::from_raw_parts((*sgt).sgl.cast::<Sg>(), (*sgt).nents as usize) }
}

/// Returns the elements of a table, as the CPU has them.
fn elements_mut<'a>(sgt: *mut sg_table) -> &'a mut [Sg] {
    // SAFETY: As above; no other code accesses it meanwhile. The last element says so.
    unsafe {
        let list = (*sgt).sgl.cast::<Sg>();
        let mut n = 1;
        while !(*list.add(n - 1)).last {
            n += 1;
        }
        core::slice::from_raw_parts_mut(list, n)
    }
}

/// Returns the memory of a table, as the CPU has it.
pub fn memory_of(sgt: *mut sg_table) -> impl Iterator<Item = (u64, u32)> {
    elements_mut(sgt).iter().map(|sg| (sg.page & !GPU, sg.len))
}

/// Maps the memory of a list. Returns the number of elements that the device has.
fn map_list(dev: *const ib_device, list: &mut [Sg], dir: i32) -> usize {
    let joins = match layer(dev) {
        Some(Layer::Iommu) => w().maps.rng.of(&[0, 500_000, 1_000_000]),
        _ => 0,
    };
    // As the device's limit for a segment (dma_get_max_seg_size()).
    let longest = w().maps.rng.of(&[2 * PAGE as u32, 1 << 16, u32::MAX]);
    let (mut n, mut end) = (0, None);
    for i in 0..list.len() {
        let (cpu, len) = (list[i].page & !GPU, list[i].len);
        // An element that ends inside of a page has no neighbour.
        let next = w().maps.next;
        let adjoins = end.is_some_and(|end| end + PAGE == next) && cpu % PAGE == 0;
        let fits = n != 0 && list[n - 1].dma_len + len <= longest;
        if adjoins && fits && w().maps.rng.ppm(joins) {
            // The gap behind the last element.
            w().maps.next -= PAGE;
            let before = end.unwrap_or(0) - u64::from(list[i - 1].len);
            if let Some((_, m)) = w().maps.at(dev as usize, before, dir) {
                m.joined = true;
            }
            list[n - 1].dma_len += len;
            end = Some(map(dev, cpu, len.into(), dir) + u64::from(len));
            continue;
        }
        let addr = map(dev, cpu, len.into(), dir);
        list[n].addr = addr;
        list[n].dma_len = len;
        n += 1;
        end = Some(addr + u64::from(len));
    }
    n
}

/// Unmaps the memory of a list that the device has in `n` elements.
fn unmap_list(dev: *const ib_device, list: &mut [Sg], dir: i32) {
    let (mut n, mut left) = (0, 0);
    let mut addr = 0;
    for i in 0..list.len() {
        let len = list[i].len;
        if left == 0 {
            addr = list[n].addr;
            left = list[n].dma_len;
            n += 1;
        }
        unmap(dev, addr, len.into(), dir);
        addr += u64::from(len);
        left -= len.min(left);
    }
    for sg in list {
        sg.addr = 0;
    }
}

/// Returns fragments as addresses and lengths, from byte `at` on.
pub fn fragments(bv: *const bio_vec, n: u32, at: usize, nob: usize) -> Vec<(u64, usize)> {
    let mut out = Vec::new();
    let (mut at, mut left) = (at, nob);
    for i in 0..n as usize {
        if left == 0 {
            break;
        }
        // SAFETY: The caller has `n` of them, or as many as hold the bytes.
        let b = unsafe { *bv.add(i) };
        let len = b.bv_len as usize;
        if at >= len {
            at -= len;
            continue;
        }
        let take = left.min(len - at);
        out.push((b.bv_page as u64 + u64::from(b.bv_offset) + at as u64, take));
        left -= take;
        at = 0;
    }
    out
}

const PAGE: u64 = 4096;

/// Returns the number of pages of a region that covers these fragments; 0 if no region can.
fn region_pages(parts: &[(u64, usize)]) -> u32 {
    let mut pages = 0;
    for (i, (addr, len)) in parts.iter().enumerate() {
        let (begin, end) = (addr % PAGE, (addr + *len as u64) % PAGE);
        if (i > 0 && begin != 0) || (i + 1 < parts.len() && end != 0) {
            return 0;
        }
        pages += (begin + *len as u64).div_ceil(PAGE);
    }
    pages as u32
}

#[no_mangle]
pub unsafe extern "C" fn ro2ib_sg_list_fill(
    list: *mut ro2ib_sg_list,
    bv: *const bio_vec,
    n: u32,
    offset: u32,
    nob: u32,
    merge: bool,
    run: *mut ro2ib_sg_shape,
) -> i32 {
    let parts = fragments(bv, n, offset as usize, nob as usize);
    if merge && parts.iter().any(|(addr, _)| addr & GPU != 0) {
        violation("pages of a GPU may become one element");
    }
    if parts.is_empty() {
        return -(EINVAL as i32);
    }
    // SAFETY: By the contract of this function.
    let (sgt, reserved) = unsafe { (&raw mut (*list).table, (*list).reserved) };
    // SAFETY: As above.
    let room = reserved.then_some(unsafe { (*sgt).orig_nents } as usize);
    // As in C, one element more; and the only element of a list needs no memory.
    let no_memory = || parts.len() > 1 && world::fails(Fault::Alloc);
    if room.map_or_else(no_memory, |n| parts.len() >= n) {
        return -(ENOMEM as i32);
    }
    if parts.iter().map(|(_, len)| len).sum::<usize>() < nob as usize {
        return -(EINVAL as i32);
    }
    let used = parts.len();
    let pages = region_pages(&parts);
    let list: Vec<Sg> = parts
        .into_iter()
        .enumerate()
        .map(|(i, (page, len))| Sg {
            page,
            len: len as u32,
            last: i + 1 == used,
            addr: 0,
            dma_len: 0,
        })
        .collect();
    // SAFETY: By the contract of this function; there is room for as many.
    unsafe {
        (*run).used = used as u32;
        (*run).pages = pages;
        (*sgt).nents = used as u32;
        if room.is_some() {
            (*sgt)
                .sgl
                .cast::<Sg>()
                .copy_from_nonoverlapping(list.as_ptr(), used);
            return 0;
        }
        (*sgt).orig_nents = used as u32;
        (*sgt).sgl = Box::into_raw(list.into_boxed_slice()).cast();
    }
    w().sg_tables += 1;
    0
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_sg_list_reserve(list: *mut ro2ib_sg_list, n: u32) -> i32 {
    let room = mem::kvmalloc(n as usize * size_of::<Sg>());
    if room.is_null() {
        return -(ENOMEM as i32);
    }
    // SAFETY: By the contract of this function.
    unsafe {
        (*list).table.sgl = room.cast();
        (*list).table.orig_nents = n;
        (*list).reserved = true;
    }
    w().sg_reserved += 1;
    0
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_sg_list_free(list: *mut ro2ib_sg_list) {
    // SAFETY: By the contract of this function.
    let (sgt, reserved) = unsafe { ((*list).table, (*list).reserved) };
    if reserved {
        w().sg_reserved -= 1;
        return mem::put(sgt.sgl.cast());
    }
    if sgt.sgl.is_null() {
        return;
    }
    // SAFETY: It was made above, with as many elements.
    unsafe {
        drop(Box::from_raw(core::ptr::slice_from_raw_parts_mut(
            sgt.sgl.cast::<Sg>(),
            sgt.orig_nents as usize,
        )));
    }
    w().sg_tables -= 1;
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_dma_map_sgt(
    dev: *mut ib_device,
    sgt: *mut sg_table,
    used: u32,
    dir: i32,
) -> i32 {
    sched::point();
    let list = elements_mut(sgt);
    if used as usize != list.len() {
        violation("a list does not have the stated number of fragments");
    }
    if world::fails(Fault::Dma) || w().maps.full == Some(dev as usize) {
        return -(EIO as i32);
    }
    if let Some((_, error)) = w().maps.refuses.filter(|(which, _)| *which == dev as usize) {
        return -(error as i32);
    }
    if list.iter().any(|sg| sg.page & GPU != 0) {
        violation("memory of a GPU is mapped as if it were the system's");
    }
    let n = map_list(dev, list, dir);
    w().maps.lists += 1;
    // SAFETY: By the contract of this function.
    unsafe { (*sgt).nents = n as u32 };
    0
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_sgt_is_mapped(
    sgt: *mut sg_table,
    n: i32,
    nob: u32,
    run: *mut ro2ib_sg_shape,
) -> i32 {
    let parts: Vec<_> = elements(sgt)
        .iter()
        .take(n as usize)
        .map(|sg| (sg.addr, sg.dma_len as usize))
        .collect();
    if parts.len() != n as usize || parts.iter().map(|(_, len)| len).sum::<usize>() != nob as usize
    {
        return -(EINVAL as i32);
    }
    // SAFETY: By the contract of this function.
    unsafe { (*run).pages = region_pages(&parts) };
    0
}

/// Maps a list of GPU memory; fails if the memory is gone, or partly not the GPU's, or by a fault.
#[no_mangle]
pub unsafe extern "C" fn ro2ib_lnet_gpu_map_sg(
    dev: *mut device,
    sg: *mut scatterlist,
    n: u32,
    write: bool,
) -> i32 {
    lock::might_sleep("lnet_rdma_map_sg_attrs");
    sched::point();
    if world::fails(Fault::Dma) {
        return w().rng.of(&[0, -(EIO as i32), -(ENODEV as i32)]);
    }
    // SAFETY: The caller has a list of so many.
    let list = unsafe { core::slice::from_raw_parts_mut(sg.cast::<Sg>(), n as usize) };
    match list.iter().filter(|sg| sg.page & GPU != 0).count() {
        0 => return 0,
        ours if ours < list.len() => return -(EIO as i32),
        _ => {}
    }
    if w()
        .maps
        .gpu
        .insert(sg as usize, (dev as usize, n, write))
        .is_some()
    {
        violation("a list of a GPU's memory is mapped twice");
    }
    // Memory of a GPU does not bounce.
    let by = layer(dev.cast()).map(|layer| match layer {
        Layer::Bounced => Layer::Iommu,
        other => other,
    });
    for sg in list {
        let cpu = sg.page & !GPU;
        sg.addr = map_by(by, dev.cast(), cpu, sg.len.into(), write.into());
        sg.dma_len = sg.len;
    }
    n as i32
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_lnet_gpu_unmap_sg(
    dev: *mut device,
    sg: *mut scatterlist,
    n: u32,
    write: bool,
) {
    if w().maps.gpu.remove(&(sg as usize)) != Some((dev as usize, n, write)) {
        violation("unmaps memory of a GPU that is not mapped, or not so");
    }
    // SAFETY: As above.
    for sg in unsafe { core::slice::from_raw_parts_mut(sg.cast::<Sg>(), n as usize) } {
        unmap(dev.cast(), sg.addr, sg.len.into(), write.into());
        sg.addr = 0;
    }
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_lnet_gpu_has(page: *mut page) -> bool {
    page as u64 & GPU != 0
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_dma_unmap_sgt(
    dev: *mut ib_device,
    sgt: *mut sg_table,
    used: u32,
    dir: i32,
) {
    let list = elements_mut(sgt);
    if used as usize != list.len() {
        violation("a list does not have the stated number of fragments");
    }
    if list.iter().any(|sg| sg.page & GPU != 0) {
        violation("memory of a GPU is unmapped as if it were the system's");
    }
    unmap_list(dev, list, dir);
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_sg_gather(
    pos: *mut ro2ib_sg_pos,
    sge: *mut ib_sge,
    max: u32,
    nob: u32,
    lkey: u32,
) -> u32 {
    // SAFETY: By the contract of this function.
    unsafe {
        let p = &mut *pos;
        let want = nob.min(p.left);
        let (mut todo, mut at, mut n) = (want, p.at, 0);
        let mut sg = p.sg.cast::<Sg>();
        while todo != 0 && n < max && !sg.is_null() {
            let mut len = (*sg).dma_len - at;
            let part = len > todo;
            if part {
                len = todo;
            }
            if len != 0 {
                *sge.add(n as usize) = ib_sge {
                    addr: (*sg).addr + u64::from(at),
                    length: len,
                    lkey,
                };
                n += 1;
                todo -= len;
            }
            if part {
                at += len;
                break;
            }
            sg = if (*sg).last {
                core::ptr::null_mut()
            } else {
                sg.add(1)
            };
            at = 0;
        }
        p.sg = sg.cast();
        p.at = at;
        p.left -= want - todo;
        n
    }
}

fn copy(parts: Vec<(u64, usize)>, buf: *mut u8, out: bool) -> usize {
    let mut done = 0;
    for (addr, len) in parts {
        if addr & GPU != 0 {
            violation("the CPU touches memory of a GPU");
        }
        // SAFETY: The caller's fragments and buffer are valid.
        unsafe {
            if out {
                core::ptr::copy_nonoverlapping(addr as *const u8, buf.add(done), len);
            } else {
                core::ptr::copy_nonoverlapping(buf.add(done), addr as *mut u8, len);
            }
        }
        done += len;
    }
    done
}

#[no_mangle]
pub unsafe extern "C" fn ro2ib_bvec_read(
    bv: *const bio_vec,
    n: u32,
    at: usize,
    to: *mut c_void,
    len: usize,
) -> usize {
    sched::point();
    copy(fragments(bv, n, at, len), to.cast(), true)
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_bvec_write(
    bv: *const bio_vec,
    n: u32,
    at: usize,
    from: *const c_void,
    len: usize,
) -> usize {
    sched::point();
    copy(fragments(bv, n, at, len), from.cast_mut().cast(), false)
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_bvec_copy(
    to: *const bio_vec,
    nto: u32,
    to_at: usize,
    from: *const bio_vec,
    nfrom: u32,
    from_at: usize,
    len: usize,
) -> usize {
    sched::point();
    let mut buf = vec![0; len];
    let n = copy(fragments(from, nfrom, from_at, len), buf.as_mut_ptr(), true);
    copy(fragments(to, nto, to_at, n), buf.as_mut_ptr(), false)
}
