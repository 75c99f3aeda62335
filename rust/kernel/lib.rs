// SPDX-License-Identifier: GPL-2.0

//! A `kernel` crate of our own, for kernels that were built without Rust.
//!
//! It offers the paths of the in-tree `kernel` crate (Linux 7.3, `rust/kernel/`) that the driver
//! uses, with the same names and the same meaning, and nothing else. The driver is compiled over
//! either of the two and cannot tell them apart; `Documentation/kernel-crate.md` says when which
//! one is taken, and why this one exists.
//!
//! It stands on three things:
//!
//! * `helpers.h` and `helpers.c`: plain C functions around what the kernel has as macros or
//!   static inlines, or under different names in different releases. Everything that drifts between
//!   kernels is there, found by probes and not by version numbers.
//! * [`bindings`]: what bindgen reads of that header, compiled for this very kernel.
//! * `pinned-init` from crates.io, under the name `pin_init`.
//!
//! Only symbols of C are imported, and two are exported (`init_module` and `cleanup_module`), so
//! that `CONFIG_MODVERSIONS` and module signing work as for a module written in C.
//!
//! # Differences that can be seen
//!
//! * `Arc` counts with atomics that are compiled in, and saturates as `refcount_t` does, but prints
//!   no warning when it does.
//! * A printed line is at most 512 bytes long.
//! * Arithmetic overflow is checked if `CONFIG_RUST_OVERFLOW_CHECKS` is set or there is no such
//!   option; a panic prints its message and kills the task by an invalid instruction.

#![no_std]
#![feature(arbitrary_self_types)]
#![deny(
    missing_docs,
    unsafe_op_in_unsafe_fn,
    clippy::undocumented_unsafe_blocks
)]

// The names that macros write out, here and in the driver, mean this crate in both places.
extern crate self as kernel;

#[doc(hidden)]
pub use ro2iblnd_macros as macros;

pub mod alloc;
pub mod bindings;
pub mod error;
pub mod ffi;
pub mod init;
#[cfg(CONFIG_KUNIT = "y")]
pub mod kunit;
pub mod module;
pub mod page;
mod panic;
pub mod prelude;
pub mod print;
pub mod str;
pub mod sync;
pub mod task;
pub mod time;
pub mod types;
pub mod workqueue;

pub use module::{
    Module,
    ThisModule, //
};

/// Formatting, as in `core`.
pub mod fmt {
    pub use core::fmt::*;
}

/// [`core::format_args!`] by the name of the in-tree crate.
#[macro_export]
macro_rules! fmt {
    ($($args:tt)*) => {
        ::core::format_args!($($args)*)
    };
}

/// The pointer to the structure that a pointer to one of its fields belongs to.
///
/// The expression is of type `*const` or `*mut`, as the pointer is. It must be in an `unsafe`
/// block: the pointer has to point at that field of a live structure.
#[macro_export]
macro_rules! container_of {
    ($field_ptr:expr, $Container:ty, $($fields:tt)*) => {{
        let offset: usize = ::core::mem::offset_of!($Container, $($fields)*);
        let field_ptr = $field_ptr;
        let container_ptr = field_ptr.byte_sub(offset).cast::<$Container>();

        // The field has the type that the pointer points to. Never called.
        #[allow(clippy::diverging_sub_expression, unreachable_code)]
        if false {
            let _ = |container: *const $Container| {
                let typed: *const _ = &raw const (*container).$($fields)*;
                $crate::same_pointee(typed, field_ptr as *const _);
            };
        }
        container_ptr
    }};
}

/// Compiles only if both point at the same type; for [`container_of!`].
#[doc(hidden)]
pub fn same_pointee<T>(_: *const T, _: *const T) {}
