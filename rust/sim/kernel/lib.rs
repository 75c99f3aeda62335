// SPDX-License-Identifier: GPL-2.0

//! Third `kernel` crate: the files of `rust/kernel/`, compiled for a host.
//!
//! Three files are missing: the panic handler (the host has one), KUnit, and the module loader.
//! `simc` has the functions that are C in the kernel, under the same names.

#![allow(missing_docs)]

// The names that macros write out, here and in the driver, mean this crate in both places.
extern crate self as kernel;
// Defines the functions that are only declared here.
extern crate simc;

#[doc(hidden)]
pub use ro2iblnd_macros as macros;

pub mod module;

#[path = "../../kernel"]
mod own {
    pub mod alloc;
    pub mod bindings;
    pub mod error;
    pub mod ffi;
    pub mod init;
    pub mod page;
    pub mod prelude;
    pub mod print;
    pub mod str;
    pub mod sync;
    pub mod task;
    pub mod time;
    pub mod types;
    pub mod workqueue;
}

pub use module::{
    Module,
    ThisModule, //
};
pub use own::{
    alloc,
    bindings,
    error,
    ffi,
    init,
    page,
    prelude,
    print,
    str,
    sync,
    task,
    time,
    types,
    workqueue, //
};

/// Marks an atomic operation with an ordering: another task may run here.
pub fn point() {
    simc::sched::point_if_any();
}

/// Formatting, as in `core`.
pub mod fmt {
    pub use core::fmt::*;
}
/// Counterpart of the in-tree crate's macro: [`core::format_args!`].
#[macro_export]
macro_rules! fmt {
    ($($args:tt)*) => {
        ::core::format_args!($($args)*)
    };
}

/// Pointer to the structure that contains the field that a pointer refers to.
///
/// The expression is of type `*const` or `*mut`, as the pointer is. It must be in an `unsafe`
/// block: the pointer must point at that field of a live structure.
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

/// Compiles only if both pointers have the same type; for [`container_of!`].
#[doc(hidden)]
pub fn same_pointee<T>(_: *const T, _: *const T) {}
