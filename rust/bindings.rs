// SPDX-License-Identifier: GPL-2.0

//! Raw bindings that bindgen generates from `include/ro2iblnd_bindings.h`.
//!
//! Types that the kernel crate has are its own, so that values can be passed between the two. The types below are only
//! used behind pointers. Only `rdma/` and `lnet/` may use this module.

#![allow(
    clippy::all,
    dead_code,
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unreachable_pub,
    unsafe_op_in_unsafe_fn,
    improper_ctypes,
    clippy::as_underscore,
    clippy::cast_lossless,
    clippy::ptr_as_ptr,
    clippy::ref_as_ptr,
    clippy::undocumented_unsafe_blocks
)]

use pin_init::MaybeZeroable;

pub(crate) use kernel::bindings::*;

/// Declares C structures of which only the address matters here.
macro_rules! opaque_structs {
    ($($name:ident)*) => {$(
        #[repr(C)]
        pub struct $name {
            _address_only: [u8; 0],
        }
    )*};
}

opaque_structs! {
    ib_ah
    ib_cq
    ib_device
    ib_mr
    ib_pd
    ib_qp
    ib_srq
    ib_wq
    lnet_msg
    rdma_cm_event
    rdma_cm_id
}

include!(concat!(env!("RO2IB_OBJ"), "/rust/bindings_generated.rs"));
