// SPDX-License-Identifier: GPL-2.0

//! Work items that are part of counted values.
//!
//! While an item is queued, the queue owns a count of its [`Arc`]: enqueueing gives it, running or
//! cancelling the item takes the count back.
//!
//! C header: `include/linux/workqueue.h`.

use core::{
    ffi::CStr,
    marker::PhantomData,
    pin::Pin, //
};

use pin_init::{
    pin_data,
    pin_init,
    PinInit, //
};

use crate::{
    bindings,
    str::CStrExt as _,
    sync::{
        Arc,
        LockClassKey, //
    },
    types::Opaque, //
};

/// Something that can be queued.
///
/// # Safety
///
/// [`Self::__enqueue`] passes a pointer that is valid during the call and, if that returned true,
/// until the function of the `work_struct` is called.
pub unsafe trait RawWorkItem<const ID: u64> {
    /// Result of enqueueing.
    type EnqueueOutput;

    /// Queues it, in a way that the caller chooses.
    ///
    /// # Safety
    ///
    /// The function returns false only if the item is not queued by this call; it may be called on
    /// any thread if `Self` is not `Send`, and must be before its lifetimes end.
    unsafe fn __enqueue<F>(self, queue_work_on: F) -> Self::EnqueueOutput
    where
        F: FnOnce(*mut bindings::work_struct) -> bool;
}

/// A pointer that a queue can own.
///
/// # Safety
///
/// [`Self::run`] is the function of the `work_struct` that [`RawWorkItem::__enqueue`] passes.
pub unsafe trait WorkItemPointer<const ID: u64>: RawWorkItem<ID> {
    /// Runs it.
    ///
    /// # Safety
    ///
    /// Called by the work queue.
    unsafe extern "C" fn run(ptr: *mut bindings::work_struct);
}

/// Handler of a work item.
pub trait WorkItem<const ID: u64 = 0> {
    /// The pointer that a queue owns.
    type Pointer: WorkItemPointer<ID>;

    /// Runs it. Process context.
    fn run(this: Self::Pointer);
}

/// A work item, field of a `T` (`struct work_struct`).
#[pin_data]
#[repr(transparent)]
pub struct Work<T, const ID: u64 = 0> {
    #[pin]
    work: Opaque<bindings::work_struct>,
    _inner: PhantomData<T>,
}

// SAFETY: Any thread may use a work item; there is no `T` in it.
unsafe impl<T, const ID: u64> Send for Work<T, ID> {}
// SAFETY: As above.
unsafe impl<T, const ID: u64> Sync for Work<T, ID> {}

impl<T, const ID: u64> Work<T, ID> {
    /// Returns an initialiser; `name` and `key` are lockdep's.
    #[inline]
    pub fn new(name: &'static CStr, key: Pin<&'static LockClassKey>) -> impl PinInit<Self>
    where
        T: WorkItem<ID>,
    {
        pin_init!(Self {
            work <- Opaque::ffi_init(|slot| {
                // SAFETY: `slot` is valid; `run` is the function for it, by the contract of
                // `WorkItemPointer`.
                unsafe {
                    bindings::ro2ibk_init_work(
                        slot,
                        Some(T::Pointer::run),
                        name.as_char_ptr(),
                        key.as_ptr(),
                    )
                }
            }),
            _inner: PhantomData,
        })
    }

    /// Returns the pointer for C.
    ///
    /// # Safety
    ///
    /// `ptr` is valid.
    #[inline]
    pub unsafe fn raw_get(ptr: *const Self) -> *mut bindings::work_struct {
        // SAFETY: By the contract of this function.
        unsafe { Opaque::cast_into(&raw const (*ptr).work) }
    }
}

/// A value with a [`Work`] field.
///
/// # Safety
///
/// Both functions are the inverse of each other. Implement it by [`impl_has_work!`].
///
/// [`impl_has_work!`]: crate::impl_has_work
pub unsafe trait HasWork<T, const ID: u64 = 0> {
    /// Returns the field of a value.
    ///
    /// # Safety
    ///
    /// `ptr` is valid.
    unsafe fn raw_get_work(ptr: *mut Self) -> *mut Work<T, ID>;

    /// Returns the value of a field.
    ///
    /// # Safety
    ///
    /// `ptr` points to that field of a valid value.
    unsafe fn work_container_of(ptr: *mut Work<T, ID>) -> *mut Self;
}

/// Says which field is the [`Work`] of a type.
#[macro_export]
macro_rules! impl_has_work {
    ($(impl$({$($generics:tt)*})?
       HasWork<$work_type:ty $(, $id:tt)?>
       for $self:ty
       { self.$field:ident }
    )*) => {$(
        // SAFETY: It compiles only if the field has that type.
        unsafe impl$(<$($generics)+>)? $crate::workqueue::HasWork<$work_type $(, $id)?> for $self {
            #[inline]
            unsafe fn raw_get_work(
                ptr: *mut Self,
            ) -> *mut $crate::workqueue::Work<$work_type $(, $id)?> {
                // SAFETY: The caller promises that it is valid.
                unsafe { &raw mut (*ptr).$field }
            }

            #[inline]
            unsafe fn work_container_of(
                ptr: *mut $crate::workqueue::Work<$work_type $(, $id)?>,
            ) -> *mut Self {
                // SAFETY: The caller promises that it is that field.
                unsafe { $crate::container_of!(ptr, Self, $field) }
            }
        }
    )*};
}

/// A work item that runs after a while, field of a `T` (`struct delayed_work`).
#[pin_data]
#[repr(transparent)]
pub struct DelayedWork<T, const ID: u64 = 0> {
    #[pin]
    dwork: Opaque<bindings::delayed_work>,
    _inner: PhantomData<T>,
}

// SAFETY: Any thread may use a work item; there is no `T` in it.
unsafe impl<T, const ID: u64> Send for DelayedWork<T, ID> {}
// SAFETY: As above.
unsafe impl<T, const ID: u64> Sync for DelayedWork<T, ID> {}

impl<T, const ID: u64> DelayedWork<T, ID> {
    /// Returns an initialiser; names and keys are lockdep's.
    #[inline]
    pub fn new(
        work_name: &'static CStr,
        work_key: Pin<&'static LockClassKey>,
        timer_name: &'static CStr,
        timer_key: Pin<&'static LockClassKey>,
    ) -> impl PinInit<Self>
    where
        T: WorkItem<ID>,
    {
        pin_init!(Self {
            dwork <- Opaque::ffi_init(|slot| {
                // SAFETY: As for `Work::new`.
                unsafe {
                    bindings::ro2ibk_init_delayed_work(
                        slot,
                        Some(T::Pointer::run),
                        work_name.as_char_ptr(),
                        work_key.as_ptr(),
                        timer_name.as_char_ptr(),
                        timer_key.as_ptr(),
                    )
                }
            }),
            _inner: PhantomData,
        })
    }

    /// Returns the work item in it.
    ///
    /// # Safety
    ///
    /// `ptr` is valid.
    #[inline]
    pub unsafe fn raw_as_work(ptr: *const Self) -> *mut Work<T, ID> {
        // SAFETY: By the contract of this function.
        let dwork = unsafe { Opaque::cast_into(&raw const (*ptr).dwork) };

        // SAFETY: As above. A `Work` is nothing but its `work_struct`.
        unsafe { (&raw mut (*dwork).work).cast() }
    }
}

/// A value with a [`DelayedWork`] field.
///
/// # Safety
///
/// The [`Work`] of [`HasWork`] is the one in a [`DelayedWork`]. Implement it by
/// [`impl_has_delayed_work!`].
///
/// [`impl_has_delayed_work!`]: crate::impl_has_delayed_work
pub unsafe trait HasDelayedWork<T, const ID: u64 = 0>: HasWork<T, ID> {}

/// Says which field is the [`DelayedWork`] of a type.
#[macro_export]
macro_rules! impl_has_delayed_work {
    ($(impl$({$($generics:tt)*})?
       HasDelayedWork<$work_type:ty $(, $id:tt)?>
       for $self:ty
       { self.$field:ident }
    )*) => {$(
        // SAFETY: The implementation of `HasWork` below compiles only if the field has that type.
        unsafe impl$(<$($generics)+>)?
            $crate::workqueue::HasDelayedWork<$work_type $(, $id)?> for $self {}

        // SAFETY: As above.
        unsafe impl$(<$($generics)+>)? $crate::workqueue::HasWork<$work_type $(, $id)?> for $self {
            #[inline]
            unsafe fn raw_get_work(
                ptr: *mut Self,
            ) -> *mut $crate::workqueue::Work<$work_type $(, $id)?> {
                // SAFETY: The caller promises that it is valid.
                let dwork: *mut $crate::workqueue::DelayedWork<$work_type $(, $id)?> =
                    unsafe { &raw mut (*ptr).$field };

                // SAFETY: As above.
                unsafe { $crate::workqueue::DelayedWork::raw_as_work(dwork) }
            }

            #[inline]
            unsafe fn work_container_of(
                ptr: *mut $crate::workqueue::Work<$work_type $(, $id)?>,
            ) -> *mut Self {
                // SAFETY: The caller promises that it is in that field.
                let work = unsafe { $crate::workqueue::Work::raw_get(ptr) };
                // SAFETY: As above.
                let dwork = unsafe {
                    $crate::container_of!(work, $crate::bindings::delayed_work, work)
                };
                let dwork: *mut $crate::workqueue::DelayedWork<$work_type $(, $id)?> =
                    dwork.cast();

                // SAFETY: As above.
                unsafe { $crate::container_of!(dwork, Self, $field) }
            }
        }
    )*};
}

/// An initialiser of a [`Work`] with a lock class of its own.
#[macro_export]
macro_rules! new_work {
    ($($name:literal)?) => {
        $crate::workqueue::Work::new(
            $crate::optional_name!($($name)?),
            $crate::static_lock_class!(),
        )
    };
}

/// An initialiser of a [`DelayedWork`] with lock classes of its own.
#[macro_export]
macro_rules! new_delayed_work {
    ($name:literal) => {
        $crate::workqueue::DelayedWork::new(
            $crate::c_str_of!($name),
            $crate::static_lock_class!(),
            $crate::c_str_of!(::core::concat!($name, "_timer")),
            $crate::static_lock_class!(),
        )
    };
}

// SAFETY: `__enqueue` passes the `work_struct` of the field that `T: HasWork` names, which can only
// be made by `Work::new`, whose function is `run`. The pointer is valid as long as there is a count,
// and the one of `self` is given to the queue when it has taken the item.
unsafe impl<T, const ID: u64> RawWorkItem<ID> for Arc<T>
where
    T: WorkItem<ID, Pointer = Self>,
    T: HasWork<T, ID>,
{
    type EnqueueOutput = Result<(), Self>;

    unsafe fn __enqueue<F>(self, queue_work_on: F) -> Self::EnqueueOutput
    where
        F: FnOnce(*mut bindings::work_struct) -> bool,
    {
        let ptr = Arc::into_raw(self).cast_mut();
        // SAFETY: It points to a valid `T`.
        let work = unsafe { Work::raw_get(T::raw_get_work(ptr)) };

        if queue_work_on(work) {
            Ok(())
        } else {
            // SAFETY: The queue has not taken the count that `into_raw` gave up.
            Err(unsafe { Arc::from_raw(ptr) })
        }
    }
}

// SAFETY: As above.
unsafe impl<T, const ID: u64> WorkItemPointer<ID> for Arc<T>
where
    T: WorkItem<ID, Pointer = Self>,
    T: HasWork<T, ID>,
{
    unsafe extern "C" fn run(ptr: *mut bindings::work_struct) {
        // SAFETY: It is the field of the value that `__enqueue` gave to the queue.
        let ptr = unsafe { T::work_container_of(ptr.cast::<Work<T, ID>>()) };

        // SAFETY: The count that the queue owned is ours now.
        T::run(unsafe { Arc::from_raw(ptr) });
    }
}
