// SPDX-License-Identifier: GPL-2.0

//! Work items of a connection that execute what the state machine requests ([`Actions`]), from set-up to release.
//!
//! There are three work items, by what they wait for ([`Worker`]), each on a queue for items of its kind
//! ([`crate::lnd::work_queues`]): short steps, which connections of other peers wait for; steps that call LNet or free
//! a CM id; and steps that call into the device to create, close and destroy the queue pair.
//!
//! Context: only one of them runs at a time for one connection ([`crate::proto::conn_state::PendingSteps`]); all may
//! sleep. The steps themselves are in [`super::setup`], [`super::close`] and [`super::graceful_close`].

use kernel::{
    sync::Arc,
    workqueue::WorkItem, //
};

use super::{
    Conn,
    BLOCKING,
    CONTROL,
    QUEUE_PAIR, //
};
use crate::{
    proto::conn_state::{
        Actions,
        Worker, //
    },
    rdma::work::NofsScope, //
};

impl WorkItem<CONTROL> for Conn {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let _nofs = NofsScope::enter();
        for event in this.qp_notes.take() {
            this.event(event);
        }
        this.work(Worker::Control, |todo| {
            if todo.has(Actions::RESOLVE) {
                this.resolve();
            }
            if todo.has(Actions::SPEAK) {
                this.speak();
            }
            if todo.has(Actions::ESTABLISH) {
                this.publish();
            }
        });
    }
}

impl WorkItem<BLOCKING> for Conn {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let _nofs = NofsScope::enter();
        this.work(Worker::Blocking, |todo| {
            if todo.has(Actions::HAND_OVER) {
                this.flush_pending();
            }
            if todo.has(Actions::PART) {
                this.part();
            }
        });
        if this.with(|inner| inner.dreq_wait.leaves()) {
            this.leave();
        }
        this.cm.drop_late();
    }
}

impl WorkItem<QUEUE_PAIR> for Conn {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let _nofs = NofsScope::enter();
        this.work(Worker::QueuePair, |todo| {
            if todo.has(Actions::SET_UP) {
                this.set_up();
            }
            if todo.has(Actions::CLOSE) {
                this.close();
            }
            if todo.has(Actions::RELEASE) {
                this.release();
                this.with(|inner| inner.state.part());
            }
        });
        this.give_back_region();
    }
}

impl Conn {
    /// Runs `step` for the actions of `worker`, then queues another worker if there are actions for it.
    fn work(self: &Arc<Self>, worker: Worker, step: impl Fn(Actions)) {
        loop {
            let (todo, fault) = self.with(|inner| {
                let todo = inner.state.take_todo(worker);
                if todo == Actions::NONE {
                    self.call_next(inner);
                }
                (todo, inner.state.take_fault())
            });
            if let Some(fault) = fault {
                fault.log_reason(self.nid());
            }
            if todo == Actions::NONE {
                return;
            }
            step(todo);
        }
    }

    /// Gives a memory region back to the device that was idle for long, if the timer requested it. Runs in the worker
    /// that destroys the queue pair, so the queue pair stays.
    fn give_back_region(&self) {
        let (due, qp) = self.with(|inner| {
            let due = inner.state.is_up() && inner.timers.takes_regions();
            (due, inner.wire.qp())
        });
        if let (true, Some(qp)) = (due, qp) {
            qp.drop_unused_mr();
        }
    }
}
