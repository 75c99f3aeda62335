// SPDX-License-Identifier: GPL-2.0

//! A mutex (`struct mutex`). Process context; may sleep.
//!
//! C header: `include/linux/mutex.h`.

use super::Backend;
use crate::{
    bindings,
    ffi::c_char, //
};

/// A mutex (`struct mutex`). Process context; may sleep.
pub type Mutex<T> = super::Lock<T, MutexBackend>;

/// A [`super::Guard`] of a [`Mutex`].
pub type MutexGuard<'a, T> = super::Guard<'a, T, MutexBackend>;

/// The [`Backend`] of [`Mutex`].
pub struct MutexBackend;

// SAFETY: C's lock excludes others.
unsafe impl Backend for MutexBackend {
    type State = bindings::mutex;
    type GuardState = ();

    #[inline]
    unsafe fn init(ptr: *mut Self::State, name: *const c_char, key: *mut bindings::lock_class_key) {
        // SAFETY: By the contract of this function.
        unsafe { bindings::ro2ibk_mutex_lock_init(ptr, name, key) }
    }

    #[inline]
    unsafe fn lock(ptr: *mut Self::State) {
        // SAFETY: By the contract of this function.
        unsafe { bindings::ro2ibk_mutex_lock(ptr) }
    }

    #[inline]
    unsafe fn try_lock(ptr: *mut Self::State) -> Option<()> {
        // SAFETY: By the contract of this function.
        unsafe { bindings::ro2ibk_mutex_trylock(ptr) }.then_some(())
    }

    #[inline]
    unsafe fn unlock(ptr: *mut Self::State, _guard_state: &()) {
        // SAFETY: By the contract of this function.
        unsafe { bindings::ro2ibk_mutex_unlock(ptr) }
    }

    #[inline]
    unsafe fn assert_is_held(_ptr: *mut Self::State) {
        // Without lockdep there is nothing to ask, and a call would cost as much as the lock.
        #[cfg(CONFIG_LOCKDEP)]
        // SAFETY: By the contract of this function.
        unsafe {
            bindings::ro2ibk_mutex_assert_held(_ptr)
        }
    }
}

/// An initialiser of a [`Mutex`] with a lock class of its own.
#[macro_export]
macro_rules! new_mutex {
    ($inner:expr $(, $name:literal)? $(,)?) => {
        $crate::sync::Mutex::new(
            $inner,
            $crate::optional_name!($($name)?),
            $crate::static_lock_class!(),
        )
    };
}
