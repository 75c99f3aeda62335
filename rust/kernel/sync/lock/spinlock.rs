// SPDX-License-Identifier: GPL-2.0

//! A spin lock (`spinlock_t`). The holder must not sleep; for data that only one kind of context uses.
//!
//! C header: `include/linux/spinlock.h`.

use super::Backend;
use crate::{
    bindings,
    ffi::c_char, //
};

/// A spin lock (`spinlock_t`). The holder must not sleep; for data that only one kind of context uses.
pub type SpinLock<T> = super::Lock<T, SpinLockBackend>;

/// A [`super::Guard`] of a [`SpinLock`].
pub type SpinLockGuard<'a, T> = super::Guard<'a, T, SpinLockBackend>;

/// The [`Backend`] of [`SpinLock`].
pub struct SpinLockBackend;

// SAFETY: C's lock excludes others.
unsafe impl Backend for SpinLockBackend {
    type State = bindings::spinlock_t;
    type GuardState = ();

    #[inline]
    unsafe fn init(ptr: *mut Self::State, name: *const c_char, key: *mut bindings::lock_class_key) {
        // SAFETY: By the contract of this function.
        unsafe { bindings::ro2ibk_spin_lock_init(ptr, name, key) }
    }

    #[inline]
    unsafe fn lock(ptr: *mut Self::State) {
        // SAFETY: By the contract of this function.
        unsafe { bindings::ro2ibk_spin_lock(ptr) }
    }

    #[inline]
    unsafe fn try_lock(ptr: *mut Self::State) -> Option<()> {
        // SAFETY: By the contract of this function.
        unsafe { bindings::ro2ibk_spin_trylock(ptr) }.then_some(())
    }

    #[inline]
    unsafe fn unlock(ptr: *mut Self::State, _guard_state: &()) {
        // SAFETY: By the contract of this function.
        unsafe { bindings::ro2ibk_spin_unlock(ptr) }
    }

    #[inline]
    unsafe fn assert_is_held(_ptr: *mut Self::State) {
        // Without lockdep there is nothing to ask, and a call would cost as much as the lock.
        #[cfg(CONFIG_LOCKDEP)]
        // SAFETY: By the contract of this function.
        unsafe {
            bindings::ro2ibk_spin_assert_held(_ptr)
        }
    }
}

/// An initialiser of a [`SpinLock`] with a lock class of its own.
#[macro_export]
macro_rules! new_spinlock {
    ($inner:expr $(, $name:literal)? $(,)?) => {
        $crate::sync::SpinLock::new(
            $inner,
            $crate::optional_name!($($name)?),
            $crate::static_lock_class!(),
        )
    };
}
