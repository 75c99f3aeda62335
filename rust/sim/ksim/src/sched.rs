// SPDX-License-Identifier: GPL-2.0

//! Tasks, time, and the choice of the next task.
//!
//! A task is a coroutine with a stack of its own: a work item, a completion handler, an event of
//! the CM, a caller of LNet. One of them runs at a time. At each [`point`] (a lock, an atomic, a
//! call of the simulated C) the scheduler may run another task. The seed determines the choice, so
//! the same seed repeats the run. Tasks are coroutines and not threads: a switch is a few
//! instructions, and a small world takes less than a millisecond.
//!
//! Time is a number. It advances a little with each step, and jumps to the next event when no task
//! can run; sometimes it jumps although a task could run: that task was slow then.
//!
//! # Invariants
//!
//! A task that is runnable is in `runnable`, once. An event belongs to no task: it only changes
//! state and wakes or starts tasks, and never calls the driver.

use std::{
    cell::RefCell,
    cmp::Reverse,
    collections::BinaryHeap,
    mem::ManuallyDrop, //
};

use corosensei::{
    stack::DefaultStack,
    Coroutine,
    CoroutineResult,
    Yielder, //
};

use crate::{
    lock::Held,
    rng::{
        Rarely,
        Rng, //
    },
    world::{
        violation,
        w, //
    }, //
};

/// Number of a task; never used again.
pub type Tid = usize;

/// No task: the scheduler itself, or an event.
pub const NONE: Tid = usize::MAX;

/// Size of a stack in bytes; only touched pages take memory.
const STACK: usize = 256 << 10;

/// Microsecond of the simulated time, which is in nanoseconds.
pub const US: u64 = 1_000;
/// Millisecond.
pub const MS: u64 = 1_000_000;
/// Second.
pub const SEC: u64 = 1_000_000_000;

/// Context of a task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// The task may sleep.
    Process,
    /// The task must not sleep, and no other softirq of its CPU runs meanwhile.
    Softirq,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Runnable,
    Blocked(usize),
    Done,
}

type Co = Coroutine<(), (), (), DefaultStack>;

pub struct Task {
    /// Name for the story.
    pub name: &'static str,
    /// Node of the task.
    pub node: usize,
    /// Context of the task.
    pub kind: Kind,
    /// Locks that the task holds, in order.
    pub held: Vec<Held>,
    /// Depth of `memalloc_nofs_save()`.
    pub nofs: u32,
    /// Depth of `rcu_read_lock()`.
    pub rcu: u32,
    /// A file system may wait for the task: it is no operation of an administrator.
    pub for_storage: bool,
    /// Depth of calls of LNet that send or receive a message.
    pub for_lnet: u32,
    state: State,
    at: usize,
    /// Next task that sleeps in the same bucket, or [`NONE`].
    before: Tid,
    behind: Tid,
    prio: u64,
    timed: u64,
    timed_out: bool,
    co: Option<ManuallyDrop<Co>>,
    start: Option<Box<dyn FnOnce()>>,
    /// Returns a key if the task must not begin before that key is woken.
    gate: Option<Box<dyn FnMut() -> Option<usize>>>,
    yielder: *const Yielder<(), ()>,
}

struct Event {
    when: u64,
    seq: u64,
    what: Box<dyn FnOnce()>,
}

impl PartialEq for Event {
    fn eq(&self, other: &Self) -> bool {
        (self.when, self.seq) == (other.when, other.seq)
    }
}
impl Eq for Event {}
impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Event {
    fn cmp(&self, other: &Self) -> core::cmp::Ordering {
        (self.when, self.seq).cmp(&(other.when, other.seq))
    }
}

/// Sleeping tasks, in buckets by a hash of the key; the lists are linked through the tasks.
///
/// INVARIANT: a task that is `Blocked` by a key that a task may wake is in the list of its place.
struct Sleeping {
    /// First task of each bucket.
    places: Vec<Tid>,
}

impl Sleeping {
    fn new(places: usize) -> Self {
        Self {
            places: vec![NONE; places.next_power_of_two()],
        }
    }

    fn place(&self, key: usize) -> usize {
        let hash = (key >> 3).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (hash >> 32) & (self.places.len() - 1)
    }

    fn add(&mut self, tasks: &mut [Task], key: usize, tid: Tid) {
        if key == NAP {
            return;
        }
        let place = self.place(key);
        let first = core::mem::replace(&mut self.places[place], tid);
        tasks[tid].before = NONE;
        tasks[tid].behind = first;
        if first != NONE {
            tasks[first].before = tid;
        }
    }

    fn remove(&mut self, tasks: &mut [Task], key: usize, tid: Tid) {
        if key == NAP {
            return;
        }
        let (before, behind) = (tasks[tid].before, tasks[tid].behind);
        if before == NONE {
            let place = self.place(key);
            self.places[place] = behind;
        } else {
            tasks[before].behind = behind;
        }
        if behind != NONE {
            tasks[behind].before = before;
        }
    }
}

/// Policy by which the next task is chosen.
#[derive(Clone, Copy, Debug)]
pub enum Policy {
    /// At a point a random other task runs, in this number of a million cases.
    Random(u32),
    /// The task with the highest priority always runs; at a point the priority of the current task
    /// becomes the lowest in this number of a million cases (probabilistic concurrency testing).
    Priority(u32),
}

/// Scheduler of a world.
pub struct Sched {
    /// Nanoseconds since the world began.
    pub now: u64,
    /// Task that runs.
    pub current: Tid,
    /// Tasks of the world, ended ones too.
    pub tasks: Vec<Task>,
    /// Number of resumes of tasks.
    pub steps: u64,
    /// Number of points.
    pub points: u64,
    policy: Policy,
    /// Event that the policy switches to another task.
    switch: Rarely,
    /// Number of steps of a million in which time jumps although a task could run.
    pub jump_ppm: u32,
    /// Longest jump.
    pub jump_max: u64,
    /// Event that the task loses its CPU at a point, and sleeps for a while.
    stall: Rarely,
    /// Longest such sleep.
    stall_max: u64,
    rng: Rng,
    runnable: Vec<Tid>,
    /// Softirqs and completion handlers that have not ended, by node.
    callers: Vec<Vec<Tid>>,
    sleeping: Sleeping,
    hash: u64,
    events: BinaryHeap<Reverse<Event>>,
    seq: u64,
}

thread_local! {
    static STACKS: RefCell<Vec<DefaultStack>> = const { RefCell::new(Vec::new()) };
}

impl Sched {
    /// Creates a scheduler without tasks.
    pub fn new(rng: Rng) -> Self {
        Self {
            now: 1000 * SEC,
            current: NONE,
            // Enough for nearly all worlds.
            tasks: Vec::with_capacity(512),
            steps: 0,
            points: 0,
            policy: Policy::Random(0),
            switch: Rarely::NEVER,
            jump_ppm: 0,
            jump_max: 0,
            stall: Rarely::NEVER,
            stall_max: 0,
            rng,
            runnable: Vec::with_capacity(32),
            callers: Vec::new(),
            sleeping: Sleeping::new(64),
            hash: 0,
            events: BinaryHeap::with_capacity(256),
            seq: 0,
        }
    }

    /// Sets the policy for the choice of the next task.
    pub fn choose(&mut self, policy: Policy) {
        let (Policy::Random(ppm) | Policy::Priority(ppm)) = policy;
        self.policy = policy;
        self.switch = Rarely::new(ppm, &mut self.rng);
    }

    /// Makes a task lose its CPU at `ppm` of a million points from now on, for at most `max`
    /// nanoseconds.
    pub fn stall(&mut self, ppm: u32, max: u64) {
        self.stall = Rarely::new(ppm, &mut self.rng);
        self.stall_max = max;
    }

    fn make_runnable(&mut self, tid: Tid) {
        let at = self.runnable.len();
        let task = &mut self.tasks[tid];
        task.state = State::Runnable;
        task.at = at;
        self.runnable.push(tid);
    }

    fn not_runnable(&mut self, tid: Tid) {
        let at = self.tasks[tid].at;
        self.runnable.swap_remove(at);
        if let Some(moved) = self.runnable.get(at) {
            self.tasks[*moved].at = at;
        }
    }

    fn pick(&mut self) -> Tid {
        match self.policy {
            Policy::Random(_) => {
                let n = self.rng.below(self.runnable.len() as u64) as usize;
                self.runnable[n]
            }
            Policy::Priority(_) => {
                let tasks = &self.tasks;
                *self
                    .runnable
                    .iter()
                    .max_by_key(|t| (tasks[**t].prio, Reverse(**t)))
                    .expect("somebody is runnable")
            }
        }
    }

    /// Returns whether the current task lets another task run here.
    #[inline]
    fn switches(&mut self) -> bool {
        match self.policy {
            Policy::Random(_) => self.runnable.len() > 1 && self.switch.is(&mut self.rng),
            Policy::Priority(_) => {
                if !self.switch.is(&mut self.rng) {
                    return false;
                }
                let low = self.seq;
                self.seq += 1;
                // Lower than any initial priority.
                self.tasks[self.current].prio = u64::from(u32::MAX).saturating_sub(low);
                true
            }
        }
    }
}

/// Starts a task.
pub fn spawn(node: usize, kind: Kind, name: &'static str, f: impl FnOnce() + 'static) -> Tid {
    let s = &mut w().sched;
    let tid = s.tasks.len();
    let prio = (1 << 33) + (s.rng.u64() >> 32);

    s.tasks.push(Task {
        name,
        node,
        kind,
        held: Vec::with_capacity(4),
        nofs: 0,
        rcu: 0,
        for_storage: for_storage(name),
        for_lnet: 0,
        state: State::Runnable,
        at: 0,
        before: NONE,
        behind: NONE,
        prio,
        timed: 0,
        timed_out: false,
        co: None,
        start: Some(Box::new(f)),
        gate: None,
        yielder: core::ptr::null(),
    });
    s.make_runnable(tid);
    if calls(kind, name) {
        if s.callers.len() <= node {
            s.callers.resize_with(node + 1, Vec::new);
        }
        s.callers[node].push(tid);
    }
    tid
}

/// Starts a task that begins when `gate` returns no key to wait for. A task that waits at its gate
/// has no stack.
pub fn spawn_gated(
    node: usize,
    name: &'static str,
    gate: impl FnMut() -> Option<usize> + 'static,
    f: impl FnOnce() + 'static,
) -> Tid {
    let tid = spawn(node, Kind::Process, name, f);
    w().sched.tasks[tid].gate = Some(Box::new(gate));
    tid
}

/// Returns whether the current task has that name.
pub fn is_running(name: &str) -> bool {
    let s = &w().sched;
    s.tasks.get(s.current).is_some_and(|task| task.name == name)
}

/// Returns whether a file system may wait for the task with that name: all but operations of
/// administrators.
fn for_storage(name: &str) -> bool {
    let config = ["up", "down", "happens", "boot", "ib_event"].contains(&name);
    !config && !name.starts_with("Ni::") && !name.starts_with("Driver::")
}

fn calls(kind: Kind, name: &str) -> bool {
    kind == Kind::Softirq || name == "cq"
}

/// Returns the softirqs and completion handlers of a node that have not ended.
pub fn callers(node: usize) -> Vec<Tid> {
    let s = &w().sched;
    s.callers.get(node).cloned().unwrap_or_default()
}

impl Sched {
    /// Makes a runnable task sleep on a key. Returns the number of its sleep.
    fn block(&mut self, tid: Tid, key: usize) -> u64 {
        self.not_runnable(tid);
        let task = &mut self.tasks[tid];
        task.state = State::Blocked(key);
        task.timed += 1;
        task.timed_out = false;
        let timed = task.timed;
        self.sleeping.add(&mut self.tasks, key, tid);
        timed
    }

    fn done(&mut self, tid: Tid) {
        let task = &mut self.tasks[tid];
        task.state = State::Done;
        task.held = Vec::new();
        task.gate = None;
        if calls(task.kind, task.name) {
            self.callers[task.node].retain(|t| *t != tid);
        }
    }
}

/// Cancels a task that has not begun. Returns false if it has.
pub fn unspawn(tid: Tid) -> bool {
    let s = &mut w().sched;
    if s.tasks[tid].start.is_none() {
        return false;
    }
    s.tasks[tid].start = None;
    match s.tasks[tid].state {
        State::Blocked(key) => s.sleeping.remove(&mut s.tasks, key, tid),
        _ => s.not_runnable(tid),
    }
    s.done(tid);
    wake_all(done_key(tid));
    true
}

/// Ends all tasks of a node that lost its power, at any point of their code.
pub fn kill(node: usize) {
    let s = &mut w().sched;
    for tid in 0..s.tasks.len() {
        if s.tasks[tid].node != node || tid == s.current {
            continue;
        }
        match s.tasks[tid].state {
            State::Done => continue,
            State::Runnable => s.not_runnable(tid),
            State::Blocked(key) => {
                s.sleeping.remove(&mut s.tasks, key, tid);
            }
        }
        s.done(tid);
        let task = &mut s.tasks[tid];
        task.timed += 1;
        core::mem::forget(task.start.take());
        let co = task.co.take();
        bury(co);
        wake_all(done_key(tid));
    }
}

/// Returns the key that tasks sleep on to wait for the end of a task.
pub fn done_key(tid: Tid) -> usize {
    !tid
}

/// Returns whether a task has ended.
pub fn is_done(tid: Tid) -> bool {
    w().sched.tasks[tid].state == State::Done
}

/// Waits for the end of a task.
pub fn join(tid: Tid) {
    while !is_done(tid) {
        sleep_on(done_key(tid));
    }
}

/// Returns the current task.
pub fn current() -> Tid {
    w().sched.current
}

/// Returns the node of the current task.
pub fn node() -> usize {
    let s = &w().sched;
    match s.tasks.get(s.current) {
        Some(task) => task.node,
        None => usize::MAX,
    }
}

/// Returns the simulated time.
pub fn now() -> u64 {
    w().sched.now
}

#[inline(never)]
fn suspend() {
    let s = &w().sched;
    let yielder = s.tasks[s.current].yielder;
    // SAFETY: It is that of the coroutine we are in.
    unsafe { (*yielder).suspend(()) };
}

/// Lets another task run here, if the policy does so.
#[inline]
pub fn point() {
    let s = &mut w().sched;
    if s.current == NONE {
        return;
    }
    s.points += 1;
    if s.stall.is(&mut s.rng) {
        let until = s.now + s.rng.below(s.stall_max);
        nap(until);
    } else if s.switches() {
        suspend();
    }
}

/// Acts as [`point`] where there may be no world, or no current task.
#[inline]
pub fn point_if_any() {
    if crate::world::is_there() {
        point();
    }
}

/// Suspends the task until that time, whatever locks it holds.
fn nap(until: u64) {
    sleep_until_on(NAP, Some(until));
}

/// Key that no task wakes.
const NAP: usize = 1;

/// Sleeps until another task wakes the key. The caller checks its condition in a loop.
pub fn sleep_on(key: usize) {
    sleep_until_on(key, None);
}

/// Sleeps as [`sleep_on`], until that time at most; returns false on timeout.
pub fn sleep_until_on(key: usize, until: Option<u64>) -> bool {
    let s = &mut w().sched;
    let tid = s.current;
    if tid == NONE {
        violation("an event wants to sleep");
    }
    let timed = s.block(tid, key);
    if let Some(until) = until {
        at(until, move || {
            let s = &mut w().sched;
            let task = &mut s.tasks[tid];
            if task.timed != timed || !matches!(task.state, State::Blocked(_)) {
                return;
            }
            task.timed_out = true;
            s.sleeping.remove(&mut s.tasks, key, tid);
            s.make_runnable(tid);
        });
    }
    suspend();
    !w().sched.tasks[tid].timed_out
}

/// Sleeps for a while.
pub fn sleep(ns: u64) {
    let until = now() + ns;
    nap(until);
}

/// Wakes all tasks that sleep on the key.
pub fn wake_all(key: usize) {
    let s = &mut w().sched;
    let mut next = s.sleeping.places[s.sleeping.place(key)];
    while next != NONE {
        let tid = next;
        next = s.tasks[tid].behind;
        if s.tasks[tid].state == State::Blocked(key) {
            s.sleeping.remove(&mut s.tasks, key, tid);
            s.tasks[tid].timed += 1;
            s.make_runnable(tid);
        }
    }
}

/// Sizes the table of sleeping tasks for this number of tasks, before any task sleeps.
pub fn expect(tasks: usize) {
    let s = &mut w().sched;
    s.sleeping = Sleeping::new(tasks);
}

/// Returns a hash of the schedule: the order of the tasks, and how far each ran.
pub fn hash() -> u64 {
    w().sched.hash
}

/// Runs a closure at that time.
pub fn at(when: u64, what: impl FnOnce() + 'static) {
    let s = &mut w().sched;
    let seq = s.seq;
    s.seq += 1;
    s.events.push(Reverse(Event {
        when,
        seq,
        what: Box::new(what),
    }));
}

/// Runs a closure after `ns` nanoseconds.
pub fn after(ns: u64, what: impl FnOnce() + 'static) {
    let when = now() + ns;
    at(when, what);
}

fn bury(co: Option<ManuallyDrop<Co>>) {
    if let Some(co) = co {
        let mut co = ManuallyDrop::into_inner(co);
        if !co.done() {
            // SAFETY: The objects on the stack are not dropped, as in a loss of power; they only own
            // memory, which the world knows of.
            unsafe { co.force_reset() };
        }
        let stack = co.into_stack();
        STACKS.with(|s| s.borrow_mut().push(stack));
    }
}

fn resume(tid: Tid) {
    let s = &mut w().sched;
    s.current = tid;
    s.steps += 1;
    let ran = s.points.rotate_left(32) ^ tid as u64;
    s.hash = (s.hash.rotate_left(5) ^ ran).wrapping_mul(0x517c_c1b7_2722_0a95);
    s.now += 100 + (s.rng.u64() & 0x3ff);

    if s.tasks[tid].co.is_none() {
        if let Some(key) = s.tasks[tid].gate.as_mut().and_then(|gate| gate()) {
            s.block(tid, key);
            s.current = NONE;
            return;
        }
        let start = s.tasks[tid].start.take().expect("a task begins once");
        let stack = STACKS
            .with(|s| s.borrow_mut().pop())
            .unwrap_or_else(|| DefaultStack::new(STACK).expect("memory for a stack"));
        let co = Coroutine::with_stack(stack, move |yielder: &Yielder<(), ()>, ()| {
            let s = &mut w().sched;
            s.tasks[s.current].yielder = yielder;
            start();
        });
        s.tasks[tid].co = Some(ManuallyDrop::new(co));
    }
    // The coroutine changes the list of tasks, so it is taken out.
    let mut co = s.tasks[tid].co.take().expect("just made");
    let result = co.resume(());
    let s = &mut w().sched;
    s.current = NONE;
    match result {
        CoroutineResult::Yield(()) => s.tasks[tid].co = Some(co),
        CoroutineResult::Return(()) => {
            if !s.tasks[tid].held.is_empty() {
                crate::world::fail("a task ended with a lock");
            }
            s.not_runnable(tid);
            s.done(tid);
            bury(Some(co));
            wake_all(done_key(tid));
        }
    }
}

/// Runs until all work is done, or a check fails.
pub fn run(max_steps: u64, max_time: u64) {
    loop {
        let world = w();
        if world.failed.is_some() {
            return;
        }
        let s = &mut world.sched;
        if let Some(Reverse(event)) = s.events.peek() {
            let jump = s.runnable.is_empty()
                || (s.jump_ppm != 0 && event.when < s.now + s.jump_max && s.rng.ppm(s.jump_ppm));
            if event.when <= s.now || jump {
                if let Some(Reverse(event)) = s.events.pop() {
                    s.now = s.now.max(event.when);
                    // An event that fails a check must not go on, and there is no task to stop.
                    let what = std::panic::AssertUnwindSafe(event.what);
                    let _ = std::panic::catch_unwind(what);
                }
                continue;
            }
        } else if s.runnable.is_empty() {
            return;
        }
        if s.steps > max_steps {
            crate::world::fail("too many steps: a task does not end");
            return;
        }
        if s.now > max_time {
            for (tid, task) in s.tasks.iter().enumerate() {
                if matches!(task.state, State::Blocked(_)) && task.co.is_some() {
                    crate::world::say(&format!("{tid}:{} of node {} waits", task.name, task.node));
                }
            }
            crate::world::fail("too late: a task waits for ever");
            return;
        }
        let tid = s.pick();
        resume(tid);
    }
}

/// Returns the tasks that have not ended, for the story.
pub fn left() -> Vec<String> {
    let s = &w().sched;
    s.tasks
        .iter()
        .enumerate()
        .filter(|(_, t)| t.state != State::Done)
        .map(|(i, t)| {
            format!(
                "task {i} ({}, node {}) {:?} holding {:?}",
                t.name, t.node, t.state, t.held
            )
        })
        .collect()
}

/// Returns whether a task has not ended.
pub fn any_left() -> bool {
    w().sched.tasks.iter().any(|t| t.state != State::Done)
}

/// Forgets all tasks at the end of the world.
pub fn clear() {
    let s = &mut w().sched;
    for task in &mut s.tasks {
        core::mem::forget(task.start.take());
        let co = task.co.take();
        bury(co);
    }
    s.tasks.clear();
    s.events.clear();
}
