// SPDX-License-Identifier: GPL-2.0

//! Scheduling of the worker that calls LNet, and of doorbells: where to queue the worker, and whether a new message
//! waits for a doorbell that rings anyway.
//!
//! The worker goes before ordinary tasks, so that a message does not wait for a node that computes. But the amount of
//! its work depends on the peer, which must not take the CPU from all other tasks. So a connection has that priority
//! for [`PRIORITY_NS`] in [`WHILE_NS`], and for no more jobs than are done at a time, and then continues among ordinary
//! tasks (H46).
//!
//! Context: any; the caller holds the connection's lock.

use crate::proto::broken;

/// Number of messages in flight from which on further messages wait for the next completion, and are posted together.
/// With a smaller number the wire would be idle between two batches.
const RING_BELOW: u32 = 8;

/// Time that the worker of a connection runs before ordinary tasks in [`WHILE_NS`], in nanoseconds: a sixteenth of a
/// CPU. A peer's 32 connections are spread over the CPUs, a few on each. A shorter time would cost more task switches.
pub const PRIORITY_NS: u64 = 1_000_000;

/// Period for [`PRIORITY_NS`], in nanoseconds.
pub const WHILE_NS: u64 = 16_000_000;

/// Messages and invalidations in flight: pushed into the send queue, and not completed. Work requests in front of a
/// message do not count.
#[derive(Clone, Copy, Debug, Default)]
pub struct SendsInFlight {
    messages: u32,
}

impl SendsInFlight {
    pub fn pushed(&mut self) {
        self.messages = self.messages.wrapping_add(1);
    }

    pub fn ended(&mut self) {
        let left = self.messages.checked_sub(1);
        self.messages = left.unwrap_or_else(|| broken("a send completes twice"));
    }

    /// Returns whether to ring the doorbell for the queued work requests. If not, a completion is certain to arrive and
    /// to ring it: the last work request of each batch asks for one. `corked`: the LNet half rings, too, when it has
    /// done a few jobs, but a job may take for ever. `corked` is called only if its result matters.
    #[inline]
    pub fn rings(&self, corked: impl FnOnce() -> bool) -> bool {
        self.messages == 0 || (self.messages < RING_BELOW && !corked())
    }
}

/// Returns the time at which the run time of the worker is paid for, in nanoseconds of any monotonic clock: `due_ns`
/// before it ran from `began_ns` to `now_ns`. Each run delays that time by [`WHILE_NS`] / [`PRIORITY_NS`] times its own
/// length.
#[inline]
pub fn due_after(due_ns: u64, began_ns: u64, now_ns: u64) -> u64 {
    let ns = now_ns.saturating_sub(began_ns);
    due_ns
        .max(began_ns)
        .saturating_add(ns.saturating_mul(WHILE_NS / PRIORITY_NS))
}

/// Returns whether the worker goes before ordinary tasks, if it is queued at `now_ns` or shortly after: its run time is
/// paid for at `due_ns`, less than [`WHILE_NS`] ahead.
#[inline]
pub fn has_priority(due_ns: u64, now_ns: u64) -> bool {
    due_ns.saturating_sub(now_ns) < WHILE_NS
}

#[cfg(any(test, ro2iblnd_kunit))]
#[cfg_attr(ro2iblnd_kunit, ::kernel::macros::kunit_tests(ro2ib_upcall_sched))]
mod tests {
    use super::*;

    #[test]
    fn test_doorbell_waits_for_messages_in_flight() {
        let mut flight = SendsInFlight::default();
        for _ in 0..RING_BELOW - 1 {
            flight.pushed();
        }
        assert!(flight.rings(|| false));
        flight.pushed();
        assert!(!flight.rings(|| false));
        flight.ended();
        assert!(flight.rings(|| false));
    }

    #[test]
    fn nothing_waits_for_a_slow_job() {
        let mut flight = SendsInFlight::default();
        // No completion would come, and the job may take for ever.
        assert!(flight.rings(|| true));
        flight.pushed();
        assert!(!flight.rings(|| true));
        flight.ended();
        assert!(flight.rings(|| true));
    }

    #[test]
    fn flooding_peer_loses_priority() {
        // It runs all the time, with pauses that are too short for other tasks, a message or a megabyte at a time.
        for job in [
            WHILE_NS / 1000,
            WHILE_NS / 100,
            WHILE_NS / 10,
            WHILE_NS,
            WHILE_NS * 2,
        ] {
            let mut due = 0;
            let mut now = WHILE_NS.saturating_mul(10);
            let (began, mut first) = (now, 0u64);
            assert!(has_priority(due, now));
            while now < began.saturating_add(WHILE_NS.saturating_mul(1000)) {
                first = first.saturating_add(if has_priority(due, now) { job } else { 0 });
                due = due_after(due, now, now.saturating_add(job));
                now = now.saturating_add(job).saturating_add(1000);
            }
            // A sixteenth of the time, and its initial budget.
            let most = PRIORITY_NS.saturating_mul(1010).saturating_add(job);
            assert!((1..=most).contains(&first));
            // After a pause it has the priority at once.
            assert!(!has_priority(due, now));
            assert!(has_priority(due, u64::MAX));
        }
        // With one message after the other it always has the priority.
        let (mut due, mut now) = (0, WHILE_NS);
        for _ in 0..1000 {
            due = due_after(due, now, now.saturating_add(5_000));
            now = now.saturating_add(85_000);
            assert!(has_priority(due, now));
        }
    }
}
