// SPDX-License-Identifier: GPL-2.0

//! Return codes of C, on the way of each message. Any context.

use kernel::{
    error::to_result,
    ffi,
    prelude::*, //
};

/// As [`to_result`], which is a call.
#[inline(always)]
pub(super) fn check(rc: ffi::c_int) -> Result {
    match rc {
        0 => Ok(()),
        _ => to_result(rc),
    }
}
