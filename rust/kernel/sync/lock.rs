// SPDX-License-Identifier: GPL-2.0

//! A lock around a value, whatever kind of lock it is.

use core::{
    cell::UnsafeCell,
    ffi::CStr,
    marker::PhantomPinned,
    ops::{
        Deref,
        DerefMut, //
    },
    pin::Pin, //
};

use pin_init::{
    pin_data,
    pin_init,
    PinInit,
    Wrapper as _, //
};

use super::class::LockClassKey;
use crate::{
    bindings,
    ffi::c_char,
    str::CStrExt as _,
    types::{
        NotThreadSafe,
        Opaque, //
    }, //
};

pub mod mutex;
pub mod spinlock;

/// A kind of lock.
///
/// # Safety
///
/// Between [`Self::lock`] and [`Self::unlock`] of a state, no other caller
/// returns from [`Self::lock`] of that state.
pub unsafe trait Backend {
    /// State of a lock in C.
    type State;
    /// State between locking and unlocking.
    type GuardState;

    /// Initialises a lock.
    ///
    /// # Safety
    ///
    /// `ptr` is valid for writes, and does not move; `name` and `key` are valid as long as it is.
    unsafe fn init(ptr: *mut Self::State, name: *const c_char, key: *mut bindings::lock_class_key);

    /// Takes it.
    ///
    /// # Safety
    ///
    /// It is initialised.
    #[must_use]
    unsafe fn lock(ptr: *mut Self::State) -> Self::GuardState;

    /// Takes it if it is free.
    ///
    /// # Safety
    ///
    /// It is initialised.
    unsafe fn try_lock(ptr: *mut Self::State) -> Option<Self::GuardState>;

    /// Gives it back.
    ///
    /// # Safety
    ///
    /// The caller has it.
    unsafe fn unlock(ptr: *mut Self::State, guard_state: &Self::GuardState);

    /// Tells lockdep that it should be held.
    ///
    /// # Safety
    ///
    /// It is initialised.
    unsafe fn assert_is_held(ptr: *mut Self::State);
}

/// A value that only the holder of a lock can see.
#[repr(C)]
#[pin_data]
pub struct Lock<T, B: Backend> {
    #[pin]
    state: Opaque<B::State>,
    #[pin]
    _pin: PhantomPinned,
    #[pin]
    data: UnsafeCell<T>,
}

// SAFETY: It can go where its value can.
unsafe impl<T: Send, B: Backend> Send for Lock<T, B> {}
// SAFETY: Only one at a time sees the value.
unsafe impl<T: Send, B: Backend> Sync for Lock<T, B> {}

impl<T, B: Backend> Lock<T, B> {
    /// Returns an initialiser; `name` and `key` are lockdep's.
    pub fn new(
        t: impl PinInit<T>,
        name: &'static CStr,
        key: Pin<&'static LockClassKey>,
    ) -> impl PinInit<Self> {
        pin_init!(Self {
            data <- UnsafeCell::pin_init(t),
            _pin: PhantomPinned,
            state <- Opaque::ffi_init(|slot| {
                // SAFETY: `slot` is valid and pinned; `name` and `key` are for ever.
                unsafe { B::init(slot, name.as_char_ptr(), key.as_ptr()) }
            }),
        })
    }

    /// Takes the lock.
    #[inline]
    pub fn lock(&self) -> Guard<'_, T, B> {
        // SAFETY: It can only be made initialised.
        let state = unsafe { B::lock(self.state.get()) };

        // SAFETY: It has just been taken.
        unsafe { Guard::new(self, state) }
    }

    /// Takes the lock if it is free.
    #[must_use = "if unused, the lock will be immediately unlocked"]
    #[inline]
    pub fn try_lock(&self) -> Option<Guard<'_, T, B>> {
        // SAFETY: As above.
        unsafe { B::try_lock(self.state.get()).map(|state| Guard::new(self, state)) }
    }
}

/// The lock, held, and the way to its value.
///
/// # Invariants
///
/// The lock is held.
#[must_use = "the lock unlocks immediately when the guard is unused"]
pub struct Guard<'a, T, B: Backend> {
    lock: &'a Lock<T, B>,
    state: B::GuardState,
    _not_send: NotThreadSafe,
}

// SAFETY: A shared guard gives a shared value.
unsafe impl<T: Sync, B: Backend> Sync for Guard<'_, T, B> {}

impl<'a, T, B: Backend> Guard<'a, T, B> {
    /// Creates the guard of a held lock.
    ///
    /// # Safety
    ///
    /// The caller holds the lock, and hands it over.
    #[inline]
    pub unsafe fn new(lock: &'a Lock<T, B>, state: B::GuardState) -> Self {
        // SAFETY: It is held, so it is initialised.
        unsafe { B::assert_is_held(lock.state.get()) };
        // INVARIANT: By the contract of this function.
        Self {
            lock,
            state,
            _not_send: NotThreadSafe,
        }
    }

    /// Returns the value, pinned.
    pub fn as_mut(&mut self) -> Pin<&mut T> {
        // SAFETY: The lock is held; the value is pinned as the lock is.
        unsafe { Pin::new_unchecked(&mut *self.lock.data.get()) }
    }
}

impl<T, B: Backend> Deref for Guard<'_, T, B> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: The lock is held.
        unsafe { &*self.lock.data.get() }
    }
}

impl<T: Unpin, B: Backend> DerefMut for Guard<'_, T, B> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: The lock is held.
        unsafe { &mut *self.lock.data.get() }
    }
}

impl<T, B: Backend> Drop for Guard<'_, T, B> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: The lock is held.
        unsafe { B::unlock(self.lock.state.get(), &self.state) };
    }
}
