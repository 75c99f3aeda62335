// SPDX-License-Identifier: GPL-2.0

//! Files in `/sys/kernel/debug`.
//!
//! An open file keeps the module loaded. The files of the kernel's crate have no owner (7.3): closing one after the
//! module was unloaded calls code that is gone.
//!
//! A kernel without debugfs has no such files, which is no error. Context: process; all functions may sleep.
//!
//! C header: `include/linux/debugfs.h`.

use core::{
    ffi::CStr,
    ptr, //
};

use kernel::{
    ffi::{
        c_int,
        c_void, //
    },
    fmt::{
        self,
        Write, //
    },
    prelude::*,
    sync::Arc,
    types::Opaque, //
};

use crate::bindings;

/// Contents of a file, as lines of `key=value`.
pub(crate) trait Show: Send + Sync + 'static {
    /// Writes all of it. May sleep.
    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result;
}

/// A dentry that is removed when this is dropped.
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
        // SAFETY: By the type invariant.
        unsafe { bindings::ro2ib_debugfs_remove(self.0) }
    }
}

/// A directory, there until it and all its files are dropped.
#[derive(Clone)]
pub(crate) struct Dir(Option<Arc<Entry>>);

impl Dir {
    /// Creates a directory.
    pub(crate) fn new(name: &CStr) -> Self {
        // SAFETY: `name` is a valid string, which is copied.
        let entry = unsafe { bindings::ro2ib_debugfs_dir(name.as_char_ptr()) };
        // Without memory there is no directory, as with any other failure.
        Self(Arc::new(Entry(entry), GFP_KERNEL).ok())
    }
}

/// A file that shows a `T`; dropping it waits for its readers.
///
/// # Invariants
///
/// `_raw` has [`File::show`] of this `T`, and a pointer to what `_what` refers to.
// Dropped in this order: the file has no reader any more when the rest goes, and the directory is there until then.
pub(crate) struct File<T: Show> {
    _entry: Entry,
    _dir: Dir,
    _raw: Pin<KBox<Opaque<bindings::ro2ib_debugfs_file>>>,
    _what: Arc<T>,
}

// SAFETY: It owns what it points to, and that may be used by any thread, as `T` may.
unsafe impl<T: Show> Send for File<T> {}
// SAFETY: As above.
unsafe impl<T: Show> Sync for File<T> {}

impl<T: Show> File<T> {
    /// Creates the file.
    pub(crate) fn new(dir: &Dir, name: &CStr, what: &Arc<T>) -> Result<Self> {
        let raw = Opaque::new(bindings::ro2ib_debugfs_file {
            show: Some(Self::show),
            data: Arc::as_ptr(what).cast_mut().cast::<c_void>(),
        });
        let raw = KBox::into_pin(KBox::new(raw, GFP_KERNEL)?);
        let entry = match &dir.0 {
            // SAFETY: Both pointers are valid. The structure is pinned, and the field order of `Self` removes the file
            // before it, and before what it points to.
            Some(parent) => unsafe {
                bindings::ro2ib_debugfs_create(name.as_char_ptr(), parent.0, raw.get())
            },
            None => ptr::null_mut(),
        };
        // INVARIANT: As just made.
        Ok(Self {
            _entry: Entry(entry),
            _dir: dir.clone(),
            _raw: raw,
            _what: what.clone(),
        })
    }

    /// Writes the contents to the reader.
    ///
    /// # Safety
    ///
    /// Called by the file's `read`, with the `data` given for it.
    unsafe extern "C" fn show(seq: *mut bindings::seq_file, data: *mut c_void) -> c_int {
        // SAFETY: By the type invariant it is a `T`, and it stays while the file can be read.
        let what = unsafe { &*data.cast::<T>() };
        let _ = Seq(seq).write_fmt(core::format_args!("{}", Shown(what)));
        0
    }
}

/// Adapter from [`Show`] to `Display`.
pub(crate) struct Shown<'a, T>(pub(crate) &'a T);

impl<T: Show> core::fmt::Display for Shown<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.show(f)
    }
}

/// Output of a reader.
struct Seq(*mut bindings::seq_file);

impl Write for Seq {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        // SAFETY: It is valid during `show`; `s` is valid for reads.
        let fits = unsafe { bindings::ro2ib_debugfs_write(self.0, s.as_ptr().cast(), s.len()) };
        // The file asks again, with twice the room: who shows peer after peer does not go on for nothing.
        match fits {
            true => Ok(()),
            false => Err(fmt::Error),
        }
    }
}
