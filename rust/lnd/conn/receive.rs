// SPDX-License-Identifier: GPL-2.0

//! Events of the queue pair: completions, the end of the drain, asynchronous events; received messages: their credits,
//! the meaning of each, and the repost of their buffers.
//!
//! Context: softirq, under the connection lock; asynchronous events possibly in hard interrupt context, without it. The
//! last functions of [`Conn`]: process context, may sleep, except for [`Conn::post_again`]. A receive buffer is posted
//! again before any message that returns its credit.

use kernel::{
    prelude::*,
    sync::{
        Arc,
        ArcBorrow, //
    }, //
};

use super::{
    post,
    rx::{
        cold_drop,
        Rx, //
    },
    tx_payload::TxPayload,
    Conn,
    Inner, //
};
use crate::{
    lnd::{
        log::{
            self,
            CloseReason, //
        },
        stats::conn_counters::Count,
        timestamp::Timestamp, //
    },
    lnet::dk::dk,
    proto::{
        cause::Cause,
        conn_state::{
            ConnEvent,
            State,
            Worker, //
        },
        credits::Repost,
        tx_state::{
            Answer,
            Op, //
        },
        wire::{
            check_identity,
            decode,
            encode,
            plain_head,
            reparse,
            Body,
            BodyOut,
            Cookie,
            Descriptor,
            DoneBody,
            ParsedHdr, //
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
            Wc,
            WcStatus, //
        },
        wc_dispatch::Completions,
        work::{
            NofsScope,
            OwnedQueue, //
        }, //
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

/// Returns the result of a receive by its completion status, and which side is to blame: the peer chose the length and
/// the operation, and this side's buffers are all alike and registered. soft-RoCE reports `LocQpOp` for a message that
/// is too long (7.3).
fn recv_outcome(status: WcStatus) -> Result<(), Cause> {
    match status {
        WcStatus::LocLen | WcStatus::LocQpOp | WcStatus::LocAccess => Err(Cause::RemoteFault),
        other => post::outcome(other),
    }
}

impl Inner {
    /// Processes one message. Only while the connection is established.
    ///
    /// # Errors
    ///
    /// Returns the reason to close the connection, for any fault of the message.
    #[inline]
    fn receive(&mut self, rx: KBox<Rx<Conn>>) -> Result<(), CloseReason> {
        self.counts.one(Count::RxMsgs);
        let Some(all) = rx.whole() else {
            return Err(Cause::LocalFault.into());
        };
        match plain_head(all, rx.nob, &self.identity) {
            Some((credits, facts)) if facts.is_immediate() => {
                self.accept(facts, credits)?;
                self.request(facts, rx)
            }
            Some((credits, facts)) => self.receive_plain(credits, facts, rx),
            None => self.receive_other(rx),
        }
    }

    // Separate function, so that an IMMEDIATE saves no registers for it.
    #[inline(never)]
    fn receive_plain(
        &mut self,
        credits: u8,
        facts: ParsedHdr,
        rx: KBox<Rx<Conn>>,
    ) -> Result<(), CloseReason> {
        self.receive_body(credits, facts, rx)
    }

    /// Processes a message with a checksum, or in the other byte order, or an invalid one.
    #[inline(never)]
    fn receive_other(&mut self, rx: KBox<Rx<Conn>>) -> Result<(), CloseReason> {
        let m = decode(rx.bytes()).map_err(CloseReason::Message)?;
        check_identity(&m.env, &self.identity).map_err(CloseReason::Stale)?;
        let (credits, facts) = (m.env.credits, m.facts);
        self.receive_body(credits, facts, rx)
    }

    /// Processes the body of a message with a valid header.
    #[inline(always)]
    fn receive_body(
        &mut self,
        credits: u8,
        facts: ParsedHdr,
        rx: KBox<Rx<Conn>>,
    ) -> Result<(), CloseReason> {
        let body = reparse(rx.bytes(), facts).map_err(CloseReason::Message)?;
        let at = rx.at;
        self.accept(facts, credits)?;
        let repost = match body {
            Body::Noop => Repost::Plain,
            Body::Immediate { .. } => return self.request(facts, rx),
            Body::PutReq { .. } => {
                self.credits.answer_owed().map_err(CloseReason::Credits)?;
                return self.request(facts, rx);
            }
            Body::GetReq { rd, .. } => {
                let facts = facts.with_descriptor(&rd);
                self.credits.answer_owed().map_err(CloseReason::Credits)?;
                return self.request(facts, rx);
            }
            Body::PutAck { src, dst, rd } => {
                self.put_ack((src, dst), &rd, at)?;
                Repost::ForAnswer
            }
            Body::PutNak(done) => {
                let status = done.status;
                self.answer(Op::PutReq, done.cookie, at, move |_| Answer::PutNak(status))?;
                Repost::ForAnswer
            }
            Body::GetDone(done) => {
                let status = done.status;
                self.answer(Op::GetReq, done.cookie, at, move |t| {
                    Answer::GetDone(t.validate(status, false))
                })?;
                Repost::ForAnswer
            }
            Body::PutDone(done) => {
                let status = done.status;
                self.answer(Op::PutAck, done.cookie, at, move |t| {
                    Answer::PutDone(t.validate(status, true))
                })?;
                Repost::ForPeer
            }
            Body::ConnReq(_) | Body::ConnAck(_) => return Err(Cause::Protocol.into()),
        };
        let urgent = matches!(body, Body::Noop);
        self.give_back(rx, repost)?;
        if urgent {
            // No credit covers the buffers of NOOPs: the next one may be on its way.
            self.link.as_mut().ok_or(Cause::Flushed)?.post_recvs()?;
        }
        Ok(())
    }

    /// Books the credits of a message, before its content: they count whatever the message says.
    #[inline(always)]
    fn accept(&mut self, facts: ParsedHdr, credits: u8) -> Result<(), CloseReason> {
        dk!(
            Net,
            "{}: received {:?} of {} bytes with {} credits",
            self.identity.peer,
            { facts.kind() },
            { facts.nob() },
            { credits }
        );
        self.stats.received(facts.kind(), facts.nob(), credits);
        self.credits.returned(credits).map_err(CloseReason::Credits)
    }

    /// Puts a request into the receive queue, if the peer had a credit for it.
    #[inline(always)]
    fn request(&mut self, facts: ParsedHdr, rx: KBox<Rx<Conn>>) -> Result<(), CloseReason> {
        let mut rx = rx;
        self.credits
            .request_received()
            .map_err(CloseReason::Credits)?;
        rx.facts = Some(facts);
        let replaced = self.replace(&mut rx);
        // The request counts even if its place in the receive queue cannot be filled: its sender may have got an
        // acknowledgement.
        self.rx_queue.push(rx);
        replaced
    }

    /// Processes a message that had arrived completely when the connection was closed. Its sender may have got an
    /// acknowledgement, and no node resends it: so LNet gets a message with data, and an answer that data has arrived
    /// counts. Every other message fails at its sender, which waits for an answer of this side.
    fn receive_late(&mut self, rx: KBox<Rx<Conn>>) {
        let mut rx = rx;
        let Ok(m) = decode(rx.bytes()) else {
            return;
        };
        if check_identity(&m.env, &self.identity).is_err()
            || self.credits.returned(m.env.credits).is_err()
        {
            return;
        }
        let taken = match m.body {
            Body::Immediate { .. } => {
                let facts = m.facts;
                rx.facts = Some(facts);
                let credited = self.credits.request_received().is_ok();
                if credited {
                    self.rx_queue.push(rx);
                }
                credited
            }
            Body::PutDone(done) => self.txs.answered_late(done.cookie, |t| {
                Answer::PutDone(t.validate(done.status, true))
            }),
            Body::GetDone(done) => self.txs.answered_late(done.cookie, |t| {
                Answer::GetDone(t.validate(done.status, false))
            }),
            Body::Noop
            | Body::PutReq { .. }
            | Body::GetReq { .. }
            | Body::PutAck { .. }
            | Body::PutNak(_)
            | Body::ConnReq(_)
            | Body::ConnAck(_) => false,
        };
        if taken {
            self.counts.one(Count::Late);
        }
    }

    /// Posts a spare buffer in place of the buffer of a request, which LNet may keep for long. Without a spare the
    /// place stays empty until LNet gives the buffer back: the peer cannot notice, because its credit is withheld as
    /// long.
    #[inline(always)]
    fn replace(&mut self, rx: &mut Rx<Conn>) -> Result<(), CloseReason> {
        let Some(spare) = self.buf_pool.take_spare() else {
            return Ok(());
        };
        rx.replaced = true;
        let link = self.link.as_mut().ok_or(Cause::Flushed)?;
        link.push_recv(spare).map_err(CloseReason::Post)
    }

    /// Matches an answer to `op` with its tx. Changes no tx if none awaits the answer: it may have had an answer that
    /// counts.
    fn answer(
        &mut self,
        op: Op,
        cookie: Cookie,
        at: Timestamp,
        make: impl FnOnce(&mut TxPayload) -> Answer,
    ) -> Result<(), Cause> {
        let index = self.txs.awaiting(op, cookie)?;
        let transfer = self.txs.transfer(index).ok_or(Cause::Protocol)?;
        let answer = make(transfer);
        let posted = transfer.stamps.posted;
        // Of a PUT that needs no PUT_DONE.
        if let Some(spare) = transfer.spare.take() {
            self.buf_pool.put(spare);
        }
        // A LOCAL_INV may follow.
        self.txs.answered(index, answer, 1)?;
        self.stats.answered(op, posted, at);
        Ok(())
    }

    /// Handles a PUT_ACK, which has the target of the PUT's data. If the WRITEs cannot be built, the peer gets the
    /// error with PUT_DONE, and this side's message ends with the same error.
    fn put_ack(
        &mut self,
        (src, dst): (Cookie, Cookie),
        rd: &Descriptor<'_>,
        at: Timestamp,
    ) -> Result<(), Cause> {
        let index = self.txs.awaiting(Op::PutReq, src)?;
        let (env, max_sge) = (self.envelope(), self.max_sge);
        let transfer = self.txs.transfer(index).ok_or(Cause::Protocol)?;
        let plan = transfer.set_target(rd, max_sge)?;
        // The buffer of the PUT_REQ may still be in the send queue.
        let mut buf = transfer.spare.take().ok_or(Cause::LocalFault)?;
        let (slots, status) = match plan {
            Ok(plan) => plan,
            Err(e) => (1, e.to_errno()),
        };
        let done = BodyOut::PutDone(DoneBody {
            cookie: dst,
            status,
        });
        let nob = encode(buf.as_mut_slice(), &env, &done).map_err(|_| Cause::LocalFault)?;
        transfer.load(buf, nob);
        // The time the sink took to answer does not count against the WRITEs (protocol section 4.15).
        transfer.stamps.queued = at;
        let posted = transfer.stamps.posted;
        if let Err(e) = plan {
            // LNet resends a message that failed for lack of memory only.
            let cause = match e {
                e if e == ENOMEM => Cause::NoResources,
                e => Cause::Local(e.to_errno()),
            };
            self.txs.latch(index, cause);
        }
        self.txs.answered(index, Answer::PutAck, slots)?;
        self.stats.answered(Op::PutReq, posted, at);
        Ok(())
    }

    /// Posts a receive buffer again, unless another one was posted for it, and books it. Only until the connection
    /// closes.
    ///
    /// # Errors
    ///
    /// Returns the cause to close the connection with.
    #[inline(always)]
    pub(super) fn give_back(&mut self, rx: KBox<Rx<Conn>>, how: Repost) -> Result<(), CloseReason> {
        let link = self.link.as_mut().ok_or(Cause::Flushed)?;
        if !rx.is_mapped() {
            // Its buffer could not be mapped again.
            cold_drop(rx);
        } else if rx.replaced {
            self.buf_pool.put_spare(rx);
        } else {
            link.push_recv_again(rx)?;
        }
        self.credits.reposted(how).map_err(CloseReason::Credits)
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
    /// Posts the buffer of a request again, and books its credit. The caller holds the connection lock.
    ///
    /// # Errors
    ///
    /// Returns the cause if that closed the connection.
    #[inline(always)]
    pub(super) fn post_again(
        self: &Arc<Self>,
        inner: &mut Inner,
        rx: KBox<Rx<Self>>,
        how: Repost,
        now: Timestamp,
    ) -> Result<(), Cause> {
        if let Some(facts) = rx.facts {
            inner.stats.given_back(facts.kind(), rx.at, now);
        }
        inner.rx_queue.returned();
        match inner.give_back(rx, how).err() {
            None => Ok(()),
            Some(fault) => {
                self.blame(inner, fault);
                Err(inner.state.end_cause())
            }
        }
    }

    /// Maps a buffer again that was detached when LNet kept the message, if the connection needs it. If that fails, the
    /// connection has one spare fewer, or is closed because a place in the receive queue stays empty.
    #[inline(always)]
    pub(super) fn bring_back(self: &Arc<Self>, rx: &mut Rx<Self>) {
        if rx.is_detached() {
            self.attach(rx);
        }
    }

    #[cold]
    #[inline(never)]
    fn attach(self: &Arc<Self>, rx: &mut Rx<Self>) {
        let _nofs = NofsScope::enter();
        let back = match self.with(|inner| inner.state.may_receive().then(|| inner.hca.clone())) {
            Some(Some(hca)) => rx.attach(&hca.device),
            Some(None) => Err(ENODEV),
            None => Ok(()),
        };
        if let Err(e) = back {
            log::cannot(self.nid(), "make a receive buffer", e);
            if !rx.replaced {
                self.end(Cause::NoResources);
            }
        }
    }

    /// Books a finished request of a connection that ends, and frees it without the lock.
    #[cold]
    #[inline(never)]
    pub(super) fn rx_returned(&self, rx: KBox<Rx<Self>>) {
        drop(rx);
        if self.with(|inner| inner.rx_queue.returned_late()) {
            self.ni.retained_rx.returned(self.nid());
        }
    }

    /// Posts the buffer of a request again; the message that follows carries the credit. `ring`: no message will follow
    /// by itself.
    pub(super) fn give_back(self: &Arc<Self>, rx: KBox<Rx<Self>>, how: Repost, ring: bool) {
        let mut rx = rx;
        self.bring_back(&mut rx);
        let now = Timestamp::now();
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        if inner.state.may_receive() {
            let _ = self.post_again(inner, rx, how, now);
            if ring {
                self.ring(inner, now);
            }
            return;
        }
        if let Some(facts) = rx.facts {
            inner.stats.given_back(facts.kind(), rx.at, now);
        }
        drop(guard);
        self.rx_returned(rx);
    }
}
