// SPDX-License-Identifier: GPL-2.0

//! LNet's debug log, which `lctl dk` shows: lines of this driver for administrators who have set its masks (`lctl
//! set_param debug=+net`).
//!
//! When off, a line costs one read of a word and a branch; nothing is formatted. Any context except NMI.

use core::{
    ffi::CStr,
    fmt::{
        self,
        Write, //
    }, //
};

use kernel::prelude::*;

use crate::{
    bindings,
    rdma::atomic::{
        Atomic,
        Relaxed, //
    }, //
};

/// Limit of the bytes of a line; the rest is left out.
const LINE: usize = 240;

/// Limit of the bytes of a record of [`console`]: printk keeps 976 bytes at least, with its prefix.
const RECORD: usize = 900;

/// The mask of a line, with the values of libcfs.
#[derive(Clone, Copy)]
#[repr(u32)]
pub(crate) enum Mask {
    /// `neterror`, which is on by default: something went wrong. Not shown on the console.
    NetError = bindings::ro2ib_dk_mask_RO2IB_DK_NETERROR,
    /// `net`: normal events.
    Net = bindings::ro2ib_dk_mask_RO2IB_DK_NET,
}

/// Place in the source that a line comes from.
pub(crate) struct Site {
    file: &'static CStr,
    module: &'static CStr,
    line: u32,
}

impl Site {
    /// Creates the place, for [`dk!`]: `file` and `module` end with NUL.
    pub(crate) const fn new(file: &'static str, module: &'static str, line: u32) -> Self {
        Self {
            file: terminated(file),
            module: terminated(module),
            line,
        }
    }
}

const fn terminated(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(text) => text,
        Err(_) => c"?",
    }
}

/// The text of a line.
struct Text {
    bytes: [u8; LINE],
    len: usize,
}

impl Write for Text {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        let room = self.bytes.get_mut(self.len..).unwrap_or_default();
        let n = room.len().min(s.len());
        if let (Some(room), Some(text)) = (room.get_mut(..n), s.as_bytes().get(..n)) {
            room.copy_from_slice(text);
            self.len = self.len.saturating_add(n);
        }
        Ok(())
    }
}

/// Returns whether lines of that mask are enabled.
#[inline(always)]
pub(crate) fn wanted(mask: Mask) -> bool {
    // For a measurement of the cost: `make no-dk`.
    if cfg!(ro2iblnd_no_dk) {
        return false;
    }
    // SAFETY: Set when the module is linked, to a word that lives as long as it: of libcfs, on which
    // it depends, or of its own. C writes it as a whole.
    let debug = unsafe { Atomic::from_ptr(bindings::ro2ib_dk_debug.cast_mut()) };
    debug.load(Relaxed) & mask as u32 != 0 && subsystem_wanted()
}

/// Returns whether lines of an LND are enabled.
#[cold]
fn subsystem_wanted() -> bool {
    // SAFETY: As in `wanted`.
    let subsystems = unsafe { Atomic::from_ptr(bindings::ro2ib_dk_subsystems.cast_mut()) };
    subsystems.load(Relaxed) & bindings::ro2ib_dk_mask_RO2IB_DK_LND != 0
}

/// Writes a line, of which a newline at the end is left out. For [`dk!`].
#[cold]
#[inline(never)]
pub(crate) fn line(mask: Mask, site: &Site, args: fmt::Arguments<'_>) {
    let mut text = Text {
        bytes: [0; LINE],
        len: 0,
    };
    // Only the `Display` of an argument can fail: then print the text so far.
    let _ = text.write_fmt(args);
    let bytes = text.bytes.get(..text.len).unwrap_or(&[]);
    let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    put(mask as u32, site, bytes);
}

/// Text of any length.
struct Lines(KVVec<u8>);

impl Write for Lines {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        let added = self.0.extend_from_slice(s.as_bytes(), GFP_KERNEL);
        added.map_err(|_| fmt::Error)
    }
}

/// Writes lines to the console, and to the debug log if there is one. A line that is too long for printk continues in
/// the next one. Not rate limited: only for answers to an administrator's command. May sleep.
///
/// # Errors
///
/// `ENOMEM`.
pub(crate) fn console(args: fmt::Arguments<'_>) -> Result {
    const SITE: Site = Site::new(
        concat!(file!(), "\0"),
        concat!(module_path!(), "\0"),
        line!(),
    );
    let mut text = Lines(KVVec::new());
    text.write_fmt(args).map_err(|_| ENOMEM)?;
    for line in text.0.split(|byte| *byte == b'\n') {
        let mut rest = line;
        while !rest.is_empty() {
            let start = rest.get(..RECORD).unwrap_or_default();
            let end = match start.iter().rposition(|byte| *byte == b' ') {
                Some(blank) => blank.saturating_add(1),
                None => rest.len(),
            };
            let (record, later) = rest.split_at_checked(end).unwrap_or_default();
            put(bindings::ro2ib_dk_mask_RO2IB_DK_CONSOLE, &SITE, record);
            rest = later;
        }
    }
    Ok(())
}

fn put(mask: u32, site: &Site, bytes: &[u8]) {
    // SAFETY: The two strings are static and end with NUL; `bytes` is valid for reads.
    unsafe {
        bindings::ro2ib_dk_line(
            mask,
            site.file.as_char_ptr(),
            site.module.as_char_ptr(),
            site.line,
            bytes.as_ptr().cast(),
            bytes.len() as u32,
        );
    }
}

/// Writes a line to the debug log: a [`Mask`], a format and its arguments, which are only evaluated if the line is
/// enabled.
macro_rules! dk {
    ($mask:ident, $($arg:tt)*) => {
        if $crate::lnet::dk::wanted($crate::lnet::dk::Mask::$mask) {
            const SITE: $crate::lnet::dk::Site = $crate::lnet::dk::Site::new(
                ::core::concat!(::core::file!(), "\0"),
                ::core::concat!(::core::module_path!(), "\0"),
                ::core::line!(),
            );
            $crate::lnet::dk::line(
                $crate::lnet::dk::Mask::$mask,
                &SITE,
                ::core::format_args!($($arg)*),
            );
        }
    };
}
pub(crate) use dk;
