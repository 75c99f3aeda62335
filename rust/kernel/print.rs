// SPDX-License-Identifier: GPL-2.0

//! Printing to the kernel log.
//!
//! A kernel without Rust has no `%pA` in `printk()`, so the text is formatted here, into a buffer on
//! the stack, and handed over as bytes.
//!
//! C header: `include/linux/printk.h`.

use core::{
    ffi::CStr,
    fmt::{
        self,
        Write, //
    }, //
};

use crate::{
    bindings,
    ffi::c_int, //
};

/// Bytes of one line, at most.
const LINE: usize = 512;

/// The levels of `include/linux/kern_levels.h`.
pub mod level {
    /// System is unusable.
    pub const EMERG: u32 = 0;
    /// Error conditions.
    pub const ERR: u32 = 3;
    /// Warning conditions.
    pub const WARNING: u32 = 4;
    /// Informational.
    pub const INFO: u32 = 6;
}

/// A line that is being formatted; what does not fit is left out.
struct Line {
    bytes: [u8; LINE],
    len: usize,
}

impl Write for Line {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        let room = LINE.saturating_sub(self.len);
        let mut take = s.len().min(room);

        // Not within a character.
        while !s.is_char_boundary(take) {
            take = take.saturating_sub(1);
        }
        if let (Some(to), Some(from)) = (
            self.bytes.get_mut(self.len..self.len.saturating_add(take)),
            s.as_bytes().get(..take),
        ) {
            to.copy_from_slice(from);
            self.len = self.len.saturating_add(take);
        }
        Ok(())
    }
}

/// Prints one line. Any context.
#[doc(hidden)]
#[inline(never)]
pub fn call_printk(level: u32, prefix: &'static CStr, args: fmt::Arguments<'_>) {
    let mut line = Line {
        bytes: [0; LINE],
        len: 0,
    };

    // It cannot fail but by the `Display` of an argument: then print what there is.
    let _ = line.write_fmt(args);
    // SAFETY: `prefix` is a string; the bytes are valid for reads for their length.
    unsafe {
        bindings::ro2ibk_printk(
            level as c_int,
            prefix.as_ptr().cast(),
            line.bytes.as_ptr(),
            line.len as c_int,
        )
    }
}

#[doc(hidden)]
#[macro_export]
macro_rules! print_macro {
    ($level:ident, $($arg:tt)*) => {
        $crate::print::call_printk(
            $crate::print::level::$level,
            crate::__LOG_PREFIX,
            ::core::format_args!($($arg)*),
        )
    };
}

/// Prints at level "error".
#[macro_export]
macro_rules! pr_err {
    ($($arg:tt)*) => { $crate::print_macro!(ERR, $($arg)*) };
}

/// Prints at level "warning".
#[macro_export]
macro_rules! pr_warn {
    ($($arg:tt)*) => { $crate::print_macro!(WARNING, $($arg)*) };
}

/// Prints at level "info".
#[macro_export]
macro_rules! pr_info {
    ($($arg:tt)*) => { $crate::print_macro!(INFO, $($arg)*) };
}

/// Prints at level "warning", the first time that it gets here.
#[macro_export]
macro_rules! pr_warn_once {
    ($($arg:tt)*) => {{
        static SAID: $crate::sync::atomic::Atomic<bool> =
            $crate::sync::atomic::Atomic::new(false);

        // Most calls find it said already, and need not write.
        if !SAID.load($crate::sync::atomic::Relaxed)
            && !SAID.xchg(true, $crate::sync::atomic::Relaxed)
        {
            $crate::pr_warn!($($arg)*);
        }
    }};
}
