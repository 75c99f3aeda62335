// SPDX-License-Identifier: GPL-2.0

//! The work queues.
//!
//! Each device has queues of its own. A device that hangs delays each call for as long as its
//! driver waits for it, and delays nothing of another device.
//!
//! Most of the work for a connection is to make its queue pair and buffers, and to destroy them.
//! The first queue is for that, and runs a few items at a time. A thousand at once would share the
//! CPUs with each other and with all messages, and would be ready all at the end; a few at a time
//! are ready one after the other, and each has a thread only when its turn comes.
//!
//! The second queue is for short steps, which wait for nothing: a connection of another peer waits
//! for them. The third one is for steps that wait: to free a CM id waits for messages of the CM,
//! and LNet, when it gets a message back, may do anything. So it has no small bound. Timers, and
//! what looks after NIs and peers, have queues that all devices share, without a small bound as
//! well.
//!
//! # Invariants
//!
//! A queue, once made, is there until the module goes: the last reference to a connection may be dropped by one of
//! its items.

use core::ops::RangeInclusive;

use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Relaxed,
            Release, //
        },
        Arc,
        Mutex, //
    }, //
};

use crate::rdma::work::{
    self,
    OwnedQueue,
    QueueKind, //
};

/// So many queue pairs of a device are made or destroyed at a time: one for each CPU within these limits. That sleeps
/// in between, so one CPU has use for some; and no device does more than some at a time.
const AT_ONCE: RangeInclusive<u32> = 4..=16;

/// So many, where a device is over TCP: to connect (siw), or to end what is not connected yet (others, 7.3: iw_cm),
/// waits for the other side's TCP there, for minutes if that does not answer, and who waits so must not keep others
/// from their turn.
const WAITING_AT_ONCE: u8 = 128;

/// So many connections of a device take short steps at a time. More would be threads without use.
const STEPS_AT_ONCE: u8 = 32;

/// The work queues.
#[pin_data]
pub(crate) struct WorkQueues {
    /// Timers, retries, devices: may take long, order does not matter.
    pub(crate) control: OwnedQueue,
    /// Calls into LNet: on the CPU chosen for the connection, or the one that has handled a completion. Before ordinary
    /// tasks.
    pub(crate) upper: OwnedQueue,
    /// The same for connections that have had much of that ([`crate::policy::upcall_sched`]): among ordinary tasks.
    pub(crate) upper_busy: OwnedQueue,
    /// Those of devices. Taken when an NI starts or follows its address, and at the end.
    #[pin]
    devices: Mutex<KVec<Arc<DeviceEntry>>>,
}

/// The queues of a device.
struct DeviceEntry {
    queue_pairs: OwnedQueue,
    steps: OwnedQueue,
    blocking: OwnedQueue,
    /// For the other side is waited in the first one.
    waits: bool,
    /// How many [`DeviceQueues`] there are.
    users: Atomic<u32>,
}

/// The queues of a device, for whoever has to do with it. They are no other device's before the last one who has this
/// is gone: also what is left on a device that hangs holds up nobody else.
pub(crate) struct DeviceQueues(Arc<DeviceEntry>);

impl DeviceQueues {
    /// Where queue pairs have their turn.
    pub(crate) fn queue_pairs(&self) -> &OwnedQueue {
        &self.0.queue_pairs
    }

    /// For short steps of connections: addresses, peers.
    pub(crate) fn steps(&self) -> &OwnedQueue {
        &self.0.steps
    }

    /// For steps of connections that call LNet, or free a CM id.
    pub(crate) fn blocking(&self) -> &OwnedQueue {
        &self.0.blocking
    }

    fn of(one: &Arc<DeviceEntry>) -> Self {
        one.users.fetch_add(1, Relaxed);
        Self(one.clone())
    }
}

impl Clone for DeviceQueues {
    fn clone(&self) -> Self {
        Self::of(&self.0)
    }
}

impl Drop for DeviceQueues {
    fn drop(&mut self) {
        self.0.users.fetch_sub(1, Release);
    }
}

impl WorkQueues {
    /// Makes the queues. May sleep.
    pub(crate) fn new() -> Result<Arc<Self>> {
        let control = OwnedQueue::new(c"ro2iblnd_control", QueueKind::Unbound, false, 0)?;
        let upper = OwnedQueue::new(c"ro2iblnd_upper", QueueKind::PerCpu, true, 0)?;
        let upper_busy = OwnedQueue::new(c"ro2iblnd_busy", QueueKind::PerCpu, false, 0)?;
        Arc::pin_init(
            pin_init!(Self {
                control,
                upper,
                upper_busy,
                devices <- kernel::new_mutex!(KVec::new(), "Workers::devices"),
            }),
            GFP_KERNEL,
        )
    }

    /// Queues for a device: the first ones of their kind that nobody has, or new ones. `waits`: for the other side is
    /// waited there. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn for_device(&self, waits: bool) -> Result<DeviceQueues> {
        let mut all = self.devices.lock();
        // Who is there makes others of them, and this mutex the first.
        let free = |one: &&Arc<DeviceEntry>| one.waits == waits && one.users.load(Acquire) == 0;
        if let Some(free) = all.iter().find(free) {
            return Ok(DeviceQueues::of(free));
        }
        let at_once = work::cpus().clamp(*AT_ONCE.start(), *AT_ONCE.end());
        let at_once = match waits {
            true => WAITING_AT_ONCE,
            false => u8::try_from(at_once).unwrap_or(u8::MAX),
        };
        let one = DeviceEntry {
            queue_pairs: OwnedQueue::new(c"ro2iblnd_qp", QueueKind::Unbound, false, at_once)?,
            steps: OwnedQueue::new(c"ro2iblnd_conn", QueueKind::Unbound, false, STEPS_AT_ONCE)?,
            blocking: OwnedQueue::new(c"ro2iblnd_block", QueueKind::Unbound, false, 0)?,
            waits,
            users: Atomic::new(0),
        };
        let one = Arc::new(one, GFP_KERNEL)?;
        let queues = DeviceQueues::of(&one);
        all.push(one, GFP_KERNEL)?;
        Ok(queues)
    }

    /// Waits for all that is queued, and for handlers on their way out of our code. May sleep.
    pub(crate) fn flush(&self) {
        for one in self.devices.lock().iter() {
            one.queue_pairs.flush();
            one.steps.flush();
            one.blocking.flush();
        }
        self.control.flush();
        self.upper.flush();
        self.upper_busy.flush();
        work::synchronize_callbacks();
    }
}
