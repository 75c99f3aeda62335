// SPDX-License-Identifier: GPL-2.0

//! References to objects of C that count their users themselves.

use core::{
    marker::PhantomData,
    ops::Deref,
    ptr::NonNull, //
};

/// An object that counts its references.
///
/// # Safety
///
/// The object lives at least as long as there is a reference.
pub unsafe trait AlwaysRefCounted {
    /// Adds one reference.
    fn inc_ref(&self);

    /// Drops one reference.
    ///
    /// # Safety
    ///
    /// The caller owns a reference, and gives it up.
    unsafe fn dec_ref(obj: NonNull<Self>);
}

/// A counted reference.
///
/// # Invariants
///
/// It owns a reference on what `ptr` points to.
pub struct ARef<T: AlwaysRefCounted> {
    ptr: NonNull<T>,
    _p: PhantomData<T>,
}

// SAFETY: It shares a `T`, and may be the one to drop it.
unsafe impl<T: AlwaysRefCounted + Sync + Send> Send for ARef<T> {}
// SAFETY: As above; a shared one can be cloned.
unsafe impl<T: AlwaysRefCounted + Sync + Send> Sync for ARef<T> {}

// The pointer may move even if the object may not.
impl<T: AlwaysRefCounted> Unpin for ARef<T> {}

impl<T: AlwaysRefCounted> ARef<T> {
    /// Takes a reference over.
    ///
    /// # Safety
    ///
    /// The caller owns one, and gives it up.
    pub unsafe fn from_raw(ptr: NonNull<T>) -> Self {
        // INVARIANT: By the contract of this function.
        Self {
            ptr,
            _p: PhantomData,
        }
    }
}

impl<T: AlwaysRefCounted> Clone for ARef<T> {
    fn clone(&self) -> Self {
        self.inc_ref();
        // SAFETY: That is the reference.
        unsafe { Self::from_raw(self.ptr) }
    }
}

impl<T: AlwaysRefCounted> Deref for ARef<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: By the type invariant.
        unsafe { self.ptr.as_ref() }
    }
}

impl<T: AlwaysRefCounted> From<&T> for ARef<T> {
    fn from(b: &T) -> Self {
        b.inc_ref();
        // SAFETY: That is the reference.
        unsafe { Self::from_raw(NonNull::from(b)) }
    }
}

impl<T: AlwaysRefCounted> Drop for ARef<T> {
    fn drop(&mut self) {
        // SAFETY: By the type invariant.
        unsafe { T::dec_ref(self.ptr) };
    }
}
