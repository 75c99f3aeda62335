// SPDX-License-Identifier: GPL-2.0

//! What every file of a module needs.

pub use core::{
    mem::{
        align_of,
        align_of_val,
        size_of,
        size_of_val, //
    },
    pin::Pin, //
};

pub use core::ffi::CStr;

pub use crate::ffi::{
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

pub use crate::macros::kunit_tests;

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
    fmt,
    init::InPlaceInit,
    module,
    pr_alert,
    pr_crit,
    pr_emerg,
    pr_err,
    pr_info,
    pr_notice,
    pr_warn,
    str::CStrExt as _,
    try_init,
    try_pin_init,
    ThisModule, //
};
