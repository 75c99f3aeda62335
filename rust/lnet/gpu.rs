// SPDX-License-Identifier: GPL-2.0

//! Memory of GPUs, by whom LNet knows to have it: nvidia-fs, which registers itself there.

use core::ffi::c_int;

use crate::{
    bindings,
    rdma::{
        buf::Direction,
        gpu::{
            GpuMemOps,
            MemKind, //
        }, //
    }, //
};

/// Who is registered with LNet. LNet counts what it has mapped, and does not let it go before all of it is
/// unmapped.
struct Registered;

// SAFETY: That is the contract of the provider that LNet calls; LNet waits in its unregistration for all
// that is mapped.
unsafe impl GpuMemOps for Registered {
    unsafe fn map(
        &self,
        dev: *mut bindings::device,
        sg: *mut bindings::scatterlist,
        n: u32,
        direction: Direction,
    ) -> c_int {
        // SAFETY: By the contract of this function.
        unsafe { bindings::ro2ib_lnet_gpu_map_sg(dev, sg, n, writes(direction)) }
    }

    unsafe fn unmap(
        &self,
        dev: *mut bindings::device,
        sg: *mut bindings::scatterlist,
        n: u32,
        direction: Direction,
    ) {
        // SAFETY: By the contract of this function.
        unsafe { bindings::ro2ib_lnet_gpu_unmap_sg(dev, sg, n, writes(direction)) }
    }

    unsafe fn has(&self, page: *mut bindings::page) -> bool {
        // SAFETY: By the contract of this function.
        unsafe { bindings::ro2ib_lnet_gpu_has(page) }
    }
}

fn writes(direction: Direction) -> bool {
    direction == Direction::FromDevice
}

/// What pages of LNet are: `gpu` is what LNet says of their memory descriptor.
pub(super) fn mem_kind(gpu: bool) -> MemKind {
    if gpu {
        MemKind::Gpu(&Registered)
    } else {
        MemKind::Host
    }
}
