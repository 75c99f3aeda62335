// SPDX-License-Identifier: GPL-2.0

//! Scheduling of the worker that calls LNet, and of doorbells: whether to queue the worker and where, what it does
//! next, and whether a new message waits for a doorbell that rings anyway.
//!
//! The worker goes before ordinary tasks, so that a message does not wait for a node that computes. But the amount of
//! its work depends on the peer, which must not take the CPU from all other tasks. So a connection has that priority
//! for [`PRIORITY_NS`] in [`WHILE_NS`], and for no more jobs than are done at a time, and then continues among ordinary
//! tasks (H46).
//!
//! The worker runs on one CPU at a time, whichever queue it is in, because it is queued only when it is not awake.
//!
//! Context: any; the caller holds the connection's lock.

/// Number of messages in flight from which on further messages wait for the next completion, and are posted together.
/// With a smaller number the wire would be idle between two batches.
const RING_BELOW: u32 = 8;

/// Time that the worker of a connection runs before ordinary tasks in [`WHILE_NS`], in nanoseconds: a sixteenth of a
/// CPU. A peer's 32 connections are spread over the CPUs, a few on each. A shorter time would cost more task switches.
pub const PRIORITY_NS: u64 = 1_000_000;

/// Period for [`PRIORITY_NS`], in nanoseconds.
pub const WHILE_NS: u64 = 16_000_000;

/// Work requests in flight to the peer: pushed into the send queue, and not completed.
#[derive(Clone, Copy, Debug)]
pub struct SendsInFlight {
    messages: u32,
}

/// Role of a work request in its chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WrRole {
    /// Message or invalidation: the last of its chain.
    Last,
    /// WRITE or registration in front of it.
    InFront,
}

impl SendsInFlight {
    /// Creates the count with nothing in flight.
    pub const fn new() -> Self {
        Self { messages: 0 }
    }

    /// Counts a work request that was pushed.
    pub fn pushed(&mut self, load: WrRole) {
        if load == WrRole::Last {
            self.messages = self.messages.wrapping_add(1);
        }
    }

    /// Counts a work request that has completed.
    pub fn ended(&mut self, load: WrRole) {
        if load == WrRole::Last {
            self.messages = self.messages.saturating_sub(1);
        }
    }

    /// Returns whether to ring the doorbell for the queued work requests. If not, a completion is certain to arrive and
    /// to ring it: the last work request of each batch asks for one. `corked`: the LNet half rings, too, when it has
    /// done a few jobs, but a job may take for ever. `corked` is called only if its result matters.
    #[inline]
    pub fn rings(&self, corked: impl FnOnce() -> bool) -> bool {
        self.messages == 0 || (self.messages < RING_BELOW && !corked())
    }
}

impl Default for SendsInFlight {
    fn default() -> Self {
        Self::new()
    }
}

/// Next job of the LNet half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextJob {
    /// Finish a transmit.
    Finish,
    /// Give a request to LNet.
    Parse,
    /// No job.
    Rest,
}

/// State of a connection's LNet half for other contexts.
#[derive(Clone, Copy, Debug)]
pub struct UpcallSched {
    /// It was queued, and has not looked for jobs yet.
    queued: bool,
    /// Task that runs it. The task rings the doorbell after a few jobs, and then looks for more. 0: no task runs it.
    owner: i32,
    /// Its last job was to finish a transmit.
    requests_next: bool,
    /// There was more to do than its caller does at a time.
    busy: bool,
    /// Time at which its run time is paid for, in nanoseconds of any monotonic clock. Each run delays it by
    /// [`WHILE_NS`] / [`PRIORITY_NS`] times its own length. The worker has the priority while this time is less than
    /// [`WHILE_NS`] ahead.
    due_ns: u64,
}

impl UpcallSched {
    /// Creates the state of a half that no task runs, and that is not queued.
    pub const fn new() -> Self {
        Self {
            queued: false,
            owner: 0,
            requests_next: false,
            busy: false,
            due_ns: 0,
        }
    }

    /// Returns whether it will look for jobs by itself: it was queued, or runs.
    #[inline]
    pub fn is_awake(&self) -> bool {
        self.queued || self.owner != 0
    }

    /// Notes a new job. Returns true if the caller must queue the half, because it would not find the job by itself.
    pub fn try_wake(&mut self) -> bool {
        if self.is_awake() {
            return false;
        }
        self.queued = true;
        true
    }

    /// Marks the task `me` as its runner. Jobs that are queued from here on may need another look, and messages that it
    /// sends meanwhile wait for its doorbell.
    pub fn begin(&mut self, me: i32) {
        self.queued = false;
        self.owner = me;
    }

    /// Notes that it has no other job. It was called at `began_ns`. From here on nothing waits for it.
    #[inline]
    pub fn go_idle(&mut self, began_ns: u64, now_ns: u64) {
        self.owner = 0;
        self.busy = false;
        self.ran(began_ns, now_ns);
    }

    /// Notes that there may be more jobs, which it does after other tasks: the caller queues it. It was called at
    /// `began_ns`.
    pub fn again(&mut self, began_ns: u64, now_ns: u64) {
        self.owner = 0;
        self.queued = true;
        self.busy = true;
        self.ran(began_ns, now_ns);
    }

    #[inline]
    fn ran(&mut self, began_ns: u64, now_ns: u64) {
        let ns = now_ns.saturating_sub(began_ns);
        let due_ns = self.due_ns.max(began_ns);
        self.due_ns = due_ns.saturating_add(ns.saturating_mul(WHILE_NS / PRIORITY_NS));
    }

    /// Returns whether it goes before ordinary tasks, if it is queued at `now_ns` or shortly after.
    #[inline]
    pub fn has_priority(&self, now_ns: u64) -> bool {
        !self.busy && self.due_ns.saturating_sub(now_ns) < WHILE_NS
    }

    /// Returns whether it has run so long since `began_ns` that other tasks have their turn.
    #[inline]
    pub fn is_long(began_ns: u64, now_ns: u64) -> bool {
        now_ns.saturating_sub(began_ns) >= PRIORITY_NS
    }

    /// Returns the next job. `done`: transmits are to be finished; `requests`: requests are to be parsed. If both, they
    /// alternate, because neither may ever end.
    pub fn pick(&mut self, done: bool, requests: bool) -> NextJob {
        let pick = match (done, requests) {
            (true, true) if self.requests_next => NextJob::Parse,
            (true, _) => NextJob::Finish,
            (false, true) => NextJob::Parse,
            (false, false) => NextJob::Rest,
        };
        self.requests_next = pick == NextJob::Finish;
        pick
    }

    /// Returns whether work requests that are queued now wait for its doorbell. `me` returns the calling task.
    pub fn is_owned_by(&self, me: impl FnOnce() -> i32) -> bool {
        self.owner != 0 && self.owner == me()
    }
}

impl Default for UpcallSched {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(any(test, ro2iblnd_kunit))]
#[cfg_attr(ro2iblnd_kunit, ::kernel::macros::kunit_tests(ro2ib_upcall_sched))]
mod tests {
    use super::*;

    #[test]
    fn upcall_work_is_queued_once() {
        let mut turn = UpcallSched::new();
        assert!(!turn.is_awake() && turn.try_wake());
        assert!(turn.is_awake() && !turn.try_wake());
        turn.begin(7);
        // It will look again by itself.
        assert!(!turn.try_wake());
        turn.go_idle(1, 2);
        assert!(turn.try_wake());
    }

    #[test]
    fn a_chain_is_one_message() {
        let mut flight = SendsInFlight::new();
        for _ in 0..RING_BELOW - 1 {
            for _ in 0..200 {
                flight.pushed(WrRole::InFront);
            }
            flight.pushed(WrRole::Last);
        }
        assert!(flight.rings(|| false));
        flight.pushed(WrRole::Last);
        assert!(!flight.rings(|| false));
        for _ in 0..200 {
            flight.ended(WrRole::InFront);
        }
        assert!(!flight.rings(|| false));
        flight.ended(WrRole::Last);
        assert!(flight.rings(|| false));
    }

    #[test]
    fn nothing_waits_for_a_slow_job() {
        let mut flight = SendsInFlight::new();
        // No completion would come, and the job may take for ever.
        assert!(flight.rings(|| true));
        flight.pushed(WrRole::Last);
        assert!(!flight.rings(|| true));
        flight.ended(WrRole::Last);
        assert!(flight.rings(|| true));
    }

    #[test]
    fn requests_get_their_turn_though_completions_never_end() {
        let mut turn = UpcallSched::new();
        assert_eq!(turn.pick(true, true), NextJob::Finish);
        assert_eq!(turn.pick(true, true), NextJob::Parse);
        assert_eq!(turn.pick(true, true), NextJob::Finish);
        // A request goes first whenever the last job was a transmit.
        assert_eq!(turn.pick(true, false), NextJob::Finish);
        assert_eq!(turn.pick(true, true), NextJob::Parse);
        assert_eq!(turn.pick(false, true), NextJob::Parse);
        assert_eq!(turn.pick(true, true), NextJob::Finish);
        assert_eq!(turn.pick(false, false), NextJob::Rest);
    }

    #[test]
    fn upcall_work_that_yields_is_not_queued_twice() {
        let mut turn = UpcallSched::new();
        assert!(turn.try_wake());
        turn.begin(7);
        turn.again(1, 2);
        assert!(turn.is_awake() && !turn.try_wake() && !turn.is_owned_by(|| 7));
        // It has done too many jobs at a time for the priority, however long that took.
        assert!(!turn.has_priority(u64::MAX));
        turn.begin(8);
        turn.go_idle(1, 2);
        assert!(turn.try_wake() && turn.has_priority(u64::MAX));
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
            let mut turn = UpcallSched::new();
            let mut now = WHILE_NS.saturating_mul(10);
            let (began, mut first) = (now, 0u64);
            assert!(turn.has_priority(now));
            while now < began.saturating_add(WHILE_NS.saturating_mul(1000)) {
                first = first.saturating_add(if turn.has_priority(now) { job } else { 0 });
                turn.go_idle(now, now.saturating_add(job));
                now = now.saturating_add(job).saturating_add(1000);
            }
            // A sixteenth of the time, and its initial budget.
            let most = PRIORITY_NS.saturating_mul(1010).saturating_add(job);
            assert!((1..=most).contains(&first));
            // After a pause it has the priority at once.
            assert!(!turn.has_priority(now));
            assert!(turn.has_priority(u64::MAX));
        }
        // With one message after the other it always has the priority.
        let (mut turn, mut now) = (UpcallSched::new(), WHILE_NS);
        for _ in 0..1000 {
            turn.go_idle(now, now.saturating_add(5_000));
            now = now.saturating_add(85_000);
            assert!(turn.has_priority(now));
        }
    }

    #[test]
    fn upcall_owner_is_its_own_task() {
        let mut turn = UpcallSched::new();
        assert!(!turn.is_owned_by(|| 7));
        turn.begin(7);
        assert!(turn.is_owned_by(|| 7));
        assert!(!turn.is_owned_by(|| 8));
        turn.go_idle(1, 2);
        assert!(!turn.is_owned_by(|| 7));
    }
}
