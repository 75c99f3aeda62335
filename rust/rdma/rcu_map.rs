// SPDX-License-Identifier: GPL-2.0

//! Map from 32-bit keys to objects with counted references, in the order of the keys. Readers take no lock.
//!
//! C headers: `include/linux/xarray.h`, `include/linux/rcupdate.h`.

use core::{
    marker::PhantomData,
    ptr::NonNull, //
};

use kernel::{
    error::{
        code::ENOMEM,
        to_result, //
    },
    ffi,
    prelude::*,
    sync::{
        Arc,
        ArcBorrow, //
    }, //
};

use super::work::OwnedQueue;
use crate::bindings;

/// Map of objects `T`.
///
/// # Invariants
///
/// `map` is a map that only `drop` destroys. It owns a reference to each of its objects, which
/// [`bindings::ro2ib_rcu_drop`] drops: a grace period after the object has left the map.
pub(crate) struct RcuMap<T: Send + Sync + 'static> {
    map: NonNull<bindings::ro2ib_rcu_map>,
    _objects: PhantomData<Arc<T>>,
}

// SAFETY: Only the functions of `rust/helpers/rcu_map.c` use what `map` points to, and any thread may call them. The
// objects may be used and dropped by any thread.
unsafe impl<T: Send + Sync> Send for RcuMap<T> {}
// SAFETY: As above.
unsafe impl<T: Send + Sync> Sync for RcuMap<T> {}

/// Read section, in which objects of a map remain.
struct ReadSection;

impl Drop for ReadSection {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: The function that created this has begun the section, in the same task.
        unsafe { bindings::ro2ib_rcu_map_end() }
    }
}

/// Position of a walk over a map, by key.
#[derive(Clone, Copy)]
pub(crate) struct MapWalk {
    /// Lowest key that was not visited; `None` at the end.
    next: Option<u32>,
}

impl Default for MapWalk {
    /// Returns the position before the first object.
    fn default() -> Self {
        Self { next: Some(0) }
    }
}

impl<T: Send + Sync> RcuMap<T> {
    /// Creates an empty map. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new() -> Result<Self> {
        // SAFETY: No preconditions; may sleep.
        let map = unsafe { bindings::ro2ib_rcu_map_create() };
        // INVARIANT: It is ours, and empty.
        Ok(Self {
            map: NonNull::new(map).ok_or(ENOMEM)?,
            _objects: PhantomData,
        })
    }

    /// Runs `f` on the object with that key. `f` must not sleep. Any context except NMI.
    #[inline]
    pub(crate) fn with<R>(&self, key: u32, f: impl FnOnce(ArcBorrow<'_, T>) -> R) -> Option<R> {
        // SAFETY: By the type invariant; `_section` ends the section.
        let object = unsafe { bindings::ro2ib_rcu_map_begin(self.map.as_ptr(), key) };
        let _section = ReadSection;
        // SAFETY: The object was in the map after the begin of the section. By the type invariant its reference is not
        // dropped before the end.
        (!object.is_null()).then(|| f(unsafe { ArcBorrow::from_raw(object.cast()) }))
    }

    /// Returns the object with that key. Any context except NMI.
    #[inline]
    pub(crate) fn get(&self, key: u32) -> Option<Arc<T>> {
        self.with(key, |object| object.into())
    }

    /// Adds an object. May sleep.
    ///
    /// # Errors
    ///
    /// `EEXIST` if the key has an object, `ESHUTDOWN` if the map is closed, or `ENOMEM`.
    pub(crate) fn add(&self, key: u32, object: &Arc<T>) -> Result {
        const {
            assert!(
                align_of::<T>() >= 4,
                "xarray uses the lowest bits of a pointer"
            )
        };
        let raw = object.clone().into_raw();
        // SAFETY: By the type invariant.
        let err = unsafe { bindings::ro2ib_rcu_map_add(self.map.as_ptr(), key, object_of(raw)) };
        // INVARIANT: The map has the reference, if it has the object.
        to_result(err).inspect_err(|_| {
            // SAFETY: The map has not taken the reference that `into_raw` returned.
            drop(unsafe { Arc::from_raw(raw) });
        })
    }

    /// Removes an object, if that key has it. Its reference is dropped in `queue` later, which is flushed before the
    /// module is unloaded, after [`rcu_barrier`]. May sleep.
    pub(crate) fn remove(&self, key: u32, object: &Arc<T>, queue: &OwnedQueue) {
        let raw = object_of(Arc::as_ptr(object));
        // SAFETY: By the type invariant.
        if unsafe { bindings::ro2ib_rcu_map_remove(self.map.as_ptr(), key, raw) } {
            // SAFETY: The reference was the map's; the queue is valid.
            unsafe { bindings::ro2ib_rcu_drop(raw, Some(drop_object::<T>), queue.as_raw()) }
        }
    }

    /// Refuses further objects. A walk that begins now visits all objects that are in the map and remain.
    pub(crate) fn close(&self) {
        // SAFETY: By the type invariant.
        unsafe { bindings::ro2ib_rcu_map_close(self.map.as_ptr()) }
    }

    /// Returns the next object of a walk, which the caller can suspend and resume at any time. The walk visits every
    /// object that is in the map all the time, once.
    pub(crate) fn next(&self, walk: &mut MapWalk) -> Option<Arc<T>> {
        let mut key = walk.next?;
        // SAFETY: By the type invariant, and `key` is valid; `_section` ends the section.
        let object = unsafe { bindings::ro2ib_rcu_map_begin_at(self.map.as_ptr(), &mut key) };
        let _section = ReadSection;
        if object.is_null() {
            walk.next = None;
            return None;
        }
        walk.next = key.checked_add(1);
        // SAFETY: As in `with`.
        Some(unsafe { ArcBorrow::<T>::from_raw(object.cast()) }.into())
    }

    /// Calls `f` for every object, without any lock.
    pub(crate) fn for_each(&self, mut f: impl FnMut(&Arc<T>)) {
        let mut walk = MapWalk::default();
        while let Some(object) = self.next(&mut walk) {
            f(&object);
        }
    }
}

impl<T: Send + Sync> Drop for RcuMap<T> {
    fn drop(&mut self) {
        let mut walk = MapWalk::default();
        while let Some(object) = self.next(&mut walk) {
            let key = walk.next.unwrap_or(0).wrapping_sub(1);
            let raw = object_of(Arc::as_ptr(&object));
            // SAFETY: By the type invariant.
            if unsafe { bindings::ro2ib_rcu_map_remove(self.map.as_ptr(), key, raw) } {
                // SAFETY: The reference was the map's. There is no reader, because this is being dropped.
                unsafe { drop_object::<T>(raw) };
            }
        }
        // SAFETY: By the type invariant; it is empty.
        unsafe { bindings::ro2ib_rcu_map_destroy(self.map.as_ptr()) }
    }
}

fn object_of<T>(raw: *const T) -> *mut ffi::c_void {
    raw.cast_mut().cast()
}

/// Drops the reference of a map.
///
/// # Safety
///
/// `object` is what [`Arc::into_raw`] returned for a `T`; the reference is the caller's.
unsafe extern "C" fn drop_object<T>(object: *mut ffi::c_void) {
    // SAFETY: By the contract of this function.
    drop(unsafe { Arc::<T>::from_raw(object.cast_const().cast()) });
}

/// Waits until each object that has left a map is in the queue that drops it. Sleeps.
pub(crate) fn rcu_barrier() {
    // SAFETY: No preconditions; may sleep.
    unsafe { bindings::ro2ib_rcu_barrier() }
}
