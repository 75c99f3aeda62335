// SPDX-License-Identifier: GPL-2.0

//! Memory: `kmalloc()` and pages, their owners, and writes after a free.
//!
//! Freed memory rests until the world ends, filled with a pattern that is checked then. An
//! allocation fails if the world injects the fault.

use std::{
    alloc::{
        alloc,
        Layout, //
    },
    cell::RefCell,
    collections::VecDeque, //
};

use crate::{
    decl::k::*,
    fixed_hash::{
        Hash,
        Map, //
    },
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
/// Number of bytes of a larger block that are spoilt when the block is freed.
const SPOILT: usize = 512;
/// Number of freed blocks that rest at a time; only the largest worlds free more.
const RESTING: usize = 1 << 20;
/// Class of pages.
const PAGES: u32 = 12 * QUARTERS;
/// Alignment of the memory that blocks of one class share; a larger block has its own.
const SLAB: usize = 1 << 16;
/// Size of that memory: the host's allocator can put another slab behind it.
const SLAB_SIZE: usize = SLAB - 64;
/// Number of classes from one power of two to the next.
const QUARTERS: u32 = 4;

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Spare,
    Live,
    Resting,
}

/// Block of a slab. It stays known from world to world, so that small worlds in large numbers do not
/// use the host's allocator much.
#[derive(Clone, Copy)]
struct Block {
    addr: usize,
    size: u32,
    /// Index in the list of live blocks.
    at: u32,
    node: u32,
    nr: u32,
    /// Class of the block's real size.
    class: u32,
    state: State,
}

/// Node of memory that is no driver's.
const NOBODY: u32 = u32::MAX;

/// Memory from the host's allocator: blocks of a class, one behind the other.
struct Slab {
    /// Index of the first block.
    first: u32,
    /// Distance of the blocks in bytes.
    stride: usize,
    /// Number of blocks.
    n: usize,
}

extern "C" {
    fn madvise(addr: *mut u8, len: usize, advice: i32) -> i32;
}

/// Gives pages that no code uses back to the host. They are zero when they are next used.
fn give_back(pages: *mut u8, len: usize) {
    const MADV_DONTNEED: i32 = 4;
    // SAFETY: These are whole pages of a block of this heap.
    let rc = unsafe { madvise(pages, len, MADV_DONTNEED) };
    assert_eq!(rc, 0, "madvise");
}

/// Makes pages take no memory of the host until they are written: for one world of thousands of
/// nodes, before it begins. Most buffers of a connection are never used there.
pub fn use_sparse_pages() {
    HEAP.with(|h| {
        let h = &mut *h.borrow_mut();
        assert!(h.blocks.is_empty(), "no memory has been allocated");
        h.sparse = true;
    });
}

/// Blocks of all worlds.
///
/// INVARIANT: a block is in the slab of its address; in `spare[class]` exactly while it is `Spare`; in
/// `live`, at its `at`, exactly while it is `Live`; in `resting` exactly while it is `Resting`.
struct Heap {
    blocks: Vec<Block>,
    /// Slabs by their address, in units of [`SLAB`].
    slabs: Map<usize, Slab>,
    spare: [Vec<u32>; 32 * QUARTERS as usize],
    live: Vec<u32>,
    resting: VecDeque<u32>,
    nr: u64,
    /// Pages take no memory of the host until they are written; see [`use_sparse_pages`].
    sparse: bool,
    /// Description of the first write after a free that was found.
    bad: Option<String>,
}

thread_local! {
    static HEAP: RefCell<Heap> = const { RefCell::new(Heap {
        blocks: Vec::new(),
        slabs: Map::with_hasher(Hash::new()),
        spare: [const { Vec::new() }; 32 * QUARTERS as usize],
        live: Vec::new(),
        resting: VecDeque::new(),
        nr: 0,
        sparse: false,
        bad: None,
    }) };
}

/// Returns the class for a size: the next multiple of a quarter of a power of two, or the next
/// power of two, which has that alignment, up to that of pages.
fn class_of(size: usize, align: usize) -> u32 {
    let size = size.max(align).max(32);
    let low = size.ilog2();
    let quarters = (size - (1 << low)).div_ceil(1 << (low - 2)) as u32;
    match quarters {
        1.. if align > 16 => (low + 1) * QUARTERS,
        _ => low * QUARTERS + quarters,
    }
}

/// Returns the distance of the blocks of a class.
fn stride(class: u32) -> usize {
    let (low, quarters) = (class / QUARTERS, class % QUARTERS);
    ((1_usize << low) + ((quarters as usize) << (low - 2))).next_multiple_of(16)
}

/// Returns the layout of the slabs of a class.
fn layout(class: u32) -> Layout {
    Layout::from_size_align(stride(class).max(SLAB_SIZE), SLAB).expect("a size that exists")
}

impl Heap {
    fn get(&mut self, node: u32, size: usize, align: usize) -> *mut u8 {
        let class = class_of(size, align);
        let i = match self.spare[class as usize].pop() {
            Some(i) => i,
            None => self.fresh(class),
        };
        self.nr += 1;
        let at = self.live.len() as u32;
        self.live.push(i);
        let block = &mut self.blocks[i as usize];
        *block = Block {
            size: u32::try_from(size).expect("a size that exists"),
            at,
            node,
            nr: self.nr as u32,
            state: State::Live,
            ..*block
        };
        block.addr as *mut u8
    }

    /// Allocates a slab. Returns its first block, and makes the others spare.
    fn fresh(&mut self, class: u32) -> u32 {
        let (layout, stride) = (layout(class), stride(class));
        // SAFETY: The size is not 0.
        let p = unsafe { alloc(layout) };
        assert!(!p.is_null(), "no memory");
        let slab = Slab {
            first: self.blocks.len() as u32,
            stride,
            n: layout.size() / stride,
        };
        if class == PAGES && self.sparse {
            give_back(p, slab.n * stride);
        }
        self.blocks.extend((0..slab.n).map(|nr| Block {
            addr: p as usize + nr * stride,
            size: 0,
            at: 0,
            node: NOBODY,
            nr: 0,
            class,
            state: State::Spare,
        }));
        // The first block is used next.
        let others = slab.first + 1..self.blocks.len() as u32;
        self.spare[class as usize].extend(others.rev());
        let first = slab.first;
        self.slabs.insert(p as usize / SLAB, slab);
        first
    }

    /// Returns whether a new block of that size and alignment has only zeros.
    fn is_zeroed(&self, size: usize, align: usize) -> bool {
        self.sparse && class_of(size, align) == PAGES
    }

    /// Returns the block at an address, if it is live.
    fn live(&self, p: usize) -> Option<u32> {
        let slab = self.slabs.get(&(p / SLAB))?;
        let i = slab.first + (p % SLAB / slab.stride) as u32;
        let is = p % SLAB % slab.stride == 0 && p % SLAB / slab.stride < slab.n;
        (is && self.blocks[i as usize].state == State::Live).then_some(i)
    }

    fn free(&mut self, i: u32) {
        let block = self.blocks[i as usize];
        self.live.swap_remove(block.at as usize);
        if let Some(moved) = self.live.get(block.at as usize) {
            self.blocks[*moved as usize].at = block.at;
        }
        if block.size as usize <= RESTS {
            self.blocks[i as usize].state = State::Resting;
            self.resting.push_back(i);
            if self.resting.len() > RESTING {
                if let Some(i) = self.resting.pop_front() {
                    self.check_rest(i);
                    self.release(i);
                }
            }
        } else {
            self.release(i);
        }
    }

    /// Checks that no byte of a resting block was written.
    fn check_rest(&mut self, i: u32) {
        let block = self.blocks[i as usize];
        // SAFETY: Still allocated.
        let bytes =
            unsafe { core::slice::from_raw_parts(block.addr as *const u8, block.size as usize) };
        if let Some(at) = written(bytes) {
            self.bad.get_or_insert(format!(
                "byte {at} of allocation {} of {} bytes was written after it was freed",
                block.nr, block.size
            ));
        }
    }

    fn release(&mut self, i: u32) {
        let block = &mut self.blocks[i as usize];
        block.state = State::Spare;
        if self.sparse && block.class == PAGES {
            give_back(block.addr as *mut u8, stride(PAGES));
        }
        self.spare[block.class as usize].push(i);
    }
}

/// Allocates memory for the current node.
pub fn get_for_node(size: usize, align: usize, fill: u8) -> *mut u8 {
    let (p, zeroed) = HEAP.with(|h| {
        let h = &mut *h.borrow_mut();
        let p = h.get(sched::node() as u32, size, align);
        (p, h.is_zeroed(size, align))
    });
    // SAFETY: Allocated.
    unsafe {
        if fill == FRESH && size > 2 * SPOILT {
            // A buffer: no code may rely on its first and last bytes.
            p.write_bytes(fill, SPOILT);
            p.add(size - SPOILT).write_bytes(fill, SPOILT);
        } else if fill != 0 || !zeroed {
            p.write_bytes(fill, size);
        }
    }
    p
}

/// Allocates pages for an application, without contents; they stay until the world ends.
pub fn get_pages(size: usize) -> *mut u8 {
    HEAP.with(|h| h.borrow_mut().get(NOBODY, size, 4096))
}

/// Frees memory.
pub fn put(p: *const u8) {
    if p.is_null() {
        return;
    }
    let found = HEAP.with(|h| {
        let h = h.borrow();
        let i = h.live(p as usize)?;
        Some((i, h.blocks[i as usize].size as usize))
    });
    let Some((i, size)) = found else {
        violation("freed twice, or never allocated");
    };
    crate::dma::not_mapped(p as u64, size as u64, "freed");
    // SAFETY: It was allocated with that size.
    unsafe {
        p.cast_mut()
            .write_bytes(FREED, if size <= RESTS { size } else { SPOILT })
    };
    HEAP.with(|h| h.borrow_mut().free(i));
}

/// Returns the number of allocations in this world.
pub fn allocations() -> u64 {
    HEAP.with(|h| h.borrow().nr)
}

/// Returns the allocations that a node has left, for the story; empty if there are none.
pub fn left(node: usize) -> Vec<(u64, usize)> {
    let mut left: Vec<_> = HEAP.with(|h| {
        let h = h.borrow();
        h.live
            .iter()
            .map(|i| &h.blocks[*i as usize])
            .filter(|b| b.node == node as u32)
            .map(|b| (b.nr.into(), b.size as usize))
            .collect()
    });
    left.sort_unstable();
    left
}

/// Returns whether a node has allocations left.
pub fn any_left() -> bool {
    HEAP.with(|h| {
        let h = h.borrow();
        let mut nodes = h.live.iter().map(|i| h.blocks[*i as usize].node);
        nodes.any(|node| node != NOBODY)
    })
}

/// Drops the memory of a node that lost its power.
pub fn forget(node: usize) {
    HEAP.with(|h| {
        let h = &mut *h.borrow_mut();
        for i in &h.live {
            let block = &mut h.blocks[*i as usize];
            if block.node == node as u32 {
                block.node = NOBODY;
            }
        }
    });
}

/// Returns the offset of the first byte that changed after the free, if any.
fn written(bytes: &[u8]) -> Option<usize> {
    const WORD: [u8; 16] = [FREED; 16];
    let mut words = bytes.chunks_exact(16);
    // The comparison looks at many bytes at a time, because nearly always all are right.
    if words.all(|w| w == WORD) && words.remainder().iter().all(|b| *b == FREED) {
        return None;
    }
    bytes.iter().position(|b| *b != FREED)
}

/// Frees all memory, and returns a description of a write after a free, if there was one.
pub fn clear() -> Option<String> {
    HEAP.with(|h| {
        let h = &mut *h.borrow_mut();
        for at in 0..h.resting.len() {
            h.check_rest(h.resting[at]);
        }
        let mut used: Vec<u32> = h.live.drain(..).chain(h.resting.drain(..)).collect();
        // The next world uses the same blocks in the same order, which the caches have.
        used.sort_unstable_by(|a, b| b.cmp(a));
        for i in used {
            h.release(i);
        }
        h.nr = 0;
        h.bad.take()
    })
}

/// Checks an allocation of `what` with `GFP_KERNEL`, in the simulated C or in the driver.
pub fn allocates(what: &str) {
    let task = &w().sched.tasks[sched::current()];
    if task.nofs == 0 && task.for_storage {
        violation(&format!(
            "{what} allocates in a way that may wait for a file system, which may wait for it"
        ));
    }
}

/// Checks a command of a device for which its provider waits for memory: no message may wait for its caller, because
/// the kernel may be able to clean its pages only by that message.
pub fn waits(what: &str) {
    let task = &w().sched.tasks[sched::current()];
    if task.for_lnet != 0 || ["Conn::upper", "Conn::retry"].contains(&task.name) {
        violation(&format!(
            "{what} waits for memory, and reclaim may wait for messages behind it"
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
        lock::may_wait_for_memory("Regions::list");
        lock::may_wait_for_memory("WorkQueues::devices");
        if w().no_wait == Some(sched::node()) && w().sched.tasks[sched::current()].for_lnet != 0 {
            violation("a call of LNet waits for memory, and reclaim may wait for its message");
        }
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

/// Allocates zeroed memory, as kzalloc(GFP_KERNEL), or as kzalloc(GFP_NOWAIT).
pub fn kzalloc(size: usize, wait: bool) -> *mut c_void {
    let how = match wait {
        true => ro2ibk_const_RO2IBK_GFP_KERNEL,
        false => ro2ibk_const_RO2IBK_GFP_NOWAIT,
    };
    kmalloc(size, how | ro2ibk_const_RO2IBK_GFP_ZERO)
}

/// Allocates memory, as kvmalloc(GFP_KERNEL).
pub fn kvmalloc(size: usize) -> *mut c_void {
    kmalloc(size, ro2ibk_const_RO2IBK_GFP_KERNEL)
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
    // vfree() may sleep only in kernels that allow it; kvfree() of small memory does not.
    put(p.cast());
}

/// Allocates a page; the pointer of a page of the world is its address.
#[no_mangle]
pub unsafe extern "C" fn ro2ib_alloc_page() -> *mut page {
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
