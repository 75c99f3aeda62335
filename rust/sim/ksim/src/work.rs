// SPDX-License-Identifier: GPL-2.0

//! Work queues and delayed work.
//!
//! A queued item is a task that has not begun. It may begin before an item that was queued earlier,
//! and run at the same time as any other item, but never twice at the same time, as in the kernel.

use std::collections::{
    BTreeSet,
    VecDeque, //
};

use crate::{
    decl::k::*,
    fixed_hash::Map,
    lock,
    sched::{
        self,
        Tid,
        MS, //
    },
    verbs::Dev,
    world::{
        self,
        violation,
        w, //
    }, //
};

/// Tasks of which a limited number runs at a time.
#[derive(Default)]
pub struct Limited {
    /// Limit, if there is one.
    at_once: Option<usize>,
    /// Tasks that have begun.
    begun: Vec<Tid>,
    /// Tasks that wait until another task ends, in order.
    waiting: VecDeque<Tid>,
}

impl Limited {
    /// Creates a limit of `at_once` tasks.
    pub fn new(at_once: Option<usize>) -> Self {
        Self {
            at_once,
            ..Self::default()
        }
    }

    /// Makes the current task wait until another task ends, if there are as many as may run at a
    /// time. Returns the key to sleep on.
    pub fn waits(&mut self) -> Option<usize> {
        let tid = sched::current();
        let full = self.at_once.is_some_and(|most| self.begun.len() >= most);
        full.then(|| {
            self.waiting.push_back(tid);
            turn_key(tid)
        })
    }

    /// Begins the current task.
    pub fn begin(&mut self) {
        self.begun.push(sched::current());
    }

    /// Ends the current task, and lets the task begin that has waited longest.
    pub fn end(&mut self) {
        let tid = sched::current();
        self.begun.retain(|t| *t != tid);
        self.begin_next();
    }

    /// Lets the task begin that has waited longest.
    fn begin_next(&mut self) {
        if let Some(next) = self.waiting.pop_front() {
            sched::wake_all(turn_key(next));
        }
    }
}

/// Work queue.
pub struct Queue {
    name: &'static str,
    node: usize,
    gone: bool,
    /// The driver has set a limit.
    few: bool,
    tasks: BTreeSet<Tid>,
    items: Limited,
}

/// Returns the key on which a waiting task sleeps.
fn turn_key(tid: Tid) -> usize {
    usize::MAX / 2 - tid
}

/// Queues and items of a world.
#[derive(Default)]
pub struct Works {
    /// Items, and the task that runs each.
    running: Map<usize, Tid>,
    timers: usize,
    /// Queues by node.
    queues: Vec<Vec<*mut Queue>>,
    /// Tasks that free an id, and the device of each.
    freeing: Vec<(Tid, *mut Dev)>,
}

fn leak(name: *const u8) -> &'static str {
    // SAFETY: Names of the driver are static.
    unsafe { core::ffi::CStr::from_ptr(name.cast()) }
        .to_str()
        .unwrap_or("?")
}

impl Works {
    /// Returns the number of queues that a node has left.
    pub fn left(&self, node: usize) -> usize {
        self.queues.get(node).map_or(0, Vec::len)
    }

    /// Drops the queues and items of a node that lost its power.
    pub fn forget(&mut self, node: usize) {
        if let Some(queues) = self.queues.get_mut(node) {
            queues.clear();
        }
        // Tasks that were killed; another item may get the memory of the item later.
        self.running.retain(|_, tid| !sched::is_done(*tid));
        self.freeing.retain(|f| !sched::is_done(f.0));
    }
}

/// Begins to free an id that is bound to `dev`; [`freed`] ends it. A device that hangs makes this
/// take long, and must not hold up the release of an id of another device.
pub fn frees(dev: *mut Dev) {
    let me = sched::current();
    if dev.is_null() || me == sched::NONE {
        return;
    }
    let works = &mut w().works;
    for queue in works.queues.get(sched::node()).into_iter().flatten() {
        // SAFETY: Queues stay until the world ends.
        let q = unsafe { &**queue };
        let items = &q.items;
        let beside = |f: &(Tid, *mut Dev)| f.1 != dev && items.begun.contains(&f.0);
        if q.few && items.begun.contains(&me) && works.freeing.iter().any(beside) {
            violation("ids of two devices are freed in one queue of few at a time");
        }
    }
    works.freeing.push((me, dev));
}

/// Ends the release of an id.
pub fn freed() {
    let me = sched::current();
    w().works.freeing.retain(|f| f.0 != me);
}

#[no_mangle]
pub unsafe extern "C" fn ro2ib_alloc_workqueue(
    name: *const u8,
    unbound: bool,
    _highpri: bool,
    at_once: i32,
) -> *mut workqueue_struct {
    lock::might_sleep("alloc_workqueue");
    // Its thread is made by another one, without the scope of the caller.
    lock::may_wait_for_memory("Ifaces::list");
    lock::may_wait_for_memory("WorkQueues::devices");
    if world::fails(world::Fault::Alloc) {
        return core::ptr::null_mut();
    }
    let few = at_once != 0;
    // A smaller limit than the driver asked for, down to one: this reveals an item that waits for
    // another.
    let at_once = match u64::try_from(at_once) {
        Ok(most @ 1..) => Some(1 + w().rng.below(most) as usize),
        // The share of a small NUMA node.
        _ if unbound => Some(8 + w().rng.below(64) as usize),
        _ => None,
    };
    let queue = Box::into_raw(Box::new(Queue {
        name: leak(name),
        node: sched::node(),
        gone: false,
        tasks: BTreeSet::new(),
        few,
        items: Limited::new(at_once),
    }));
    let queues = &mut w().works.queues;
    if queues.len() <= sched::node() {
        queues.resize_with(sched::node() + 1, Vec::new);
    }
    queues[sched::node()].push(queue);
    queue.cast()
}

fn flush(queue: *mut Queue) {
    lock::might_sleep("flush_workqueue");
    // SAFETY: The caller has a valid queue.
    let tasks = unsafe { (*queue).tasks.clone() };
    for tid in tasks {
        if tid == sched::current() {
            violation("a work item waits for its own queue");
        }
        sched::join(tid);
    }
}

#[no_mangle]
pub unsafe extern "C" fn ro2ib_flush_workqueue(wq: *mut workqueue_struct) {
    sched::point();
    flush(wq.cast());
}

#[no_mangle]
pub unsafe extern "C" fn destroy_workqueue(wq: *mut workqueue_struct) {
    let queue: *mut Queue = wq.cast();
    sched::point();
    // SAFETY: By the contract of this function. It stays until the world ends, to know who uses it.
    unsafe {
        while !(*queue).tasks.is_empty() {
            flush(queue);
        }
        (*queue).gone = true;
    }
    if let Some(queues) = w().works.queues.get_mut(sched::node()) {
        queues.retain(|q| *q != queue);
    }
}

/// Makes a pending item a task. Any context, events too.
fn begin(queue: *mut Queue, work: *mut work_struct) {
    // SAFETY: Queues stay until the world ends.
    let q = unsafe { &mut *queue };
    if q.gone {
        violation(&format!("an item is queued on {}, which is gone", q.name));
    }
    // SAFETY: The item is valid while it is pending.
    let name = leak(unsafe { (*work).name });
    // SAFETY: Queues stay until the world ends.
    let gate = move || unsafe { (*queue).items.waits() };
    let tid = sched::spawn_gated(q.node, name, gate, move || {
        let tid = sched::current();
        // An item never runs twice at the same time.
        while let Some(other) = w().works.running.get(&(work as usize)).copied() {
            sched::join(other);
        }
        // SAFETY: Queues stay until the world ends.
        let q = unsafe { &mut *queue };
        while let Some(key) = q.items.waits() {
            sched::sleep_on(key);
        }
        q.items.begin();
        // SAFETY: The item is valid until its function is called.
        let func = unsafe {
            (*work).pending = 0;
            (*work).func
        };
        w().works.running.insert(work as usize, tid);
        if let Some(func) = func {
            // SAFETY: It was made for this item.
            unsafe { func(work) };
        }
        sched::point();
        w().works.running.remove(&(work as usize));
        q.items.end();
        q.tasks.remove(&tid);
    });
    // SAFETY: As above.
    unsafe { (*work).pending = tid + 1 };
    q.tasks.insert(tid);
}

/// Value of `pending` while a timer runs.
const TIMER: usize = usize::MAX;

#[no_mangle]
pub unsafe extern "C" fn queue_work_on(
    _cpu: i32,
    wq: *mut workqueue_struct,
    work: *mut work_struct,
) -> bool {
    sched::point();
    // SAFETY: By the contract of this function.
    if unsafe { (*work).pending != 0 || (*work).disabled != 0 } {
        return false;
    }
    begin(wq.cast(), work);
    true
}

#[no_mangle]
pub unsafe extern "C" fn queue_delayed_work_on(
    cpu: i32,
    wq: *mut workqueue_struct,
    dwork: *mut delayed_work,
    delay: usize,
) -> bool {
    if delay == 0 {
        // SAFETY: By the contract of this function.
        return unsafe { queue_work_on(cpu, wq, &raw mut (*dwork).work) };
    }
    sched::point();
    // SAFETY: By the contract of this function.
    let d = unsafe { &mut *dwork };
    if d.work.pending != 0 || d.work.disabled != 0 {
        return false;
    }
    let world = w();
    world.works.timers += 1;
    let timer = world.works.timers;
    let node = sched::node();
    d.work.pending = TIMER;
    d.timer = timer;
    world.timers.insert(timer, node);
    // A timer is never early, and sometimes a tick late.
    let late = world.rng.below(4 * MS);
    sched::after(delay as u64 * MS + late, move || {
        if w().timers.remove(&timer).is_none() {
            return;
        }
        // SAFETY: The owner of an item cancels its timer before it frees the item, which takes it from the list.
        unsafe {
            (*dwork).timer = 0;
            begin(wq.cast(), &raw mut (*dwork).work);
        }
    });
    true
}

/// Cancels a pending item.
fn cancel(dwork: *mut delayed_work) -> bool {
    // SAFETY: The caller has a valid item.
    let d = unsafe { &mut *dwork };
    match d.work.pending {
        0 => false,
        TIMER => {
            w().timers.remove(&d.timer);
            d.timer = 0;
            d.work.pending = 0;
            true
        }
        task => {
            let tid = task - 1;
            if !sched::unspawn(tid) {
                // The item has begun, and waits for its own end: it counts as running.
                return false;
            }
            d.work.pending = 0;
            for queue in w().works.queues.get(sched::node()).into_iter().flatten() {
                // SAFETY: Queues stay until the world ends.
                let q = unsafe { &mut **queue };
                q.tasks.remove(&tid);
                q.items.waiting.retain(|t| *t != tid);
                // The item may have had its turn.
                q.items.begin_next();
            }
            true
        }
    }
}

#[no_mangle]
pub unsafe extern "C" fn cancel_delayed_work(dwork: *mut delayed_work) -> bool {
    sched::point();
    cancel(dwork)
}

#[no_mangle]
pub unsafe extern "C" fn cancel_delayed_work_sync(dwork: *mut delayed_work) -> bool {
    lock::might_sleep("cancel_delayed_work_sync");
    sched::point();
    // SAFETY: By the contract of this function.
    let work = unsafe { &raw mut (*dwork).work };
    // SAFETY: As above.
    unsafe { (*work).disabled += 1 };
    let was = cancel(dwork);
    while let Some(tid) = w().works.running.get(&(work as usize)).copied() {
        if tid == sched::current() {
            violation("a work item waits for itself");
        }
        sched::join(tid);
    }
    // SAFETY: As above.
    unsafe { (*work).disabled -= 1 };
    was
}

fn init(work: *mut work_struct, func: work_func_t, name: *const u8) {
    // SAFETY: By the contract of the caller.
    unsafe {
        work.write(work_struct {
            func,
            name,
            pending: 0,
            disabled: 0,
        });
    }
}

#[no_mangle]
pub unsafe extern "C" fn ro2ibk_init_work(
    work: *mut work_struct,
    func: work_func_t,
    name: *const u8,
    _key: *mut lock_class_key,
) {
    init(work, func, name);
}

#[no_mangle]
pub unsafe extern "C" fn ro2ibk_init_delayed_work(
    work: *mut delayed_work,
    func: work_func_t,
    name: *const u8,
    _key: *mut lock_class_key,
    _timer_name: *const u8,
    _timer_key: *mut lock_class_key,
) {
    // SAFETY: By the contract of this function.
    unsafe {
        init(&raw mut (*work).work, func, name);
        (*work).timer = 0;
    }
}
