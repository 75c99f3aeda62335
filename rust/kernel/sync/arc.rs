// SPDX-License-Identifier: GPL-2.0

//! A value with counted references.
//!
//! Unlike the one of the standard library it has no weak references, its value is pinned, and its
//! count saturates as a `refcount_t` does: past the limit the value is leaked, never freed too early.

use core::{
    fmt,
    marker::PhantomData,
    mem::{
        offset_of,
        ManuallyDrop,
        MaybeUninit, //
    },
    ops::{
        Deref,
        DerefMut, //
    },
    pin::Pin,
    ptr::NonNull,
    sync::atomic::{
        fence,
        AtomicI32,
        Ordering, //
    }, //
};

use pin_init::{
    Init,
    PinInit, //
};

use crate::{
    alloc::{
        AllocError,
        Flags,
        KBox, //
    },
    ffi::c_void,
    init::InPlaceInit,
    types::ForeignOwnable, //
};

/// A count that saturates: the rules of `include/linux/refcount.h`, with the same orders.
struct Count(AtomicI32);

impl Count {
    /// In the middle of the negative half: neither a few more nor a few less leave it.
    const SATURATED: i32 = i32::MIN / 2;

    const fn one() -> Self {
        Self(AtomicI32::new(1))
    }

    #[inline(always)]
    fn inc(&self) {
        // The caller has a reference already, so no ordering is needed.
        let old = self.0.fetch_add(1, Ordering::Relaxed);

        if old <= 0 || old == i32::MAX {
            self.saturate();
        }
    }

    /// Drops one reference. Returns whether it was the last one.
    #[inline(always)]
    fn dec_and_test(&self) -> bool {
        let old = self.0.fetch_sub(1, Ordering::Release);

        if old == 1 {
            // All accesses of other owners come before the drop of the value.
            fence(Ordering::Acquire);
            return true;
        }
        if old <= 0 {
            self.saturate();
        }
        false
    }

    #[cold]
    fn saturate(&self) {
        self.0.store(Self::SATURATED, Ordering::Relaxed);
    }
}

#[repr(C)]
struct ArcInner<T> {
    count: Count,
    data: T,
}

/// A counted reference.
///
/// # Invariants
///
/// It owns one count of the `ArcInner` that `ptr` points to, which was allocated as a [`KBox`], and
/// whose value does not move.
#[repr(transparent)]
pub struct Arc<T> {
    ptr: NonNull<ArcInner<T>>,
    _p: PhantomData<ArcInner<T>>,
}

// SAFETY: It shares a `T`, and may be the one to drop it.
unsafe impl<T: Sync + Send> Send for Arc<T> {}
// SAFETY: As above; a shared one can be cloned.
unsafe impl<T: Sync + Send> Sync for Arc<T> {}

// The pointer may move even if the value may not.
impl<T> Unpin for Arc<T> {}

impl<T> Arc<T> {
    /// Allocates a value with one reference.
    pub fn new(contents: T, flags: Flags) -> Result<Self, AllocError> {
        let inner = KBox::new(
            ArcInner {
                count: Count::one(),
                data: contents,
            },
            flags,
        )?;

        // SAFETY: The one count is handed over.
        Ok(unsafe { Self::from_inner(NonNull::from(KBox::leak(inner))) })
    }

    /// Creates a reference that takes over a count of the caller.
    ///
    /// # Safety
    ///
    /// The caller owns a count, and gives it up.
    unsafe fn from_inner(ptr: NonNull<ArcInner<T>>) -> Self {
        // INVARIANT: By the contract of this function.
        Self {
            ptr,
            _p: PhantomData,
        }
    }

    /// Returns the `ArcInner` of a value.
    ///
    /// # Safety
    ///
    /// `ptr` comes from [`Self::as_ptr`] or [`Self::into_raw`].
    unsafe fn inner_of(ptr: *const T) -> NonNull<ArcInner<T>> {
        // SAFETY: It points to the field `data` of an `ArcInner`.
        unsafe {
            NonNull::new_unchecked(
                ptr.byte_sub(offset_of!(ArcInner<T>, data))
                    .cast::<ArcInner<T>>()
                    .cast_mut(),
            )
        }
    }

    #[inline(always)]
    fn count(&self) -> &Count {
        // SAFETY: By the type invariant.
        unsafe { &(*self.ptr.as_ptr()).count }
    }

    /// Returns the pointer to the value.
    pub fn as_ptr(this: &Self) -> *const T {
        // SAFETY: By the type invariant.
        unsafe { &raw const (*this.ptr.as_ptr()).data }
    }

    /// Gives the count up; [`Self::from_raw`] takes it back.
    pub fn into_raw(self) -> *const T {
        Self::as_ptr(&ManuallyDrop::new(self))
    }

    /// Takes a count over.
    ///
    /// # Safety
    ///
    /// `ptr` comes from [`Self::into_raw`] (or, with a count of its own, [`Self::as_ptr`]), and each
    /// call takes one count.
    pub unsafe fn from_raw(ptr: *const T) -> Self {
        // SAFETY: By the contract of this function.
        unsafe { Self::from_inner(Self::inner_of(ptr)) }
    }

    /// Returns a borrow.
    pub fn as_arc_borrow(&self) -> ArcBorrow<'_, T> {
        // INVARIANT: `self` keeps the count during the borrow.
        ArcBorrow {
            inner: self.ptr,
            _p: PhantomData,
        }
    }

    /// Returns whether both are the same value.
    pub fn ptr_eq(this: &Self, other: &Self) -> bool {
        this.ptr == other.ptr
    }

    /// Returns the value if this is the last reference; otherwise drops the reference.
    pub fn into_unique_or_drop(this: Self) -> Option<Pin<UniqueArc<T>>> {
        let this = ManuallyDrop::new(this);

        if !this.count().dec_and_test() {
            return None;
        }
        // No other code has a pointer to it.
        this.count().0.store(1, Ordering::Relaxed);
        // INVARIANT: The only count. It has been pinned before, so it stays so.
        // SAFETY: As it is returned as pinned.
        Some(unsafe {
            Pin::new_unchecked(UniqueArc {
                inner: ManuallyDrop::into_inner(this),
            })
        })
    }
}

impl<T> Arc<T> {
    fn in_place<E>(flags: Flags, init: impl FnOnce(*mut T) -> Result<(), E>) -> Result<Self, E>
    where
        E: From<AllocError>,
    {
        let inner = KBox::<ArcInner<T>>::new_uninit(flags)?;
        let inner = KBox::into_raw(inner).cast::<ArcInner<T>>();

        // Field by field: the value may be too large for the stack.
        //
        // SAFETY: The memory is ours, and has room for all of it.
        let slot = unsafe {
            (&raw mut (*inner).count).write(Count::one());
            &raw mut (*inner).data
        };
        if let Err(e) = init(slot) {
            // SAFETY: It comes from `into_raw`; the value is not there, only memory is freed.
            drop(unsafe { KBox::<MaybeUninit<ArcInner<T>>>::from_raw(inner.cast()) });
            return Err(e);
        }
        // SAFETY: All is there; the one count is handed over.
        Ok(unsafe { Self::from_inner(NonNull::new_unchecked(inner)) })
    }
}

impl<T> InPlaceInit<T> for Arc<T> {
    type PinnedSelf = Self;

    #[inline]
    fn try_pin_init<E>(init: impl PinInit<T, E>, flags: Flags) -> Result<Self, E>
    where
        E: From<AllocError>,
    {
        // SAFETY: The slot is valid, not used after an error, and its value never moves.
        Self::in_place(flags, |slot| unsafe { init.__pinned_init(slot) })
    }

    #[inline]
    fn try_init<E>(init: impl Init<T, E>, flags: Flags) -> Result<Self, E>
    where
        E: From<AllocError>,
    {
        // SAFETY: As above.
        Self::in_place(flags, |slot| unsafe { init.__init(slot) })
    }
}

impl<T> Deref for Arc<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: By the type invariant.
        unsafe { &(*self.ptr.as_ptr()).data }
    }
}

impl<T> AsRef<T> for Arc<T> {
    fn as_ref(&self) -> &T {
        self
    }
}

impl<T> Clone for Arc<T> {
    #[inline]
    fn clone(&self) -> Self {
        self.count().inc();
        // SAFETY: That is the count.
        unsafe { Self::from_inner(self.ptr) }
    }
}

impl<T> Drop for Arc<T> {
    #[inline]
    fn drop(&mut self) {
        if self.count().dec_and_test() {
            // SAFETY: It was allocated as a `KBox`, and there is no other reference.
            drop(unsafe { KBox::from_raw(self.ptr.as_ptr()) });
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for Arc<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

// SAFETY: The pointer is that of a valid `ArcInner<T>`.
unsafe impl<T: 'static> ForeignOwnable for Arc<T> {
    const FOREIGN_ALIGN: usize = align_of::<ArcInner<T>>();
    type Borrowed<'a> = ArcBorrow<'a, T>;
    type BorrowedMut<'a> = ArcBorrow<'a, T>;

    fn into_foreign(self) -> *mut c_void {
        ManuallyDrop::new(self).ptr.as_ptr().cast()
    }

    unsafe fn from_foreign(ptr: *mut c_void) -> Self {
        // SAFETY: It comes from `into_foreign`, whose count is handed over.
        unsafe { Self::from_inner(NonNull::new_unchecked(ptr.cast())) }
    }

    unsafe fn borrow<'a>(ptr: *mut c_void) -> ArcBorrow<'a, T> {
        // INVARIANT: The foreign count is there during `'a`.
        ArcBorrow {
            // SAFETY: `into_foreign` never returns NULL.
            inner: unsafe { NonNull::new_unchecked(ptr.cast()) },
            _p: PhantomData,
        }
    }

    unsafe fn borrow_mut<'a>(ptr: *mut c_void) -> ArcBorrow<'a, T> {
        // SAFETY: By the contract of this function, which is stricter.
        unsafe { <Self as ForeignOwnable>::borrow(ptr) }
    }
}

/// A borrow of an [`Arc`], from which an [`Arc`] can be made.
///
/// # Invariants
///
/// There is a count of `inner` during `'a`.
#[repr(transparent)]
pub struct ArcBorrow<'a, T> {
    inner: NonNull<ArcInner<T>>,
    _p: PhantomData<&'a ArcInner<T>>,
}

// SAFETY: A shared reference, from which a counted one can be made.
unsafe impl<T: Sync + Send> Send for ArcBorrow<'_, T> {}
// SAFETY: As above.
unsafe impl<T: Sync + Send> Sync for ArcBorrow<'_, T> {}

impl<T> Clone for ArcBorrow<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for ArcBorrow<'_, T> {}

impl<T> ArcBorrow<'_, T> {
    /// Borrows what was given up by [`Arc::into_raw`].
    ///
    /// # Safety
    ///
    /// `ptr` comes from [`Arc::into_raw`] or [`Arc::as_ptr`], and there is a count during the borrow.
    pub unsafe fn from_raw(ptr: *const T) -> Self {
        // INVARIANT: By the contract of this function.
        Self {
            // SAFETY: As above.
            inner: unsafe { Arc::inner_of(ptr) },
            _p: PhantomData,
        }
    }
}

impl<T> From<ArcBorrow<'_, T>> for Arc<T> {
    fn from(b: ArcBorrow<'_, T>) -> Self {
        // SAFETY: It is cloned, and never dropped, so no count is taken.
        let borrowed = ManuallyDrop::new(unsafe { Self::from_inner(b.inner) });

        (*borrowed).clone()
    }
}

impl<T> Deref for ArcBorrow<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: By the type invariant.
        unsafe { &(*self.inner.as_ptr()).data }
    }
}

/// The only reference to a value.
///
/// # Invariants
///
/// The count is one.
pub struct UniqueArc<T> {
    inner: Arc<T>,
}

impl<T> UniqueArc<T> {
    /// Allocates a value.
    pub fn new(value: T, flags: Flags) -> Result<Self, AllocError> {
        // INVARIANT: No other code has a pointer to it.
        Ok(Self {
            inner: Arc::new(value, flags)?,
        })
    }

    /// Allocates memory for a value.
    pub fn new_uninit(flags: Flags) -> Result<UniqueArc<MaybeUninit<T>>, AllocError> {
        let inner = Arc::in_place(flags, |_: *mut MaybeUninit<T>| Ok::<_, AllocError>(()))?;

        // INVARIANT: No other code has a pointer to it.
        Ok(UniqueArc { inner })
    }
}

impl<T> UniqueArc<MaybeUninit<T>> {
    /// Stores the value.
    pub fn write(self, value: T) -> UniqueArc<T> {
        let mut this = self;

        (*this).write(value);
        let inner = Arc::into_raw(this.inner).cast::<T>();

        // INVARIANT: As before.
        UniqueArc {
            // SAFETY: It comes from `into_raw`, and the value is there now: both types have the same layout.
            inner: unsafe { Arc::from_raw(inner) },
        }
    }
}

impl<T> From<UniqueArc<T>> for Arc<T> {
    fn from(item: UniqueArc<T>) -> Self {
        item.inner
    }
}

impl<T> From<Pin<UniqueArc<T>>> for Arc<T> {
    fn from(item: Pin<UniqueArc<T>>) -> Self {
        // SAFETY: The value of an `Arc` is pinned, too.
        unsafe { Pin::into_inner_unchecked(item).inner }
    }
}

impl<T> Deref for UniqueArc<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> DerefMut for UniqueArc<T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: By the type invariant this is the only reference.
        unsafe { &mut (*self.inner.ptr.as_ptr()).data }
    }
}
