// SPDX-License-Identifier: GPL-2.0

//! In what condition the RDMA device of an NI is, as far as its link does not show it.
//!
//! Any context, hard interrupts included; no lock.

use crate::rdma::atomic::{
    Acquire,
    Atomic,
    Full, //
};

/// What is known of the device.
pub(crate) struct Condition {
    /// It said so last.
    broken: Atomic<bool>,
    /// No message of the connection manager leaves it.
    mute: Atomic<bool>,
}

impl Condition {
    /// Of a device of which nothing was heard.
    pub(super) fn new() -> Self {
        Self {
            broken: Atomic::new(false),
            mute: Atomic::new(false),
        }
    }

    /// It is another device.
    pub(super) fn forget(&self) {
        self.set_broken(false);
        let _ = self.mute.xchg(false, Full);
    }

    /// It says that it is broken, or not any more.
    pub(super) fn set_broken(&self, broken: bool) {
        let _ = self.broken.xchg(broken, Full);
    }

    /// Whether it is, by its own words.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken.load(Acquire)
    }

    /// It is mute, and stays so until it is made anew. True: that is news.
    pub(super) fn set_mute(&self) -> bool {
        !self.mute.xchg(true, Full)
    }

    /// Whether it is mute.
    pub(super) fn is_mute(&self) -> bool {
        self.mute.load(Acquire)
    }

    /// One word for people.
    pub(super) fn as_str(&self) -> &'static str {
        if self.is_broken() {
            "broken"
        } else if self.is_mute() {
            "mute"
        } else {
            "ok"
        }
    }
}
