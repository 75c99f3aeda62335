// SPDX-License-Identifier: GPL-2.0

//! Memory that neither the CPU nor the kernel's DMA layer can reach: a GPU's.
//!
//! Its pages only stand for it. Who has the memory says where a device finds it, and is told when no device
//! uses it any more. Nothing in this room knows who that is: whoever makes a [`PageVec`] of such pages
//! names him.
//!
//! [`PageVec`]: super::pages::PageVec

use super::buf::Direction;
use crate::bindings;

/// Who has memory of GPUs.
///
/// # Safety
///
/// What [`Self::map`] has mapped is memory that the device may use, in that direction, until
/// [`Self::unmap`], whatever happens meanwhile to who has it.
pub(crate) unsafe trait GpuMemory: Sync {
    /// Maps the first `n` elements of a list for a device, and puts DMA addresses and lengths into it.
    /// Returns how many elements these are, 0 if the pages are no GPU's or nobody has them any more, or a
    /// negative errno. Process context; may sleep.
    ///
    /// # Safety
    ///
    /// `sg` is a list of `n` elements, each of them within a page. `dev` is what the DMA of the device goes
    /// through, or NULL if it is made of software, and valid during the call.
    unsafe fn map(
        &self,
        dev: *mut bindings::device,
        sg: *mut bindings::scatterlist,
        n: u32,
        direction: Direction,
    ) -> i32;

    /// Takes the mapping back. Any context but hard interrupts.
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

    /// Whether a page stands for memory of a GPU. Any context.
    ///
    /// # Safety
    ///
    /// `page` is a page.
    unsafe fn has(&self, page: *mut bindings::page) -> bool;
}

/// What pages are.
#[derive(Clone, Copy)]
pub(crate) enum Home {
    /// Memory of the system.
    System,
    /// Memory of a GPU.
    Gpu(&'static dyn GpuMemory),
}
