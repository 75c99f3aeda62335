// SPDX-License-Identifier: GPL-2.0

//! Build script that puts the declarations of the simulated C where the sources expect bindgen's
//! output.

use std::{
    env,
    fs,
    path::Path, //
};

fn main() {
    let out = env::var("OUT_DIR").expect("cargo says where");
    let decl =
        Path::new(&env::var("CARGO_MANIFEST_DIR").expect("cargo says where")).join("../decl");

    for (from, to) in [("kernel.rs", "rust/kernel"), ("rdma.rs", "rust")] {
        let (from, to) = (decl.join(from), Path::new(&out).join(to));

        println!("cargo:rerun-if-changed={}", from.display());
        fs::create_dir_all(&to).expect("a folder of cargo's");
        fs::copy(&from, to.join("bindings_generated.rs")).expect("a folder of cargo's");
    }
    println!("cargo:rustc-env=RO2IB_OBJ={out}");
    println!("cargo:rustc-cfg=ro2iblnd_sim");
    println!("cargo:rustc-cfg=ro2iblnd_test_hooks");
}
