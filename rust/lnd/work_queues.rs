// SPDX-License-Identifier: GPL-2.0

//! Work queues.
//!
//! Each device has its own queues. A device that hangs delays each call for as long as its driver waits for it, and
//! does not delay another device.
//!
//! The queue for queue pairs and buffers runs a few items at a time. A thousand at once would share the CPUs with each
//! other and with all messages, and would all be ready at the end. A few at a time are ready one after the other, and
//! each has a thread only in its turn. The queue for short steps waits for nothing, because connections of other peers
//! wait for them. The third queue has the kernel's largest limit, because its steps wait: freeing a CM id for messages
//! of the CM, and LNet may do anything when it gets a message back. Over TCP the end of an attempt that the peer does
//! not answer waits for minutes, and there may be more such peers than any limit: these ends have their own queue.
//!
//! # Invariants
//!
//! A queue exists until the module is unloaded: one of its items may drop the last reference to a connection.

use core::ops::Deref;

use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Full,
            Release, //
        },
        Arc,
        Mutex, //
    }, //
};

use crate::rdma::{
    mr_sharing::Regions,
    rcu_map,
    work::{
        self,
        OwnedQueue,
        QueueKind, //
    }, //
};

/// Number of queue pairs of a device that are created or destroyed at a time: one for each CPU within these limits. The
/// work sleeps in between, so one CPU can run several items. No device handles more than a few at a time.
const AT_ONCE: (u32, u32) = (4, 16);

/// Limit for a device over TCP, in place of [`AT_ONCE`]. siw waits there, when it connects, for the TCP of the other
/// side, for minutes if that does not answer. Such a wait must not delay other connections.
const WAITING_AT_ONCE: u8 = 128;

/// Number of connections of a device that take short steps at a time. More would be threads without use.
const STEPS_AT_ONCE: u8 = 32;

#[pin_data]
pub(crate) struct WorkQueues {
    /// Timers, retries, devices: items may take long; the order does not matter.
    pub(crate) control: OwnedQueue,
    /// Completions of software providers: on the CPU of the provider. High priority. Not beside calls into LNet,
    /// because a queue has one thread when memory is short, and LNet may keep that.
    pub(crate) completions: OwnedQueue,
    /// Calls into LNet: on the CPU chosen for the connection, or the CPU that has handled a completion. High priority.
    pub(crate) upper: OwnedQueue,
    /// Calls into LNet for connections that have already had many ([`crate::policy::upcall_sched`]): normal priority.
    pub(crate) upper_busy: OwnedQueue,
    /// Retries of messages and requests that wait for memory. Not beside calls into LNet, for the same reason as
    /// `completions`: only these retries use the reserves that let pages be cleaned.
    pub(crate) retries: OwnedQueue,
    /// Queues of devices. The lock is taken when an NI starts or follows its address, and at the end.
    #[pin]
    devices: Mutex<KVec<Arc<DeviceEntry>>>,
}

/// Queues of a device.
pub(crate) struct DeviceEntry {
    /// Work on queue pairs.
    pub(crate) queue_pairs: OwnedQueue,
    /// Short steps of connections: addresses, peers.
    pub(crate) steps: OwnedQueue,
    /// Steps of connections that call LNet, or free a CM id.
    pub(crate) blocking: OwnedQueue,
    /// Over TCP, where items of `queue_pairs` wait for the other side: ends of attempts that the peer does not answer.
    unanswered: Option<OwnedQueue>,
    /// A device has the queues.
    is_used: Atomic<bool>,
}

/// Objects that all addresses on one device share. No other device gets the queues before this is dropped: items that
/// are left on a device that hangs delay no other device.
pub(crate) struct DeviceShares {
    /// Memory regions.
    pub(crate) regions: Arc<Regions>,
    queues: Arc<DeviceEntry>,
}

impl Deref for DeviceShares {
    type Target = DeviceEntry;

    fn deref(&self) -> &DeviceEntry {
        &self.queues
    }
}

impl Drop for DeviceShares {
    fn drop(&mut self) {
        self.is_used.store(false, Release);
    }
}

impl DeviceEntry {
    /// Returns the queue for the end of an attempt that the peer does not answer.
    pub(crate) fn unanswered(&self) -> &OwnedQueue {
        self.unanswered.as_ref().unwrap_or(&self.blocking)
    }
}

impl WorkQueues {
    /// Creates the queues. May sleep.
    pub(crate) fn new() -> Result<Arc<Self>> {
        let control = OwnedQueue::new(c"ro2iblnd_control", QueueKind::Unbound, false, 0)?;
        let completions = OwnedQueue::new(c"ro2iblnd_cq", QueueKind::PerCpu, true, 0)?;
        let upper = OwnedQueue::new(c"ro2iblnd_upper", QueueKind::PerCpu, true, 0)?;
        let upper_busy = OwnedQueue::new(c"ro2iblnd_busy", QueueKind::PerCpu, false, 0)?;
        let retries = OwnedQueue::new(c"ro2iblnd_retry", QueueKind::PerCpu, false, 0)?;
        Arc::pin_init(
            pin_init!(Self {
                control,
                completions,
                upper,
                upper_busy,
                retries,
                devices <- kernel::new_mutex!(KVec::new(), "WorkQueues::devices"),
            }),
            GFP_KERNEL,
        )
    }

    /// Returns the objects for a device with these memory regions. Its queues are the first unused ones of their kind,
    /// or new ones. `waits`: items wait for the other side. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn for_device(
        &self,
        regions: Arc<Regions>,
        waits: bool,
    ) -> Result<Arc<DeviceShares>> {
        let take = |one: &&Arc<DeviceEntry>| {
            one.unanswered.is_some() == waits && !one.is_used.xchg(true, Full)
        };
        let unused = self.devices.lock().iter().find(take).cloned();
        // The use ends with the last reference, or if this fails.
        let shares = |queues| Ok(Arc::new(DeviceShares { regions, queues }, GFP_KERNEL)?);
        if let Some(one) = unused {
            return shares(one);
        }
        // Without the mutex: the thread of a new queue may have to wait for memory, and another device finds its unused
        // queues meanwhile.
        let at_once = work::cpus().clamp(AT_ONCE.0, AT_ONCE.1);
        let at_once = match waits {
            true => WAITING_AT_ONCE,
            false => u8::try_from(at_once).unwrap_or(u8::MAX),
        };
        let unbound = |name, at_once| OwnedQueue::new(name, QueueKind::Unbound, false, at_once);
        let one = DeviceEntry {
            queue_pairs: unbound(c"ro2iblnd_qp", at_once)?,
            steps: unbound(c"ro2iblnd_conn", STEPS_AT_ONCE)?,
            blocking: unbound(c"ro2iblnd_block", 0)?,
            unanswered: waits.then(|| unbound(c"ro2iblnd_end", 0)).transpose()?,
            is_used: Atomic::new(true),
        };
        let one = Arc::new(one, GFP_KERNEL)?;
        self.devices.lock().push(one.clone(), GFP_ATOMIC)?;
        shares(one)
    }

    /// Waits for all queued items, and for handlers that are about to leave the module's code. May sleep.
    pub(crate) fn flush(&self) {
        // Without the mutex, because items may take long.
        let device = |at: usize| self.devices.lock().get(at).cloned();
        for one in (0..).map_while(device) {
            one.queue_pairs.flush();
            one.steps.flush();
            one.blocking.flush();
            if let Some(unanswered) = &one.unanswered {
                unanswered.flush();
            }
        }
        self.completions.flush();
        self.upper.flush();
        self.upper_busy.flush();
        self.retries.flush();
        self.control.flush();
        // Peers that the items above have removed.
        rcu_map::rcu_barrier();
        self.control.flush();
        work::synchronize_callbacks();
    }
}
