// SPDX-License-Identifier: GPL-2.0

//! Raw bindings: what bindgen made of `bindings.h` for this kernel, and some names that the in-tree
//! crate has for the same things.

#![allow(
    unknown_lints,
    clippy::all,
    dead_code,
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unnecessary_transmutes,
    unsafe_op_in_unsafe_fn,
    improper_ctypes,
    clippy::undocumented_unsafe_blocks
)]

use pin_init::MaybeZeroable;

use crate::ffi;

include!(concat!(
    env!("RO2IB_OBJ"),
    "/rust/kernel/bindings_generated.rs"
));

type __kernel_size_t = usize;
type __kernel_ssize_t = isize;
type __kernel_ptrdiff_t = isize;

/// An anonymous enum before 6.5.
pub const wq_misc_consts_WORK_CPU_UNBOUND: ffi::c_uint =
    ro2ibk_const_RO2IBK_WORK_CPU_UNBOUND as ffi::c_uint;

/// Calls a macro or inline function of C.
///
/// # Safety
///
/// `lock` is valid for writes; `name` and `key` stay as long as it does.
#[inline]
pub unsafe fn __spin_lock_init(
    lock: *mut spinlock_t,
    name: *const ffi::c_char,
    key: *mut lock_class_key,
) {
    // SAFETY: By the contract of this function, which is that of C's.
    unsafe { ro2ibk_spin_lock_init(lock, name, key) }
}

/// Calls an inline function of C.
///
/// # Safety
///
/// `x` is valid for writes.
#[inline]
pub unsafe fn init_completion(x: *mut completion) {
    // SAFETY: By the contract of this function, which is that of C's.
    unsafe { ro2ibk_init_completion(x) }
}
