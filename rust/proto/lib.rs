// SPDX-License-Identifier: GPL-2.0

//! Root of the host crate of `rust/proto` and `rust/policy`: the same files that the kernel module
//! compiles, for `cargo test`, property tests and model checking.

#![cfg_attr(not(test), no_std)]

#[path = "mod.rs"]
mod proto;

#[path = "../policy/mod.rs"]
pub mod policy;

pub use proto::*;

/// Ends the test that broke an invariant.
#[allow(clippy::panic)]
fn report_broken(what: &'static str) {
    panic!("{what}");
}
