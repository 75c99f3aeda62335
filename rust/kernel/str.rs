// SPDX-License-Identifier: GPL-2.0

//! Strings of C.

use core::{
    ffi::CStr,
    fmt::{
        self,
        Write, //
    },
    ops::Deref, //
};

use crate::{
    alloc::{
        flags::GFP_KERNEL,
        KVec, //
    },
    error::{
        code::EINVAL,
        Error,
        Result, //
    },
    ffi::c_char, //
};

/// [`CStr`] with the kernel's `char`.
pub trait CStrExt {
    /// Returns the string at `ptr`.
    ///
    /// # Safety
    ///
    /// `ptr` points to a string that ends with NUL and does not change during `'a`.
    unsafe fn from_char_ptr<'a>(ptr: *const c_char) -> &'a Self;

    /// Returns the pointer for C.
    fn as_char_ptr(&self) -> *const c_char;
}

impl CStrExt for CStr {
    #[inline]
    unsafe fn from_char_ptr<'a>(ptr: *const c_char) -> &'a Self {
        // SAFETY: By the contract of this function; only the sign of the bytes is another.
        unsafe { Self::from_ptr(ptr.cast()) }
    }

    #[inline]
    fn as_char_ptr(&self) -> *const c_char {
        self.as_ptr().cast()
    }
}

/// A string of C that is allocated.
///
/// # Invariants
///
/// The last byte, and no other, is NUL.
pub struct CString {
    bytes: KVec<u8>,
}

/// Only counts, or writes into what was counted.
struct Counter(usize);

impl Write for Counter {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        self.0 = self.0.checked_add(s.len()).ok_or(fmt::Error)?;
        Ok(())
    }
}

struct Filler<'a>(&'a mut KVec<u8>);

impl Write for Filler<'_> {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        self.0
            .extend_from_slice(s.as_bytes(), GFP_KERNEL)
            .map_err(|_| fmt::Error)
    }
}

impl CString {
    /// Formats into a new string. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; `EINVAL` if the text contains NUL.
    pub fn try_from_fmt(args: fmt::Arguments<'_>) -> Result<Self, Error> {
        let mut size = Counter(1);
        size.write_fmt(args)?;
        let mut bytes = KVec::with_capacity(size.0, GFP_KERNEL)?;
        Filler(&mut bytes).write_fmt(args)?;
        if bytes.contains(&0) {
            return Err(EINVAL);
        }
        bytes.push(0, GFP_KERNEL)?;
        // INVARIANT: NUL has just been put at the end, and is nowhere else.
        Ok(Self { bytes })
    }
}

impl Deref for CString {
    type Target = CStr;

    fn deref(&self) -> &CStr {
        // SAFETY: By the type invariant.
        unsafe { CStr::from_bytes_with_nul_unchecked(&self.bytes) }
    }
}
