// SPDX-License-Identifier: GPL-2.0

//! pinned-init by the name that the kernel has for it.

#![no_std]

pub use pinned_init::*;
