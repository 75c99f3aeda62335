// SPDX-License-Identifier: GPL-2.0

//! Whose turn it is with LNet, and whose doorbell: whether the worker that calls LNet has to be queued and where, what
//! it does next, and whether what is sent meanwhile waits for a doorbell that somebody will ring anyway.
//!
//! The worker goes before ordinary tasks, so that a message does not wait for a node that computes. But a peer decides
//! how much there is for it to do, and must not take the CPU from all else: a connection has that priority for
//! [`PRIORITY_NS`] in [`WHILE_NS`], and for no more jobs than are done at a time, and then goes on among ordinary tasks
//! (H46).
//!
//! It runs on one CPU at a time whichever queue it is in: it is queued only when it is not awake.
//!
//! Context: any; the caller holds the connection's lock.

/// Messages under way from which on further ones wait for the next completion, to go together. Fewer would
/// keep the wire idle between two batches.
const RING_BELOW: u32 = 8;

/// Nanoseconds that the worker of a connection runs before ordinary tasks in [`WHILE_NS`]: a sixteenth of a CPU, and of
/// a peer's 32 connections, spread over the CPUs, there are a few on each. A shorter while would cost more changes of
/// task.
pub const PRIORITY_NS: u64 = 1_000_000;

/// Nanoseconds in which that is so.
pub const WHILE_NS: u64 = 16_000_000;

/// What is under way to the peer: pushed into the send queue, and not ended.
#[derive(Clone, Copy, Debug)]
pub struct SendsInFlight {
    messages: u32,
}

/// What a work request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WrRole {
    /// A message, or an invalidation: the last of its chain.
    Last,
    /// What goes in front of it: a WRITE, a registration.
    InFront,
}

impl SendsInFlight {
    /// Nothing.
    pub const fn new() -> Self {
        Self { messages: 0 }
    }

    /// A work request was pushed.
    pub fn pushed(&mut self, load: WrRole) {
        if load == WrRole::Last {
            self.messages = self.messages.wrapping_add(1);
        }
    }

    /// A work request has ended.
    pub fn ended(&mut self, load: WrRole) {
        if load == WrRole::Last {
            self.messages = self.messages.saturating_sub(1);
        }
    }

    /// Whether the doorbell rings for what is queued now. If not a completion is certain to come, which rings:
    /// the last work request of each batch asks for one. `corked`: the LNet half rings, too, when it is through
    /// with a few jobs, but one of them may take for ever. It is asked only if it matters.
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

/// What the LNet half does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextJob {
    /// Finish a transmit.
    Finish,
    /// Give a request to LNet.
    Parse,
    /// Nothing.
    Rest,
}

/// The LNet half of a connection, as the others see it.
#[derive(Clone, Copy, Debug)]
pub struct UpcallSched {
    /// It was queued, and has not looked yet.
    queued: bool,
    /// The task that runs it, rings the doorbell when it is through with a few jobs, and will look for
    /// more; 0 is nobody.
    owner: i32,
    /// The last that it did was to finish a transmit.
    requests_next: bool,
    /// There was more to do than its caller does at a time.
    busy: bool,
    /// When the time that it ran is paid for: each run puts that off by [`WHILE_NS`] / [`PRIORITY_NS`] times its own
    /// length. It has the priority while less than [`WHILE_NS`] of that is ahead. On any clock that does not go back,
    /// in nanoseconds.
    due_ns: u64,
}

impl UpcallSched {
    /// Nobody runs it, and it is not queued.
    pub const fn new() -> Self {
        Self {
            queued: false,
            owner: 0,
            requests_next: false,
            busy: false,
            due_ns: 0,
        }
    }

    /// Whether it will look for more by itself: it was queued, or runs.
    #[inline]
    pub fn is_awake(&self) -> bool {
        self.queued || self.owner != 0
    }

    /// There is something for it. True: the caller queues it, for it would not see it by itself.
    pub fn wake(&mut self) -> bool {
        if self.is_awake() {
            return false;
        }
        self.queued = true;
        true
    }

    /// The task `me` looks for a job. What is queued from here on may need to be looked at once more, and
    /// what it sends meanwhile waits for its doorbell.
    pub fn begin(&mut self, me: i32) {
        self.queued = false;
        self.owner = me;
    }

    /// It was called at `began_ns`, and has no other job: from here on nothing waits for it.
    #[inline]
    pub fn rests(&mut self, began_ns: u64, now_ns: u64) {
        self.owner = 0;
        self.busy = false;
        self.ran(began_ns, now_ns);
    }

    /// It was called at `began_ns`, and there may be more, which it does when others had their turn: the caller queues
    /// it.
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

    /// Whether it goes before ordinary tasks, if it is queued at `now_ns`, or not much later.
    #[inline]
    pub fn has_priority(&self, now_ns: u64) -> bool {
        !self.busy && self.due_ns.saturating_sub(now_ns) < WHILE_NS
    }

    /// Whether it has run for so long, since `began_ns`, that it is the turn of others.
    #[inline]
    pub fn is_long(began_ns: u64, now_ns: u64) -> bool {
        now_ns.saturating_sub(began_ns) >= PRIORITY_NS
    }

    /// What comes next, if there are transmits to be finished, or requests to be parsed: if both, in turn, for
    /// neither may ever end.
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

    /// Whether what is queued now waits for it. `me` says who asks.
    pub fn holds(&self, me: impl FnOnce() -> i32) -> bool {
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
    fn it_is_queued_once() {
        let mut turn = UpcallSched::new();
        assert!(!turn.is_awake() && turn.wake());
        assert!(turn.is_awake() && !turn.wake());
        turn.begin(7);
        // It will look again by itself.
        assert!(!turn.wake());
        turn.rests(1, 2);
        assert!(turn.wake());
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
        // It is theirs whenever there was only the other.
        assert_eq!(turn.pick(true, false), NextJob::Finish);
        assert_eq!(turn.pick(true, true), NextJob::Parse);
        assert_eq!(turn.pick(false, true), NextJob::Parse);
        assert_eq!(turn.pick(true, true), NextJob::Finish);
        assert_eq!(turn.pick(false, false), NextJob::Rest);
    }

    #[test]
    fn it_is_not_queued_twice_when_others_have_their_turn() {
        let mut turn = UpcallSched::new();
        assert!(turn.wake());
        turn.begin(7);
        turn.again(1, 2);
        assert!(turn.is_awake() && !turn.wake() && !turn.holds(|| 7));
        // It has done too much at a time for a priority, however long that took.
        assert!(!turn.has_priority(u64::MAX));
        turn.begin(8);
        turn.rests(1, 2);
        assert!(turn.wake() && turn.has_priority(u64::MAX));
    }

    #[test]
    fn who_floods_has_no_priority_for_long() {
        // All the time, with pauses that are too short for anybody else, a message or a megabyte at a time.
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
                turn.rests(now, now.saturating_add(job));
                now = now.saturating_add(job).saturating_add(1000);
            }
            // A sixteenth of the time, and what it has to begin with.
            let most = PRIORITY_NS.saturating_mul(1010).saturating_add(job);
            assert!((1..=most).contains(&first));
            // After a pause it has it at once.
            assert!(!turn.has_priority(now));
            assert!(turn.has_priority(u64::MAX));
        }
        // One message after the other has it always.
        let (mut turn, mut now) = (UpcallSched::new(), WHILE_NS);
        for _ in 0..1000 {
            turn.rests(now, now.saturating_add(5_000));
            now = now.saturating_add(85_000);
            assert!(turn.has_priority(now));
        }
    }

    #[test]
    fn only_what_it_sends_itself_waits_for_it() {
        let mut turn = UpcallSched::new();
        assert!(!turn.holds(|| 7));
        turn.begin(7);
        assert!(turn.holds(|| 7));
        assert!(!turn.holds(|| 8));
        turn.rests(1, 2);
        assert!(!turn.holds(|| 7));
    }
}
