// SPDX-License-Identifier: GPL-2.0

//! Files in `/sys/kernel/debug` that show a value.
//!
//! A kernel without debugfs has none of them, which is no error.
//!
//! C header: `include/linux/debugfs.h`.

use core::{
    ffi::CStr,
    fmt::{
        self,
        Write, //
    },
    marker::PhantomPinned,
    pin::Pin,
    ptr, //
};

use pin_init::{
    pin_data,
    pin_init_from_closure,
    pinned_drop,
    PinInit, //
};

use crate::{
    alloc::flags::GFP_KERNEL,
    bindings,
    ffi::{
        c_int,
        c_void, //
    },
    str::CStrExt as _,
    sync::Arc,
    types::Opaque, //
};

/// A dentry that is removed, with all below it, when the last reference is gone.
///
/// # Invariants
///
/// The pointer was returned by a function of debugfs; it may be NULL or an `ERR_PTR()`.
struct Entry(*mut bindings::dentry);

// SAFETY: debugfs locks what it does.
unsafe impl Send for Entry {}
// SAFETY: As above.
unsafe impl Sync for Entry {}

impl Drop for Entry {
    fn drop(&mut self) {
        // SAFETY: By the type invariant; debugfs ignores NULL and errors. May sleep: nobody drops
        // a directory or a file in another context.
        unsafe { bindings::ro2ibk_debugfs_remove(self.0) }
    }
}

/// A directory, there until it and all its files are dropped.
#[derive(Clone)]
pub struct Dir(Option<Arc<Entry>>);

impl Dir {
    /// Makes one. May sleep.
    pub fn new(name: &CStr) -> Self {
        // SAFETY: `name` is a valid string, which is copied.
        let entry = unsafe { bindings::ro2ibk_debugfs_dir(name.as_char_ptr()) };

        // Without memory there is no directory, as with any other failure.
        Self(Arc::new(Entry(entry), GFP_KERNEL).ok())
    }

    /// An initialiser of a file that shows what `show` writes about `data`. May sleep.
    pub fn read_callback_file<'a, T, E: 'a, F>(
        &'a self,
        name: &'a CStr,
        data: impl PinInit<T, E> + 'a,
        show: &'static F,
    ) -> impl PinInit<File<T>, E> + 'a
    where
        T: Send + Sync + 'static,
        F: Fn(&T, &mut fmt::Formatter<'_>) -> fmt::Result + Send + Sync,
    {
        let init = move |slot: *mut File<T>| {
            // SAFETY: `slot` is valid for writes; after an error nothing has been written that
            // wants to be dropped.
            unsafe { data.__pinned_init(&raw mut (*slot).data)? };
            let raw = bindings::ro2ibk_debugfs_file {
                show: Some(File::<T>::show::<F>),
                data: slot.cast::<c_void>(),
            };
            // SAFETY: As above.
            unsafe {
                (&raw mut (*slot).callback).write(ptr::from_ref(show).cast());
                (&raw mut (*slot).raw).write(Opaque::new(raw));
                (&raw mut (*slot).parent).write(self.0.clone());
                (&raw mut (*slot)._pin).write(PhantomPinned);
            }
            let entry = match &self.0 {
                // SAFETY: The structure is pinned, and complete but for the entry, which the
                // callback does not use; `Drop` removes the file before any of it goes.
                Some(parent) => unsafe {
                    bindings::ro2ibk_debugfs_create(
                        name.as_char_ptr(),
                        parent.0,
                        Opaque::cast_into(&raw const (*slot).raw),
                    )
                },
                None => ptr::null_mut(),
            };
            // SAFETY: As above.
            unsafe { (&raw mut (*slot).entry).write(Some(Entry(entry))) };
            Ok(())
        };

        // SAFETY: All fields are initialised on success, and none is left on failure.
        unsafe { pin_init_from_closure(init) }
    }
}

/// A file; dropping it waits for its readers.
#[pin_data(PinnedDrop)]
pub struct File<T> {
    entry: Option<Entry>,
    parent: Option<Arc<Entry>>,
    #[pin]
    raw: Opaque<bindings::ro2ibk_debugfs_file>,
    callback: *const c_void,
    #[pin]
    data: T,
    #[pin]
    _pin: PhantomPinned,
}

// SAFETY: `callback` points to something static that any thread may use.
unsafe impl<T: Send> Send for File<T> {}
// SAFETY: As above.
unsafe impl<T: Sync> Sync for File<T> {}

#[pinned_drop]
impl<T> PinnedDrop for File<T> {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: Neither is moved.
        let this = unsafe { self.get_unchecked_mut() };

        // First: afterwards nobody reads the file.
        drop(this.entry.take());
        drop(this.parent.take());
    }
}

impl<T> core::ops::Deref for File<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.data
    }
}

impl<T: Send + Sync + 'static> File<T> {
    /// # Safety
    ///
    /// Called by the file's `read`, with the `data` given for it.
    unsafe extern "C" fn show<F>(seq: *mut bindings::seq_file, data: *mut c_void) -> c_int
    where
        F: Fn(&T, &mut fmt::Formatter<'_>) -> fmt::Result + Send + Sync,
    {
        let this = data.cast::<Self>();
        // SAFETY: While the file can be read, both are valid; they were set by
        // `read_callback_file` with this `F`.
        let (data, show) = unsafe { (&(*this).data, &*(*this).callback.cast::<F>()) };

        // What does not fit is dropped by `seq_write`, which then asks again with more room.
        let _ = write!(SeqFile(seq), "{}", Shown(data, show));
        0
    }
}

/// What a callback writes, to be formatted.
struct Shown<'a, T, F>(&'a T, &'a F);

impl<T, F> fmt::Display for Shown<'_, T, F>
where
    F: Fn(&T, &mut fmt::Formatter<'_>) -> fmt::Result,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (self.1)(self.0, f)
    }
}

/// Where a reader's text goes.
struct SeqFile(*mut bindings::seq_file);

impl Write for SeqFile {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        // SAFETY: It is valid during `show`; `s` is valid for reads.
        unsafe { bindings::seq_write(self.0, s.as_ptr().cast(), s.len()) };
        Ok(())
    }
}
