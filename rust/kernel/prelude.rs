// SPDX-License-Identifier: GPL-2.0

//! Items that every file of a module needs.

pub use core::{
    ffi::CStr,
    mem::{
        align_of,
        align_of_val,
        size_of,
        size_of_val, //
    },
    pin::Pin, //
};

pub use pin_init::{
    init,
    pin_data,
    pin_init,
    pinned_drop,
    InPlaceWrite,
    Init,
    PinInit,
    Zeroable, //
};

pub use crate::{
    alloc::{
        flags::*,
        Box,
        KBox,
        KVVec,
        KVec,
        Vec, //
    },
    current,
    error::{
        code::*,
        Error,
        Result, //
    },
    ffi::{
        c_char,
        c_int,
        c_long,
        c_longlong,
        c_schar,
        c_short,
        c_uchar,
        c_uint,
        c_ulong,
        c_ulonglong,
        c_ushort,
        c_void, //
    },
    fmt,
    init::InPlaceInit,
    macros::kunit_tests,
    module,
    pr_err,
    pr_info,
    pr_warn,
    str::CStrExt as _,
    try_pin_init,
    ThisModule, //
};
