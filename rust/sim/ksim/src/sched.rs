// SPDX-License-Identifier: GPL-2.0

//! Tasks, time, and who runs next.
//!
//! A task is a coroutine with a stack of its own: a work item, a completion handler, an event of the
//! CM, a caller of LNet. One of them runs at a time. At each [`point`] (a lock, an atomic, a call of the
//! C that is simulated) the scheduler may run another; that is drawn from the seed, so the seed gives
//! the run again. Coroutines and not threads: a switch is a few instructions, and a small world takes
//! less than a millisecond.
//!
//! Time is a number. It passes a little with each step, and jumps to the next event when nobody can run;
//! at times it jumps although somebody could: then that one was slow.
//!
//! # Invariants
//!
//! A task that is runnable is in `runnable`, once. An event belongs to no task: it only changes state
//! and wakes or starts tasks, and never calls the driver.

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

/// A task's number; never used again.
pub type Tid = usize;

/// No task: the scheduler itself, or an event.
pub const NONE: Tid = usize::MAX;

/// Bytes of a stack; only what is touched is there.
const STACK: usize = 256 << 10;

/// A microsecond of the simulated time, which is in nanoseconds.
pub const US: u64 = 1_000;
/// A millisecond.
pub const MS: u64 = 1_000_000;
/// A second.
pub const SEC: u64 = 1_000_000_000;

/// What a task may do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// It may sleep.
    Process,
    /// It must not, and no other softirq of its CPU runs meanwhile.
    Softirq,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Runnable,
    Blocked(usize),
    Done,
}

type Co = Coroutine<(), (), (), DefaultStack>;

/// A task.
pub struct Task {
    /// For the story.
    pub name: &'static str,
    /// On which node.
    pub node: usize,
    /// What it may do.
    pub kind: Kind,
    /// Locks it has, in order.
    pub held: Vec<Held>,
    /// Depth of `memalloc_nofs_save()`.
    pub nofs: u32,
    /// A file system may wait for it: it is not what an administrator does.
    pub for_storage: bool,
    state: State,
    at: usize,
    /// Others that sleep in the same place; [`NONE`].
    before: Tid,
    behind: Tid,
    prio: u64,
    timed: u64,
    timed_out: bool,
    co: Option<ManuallyDrop<Co>>,
    start: Option<Box<dyn FnOnce()>>,
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

/// Who sleeps, in a place by a hash of the key; the lists are linked through the tasks.
///
/// INVARIANT: a task that is `Blocked` by a key that somebody may wake is in the list of its place.
struct Sleeping {
    /// The first of each place.
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

/// How the next task is chosen.
#[derive(Clone, Copy, Debug)]
pub enum Policy {
    /// At a point another one runs in so many of a million cases, any.
    Random(u32),
    /// The one with the highest priority, always; at a point the priority of the one that runs becomes
    /// the lowest in so many of a million cases (probabilistic concurrency testing).
    Priority(u32),
}

/// The scheduler.
pub struct Sched {
    /// Nanoseconds since the world began.
    pub now: u64,
    /// Who runs.
    pub current: Tid,
    /// All tasks there ever were.
    pub tasks: Vec<Task>,
    /// How often a task was resumed.
    pub steps: u64,
    /// How many points there were.
    pub points: u64,
    policy: Policy,
    /// Whether the policy says that another runs.
    switch: Rarely,
    /// In so many of a million steps time jumps although somebody could run.
    pub jump_ppm: u32,
    /// By at most so much.
    pub jump_max: u64,
    /// The points at which the task sleeps for a while: its CPU was taken away.
    stall: Rarely,
    /// For at most so long.
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
    /// Nothing to do yet.
    pub fn new(rng: Rng) -> Self {
        Self {
            now: 1000 * SEC,
            current: NONE,
            tasks: Vec::with_capacity(128),
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
            events: BinaryHeap::with_capacity(64),
            seq: 0,
        }
    }

    /// How the next task is chosen from now on.
    pub fn choose(&mut self, policy: Policy) {
        let (Policy::Random(ppm) | Policy::Priority(ppm)) = policy;
        self.policy = policy;
        self.switch = Rarely::new(ppm, &mut self.rng);
    }

    /// In so many of a million points a task loses its CPU from now on, for at most so many nanoseconds.
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

    /// Whether the one that runs lets another run here.
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
                // Lower than any that was given when it began.
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
        held: Vec::new(),
        nofs: 0,
        for_storage: for_storage(name),
        state: State::Runnable,
        at: 0,
        before: NONE,
        behind: NONE,
        prio,
        timed: 0,
        timed_out: false,
        co: None,
        start: Some(Box::new(f)),
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

/// Whether the task that runs has that name.
pub fn is_running(name: &str) -> bool {
    let s = &w().sched;
    s.tasks.get(s.current).is_some_and(|task| task.name == name)
}

/// Whether the task with that name may be what a file system waits for: all but what administrators do.
fn for_storage(name: &str) -> bool {
    let config = ["up", "down", "happens", "boot", "ib_event"].contains(&name);
    !config && !name.starts_with("Ni::") && !name.starts_with("Driver::")
}

fn calls(kind: Kind, name: &str) -> bool {
    kind == Kind::Softirq || name == "cq"
}

/// Softirqs and completion handlers of a node that have not ended.
pub fn callers(node: usize) -> Vec<Tid> {
    let s = &w().sched;
    s.callers.get(node).cloned().unwrap_or_default()
}

impl Sched {
    fn done(&mut self, tid: Tid) {
        let task = &mut self.tasks[tid];
        task.state = State::Done;
        if calls(task.kind, task.name) {
            self.callers[task.node].retain(|t| *t != tid);
        }
    }
}

/// Takes back a task that has not begun. False: it has.
pub fn unspawn(tid: Tid) -> bool {
    let s = &mut w().sched;
    if s.tasks[tid].start.is_none() {
        return false;
    }
    s.tasks[tid].start = None;
    s.not_runnable(tid);
    s.done(tid);
    wake_all(done_key(tid));
    true
}

/// Ends all tasks of a node, wherever they are: it lost its power.
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

/// What tasks sleep on that wait for the end of one.
pub fn done_key(tid: Tid) -> usize {
    !tid
}

/// Whether it has ended.
pub fn is_done(tid: Tid) -> bool {
    w().sched.tasks[tid].state == State::Done
}

/// Waits for the end of a task.
pub fn join(tid: Tid) {
    while !is_done(tid) {
        sleep_on(done_key(tid));
    }
}

/// Who runs.
pub fn current() -> Tid {
    w().sched.current
}

/// The node that runs.
pub fn node() -> usize {
    let s = &w().sched;
    match s.tasks.get(s.current) {
        Some(task) => task.node,
        None => usize::MAX,
    }
}

/// The simulated time.
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

/// Another one may run here.
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

/// The same where there may be no world, or nobody's turn.
#[inline]
pub fn point_if_any() {
    if crate::world::is_there() {
        point();
    }
}

/// The task does not run until then, whatever locks it has.
fn nap(until: u64) {
    sleep_until_on(NAP, Some(until));
}

/// Nobody wakes who sleeps on this.
const NAP: usize = 1;

/// Sleeps until somebody wakes the key. Check in a loop.
pub fn sleep_on(key: usize) {
    sleep_until_on(key, None);
}

/// The same, until that time at most; false then.
pub fn sleep_until_on(key: usize, until: Option<u64>) -> bool {
    let s = &mut w().sched;
    let tid = s.current;
    if tid == NONE {
        violation("an event wants to sleep");
    }
    s.not_runnable(tid);
    let task = &mut s.tasks[tid];
    task.state = State::Blocked(key);
    task.timed += 1;
    task.timed_out = false;
    let timed = task.timed;
    s.sleeping.add(&mut s.tasks, key, tid);
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

/// Wakes all that sleep on the key.
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

/// Makes place for so many that sleep, before anybody does.
pub fn expect(tasks: usize) {
    let s = &mut w().sched;
    s.sleeping = Sleeping::new(tasks);
}

/// What tells this schedule from others: who ran in which order, and how far each time.
pub fn hash() -> u64 {
    w().sched.hash
}

/// Something happens at that time.
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

/// Something happens in a while.
pub fn after(ns: u64, what: impl FnOnce() + 'static) {
    let when = now() + ns;
    at(when, what);
}

fn bury(co: Option<ManuallyDrop<Co>>) {
    if let Some(co) = co {
        let mut co = ManuallyDrop::into_inner(co);
        if !co.done() {
            // SAFETY: What is on the stack is not dropped, which is what a loss of power is; it only
            // owns memory, which the world knows of.
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

/// Runs until nothing is left to do, or something is wrong.
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
                    // What does not hold in an event must not go on, and there is no task to stop.
                    let what = std::panic::AssertUnwindSafe(event.what);
                    let _ = std::panic::catch_unwind(what);
                }
                continue;
            }
        } else if s.runnable.is_empty() {
            return;
        }
        if s.steps > max_steps {
            crate::world::fail("too many steps: somebody runs in circles");
            return;
        }
        if s.now > max_time {
            for (tid, task) in s.tasks.iter().enumerate() {
                if matches!(task.state, State::Blocked(_)) && task.co.is_some() {
                    crate::world::say(&format!("{tid}:{} of node {} waits", task.name, task.node));
                }
            }
            crate::world::fail("too late: somebody waits for ever");
            return;
        }
        let tid = s.pick();
        resume(tid);
    }
}

/// Those that have not ended, for the story.
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

/// Whether one has not ended.
pub fn any_left() -> bool {
    w().sched.tasks.iter().any(|t| t.state != State::Done)
}

/// Forgets all tasks; the world is over.
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
