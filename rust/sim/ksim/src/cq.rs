// SPDX-License-Identifier: GPL-2.0

//! Completion queues and their polling.

use std::collections::VecDeque;

use crate::{
    decl::{
        k::*,
        r::*, //
    },
    lock,
    mem,
    sched::{
        self,
        Kind, //
    },
    true_counts,
    verbs::{
        self,
        Dev,
        Family,
        Qp, //
    },
    world::{
        self,
        violation,
        w,
        Fault, //
    }, //
};

struct Done {
    wc: ib_wc,
    qp: *mut Qp,
}

/// Completion queue of a queue pair; it stays until the world ends.
pub struct Cq {
    dev: *mut Dev,
    kind: Kind,
    /// Entries.
    len: u32,
    round: unsafe extern "C" fn(*mut c_void, *mut ib_wc, i32),
    event: unsafe extern "C" fn(*mut ib_event, *mut c_void),
    context: *mut c_void,
    qp: *mut Qp,
    queue: VecDeque<Done>,
    /// A context polls it, or is about to.
    polled: bool,
    /// Only `ro2ib_cq_quiesce()` polls it.
    stopped: bool,
    /// The driver gave it up, because its queue pair was not destroyed.
    pub abandoned: bool,
    /// It was destroyed.
    pub gone: bool,
}

/// Number of points that the creation of a queue takes; it is a firmware command.
const MAKING: u32 = 20;

/// Completions of one round, at most.
const BATCH: u64 = 16;

/// Checks a device that is removed, whose ids are all gone: its driver frees what queues use.
pub fn device_goes(dev: *mut Dev) {
    // SAFETY: Devices and their queues stay until the world ends.
    unsafe {
        if (*dev)
            .cqs
            .iter()
            .any(|cq| !(**cq).gone && !(**cq).abandoned)
        {
            violation("a device goes, and some of its completion queues are in use");
        }
    }
}

#[no_mangle]
pub unsafe extern "C" fn ro2ib_cq_create(
    dev: *mut ib_device,
    nr_cqe: u32,
    _vector: u32,
    wq: *mut workqueue_struct,
    round: Option<unsafe extern "C" fn(*mut c_void, *mut ib_wc, i32)>,
    event: Option<unsafe extern "C" fn(*mut ib_event, *mut c_void)>,
    context: *mut c_void,
) -> *mut ro2ib_cq {
    lock::might_sleep("ib_create_cq");
    mem::allocates("ib_create_cq");
    sched::point();
    if world::fails(Fault::Verbs) {
        return (-(ENOMEM as isize)) as *mut ro2ib_cq;
    }
    let dev: *mut Dev = dev.cast();
    for _ in 0..MAKING {
        sched::point();
    }
    let cq = Box::into_raw(Box::new(Cq {
        dev,
        kind: match wq.is_null() {
            true => Kind::Softirq,
            false => Kind::Process,
        },
        len: nr_cqe,
        round: round.expect("the driver has a function for completions"),
        event: event.expect("the driver has a function for events"),
        context,
        qp: core::ptr::null_mut(),
        queue: VecDeque::new(),
        polled: false,
        stopped: false,
        abandoned: false,
        gone: false,
    }));
    // SAFETY: Devices stay until the world ends.
    unsafe { (*dev).cqs.push(cq) };
    cq.cast()
}

/// Notes the queue pair that uses a queue.
pub fn attach(cq: *mut Cq, qp: *mut Qp) {
    // SAFETY: Queues stay until the world ends.
    let c = unsafe { &mut *cq };
    if c.gone || !c.qp.is_null() {
        violation("a completion queue is used by two queue pairs, or destroyed");
    }
    c.qp = qp;
}

/// Passes an event of the queue pair to the driver.
pub fn qp_event(cq: *mut Cq, event: *mut ib_event) {
    // SAFETY: Queues stay until the world ends. The context belongs to the driver until it destroys the queue, which
    // waits for events, or abandons it.
    unsafe {
        if !(*cq).abandoned {
            world::enter();
            ((*cq).event)(event, (*cq).context);
            world::leave();
        }
    }
}

#[no_mangle]
pub unsafe extern "C" fn ro2ib_cq_is_used(cq: *const ro2ib_cq) -> bool {
    let cq: *const Cq = cq.cast();
    // SAFETY: Queues and queue pairs stay until the world ends.
    unsafe { !((*cq).qp.is_null() || (*(*cq).qp).gone) }
}

#[no_mangle]
pub unsafe extern "C" fn ro2ib_cq_abandon(cq: *mut ro2ib_cq) {
    lock::might_sleep("synchronize_rcu");
    sched::point();
    let cq: *mut Cq = cq.cast();
    // SAFETY: Queues and queue pairs stay until the world ends.
    unsafe {
        let qp = (*cq).qp;
        if (*cq).gone || (*cq).abandoned || qp.is_null() || !(*qp).kept {
            violation("a completion queue is abandoned twice, or without need");
        }
        (*cq).stopped = true;
        while (*cq).polled {
            sched::sleep_on(cq as usize);
        }
        (*cq).abandoned = true;
        while (*qp).has_events() {
            sched::sleep_on(qp as usize);
        }
        let is_receive =
            |done: &&Done| done.wc.status == 0 && done.wc.opcode == ib_wc_opcode_IB_WC_RECV;
        (*qp).leave((*cq).queue.iter().filter(is_receive).count());
    }
}

#[no_mangle]
pub unsafe extern "C" fn ro2ib_cq_destroy(cq: *mut ro2ib_cq) {
    lock::might_sleep("ib_destroy_cq");
    sched::point();
    let cq: *mut Cq = cq.cast();
    // SAFETY: Queues stay until the world ends.
    if unsafe { (*cq).abandoned } {
        return;
    }
    // SAFETY: Queues and queue pairs stay until the world ends.
    unsafe {
        if (*cq).gone || !((*cq).qp.is_null() || (*(*cq).qp).gone) {
            violation("a completion queue is destroyed twice, or in use");
        }
        while (*cq).polled {
            sched::sleep_on(cq as usize);
        }
        (*cq).gone = true;
        (*cq).queue = VecDeque::new();
    }
}

/// Returns whether a destroyed queue pair, which could not be drained, still has completions.
pub fn has_left(qp: *mut Qp) -> bool {
    // SAFETY: Queue pairs stay until the world ends.
    let q = unsafe { &*qp };
    q.gone && q.undrained && q.completions + q.handling != 0
}

/// Removes the completions of a destroyed queue pair. Adapters do this, software providers do not.
pub fn clean(cq: *mut Cq, qp: *mut Qp) {
    // SAFETY: Queues stay until the world ends.
    let c = unsafe { &mut *cq };
    if c.kind == Kind::Softirq {
        let before = c.queue.len();
        c.queue.retain(|done| done.qp != qp);
        // SAFETY: Queue pairs stay until the world ends.
        unsafe { (*qp).completions -= before - c.queue.len() };
        sched::wake_all(cq as usize);
    }
}

/// Stops all other polling, and handles the completions in the queue.
#[no_mangle]
pub unsafe extern "C" fn ro2ib_cq_quiesce(cq: *mut ro2ib_cq) {
    lock::might_sleep("ro2ib_cq_quiesce");
    sched::point();
    let cq: *mut Cq = cq.cast();
    // SAFETY: Queues stay until the world ends.
    unsafe {
        (*cq).stopped = true;
        while (*cq).polled {
            sched::sleep_on(cq as usize);
        }
        (*cq).polled = true;
        poll(cq);
    }
}

#[no_mangle]
pub unsafe extern "C" fn ro2ib_cq_poll(cq: *mut ro2ib_cq) {
    sched::point();
    begin(cq.cast());
}

/// Returns whether the driver has taken all completions.
pub fn is_empty(cq: *mut Cq) -> bool {
    // SAFETY: Queues stay until the world ends.
    unsafe { (*cq).queue.is_empty() }
}

/// Adds the completion of a work request.
pub fn push(cq: *mut Cq, qp: *mut Qp, wc: ib_wc) {
    // SAFETY: Queues stay until the world ends.
    let c = unsafe { &mut *cq };
    // SAFETY: Queue pairs stay until the world ends.
    unsafe { (*qp).completions += 1 };
    c.queue.push_back(Done { wc, qp });
    if c.queue.len() > c.len as usize {
        violation("a completion queue overflows");
    }
    begin(cq);
}

/// Polls the queue soon.
fn begin(cq: *mut Cq) {
    // SAFETY: Queues stay until the world ends.
    let c = unsafe { &mut *cq };
    if c.polled || c.stopped {
        return;
    }
    c.polled = true;
    // SAFETY: Devices stay until the world ends.
    let node = unsafe { (*c.dev).node };
    sched::spawn(node, c.kind, "cq", move || poll(cq));
}

/// Returns whether an event for a completion of a flush is lost that comes while completions are handled.
fn loses_events(c: &Cq) -> bool {
    c.kind == Kind::Softirq && !c.stopped && verbs::family(c.dev) == Family::BnxtRe
}

fn poll(cq: *mut Cq) {
    loop {
        // SAFETY: Queues stay until the world ends.
        let c = unsafe { &mut *cq };
        if sched::node() != usize::MAX && w().nodes[sched::node()].dead {
            return;
        }
        // The provider may report fewer at a time than there are.
        let most = w().family_rng.range(1, BATCH) as usize;
        let n = c.queue.len().min(most);
        let round: Vec<Done> = c.queue.drain(..n).collect();
        let Some(first) = round.first() else {
            c.polled = false;
            sched::wake_all(cq as usize);
            return;
        };
        let qp = first.qp;
        let mut wcs: Vec<ib_wc> = round.iter().map(|done| done.wc).collect();
        // SAFETY: The context belongs to the driver until it destroys the queue.
        unsafe {
            // The last completion may cause the destruction of the queue pair.
            (*qp).completions -= n;
            (*qp).handling += n;
            for wc in &wcs {
                true_counts::of((*c.dev).node).completes(wc);
            }
            world::enter();
            (c.round)(c.context, wcs.as_mut_ptr(), n as i32);
            world::leave();
            (*qp).handling -= n;
        }
        sched::wake_all(qp as usize);
        sched::point();
        let unreported = |done: &Done| done.wc.status == ib_wc_status_IB_WC_WR_FLUSH_ERR;
        if n < most && loses_events(c) && c.queue.iter().all(unreported) {
            // The softirq had found the queue empty, and the event of these was lost.
            c.polled = false;
            sched::wake_all(cq as usize);
            return;
        }
    }
}
