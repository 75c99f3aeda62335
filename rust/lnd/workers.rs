// SPDX-License-Identifier: GPL-2.0

//! The work queues.
//!
//! Most of the work there is with a connection is to make its queue pair and buffers, and to destroy them. That has a
//! queue of its own for each device, where a few run at a time. A thousand at once would share the CPUs with each
//! other and with the messages of everybody else, and be ready all at the end; a few at a time are ready one after
//! the other, and each has a thread only when its turn comes. A device that has died, and holds up each call for as
//! long as its driver waits for it, holds up nobody on another one.
//!
//! All else of connections has a queue with room for more: to free a CM id waits for messages of the CM, and who waits
//! must not hold up who works. Timers and whoever looks after NIs and peers wait for nobody.
//!
//! # Invariants
//!
//! A queue, once made, is there until the module goes: the last reference to a connection may be dropped by one of
//! its items.

use core::ops::RangeInclusive;

use kernel::{
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    }, //
};

use crate::rdma::work::{
    self,
    OwnedQueue,
    QueueKind, //
};

/// So many queue pairs of a device are made or destroyed at a time: one for each CPU within these limits. That sleeps in
/// between, so one CPU has use for some; and no device does more than some at a time.
const AT_ONCE: RangeInclusive<u32> = 4..=16;

/// So many, where a device is made of software and over TCP: to connect waits for the other side's TCP there, for two
/// minutes if that does not answer, and who waits so must not keep others from their turn.
const WAITING_AT_ONCE: u8 = 128;

/// So many connections take other steps at a time. More would be a thread for each one of a thousand that close.
const OTHERS_AT_ONCE: u8 = 32;

/// The work queues.
#[pin_data]
pub(crate) struct Workers {
    /// Timers, retries, devices: may take long, order does not matter.
    pub(crate) control: OwnedQueue,
    /// Steps of connections but for their queue pairs: addresses, peers, CM ids.
    pub(crate) conns: OwnedQueue,
    /// Calls into LNet: on the CPU chosen for the connection, or the one that has handled a completion.
    pub(crate) upper: OwnedQueue,
    /// Queue pairs, by device. Taken when an NI starts or follows its address, and at the end.
    #[pin]
    queue_pairs: Mutex<KVec<ForDevice>>,
}

/// The queue for the queue pairs of a device.
struct ForDevice {
    queue: Arc<OwnedQueue>,
    /// To connect waits there.
    waits: bool,
}

impl Workers {
    /// Makes the queues. May sleep.
    pub(crate) fn new() -> Result<Arc<Self>> {
        let control = OwnedQueue::new(c"ro2iblnd_control", QueueKind::Unbound, false, 0)?;
        let conns = OwnedQueue::new(c"ro2iblnd_conn", QueueKind::Unbound, false, OTHERS_AT_ONCE)?;
        let upper = OwnedQueue::new(c"ro2iblnd_upper", QueueKind::PerCpu, true, 0)?;
        Arc::pin_init(
            pin_init!(Self {
                control,
                conns,
                upper,
                queue_pairs <- kernel::new_mutex!(KVec::new(), "Workers::queue_pairs"),
            }),
            GFP_KERNEL,
        )
    }

    /// A queue for the queue pairs of a device: the first of its kind that no other one `has`, or a new one. `waits`: to
    /// connect waits for the other side there. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn queue_pairs(
        &self,
        waits: bool,
        has: impl Fn(&Arc<OwnedQueue>) -> bool,
    ) -> Result<Arc<OwnedQueue>> {
        let mut all = self.queue_pairs.lock();
        let free = |one: &&ForDevice| one.waits == waits && !has(&one.queue);
        if let Some(free) = all.iter().find(free) {
            return Ok(free.queue.clone());
        }
        let at_once = work::cpus().clamp(*AT_ONCE.start(), *AT_ONCE.end());
        let at_once = match waits {
            true => WAITING_AT_ONCE,
            false => u8::try_from(at_once).unwrap_or(u8::MAX),
        };
        let queue = OwnedQueue::new(c"ro2iblnd_qp", QueueKind::Unbound, false, at_once)?;
        let queue = Arc::new(queue, GFP_KERNEL)?;
        let one = ForDevice {
            queue: queue.clone(),
            waits,
        };
        all.push(one, GFP_KERNEL)?;
        Ok(queue)
    }

    /// Waits for all that is queued, and for handlers on their way out of our code. May sleep.
    pub(crate) fn flush(&self) {
        for one in self.queue_pairs.lock().iter() {
            one.queue.flush();
        }
        self.conns.flush();
        self.control.flush();
        self.upper.flush();
        work::wait_for_callers();
    }
}
