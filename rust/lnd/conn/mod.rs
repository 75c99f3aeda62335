// SPDX-License-Identifier: GPL-2.0

//! Connection: one RC queue pair, its protocol state, and the work items that serve it.
//!
//! All mutable state is in [`Inner`], behind one BH spin lock. It has parts, each with private fields in its own file.
//! The parts do not use each other, except that the wire half puts requests into the receive queue. This file holds the
//! parts together, and turns the actions of the state machine into work.
//!
//! | part | content |
//! |---|---|
//! | [`state`] | state of the connection, and the steps that its workers still have to do |
//! | [`dreq_wait`] | DREQ to the peer at the end, and how long the CM id waits |
//! | [`wire`] | credits, transmits, buffers, queue pair |
//! | [`rx_queue`] | received requests that LNet has to take, and that LNet holds |
//! | [`no_memory_queue`] | messages and requests that wait for memory |
//! | [`liveness`] | how long the peer has been silent |
//!
//! Outside the lock: the state of the worker that calls LNet ([`upcall_state`]), the state of the CM ([`cm_state`]),
//! events of the queue pair from interrupts ([`pending_qp_events`]), and whether the peer may have closed the
//! connection, which the peer object reads with its own lock held.
//!
//! Operations on a connection, each in a file that uses this one:
//!
//! | file | content | runs in |
//! |---|---|---|
//! | [`completions`] | events of the queue pair | softirq |
//! | [`upcall`] | calls into LNet | work item, one per connection, ordered |
//! | [`recv`] | receive calls of LNet | the same work item, or the thread that calls LNet |
//! | [`resend`] | retry of messages that wait for memory; resend of lost messages | a work item; as `upcall` |
//! | [`doorbell`] | post of queued transmits, now or with later ones | the context that queued them, or made room |
//! | [`repost`] | repost of receive buffers | as `recv` |
//! | [`no_memory`] | wait for memory | as `recv` |
//! | [`send`], [`submit`], [`mapping`] | transmits for messages and answers | the thread that calls LNet |
//! | [`control_work`], [`setup`], [`close`], [`graceful_close`], [`timer`] | set-up to release | work items |
//! | [`queue_work`], [`timer_arm`] | queue the work items | any |
//! | [`route_check`] | whether the peer can be reached, over the device of the connection | process context |
//! | [`cm`] | events of the CM | its work queue |
//! | [`transfer`] | payload of a transmit, with its sink here or at the peer | owned by a transmit |
//! | [`rx`], [`prealloc_fifo`], [`close_reason`] | received message; queue without allocations; why it closes | any |
//! | [`called_by_peer`] | functions that the peer object calls | process context |
//! | [`snapshot`] | state for debugfs | process context |
//!
//! # Invariants
//!
//! - The state changes only in [`Conn::step`], which also handles the consequences under the same lock.
//! - Work requests are posted only while the state is Established, receives also before.
//! - Under the lock, the driver does not print, and does not call LNet or the CM, except for a line of LNet's debug
//!   log.

use kernel::{
    prelude::*,
    sync::Arc,
    workqueue::{
        DelayedWork,
        Work, //
    }, //
};

use self::{
    close_reason::CloseReason,
    cm_state::CmState,
    dreq_wait::DreqWait,
    liveness::ConnTimers,
    no_memory_queue::MemoryQueue,
    pending_qp_events::QpEvents,
    rx_queue::RxQueue,
    state::ConnState,
    upcall_state::UpcallState,
    wire::Wire, //
};
use super::{
    conn_count::ConnGuard,
    conn_settings::ConnSettings,
    hca::Hca,
    ni::Ni,
    peer::Peer,
    stats::conn_trace::ConnStats,
    timestamp::Timestamp,
    work_queues::DeviceQueues, //
};
use crate::{
    lnet::dk::dk,
    policy::{
        connect_queue::ConnectPriority,
        reconnect::PeerParams,
        upcall_sched::JobTurns, //
    },
    proto::{
        cause::Cause,
        conn_state::{
            Actions,
            ConnEvent,
            FirstSender,
            FIRST_WORD_MS, //
        },
        nid::Nid,
        wire::Identity, //
    },
    rdma::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        sync::{
            new_spinlock_bh,
            SpinLockBh,
            SpinLockBhGuard, //
        },
        work::{
            self,
            Cpu, //
        }, //
    }, //
};

mod called_by_peer;
mod close;
mod close_reason;
mod cm;
mod cm_state;
mod completions;
mod control_work;
mod doorbell;
mod dreq_wait;
mod graceful_close;
mod liveness;
mod mapping;
mod no_memory;
mod no_memory_queue;
mod pending_qp_events;
mod prealloc_fifo;
mod queue_work;
pub(crate) mod recv;
mod repost;
mod resend;
mod route_check;
mod rx;
mod rx_queue;
mod send;
mod setup;
pub(crate) mod snapshot;
mod state;
mod submit;
mod timer;
mod timer_arm;
mod transfer;
mod upcall;
mod upcall_state;
mod wire;

/// Id of the work item for short steps.
const CONTROL: u64 = 1;
/// Id of the work item for steps that wait for LNet or for the CM.
const BLOCKING: u64 = 6;
/// Id of the work item that creates, closes and destroys the queue pair.
const QUEUE_PAIR: u64 = 4;
/// Id of the work item that calls LNet.
const UPPER: u64 = 2;
/// Id of the timer.
const TIMER: u64 = 3;
/// Id of the work item that retries messages and requests that wait for memory.
const SHORTAGE: u64 = 5;
/// Milliseconds between two checks of a connection that closes.
const CLOSING_MS: u32 = 1000;

/// State that the connection lock protects.
struct Inner {
    state: ConnState,
    dreq_wait: DreqWait,
    wire: Wire<Conn>,
    rx_queue: RxQueue<Conn>,
    waiting: MemoryQueue<Conn>,
    /// Task that calls LNet for the connection, or did so last.
    upcall_task: i32,
    turns: JobTurns,
    timers: ConnTimers,
}

/// Connection to a peer.
#[pin_data]
pub(crate) struct Conn {
    ni: Arc<Ni>,
    peer: Arc<Peer<Conn>>,
    /// Whether this side is the active one.
    active: bool,
    over_tcp: bool,
    /// Lowest index that no other connection of the peer had when this one was listed.
    index: Atomic<u32>,
    /// CPU of the LNet half, unless `near`; completions are requested for it, too.
    cpu: Cpu,
    /// The LNet half runs on the CPU that has handled the completion. A software provider handles completions in a work
    /// item on any CPU: the kernel would have to wake another CPU for the LNet half, but this CPU continues with it.
    near: bool,
    made_with: ConnSettings,
    /// Queues of its workers: shared by all connections of the device.
    queues: DeviceQueues,
    #[pin]
    inner: SpinLockBh<Inner>,
    #[pin]
    cm: CmState<Conn>,
    qp_notes: QpEvents,
    upcall: UpcallState,
    /// The peer has not been heard on this connection since there was a reason to doubt it.
    is_doubted: Atomic<bool>,
    #[pin]
    control: Work<Conn, CONTROL>,
    #[pin]
    blocking: Work<Conn, BLOCKING>,
    #[pin]
    queue_pair: Work<Conn, QUEUE_PAIR>,
    #[pin]
    upper: Work<Conn, UPPER>,
    #[pin]
    timer: DelayedWork<Conn, TIMER>,
    #[pin]
    retry: DelayedWork<Conn, SHORTAGE>,
    _live: ConnGuard,
}

kernel::impl_has_work! {
    impl HasWork<Self, CONTROL> for Conn { self.control }
    impl HasWork<Self, BLOCKING> for Conn { self.blocking }
    impl HasWork<Self, QUEUE_PAIR> for Conn { self.queue_pair }
    impl HasWork<Self, UPPER> for Conn { self.upper }
}

kernel::impl_has_delayed_work! {
    impl HasDelayedWork<Self, TIMER> for Conn { self.timer }
    impl HasDelayedWork<Self, SHORTAGE> for Conn { self.retry }
}

impl work::DelayedItem<TIMER> for Conn {
    fn queue(&self) -> &work::OwnedQueue {
        &self.ni.workers.control
    }
}

impl Conn {
    /// Creates a connection object in state Init. May sleep.
    fn new(
        peer: &Arc<Peer<Conn>>,
        turn: Option<ConnectPriority>,
        known: PeerParams,
        salt: u32,
    ) -> Result<Arc<Self>> {
        let active = turn.is_some();
        let ni = &peer.ni;
        let identity = Identity {
            me: ni.nid,
            my_stamp: ni.stamp,
            peer: peer.nid,
            peer_stamp: known.stamp,
        };
        let meter = ConnStats::new(&ni.times, ni.nid, peer.nid, active);
        let hca = ni.hca()?;
        let over_tcp = hca.device.is_iwarp(hca.port);
        let near = hca.device.is_software();
        let queues = hca.queues.clone();
        let live = ni.live()?;
        // Initialised in place: LNet sends from deep in a file system, where the stack has no room for a copy.
        let inner = init!(Inner {
            state: ConnState::new(FirstSender::over(over_tcp), known, turn),
            dreq_wait: DreqWait::new(),
            wire <- Wire::new(identity, known.depth, hca, meter),
            rx_queue: RxQueue::EMPTY,
            waiting: MemoryQueue::EMPTY,
            upcall_task: 0,
            turns: JobTurns::default(),
            timers: ConnTimers::new(),
        });
        // A CPU of the peer's partition; connections of one peer are spread by `salt`.
        let cpu = u32::try_from(ni.lnet.cpu_of(peer.nid.raw(), salt)).unwrap_or(0);
        Arc::pin_init(
            pin_init!(Self {
                ni: ni.clone(),
                peer: peer.clone(),
                active,
                over_tcp,
                index: Atomic::new(0),
                cpu: work::online_cpu(cpu),
                near,
                made_with: ni.for_new_conn(),
                queues,
                inner <- new_spinlock_bh!(inner, "Conn::inner"),
                cm <- CmState::new(),
                qp_notes: QpEvents::new(),
                upcall: UpcallState::new(),
                is_doubted: Atomic::new(false),
                control <- kernel::new_work!("Conn::control"),
                blocking <- kernel::new_work!("Conn::blocking"),
                queue_pair <- kernel::new_work!("Conn::queue_pair"),
                upper <- kernel::new_work!("Conn::upper"),
                timer <- kernel::new_delayed_work!("Conn::timer"),
                retry <- kernel::new_delayed_work!("Conn::retry"),
                _live: live,
            }),
            GFP_KERNEL,
        )
    }

    /// Returns the peer's NID.
    pub(crate) fn nid(&self) -> Nid {
        self.peer.nid
    }

    /// Returns the path MTU in bytes, 0 if unknown. Not under a lock that is taken in softirq.
    pub(crate) fn path_mtu(&self) -> u32 {
        self.cm.path_mtu()
    }

    /// Runs `f` under the connection lock.
    fn with<R>(&self, f: impl FnOnce(&mut Inner) -> R) -> R {
        f(&mut self.inner.lock())
    }

    /// Takes the connection lock.
    fn lock(&self) -> SpinLockBhGuard<'_, Inner> {
        self.inner.lock()
    }

    /// Passes an event to the state machine and handles the consequences. Not in hard irq; takes the lock.
    fn event(self: &Arc<Self>, event: ConnEvent) {
        let mut inner = self.lock();
        self.step(&mut inner, event);
    }

    /// Closes the connection for `cause`, if it is not closed yet.
    fn end(self: &Arc<Self>, cause: Cause) {
        self.event(ConnEvent::Fail(cause));
    }

    /// Closes the connection for `fault` with the lock already held; a worker logs it after the unlock.
    fn blame(self: &Arc<Self>, inner: &mut Inner, fault: CloseReason) {
        let cause = fault.cause();
        inner.state.blame(fault);
        self.step(inner, ConnEvent::Fail(cause));
    }

    /// Acts as [`Conn::event`] with the lock already held.
    fn step(self: &Arc<Self>, inner: &mut Inner, event: ConnEvent) {
        let was = inner.state.state();
        let actions = inner.state.on(event);
        let state = inner.state.state();
        if state != was {
            inner.wire.meter().state(was, state, event);
            dk!(Net, "{}: {was:?} to {state:?} on {event:?}", self.nid());
        }
        if actions == Actions::NONE {
            return;
        }
        if actions.has(Actions::AWAIT_WORD) {
            inner.timers.begin_step(FIRST_WORD_MS);
            self.rearm_timer(FIRST_WORD_MS);
        }
        if actions.has(Actions::ESTABLISH) {
            // The control worker publishes it.
            let known = inner.state.known();
            let high_water = self.ni.high_water(known.depth);
            inner.wire.established(known.depth, high_water, known.stamp);
        }
        if actions.has(Actions::CLOSE) {
            // Its worker may have to wait for its turn for long.
            self.rearm_timer(CLOSING_MS);
            inner.wire.cancel(inner.state.end_cause());
            self.queue_upcall(inner, Timestamp::now());
        }
        self.call_next(inner);
    }

    /// Queues the worker that calls LNet, if there is work for it. `now` decides whether it runs before ordinary tasks:
    /// it is the time of the completion that caused the work.
    #[inline]
    fn queue_upcall(self: &Arc<Self>, inner: &mut Inner, now: Timestamp) {
        if has_job(inner) && self.upcall.add_work() {
            self.queue_upper(self.upcall.has_priority(now));
        }
    }

    /// Queues the worker that calls LNet, before ordinary tasks or among them. The caller has noted in `upcall` that it
    /// does: it is in one of the queues at a time.
    fn queue_upper(self: &Arc<Self>, priority: bool) {
        let upper = match priority {
            true => &self.ni.workers.upper,
            false => &self.ni.workers.upper_busy,
        };
        let _ = if self.near {
            upper.enqueue::<Self, UPPER>(self.clone())
        } else {
            upper.enqueue_on::<Self, UPPER>(self.cpu, self.clone())
        };
    }

    /// Returns the RDMA device of the connection.
    fn hca(&self) -> Result<Arc<Hca>> {
        self.with(|inner| inner.wire.hca()).ok_or(ENODEV)
    }

    /// Returns whether the peer may have closed the connection.
    fn doubted(&self) -> bool {
        self.is_doubted.load(Relaxed)
    }

    /// Marks the connection as doubtful: other connections are preferred until the peer is heard on it.
    fn set_doubted(&self) {
        self.is_doubted.store(true, Relaxed);
    }

    /// Notes that the peer has sent or acknowledged a message.
    fn heard(&self) {
        if self.is_doubted.load(Relaxed) {
            self.is_doubted.store(false, Relaxed);
        }
    }
}

/// Returns whether a request waits for LNet, and LNet may have it.
#[inline]
fn has_request(inner: &Inner) -> bool {
    !inner.rx_queue.is_empty() && !inner.state.is_unpublished()
}

/// Returns whether the worker would find a job.
#[inline]
fn has_job(inner: &Inner) -> bool {
    inner.wire.has_done() || has_request(inner)
}
