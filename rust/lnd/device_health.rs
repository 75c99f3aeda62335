// SPDX-License-Identifier: GPL-2.0

//! In what condition the RDMA device of an NI is, as far as its link does not show it.
//!
//! Any context, hard interrupts included; no lock.

use crate::{
    policy::post_failures::PostFailures,
    rdma::atomic::{
        Acquire,
        Atomic,
        Full,
        Relaxed, //
    }, //
};

/// What is known of the device.
pub(crate) struct DeviceHealth {
    /// It said so last.
    broken: Atomic<bool>,
    /// No message of the connection manager leaves it.
    mute: Atomic<bool>,
    /// Connections that ended in a row because the device refused a work request ([`PostFailures`]).
    post_failures: Atomic<u64>,
    /// These were so many that the device is not used any more.
    refuses: Atomic<bool>,
}

impl DeviceHealth {
    /// Of a device of which nothing was heard.
    pub(super) fn new() -> Self {
        Self {
            broken: Atomic::new(false),
            mute: Atomic::new(false),
            post_failures: Atomic::new(0),
            refuses: Atomic::new(false),
        }
    }

    /// It is another device.
    pub(super) fn forget(&self) {
        self.set_broken(false);
        let _ = self.mute.xchg(false, Full);
        self.post_failures.store(0, Relaxed);
        let _ = self.refuses.xchg(false, Full);
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

    /// Counts a connection that lived for `lived_ms` milliseconds and ended at `now_ms` because the
    /// device refused a work request. Returns whether the device is not used any more from now on.
    pub(crate) fn refused_post(&self, lived_ms: u64, now_ms: u64) -> bool {
        let before = PostFailures::from_bits(self.post_failures.load(Relaxed));
        let failures = before.after(lived_ms, now_ms);
        self.post_failures.store(failures.bits(), Relaxed);
        failures.are_many() && !self.refuses.xchg(true, Full)
    }

    /// Returns whether it refused so many work requests that it is not used until it is made again.
    pub(super) fn refuses_posts(&self) -> bool {
        self.refuses.load(Acquire)
    }

    /// One word for people.
    pub(super) fn as_str(&self) -> &'static str {
        if self.is_broken() {
            "broken"
        } else if self.is_mute() {
            "gsi_dead"
        } else if self.refuses_posts() {
            "refuses"
        } else {
            "ok"
        }
    }
}
