// SPDX-License-Identifier: GPL-2.0

//! Workers of a connection, which execute what the state machine requests ([`Actions`]), from set-up to release; and
//! its timer: an attempt that takes too long, a peer that does not send first, transmits that take too long, a silent
//! peer, a DREQ without an answer.
//!
//! There are three workers, by what they wait for ([`Worker`]), each on a queue for items of its kind
//! ([`crate::lnd::work_queues`]): short steps, which connections of other peers wait for; steps that call LNet or free
//! a CM id; and steps that call into the device to create, close and destroy the queue pair.
//!
//! At the end of the file are the functions that the peer ([`Connection`]) and the NI of a connection call.
//!
//! Context: only one worker runs at a time for one connection; all may sleep. The timer is a delayed work item. It is
//! armed again only under the connection lock, except for the steps of an attempt, and only while the state that needs
//! it lasts: a release, which cancels it, comes later. The peer and the NI call without the peer lock, except for
//! functions that take no lock.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    buf_pool::BufPool,
    qp_handle::QpHandle,
    send,
    tx_payload::TxPayload,
    Conn,
    Inner,
    BLOCKING,
    CLOSING_MS,
    CONTROL,
    QUEUE_PAIR,
    TIMER, //
};
use crate::{
    lnd::{
        log,
        peer::NotSent,
        timestamp::Timestamp, //
    },
    lnet::{
        uevent,
        Message,
        SendRequest, //
    },
    policy::{
        link_state::{
            may_end,
            transport_ms,
            FINISH_LOOK_MS, //
        },
        liveness::{
            Check,
            LOOK_MIN_MS, //
        }, //
    },
    proto::{
        cause::Cause,
        conn_state::{
            Actions,
            ConnEvent,
            State,
            Worker, //
        },
        reject::RetryWhy,
        tx_table::TxSlot, //
    },
    rdma::{
        atomic::{
            Full,
            Relaxed, //
        },
        device::DeviceName,
        work, //
    }, //
};

/// Milliseconds that the device has to flush its queues. A device that takes longer is dead.
const DRAIN_MS: u32 = 5_000;

/// Milliseconds for a queue pair that was never connected. qedr does not flush it: it is in the firmware only from when
/// it is connected.
const UNCONNECTED_DRAIN_MS: u32 = 1_000;

/// Step of a worker.
type Step = (Actions, fn(&Arc<Conn>));

/// Steps of the workers, in the order in which a worker executes them.
const STEPS: [Step; 8] = [
    (Actions::RESOLVE, Conn::resolve),
    (Actions::SPEAK, |conn| {
        conn.with(|inner| conn.pump(inner, true, None))
    }),
    (Actions::ESTABLISH, Conn::publish),
    (Actions::HAND_OVER, Conn::flush_pending),
    (Actions::PART, Conn::part),
    (Actions::SET_UP, Conn::set_up),
    (Actions::CLOSE, Conn::close),
    (Actions::RELEASE, Conn::release),
];

work::work_items! { Conn:
    CONTROL in control => run_control,
    BLOCKING in blocking => run_blocking,
    QUEUE_PAIR in queue_pair => run_queue_pair,
}
work::delayed_items! { Conn, |conn| &conn.ni.workers.control,
    TIMER in timer => run_timer,
}

impl Conn {
    /// Runs the work item for short steps.
    fn run_control(self: &Arc<Self>) {
        for (event, is_reported) in &self.qp_events {
            if is_reported.xchg(false, Full) {
                self.event(*event);
            }
        }
        self.work(Worker::Control);
    }

    /// Runs the work item for steps that call LNet or free a CM id.
    fn run_blocking(self: &Arc<Self>) {
        self.work(Worker::Blocking);
        if self.with(|inner| inner.linger.leaves()) {
            let _ = work::cancel::<Self, TIMER>(self);
            self.free_id();
            self.peer.peers.remove_lingering(self);
        }
        let late = self.with(|inner| inner.late_id.take());
        drop(late);
    }

    /// Runs the work item for the queue pair.
    fn run_queue_pair(self: &Arc<Self>) {
        self.work(Worker::QueuePair);
        self.add_regions();
        self.give_back_region();
    }

    /// Runs the timer.
    fn run_timer(self: &Arc<Self>) {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        match inner.state.state() {
            State::Init
            | State::Resolving
            | State::Connecting
            | State::Accepting
            | State::Called => {
                let state = inner.state.state();
                // The peer knows nothing of the attempt: its set-up waits for the device, or for its turn there.
                let unasked = matches!(state, State::Connecting | State::Accepting) && !inner.asked;
                match inner.step_left_ms() {
                    0 if unasked => self.step(inner, ConnEvent::Fail(Cause::NoResources)),
                    0 => self.step(inner, ConnEvent::Timeout),
                    ms => {
                        self.rearm_timer(ms);
                        drop(guard);
                        self.end_slow_turn();
                        if state == State::Accepting && !unasked {
                            // It may never continue: no attempt of this node waits for it.
                            self.peer.with(|inner| inner.policy.slowed());
                            self.peer.serve_waiting(None);
                        }
                    }
                }
            }
            State::Established if self.look_whether_finished(inner) => {}
            State::Established => {
                if let Some(cause) = overdue(inner, self.ni.message_limit_ms()) {
                    return self.step(inner, ConnEvent::Fail(cause));
                }
                let (waits, ago) = (inner.txs.has_pending(), inner.elapsed());
                // Read once: it may change in between.
                let probe = self.ni.probe();
                let keepalive = self.ni.lnet.keepalive();
                let look = inner.liveness.look(waits, ago, probe, keepalive);
                self.pump(inner, look != Check::Nothing, None);
                let next_ms = inner.liveness.next_ms(inner.elapsed(), probe);
                // Checks deadlines, too, however seldom silent peers are probed.
                let idle_ms = self.timer_ms();
                let next_ms = next_ms.map_or(idle_ms, |ms| ms.min(idle_ms));
                // Unless something has armed it meanwhile.
                let _ = work::queue_delayed::<Self, TIMER>(self.clone(), next_ms);
                if inner.has_idle_regions() {
                    self.kick(Worker::QueuePair);
                }
                if look == Check::All {
                    drop(guard);
                    // A dead peer then shows on all connections at about the same time.
                    self.peer.for_each_conn(|conn| conn.ask());
                }
            }
            State::Closing | State::Draining => {
                drop(guard);
                self.end_slow_turn();
                let inner = self.inner.lock();
                // In state Dead the timer belongs to the wait for the peer's answer.
                if inner.state.state() != State::Dead {
                    self.rearm_timer(CLOSING_MS);
                }
                if inner.state.state() == State::Draining {
                    let (qp, left_ms) = (inner.qp(), inner.step_left_ms());
                    drop(inner);
                    if left_ms == 0 {
                        self.give_up_drain();
                    } else if let Some(qp) = qp {
                        qp.poll_again();
                    }
                }
            }
            State::Dead if inner.linger.is_mute() => {
                drop(guard);
                self.look_for_route();
            }
            State::Dead => {
                if inner.linger.waits() && inner.step_left_ms() == 0 {
                    inner.linger.over();
                }
                self.after_linger_change(inner);
            }
        }
    }
}

/// Returns why a transmit, or a NOOP, has waited for more than `limit` milliseconds, if one has: the peer may have set
/// how often this side's sends are retried.
fn overdue(inner: &Inner, limit: i64) -> Option<Cause> {
    let is_late = |slot: &TxSlot<TxPayload>| slot.transfer().is_some_and(|t| t.age_ms() > limit);
    let mut pending = inner.txs.pending();
    let late = pending.find_map(|(_, slot)| is_late(slot).then(|| slot.tx().timeout_cause()));
    let noop = inner.noop.is_some_and(|since| since.elapsed_ms() > limit);
    late.or(noop.then_some(Cause::DeadlineSending))
}

impl Conn {
    /// Executes the steps of `worker`, then queues another worker if there are steps for it.
    fn work(self: &Arc<Self>, worker: Worker) {
        loop {
            let (todo, fault) = self.with(|inner| {
                let todo = inner.state.take_steps(worker);
                if todo == Actions::NONE {
                    self.call_next(inner);
                }
                (todo, inner.fault.take())
            });
            if let Some(fault) = fault {
                log::close_reason(self.nid(), fault);
            }
            if todo == Actions::NONE {
                return;
            }
            for (action, step) in STEPS {
                if todo.has(action) {
                    step(self);
                }
            }
        }
    }

    /// Gives a memory region back to the device that was idle for long. Runs in the worker that destroys the queue
    /// pair, so the queue pair stays.
    fn give_back_region(&self) {
        let qp = self.with(|inner| {
            let due = inner.state.is_up() && inner.has_idle_regions();
            if due {
                inner.regions_seen = Timestamp::now();
            }
            inner.qp().filter(|_| due)
        });
        if let Some(qp) = qp {
            qp.drop_unused_mr();
        }
    }

    /// Ends the turn of a slow attempt, unless it blocks others all the same: if connecting waits for the other side's
    /// TCP in the queue that all queue pairs of the device share, too many waiting attempts would keep all other
    /// attempts from their turn. That is siw; over adapters only the end of an attempt that the peer does not answer
    /// waits.
    fn end_slow_turn(&self) {
        if !(self.over_tcp && self.near) {
            self.end_turn();
        }
    }
}

// End of a connection: a DREQ to the peer, drain of the queue pair, release of all resources. Resources are taken out
// under the connection lock and freed without it. INVARIANT: No key is valid, and no work request holds memory of LNet
// (`release`), before transmits that a key held go back to LNet (`part`).
impl Conn {
    /// Ends traffic: disconnects, puts the queue pair into error, and posts the drain markers.
    fn close(self: &Arc<Self>) {
        let (cause, failed) = self.with(|inner| (inner.state.cause(), inner.up.is_none()));
        self.set_usable(false);
        if failed && self.active {
            // It no longer races with requests of the peer.
            self.peer.with(|inner| inner.policy.closing());
        }
        if cause.is_some_and(|cause| cause.has(Cause::IS_SILENT)) {
            // Dead connections are then found now, and not when a message is to be sent on each of them.
            self.peer.for_each_conn(|conn| conn.doubt(false));
        }
        match self.id() {
            Some(id) => self.tell_end(&id, self.reachability(id.reachability())),
            // The connection was closed before the handler of the request took the id.
            None => self.with(|inner| inner.owes_reject = true),
        }
        let (drain, ms) = self.with(|inner| {
            // The time of the drain counts from when the device has begun.
            inner.begin_step(u32::MAX);
            let ms = match self.was_connected(inner) {
                true => DRAIN_MS,
                false => UNCONNECTED_DRAIN_MS,
            };
            let drain = inner.link.as_mut().and_then(QpHandle::end_posting);
            (drain, ms)
        });
        // Before the markers are posted: they may complete before this returns.
        self.event(ConnEvent::DrainStarted);
        if drain.is_some_and(|(qp, sq, rq)| qp.drain(sq, rq).is_ok()) {
            self.with(|inner| {
                inner.begin_step(ms);
                if inner.state.state() == State::Draining {
                    self.rearm_timer(ms.min(CLOSING_MS));
                }
            });
        } else {
            // There is no queue pair, or its regions are freed without a drain.
            self.event(ConnEvent::Drained);
        }
    }

    /// Returns whether the CM may have connected the queue pair: an accept does so before it returns.
    fn was_connected(&self, inner: &Inner) -> bool {
        inner.connected || (!self.active && inner.asked)
    }

    /// Gives up the drain: a device that does not flush its queues is dead, and its reset may wait for this driver. So
    /// the queue pair is destroyed as it is.
    fn give_up_drain(self: &Arc<Self>) {
        let (qp, is_dead) = self.with(|inner| (inner.qp(), self.was_connected(inner)));
        if let Some(qp) = qp {
            if is_dead {
                log::not_flushed(self.nid());
            }
            qp.give_up_drain();
        }
        self.event(ConnEvent::Drained);
    }

    /// Frees the queue pair and its memory. Afterwards no key is valid; [`Conn::part`] follows.
    fn release(self: &Arc<Self>) {
        let _ = work::cancel::<Self, TIMER>(self);
        // A sender that has mapped a sink still finds the queue pair, to free the sink.
        if let Some(qp) = self.with(|inner| inner.qp()) {
            // The rights to post are gone, so this does not return `EBUSY`.
            let _ = qp.destroy_mrs();
        }
        let link = self.with(|inner| {
            let link = inner.link.take()?;
            inner.counts = inner.counts.with_recv_wrs(link.recv_wrs);
            Some(link)
        });
        if link.as_ref().is_some_and(|link| link.refused) {
            self.refused_post();
        }
        drop(link);
        self.with(|inner| inner.state.add_steps(Actions::PART));
    }

    /// Counts the connection as closed because the device refused a work request.
    fn refused_post(&self) {
        let lived_ms = self.with(|inner| inner.lived_ms);
        let ni = &self.ni;
        let now_ms = ni.now_ms();
        if !ni.way(|way| way.refused_post(lived_ms, now_ms)) {
            return;
        }
        let name = self.hca().ok().map(|hca| hca.device.name());
        let name = name.as_ref().map(DeviceName::as_str);
        log::refuses_posts(ni.nid, name.unwrap_or("the RDMA device"));
        uevent::device(uevent::Device::Fatal, &ni.nid, name);
        ni.check_device();
    }

    /// Frees all other resources, except the id if the peer may still need a DREQ, and tells LNet and the peer object.
    /// After [`Conn::release`].
    fn part(self: &Arc<Self>) {
        // The queue pair may have detected that first.
        let left_behind = self.is_elsewhere();
        let (times, retry, cause, rejected) = self.with(|inner| {
            let cause = inner.state.cause().unwrap_or(Cause::PeerClosed);
            let idle_ms = u64::try_from(inner.idle_ms()).unwrap_or(0);
            let heard_ms = self.ni.now_ms().saturating_sub(idle_ms);
            let lived_ms = inner.up.map(|_| inner.lived_ms);
            ((lived_ms, heard_ms), inner.retry, cause, inner.rejected)
        });
        let was_up = times.0.is_some();
        if !self.wait_for_drep() {
            self.free_id();
        }
        // An ESTABLISHED event that was on its way has come by now, and no other can tell what to do with these.
        while let Some(early) = self.with(|inner| inner.rx_queue.take_early()) {
            drop(early);
        }
        let (hca, txs) = self.with(|inner| {
            inner.rx_queue.detach();
            inner.waiting_requests.for_each(|(rx, ..)| rx.detach());
            self.ni
                .retained_rx
                .left(self.peer.nid, inner.rx_queue.count_retained());
            let counts = core::mem::take(&mut inner.counts);
            self.ni.closed_counters.add(&counts, inner.list);
            inner.txs.keys_dead();
            inner.buf_pool = BufPool::EMPTY;
            self.queue_upcall(inner, Timestamp::now());
            (inner.hca.take(), inner.txs.nr_slots())
        });
        // LNet may be slow to take finished transmits, and the removal of the device must not wait for LNet.
        // One at a time, because unmapping takes long behind an IOMMU.
        for index in 0..u16::try_from(txs).unwrap_or(u16::MAX) {
            self.with(|inner| inner.txs.transfer(index).map(TxPayload::leave_device));
        }
        let port_mtu = || hca.as_ref().and_then(|hca| hca.port_mtu());
        let cause = cause.with_mtus(self.path_mtu(), port_mtu);
        // Maybe the last reference: then the protection domain is freed, which sleeps.
        drop(hca);
        let seen = &self.ni.close_stats;
        if retry == Some(RetryWhy::Unsaid) {
            // Rejects that invite a retry with a reason are no news, and are not counted.
            seen.unsaid();
        }
        if retry.is_none() {
            let noted = seen.ended(self.nid(), self.active, was_up, cause, rejected);
            self.with(|inner| inner.stats.over(was_up, cause, rejected));
            log::conn_over(self.nid(), cause, was_up, noted);
        }
        let moved = left_behind || cause == Cause::Moved;
        self.peer.released(self, times, retry, cause, moved);
    }
}

impl Conn {
    /// Closes the connection if it is on another device than the NI, or if the NI's address has left its device.
    pub(crate) fn moved(self: &Arc<Self>) {
        if self.is_elsewhere() {
            self.end(Cause::Moved);
        }
    }

    /// Returns for how long its queue pair retransmits a packet that is not acknowledged, in milliseconds. `None`: not
    /// known yet.
    pub(crate) fn transport_ms(&self) -> Option<u64> {
        let path = self.with(|inner| inner.path);
        Some(transport_ms(path.ack_timeout?, path.retry_count?))
    }

    /// Probes the peer on this connection, because the peer is silent on another one that waits for it. Does nothing if
    /// the peer has just sent something here.
    fn ask(self: &Arc<Self>) {
        self.with(|inner| {
            let ago = inner.elapsed();
            if inner.state.is_up() && inner.liveness.ask(ago) {
                if let Some(ms) = inner.liveness.next_ms(ago, self.ni.probe()) {
                    self.schedule_check(inner, ms);
                }
            }
        });
    }

    /// Closes the connection if it waits only for transfers under way, and these have ended. Returns false if it does
    /// not wait for them.
    fn look_whether_finished(self: &Arc<Self>, inner: &mut Inner) -> bool {
        let Some((cause, since)) = inner.finishing else {
            return false;
        };
        let waited_ms = u64::try_from(since.elapsed_ms()).unwrap_or(0);
        let ago = inner.elapsed();
        let still_ms = u64::try_from(ago.sent.min(ago.heard)).unwrap_or(0);
        let busy = inner.txs.has_pending() || inner.rx_queue.owed() > 0;
        if may_end(cause, busy, still_ms, waited_ms) {
            self.step(inner, ConnEvent::Fail(cause));
        } else {
            self.rearm_timer(FINISH_LOOK_MS);
        }
        true
    }

    /// Starts the attempt if this node is the active side.
    pub(crate) fn start(self: &Arc<Self>) {
        self.event(ConnEvent::Start);
    }

    /// Queues a message of LNet, and posts what credits allow. Finalizes it in rare cases: memory of a GPU that cannot
    /// be used, a GET without a reply. May sleep; re-entrant.
    #[inline]
    pub(crate) fn send(self: &Arc<Self>, msg: Message, req: &SendRequest) -> Result<(), NotSent> {
        send::send(self, msg, req)
    }

    /// Closes the connection once its outstanding transfers have ended, and after a short time in any case. Sends
    /// nothing new over it.
    pub(crate) fn finish(self: &Arc<Self>, cause: Cause) {
        self.with(|inner| {
            if inner.state.is_up() {
                // An interface that goes down does not wait as long as an administrator.
                let replaces = |(first, _)| cause == Cause::LinkDown && first != cause;
                if inner.finishing.is_none_or(replaces) {
                    inner.finishing = Some((cause, Timestamp::now()));
                }
                let _ = self.look_whether_finished(inner);
            } else {
                self.step(inner, ConnEvent::Fail(cause));
            }
        });
        // LNet's next messages wait for the next connection. This must follow the begin of the close, which a caller
        // that lists the connection checks afterwards ([`Conn::publish`]).
        self.set_usable(false);
    }

    /// Ends the turn in the connect queue of an attempt that has ended, or that takes too long to make other peers
    /// wait. Does nothing if the turn has already ended.
    pub(crate) fn end_turn(&self) {
        if let Some(claim) = self.with(|inner| inner.turn.take()) {
            self.peer.peers.leave_line(claim);
        }
    }

    /// Probes the peer, which may have closed this connection, and its DREQ got lost; or another connection of the peer
    /// broke. Other connections are preferred until the peer is heard on this one, or acknowledges the probe, a NOOP.
    /// If it does neither, the transport's retries end the connection.
    ///
    /// One answer is enough for several connections that come or go together, except if the peer has to answer from now
    /// on (`again`): NOOPs take no credit, and the peer has two buffers for them.
    pub(crate) fn doubt(self: &Arc<Self>, again: bool) {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        let recent = |then: Timestamp| then.elapsed_ms() < i64::from(LOOK_MIN_MS);
        if inner.state.is_up() && (again || !inner.probed.is_some_and(recent)) {
            inner.probed = Some(Timestamp::now());
            self.is_doubted.store(true, Relaxed);
            self.pump(inner, true, None);
        }
    }

    /// Returns whether this node is the active side.
    pub(crate) fn is_active(&self) -> bool {
        self.active
    }

    /// Sets whether new messages may use the connection. Takes no lock.
    pub(crate) fn set_usable(&self, is_usable: bool) {
        self.is_usable.store(is_usable, Relaxed);
    }

    /// Returns whether new messages may use the connection. Takes no lock.
    #[inline]
    pub(crate) fn is_usable(&self) -> bool {
        self.is_usable.load(Relaxed)
    }

    /// Returns whether new messages may use the connection, and others are not preferred, because the peer may have
    /// closed this one. Takes no lock.
    #[inline]
    pub(crate) fn is_sound(&self) -> bool {
        self.is_usable() && !self.is_doubted.load(Relaxed)
    }

    /// Sets the index that distinguishes the connection from the others of the peer. Takes no lock.
    pub(crate) fn set_index(&self, index: u32) {
        self.index.store(index, Relaxed);
    }

    /// Returns that index. Takes no lock.
    pub(crate) fn index(&self) -> u32 {
        self.index.load(Relaxed)
    }
}
