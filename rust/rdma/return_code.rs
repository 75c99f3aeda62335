// SPDX-License-Identifier: GPL-2.0

//! Return codes of C functions, as `Result`. Any context.

use kernel::{
    error::to_result,
    ffi,
    prelude::*, //
};

/// Converts as [`to_result`] does, inlined: each message needs it.
#[inline(always)]
pub(super) fn check(rc: ffi::c_int) -> Result {
    match rc {
        0 => Ok(()),
        _ => to_result(rc),
    }
}
