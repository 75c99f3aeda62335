// SPDX-License-Identifier: GPL-2.0

//! How memory may be had.

use crate::bindings;

/// How an allocation may be made (`gfp_t`).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Flags(u32);

impl Flags {
    /// Returns the flags as C has them.
    pub(super) fn as_raw(self) -> u32 {
        self.0
    }
}

impl core::ops::BitOr for Flags {
    type Output = Self;

    fn bitor(self, rhs: Self) -> Self {
        Self(self.0 | rhs.0)
    }
}

/// Process context, may sleep.
pub const GFP_KERNEL: Flags = Flags(bindings::ro2ibk_const_RO2IBK_GFP_KERNEL as u32);
/// Any context, does not sleep, may use reserves.
pub const GFP_ATOMIC: Flags = Flags(bindings::ro2ibk_const_RO2IBK_GFP_ATOMIC as u32);
/// Any context, does not sleep.
pub const GFP_NOWAIT: Flags = Flags(bindings::ro2ibk_const_RO2IBK_GFP_NOWAIT as u32);
/// Prints nothing when there is not enough.
pub const __GFP_NOWARN: Flags = Flags(bindings::ro2ibk_const_RO2IBK_GFP_NOWARN as u32);
