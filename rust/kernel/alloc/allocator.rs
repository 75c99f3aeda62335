// SPDX-License-Identifier: GPL-2.0

//! Where memory comes from.

use core::{
    alloc::Layout,
    ptr::NonNull, //
};

use super::flags::Flags;
use crate::{
    bindings,
    ffi::c_void,
    page::PAGE_SIZE, //
};

/// There was not enough memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocError;

impl From<core::convert::Infallible> for AllocError {
    fn from(never: core::convert::Infallible) -> Self {
        match never {}
    }
}

/// A source of memory.
///
/// # Safety
///
/// [`Self::alloc`] returns memory of the size and alignment asked for, which stays valid until it is
/// given to [`Self::free`].
pub unsafe trait Allocator {
    /// Allocates; a layout of no bytes gets a pointer that must not be read.
    ///
    /// # Errors
    ///
    /// There is not enough, or the alignment cannot be had.
    fn alloc(layout: Layout, flags: Flags) -> Result<NonNull<u8>, AllocError>;

    /// Frees.
    ///
    /// # Safety
    ///
    /// `ptr` comes from [`Self::alloc`] with this `layout`, and is used no more.
    unsafe fn free(ptr: NonNull<u8>, layout: Layout);
}

/// `kmalloc()`: contiguous memory.
pub struct Kmalloc;

/// `kvmalloc()`: contiguous memory, or mapped pages if that cannot be had.
pub struct KVmalloc;

/// Returns the number of bytes to ask `kmalloc()` for.
///
/// Sizes that are powers of two are aligned to their size; others, before 6.12, to
/// `ARCH_KMALLOC_MINALIGN` only. So a layout with a larger alignment gets a power of two.
fn aligned_size(layout: Layout) -> Option<usize> {
    let sure = bindings::ro2ibk_const_RO2IBK_KMALLOC_MINALIGN as usize;

    if layout.align() <= sure {
        Some(layout.size())
    } else {
        layout
            .size()
            .max(layout.align())
            .checked_next_power_of_two()
    }
}

fn allocate(
    layout: Layout,
    get: impl FnOnce(usize) -> *mut c_void,
) -> Result<NonNull<u8>, AllocError> {
    if layout.size() == 0 {
        // Aligned, not NULL, and never read.
        return NonNull::new(core::ptr::without_provenance_mut(layout.align())).ok_or(AllocError);
    }
    let size = aligned_size(layout).ok_or(AllocError)?;
    NonNull::new(get(size).cast()).ok_or(AllocError)
}

// SAFETY: `kmalloc()` does so, given `aligned_size()`.
unsafe impl Allocator for Kmalloc {
    #[inline]
    fn alloc(layout: Layout, flags: Flags) -> Result<NonNull<u8>, AllocError> {
        // SAFETY: No preconditions but those of the context, which `flags` are chosen for.
        allocate(layout, |size| unsafe {
            bindings::ro2ibk_kmalloc(size, flags.as_raw())
        })
    }

    #[inline]
    unsafe fn free(ptr: NonNull<u8>, layout: Layout) {
        if layout.size() != 0 {
            // SAFETY: It comes from `kmalloc()`.
            unsafe { bindings::ro2ibk_kfree(ptr.as_ptr().cast()) }
        }
    }
}

// SAFETY: `kvmalloc()` does so, given `aligned_size()`. Memory that it maps is aligned to a page, and `alloc` refuses
// more.
unsafe impl Allocator for KVmalloc {
    #[inline]
    fn alloc(layout: Layout, flags: Flags) -> Result<NonNull<u8>, AllocError> {
        if layout.align() > PAGE_SIZE {
            return Err(AllocError);
        }
        // SAFETY: No preconditions but those of the context, which `flags` are chosen for.
        allocate(layout, |size| unsafe {
            bindings::ro2ibk_kvmalloc(size, flags.as_raw())
        })
    }

    #[inline]
    unsafe fn free(ptr: NonNull<u8>, layout: Layout) {
        if layout.size() != 0 {
            // SAFETY: It comes from `kvmalloc()`.
            unsafe { bindings::ro2ibk_kvfree(ptr.as_ptr().cast()) }
        }
    }
}
