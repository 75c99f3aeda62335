// SPDX-License-Identifier: GPL-2.0

//! A value of its own allocation.

use core::{
    alloc::Layout,
    fmt,
    marker::PhantomData,
    mem::{
        ManuallyDrop,
        MaybeUninit, //
    },
    ops::{
        Deref,
        DerefMut, //
    },
    pin::Pin,
    ptr::NonNull, //
};

use pin_init::{
    InPlaceWrite,
    Init,
    PinInit, //
};

use super::{
    allocator::{
        AllocError,
        Allocator,
        Kmalloc, //
    },
    flags::Flags, //
};
use crate::{
    ffi::c_void,
    init::InPlaceInit,
    types::ForeignOwnable, //
};

/// An allocated value.
///
/// # Invariants
///
/// `ptr` points to a valid `T`, in an allocation of `A` with the layout of that value, and has no
/// other owner.
#[repr(transparent)]
pub struct Box<T: ?Sized, A: Allocator> {
    ptr: NonNull<T>,
    _owns: PhantomData<T>,
    _from: PhantomData<A>,
}

/// A [`Box`] of `kmalloc()`ed memory.
pub type KBox<T> = Box<T, Kmalloc>;

// SAFETY: It owns its value.
unsafe impl<T: ?Sized + Send, A: Allocator> Send for Box<T, A> {}
// SAFETY: A shared box gives a shared value.
unsafe impl<T: ?Sized + Sync, A: Allocator> Sync for Box<T, A> {}

// The pointer may move even if the value may not.
impl<T: ?Sized, A: Allocator> Unpin for Box<T, A> {}

impl<T: ?Sized, A: Allocator> Box<T, A> {
    /// Makes a box of its pointer.
    ///
    /// # Safety
    ///
    /// It comes from [`Self::into_raw`], and is used only once.
    #[inline]
    pub unsafe fn from_raw(raw: *mut T) -> Self {
        Self {
            // INVARIANT: By the contract of this function.
            // SAFETY: A box's pointer is never NULL.
            ptr: unsafe { NonNull::new_unchecked(raw) },
            _owns: PhantomData,
            _from: PhantomData,
        }
    }

    /// Gives the pointer up; [`Self::from_raw`] takes it back.
    #[inline]
    pub fn into_raw(b: Self) -> *mut T {
        ManuallyDrop::new(b).ptr.as_ptr()
    }

    /// Gives the value up for good.
    #[inline]
    pub fn leak<'a>(b: Self) -> &'a mut T {
        // SAFETY: It stays valid for ever, because it is never freed.
        unsafe { &mut *Self::into_raw(b) }
    }

    /// Creates a box that does not move its value.
    #[inline]
    pub fn into_pin(this: Self) -> Pin<Self> {
        // SAFETY: The value is in an allocation of its own, and moves only through `into_inner`,
        // which a pinned box does not give.
        unsafe { Pin::new_unchecked(this) }
    }
}

impl<T, A: Allocator> Box<T, A> {
    /// Allocates, and moves `x` there.
    pub fn new(x: T, flags: Flags) -> Result<Self, AllocError> {
        Ok(Self::new_uninit(flags)?.put(x))
    }

    /// Allocates, without a value.
    pub fn new_uninit(flags: Flags) -> Result<Box<MaybeUninit<T>, A>, AllocError> {
        let ptr = A::alloc(Layout::new::<MaybeUninit<T>>(), flags)?;

        Ok(Box {
            // INVARIANT: Just allocated, and valid whatever is in it.
            ptr: ptr.cast(),
            _owns: PhantomData,
            _from: PhantomData,
        })
    }

    /// Moves the value out.
    pub fn into_inner(b: Self) -> T {
        let raw = Self::into_raw(b);
        // SAFETY: The box was valid, and is not used any more.
        let value = unsafe { raw.read() };
        // SAFETY: It comes from `into_raw`; without its value only the memory is left.
        drop(unsafe { Box::<MaybeUninit<T>, A>::from_raw(raw.cast()) });
        value
    }
}

impl<T, A: Allocator> Box<MaybeUninit<T>, A> {
    /// Declares that the value is there.
    ///
    /// # Safety
    ///
    /// It is.
    pub unsafe fn assume_init(self) -> Box<T, A> {
        let raw = Self::into_raw(self);

        // SAFETY: It comes from `into_raw`, and is valid by the contract of this function.
        unsafe { Box::from_raw(raw.cast()) }
    }

    /// Moves `value` there.
    pub fn write(boxed: Self, value: T) -> Box<T, A> {
        boxed.put(value)
    }

    fn put(mut self, value: T) -> Box<T, A> {
        (*self).write(value);
        // SAFETY: It has just been written.
        unsafe { self.assume_init() }
    }
}

impl<T, A: Allocator> InPlaceWrite<T> for Box<MaybeUninit<T>, A> {
    type Initialized = Box<T, A>;

    fn write_init<E>(mut self, init: impl Init<T, E>) -> Result<Self::Initialized, E> {
        // SAFETY: The slot is valid for writes; after an error only the memory is freed.
        unsafe { init.__init(self.as_mut_ptr())? };
        // SAFETY: It has been initialised.
        Ok(unsafe { self.assume_init() })
    }

    fn write_pin_init<E>(mut self, init: impl PinInit<T, E>) -> Result<Pin<Self::Initialized>, E> {
        // SAFETY: As above; the value does not move any more, as the box is pinned.
        unsafe { init.__pinned_init(self.as_mut_ptr())? };
        // SAFETY: It has been initialised.
        Ok(Box::into_pin(unsafe { self.assume_init() }))
    }
}

impl<T, A: Allocator> InPlaceInit<T> for Box<T, A> {
    type PinnedSelf = Pin<Self>;

    #[inline]
    fn try_pin_init<E>(init: impl PinInit<T, E>, flags: Flags) -> Result<Pin<Self>, E>
    where
        E: From<AllocError>,
    {
        Self::new_uninit(flags)?.write_pin_init(init)
    }

    #[inline]
    fn try_init<E>(init: impl Init<T, E>, flags: Flags) -> Result<Self, E>
    where
        E: From<AllocError>,
    {
        Self::new_uninit(flags)?.write_init(init)
    }
}

impl<T: ?Sized, A: Allocator> Drop for Box<T, A> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: By the type invariant.
        let layout = Layout::for_value(unsafe { self.ptr.as_ref() });

        // SAFETY: By the type invariant; it is not used any more.
        unsafe { self.ptr.drop_in_place() };
        // SAFETY: By the type invariant.
        unsafe { A::free(self.ptr.cast(), layout) };
    }
}

impl<T: ?Sized, A: Allocator> Deref for Box<T, A> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: By the type invariant.
        unsafe { self.ptr.as_ref() }
    }
}

impl<T: ?Sized, A: Allocator> DerefMut for Box<T, A> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: By the type invariant.
        unsafe { self.ptr.as_mut() }
    }
}

impl<T: ?Sized, A: Allocator> From<Box<T, A>> for Pin<Box<T, A>> {
    fn from(b: Box<T, A>) -> Self {
        Box::into_pin(b)
    }
}

impl<T: ?Sized + fmt::Debug, A: Allocator> fmt::Debug for Box<T, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

// SAFETY: The pointer is that of a valid `T`.
unsafe impl<T: 'static, A: Allocator> ForeignOwnable for Box<T, A> {
    const FOREIGN_ALIGN: usize = core::mem::align_of::<T>();
    type Borrowed<'a>
        = &'a T
    where
        Self: 'a;
    type BorrowedMut<'a>
        = &'a mut T
    where
        Self: 'a;

    fn into_foreign(self) -> *mut c_void {
        Self::into_raw(self).cast()
    }

    unsafe fn from_foreign(ptr: *mut c_void) -> Self {
        // SAFETY: It comes from `into_foreign`, that is `into_raw`.
        unsafe { Self::from_raw(ptr.cast()) }
    }

    unsafe fn borrow<'a>(ptr: *mut c_void) -> &'a T {
        // SAFETY: It comes from `into_foreign` and is valid during `'a`.
        unsafe { &*ptr.cast() }
    }

    unsafe fn borrow_mut<'a>(ptr: *mut c_void) -> &'a mut T {
        // SAFETY: As above, and there is no other owner.
        unsafe { &mut *ptr.cast() }
    }
}
