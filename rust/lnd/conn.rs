// SPDX-License-Identifier: GPL-2.0

//! A connection: one RC queue pair, its protocol state, and the three work items that serve it.
//!
//! Everything that changes is in [`Inner`], behind one BH spin lock. The state machines are
//! [`crate::proto::conn`], [`crate::proto::tx`] and [`crate::proto::credits`]; this file only holds
//! them together and turns [`Actions`] into work. The work itself is in [`super::wire`] (softirq),
//! [`super::upper`] (LNet) and [`super::control`] (set-up to release).
//!
//! # Invariants
//!
//! - `cells` and `txs` have the same length, and a cell is in use iff its `txs` entry is `Some`.
//! - `link` is `Some` from set-up to release.
//! - Work requests are posted only while the state is Established, receives also before.

use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Full,
            Relaxed, //
        },
        Arc,
        SpinLock, //
    },
    time::{
        Instant,
        Monotonic, //
    },
    workqueue::{
        DelayedWork,
        Work, //
    }, //
};

use super::{
    counts::Counts,
    fifo::Fifo,
    hca::Hca,
    link::Link,
    ni::{
        Live,
        Ni, //
    },
    peer::Peer,
    received::{
        Received,
        Rx, //
    },
    transfer::{
        Limits,
        Transfer, //
    }, //
};
use crate::{
    lnet::dk::dk,
    proto::{
        cause::Cause,
        conn::{
            Actions,
            Conn as Fsm,
            Event,
            State, //
        },
        credits::Credits,
        farewell::Farewell,
        nid::Nid,
        peer::Known,
        queues::{
            Cell,
            Queues, //
        },
        wire::{
            Envelope,
            Identity,
            Version, //
        }, //
    },
    rdma::{
        buf::{
            RxBuf,
            TxBuf, //
        },
        cm::CmId,
        random,
        sync::{
            new_spinlock_bh,
            SpinLockBh,
            SpinLockBhGuard, //
        },
        wc::QpEvent,
        work::{
            self,
            Cpu, //
        }, //
    }, //
};

/// Id of the work item that sets up, closes and releases.
pub(crate) const CONTROL: u64 = 1;
/// Id of the work item that calls LNet.
pub(crate) const UPPER: u64 = 2;
/// Id of the timer.
pub(crate) const TIMER: u64 = 3;

/// Milliseconds of silence after which a peer that owes an answer is probed with a NOOP. The
/// transport's acknowledgement is the reply: if the peer is dead its retries end the connection,
/// long before a deadline.
pub(crate) const PROBE_MS: u32 = 3000;

/// What the connection lock protects.
pub(crate) struct Inner {
    pub(crate) fsm: Fsm,
    /// What the control worker has to do.
    pub(crate) todo: Actions,
    pub(crate) farewell: Farewell,
    /// The CM was told to connect or to accept: its id has something to say when it goes.
    pub(crate) asked: bool,
    /// The peer object knows that it is established.
    pub(crate) published: bool,
    /// Set when a reject invited another attempt with these values.
    pub(crate) retry: Option<Known>,
    /// True once the attempt ended without a connection.
    pub(crate) attempt_failed: bool,
    /// Why the peer refused the attempt, in one word.
    pub(crate) rejected: Option<&'static str>,
    /// What was asked for, later what was agreed on.
    pub(crate) known: Known,
    pub(crate) identity: Identity,
    pub(crate) credits: Credits,
    pub(crate) queues: Queues,
    pub(crate) cells: KVVec<Cell>,
    pub(crate) txs: KVVec<Option<Transfer>>,
    pub(crate) limits: Limits,
    /// Until release: the device may go afterwards.
    pub(crate) hca: Option<Arc<Hca>>,
    pub(crate) link: Option<Link<Conn>>,
    /// Contexts of the work requests that are pushed and not posted; all of its room is allocated.
    pub(crate) pushed: KVec<u32>,
    /// Receive buffers to post in place of those that LNet has, as many as there is room for.
    pub(crate) spares: KVec<RxBuf>,
    /// The timer looks often, because something waits.
    pub(crate) watched: bool,
    /// The LNet half was queued, and has not looked yet.
    pub(crate) upper_queued: bool,
    /// The task that runs the LNet half, rings the doorbell when it is through with a few messages, and
    /// will look for more; 0 is nobody.
    pub(crate) corked_by: i32,
    /// Free message buffers, as many as there is room for.
    pub(crate) bufs: KVec<TxBuf>,
    /// Those that only NOOPs use.
    pub(crate) noop_bufs: KVec<TxBuf>,
    /// Received and judged, for LNet to take.
    pub(crate) rx: Fifo<Received>,
    /// Received before our own ESTABLISHED event (active side).
    pub(crate) early: Fifo<Received>,
    /// Requests that LNet has and has not returned the buffer of.
    pub(crate) with_lnet: u16,
    /// Kept for the next requests.
    pub(crate) rx_boxes: KVec<KBox<Rx<Conn>>>,
    pub(crate) last_send: Instant<Monotonic>,
    pub(crate) last_recv: Instant<Monotonic>,
    /// When only the CM id was left to wait for the peer's answer.
    pub(crate) released: Instant<Monotonic>,
    pub(crate) counts: Counts,
}

/// A connection.
#[pin_data]
pub(crate) struct Conn {
    pub(crate) ni: Arc<Ni>,
    pub(crate) peer: Arc<Peer<Conn>>,
    /// Whether we asked for it.
    pub(crate) active: bool,
    /// Random; see [`crate::proto::queues::TxId::cookie`].
    pub(crate) mask: u64,
    /// Where the LNet half runs.
    cpu: Cpu,
    #[pin]
    inner: SpinLockBh<Inner>,
    /// The CM's side; process context only. Cloned out, never used under the lock.
    #[pin]
    pub(crate) cm: SpinLock<Option<Arc<CmId<Conn>>>>,
    /// The id, given up inside one of its handlers: for the control worker to free.
    #[pin]
    pub(crate) late_id: SpinLock<Option<CmId<Conn>>>,
    /// Number of the peer's queue pair, 0 if it is not known.
    pub(crate) peer_qpn: Atomic<u32>,
    /// Path MTU in bytes since it was established, 0 if it is not known.
    pub(crate) mtu: Atomic<u32>,
    /// Nothing was heard on this one since the peer gave reason to doubt it.
    is_doubted: Atomic<bool>,
    /// COMM_EST of the queue pair, not yet seen by the control worker.
    qp_comm_est: Atomic<bool>,
    /// The peer did what it may not, says the queue pair; not yet seen by the control worker.
    qp_misused: Atomic<bool>,
    /// The queue pair is broken; not yet seen by the control worker.
    qp_error: Atomic<bool>,
    #[pin]
    control: Work<Conn, CONTROL>,
    #[pin]
    upper: Work<Conn, UPPER>,
    #[pin]
    timer: DelayedWork<Conn, TIMER>,
    _live: Live,
}

kernel::impl_has_work! {
    impl HasWork<Self, CONTROL> for Conn { self.control }
    impl HasWork<Self, UPPER> for Conn { self.upper }
}

kernel::impl_has_delayed_work! {
    impl HasDelayedWork<Self, TIMER> for Conn { self.timer }
}

impl work::Timed<TIMER> for Conn {
    fn queue(&self) -> &work::OwnedQueue {
        &self.ni.workers.control
    }
}

impl Conn {
    /// Makes a connection object in state Init. May sleep.
    pub(crate) fn new(
        peer: &Arc<Peer<Conn>>,
        active: bool,
        known: Known,
        salt: u32,
    ) -> Result<Arc<Self>> {
        let ni = &peer.ni;
        let identity = Identity {
            version: Version::V2,
            me: ni.nid,
            my_stamp: ni.stamp,
            peer: peer.nid,
            peer_stamp: known.stamp,
        };
        let inner = Inner {
            fsm: Fsm::new(),
            todo: Actions::NONE,
            farewell: Farewell::new(),
            asked: false,
            published: false,
            retry: None,
            attempt_failed: false,
            rejected: None,
            known,
            identity,
            credits: Credits::new(known.depth, 1),
            queues: Queues::EMPTY,
            cells: KVVec::new(),
            txs: KVVec::new(),
            limits: Limits {
                max_sge: 1,
                sq: 0,
                reg_and_send: 2,
            },
            hca: Some(ni.hca()?),
            link: None,
            pushed: KVec::new(),
            spares: KVec::new(),
            watched: false,
            upper_queued: false,
            corked_by: 0,
            bufs: KVec::new(),
            noop_bufs: KVec::new(),
            rx: Fifo::EMPTY,
            early: Fifo::EMPTY,
            with_lnet: 0,
            rx_boxes: KVec::new(),
            last_send: Instant::now(),
            last_recv: Instant::now(),
            released: Instant::now(),
            counts: Counts::default(),
        };
        let live = ni.live()?;
        // A CPU of the peer's partition; connections of one peer are spread by `salt`.
        let cpu = u32::try_from(ni.lnet.cpu_of(peer.nid.raw(), salt)).unwrap_or(0);
        Arc::pin_init(
            pin_init!(Self {
                ni: ni.clone(),
                peer: peer.clone(),
                active,
                mask: random::u64(),
                cpu: work::online_cpu(cpu),
                inner <- new_spinlock_bh!(inner, "Conn::inner"),
                cm <- kernel::new_spinlock!(None, "Conn::cm"),
                late_id <- kernel::new_spinlock!(None, "Conn::late_id"),
                peer_qpn: Atomic::new(0),
                mtu: Atomic::new(0),
                is_doubted: Atomic::new(false),
                qp_comm_est: Atomic::new(false),
                qp_misused: Atomic::new(false),
                qp_error: Atomic::new(false),
                control <- kernel::new_work!("Conn::control"),
                upper <- kernel::new_work!("Conn::upper"),
                timer <- kernel::new_delayed_work!("Conn::timer"),
                _live: live,
            }),
            GFP_KERNEL,
        )
    }

    /// Runs `f` under the connection lock.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut Inner) -> R) -> R {
        f(&mut self.inner.lock())
    }

    /// Takes the connection lock.
    pub(crate) fn lock(&self) -> SpinLockBhGuard<'_, Inner> {
        self.inner.lock()
    }

    /// The peer's NID.
    pub(crate) fn nid(&self) -> Nid {
        self.peer.nid
    }

    /// Feeds an event to the state machine and sees to what follows. Any context but hard irq;
    /// takes the connection lock.
    pub(crate) fn event(self: &Arc<Self>, event: Event) {
        let mut inner = self.lock();
        self.step(&mut inner, event);
    }

    /// Ends the connection for `cause`, if nothing has yet.
    pub(crate) fn fail(self: &Arc<Self>, cause: Cause) {
        self.event(Event::Fail(cause));
    }

    /// [`Conn::event`] with the lock already held.
    pub(crate) fn step(self: &Arc<Self>, inner: &mut Inner, event: Event) {
        let was = inner.fsm.state();
        let actions = inner.fsm.on(event);
        let state = inner.fsm.state();
        if state != was {
            dk!(Net, "{}: {was:?} to {state:?} on {event:?}", self.nid());
        }
        if actions == Actions::NONE {
            return;
        }
        if actions.has(Actions::ESTABLISH) {
            self.established(inner);
        }
        if actions.has(Actions::FAIL_ATTEMPT) {
            inner.attempt_failed = true;
        }
        if actions.has(Actions::CLOSE) {
            inner.cancel();
            self.kick_upper(inner);
        }
        inner.todo = inner.todo.and(actions);
        self.kick_control();
    }

    /// The handshake is complete. The control worker publishes the connection.
    fn established(&self, inner: &mut Inner) {
        let depth = inner.known.depth;
        inner.credits = Credits::new(depth, self.ni.high_water(depth));
        inner.identity.peer_stamp = inner.known.stamp;
    }

    /// Queues the worker that sets up, closes and releases.
    pub(crate) fn kick_control(self: &Arc<Self>) {
        let _ = self
            .ni
            .workers
            .control
            .enqueue::<Self, CONTROL>(self.clone());
    }

    /// Queues the worker that calls LNet, if there is something for it and it would not see it by itself.
    pub(crate) fn kick_upper(self: &Arc<Self>, inner: &mut Inner) {
        let will_look = inner.upper_queued || inner.corked_by != 0;
        if !will_look && (inner.queues.has_done() || !inner.rx.is_empty()) {
            inner.upper_queued = true;
            self.kick_upper_again();
        }
    }

    /// Queues the worker that calls LNet.
    pub(crate) fn kick_upper_again(self: &Arc<Self>) {
        let _ = self
            .ni
            .workers
            .upper
            .enqueue_on::<Self, UPPER>(self.cpu, self.clone());
    }

    /// Makes the timer run in `ms` milliseconds.
    pub(crate) fn arm_timer(self: &Arc<Self>, ms: u32) {
        let _ = work::arm::<Self, TIMER>(self.clone(), ms);
    }

    /// Makes the timer run in `ms` milliseconds, whether it was to run later or not.
    pub(crate) fn rearm_timer(self: &Arc<Self>, ms: u32) {
        work::rearm::<Self, TIMER>(self.clone(), ms);
    }

    /// Makes the timer not run any more; it may be running.
    pub(crate) fn cancel_timer(self: &Arc<Self>) {
        let _ = work::cancel::<Self, TIMER>(self);
    }

    /// The RDMA device it is on.
    pub(crate) fn hca(&self) -> Result<Arc<Hca>> {
        self.with(|inner| inner.hca.clone()).ok_or(ENODEV)
    }

    /// Number of the CPU its LNet half runs on.
    pub(crate) fn cpu_number(&self) -> u32 {
        self.cpu.number()
    }

    /// Path MTU in bytes, 0 if unknown. May sleep; not in a handler of the CM.
    pub(crate) fn path_mtu(&self) -> u32 {
        let id = self.cm.lock().clone();
        id.and_then(|id| id.lock().path_mtu()).unwrap_or(0)
    }

    /// Remembers an event of the queue pair for the control worker. Any context.
    pub(crate) fn note_qp_event(self: &Arc<Self>, event: QpEvent) {
        let flag = match event {
            QpEvent::CommEst => &self.qp_comm_est,
            QpEvent::ReqErr | QpEvent::AccessErr => &self.qp_misused,
            _ => &self.qp_error,
        };
        let _ = flag.xchg(true, Full);
        self.kick_control();
    }

    /// Acts on remembered events of the queue pair.
    pub(crate) fn take_qp_events(self: &Arc<Self>) {
        if self.qp_comm_est.xchg(false, Full) {
            self.event(Event::EarlyTraffic);
        }
        if self.qp_misused.xchg(false, Full) {
            self.fail(Cause::RemoteFault);
        }
        if self.qp_error.xchg(false, Full) {
            self.fail(Cause::LocalFault);
        }
    }

    /// Whether the peer may have given it up.
    pub(crate) fn doubted(&self) -> bool {
        self.is_doubted.load(Relaxed)
    }

    /// Until it is heard of, other connections are preferred.
    pub(super) fn set_doubted(&self) {
        self.is_doubted.store(true, Relaxed);
    }

    /// The peer has said or acknowledged something.
    pub(crate) fn heard(&self) {
        if self.is_doubted.load(Relaxed) {
            self.is_doubted.store(false, Relaxed);
        }
    }
}

impl Inner {
    /// Whether messages may be sent.
    pub(crate) fn is_up(&self) -> bool {
        self.fsm.state() == State::Established
    }

    /// Whether receive buffers may be posted.
    pub(crate) fn may_receive(&self) -> bool {
        self.fsm.state() <= State::Established
    }

    /// Whether a NOOP must return the few credits there are: the peer has none, and LNet keeps so
    /// many requests that the high-water mark is out of reach. Not while some wait for their turn
    /// with LNet: those will get there.
    pub(super) fn must_feed_peer(&self) -> bool {
        self.rx.is_empty() && self.credits.starves_peer()
    }

    /// The envelope of every message of this connection; credits are set when it is posted.
    pub(crate) fn envelope(&self) -> Envelope {
        Envelope {
            version: self.identity.version,
            credits: 0,
            src: self.identity.me,
            src_stamp: self.identity.my_stamp,
            dst: self.identity.peer,
            dst_stamp: self.identity.peer_stamp,
        }
    }

    /// What bounds one transfer.
    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    /// The payload of the tx at `index`.
    pub(crate) fn transfer(&mut self, index: u16) -> Option<&mut Transfer> {
        self.txs.get_mut(usize::from(index))?.as_mut()
    }

    /// Ends every tx for the cause of the connection.
    fn cancel(&mut self) {
        let cause = self.fsm.cause().unwrap_or(Cause::Flushed);
        let by_place = matches!(
            cause,
            Cause::DeadlineQueued | Cause::DeadlineSending | Cause::DeadlineAnswer
        );
        self.queues.cancel_all(&mut self.cells, cause, by_place);
    }
}
