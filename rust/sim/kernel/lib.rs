// SPDX-License-Identifier: GPL-2.0

//! The third `kernel` crate: that of `rust/kernel/`, file by file, on a host.
//!
//! Only three files of it are not here: what a panic does (the host has that), KUnit, and the module
//! loader. What C did there is `simc`, under the same names.

#![allow(missing_docs)]

// The names that macros write out, here and in the driver, mean this crate in both places.
extern crate self as kernel;
// Has the functions that are only declared here.
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

/// An atomic operation that orders something: another task may run here.
pub fn point() {
    simc::sched::point_if_any();
}

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
