// SPDX-License-Identifier: GPL-2.0

//! Memory of GPUs, through the provider that is registered with LNet: nvidia-fs.

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

/// Provider that is registered with LNet. LNet counts its mappings, and waits for them before the provider can
/// unregister.
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

/// Returns the kind of LNet's pages; `gpu` is LNet's flag of their memory descriptor.
pub(super) fn mem_kind(gpu: bool) -> MemKind {
    if gpu {
        MemKind::Gpu(&Registered)
    } else {
        MemKind::Host
    }
}
