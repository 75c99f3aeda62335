// SPDX-License-Identifier: GPL-2.0

//! Allocator of this program: lists of free blocks by size, never given back.
//!
//! Thousands of small worlds begin and end in a second, with the same thousands of blocks each; the
//! host's allocator splits and joins these again and again. The memory that a world counts and
//! checks is on top of this, in `simc::mem`.

use std::{
    alloc::{
        GlobalAlloc,
        Layout,
        System, //
    },
    cell::Cell,
    ptr, //
};

/// Sizes are multiples of this.
const STEP: usize = 32;
/// Larger blocks are the system's.
const MOST: usize = 4096;
/// Number of bytes that the allocator requests from the system at a time.
const CHUNK: usize = 1 << 18;

struct Lists {
    /// First free block of each size; the first word of a block points to the next.
    free: [Cell<*mut u8>; MOST / STEP + 1],
    chunk: Cell<*mut u8>,
    left: Cell<usize>,
}

thread_local! {
    static LISTS: Lists = const {
        Lists {
            free: [const { Cell::new(ptr::null_mut()) }; MOST / STEP + 1],
            chunk: Cell::new(ptr::null_mut()),
            left: Cell::new(0),
        }
    };
}

/// Allocator as described above. A thread may free a block of another thread, and owns it then.
pub struct Host;

fn ours(layout: Layout) -> bool {
    layout.size() <= MOST && layout.align() <= STEP
}

// SAFETY: A block that is given out is of one chunk or list, which it leaves first; blocks of a list have
// the size of its index times `STEP`, which is that of the layout, rounded up, and chunks are aligned to
// `STEP`, as are then all blocks. The layout of a block determines its allocator.
unsafe impl GlobalAlloc for Host {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !ours(layout) {
            // SAFETY: By the contract of this function.
            return unsafe { System.alloc(layout) };
        }
        let list = layout.size().div_ceil(STEP);
        LISTS.with(|l| {
            let first = l.free[list].get();
            if !first.is_null() {
                // SAFETY: It is free, so its first word is the list's.
                l.free[list].set(unsafe { first.cast::<*mut u8>().read() });
                return first;
            }
            let size = list * STEP;
            if l.left.get() < size {
                // SAFETY: The size is not 0, the alignment is a power of two.
                let chunk = unsafe { System.alloc(Layout::from_size_align_unchecked(CHUNK, STEP)) };
                if chunk.is_null() {
                    return chunk;
                }
                l.chunk.set(chunk);
                l.left.set(CHUNK);
            }
            let p = l.chunk.get();
            // SAFETY: There is so much left.
            l.chunk.set(unsafe { p.add(size) });
            l.left.set(l.left.get() - size);
            p
        })
    }

    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        if !ours(layout) {
            // SAFETY: By the contract of this function.
            return unsafe { System.dealloc(p, layout) };
        }
        let list = layout.size().div_ceil(STEP);
        LISTS.with(|l| {
            // SAFETY: It is free from now on, and has room for a word.
            unsafe { p.cast::<*mut u8>().write(l.free[list].get()) };
            l.free[list].set(p);
        });
    }
}
