// SPDX-License-Identifier: GPL-2.0

//! The types of C, as the kernel means them: `char` is unsigned, and `long` is as wide as a pointer.

pub use core::ffi::c_void;

/// `char`: unsigned in the kernel (`-funsigned-char`), and treated so on older ones.
#[allow(non_camel_case_types)]
pub type c_char = u8;
/// `signed char`.
#[allow(non_camel_case_types)]
pub type c_schar = i8;
/// `unsigned char`.
#[allow(non_camel_case_types)]
pub type c_uchar = u8;
/// `short`.
#[allow(non_camel_case_types)]
pub type c_short = i16;
/// `unsigned short`.
#[allow(non_camel_case_types)]
pub type c_ushort = u16;
/// `int`.
#[allow(non_camel_case_types)]
pub type c_int = i32;
/// `unsigned int`.
#[allow(non_camel_case_types)]
pub type c_uint = u32;
/// `long`.
#[allow(non_camel_case_types)]
pub type c_long = isize;
/// `unsigned long`.
#[allow(non_camel_case_types)]
pub type c_ulong = usize;
/// `long long`.
#[allow(non_camel_case_types)]
pub type c_longlong = i64;
/// `unsigned long long`.
#[allow(non_camel_case_types)]
pub type c_ulonglong = u64;
