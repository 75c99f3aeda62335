// SPDX-License-Identifier: GPL-2.0

//! pinned-init under the kernel's name for it.

#![no_std]

pub use pinned_init::*;
