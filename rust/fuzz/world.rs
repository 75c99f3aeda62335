// SPDX-License-Identifier: GPL-2.0

//! Fuzzes the whole driver: a simulated world of two nodes, of which one is foul, as the bytes say.
//!
//! The first bytes are the configuration, which operations there are, which call fails and what happens
//! to a node (`Script::foul` in `rust/sim/src/scenario.rs`); the others are a script of what the second
//! node makes of its messages, WRITEs and private data (`rust/sim/ksim/src/byzantine.rs`). The rules for
//! a world (Documentation/simulation.md) have to hold. With `RO2IB_SIM_LIVE=1` an input tells its story.

#![no_main]

use std::env;

use libfuzzer_sys::fuzz_target;

#[path = "../sim/src/monotonic_check.rs"]
mod monotonic_check;
#[path = "../sim/src/scenario.rs"]
#[allow(dead_code)]
mod scenario;
#[path = "../sim/src/true_counts_check.rs"]
mod true_counts_check;

fuzz_target!(|bytes: &[u8]| {
    let Some((script, foul)) = scenario::Script::foul(bytes) else {
        return;
    };
    let tell = env::var_os("RO2IB_SIM_LIVE").is_some();
    let end = scenario::run_with(script, Some(foul), tell);
    if let Some(what) = end.failed {
        panic!("{what}");
    }
});
