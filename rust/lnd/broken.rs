// SPDX-License-Identifier: GPL-2.0

//! Whether the RDMA device of an NI has said that it is broken.
//!
//! Any context, hard interrupts included; no lock.

use crate::rdma::atomic::{
    Acquire,
    Atomic,
    Full, //
};

/// What the device said of itself last.
pub(crate) struct Broken(Atomic<bool>);

impl Broken {
    /// Nothing.
    pub(super) fn new() -> Self {
        Self(Atomic::new(false))
    }

    /// It is broken, or not any more; or it is another device.
    pub(super) fn set(&self, broken: bool) {
        let _ = self.0.xchg(broken, Full);
    }

    /// Whether it is.
    pub(crate) fn get(&self) -> bool {
        self.0.load(Acquire)
    }
}
