// SPDX-License-Identifier: GPL-2.0

//! Errors: an errno of the kernel, never 0.
//!
//! C header: `include/linux/err.h`, `include/linux/errno.h`.

use core::{
    fmt,
    num::{
        NonZeroI32,
        TryFromIntError, //
    },
    str::Utf8Error, //
};

use crate::{
    alloc::allocator::AllocError,
    bindings,
    ffi::{
        c_int,
        c_void, //
    }, //
};

/// The largest errno that a pointer can hold.
const MAX_ERRNO: i32 = 4095;

/// An errno.
///
/// # Invariants
///
/// The value is in `-MAX_ERRNO..=-1`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Error(NonZeroI32);

/// A [`core::result::Result`] with an [`Error`] by default.
pub type Result<T = (), E = Error> = core::result::Result<T, E>;

/// The errnos of the kernel by name.
pub mod code {
    macro_rules! declare {
        ($($name:ident)*) => {$(
            #[doc = concat!("`", stringify!($name), "` of `errno.h`.")]
            pub const $name: super::Error =
                match super::Error::new(-(super::bindings::$name as i32)) {
                    Some(error) => error,
                    None => panic!("not an errno"),
                };
        )*};
    }

    declare! {
        EPERM ENOENT ESRCH EINTR EIO ENXIO E2BIG ENOEXEC EBADF ECHILD EAGAIN ENOMEM EACCES EFAULT
        ENOTBLK EBUSY EEXIST EXDEV ENODEV ENOTDIR EISDIR EINVAL ENFILE EMFILE ENOTTY ETXTBSY EFBIG
        ENOSPC ESPIPE EROFS EMLINK EPIPE EDOM ERANGE EDEADLK ENAMETOOLONG ENOLCK ENOSYS ENOTEMPTY
        ELOOP ENOMSG ENODATA ETIME ENOLINK EPROTO EBADMSG EOVERFLOW ENOTUNIQ EILSEQ EUSERS ENOTSOCK
        EDESTADDRREQ EMSGSIZE EPROTOTYPE ENOPROTOOPT EPROTONOSUPPORT EOPNOTSUPP EAFNOSUPPORT
        EADDRINUSE EADDRNOTAVAIL ENETDOWN ENETUNREACH ENETRESET ECONNABORTED ECONNRESET ENOBUFS
        EISCONN ENOTCONN ESHUTDOWN ETIMEDOUT ECONNREFUSED EHOSTDOWN EHOSTUNREACH EALREADY
        EINPROGRESS ESTALE EREMOTEIO ECANCELED
    }
}

impl Error {
    const fn new(errno: i32) -> Option<Self> {
        if errno < -MAX_ERRNO || errno >= 0 {
            return None;
        }
        match NonZeroI32::new(errno) {
            // INVARIANT: Checked above.
            Some(errno) => Some(Self(errno)),
            None => None,
        }
    }

    /// Returns the error of a negative errno; `EINVAL` if `errno` is none.
    pub fn from_errno(errno: c_int) -> Self {
        Self::new(errno).unwrap_or(code::EINVAL)
    }

    /// Returns the errno, negative.
    pub const fn to_errno(self) -> c_int {
        self.0.get()
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Error({})", self.0)
    }
}

impl From<AllocError> for Error {
    fn from(_: AllocError) -> Self {
        code::ENOMEM
    }
}

impl From<TryFromIntError> for Error {
    fn from(_: TryFromIntError) -> Self {
        code::EINVAL
    }
}

impl From<Utf8Error> for Error {
    fn from(_: Utf8Error) -> Self {
        code::EINVAL
    }
}

impl From<fmt::Error> for Error {
    fn from(_: fmt::Error) -> Self {
        code::EINVAL
    }
}

impl From<core::convert::Infallible> for Error {
    fn from(never: core::convert::Infallible) -> Self {
        match never {}
    }
}

/// Converts the result of a C function that returns 0 or a negative errno.
pub fn to_result(err: c_int) -> Result {
    if err < 0 {
        Err(Error::from_errno(err))
    } else {
        Ok(())
    }
}

/// Converts the result of a C function that returns a pointer or an `ERR_PTR()`.
pub fn from_err_ptr<T>(ptr: *mut T) -> Result<*mut T> {
    let value = ptr.cast::<c_void>() as isize;

    if (-(MAX_ERRNO as isize)..0).contains(&value) {
        Err(Error::from_errno(value as c_int))
    } else {
        Ok(ptr)
    }
}
