// SPDX-License-Identifier: GPL-2.0

//! Host crate root of the o2ib protocol rooms: the same files that the kernel
//! module compiles, for `cargo test`, property tests and model checking.

#![cfg_attr(not(test), no_std)]

#[path = "mod.rs"]
mod proto;

pub use proto::*;
