// SPDX-License-Identifier: GPL-2.0

//! The control half of a connection: the workers that do what the state machine asks for ([`Actions`]), in the order
//! of its life.
//!
//! Two work items, one for what goes on at once, and one for what calls into the device for long: to make, close and
//! destroy the queue pair. That one waits for its turn with those of other connections ([`crate::lnd::workers`]). To
//! free a CM id is for the first: it waits for messages of the CM, and must not hold up who has a turn.
//!
//! Context: never both at the same time for one connection ([`crate::proto::conn::Todo`]); anything may sleep here. The
//! steps themselves are in [`super::setup`], [`super::close`] and [`super::leave`].

use kernel::{
    sync::Arc,
    workqueue::WorkItem, //
};

use super::{
    Conn,
    Inner,
    CONTROL,
    QUEUE_PAIR, //
};
use crate::{
    proto::conn::{
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
            if todo.has(Actions::PART) {
                this.part();
            }
        });
        if this.with(|inner| inner.goodbye.leaves()) {
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
                this.with(|inner| inner.life.part());
            }
        });
    }
}

impl Conn {
    /// Has `step` done for all that is for `worker`, then calls the other one if there is something for it.
    fn work(self: &Arc<Self>, worker: Worker, step: impl Fn(Actions)) {
        loop {
            let (todo, fault) = self.with(|inner| {
                let todo = inner.life.take_todo(worker);
                if todo == Actions::NONE {
                    self.call_next(inner);
                }
                (todo, inner.life.take_fault())
            });
            if let Some(fault) = fault {
                fault.say(self.nid());
            }
            if todo == Actions::NONE {
                return;
            }
            step(todo);
        }
    }

    /// Calls the worker who has something to do, unless one is at it, who finds it.
    pub(super) fn call_next(self: &Arc<Self>, inner: &Inner) {
        match inner.life.next_worker() {
            Some(Worker::Control) => self.kick_control(),
            Some(Worker::QueuePair) => {
                let queue = self.queues.queue_pairs();
                let _ = queue.enqueue::<Self, QUEUE_PAIR>(self.clone());
            }
            None => {}
        }
    }

    /// Queues the worker for what goes on at once.
    pub(super) fn kick_control(self: &Arc<Self>) {
        let queue = self.queues.steps();
        let _ = queue.enqueue::<Self, CONTROL>(self.clone());
    }
}
