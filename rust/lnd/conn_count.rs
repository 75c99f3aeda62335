// SPDX-License-Identifier: GPL-2.0

//! How many connections of an NI live, so that its shutdown can wait for the last one.
//!
//! Any context, but for the waiting.

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

/// The connections alive, and one share of the NI's own until shutdown.
#[pin_data]
pub(crate) struct ConnCount {
    count: Atomic<i32>,
    #[pin]
    none: Completion,
}

/// One living connection.
pub(crate) struct ConnGuard(Arc<ConnCount>);

impl ConnCount {
    /// With the NI's share. May sleep.
    pub(crate) fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                count: Atomic::new(1),
                none <- Completion::new(),
            }),
            GFP_KERNEL,
        )
    }

    /// One more.
    pub(crate) fn take(this: &Arc<Self>) -> ConnGuard {
        this.count.fetch_add(1, Full);
        ConnGuard(this.clone())
    }

    /// A share goes.
    pub(crate) fn put(&self) {
        if self.count.fetch_sub(1, Full) == 1 {
            self.none.complete_all();
        }
    }

    /// How many shares there are.
    pub(crate) fn now(&self) -> i32 {
        self.count.load(Relaxed)
    }

    /// Waits until there is none, `ms` milliseconds at most. True: there is none. May sleep.
    pub(crate) fn wait_for_none(&self, ms: u32) -> bool {
        self.none.wait_ms(ms)
    }
}

impl Drop for ConnGuard {
    fn drop(&mut self) {
        self.0.put();
    }
}
