// SPDX-License-Identifier: GPL-2.0

//! Queueing of the worker that calls LNet, [`super::upcall`].
//!
//! Context: softirq and process, under the connection lock, except for [`Conn::queue_upper`].

use kernel::sync::Arc;

use super::{
    Conn,
    Inner,
    UPPER, //
};
use crate::lnd::timestamp::Timestamp;

impl Conn {
    /// Queues the worker that calls LNet, if there is work for it. `now` decides whether it runs before ordinary tasks:
    /// it is the time of the completion that caused the work.
    #[inline]
    pub(super) fn queue_upcall(self: &Arc<Self>, inner: &mut Inner, now: Timestamp) {
        if has_job(inner) && self.upcall.add_work() {
            self.queue_upper(self.upcall.has_priority(now));
        }
    }

    /// Queues the worker that calls LNet, before ordinary tasks or among them. The caller has noted in `upcall` that it
    /// does: it is in one of the queues at a time.
    pub(super) fn queue_upper(self: &Arc<Self>, priority: bool) {
        let upper = match priority {
            true => &self.ni.workers.upper,
            false => &self.ni.workers.upper_busy,
        };
        let _ = if self.near {
            upper.enqueue::<Self, UPPER>(self.clone())
        } else {
            upper.enqueue_on::<Self, UPPER>(self.cpu, self.clone())
        };
    }
}

/// Returns whether a request waits for LNet, and LNet may have it.
#[inline]
pub(super) fn has_request(inner: &Inner) -> bool {
    !inner.rx_queue.is_empty() && !inner.state.is_unpublished()
}

/// Returns whether the worker would find a job.
#[inline]
pub(super) fn has_job(inner: &Inner) -> bool {
    inner.wire.has_done() || has_request(inner)
}
