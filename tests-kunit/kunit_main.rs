// SPDX-License-Identifier: GPL-2.0

//! KUnit suites of ro2iblnd, a module of their own: `make KUNIT_TESTS=1`.

// With KUNIT=m the suites would vanish without a word.
#[cfg(not(CONFIG_KUNIT = "y"))]
compile_error!("these tests need a kernel with CONFIG_KUNIT=y");

use kernel::{
    pr_warn_once,
    prelude::*, //
};

#[path = "../rust/bindings.rs"]
mod bindings;
// Its suites are inside it, and run here under the driver's compiler flags.
#[path = "../rust/policy/mod.rs"]
mod policy;
#[path = "../rust/proto/mod.rs"]
mod proto;
#[path = "../rust/rdma/mod.rs"]
mod rdma;

#[path = "debugfs.rs"]
mod debugfs_tests;
#[path = "kernel_crate.rs"]
mod kernel_crate_tests;
#[cfg(CONFIG_KCSAN)]
#[path = "deliberate_race.rs"]
mod races_tests;
#[path = "rcu_map.rs"]
mod rcu_map_tests;
#[path = "rdma.rs"]
mod rdma_tests;
#[path = "work.rs"]
mod work_tests;

module! {
    type: Tests,
    name: "ro2iblnd_kunit",
    authors: ["The ro2iblnd authors"],
    description: "KUnit suites of ro2iblnd",
    license: "GPL v2",
}

/// Logs the first broken invariant that `proto` or `policy` reports.
fn report_broken(what: &'static str) {
    pr_warn_once!("internal error: {what}\n");
}

struct Tests;

impl kernel::Module for Tests {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        rdma::layout_check::check()?;
        Ok(Self)
    }
}
