// SPDX-License-Identifier: GPL-2.0

//! Locks and waiting that the kernel crate does not have.
//!
//! C headers: `include/linux/spinlock.h`, `include/linux/completion.h`.

use kernel::{
    ffi,
    prelude::*,
    sync::lock::{
        Backend,
        Lock, //
    },
    types::Opaque, //
};

use crate::bindings;

/// A spin lock taken with bottom halves disabled.
///
/// For data that process context shares with softirqs (completion handlers).
/// Not for hard interrupts. The holder must not sleep.
pub(crate) type SpinLockBh<T> = Lock<T, BhBackend>;

/// Creates a [`SpinLockBh`] initialiser with a lock class of its own.
macro_rules! new_spinlock_bh {
    ($inner:expr $(, $name:literal)? $(,)?) => {
        $crate::rdma::sync::SpinLockBh::new(
            $inner,
            ::kernel::optional_name!($($name)?),
            ::kernel::static_lock_class!(),
        )
    };
}
pub(crate) use new_spinlock_bh;

/// The [`Backend`] of [`SpinLockBh`]: `spin_lock_bh()` and `spin_unlock_bh()`.
pub(crate) struct BhBackend;

// SAFETY: `spin_lock_bh()` excludes all other holders: tasks, and softirqs on any CPU, also where
// both are threads (PREEMPT_RT). `relock` is the default, which calls `lock`.
unsafe impl Backend for BhBackend {
    type State = bindings::spinlock_t;
    type GuardState = ();

    #[inline]
    unsafe fn init(
        ptr: *mut Self::State,
        name: *const ffi::c_char,
        key: *mut bindings::lock_class_key,
    ) {
        // SAFETY: The caller guarantees that `ptr` is valid for writes, and that `name` and `key`
        // are valid for ever.
        unsafe { bindings::__spin_lock_init(ptr, name, key) }
    }

    #[inline]
    unsafe fn lock(ptr: *mut Self::State) -> Self::GuardState {
        // SAFETY: The caller guarantees that `ptr` is valid and initialised.
        unsafe { bindings::ro2ib_spin_lock_bh(ptr) }
    }

    #[inline]
    unsafe fn try_lock(ptr: *mut Self::State) -> Option<Self::GuardState> {
        // SAFETY: The caller guarantees that `ptr` is valid and initialised.
        let taken = unsafe { bindings::ro2ib_spin_trylock_bh(ptr) };

        (taken != 0).then_some(())
    }

    #[inline]
    unsafe fn unlock(ptr: *mut Self::State, _guard_state: &Self::GuardState) {
        // SAFETY: The caller guarantees that `ptr` is valid and that it holds the lock.
        unsafe { bindings::ro2ib_spin_unlock_bh(ptr) }
    }

    #[inline]
    unsafe fn assert_is_held(_ptr: *mut Self::State) {
        // Without lockdep there is nothing to ask, and a call is what a lock costs.
        #[cfg(CONFIG_LOCKDEP)]
        // SAFETY: The caller guarantees that `ptr` is valid and initialised.
        unsafe {
            bindings::ro2ib_spin_assert_held(_ptr)
        }
    }
}

/// One-time event to wait for, with an optional time limit (`struct completion`).
///
/// # Invariants
///
/// `inner` is an initialised `struct completion`.
#[pin_data]
pub(crate) struct Completion {
    #[pin]
    inner: Opaque<bindings::completion>,
}

// SAFETY: A `struct completion` may be used and freed by any thread.
unsafe impl Send for Completion {}
// SAFETY: All operations on a `struct completion` lock it.
unsafe impl Sync for Completion {}

impl Completion {
    /// Creates a completion that is not complete.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            // INVARIANT: `init_completion()` initialises it.
            inner <- Opaque::ffi_init(|slot| {
                // SAFETY: `slot` is valid for writes.
                unsafe { bindings::init_completion(slot) }
            }),
        })
    }

    /// Completes it, for all current and future waiters. Any context.
    pub(crate) fn complete_all(&self) {
        // SAFETY: By the type invariant.
        unsafe { bindings::complete_all(self.inner.get()) }
    }

    /// Waits until it is complete. Process context.
    #[cfg(ro2iblnd_kunit)]
    pub(crate) fn wait(&self) {
        // SAFETY: By the type invariant.
        unsafe { bindings::wait_for_completion(self.inner.get()) }
    }

    /// Waits until it is complete, for at most `ms` milliseconds. Returns whether it is complete. Process context.
    pub(crate) fn wait_ms(&self, ms: u32) -> bool {
        let jiffies = kernel::time::msecs_to_jiffies(ms);

        // SAFETY: By the type invariant.
        unsafe { bindings::wait_for_completion_timeout(self.inner.get(), jiffies) != 0 }
    }
}
