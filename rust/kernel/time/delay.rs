// SPDX-License-Identifier: GPL-2.0

//! Sleeping.
//!
//! C header: `include/linux/delay.h`.

use super::Delta;
use crate::{
    bindings,
    ffi::c_ulong, //
};

/// The longest sleep, as in the in-tree crate: what a 32-bit `unsigned long` has of microseconds.
const LONGEST: Delta = Delta::from_micros(i32::MAX as i64);

/// Sleeps at least that long; [`LONGEST`] if it is negative or longer than that. Process context.
pub fn fsleep(delta: Delta) {
    let delta = if (Delta::ZERO..=LONGEST).contains(&delta) {
        delta
    } else {
        LONGEST
    };

    // SAFETY: We are in process context.
    unsafe { bindings::ro2ibk_fsleep(delta.as_micros_ceil() as c_ulong) }
}
