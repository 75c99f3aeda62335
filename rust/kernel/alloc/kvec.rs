// SPDX-License-Identifier: GPL-2.0

//! Growable arrays.

use core::{
    alloc::Layout,
    fmt,
    marker::PhantomData,
    mem::ManuallyDrop,
    ops::{
        Deref,
        DerefMut, //
    },
    ptr::NonNull,
    slice, //
};

use super::{
    allocator::{
        AllocError,
        Allocator,
        KVmalloc,
        Kmalloc, //
    },
    flags::Flags, //
};

/// A vector that grows only in calls that pass the flags of the allocation.
///
/// # Invariants
///
/// `ptr` is an allocation of `A` for `cap` values (dangling if that is no bytes), of which the first
/// `len` are valid; `len <= cap`.
pub struct Vec<T, A: Allocator> {
    ptr: NonNull<T>,
    cap: usize,
    len: usize,
    _owns: PhantomData<T>,
    _from: PhantomData<A>,
}

/// A [`Vec`] of contiguous memory.
pub type KVec<T> = Vec<T, Kmalloc>;
/// A [`Vec`] of contiguous memory, or of mapped pages if it is large.
pub type KVVec<T> = Vec<T, KVmalloc>;

/// There is no room left; the value comes back.
#[derive(Debug)]
pub struct PushError<T>(pub T);

impl<T> From<PushError<T>> for crate::error::Error {
    fn from(_: PushError<T>) -> Self {
        crate::error::code::EINVAL
    }
}

// SAFETY: It owns its values.
unsafe impl<T: Send, A: Allocator> Send for Vec<T, A> {}
// SAFETY: A shared vector gives shared values.
unsafe impl<T: Sync, A: Allocator> Sync for Vec<T, A> {}

// The pointer may move even if the values may not.
impl<T, A: Allocator> Unpin for Vec<T, A> {}

impl<T, A: Allocator> Vec<T, A> {
    /// Creates an empty vector, without an allocation.
    pub const fn new() -> Self {
        // INVARIANT: No room, no values.
        Self {
            ptr: NonNull::dangling(),
            cap: 0,
            len: 0,
            _owns: PhantomData,
            _from: PhantomData,
        }
    }

    /// Creates an empty vector with room for `capacity` values.
    pub fn with_capacity(capacity: usize, flags: Flags) -> Result<Self, AllocError> {
        let mut v = Self::new();
        v.reserve(capacity, flags)?;
        Ok(v)
    }

    /// Returns the number of values that the vector has room for.
    pub fn capacity(&self) -> usize {
        if size_of::<T>() == 0 {
            usize::MAX
        } else {
            self.cap
        }
    }

    /// Returns the number of values.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the vector has no values.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Makes room for `additional` more values. If the allocation fails, the vector stays as it is.
    #[inline]
    pub fn reserve(&mut self, additional: usize, flags: Flags) -> Result<(), AllocError> {
        let wanted = self.len.checked_add(additional).ok_or(AllocError)?;

        if wanted <= self.capacity() {
            return Ok(());
        }
        self.grow(wanted, flags)
    }

    /// Makes room for `wanted` in all, which is more than there is.
    fn grow(&mut self, wanted: usize, flags: Flags) -> Result<(), AllocError> {
        // Twice as much as before, so that pushing one by one copies each value a few times only.
        let cap = wanted.max(self.cap.saturating_mul(2));
        let layout = Layout::array::<T>(cap).map_err(|_| AllocError)?;
        let ptr = A::alloc(layout, flags)?.cast::<T>();
        // SAFETY: `len` values are valid by the type invariant, and `cap >= len`; the new
        // allocation is another one. Moved, the old ones are not used any more.
        unsafe { self.ptr.copy_to_nonoverlapping(ptr, self.len) };
        self.free_memory();
        // INVARIANT: The first `len` values have been moved to the new allocation.
        self.ptr = ptr;
        self.cap = cap;
        Ok(())
    }

    fn free_memory(&mut self) {
        if let Ok(layout) = Layout::array::<T>(self.cap) {
            // SAFETY: By the type invariant; of no bytes, it does nothing.
            unsafe { A::free(self.ptr.cast(), layout) };
        }
    }

    /// Appends `v`. Makes room if there is none.
    pub fn push(&mut self, v: T, flags: Flags) -> Result<(), AllocError> {
        self.reserve(1, flags)?;
        // It cannot fail: there is room.
        self.push_within_capacity(v).map_err(|_| AllocError)
    }

    /// Appends `v` if there is room.
    pub fn push_within_capacity(&mut self, v: T) -> Result<(), PushError<T>> {
        if self.len >= self.capacity() {
            return Err(PushError(v));
        }
        // SAFETY: There is room for another value, which is not valid yet.
        unsafe { self.ptr.add(self.len).write(v) };
        // INVARIANT: It is now; there was room, so this does not overflow.
        self.len = self.len.wrapping_add(1);
        Ok(())
    }

    /// Takes the last value.
    pub fn pop(&mut self) -> Option<T> {
        let last = self.len.checked_sub(1)?;

        // INVARIANT: One less, which is moved out.
        self.len = last;
        // SAFETY: It was valid, and is not used any more.
        Some(unsafe { self.ptr.add(last).read() })
    }

    /// Takes the value at `i`; the values behind it move up.
    ///
    /// # Errors
    ///
    /// [`RemoveError`] if there is none.
    pub fn remove(&mut self, i: usize) -> Result<T, RemoveError> {
        let behind = self
            .len
            .checked_sub(i)
            .and_then(|n| n.checked_sub(1))
            .ok_or(RemoveError)?;
        // SAFETY: `i` is less than `len`, so there is one. It is overwritten, or left behind, below.
        let value = unsafe { self.ptr.add(i).read() };
        // SAFETY: `behind` values follow the one at `i`, and move to its place.
        unsafe { self.ptr.add(i).add(1).copy_to(self.ptr.add(i), behind) };
        // INVARIANT: The last place is not valid any more. `len` was not 0, as it is more than `i`.
        self.len = self.len.wrapping_sub(1);
        Ok(value)
    }

    /// Drops what is behind the first `len`.
    pub fn truncate(&mut self, len: usize) {
        let Some(more) = self.len.checked_sub(len) else {
            return;
        };
        // SAFETY: They are valid.
        let rest = unsafe { slice::from_raw_parts_mut(self.ptr.add(len).as_ptr(), more) };
        // INVARIANT: Fewer are, even if a destructor panics.
        self.len = len;
        // SAFETY: No code uses these values any more.
        unsafe { core::ptr::drop_in_place(rest) };
    }

    /// Drops all.
    pub fn clear(&mut self) {
        self.truncate(0);
    }

    /// Takes all, in order.
    pub fn drain_all(&mut self) -> DrainAll<'_, T> {
        // INVARIANT: They belong to the iterator now.
        let len = core::mem::replace(&mut self.len, 0);

        DrainAll {
            // SAFETY: `len` values were valid, and the vector, which is borrowed, knows of none.
            values: unsafe { slice::from_raw_parts_mut(self.ptr.as_ptr(), len) }.iter_mut(),
        }
    }

    /// Keeps the values for which `keep` returns true, in order.
    pub fn retain(&mut self, mut keep: impl FnMut(&mut T) -> bool) {
        let mut kept: usize = 0;

        for i in 0..self.len {
            let value = self.ptr.as_ptr().wrapping_add(i);
            // SAFETY: The first `len` values are valid.
            if keep(unsafe { &mut *value }) {
                // Not `swap`, which checks bounds: a panic stops the node.
                // SAFETY: Both are valid, as `kept` is at most `i`.
                unsafe { core::ptr::swap(self.ptr.as_ptr().add(kept), value) };
                kept = kept.wrapping_add(1);
            }
        }
        self.truncate(kept);
    }
}

/// There is no value at that index.
#[derive(Debug)]
pub struct RemoveError;

impl From<RemoveError> for crate::error::Error {
    fn from(_: RemoveError) -> Self {
        crate::error::code::EINVAL
    }
}

impl<T: Clone, A: Allocator> Vec<T, A> {
    /// Creates a vector of `n` times `value`.
    pub fn from_elem(value: T, n: usize, flags: Flags) -> Result<Self, AllocError> {
        let mut v = Self::with_capacity(n, flags)?;

        v.extend_with(n, value, flags)?;
        Ok(v)
    }

    /// Appends `n` times `value`.
    pub fn extend_with(&mut self, n: usize, value: T, flags: Flags) -> Result<(), AllocError> {
        self.reserve(n, flags)?;
        for _ in 0..n {
            self.push_within_capacity(value.clone())
                .map_err(|_| AllocError)?;
        }
        Ok(())
    }

    /// Appends copies of `other`.
    pub fn extend_from_slice(&mut self, other: &[T], flags: Flags) -> Result<(), AllocError> {
        self.reserve(other.len(), flags)?;
        for value in other {
            self.push_within_capacity(value.clone())
                .map_err(|_| AllocError)?;
        }
        Ok(())
    }
}

impl<T, A: Allocator> Default for Vec<T, A> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T, A: Allocator> Drop for Vec<T, A> {
    fn drop(&mut self) {
        self.clear();
        self.free_memory();
    }
}

impl<T, A: Allocator> Deref for Vec<T, A> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: By the type invariant.
        unsafe { slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl<T, A: Allocator> DerefMut for Vec<T, A> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: By the type invariant.
        unsafe { slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

impl<T: fmt::Debug, A: Allocator> fmt::Debug for Vec<T, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<'a, T, A: Allocator> IntoIterator for &'a Vec<T, A> {
    type Item = &'a T;
    type IntoIter = slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<'a, T, A: Allocator> IntoIterator for &'a mut Vec<T, A> {
    type Item = &'a mut T;
    type IntoIter = slice::IterMut<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter_mut()
    }
}

impl<T, A: Allocator> IntoIterator for Vec<T, A> {
    type Item = T;
    type IntoIter = IntoIter<T, A>;

    fn into_iter(self) -> IntoIter<T, A> {
        let v = ManuallyDrop::new(self);

        // INVARIANT: All are there still.
        IntoIter {
            ptr: v.ptr,
            cap: v.cap,
            at: 0,
            len: v.len,
            _owns: PhantomData,
            _from: PhantomData,
        }
    }
}

/// The values of a [`Vec`], one by one.
///
/// # Invariants
///
/// As for [`Vec`], but only the values from `at` to `len` are valid; `at <= len`.
pub struct IntoIter<T, A: Allocator> {
    ptr: NonNull<T>,
    cap: usize,
    at: usize,
    len: usize,
    _owns: PhantomData<T>,
    _from: PhantomData<A>,
}

// SAFETY: It owns its values.
unsafe impl<T: Send, A: Allocator> Send for IntoIter<T, A> {}

impl<T, A: Allocator> Iterator for IntoIter<T, A> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        if self.at >= self.len {
            return None;
        }
        // SAFETY: It is valid, and not any more after this.
        let value = unsafe { self.ptr.add(self.at).read() };
        // INVARIANT: It has been moved out. `at` was less than `len`.
        self.at = self.at.wrapping_add(1);
        Some(value)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        // By the type invariant there are none before `at` that `len` does not count.
        let left = self.len.wrapping_sub(self.at);

        (left, Some(left))
    }
}

impl<T, A: Allocator> Drop for IntoIter<T, A> {
    fn drop(&mut self) {
        for value in &mut *self {
            drop(value);
        }
        if let Ok(layout) = Layout::array::<T>(self.cap) {
            // SAFETY: By the type invariant; of no bytes, it does nothing.
            unsafe { A::free(self.ptr.cast(), layout) };
        }
    }
}

/// The values taken by [`Vec::drain_all`].
///
/// # Invariants
///
/// The values that `values` has not passed yet are valid, and belong to this.
pub struct DrainAll<'a, T> {
    values: slice::IterMut<'a, T>,
}

impl<T> Iterator for DrainAll<'_, T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        let value: *mut T = self.values.next()?;

        // SAFETY: By the type invariant; it has been passed now.
        Some(unsafe { value.read() })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.values.size_hint()
    }
}

impl<T> Drop for DrainAll<'_, T> {
    fn drop(&mut self) {
        for value in &mut *self {
            drop(value);
        }
    }
}
