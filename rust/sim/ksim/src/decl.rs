// SPDX-License-Identifier: GPL-2.0

//! Declarations that the driver is compiled with, so that both sides agree about every type.

#![allow(
    clippy::all,
    dead_code,
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unreachable_pub
)]

/// Counterpart of `kernel::bindings`.
pub mod k {
    use pin_init::MaybeZeroable;

    include!("../../decl/kernel.rs");
}

/// Counterpart of `crate::bindings` of the driver.
pub mod r {
    use pin_init::MaybeZeroable;

    use super::k::*;

    /// As in `rust/bindings.rs`.
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

    include!("../../decl/rdma.rs");
}
