// SPDX-License-Identifier: GPL-2.0

//! Whether both compilers see the same structures.
//!
//! The kernel was built by one compiler, and bindgen reads its headers with another: flags that only
//! one of them knows, or a defect of either, could give a structure another layout. Rust would then
//! write over what is beside it. So C tells the size of each structure that both look into, and the
//! module does not load if that is not what the bindings say.
//!
//! Process context, at load.

use kernel::prelude::*;

use crate::bindings;

macro_rules! sizes {
    ($($name:ident)*) => {
        [$((stringify!($name), size_of::<bindings::$name>())),*]
    };
}

/// Compares the sizes.
///
/// # Errors
///
/// `ENOEXEC`: they differ, and the log says where.
pub(crate) fn check() -> Result {
    // The order of `ro2ib_layout` in `ro2iblnd_helpers.h`.
    let ours = sizes! {
        ib_send_wr
        ib_rdma_wr
        ib_reg_wr
        ib_recv_wr
        ib_sge
        ib_wc
        ib_cqe
        ib_event
        ib_event_handler
        work_struct
        delayed_work
        spinlock_t
        mutex
        completion
        bio_vec
        sg_table
    };
    // SAFETY: No preconditions; it is static.
    let theirs = unsafe { &*bindings::ro2ib_layout() };
    let mut same = ours.len() == theirs.size.len();

    for ((name, size), c) in ours.iter().zip(theirs.size.iter()) {
        if u32::try_from(*size) != Ok(*c) {
            pr_err!("struct {name} has {c} bytes, but {size} in the bindings; build again with another bindgen\n");
            same = false;
        }
    }
    if same {
        Ok(())
    } else {
        Err(ENOEXEC)
    }
}
