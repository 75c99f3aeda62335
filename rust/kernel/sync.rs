// SPDX-License-Identifier: GPL-2.0

//! Locks, counted references and atomics.

mod arc;
pub mod aref;
pub mod atomic;
mod class;
pub mod lock;

pub use self::{
    arc::{
        Arc,
        ArcBorrow,
        UniqueArc, //
    },
    class::LockClassKey,
    lock::{
        mutex::{
            Mutex,
            MutexGuard, //
        },
        spinlock::{
            SpinLock,
            SpinLockGuard, //
        }, //
    }, //
};

/// A [`LockClassKey`] of the place where this is written. All instances of a generic function share it.
#[macro_export]
macro_rules! static_lock_class {
    () => {{
        // SAFETY: A static is pinned, and never dropped.
        static CLASS: $crate::sync::LockClassKey =
            unsafe { $crate::sync::LockClassKey::new_static() };
        ::core::pin::Pin::static_ref(&CLASS)
    }};
}

/// The name given, or else the place where this is written.
#[macro_export]
macro_rules! optional_name {
    () => {
        $crate::c_str_of!(::core::concat!(::core::file!(), ":", ::core::line!()))
    };
    ($name:literal) => {
        $crate::c_str_of!($name)
    };
}

/// A string literal as a string of C.
#[doc(hidden)]
#[macro_export]
macro_rules! c_str_of {
    ($s:expr) => {
        const {
            match ::core::ffi::CStr::from_bytes_with_nul(::core::concat!($s, "\0").as_bytes()) {
                Ok(s) => s,
                Err(_) => panic!("NUL in a name"),
            }
        }
    };
}
