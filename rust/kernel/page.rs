// SPDX-License-Identifier: GPL-2.0

//! Pages.

use crate::bindings;

/// Bytes of a page of this kernel.
pub const PAGE_SIZE: usize = bindings::ro2ibk_const_RO2IBK_PAGE_SIZE as usize;
