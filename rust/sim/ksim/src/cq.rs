// SPDX-License-Identifier: GPL-2.0

//! Completion queues: the pool of a device, and its polling.

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
        Dev,
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
    /// Serial number of the queue.
    nr: u64,
}

/// Completion queue of the pool; it stays until the world ends.
pub struct Cq {
    dev: *mut Dev,
    kind: Kind,
    vector: u32,
    /// Entries that are reserved.
    pub used: u32,
    queue: VecDeque<Done>,
    /// Number of completions so far.
    pushed: u64,
    /// Number of the completion that the driver handles now.
    handling: Option<u64>,
    polled: bool,
}

/// Number of queues of a pool for each context.
const VECTORS: u32 = 2;

/// Number of points that the creation of a queue takes; it is a firmware command.
const MAKING: u32 = 20;

/// Destroys the pool of a removed device, whose ids are all gone: references do not keep the pool.
pub fn pool_goes(dev: *mut Dev) {
    // SAFETY: Devices and their queues stay until the world ends.
    unsafe {
        if (*dev).cqs.iter().any(|cq| (**cq).used != 0) {
            violation("the completion queues of a device go, and some are in use");
        }
    }
}

#[no_mangle]
pub unsafe extern "C" fn ro2ib_cq_get(
    dev: *mut ib_device,
    nr_cqe: u32,
    vector: i32,
    poll_ctx: u32,
) -> *mut ib_cq {
    lock::might_sleep("ib_cq_pool_get");
    mem::allocates("ib_cq_pool_get");
    sched::point();
    if world::fails(Fault::Verbs) {
        return (-(ENOMEM as isize)) as *mut ib_cq;
    }
    let dev: *mut Dev = dev.cast();
    let kind = if poll_ctx == ib_poll_context_IB_POLL_SOFTIRQ {
        Kind::Softirq
    } else {
        Kind::Process
    };
    let vector = (vector as u32) % VECTORS;
    // SAFETY: Devices and their queues stay until the world ends.
    unsafe {
        for cq in &(*dev).cqs {
            let cq = *cq;
            if (*cq).vector == vector && (*cq).kind == kind {
                (*cq).used += nr_cqe;
                return cq.cast();
            }
        }
        // The core creates queues for each caller that finds none, with no exclusion of callers
        // that create queues at the same time.
        if (*dev).making_cqs {
            violation("two make completion queues of a device at a time, of which one is enough");
        }
        (*dev).making_cqs = true;
        for _ in 0..MAKING {
            sched::point();
        }
        (*dev).making_cqs = false;
        let cq = Box::into_raw(Box::new(Cq {
            dev,
            kind,
            vector,
            used: nr_cqe,
            queue: VecDeque::new(),
            pushed: 0,
            handling: None,
            polled: false,
        }));
        (*dev).cqs.push(cq);
        cq.cast()
    }
}

#[no_mangle]
pub unsafe extern "C" fn ib_cq_pool_put(cq: *mut ib_cq, nr_cqe: u32) {
    let cq: *mut Cq = cq.cast();
    sched::point();
    // SAFETY: Queues stay until the world ends.
    unsafe {
        if (*cq).used < nr_cqe {
            violation("gives back more of a completion queue than was taken");
        }
        (*cq).used -= nr_cqe;
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

/// Waits for all completions in the queue, of any queue pair, and for the one that is being
/// handled.
#[no_mangle]
pub unsafe extern "C" fn ro2ib_cq_quiesce(cq: *mut ib_cq) {
    lock::might_sleep("ro2ib_cq_quiesce");
    sched::point();
    let cq: *mut Cq = cq.cast();
    // SAFETY: Queues stay until the world ends.
    unsafe {
        let so_far = (*cq).pushed;
        let is_left = |nr: u64| nr < so_far;
        while (*cq).handling.is_some_and(is_left)
            || (*cq).queue.front().is_some_and(|done| is_left(done.nr))
        {
            sched::sleep_on(cq as usize);
        }
    }
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
    c.queue.push_back(Done {
        wc,
        qp,
        nr: c.pushed,
    });
    c.pushed += 1;
    if c.queue.len() > c.used as usize {
        violation("a completion queue overflows");
    }
    if c.polled {
        return;
    }
    c.polled = true;
    // SAFETY: Devices stay until the world ends.
    let node = unsafe { (*c.dev).node };
    sched::spawn(node, c.kind, "cq", move || poll(cq));
}

fn poll(cq: *mut Cq) {
    loop {
        // SAFETY: Queues stay until the world ends.
        let c = unsafe { &mut *cq };
        let Some(mut done) = c.queue.pop_front() else {
            c.polled = false;
            return;
        };
        if sched::node() != usize::MAX && w().nodes[sched::node()].dead {
            return;
        }
        // SAFETY: The driver's `done` belongs to a work request that it has posted.
        unsafe {
            let cqe = done.wc.__bindgen_anon_1.wr_cqe;
            // The last completion may destroy the queue pair, or cause its destruction.
            (*done.qp).completions -= 1;
            (*done.qp).handling += 1;
            c.handling = Some(done.nr);
            if !cqe.is_null() {
                if let Some(f) = (*cqe).done {
                    true_counts::of((*c.dev).node).completes(&done.wc);
                    world::enter();
                    f(cq.cast(), &raw mut done.wc);
                    world::leave();
                }
            }
            (*done.qp).handling -= 1;
        }
        c.handling = None;
        sched::wake_all(cq as usize);
        sched::wake_all(done.qp as usize);
        sched::point();
    }
}
