// SPDX-License-Identifier: GPL-2.0

//! The work queues.

use kernel::prelude::*;

use crate::rdma::work::{
    self,
    OwnedQueue,
    QueueKind, //
};

/// The work queues.
pub(crate) struct Workers {
    /// Set-up, close, release, retries, timers: may take long, order does not matter.
    pub(crate) control: OwnedQueue,
    /// Calls into LNet: on the CPU chosen for the connection, or the one that has handled a completion.
    pub(crate) upper: OwnedQueue,
}

impl Workers {
    /// Makes the queues. May sleep.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            control: OwnedQueue::new(c"ro2iblnd_control", QueueKind::Unbound, false)?,
            upper: OwnedQueue::new(c"ro2iblnd_upper", QueueKind::PerCpu, true)?,
        })
    }

    /// Waits for all that is queued, and for handlers on their way out of our code. May sleep.
    pub(crate) fn flush(&self) {
        self.control.flush();
        self.upper.flush();
        work::wait_for_callers();
    }
}
