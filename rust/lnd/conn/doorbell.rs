// SPDX-License-Identifier: GPL-2.0

//! Doorbell batching: posts queued transmits now, or leaves them to a flush that is certain to follow.
//!
//! Context: softirq and process context, under the connection lock.

use kernel::sync::Arc;

use super::{
    close_reason::CloseReason,
    wire::pump::FastPathLimits,
    Conn,
    Inner, //
};
use crate::lnd::timestamp::Timestamp;

impl Conn {
    /// Posts the transmits that may be sent. Posts a NOOP if there is no other message, and the driver must probe the
    /// peer, or the peer needs credits.
    pub(super) fn pump(self: &Arc<Self>, inner: &mut Inner, probe: bool) {
        self.pump_at(inner, probe, None);
    }

    /// Posts them as [`Conn::pump`] does, for a caller that has just read the clock.
    #[inline(always)]
    pub(super) fn pump_at(
        self: &Arc<Self>,
        inner: &mut Inner,
        probe: bool,
        now: Option<Timestamp>,
    ) {
        // The usual case.
        if inner.state.is_up() && (probe || !inner.wire.is_idle()) {
            self.pump_if_due(inner, probe, now);
        }
    }

    // Separate function, so that the caller saves no registers.
    #[inline(never)]
    fn pump_now(
        self: &Arc<Self>,
        inner: &mut Inner,
        probe: bool,
        patient: bool,
        now: Option<Timestamp>,
    ) {
        let now = now.unwrap_or_else(Timestamp::now);
        let cksum = self.ni.cksum();
        if let Err(cause) = inner.wire.pump(probe, patient, now, cksum) {
            self.blame(inner, CloseReason::Post(cause));
        }
    }

    /// Rings the doorbell for the queued work requests, unless it will ring soon anyway.
    #[inline(always)]
    pub(super) fn ring(self: &Arc<Self>, inner: &mut Inner, now: Timestamp) {
        if self.rings(inner) {
            self.pump_at(inner, false, Some(now));
        }
    }

    /// Returns whether a transmit that is built now may be posted immediately, and with which limits: if the doorbell
    /// rings for it.
    #[inline(always)]
    pub(super) fn at_once(&self, inner: &Inner) -> Option<FastPathLimits> {
        self.rings(inner)
            .then(|| FastPathLimits::new(!inner.rx_queue.is_empty(), self.ni.cksum()))
    }

    /// Posts the transmits that may be sent, if any is due. Only while the connection is established.
    #[inline(never)]
    pub(super) fn pump_if_due(
        self: &Arc<Self>,
        inner: &mut Inner,
        probe: bool,
        now: Option<Timestamp>,
    ) {
        let patient = !inner.rx_queue.is_empty();
        // The LNet half returns the credits of these requests, and pumps. The peer gets no early credits while some
        // requests wait for their turn with LNet: those will reach the high-water mark.
        let probe = probe || (!patient && inner.wire.starves_peer());
        if !inner.wire.is_blocked(probe, patient) {
            self.pump_now(inner, probe, patient, now);
        }
    }

    /// Returns whether the doorbell rings for the work requests that are queued now. If not because the worker that
    /// calls LNet sends them, that worker rings when LNet has returned.
    #[inline]
    fn rings(&self, inner: &Inner) -> bool {
        let corked = || inner.upcall_task == kernel::current!().pid() && self.upcall.add_cork();
        inner.wire.rings(corked)
    }
}
