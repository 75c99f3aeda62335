// SPDX-License-Identifier: GPL-2.0

//! Memory: `kmalloc()` and pages, who has them, and what was written after it was freed.
//!
//! Freed memory rests until the world ends, filled with a pattern that is looked at then. An
//! allocation fails if the world says so.

use std::{
    alloc::{
        alloc,
        dealloc,
        Layout, //
    },
    cell::RefCell, //
};

use crate::{
    decl::k::*,
    hash::Map,
    lock,
    sched,
    world::{
        self,
        violation,
        w, //
    }, //
};

const FRESH: u8 = 0xa5;
const FREED: u8 = 0x6b;
/// Blocks up to this size rest after they are freed.
const RESTS: usize = 1024;
/// So many blocks of a size are kept for the next world.
const SPARES: usize = 4096;

#[derive(Clone, Copy)]
struct Block {
    size: usize,
    align: usize,
    node: usize,
    nr: u64,
}

/// All memory of a world.
#[derive(Default)]
pub struct Mem {
    live: Map<usize, Block>,
    resting: Vec<(usize, Block)>,
    /// How many allocations there were.
    pub nr: u64,
}

thread_local! {
    /// Blocks for the next world, by the exponent of their size.
    static SPARE: RefCell<[Vec<*mut u8>; 32]> = const { RefCell::new([const { Vec::new() }; 32]) };
}

/// Blocks have the size of a power of two, and are aligned to it as far as pages are.
fn layout(size: usize, align: usize) -> Layout {
    let size = size.max(align).max(32).next_power_of_two();
    Layout::from_size_align(size, size.min(4096)).expect("a size that exists")
}

fn get(size: usize, align: usize, fill: u8) -> *mut u8 {
    let layout = layout(size, align);
    let spare = SPARE.with(|s| s.borrow_mut()[layout.size().trailing_zeros() as usize].pop());
    // SAFETY: The size is not 0.
    let p = spare.unwrap_or_else(|| unsafe { alloc(layout) });
    assert!(!p.is_null(), "no memory");
    // SAFETY: Allocated.
    unsafe { p.write_bytes(fill, size) };
    p
}

/// Allocates for the node that runs.
pub fn get_for_node(size: usize, align: usize, fill: u8) -> *mut u8 {
    get_for(sched::node(), size, align, fill)
}

/// Pages of an application; they stay until the world ends.
pub fn get_pages(size: usize, fill: u8) -> *mut u8 {
    get_for(usize::MAX, size, 4096, fill)
}

fn get_for(node: usize, size: usize, align: usize, fill: u8) -> *mut u8 {
    let p = get(size, align, fill);
    let world = w();
    world.mem.nr += 1;
    let nr = world.mem.nr;
    world.mem.live.insert(
        p as usize,
        Block {
            size,
            align,
            node,
            nr,
        },
    );
    p
}

/// Frees.
pub fn put(p: *const u8) {
    if p.is_null() {
        return;
    }
    let mem = &mut w().mem;
    let Some(block) = mem.live.remove(&(p as usize)) else {
        violation("freed twice, or never allocated");
    };
    crate::dma::not_mapped(p as u64, block.size as u64, "freed");
    // SAFETY: It was allocated with that size.
    unsafe { p.cast_mut().write_bytes(FREED, block.size.min(4096)) };
    if block.size <= RESTS {
        mem.resting.push((p as usize, block));
    } else {
        release(p as usize, block);
    }
}

fn release(p: usize, block: Block) {
    let layout = layout(block.size, block.align);
    SPARE.with(|s| {
        let spare = &mut s.borrow_mut()[layout.size().trailing_zeros() as usize];
        if spare.len() < SPARES {
            spare.push(p as *mut u8);
        } else {
            // SAFETY: It was allocated with that layout.
            unsafe { dealloc(p as *mut u8, layout) };
        }
    });
}

/// What is left on a node, for the story; empty: nothing.
pub fn left(node: usize) -> Vec<(u64, usize)> {
    let mut left: Vec<_> = w()
        .mem
        .live
        .values()
        .filter(|b| b.node == node)
        .map(|b| (b.nr, b.size))
        .collect();
    left.sort_unstable();
    left
}

/// A node's memory is gone: it lost its power.
pub fn forget(node: usize) {
    for block in w().mem.live.values_mut() {
        if block.node == node {
            block.node = usize::MAX;
        }
    }
}

/// Frees all of it, and tells whether something was written after it was freed.
pub fn clear() -> Option<String> {
    let mem = &mut w().mem;
    let mut bad = None;
    for (p, block) in mem.resting.drain(..) {
        // SAFETY: Still allocated.
        let bytes = unsafe { core::slice::from_raw_parts(p as *const u8, block.size) };
        if let Some(at) = bytes.iter().position(|b| *b != FREED) {
            bad.get_or_insert(format!(
                "byte {at} of allocation {} of {} bytes was written after it was freed",
                block.nr, block.size
            ));
        }
        release(p, block);
    }
    for (p, block) in mem.live.drain() {
        release(p, block);
    }
    bad
}

/// Whether the task that runs may be what a file system waits for: all but what administrators do.
fn for_storage() -> bool {
    let name = w().sched.tasks[sched::current()].name;
    let config = ["up", "down", "happens", "boot", "ib_event"].contains(&name);
    !config && !name.starts_with("Ni::") && !name.starts_with("Driver::")
}

/// `what` allocates with `GFP_KERNEL`: of the C that is simulated, or of the driver.
pub fn allocates(what: &str) {
    if w().sched.tasks[sched::current()].nofs == 0 && for_storage() {
        violation(&format!(
            "{what} allocates in a way that may wait for a file system, which may wait for it"
        ));
    }
}

fn kmalloc(size: usize, flags: u32) -> *mut c_void {
    // __GFP_FS
    if flags & 0x80 != 0 {
        allocates("kmalloc");
    }
    // __GFP_DIRECT_RECLAIM
    if flags & 0x400 != 0 {
        lock::might_sleep("kmalloc");
    }
    sched::point();
    if world::fails(world::Fault::Alloc) {
        return core::ptr::null_mut();
    }
    let fill = if flags & ro2ibk_const_RO2IBK_GFP_ZERO != 0 {
        0
    } else {
        FRESH
    };
    let align = if size.is_power_of_two() && size <= 4096 {
        size.max(16)
    } else {
        16
    };
    get_for_node(size, align, fill).cast()
}

#[no_mangle]
pub unsafe extern "C" fn ro2ibk_kmalloc(size: usize, flags: u32) -> *mut c_void {
    kmalloc(size, flags)
}

#[no_mangle]
pub unsafe extern "C" fn ro2ibk_kfree(p: *const c_void) {
    put(p.cast());
}

#[no_mangle]
pub unsafe extern "C" fn ro2ibk_kvmalloc(size: usize, flags: u32) -> *mut c_void {
    kmalloc(size, flags)
}

#[no_mangle]
pub unsafe extern "C" fn ro2ibk_kvfree(p: *const c_void) {
    // vfree() may sleep only in kernels that say so; kvfree() of small memory does not.
    put(p.cast());
}

/// A page of the world is its address.
#[no_mangle]
pub unsafe extern "C" fn ro2ib_alloc_page() -> *mut page {
    lock::might_sleep("alloc_page");
    sched::point();
    if world::fails(world::Fault::Alloc) {
        return core::ptr::null_mut();
    }
    get_for_node(4096, 4096, 0).cast()
}

#[no_mangle]
pub unsafe extern "C" fn ro2ib_free_page(page: *mut page) {
    put(page.cast());
}
