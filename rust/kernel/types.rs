// SPDX-License-Identifier: GPL-2.0

//! Types that stand between Rust and C.

use core::{
    cell::UnsafeCell,
    convert::Infallible,
    marker::{
        PhantomData,
        PhantomPinned, //
    },
    mem::MaybeUninit, //
};

use pin_init::{
    PinInit,
    Zeroable, //
};

use crate::ffi::c_void;

/// A value that C may hold as a `void *`.
///
/// # Safety
///
/// [`Self::into_foreign`] returns a pointer that is not NULL and aligned to [`Self::FOREIGN_ALIGN`].
pub unsafe trait ForeignOwnable: Sized {
    /// The alignment of the pointer.
    const FOREIGN_ALIGN: usize;

    /// A borrow of a value that C holds.
    type Borrowed<'a>
    where
        Self: 'a;

    /// The same, with whatever more an exclusive one gives.
    type BorrowedMut<'a>
    where
        Self: 'a;

    /// Gives the value to C.
    fn into_foreign(self) -> *mut c_void;

    /// Takes it back.
    ///
    /// # Safety
    ///
    /// `ptr` comes from [`Self::into_foreign`], which has not been undone yet, and nothing that was
    /// borrowed of it is in use.
    unsafe fn from_foreign(ptr: *mut c_void) -> Self;

    /// Borrows it.
    ///
    /// # Safety
    ///
    /// `ptr` comes from [`Self::into_foreign`], which is not undone during `'a`.
    unsafe fn borrow<'a>(ptr: *mut c_void) -> Self::Borrowed<'a>;

    /// Borrows it alone.
    ///
    /// # Safety
    ///
    /// As for [`Self::borrow`], and there is no other borrow during `'a`.
    unsafe fn borrow_mut<'a>(ptr: *mut c_void) -> Self::BorrowedMut<'a>;
}

/// A value of C, about which Rust assumes nothing: neither that it is initialised, nor that no
/// other code changes it, nor that it may be moved.
#[repr(transparent)]
pub struct Opaque<T> {
    value: UnsafeCell<MaybeUninit<T>>,
    _pin: PhantomPinned,
}

// SAFETY: Any bytes will do, as it may be uninitialised.
unsafe impl<T> Zeroable for Opaque<T> {}

impl<T> Opaque<T> {
    /// Creates an initialised value.
    pub const fn new(value: T) -> Self {
        Self {
            value: UnsafeCell::new(MaybeUninit::new(value)),
            _pin: PhantomPinned,
        }
    }

    /// Creates a value that is not initialised.
    pub const fn uninit() -> Self {
        Self {
            value: UnsafeCell::new(MaybeUninit::uninit()),
            _pin: PhantomPinned,
        }
    }

    /// Creates a value of zeroes.
    pub const fn zeroed() -> Self {
        Self {
            value: UnsafeCell::new(MaybeUninit::zeroed()),
            _pin: PhantomPinned,
        }
    }

    /// Returns an initialiser that calls C.
    pub fn ffi_init(init_func: impl FnOnce(*mut T)) -> impl PinInit<Self> {
        // SAFETY: It always succeeds, and any content is valid; the value stays where it is.
        unsafe {
            pin_init::pin_init_from_closure::<_, Infallible>(move |slot| {
                init_func(Self::cast_into(slot));
                Ok(())
            })
        }
    }

    /// Returns the pointer for C.
    pub const fn get(&self) -> *mut T {
        UnsafeCell::get(&self.value).cast()
    }

    /// Returns the pointer for C of a pointer.
    pub const fn cast_into(this: *const Self) -> *mut T {
        this.cast_mut().cast()
    }

    /// Returns the pointer to the [`Opaque`] of a pointer of C.
    pub const fn cast_from(this: *const T) -> *const Self {
        this.cast()
    }
}

/// A field that keeps a type from being sent to, or shared with, another thread.
pub type NotThreadSafe = PhantomData<*mut ()>;

/// The value of such a field.
#[allow(non_upper_case_globals)]
pub const NotThreadSafe: NotThreadSafe = PhantomData;
