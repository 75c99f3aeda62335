// SPDX-License-Identifier: GPL-2.0

//! Text parameters of the administrator (`access` and `ni_tune`): the shim stores them, and calls this file to parse
//! them. Their language is [`crate::policy::text_params`].
//!
//! Any context, also before the module is initialised: parameters are set first.

use core::fmt::Display;

use kernel::prelude::*;

use crate::{
    bindings,
    policy::text_params::{
        allows,
        count,
        tunables,
        tuning, //
    },
    proto::nid::Nid, //
};

const UNSET: i32 = bindings::ro2ib_tune_RO2IB_TUNE_UNSET;

/// Does not compile if C declares one of these functions with other types: an array has elements of one type.
const _: () = {
    let _ = [bindings::ro2ib_rs_check_access, ro2ib_rs_check_access];
    let _ = [bindings::ro2ib_rs_check_tune, ro2ib_rs_check_tune];
    let _ = [bindings::ro2ib_rs_access_allows, ro2ib_rs_access_allows];
    let _ = [bindings::ro2ib_rs_tuning, ro2ib_rs_tuning];
};

/// Borrows a text of the shim.
///
/// # Safety
///
/// `text` must be valid for reads of `len` bytes as long as the result is used.
unsafe fn text<'a>(text: *const c_char, len: usize) -> Option<&'a str> {
    // SAFETY: By the requirement above.
    let bytes = unsafe { core::slice::from_raw_parts(text.cast::<u8>(), len) };
    core::str::from_utf8(bytes).ok()
}

/// Returns the number of clauses, or an errno.
fn checked(name: &str, result: Result<usize, &dyn Display>) -> c_int {
    match result {
        Ok(clauses) => c_int::try_from(clauses).unwrap_or(c_int::MAX),
        Err(fault) => {
            // The kernel's printing has a formatter of its own; `proto` implements that of `core`.
            pr_err!(
                "{}\n",
                core::format_args!("parameter {name} is wrong at {fault}")
            );
            EINVAL.to_errno()
        }
    }
}

/// Checks a value of `access`.
///
/// # Safety
///
/// Called by the shim: `ptr` is valid for reads of `len` bytes.
#[no_mangle]
unsafe extern "C" fn ro2ib_rs_check_access(ptr: *const c_char, len: usize) -> c_int {
    // SAFETY: By the requirement above.
    match unsafe { text(ptr, len) }
        .map(|text| allows(text, Nid::ANY, Nid::ANY).map(|_| count(text)))
    {
        Some(Ok(clauses)) => checked("access", Ok(clauses)),
        Some(Err(fault)) => checked("access", Err(&fault)),
        None => checked("access", Err(&"a byte that is not UTF-8")),
    }
}

/// Checks a value of `ni_tune`.
///
/// # Safety
///
/// Called by the shim: `ptr` is valid for reads of `len` bytes.
#[no_mangle]
unsafe extern "C" fn ro2ib_rs_check_tune(ptr: *const c_char, len: usize) -> c_int {
    // SAFETY: By the requirement above.
    match unsafe { text(ptr, len) }.map(|text| tuning(text, Nid::ANY).map(|_| count(text))) {
        Some(Ok(clauses)) => checked("ni_tune", Ok(clauses)),
        Some(Err(fault)) => checked("ni_tune", Err(&fault)),
        None => checked("ni_tune", Err(&"a byte that is not UTF-8")),
    }
}

/// Returns whether `access` allows a peer.
///
/// # Safety
///
/// Called by the shim: `ptr` is valid for reads of `len` bytes.
#[no_mangle]
unsafe extern "C" fn ro2ib_rs_access_allows(
    ptr: *const c_char,
    len: usize,
    ni: u64,
    peer: u64,
) -> bool {
    // SAFETY: By the requirement above.
    let text = unsafe { text(ptr, len) };
    // The parameter never takes an invalid text.
    text.and_then(|text| allows(text, Nid::from_raw(ni), Nid::from_raw(peer)).ok())
        .unwrap_or(false)
}

/// Writes the tunables that `ni_tune` sets for an NI.
///
/// # Safety
///
/// Called by the shim: `ptr` is valid for reads of `len` bytes, `out` for a write.
#[no_mangle]
unsafe extern "C" fn ro2ib_rs_tuning(
    ptr: *const c_char,
    len: usize,
    ni: u64,
    out: *mut bindings::ro2ib_tuning,
) {
    // SAFETY: By the requirement above.
    let text = unsafe { text(ptr, len) };
    let found = text.and_then(|text| tuning(text, Nid::from_raw(ni)).ok());
    let found = found.unwrap_or_default();
    macro_rules! to_c {
        ($($(#[$doc:meta])* $key:ident: $lo:expr, $hi:expr $(, or $zero:literal)?;)*) => {
            bindings::ro2ib_tuning { $($key: found.$key.unwrap_or(UNSET),)* }
        };
    }
    let tuning = tunables!(to_c);
    // SAFETY: By the requirement above.
    unsafe { out.write(tuning) };
}
