// SPDX-License-Identifier: GPL-2.0

//! The work queues.
//!
//! Setting up a connection is most of the work there is with it: a queue pair and its buffers. It has a queue of its
//! own for each device, where a few run at a time. A thousand at once would share the CPUs with each other and with
//! the messages of everybody else, and be ready all at the end; a few at a time are ready one after the other, and
//! each has a thread only when its turn comes. A device that has died, and holds up each call for as long as its
//! driver waits for it, holds up nobody on another one, and nobody who closes.
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

/// So many connections of a device are set up at a time: one for each CPU within these limits. They sleep in between,
/// so one CPU has use for some; and no device does more than some at a time.
const AT_ONCE: RangeInclusive<u32> = 4..=16;

/// The work queues.
#[pin_data]
pub(crate) struct Workers {
    /// Addresses, closes, releases, retries, timers, devices: may take long, order does not matter.
    pub(crate) control: OwnedQueue,
    /// Calls into LNet: on the CPU chosen for the connection, or the one that has handled a completion.
    pub(crate) upper: OwnedQueue,
    /// Set-ups, by device. Taken when an NI starts or follows its address, and at the end.
    #[pin]
    set_ups: Mutex<KVec<Arc<OwnedQueue>>>,
}

impl Workers {
    /// Makes the queues. May sleep.
    pub(crate) fn new() -> Result<Arc<Self>> {
        let control = OwnedQueue::new(c"ro2iblnd_control", QueueKind::Unbound, false, 0)?;
        let upper = OwnedQueue::new(c"ro2iblnd_upper", QueueKind::PerCpu, true, 0)?;
        Arc::pin_init(
            pin_init!(Self {
                control,
                upper,
                set_ups <- kernel::new_mutex!(KVec::new(), "Workers::set_ups"),
            }),
            GFP_KERNEL,
        )
    }

    /// A queue for the set-ups on a device: the first that no other one `has`, or a new one. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn set_ups(
        &self,
        has: impl Fn(&Arc<OwnedQueue>) -> bool,
    ) -> Result<Arc<OwnedQueue>> {
        let mut all = self.set_ups.lock();
        if let Some(free) = all.iter().find(|queue| !has(queue)) {
            return Ok(free.clone());
        }
        let at_once = work::cpus().clamp(*AT_ONCE.start(), *AT_ONCE.end());
        let at_once = u8::try_from(at_once).unwrap_or(u8::MAX);
        let queue = OwnedQueue::new(c"ro2iblnd_set_up", QueueKind::Unbound, false, at_once)?;
        let queue = Arc::new(queue, GFP_KERNEL)?;
        all.push(queue.clone(), GFP_KERNEL)?;
        Ok(queue)
    }

    /// Waits for all that is queued, and for handlers on their way out of our code. May sleep.
    pub(crate) fn flush(&self) {
        for queue in self.set_ups.lock().iter() {
            queue.flush();
        }
        self.control.flush();
        self.upper.flush();
        work::wait_for_callers();
    }
}
