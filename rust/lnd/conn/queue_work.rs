// SPDX-License-Identifier: GPL-2.0

//! Queueing of the work items of a connection, [`super::control_work`].
//!
//! Context: any, with or without the connection lock.

use kernel::sync::Arc;

use super::{
    Conn,
    Inner,
    BLOCKING,
    CONTROL,
    QUEUE_PAIR, //
};
use crate::proto::conn_state::Worker;

impl Conn {
    /// Queues the next worker with actions, unless one runs: that worker finds the actions by itself.
    pub(super) fn call_next(self: &Arc<Self>, inner: &Inner) {
        match inner.state.next_worker() {
            Some(Worker::Control) => self.kick_control(),
            Some(Worker::Blocking) => self.kick_blocking(),
            Some(Worker::QueuePair) => self.kick_queue_pair(),
            None => {}
        }
    }

    /// Queues the worker for calls into the device.
    pub(super) fn kick_queue_pair(self: &Arc<Self>) {
        let queue = self.queues.queue_pairs();
        let _ = queue.enqueue::<Self, QUEUE_PAIR>(self.clone());
    }

    /// Queues the worker for short steps.
    pub(super) fn kick_control(self: &Arc<Self>) {
        let queue = self.queues.steps();
        let _ = queue.enqueue::<Self, CONTROL>(self.clone());
    }

    /// Queues the worker for steps that wait for LNet or for the CM.
    pub(super) fn kick_blocking(self: &Arc<Self>) {
        let queue = self.queues.blocking();
        let _ = queue.enqueue::<Self, BLOCKING>(self.clone());
    }
}
