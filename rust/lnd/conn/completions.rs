// SPDX-License-Identifier: GPL-2.0

//! Queue pair of a connection: completions, the end of the drain, asynchronous events.
//!
//! Context: softirq, under the connection lock; asynchronous events possibly in hard interrupt context, without it.

use kernel::{
    prelude::*,
    sync::{
        Arc,
        ArcBorrow, //
    }, //
};

use super::{
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
        atomic::{
            Full,
            Relaxed, //
        },
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
        self.inner.liveness.heard();
        self.inner.last_recv = self.now;
        self.heard = true;
        match self.inner.state.is_up() {
            true => self.conn.received_now(self.inner, rx),
            false => self.conn.received_not_up(self.inner, rx),
        }
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
        let mut guard = this.inner.lock();
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
        this.pump(&mut guard, false, Some(now));
        this.queue_upcall(&mut guard, now);
    }

    fn drained(this: Arc<Self>) {
        this.event(ConnEvent::Drained);
    }

    /// Records an asynchronous event. Hard interrupt context is possible: only the worker is queued.
    fn async_event(this: ArcBorrow<'_, Self>, event: QpEvent) {
        let event = match event {
            QpEvent::CommEst => ConnEvent::EarlyTraffic,
            QpEvent::ReqErr | QpEvent::AccessErr => ConnEvent::Fail(Cause::RemoteFault),
            QpEvent::Fatal => ConnEvent::Fail(Cause::LocalFault),
            QpEvent::SqDrained
            | QpEvent::PathMig
            | QpEvent::PathMigErr
            | QpEvent::LastWqeReached
            | QpEvent::Other(_) => return,
        };
        if let Some((_, is_reported)) = this.qp_events.iter().find(|(of, _)| *of == event) {
            let _ = is_reported.xchg(true, Full);
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

    /// Processes a message that does not wait for the ESTABLISHED event. Any fault of the message closes an established
    /// connection.
    #[inline(always)]
    fn received_now(self: &Arc<Self>, inner: &mut Inner, rx: KBox<Rx<Self>>) {
        if !inner.state.is_up() {
            return self.received_late(inner, rx);
        }
        if let Err(fault) = inner.receive(rx) {
            self.blame(inner, fault);
        }
    }
}
