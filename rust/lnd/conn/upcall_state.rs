// SPDX-License-Identifier: GPL-2.0

//! State of the worker that calls LNet, for the code that gives it work.
//!
//! Work is added with the connection lock held. The worker rests without that lock, unless there is more work.
//!
//! Context: any.
//!
//! # Invariants
//!
//! The worker is in a queue, or runs, or `state` is [`IDLE`]. So it runs on one CPU at a time, whichever queue it is
//! in.

use crate::{
    lnd::timestamp::Timestamp,
    policy::upcall_sched,
    rdma::atomic::{
        Atomic,
        Full,
        Relaxed, //
    }, //
};

/// The worker has no work.
const IDLE: u32 = 0;
/// The worker runs, and has taken all work.
const RUNS: u32 = 1;
/// The worker is in a queue, or runs; there is work that it has not taken.
const WORK: u32 = 2;

/// State of the worker of a connection.
pub(super) struct UpcallState {
    state: Atomic<u32>,
    /// As of [`upcall_sched::due_after`]. Only the worker writes it.
    due_ns: Atomic<u64>,
}

impl UpcallState {
    /// Creates the state of a worker without work.
    pub(super) const fn new() -> Self {
        Self {
            state: Atomic::new(IDLE),
            due_ns: Atomic::new(0),
        }
    }

    /// Notes that work was added. Returns true if the caller must queue the worker.
    #[inline]
    pub(super) fn add_work(&self) -> bool {
        // INVARIANT: If it was idle, the caller queues it.
        self.state.load(Relaxed) != WORK && self.state.xchg(WORK, Full) == IDLE
    }

    /// Notes that messages wait for the doorbell of the worker: the worker does not rest before it has rung. Returns
    /// false if the worker rests already.
    #[inline]
    pub(super) fn add_cork(&self) -> bool {
        self.state.cmpxchg(RUNS, WORK, Full) != Err(IDLE)
    }

    /// Notes that the worker takes all work. It holds the connection lock.
    #[inline]
    pub(super) fn takes(&self) {
        self.state.store(RUNS, Relaxed);
    }

    /// Returns whether there is work that the worker, which runs, has not taken.
    #[inline]
    pub(super) fn has_work(&self) -> bool {
        self.state.load(Relaxed) == WORK
    }

    /// Returns true if there is no more work: from here on the worker does not run.
    #[inline]
    pub(super) fn rests(&self) -> bool {
        // INVARIANT: `state` is idle if it succeeds.
        self.state.cmpxchg(RUNS, IDLE, Full).is_ok()
    }

    /// Notes that the worker, which runs, is about to be queued again.
    pub(super) fn stays(&self) {
        self.state.store(WORK, Relaxed);
    }

    /// Notes a run of the worker; before it rests.
    #[inline]
    pub(super) fn ran(&self, began: Timestamp, now: Timestamp) {
        let due = upcall_sched::due_after(self.due_ns.load(Relaxed), began.ns(), now.ns());
        self.due_ns.store(due, Relaxed);
    }

    /// Returns whether the worker goes before ordinary tasks, if it is queued now.
    #[inline]
    pub(super) fn has_priority(&self, now: Timestamp) -> bool {
        upcall_sched::has_priority(self.due_ns.load(Relaxed), now.ns())
    }
}
