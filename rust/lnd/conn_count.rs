// SPDX-License-Identifier: GPL-2.0

//! Number of live connections of an NI, so that its shutdown can wait for the last one.
//!
//! Context: any, except that waiting sleeps.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use crate::rdma::{
    atomic::{
        Atomic,
        Full,
        Relaxed, //
    },
    sync::Completion, //
};

/// Number of live connections, plus one share of the NI until shutdown.
#[pin_data]
pub(crate) struct ConnCount {
    count: Atomic<i32>,
    #[pin]
    none: Completion,
}

/// Share of one live connection.
pub(crate) struct ConnGuard(Arc<ConnCount>);

impl ConnCount {
    /// Creates a count with the NI's share. May sleep.
    pub(crate) fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                count: Atomic::new(1),
                none <- Completion::new(),
            }),
            GFP_KERNEL,
        )
    }

    /// Adds a share.
    pub(crate) fn take(this: &Arc<Self>) -> ConnGuard {
        this.count.fetch_add(1, Full);
        ConnGuard(this.clone())
    }

    /// Drops a share.
    pub(crate) fn put(&self) {
        if self.count.fetch_sub(1, Full) == 1 {
            self.none.complete_all();
        }
    }

    /// Returns the number of shares.
    pub(crate) fn now(&self) -> i32 {
        self.count.load(Relaxed)
    }

    /// Waits until there is no share, for at most `ms` milliseconds. Returns whether there is none. May sleep.
    pub(crate) fn wait_for_none(&self, ms: u32) -> bool {
        self.none.wait_ms(ms)
    }
}

impl Drop for ConnGuard {
    fn drop(&mut self) {
        self.0.put();
    }
}
