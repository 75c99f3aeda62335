// SPDX-License-Identifier: GPL-2.0

//! The control half of a connection: the worker that does what the state machine asks for
//! ([`Actions`]), in the order of its life.
//!
//! Context: one work item per connection, so these steps never run at the same time for one connection;
//! anything may sleep here. The steps themselves are in [`super::setup`], [`super::close`] and
//! [`super::leave`].

use kernel::{
    sync::Arc,
    workqueue::WorkItem, //
};

use super::{
    Conn,
    CONTROL,
    SET_UP, //
};
use crate::{
    proto::conn::Actions,
    rdma::work::NofsScope, //
};

impl WorkItem<CONTROL> for Conn {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let _nofs = NofsScope::enter();
        for event in this.qp_notes.take() {
            this.event(event);
        }
        loop {
            let (todo, fault, set_up) = this.with(|inner| {
                let todo = inner.life.take_todo();
                (todo, inner.life.take_fault(), inner.life.wants_set_up())
            });
            if let Some(fault) = fault {
                fault.say(this.nid());
            }
            if todo == Actions::NONE {
                if set_up {
                    // Its turn may have come while this was at other steps.
                    this.kick_set_up();
                }
                break;
            }
            if todo.has(Actions::RESOLVE) {
                this.resolve();
            }
            if todo.has(Actions::NOTIFY_CM) {
                this.notify_cm();
            }
            if todo.has(Actions::SPEAK) {
                this.speak();
            }
            if todo.has(Actions::ESTABLISH) {
                this.publish();
            }
            if todo.has(Actions::CLOSE) {
                this.close();
            }
            if todo.has(Actions::RELEASE) {
                this.release();
            }
        }
        if this.with(|inner| inner.goodbye.leaves()) {
            this.leave();
        }
        this.cm.drop_late();
    }
}

impl WorkItem<SET_UP> for Conn {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let _nofs = NofsScope::enter();
        if this.with(|inner| inner.life.begin_set_up()) {
            this.set_up();
            this.with(|inner| inner.life.set_up_done());
            // What came meanwhile.
            this.kick_control();
        }
    }
}
