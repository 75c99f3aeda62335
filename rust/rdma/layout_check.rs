// SPDX-License-Identifier: GPL-2.0

//! Comparison of the layouts that the two compilers give to the same structures.
//!
//! One compiler built the kernel, and bindgen reads the kernel's headers with another. A flag that only one of them
//! knows, or a defect of either, can give a structure another layout. Rust would then write over what is beside it, or
//! read another field. So C reports the size of each structure that both sides use, and the offsets of the fields, and
//! the module does not load if the bindings have others.
//!
//! Process context, at load.

use core::mem::offset_of;

use kernel::prelude::*;

use crate::bindings;

/// A structure, a field of it or "", and the size or offset in bytes that bindgen found.
type Found = (&'static str, &'static str, usize);

macro_rules! sizes {
    ($($name:ident)*) => {
        &[$((stringify!($name), "", size_of::<bindings::$name>())),*]
    };
}

macro_rules! offsets {
    ($($name:ident: $($field:ident)*;)*) => {
        &[$($((stringify!($name), stringify!($field), offset_of!(bindings::$name, $field))),*),*]
    };
}

// Both in the order of `ro2ib_layout` in `rust/helpers/layout.c`.
const SIZES: &[Found] = sizes! {
    ib_send_wr
    ib_rdma_wr
    ib_reg_wr
    ib_recv_wr
    ib_sge
    ib_wc
    ib_event
    ib_event_handler
    work_struct
    delayed_work
    spinlock_t
    mutex
    completion
    bio_vec
    sg_table
    ro2ib_sg_list
    lock_class_key
    ro2ib_ni_cfg
    ro2ib_send_req
    ro2ib_recv_req
    ro2ib_lnd_ops
    ro2ib_tuning
};
// bindgen names the union of `wr_id` and `wr_cqe`.
const OFFSETS: &[Found] = offsets! {
    ib_wc: __bindgen_anon_1 status opcode vendor_err byte_len wc_flags;
    ib_send_wr: next __bindgen_anon_1 sg_list num_sge opcode send_flags ex;
    ib_rdma_wr: remote_addr rkey;
    ib_reg_wr: mr key access;
    ib_recv_wr: next __bindgen_anon_1 sg_list num_sge;
    ib_sge: addr length lkey;
    ib_event: event;
    sg_table: sgl nents;
    bio_vec: bv_page bv_len bv_offset;
    delayed_work: work;
};

/// Compares the layouts.
///
/// # Errors
///
/// `ENOEXEC` if they differ; the log names the structures.
pub(crate) fn check() -> Result {
    // SAFETY: No preconditions; it is static.
    let c = unsafe { &*bindings::ro2ib_layout() };

    if same(SIZES, &c.size) & same(OFFSETS, &c.offset) {
        Ok(())
    } else {
        pr_err!("the layout of structures differs: build again with another bindgen\n");
        Err(ENOEXEC)
    }
}

/// Returns whether the numbers of the bindings are those of C, and logs each that is not.
fn same(bindgen: &[Found], c: &[u32]) -> bool {
    let mut same = bindgen.len() == c.len();

    for ((name, field, bytes), c) in bindgen.iter().zip(c) {
        if u32::try_from(*bytes) != Ok(*c) {
            let of = if field.is_empty() {
                "size"
            } else {
                "offset of "
            };
            pr_err!("struct {name}: {of}{field} is {c} bytes, but {bytes} in the bindings\n");
            same = false;
        }
    }
    same
}
