// SPDX-License-Identifier: GPL-2.0

//! Memory that devices may access: mappings, scatterlists, and lists of page fragments.
//!
//! A DMA address is the address. Every access of a device is checked against the mappings that
//! live.
//!
//! Memory of a GPU has an address that the CPU cannot use, and another address for devices, which
//! the GPU's provider returns.

use std::collections::BTreeMap;

use crate::{
    decl::{
        k::*,
        r::*, //
    },
    hash::Map,
    lock,
    mem,
    sched,
    verbs::Dev,
    world::{
        self,
        violation,
        w,
        Fault, //
    }, //
};

#[derive(Clone, Copy)]
struct Mapping {
    len: u64,
    dir: i32,
    dev: usize,
}

/// Mappings of a world.
///
/// INVARIANT: `pages` counts, for each page of each mapping in `live`, one by the hash of its
/// number.
pub struct Maps {
    live: BTreeMap<(u64, u64), Mapping>,
    pages: [u32; PLACES],
    nr: u64,
    /// Lists that the provider of a GPU has mapped: device, elements, direction.
    gpu: BTreeMap<usize, (usize, u32, bool)>,
    /// Buffers that were allocated for a device, whether they still exist or not.
    near: Map<u64, usize>,
}

/// Number of buckets for pages.
const PLACES: usize = 1024;

impl Default for Maps {
    fn default() -> Self {
        Self {
            live: BTreeMap::new(),
            pages: [0; PLACES],
            nr: 0,
            gpu: BTreeMap::new(),
            near: Map::default(),
        }
    }
}

/// Returns the buckets of the pages that have some of these bytes.
fn places(addr: u64, len: u64) -> impl Iterator<Item = usize> {
    (addr / PAGE..=(addr + len.max(1) - 1) / PAGE).map(|page| page as usize % PLACES)
}

impl Maps {
    fn insert(&mut self, addr: u64, m: Mapping) {
        self.nr += 1;
        self.live.insert((addr, self.nr), m);
        for place in places(addr, m.len) {
            self.pages[place] += 1;
        }
    }

    fn remove(&mut self, key: (u64, u64)) {
        if let Some(m) = self.live.remove(&key) {
            for place in places(key.0, m.len) {
                self.pages[place] -= 1;
            }
        }
    }

    /// Returns false if no page of these bytes is in any mapping.
    fn may_be_mapped(&self, addr: u64, len: u64) -> bool {
        places(addr, len)
            .take(PLACES)
            .any(|place| self.pages[place] != 0)
    }
}

/// Bit of an address that marks memory of a GPU.
pub const GPU: u64 = 1 << 62;

fn map(dev: *mut ib_device, addr: u64, len: u64, dir: i32) {
    w().maps.insert(
        addr,
        Mapping {
            len,
            dir,
            dev: dev as usize,
        },
    );
}

fn unmap(dev: *mut ib_device, addr: u64, len: u64, dir: i32) {
    let maps = &mut w().maps;
    let found = maps
        .live
        .range((addr, 0)..=(addr, u64::MAX))
        .find(|(_, m)| m.len == len && m.dir == dir && m.dev == dev as usize)
        .map(|(k, _)| *k);
    match found {
        Some(key) => maps.remove(key),
        None => violation("unmaps what is not mapped"),
    }
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
    let last = maps.live.range(..(end, 0)).next_back();
    if let Some(((start, _), m)) = last {
        if start + m.len > addr {
            violation(&format!("memory is {what} while a device may touch it"));
        }
    }
}

/// Checks an access of the device to memory, a write if `write`.
pub fn touch(dev: *const Dev, addr: u64, len: u64, write: bool) -> bool {
    if len == 0 {
        return true;
    }
    w().maps
        .live
        .range(..=(addr, u64::MAX))
        .rev()
        .take(16)
        .any(|((start, _), m)| {
            m.dev == dev as usize
                && *start <= addr
                && addr + len <= start + m.len
                && (!write || m.dir != 0)
        })
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
    if world::fails(Fault::Dma) {
        return -(EIO as i32);
    }
    // Memory that a connection keeps for long must be near the device.
    if w().maps.near.get(&(buf as u64)) != Some(&(dev as usize)) {
        violation("a message buffer was not allocated near its device");
    }
    map(dev, buf as u64, len as u64, dir);
    // SAFETY: By the contract of this function.
    unsafe { *addr = buf as u64 };
    0
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_dma_unmap_buf(dev: *mut ib_device, addr: u64, len: usize, dir: i32) {
    unmap(dev, addr, len as u64, dir);
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_dma_needs_sync(_dev: *mut ib_device, _addr: u64) -> bool {
    false
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_dma_sync_for_cpu(
    _dev: *mut ib_device,
    _addr: u64,
    _len: usize,
    _dir: i32,
) {
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_dma_sync_for_device(
    _dev: *mut ib_device,
    _addr: u64,
    _len: usize,
    _dir: i32,
) {
}

/// Element of a list.
#[derive(Clone, Copy)]
pub struct Sg {
    /// Address of the memory.
    page: u64,
    /// Address for a device; 0 while the element is not mapped.
    pub addr: u64,
    /// Length in bytes.
    pub len: u32,
    last: bool,
}

/// Returns the elements of a table.
pub fn elements<'a>(sgt: *mut sg_table) -> &'a [Sg] {
    // SAFETY: The caller has a table that was made below.
    unsafe { core::slice::from_raw_parts((*sgt).sgl.cast::<Sg>(), (*sgt).nents as usize) }
}

/// Returns the elements of a table, to map them.
fn elements_mut<'a>(sgt: *mut sg_table) -> &'a mut [Sg] {
    // SAFETY: As above; no other code accesses it meanwhile.
    unsafe { core::slice::from_raw_parts_mut((*sgt).sgl.cast::<Sg>(), (*sgt).nents as usize) }
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
pub unsafe extern "C" fn ro2ib_sgt_from_bvec(
    sgt: *mut sg_table,
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
    let room = unsafe { (!(*sgt).sgl.is_null()).then_some((*sgt).orig_nents as usize) };
    // As in C, one element more.
    if room.map_or_else(|| world::fails(Fault::Alloc), |n| parts.len() >= n) {
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
            addr: 0,
            len: len as u32,
            last: i + 1 == used,
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
pub unsafe extern "C" fn ro2ib_sgt_reserve(sgt: *mut sg_table, n: u32) -> i32 {
    let room = mem::kvmalloc(n as usize * size_of::<Sg>());
    if room.is_null() {
        return -(ENOMEM as i32);
    }
    // SAFETY: By the contract of this function.
    unsafe {
        (*sgt).sgl = room.cast();
        (*sgt).orig_nents = n;
    }
    0
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_sgt_unreserve(sgt: *mut sg_table) {
    // SAFETY: By the contract of this function.
    mem::put(unsafe { (*sgt).sgl.cast() });
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_sgt_free(sgt: *mut sg_table) {
    // SAFETY: It was made above, with as many elements; or there is none.
    unsafe {
        if (*sgt).sgl.is_null() {
            return;
        }
        drop(Box::from_raw(core::ptr::slice_from_raw_parts_mut(
            (*sgt).sgl.cast::<Sg>(),
            (*sgt).orig_nents as usize,
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
    if used as usize != elements(sgt).len() {
        violation("a list has not as many fragments as was said");
    }
    if world::fails(Fault::Dma) {
        return -(EIO as i32);
    }
    for sg in elements_mut(sgt) {
        if sg.page & GPU != 0 {
            violation("memory of a GPU is mapped as if it were the system's");
        }
        sg.addr = sg.page;
        map(dev, sg.addr, sg.len.into(), dir);
    }
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
        .map(|sg| (sg.addr, sg.len as usize))
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
    for sg in list {
        sg.addr = sg.page & !GPU;
        map(dev.cast(), sg.addr, sg.len.into(), write.into());
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
    if used as usize != elements(sgt).len() {
        violation("a list has not as many fragments as was said");
    }
    for sg in elements_mut(sgt) {
        if sg.page & GPU != 0 {
            violation("memory of a GPU is unmapped as if it were the system's");
        }
        unmap(dev, sg.addr, sg.len.into(), dir);
        sg.addr = 0;
    }
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
            let mut len = (*sg).len - at;
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
