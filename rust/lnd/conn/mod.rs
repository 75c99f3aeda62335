// SPDX-License-Identifier: GPL-2.0

//! Connection: one RC queue pair, its protocol state, and the work items that serve it.
//!
//! All mutable state is in [`Inner`], behind one BH spin lock. Its parts have private fields in their own files, and do
//! not use each other. This file holds the parts together, turns the actions of the state machine into work, and queues
//! the work items.
//!
//! | part | content |
//! |---|---|
//! | [`crate::proto::conn_state`] | state of the connection, and the steps that its workers still have to do |
//! | [`crate::policy::cm_id_linger`] | what the peer knows about the end, and whether the CM id waits |
//! | [`crate::policy::liveness`] | whether a silent peer is to be probed |
//! | [`crate::proto::credits`], [`crate::proto::tx_table`] | credits; transmits |
//! | [`qp_handle`], [`buf_pool`] | queue pair with the rights to post; unused buffers |
//! | [`rx_queue`] | received requests that LNet has to take, and that LNet holds |
//!
//! Outside the lock: the state of the worker that calls LNet ([`UpcallState`]), events of the queue pair from
//! interrupts; and whether messages may use the connection, and whether the peer may have closed it, which the peer
//! object reads with its own lock held.
//!
//! Operations on a connection, each in a file that uses this one:
//!
//! | file | content | runs in |
//! |---|---|---|
//! | [`receive`] | events of the queue pair; received messages; repost of receive buffers | softirq; as `recv` |
//! | [`post`] | transmits that may be sent next; their work requests | softirq, process context |
//! | [`upcall`] | calls into LNet; resend of lost messages | work item, one per connection, ordered |
//! | [`recv`] | receive calls of LNet | the same work item, or the thread that calls LNet |
//! | [`no_memory`] | wait for memory; `upcall` has the retry | as `recv`; a work item |
//! | [`send`] | transmits for messages and answers; mapping of their pages | the thread that calls LNet |
//! | [`setup`] | set-up | work items |
//! | [`workers`] | set-up to release, timer; calls of the peer object and the NI | work items; process context |
//! | [`cm`] | events of the CM; messages of the CM at the end, and the wait of the id | its work queue; work items |
//! | [`tx_payload`] | payload of a transmit, with its sink here or at the peer, to its end | owned by a transmit |
//! | [`rx`] | received message | any |
//! | [`show`] | line in debugfs | process context |
//!
//! # Invariants
//!
//! - The state changes only in [`Conn::step`], which also handles the consequences under the same lock.
//! - Work requests are posted only while the state is Established, receives also before.
//! - Credits change in the order in which messages are on the wire: [`Credits`] only in `post` and `receive`.
//! - A receive buffer is posted before any message that returns its credit to the peer.
//! - Pushed work requests are posted, or retired with an error, before the lock is released, unless a doorbell is
//!   certain to follow.
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
    buf_pool::BufPool,
    qp_handle::QpHandle,
    rx::Rx,
    rx_queue::{
        Fifo,
        RxQueue, //
    },
    tx_payload::TxSlots, //
};
use super::{
    hca::Hca,
    log::CloseReason,
    ni::{
        ConnGuard,
        Ni,
        O2ib, //
    },
    peer::{
        HasConns,
        Peer, //
    },
    stats::{
        conn_counters::{
            Counts,
            SnapshotId, //
        },
        conn_latency::ConnStats, //
    },
    timestamp::Timestamp,
    work_queues::DeviceShares, //
};
use crate::{
    lnet::{
        dk::dk,
        ConnSettings,
        Message,
        RecvRequest,
        SendRequest, //
    },
    policy::{
        cm_id_linger::CmIdLinger,
        connect_queue::ConnectPriority,
        liveness::{
            Elapsed,
            Liveness, //
        },
        mr_quota,
        upcall_sched::{
            self,
            SendsInFlight, //
        }, //
    },
    proto::{
        cause::Cause,
        conn_state::{
            Actions,
            ConnEvent,
            ConnFsm,
            Worker,
            FIRST_WORD_MS, //
        },
        constants::{
            high_water,
            PeerParams, //
        },
        credits::Credits,
        nid::Nid,
        reject::RetryWhy,
        tx_table::TxTable,
        wire::{
            Envelope,
            Identity,
            Version, //
        }, //
    },
    rdma::{
        atomic::{
            Atomic,
            Full,
            Relaxed, //
        },
        cm::CmId,
        cm_path::Path,
        qp::Qp,
        random,
        sync::{
            new_spinlock_bh,
            SpinLockBh, //
        },
        work::{
            self,
            Cpu, //
        }, //
    }, //
};

mod buf_pool;
mod cm;
mod no_memory;
mod post;
mod qp_handle;
mod receive;
pub(crate) mod recv;
mod rx;
mod rx_queue;
mod send;
mod setup;
mod show;
mod tx_payload;
mod upcall;
mod workers;

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
    /// State, which only [`Conn::step`] changes, and the steps that the workers still have to do.
    state: ConnFsm,
    /// Requested parameters, later the agreed ones.
    known: PeerParams,
    /// The parameters are agreed on: the incarnation of the peer is known.
    is_agreed: bool,
    /// The peer object knows that the connection is established.
    is_published: bool,
    /// This side's attempt, and other attempts wait in line for its end.
    turn: Option<ConnectPriority>,
    /// Time at which it was established, if it ever was.
    up: Option<Timestamp>,
    /// Milliseconds for which it was established, once it is closed.
    lived_ms: u64,
    /// Reject of the peer that invited another attempt.
    retry: Option<RetryWhy>,
    /// Reason of the peer's reject, in one word.
    rejected: Option<&'static str>,
    /// Reason of the close, until a worker logs it. INVARIANT: It is the reason of the latched cause.
    fault: Option<CloseReason>,
    /// Cause of a graceful close, which waits for the transfers under way, and the time of its begin.
    finishing: Option<(Cause, Timestamp)>,

    /// CM id. INVARIANT: It holds the connection as its handler: the cycle ends with [`Conn::free_id`]. Callers clone
    /// it, and neither use nor drop it under the lock.
    id: Option<Arc<CmId<Conn>>>,
    /// Id whose other references were dropped inside one of its own handlers: the blocking worker frees it.
    late_id: Option<CmId<Conn>>,
    /// Number of the peer's queue pair, 0 if unknown.
    peer_qpn: u32,
    /// Path at the time when it was established: it does not change.
    path: Path,
    /// The driver has called the CM to connect or to accept.
    asked: bool,
    /// The peer has answered that call, or the CM does not wait for an answer any more.
    answered: bool,
    /// The CM has the peer's answer to this side's request, valid or not: for the peer it is a connection.
    connected: bool,
    /// The peer's request needs a reject, but there was no route, or no id yet.
    owes_reject: bool,
    linger: CmIdLinger,

    /// Begin and time limit, in milliseconds, of the current step: of the handshake, of the drain, or of the wait for
    /// the DREP.
    step_limit: (Timestamp, u32),
    liveness: Liveness,
    /// Time at which a valid message was received.
    last_recv: Timestamp,
    /// Time of the last probe because the peer may have closed the connection.
    probed: Option<Timestamp>,
    /// Time of the last check for idle memory regions.
    regions_seen: Timestamp,
    /// Number of memory regions that the worker of the queue pair has to add.
    wanted_regions: usize,
    /// Error of the last one that it could not add.
    add_failed: Option<Error>,

    /// Identities of both nodes, which every message carries.
    identity: Identity,
    credits: Credits,
    txs: TxTable<TxSlots>,
    in_flight: SendsInFlight,
    /// Time since which NOOPs are on their way; it restarts when one of two has arrived.
    noop: Option<Timestamp>,
    buf_pool: BufPool<Conn>,
    /// Queue pair, from set-up to release.
    link: Option<QpHandle<Conn>>,
    /// Gather elements per WRITE, from set-up on.
    max_sge: usize,
    /// Slots that a registration and the message behind it take, from set-up on.
    reg_and_send: u16,
    /// Device, until release: it may be removed afterwards.
    hca: Option<Arc<Hca>>,
    counts: Counts,
    /// Snapshot that last included the counters.
    list: SnapshotId,
    stats: ConnStats,

    rx_queue: RxQueue<Conn>,
    /// Requests of the peer that LNet has taken and that wait for memory or for a memory region, each with its message
    /// if LNet has one.
    waiting_requests: Fifo<(KBox<Rx<Conn>>, Option<Message>, RecvRequest)>,
    /// Messages of LNet that wait for memory or for a memory region, and the times at which they began to wait.
    waiting_msgs: Fifo<(Message, SendRequest, Timestamp)>,
    /// Thread that retries these.
    retrier: Option<i32>,
    /// Time at which the message that it retries began to wait.
    retried_since: Option<Timestamp>,
    /// Task that calls LNet for the connection, or did so last.
    upcall_task: i32,
}

impl Inner {
    /// Begins a step, which may take `ms` milliseconds. The caller arms the timer.
    fn begin_step(&mut self, ms: u32) {
        self.step_limit = (Timestamp::now(), ms);
    }

    /// Returns the milliseconds since the step began.
    fn step_ms(&self) -> i64 {
        self.step_limit.0.elapsed_ms()
    }

    /// Returns the milliseconds that are left for the step; 0 if its time is over.
    fn step_left_ms(&self) -> u32 {
        let left = i64::from(self.step_limit.1).saturating_sub(self.step_ms());
        u32::try_from(left).unwrap_or(0)
    }

    /// Returns the milliseconds since a valid message was received.
    fn idle_ms(&self) -> i64 {
        self.last_recv.elapsed_ms()
    }

    /// Returns the times since the last send and the last message.
    fn elapsed(&self) -> Elapsed {
        Elapsed {
            sent: self.link.as_ref().map_or(0, QpHandle::sent_ms),
            heard: self.idle_ms(),
        }
    }

    /// Returns the queue pair, from set-up to release.
    fn qp(&self) -> Option<Arc<Qp<Conn>>> {
        self.link.as_ref().map(|link| link.qp().clone())
    }

    /// Begins to count credits when the handshake is complete. `high_water` is the number of credits that a NOOP
    /// returns.
    fn agreed(&mut self, high_water: u8) {
        self.credits = Credits::new(self.known.depth, high_water);
        self.identity.peer_stamp = self.known.stamp;
    }

    /// Returns the envelope of every message of this connection; credits are set when a message is posted.
    #[inline]
    fn envelope(&self) -> Envelope {
        Envelope {
            version: Version::V2,
            credits: 0,
            src: self.identity.me,
            src_stamp: self.identity.my_stamp,
            dst: self.identity.peer,
            dst_stamp: self.identity.peer_stamp,
        }
    }

    /// Returns whether a worker must check for idle memory regions.
    fn has_idle_regions(&self) -> bool {
        let held = self.link.as_ref().map_or(0, |link| link.qp().regions());
        held > mr_quota::KEPT && self.regions_seen.elapsed_ms() >= mr_quota::LOOK_MS
    }
}

/// The worker that calls LNet has no work.
const IDLE: u32 = 0;
/// The worker runs, and has taken all work.
const RUNS: u32 = 1;
/// The worker is in a queue, or runs; there is work that it has not taken.
const WORK: u32 = 2;

/// State of the worker that calls LNet, for the code that gives it work. Work is added with the connection lock held.
/// The worker rests without that lock, unless there is more work. Any context.
///
/// INVARIANT: The worker is in a queue, or runs, or `state` is [`IDLE`]. So it runs on one CPU at a time, whichever
/// queue it is in.
struct UpcallState {
    state: Atomic<u32>,
    /// As of [`upcall_sched::due_after`]. Only the worker writes it.
    due_ns: Atomic<u64>,
}

impl UpcallState {
    /// Creates the state of a worker without work.
    const fn new() -> Self {
        Self {
            state: Atomic::new(IDLE),
            due_ns: Atomic::new(0),
        }
    }

    /// Notes that work was added. Returns true if the caller must queue the worker.
    #[inline]
    fn add_work(&self) -> bool {
        // INVARIANT: If it was idle, the caller queues it.
        self.state.load(Relaxed) != WORK && self.state.xchg(WORK, Full) == IDLE
    }

    /// Notes that messages wait for the doorbell of the worker: the worker does not rest before it has rung. Returns
    /// false if the worker rests already.
    #[inline]
    fn add_cork(&self) -> bool {
        self.state.cmpxchg(RUNS, WORK, Full) != Err(IDLE)
    }

    /// Notes that the worker takes all work. It holds the connection lock.
    #[inline]
    fn takes(&self) {
        self.state.store(RUNS, Relaxed);
    }

    /// Returns whether there is work that the worker, which runs, has not taken.
    #[inline]
    fn has_work(&self) -> bool {
        self.state.load(Relaxed) == WORK
    }

    /// Returns true if there is no more work: from here on the worker does not run.
    #[inline]
    fn rests(&self) -> bool {
        // INVARIANT: `state` is idle if it succeeds.
        self.state.cmpxchg(RUNS, IDLE, Full).is_ok()
    }

    /// Notes that the worker, which runs, is about to be queued again.
    fn stays(&self) {
        self.state.store(WORK, Relaxed);
    }

    /// Notes a run of the worker; before it rests.
    #[inline]
    fn ran(&self, began: Timestamp, now: Timestamp) {
        let due = upcall_sched::due_after(self.due_ns.load(Relaxed), began.ns(), now.ns());
        self.due_ns.store(due, Relaxed);
    }

    /// Returns whether the worker goes before ordinary tasks, if it is queued now.
    #[inline]
    fn has_priority(&self, now: Timestamp) -> bool {
        upcall_sched::has_priority(self.due_ns.load(Relaxed), now.ns())
    }
}

/// Connection to a peer.
#[pin_data]
pub(crate) struct Conn {
    ni: Arc<Ni>,
    peer: Arc<Peer>,
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
    /// Settings when it was created: a change during the attempt applies to the next connection.
    made_with: ConnSettings,
    /// Queues of its workers: shared by all connections of the device.
    queues: Arc<DeviceShares>,
    #[pin]
    inner: SpinLockBh<Inner>,
    /// Events that the queue pair reports, possibly in hard interrupt context; set until the control worker sees it.
    qp_events: [(ConnEvent, Atomic<bool>); 3],
    upcall: UpcallState,
    /// New messages may use the connection.
    is_usable: Atomic<bool>,
    /// The peer has not been heard on this connection since there was a reason to doubt it: other connections are
    /// preferred.
    is_doubted: Atomic<bool>,
    /// The retry has found the connection closed: from then on it calls LNet, in a queue for that.
    retry_ends: Atomic<bool>,
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
    impl HasWork<Self, UPPER> for Conn { self.upper }
}

kernel::impl_has_delayed_work! {
    impl HasDelayedWork<Self, SHORTAGE> for Conn { self.retry }
}

impl HasConns for O2ib {
    type Conn = Conn;
}

impl Conn {
    /// Creates a connection object in state Init, which `peer` does not list yet: for an attempt of this node in that
    /// `turn`, or for a request of the peer. `salt` spreads the connections of one peer over CPUs. May sleep.
    pub(crate) fn new(
        peer: &Arc<Peer>,
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
        let stats = ConnStats::new(&ni.times, ni.nid, peer.nid, active);
        let hca = ni.hca()?;
        let over_tcp = hca.device.is_iwarp(hca.port);
        let near = hca.device.is_software();
        let queues = hca.shares.clone();
        let live = ni.live()?;
        // Initialised in place: LNet sends from deep in a file system, where the stack has no room for a copy.
        let now = Timestamp::now();
        let inner = init!(Inner {
            state: ConnFsm::new(over_tcp),
            known,
            // A passive connection has agreed to the peer's request.
            is_agreed: !active,
            is_published: false,
            turn,
            up: None,
            lived_ms: 0,
            retry: None,
            rejected: None,
            fault: None,
            finishing: None,
            id: None,
            late_id: None,
            peer_qpn: 0,
            path: Path::UNKNOWN,
            asked: false,
            answered: false,
            connected: false,
            owes_reject: false,
            linger: CmIdLinger::default(),
            step_limit: (now, 0),
            liveness: Liveness::default(),
            last_recv: now,
            probed: None,
            regions_seen: now,
            wanted_regions: 0,
            add_failed: None,
            identity,
            credits: Credits::new(known.depth, 1),
            txs: TxTable::new(TxSlots::new(), random::u64()),
            in_flight: SendsInFlight::default(),
            noop: None,
            buf_pool: BufPool::EMPTY,
            link: None,
            max_sge: 1,
            reg_and_send: 2,
            hca: Some(hca),
            counts: Counts::default(),
            list: 0,
            stats,
            rx_queue: RxQueue::EMPTY,
            waiting_requests: Fifo::EMPTY,
            waiting_msgs: Fifo::EMPTY,
            retrier: None,
            retried_since: None,
            upcall_task: 0,
        });
        // A CPU of the peer's partition.
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
                made_with: ni.lnet.conn_settings(),
                queues,
                inner <- new_spinlock_bh!(inner, "Conn::inner"),
                qp_events: [
                    ConnEvent::EarlyTraffic,
                    ConnEvent::Fail(Cause::RemoteFault),
                    ConnEvent::Fail(Cause::LocalFault),
                ]
                .map(|event| (event, Atomic::new(false))),
                upcall: UpcallState::new(),
                is_usable: Atomic::new(false),
                is_doubted: Atomic::new(false),
                retry_ends: Atomic::new(false),
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

    /// Returns the path MTU in bytes, 0 if unknown.
    pub(crate) fn path_mtu(&self) -> u32 {
        self.with(|inner| inner.path.mtu).unwrap_or(0)
    }

    /// Returns whether it was created with these settings. Takes no lock.
    pub(crate) fn has_settings(&self, settings: &ConnSettings) -> bool {
        self.made_with == *settings
    }

    /// Runs `f` under the connection lock.
    fn with<R>(&self, f: impl FnOnce(&mut Inner) -> R) -> R {
        f(&mut self.inner.lock())
    }

    /// Passes an event to the state machine and handles the consequences. Not in hard irq; takes the lock.
    fn event(self: &Arc<Self>, event: ConnEvent) {
        let mut inner = self.inner.lock();
        self.step(&mut inner, event);
    }

    /// Closes the connection for `cause`, if it is not closed yet.
    pub(crate) fn end(self: &Arc<Self>, cause: Cause) {
        self.event(ConnEvent::Fail(cause));
    }

    /// Closes the connection for `fault` with the lock already held; a worker logs it after the unlock.
    fn blame(self: &Arc<Self>, inner: &mut Inner, fault: CloseReason) {
        let cause = fault.cause();
        // A later cause is a consequence of the first.
        if inner.state.cause().is_none() {
            inner.fault = Some(fault);
        }
        self.step(inner, ConnEvent::Fail(cause));
    }

    /// Acts as [`Conn::event`] with the lock already held.
    fn step(self: &Arc<Self>, inner: &mut Inner, event: ConnEvent) {
        let was = inner.state.state();
        let actions = inner.state.on(event);
        let state = inner.state.state();
        if state != was {
            inner.stats.state(was, state, event);
            dk!(Net, "{}: {was:?} to {state:?} on {event:?}", self.nid());
        }
        if actions == Actions::NONE {
            return;
        }
        if actions.has(Actions::AWAIT_WORD) {
            inner.begin_step(FIRST_WORD_MS);
            self.rearm_timer(FIRST_WORD_MS);
        }
        if actions.has(Actions::ESTABLISH) {
            // The control worker publishes it.
            inner.up = Some(Timestamp::now());
            let lnet = &self.ni.lnet;
            let (hiw, given) = (lnet.peer_credits_hiw(), lnet.lnet_credits());
            inner.agreed(high_water(inner.known.depth, hiw, given));
        }
        if actions.has(Actions::CLOSE) {
            let lived_ms = inner.up.map_or(0, Timestamp::elapsed_ms);
            inner.lived_ms = u64::try_from(lived_ms).unwrap_or(0);
            // Its worker may have to wait for its turn for long.
            self.rearm_timer(CLOSING_MS);
            inner.txs.cancel_all(inner.state.end_cause());
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
        self.with(|inner| inner.hca.clone()).ok_or(ENODEV)
    }

    /// Queues the next worker with actions, unless one runs: that worker finds the actions by itself.
    fn call_next(self: &Arc<Self>, inner: &Inner) {
        match inner.state.next_worker() {
            // Ending an attempt waits in iw_cm for the TCP of the other side, for minutes if that does not answer. The
            // queue pairs of other connections do not wait for that.
            Some(Worker::QueuePair)
                if self.over_tcp && inner.asked && !inner.answered && !inner.state.is_attempt() =>
            {
                let queue = self.queues.unanswered();
                let _ = queue.enqueue::<Self, QUEUE_PAIR>(self.clone());
            }
            Some(worker) => self.kick(worker),
            None => {}
        }
    }

    /// Queues a worker. Any context.
    fn kick(self: &Arc<Self>, worker: Worker) {
        let (queues, this) = (&self.queues, self.clone());
        let _ = match worker {
            Worker::Control => queues.steps.enqueue::<Self, CONTROL>(this),
            Worker::Blocking => queues.blocking.enqueue::<Self, BLOCKING>(this),
            Worker::QueuePair => queues.queue_pairs.enqueue::<Self, QUEUE_PAIR>(this),
        };
    }

    /// Arms the timer for `ms` milliseconds, whether it is armed or not.
    fn rearm_timer(self: &Arc<Self>, ms: u32) {
        work::mod_delayed::<Self, TIMER>(self.clone(), ms);
    }

    /// Arms the timer to check an established connection in `ms` milliseconds, unless a graceful close is under way:
    /// then the timer checks that, and sooner ([`Conn::look_whether_finished`]). Not later than the check of an idle
    /// connection: this call may postpone that check, and deadlines with it.
    fn schedule_check(self: &Arc<Self>, inner: &Inner, ms: u32) {
        if inner.finishing.is_none() {
            self.rearm_timer(ms.min(self.timer_ms()));
        }
    }

    /// Returns the milliseconds between two checks of an idle connection: a deadline is noticed within 1.25 times its
    /// value, or a second late if that is more.
    fn timer_ms(&self) -> u32 {
        let lnet = &self.ni.lnet;
        let quarter = lnet.timeout().saturating_mul(250);
        let keepalive = lnet
            .keepalive()
            .map_or(u32::MAX, |s| s.saturating_mul(1000));
        quarter.min(keepalive).max(1000)
    }

    /// Runs the timer immediately: the time until a probe, or the time limit of a transmit, was changed.
    pub(crate) fn check_now(self: &Arc<Self>) {
        let inner = self.inner.lock();
        if inner.state.is_up() {
            self.rearm_timer(0);
        }
    }
}

/// Returns whether a request waits for LNet, and LNet may have it: an answer of LNet must find this connection, which
/// the peer object publishes, and not an older connection that may be dead.
#[inline]
fn has_request(inner: &Inner) -> bool {
    !inner.rx_queue.is_empty() && (inner.is_published || !inner.state.is_up())
}

/// Returns whether the worker would find a job.
#[inline]
fn has_job(inner: &Inner) -> bool {
    inner.txs.done().is_some() || has_request(inner)
}
