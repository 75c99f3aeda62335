// SPDX-License-Identifier: GPL-2.0

//! Arming of the timer of a connection. [`super::timer`] has its work.
//!
//! Context: any, with or without the connection lock.

use kernel::sync::Arc;

use super::{
    Conn,
    Inner,
    TIMER, //
};
use crate::rdma::work;

impl Conn {
    /// Arms the timer for `ms` milliseconds, if it is not armed.
    pub(super) fn arm_timer(self: &Arc<Self>, ms: u32) {
        let _ = work::queue_delayed::<Self, TIMER>(self.clone(), ms);
    }

    /// Arms the timer for `ms` milliseconds, whether it is armed or not.
    pub(super) fn rearm_timer(self: &Arc<Self>, ms: u32) {
        work::mod_delayed::<Self, TIMER>(self.clone(), ms);
    }

    /// Arms the timer to check an established connection in `ms` milliseconds, unless a graceful close is under way:
    /// then the timer checks that, and sooner ([`Conn::look_whether_finished`]). Not later than the check of an idle
    /// connection: this call may postpone that check, and deadlines with it.
    pub(super) fn schedule_check(self: &Arc<Self>, inner: &Inner, ms: u32) {
        if !inner.dreq_wait.is_finishing() {
            self.rearm_timer(ms.min(self.timer_ms()));
        }
    }

    /// Cancels the timer; it may be running.
    pub(super) fn cancel_timer(self: &Arc<Self>) {
        let _ = work::cancel::<Self, TIMER>(self);
    }

    /// Returns the milliseconds between two checks of an idle connection: a deadline is noticed within 1.25 times its
    /// value, or a second late if that is more.
    pub(super) fn timer_ms(&self) -> u32 {
        let lnet = &self.ni.lnet;
        let quarter = lnet.timeout().saturating_mul(250);
        let keepalive = lnet
            .keepalive()
            .map_or(u32::MAX, |s| s.saturating_mul(1000));
        quarter.min(keepalive).max(1000)
    }
}
