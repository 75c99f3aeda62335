// SPDX-License-Identifier: GPL-2.0

//! Events of the queue pair of a connection: completions, the end of the drain, asynchronous events.
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
    close_reason::CloseReason,
    rx::Rx,
    wire::receive::recv_outcome,
    Conn,
    Inner, //
};
use crate::{
    lnd::{
        stats::conn_counters::Count,
        timestamp::Timestamp, //
    },
    proto::{
        cause::Cause,
        conn_state::{
            ConnEvent,
            State, //
        }, //
    },
    rdma::{
        qp_handler::{
            QpHandler,
            SendsDone, //
        },
        recv_ring::RecvDone,
        wc::QpEvent, //
    }, //
};

impl QpHandler for Conn {
    // Inlined although it has two callers: one of them runs only at the end of a queue pair.
    #[inline(always)]
    fn sends_done(this: &Arc<Self>, done: SendsDone<'_, Self>) {
        let now = Timestamp::now();
        let mut guard = this.lock();
        let inner = &mut *guard;
        inner.wire.count(Count::Cqes);
        let mut good = false;
        for one in done.each() {
            let wc = one.wc;
            match inner.wire.send_done(one.ctx, wc.status, one.buf, now) {
                Ok(()) => good = true,
                Err(cause) => this.blame(inner, CloseReason::Send(cause, wc)),
            }
        }
        if good {
            this.heard();
        }
        this.pump_at(inner, false, Some(now));
        this.queue_upcall(inner, now);
    }

    // Inlined into its only caller, which has no other work.
    #[inline(always)]
    fn recv_done(this: &Arc<Self>, done: RecvDone) {
        let mut guard = this.lock();
        let inner = &mut *guard;
        inner.wire.count(Count::RecvCqes);
        if let Err(cause) = recv_outcome(done.wc.status) {
            if inner.state.cause().is_some() {
                // A consequence of an earlier error, as all flushed work requests are.
                return;
            }
            if cause == Cause::Flushed && inner.state.is_attempt() {
                // The CM moves the queue pair to the error state before it delivers the reject. The peer's answer is
                // the cause, and decides whether to retry.
                return;
            }
            return this.blame(inner, CloseReason::Recv(cause, done.wc));
        }
        if !done.plain {
            return this.blame(inner, CloseReason::NotASend);
        }
        let now = inner.timers.heard();
        this.heard();
        let Ok(nob) = usize::try_from(done.len) else {
            return;
        };
        let Some(buf) = done.buf else {
            return;
        };
        let Some(rx) = inner.rx_queue.place(buf, nob, now) else {
            return this.blame(inner, Cause::Protocol.into());
        };
        match inner.state.state() {
            State::Init | State::Resolving | State::Connecting => {
                // The peer's CONNACK is still in the CM's queue: the peer's first messages wait for it.
                return inner.rx_queue.defer_early(rx);
            }
            State::Accepting | State::Called => this.step(inner, ConnEvent::EarlyTraffic),
            State::Established => {}
            State::Closing | State::Draining | State::Dead => return this.received_late(inner, rx),
        }
        this.received(inner, rx);
        this.pump_at(inner, false, Some(now));
        this.queue_upcall(inner, now);
    }

    fn drained(this: Arc<Self>) {
        this.event(ConnEvent::Drained);
    }

    /// Records an asynchronous event. Hard interrupt context is possible: only the worker is queued.
    fn async_event(this: ArcBorrow<'_, Self>, event: QpEvent) {
        if this.qp_notes.note(event) {
            let this: Arc<Self> = this.into();
            this.kick_control();
        }
    }
}

impl Conn {
    /// Processes messages that arrived before this side's ESTABLISHED event (active side).
    pub(super) fn received_early(self: &Arc<Self>, inner: &mut Inner) {
        while let Some(rx) = inner.rx_queue.take_early() {
            self.received(inner, rx);
        }
        self.queue_upcall(inner, Timestamp::now());
    }

    /// Processes a message that had arrived when the connection was closed: its sender may have got an acknowledgement.
    /// A peer that sends before this side's ESTABLISHED event is identified by that event, which comes all the same.
    /// Once LNet has asked the NI to stop, LNet takes no message.
    fn received_late(self: &Arc<Self>, inner: &mut Inner, rx: KBox<Rx<Self>>) {
        if !inner.state.accepts_late_rx() || self.ni.is_stopping() {
            return;
        }
        if inner.state.is_agreed() {
            inner.wire.receive_late(rx, &mut inner.rx_queue);
            self.queue_upcall(inner, Timestamp::now());
        } else {
            inner.rx_queue.defer_early(rx);
        }
    }

    /// Processes messages that arrived before this side's ESTABLISHED event, on a connection that was closed before
    /// that event.
    pub(super) fn received_early_and_late(self: &Arc<Self>, inner: &mut Inner) {
        while let Some(rx) = inner.rx_queue.take_early() {
            self.received_late(inner, rx);
        }
    }

    /// Processes a message. Any fault of the message closes the connection.
    #[inline]
    fn received(self: &Arc<Self>, inner: &mut Inner, rx: KBox<Rx<Self>>) {
        if !inner.state.is_up() {
            return self.received_late(inner, rx);
        }
        if let Err(fault) = inner.wire.receive(rx, &mut inner.rx_queue) {
            self.blame(inner, fault);
        }
    }
}
