// SPDX-License-Identifier: GPL-2.0

//! Memory that neither the CPU nor the kernel's DMA layer can reach: a GPU's.
//!
//! Its pages only stand for it. The owner of such memory provides its DMA mapping ([`GpuMemOps`]), and a
//! [`PageVec`] of such pages records the owner. This module does not know any owner.
//!
//! [`PageVec`]: super::page_frags::PageVec

use super::buf::Direction;
use crate::bindings;

/// An owner of memory of GPUs.
///
/// # Safety
///
/// Memory that [`Self::map`] has mapped may be used by the device, in that direction, until [`Self::unmap`], whatever
/// happens to the owner meanwhile.
pub(crate) unsafe trait GpuMemOps: Sync {
    /// Maps the first `n` elements of a list for a device, and puts DMA addresses and lengths into it. Returns the
    /// number of these elements, 0 if the pages are not memory of a GPU or are not registered any more, or a negative
    /// errno. Process context; may sleep.
    ///
    /// # Safety
    ///
    /// `sg` is a list of `n` elements, each of them within a page. `dev` is the device that the DMA goes through, or
    /// NULL for a software device, and valid during the call.
    unsafe fn map(
        &self,
        dev: *mut bindings::device,
        sg: *mut bindings::scatterlist,
        n: u32,
        direction: Direction,
    ) -> i32;

    /// Removes the mapping. Any context but hard interrupts.
    ///
    /// # Safety
    ///
    /// The same arguments were given to [`Self::map`], which returned more than 0; since then the list was
    /// not changed, nor was this called. No device uses the memory any more.
    unsafe fn unmap(
        &self,
        dev: *mut bindings::device,
        sg: *mut bindings::scatterlist,
        n: u32,
        direction: Direction,
    );

    /// Returns whether a page stands for memory of a GPU. Any context.
    ///
    /// # Safety
    ///
    /// `page` is a page.
    unsafe fn has(&self, page: *mut bindings::page) -> bool;
}

/// Kind of the memory that pages stand for.
#[derive(Clone, Copy)]
pub(crate) enum MemKind {
    /// Memory of the host.
    Host,
    /// Memory of a GPU.
    Gpu(&'static dyn GpuMemOps),
}
