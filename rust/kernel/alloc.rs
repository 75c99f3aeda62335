// SPDX-License-Identifier: GPL-2.0

//! Memory: allocations that can fail, boxes and vectors of it.
//!
//! C header: `include/linux/slab.h`.

pub(crate) mod allocator;
pub mod flags;
mod kbox;
mod kvec;

pub use self::{
    allocator::{
        AllocError,
        Allocator,
        KVmalloc,
        Kmalloc, //
    },
    flags::Flags,
    kbox::{
        Box,
        KBox, //
    },
    kvec::{
        DrainAll,
        IntoIter,
        KVVec,
        KVec,
        PushError,
        Vec, //
    }, //
};
