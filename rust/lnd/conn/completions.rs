// SPDX-License-Identifier: GPL-2.0

//! Queue pair of a connection: completions, the end of the drain, asynchronous events; and the doorbell.
//!
//! Context: softirq, under the connection lock; asynchronous events possibly in hard interrupt context, without it;
//! the doorbell in process context, too.

use kernel::{
    prelude::*,
    sync::{
        Arc,
        ArcBorrow, //
    }, //
};

use super::{
    pump::FastPathLimits,
    receive::recv_outcome,
    rx::Rx,
    Conn,
    Inner, //
};
use crate::{
    lnd::{
        log::CloseReason,
        stats::conn_counters::Count,
        timestamp::Timestamp, //
    },
    proto::{
        cause::Cause,
        conn_state::{
            ConnEvent,
            State,
            Worker, //
        }, //
    },
    rdma::{
        atomic::Relaxed,
        buf::TxBuf,
        completion_receiver::CompletionReceiver,
        qp_handler::QpHandler,
        wc::{
            QpEvent,
            Wc, //
        },
        wc_dispatch::Completions,
        work::OwnedQueue, //
    }, //
};

/// Round of completions: the connection, with its lock held.
struct Round<'a> {
    conn: &'a Arc<Conn>,
    inner: &'a mut Inner,
    now: Timestamp,
    /// A send or receive has succeeded: the peer is there.
    heard: bool,
}

impl CompletionReceiver<KBox<Rx<Conn>>> for Round<'_> {
    #[inline(always)]
    fn send_completion(&mut self) {
        self.inner.counts.one(Count::Cqes);
    }

    #[inline(always)]
    fn sent(&mut self, ctx: u32, buf: Option<TxBuf>) {
        self.heard = true;
        if !self.inner.sent_in_front(ctx) {
            self.sent_message(ctx, buf);
        }
    }

    #[cold]
    #[inline(never)]
    fn send_failed(&mut self, ctx: u32, wc: Wc) {
        let cause = self.inner.send_failed(ctx, wc.status);
        self.conn.blame(self.inner, CloseReason::Send(cause, wc));
    }

    #[inline(never)]
    fn received(&mut self, rx: KBox<Rx<Conn>>, nob: usize) {
        let mut rx = rx;
        rx.arrived(nob, self.now);
        self.inner.counts.one(Count::RecvCqes);
        self.inner.heard(self.now);
        self.heard = true;
        self.conn.received(self.inner, rx);
    }

    #[inline(never)]
    fn recv_failed(&mut self, wc: Wc) {
        self.inner.counts.one(Count::RecvCqes);
        self.conn.recv_failed(self.inner, wc);
    }
}

impl Round<'_> {
    #[inline(never)]
    fn sent_message(&mut self, ctx: u32, buf: Option<TxBuf>) {
        self.inner.sent(ctx, buf, self.now);
    }
}

impl QpHandler for Conn {
    type Recv = KBox<Rx<Self>>;

    fn completion_workqueue(&self) -> &OwnedQueue {
        &self.ni.workers.completions
    }

    // Inlined although it has two callers: one of them runs only at the end of a queue pair.
    #[inline(always)]
    fn round(this: &Arc<Self>, completions: Completions<'_, Self, Self::Recv>) {
        let now = Timestamp::now();
        let mut guard = this.lock();
        let mut round = Round {
            conn: this,
            inner: &mut guard,
            now,
            heard: false,
        };
        completions.each(&mut round);
        if round.heard && this.is_doubted.load(Relaxed) {
            this.is_doubted.store(false, Relaxed);
        }
        this.pump_at(&mut guard, false, Some(now));
        this.queue_upcall(&mut guard, now);
    }

    fn drained(this: Arc<Self>) {
        this.event(ConnEvent::Drained);
    }

    /// Records an asynchronous event. Hard interrupt context is possible: only the worker is queued.
    fn async_event(this: ArcBorrow<'_, Self>, event: QpEvent) {
        if this.qp_notes.note(event) {
            let this: Arc<Self> = this.into();
            this.kick(Worker::Control);
        }
    }
}

impl Conn {
    /// Handles a receive that failed, or that is no message.
    #[cold]
    #[inline(never)]
    fn recv_failed(self: &Arc<Self>, inner: &mut Inner, wc: Wc) {
        let Err(cause) = recv_outcome(wc.status) else {
            return self.blame(inner, CloseReason::NotASend);
        };
        if inner.state.cause().is_some() {
            // A consequence of an earlier error, as all flushed work requests are.
            return;
        }
        if cause == Cause::Flushed && inner.state.is_attempt() {
            // The CM moves the queue pair to the error state before it delivers the reject. The peer's answer is the
            // cause, and decides whether to retry.
            return;
        }
        self.blame(inner, CloseReason::Recv(cause, wc));
    }

    /// Processes messages that arrived before this side's ESTABLISHED event (active side). The connection may be closed
    /// already.
    pub(super) fn received_early(self: &Arc<Self>, inner: &mut Inner) {
        while let Some(rx) = inner.rx_queue.take_early() {
            self.received_now(inner, rx);
        }
        self.queue_upcall(inner, Timestamp::now());
    }

    /// Processes a message that had arrived when the connection was closed: its sender may have got an acknowledgement.
    /// A peer that sends before this side's ESTABLISHED event is identified by that event, which comes all the same.
    /// Once LNet has asked the NI to stop, LNet takes no message.
    fn received_late(self: &Arc<Self>, inner: &mut Inner, rx: KBox<Rx<Self>>) {
        if inner.state.end_cause().has(Cause::DISCREDITS_RX) || self.ni.is_stopping() {
            return;
        }
        if inner.is_agreed {
            inner.receive_late(rx);
            self.queue_upcall(inner, Timestamp::now());
        } else {
            inner.rx_queue.defer_early(rx);
        }
    }

    /// Processes a message.
    #[inline(always)]
    fn received(self: &Arc<Self>, inner: &mut Inner, rx: KBox<Rx<Self>>) {
        match inner.state.is_up() {
            true => self.received_up(inner, rx),
            false => self.received_not_up(inner, rx),
        }
    }

    /// Processes a message of an established connection. Any fault of the message closes the connection.
    #[inline]
    fn received_up(self: &Arc<Self>, inner: &mut Inner, rx: KBox<Rx<Self>>) {
        if let Err(fault) = inner.receive(rx) {
            self.blame(inner, fault);
        }
    }

    /// Processes a message that came before the connection is established, or after it was closed.
    #[cold]
    #[inline(never)]
    fn received_not_up(self: &Arc<Self>, inner: &mut Inner, rx: KBox<Rx<Self>>) {
        match inner.state.state() {
            State::Init | State::Resolving | State::Connecting => {
                // The peer's CONNACK is still in the CM's queue: the peer's first messages wait for it.
                return inner.rx_queue.defer_early(rx);
            }
            State::Accepting | State::Called => self.step(inner, ConnEvent::EarlyTraffic),
            State::Established | State::Closing | State::Draining | State::Dead => {}
        }
        self.received_now(inner, rx);
    }

    /// Processes a message that does not wait for the ESTABLISHED event.
    fn received_now(self: &Arc<Self>, inner: &mut Inner, rx: KBox<Rx<Self>>) {
        match inner.state.is_up() {
            true => self.received_up(inner, rx),
            false => self.received_late(inner, rx),
        }
    }
}

// Doorbells: the queued transmits are posted now, or left to a flush that is certain to follow.
impl Conn {
    /// Posts the transmits that may be sent. Posts a NOOP if there is no other message, and the driver must probe the
    /// peer, or the peer needs credits.
    pub(super) fn pump(self: &Arc<Self>, inner: &mut Inner, probe: bool) {
        self.pump_at(inner, probe, None);
    }

    /// Posts them as [`Conn::pump`] does, for a caller that has just read the clock.
    #[inline(always)]
    pub(super) fn pump_at(
        self: &Arc<Self>,
        inner: &mut Inner,
        probe: bool,
        now: Option<Timestamp>,
    ) {
        // The usual case.
        if inner.state.is_up() && (probe || !inner.txs.is_idle(&inner.credits)) {
            self.pump_if_due(inner, probe, now);
        }
    }

    // Separate function, so that the caller saves no registers.
    #[inline(never)]
    fn pump_now(
        self: &Arc<Self>,
        inner: &mut Inner,
        probe: bool,
        patient: bool,
        now: Option<Timestamp>,
    ) {
        let now = now.unwrap_or_else(Timestamp::now);
        let cksum = self.ni.cksum();
        if let Err(cause) = inner.pump(probe, patient, now, cksum) {
            self.blame(inner, CloseReason::Post(cause));
        }
    }

    /// Rings the doorbell for the queued work requests, unless it will ring soon anyway.
    #[inline(always)]
    pub(super) fn ring(self: &Arc<Self>, inner: &mut Inner, now: Timestamp) {
        // Most often nothing is queued, and the worker that calls LNet need not come back to ring.
        if inner.state.is_up() && !inner.txs.is_idle(&inner.credits) && self.rings(inner) {
            self.pump_if_due(inner, false, Some(now));
        }
    }

    /// Returns whether a transmit that is built now may be posted immediately, and with which limits: if the doorbell
    /// rings for it.
    #[inline(always)]
    pub(super) fn at_once(&self, inner: &Inner) -> Option<FastPathLimits> {
        self.rings(inner).then(|| FastPathLimits {
            patient: !inner.rx_queue.is_empty(),
            cksum: self.ni.cksum(),
        })
    }

    /// Posts the transmits that may be sent, if any is due. Only while the connection is established.
    #[inline(never)]
    pub(super) fn pump_if_due(
        self: &Arc<Self>,
        inner: &mut Inner,
        probe: bool,
        now: Option<Timestamp>,
    ) {
        // A dead peer is noticed only if something is sent.
        let patient = !probe && !inner.rx_queue.is_empty();
        // The LNet half returns the credits of these requests, and pumps. The peer gets no early credits while some
        // requests wait for their turn with LNet: those will reach the high-water mark.
        let probe = probe || (!patient && inner.credits.starves_peer());
        if !inner.is_blocked(probe, patient) {
            self.pump_now(inner, probe, patient, now);
        }
    }

    /// Returns whether the doorbell rings for the work requests that are queued now. If not because the worker that
    /// calls LNet sends them, that worker rings when LNet has returned.
    #[inline]
    fn rings(&self, inner: &Inner) -> bool {
        let corked = || inner.upcall_task == kernel::current!().pid() && self.upcall.add_cork();
        inner.in_flight.rings(corked)
    }
}
