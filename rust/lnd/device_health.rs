// SPDX-License-Identifier: GPL-2.0

//! Health of the RDMA device of an NI, beyond the state of its link.
//!
//! Context: any, including hard interrupts; no lock.

use crate::{
    policy::device_refuses_posts::PostFailures,
    rdma::atomic::{
        Acquire,
        Atomic,
        Full,
        Relaxed, //
    }, //
};

/// Health of the device.
pub(crate) struct DeviceHealth {
    /// The last event of the device reported a fatal error.
    broken: Atomic<bool>,
    /// No message of the connection manager leaves the device.
    mute: Atomic<bool>,
    /// Consecutive connections that ended because the device rejected a work request ([`PostFailures`]).
    post_failures: Atomic<u64>,
    /// There were so many that the device is not used any more.
    refuses: Atomic<bool>,
}

impl DeviceHealth {
    /// Creates the state of a device without any event.
    pub(super) fn new() -> Self {
        Self {
            broken: Atomic::new(false),
            mute: Atomic::new(false),
            post_failures: Atomic::new(0),
            refuses: Atomic::new(false),
        }
    }

    /// Clears the state for another device.
    pub(super) fn clear(&self) {
        self.set_broken(false);
        let _ = self.mute.xchg(false, Full);
        self.post_failures.store(0, Relaxed);
        let _ = self.refuses.xchg(false, Full);
    }

    /// Sets whether the device has reported a fatal error.
    pub(super) fn set_broken(&self, broken: bool) {
        let _ = self.broken.xchg(broken, Full);
    }

    /// Returns whether the device has reported a fatal error.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken.load(Acquire)
    }

    /// Marks the device as mute until it is created again. Returns whether it was not marked before.
    pub(super) fn set_mute(&self) -> bool {
        !self.mute.xchg(true, Full)
    }

    /// Returns whether the device is mute.
    pub(super) fn is_mute(&self) -> bool {
        self.mute.load(Acquire)
    }

    /// Counts a connection that existed for `lived_ms` milliseconds and ended at `now_ms` because the device rejected a
    /// work request. Returns whether the device is not used any more from now on.
    pub(crate) fn refused_post(&self, lived_ms: u64, now_ms: u64) -> bool {
        let before = PostFailures::from_bits(self.post_failures.load(Relaxed));
        let failures = before.after(lived_ms, now_ms);
        self.post_failures.store(failures.bits(), Relaxed);
        failures.are_many() && !self.refuses.xchg(true, Full)
    }

    /// Returns whether the device rejected so many work requests that it is not used until it is created again.
    pub(super) fn refuses_posts(&self) -> bool {
        self.refuses.load(Acquire)
    }

    /// Returns the health as one word for debugfs.
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
