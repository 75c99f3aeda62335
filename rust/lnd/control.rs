// SPDX-License-Identifier: GPL-2.0

//! The control half of a connection: set-up, publishing, close, drain, release, and the timer.
//!
//! One work item per connection, so these never run at the same time for one connection; anything
//! may sleep here. The state machine says what to do ([`Actions`]); it is done in the order of its
//! life.

use kernel::{
    prelude::*,
    sync::{
        atomic::Relaxed,
        Arc, //
    },
    time::Instant,
    workqueue::WorkItem, //
};

use super::{
    conn::{
        Conn,
        CONTROL,
        PROBE_MS,
        TIMER, //
    },
    fifo::Fifo,
    link::Link,
    log,
    parting::Leaving,
    pump::pump,
    received::Received,
    seen,
    transfer::Limits, //
};
use crate::{
    lnet::params,
    proto::{
        cause::Cause,
        cm_msg::{
            Cause as Why,
            NiView,
            Refusal, //
        },
        conn::{
            Actions,
            Event,
            State, //
        },
        credits::NOOPS_MAX,
        encode::{
            encode,
            BodyOut, //
        },
        params::{
            QueueDepth,
            CONN_MSG_LEN,
            MSG_SIZE_WIRE, //
        },
        queues::{
            Queues,
            NOOP_SLOTS, //
        },
        sizes::{
            self,
            DepthMemory, //
        },
        tx::Place,
        wire::ConnParams, //
    },
    rdma::{
        batch::BATCH_WRS,
        buf::{
            RxBuf,
            TxBuf, //
        },
        cm::{
            CmId,
            ConnParam, //
        },
        cm_event::Addr,
        qp::{
            Qp,
            QpConfig, //
        },
        work::NofsScope, //
    }, //
};

/// RNR NAK timer that the peer is told, 5.12 ms (InfiniBand table 45). The default of the CM is 655
/// ms, and it is a net only: credits promise a posted buffer. Not less, because the NOOPs of
/// ko2iblnd at depth 1 are more than there are buffers for, and with 6 retries the connection must
/// outlast a softirq that is held up.
const MIN_RNR_TIMER: u8 = 18;

/// How long a software provider waits for an acknowledgement, 1.07 s instead of the CM's 0.54 s.
/// A busy host holds it up for long, and what it then repeats makes it busier.
const SOFTWARE_ACK_TIMEOUT: u8 = 18;

/// Messages of up to this many bytes go inline where the device can: all but IMMEDIATEs with
/// payload.
const INLINE: u16 = 160;

impl WorkItem<CONTROL> for Conn {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let _nofs = NofsScope::enter();
        this.take_qp_events();
        loop {
            let todo = this.with(|inner| core::mem::replace(&mut inner.todo, Actions::NONE));
            if todo == Actions::NONE {
                break;
            }
            if todo.has(Actions::RESOLVE) {
                this.resolve();
            }
            if todo.has(Actions::SET_UP) {
                this.set_up();
            }
            if todo.has(Actions::NOTIFY_CM) {
                this.notify_cm();
            }
            if todo.has(Actions::ESTABLISH) {
                this.publish();
            }
            if todo.has(Actions::CLOSE) {
                this.close();
            }
            if todo.has(Actions::RELEASE) {
                this.release();
            }
        }
        if this.with(|inner| inner.farewell.leaves()) {
            this.leave();
        }
        let late = this.late_id.lock().take();
        drop(late);
    }
}

impl WorkItem<TIMER> for Conn {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let _nofs = NofsScope::enter();
        // Armed again under the lock only, and only as long as the state that asks for it lasts: a
        // release, which cancels the timer, comes later.
        let mut guard = this.lock();
        let inner = &mut *guard;
        // A message may wait for memory.
        this.kick_upper(inner);
        match inner.fsm.state() {
            State::Init | State::Resolving | State::Connecting | State::Accepting => {
                this.step(inner, Event::Fail(Cause::ConnectTimeout))
            }
            State::Established => {
                let limit = i64::from(this.ni.lnet.timeout()).saturating_mul(1000);
                let overdue = inner.overdue(limit);
                if let Some(cause) = overdue {
                    this.step(inner, Event::Fail(cause));
                    return;
                }
                inner.watched = Queues::has_pending(&inner.cells);
                let keepalive = inner.wants_probe(this.ni.lnet.keepalive());
                pump(&this, inner, keepalive);
                let next = if inner.watched {
                    inner.probe_in()
                } else {
                    this.timer_ms()
                };
                this.arm_timer(next);
            }
            State::Closing | State::Draining => {
                drop(guard);
                // What waits for the next connection does not wait for ever, even if this one's
                // completions never come.
                this.peer.fail_expired();
                let inner = this.lock();
                // Once it is dead the timer is the farewell's.
                if inner.fsm.state() != State::Dead {
                    this.rearm_timer(CLOSING_MS);
                }
            }
            State::Dead if inner.farewell.is_mute() => {
                drop(guard);
                this.look_for_route();
            }
            State::Dead => match inner.farewell_left() {
                None => {}
                Some(0) => {
                    drop(guard);
                    this.end_farewell();
                }
                Some(ms) => this.rearm_timer(ms),
            },
        }
    }
}

/// Least milliseconds between two looks at a connection on which something waits.
const LOOK_MIN_MS: u32 = 250;

/// Milliseconds between two looks at a connection on its way out.
const CLOSING_MS: u32 = 1000;

/// Milliseconds that the id of a connection waits for the peer's DREP. The CM repeats a DREQ after
/// 4.3 s.
const FAREWELL_MS: u32 = 10_000;

/// Milliseconds between two looks for a route to a peer that could not be told.
const MUTE_MS: u32 = 1000;

impl Conn {
    /// Milliseconds between two looks at an idle connection: a deadline is noticed within 1.25
    /// times, or a second later if that is more.
    fn timer_ms(&self) -> u32 {
        let lnet = &self.ni.lnet;
        let quarter = lnet.timeout().saturating_mul(250);
        let keepalive = lnet
            .keepalive()
            .map_or(u32::MAX, |s| s.saturating_mul(1000));
        quarter.min(keepalive).max(1000)
    }

    /// Active: makes the id, and asks for the address; or asks again.
    fn resolve(self: &Arc<Self>) {
        let ms = self.with(|inner| inner.fsm.resolve_ms());
        let dst = Addr::v4(self.nid().addr(), self.ni.service);
        let asked = match self.cm_id() {
            Some(id) => id.resolve_addr(None, &dst, ms),
            None => self.resolve_first(&dst, ms),
        };
        if let Err(e) = asked {
            log::cannot(self.nid(), "resolve the address", e);
            self.fail(Cause::Unreachable);
        }
    }

    fn resolve_first(self: &Arc<Self>, dst: &Addr, ms: u32) -> Result {
        self.arm_timer(self.ni.connect_timeout_ms());
        let src = Addr::v4(self.ni.nid.addr(), 0);
        let id = CmId::create(self.ni.net.as_rdma(), self.clone())?;
        let id = Arc::new(id, GFP_KERNEL)?;
        *self.cm.lock() = Some(id.clone());
        if params::use_privileged_port() {
            id.resolve_addr_privileged(&src, dst, ms)
        } else {
            id.resolve_addr(Some(&src), dst, ms)
        }
    }

    /// Makes the queue pair and posts the receives, then asks or answers.
    fn set_up(self: &Arc<Self>) {
        if !self.active {
            self.arm_timer(self.ni.connect_timeout_ms());
        }
        let Some(id) = self.cm_id() else {
            return self.fail(Cause::NoResources);
        };
        let made = self.make_link(&id).and_then(|depth| {
            let _ = id.set_min_rnr_timer(MIN_RNR_TIMER);
            if self.hca()?.device.is_software() {
                let _ = id.set_ack_timeout(SOFTWARE_ACK_TIMEOUT);
            }
            let mut msg = [0; CONN_MSG_LEN];
            self.handshake_message(depth, &mut msg)?;
            let param = ConnParam {
                private_data: &msg,
                retry_count: self.ni.lnet.retry_count(),
                rnr_retry_count: self.ni.lnet.rnr_retry_count(),
            };
            if self.active && !id.has_route() {
                return Err(ENETUNREACH);
            }
            self.with(|inner| inner.asked = true);
            if self.active {
                id.connect(&param)
            } else {
                id.accept(&param)
            }
        });
        if let Err(e) = made {
            if e == ENETUNREACH {
                return self.fail(Cause::Unreachable);
            }
            log::cannot(self.nid(), "set up the connection", e);
            if !self.active {
                let refusal = Refusal::new(Why::NoResources).reject(Some(&self.ni_view()));
                let _ = id.reject(&refusal.encode());
            }
            self.fail(Cause::NoResources);
        }
    }

    fn ni_view(&self) -> NiView {
        NiView {
            nid: self.ni.nid,
            stamp: self.ni.stamp,
            peer_credits: self.ni.depth(),
            active: true,
            on_device: true,
        }
    }

    /// CONNREQ or CONNACK.
    fn handshake_message(&self, depth: QueueDepth, out: &mut [u8]) -> Result {
        let (env, frags) = self.with(|inner| (inner.envelope(), inner.known.frags));
        let params = ConnParams {
            queue_depth: depth.wire(),
            max_frags: frags.get(),
            max_msg_size: MSG_SIZE_WIRE,
        };
        let body = if self.active {
            BodyOut::ConnReq(params)
        } else {
            BodyOut::ConnAck(params)
        };
        let nob = encode(out, &env, &body).map_err(|_| EPROTO)?;
        crate::proto::encode::seal(out, nob, 0, self.ni.cksum()).map_err(|_| EPROTO)
    }

    /// Makes the queue pair, as deep as asked for or as the device can, and posts the receives.
    /// Returns the depth it got.
    fn make_link(self: &Arc<Self>, id: &CmId<Self>) -> Result<QueueDepth> {
        let hca = self.hca()?;
        let wanted = self.with(|inner| inner.known.depth);
        let memory = DepthMemory::from_bits(hca.depth.load(Relaxed));
        let mut search = memory.search(wanted, seen::now_ms());
        let max_sge = sizes::gather_elements(hca.attrs.max_send_sge, self.ni.wrq_sge);
        let mut inline = INLINE;
        let (parts, depth, sq_depth) = loop {
            let depth = search.now();
            let sq_depth =
                sizes::send_queue(depth, max_sge, hca.device.reg_wrs(), hca.attrs.max_qp_wr);
            let config = QpConfig {
                sq_depth,
                rq_depth: depth.rx_buffers(),
                max_send_sge: max_sge,
                max_inline: inline,
                nr_mrs: sizes::memory_regions(depth, self.ni.depth()),
                mr_pages: u16::try_from(hca.mr_pages)?,
            };
            let made = Qp::create(id, &hca.pd, self.cq_hint(), &config, self.clone());
            match made {
                Ok(parts) if search.had() => break (parts, depth, sq_depth),
                // The queue pair goes before a deeper one is tried.
                Ok(parts) => drop(parts),
                // Some providers refuse what they cannot put inline, instead of saying how much they can.
                Err(e) if e == EINVAL && inline > 0 => inline = 0,
                Err(e) if (e == ENOMEM || e == EINVAL) && search.failed() => {}
                Err(e) => return Err(e),
            }
        };
        let memory = memory.after(wanted, depth, seen::now_ms());
        hca.depth.store(memory.bits(), Relaxed);
        let buffers = usize::from(depth.rx_buffers());
        let mut link = Link::new(parts);
        let reg_and_send = link.reg_wrs().saturating_add(1);
        let rx = Fifo::with_capacity(buffers)?;
        let early = Fifo::with_capacity(buffers)?;
        let pushed = KVec::with_capacity(BATCH_WRS, GFP_KERNEL)?;
        let bufs = KVec::with_capacity(buffers, GFP_KERNEL)?;
        let mut spares = KVec::with_capacity(sizes::spare_buffers(depth), GFP_KERNEL)?;
        while spares.len() < spares.capacity() {
            spares.push(RxBuf::alloc(&hca.device)?, GFP_KERNEL)?;
        }
        let mut noop_bufs = KVec::with_capacity(usize::from(NOOPS_MAX), GFP_KERNEL)?;
        for _ in 0..NOOPS_MAX {
            noop_bufs.push(TxBuf::alloc(&hca.device)?, GFP_KERNEL)?;
        }
        self.with(|inner| {
            inner.rx = rx;
            inner.early = early;
            inner.pushed = pushed;
            inner.bufs = bufs;
            inner.spares = spares;
            inner.noop_bufs = noop_bufs;
            inner.known.depth = depth;
            inner.limits = Limits {
                max_sge: usize::from(max_sge),
                sq: sq_depth.saturating_sub(NOOP_SLOTS),
                reg_and_send,
            };
        });
        for _ in 0..buffers {
            let buf = RxBuf::alloc(&hca.device)?;
            link.push_recv(buf).map_err(|_| EIO)?;
        }
        link.post_recvs().map_err(|_| EIO)?;
        self.with(|inner| inner.link = Some(link));
        Ok(depth)
    }

    /// Spreads the connections of the NI over the completion vectors.
    fn cq_hint(&self) -> i32 {
        i32::try_from(self.cpu_number()).unwrap_or(0)
    }

    fn notify_cm(&self) {
        if let Some(id) = self.cm_id() {
            // Refused if the RTU came meanwhile: then there is nothing to do.
            let _ = id.notify_comm_est();
        }
    }

    /// Opens the connection to the peer's messages.
    fn publish(self: &Arc<Self>) {
        let known = self.with(|inner| inner.known);
        self.mtu.store(self.path_mtu(), Relaxed);
        self.cancel_timer();
        self.arm_timer(self.timer_ms());
        self.peer.established(self, known);
        self.with(|inner| {
            inner.published = true;
            self.kick_upper(inner);
        });
    }

    /// Ends traffic: disconnects, puts the queue pair into error, and posts the drain markers.
    fn close(self: &Arc<Self>) {
        self.peer.unpublish(self);
        if self
            .with(|inner| inner.fsm.cause())
            .is_some_and(Cause::is_silent)
        {
            self.peer.doubt_all();
        }
        self.rearm_timer(CLOSING_MS);
        if let Some(id) = self.cm_id() {
            let route = id.has_route();
            self.with(|inner| {
                if !inner.attempt_failed {
                    if route {
                        inner.farewell.said();
                    } else {
                        let _ = inner.farewell.no_route();
                    }
                }
            });
            if route {
                // Refused if it was never connected; the drain puts the queue pair into error anyway.
                let _ = id.disconnect();
            }
        }
        let drain = self.with(|inner| {
            while let Some(early) = inner.early.pop() {
                drop(early);
            }
            let link = inner.link.as_mut()?;
            let (sq, rq) = link.take_queues()?;
            Some((link.qp().clone(), sq, rq))
        });
        // Before the markers are posted: they may be back before this returns.
        self.event(Event::DrainStarted);
        let draining = match drain {
            Some((qp, sq, rq)) => qp.drain(sq, rq).is_ok(),
            None => false,
        };
        if !draining {
            // There is no queue pair, or it waits for its completions when it is dropped.
            self.event(Event::Drained);
        }
    }

    /// Frees everything, but for the id if the peer may still have to be told. Afterwards no key is
    /// valid.
    fn release(self: &Arc<Self>) {
        self.cancel_timer();
        // A sender that has mapped a sink still finds the queue pair, to give the sink up.
        let qp = self.with(|inner| inner.link.as_ref().map(|link| link.qp().clone()));
        if let Some(qp) = qp {
            // The rights to post are gone, so it waits for whatever is left.
            let _ = qp.destroy_mrs();
        }
        let (link, failed, retry, cause, rejected) = self.with(|inner| {
            (
                inner.link.take(),
                inner.attempt_failed,
                inner.retry.take(),
                inner.fsm.cause().unwrap_or(Cause::PeerClosed),
                inner.rejected,
            )
        });
        if let Some(link) = link {
            let mut past = self.with(|inner| inner.counts);
            past.recv_wrs = link.recv_wrs();
            self.ni.add_past(&past);
        }
        if !self.wait_for_farewell() {
            let id = self.cm.lock().take();
            drop(id);
        }
        let hca = self.with(|inner| {
            // What LNet has not been given yet goes to it without the device.
            inner.rx.for_each(Received::detach);
            inner.queues.keys_dead(&mut inner.cells);
            inner.bufs.clear();
            inner.spares.clear();
            inner.noop_bufs.clear();
            inner.hca.take()
        });
        // Maybe the last reference: then the protection domain goes, which sleeps.
        drop(hca);
        self.kick_upper_again();
        if retry.is_none() {
            let seen = &self.ni.seen;
            seen.ended(self.nid(), self.active, !failed, cause, rejected);
            log::conn_over(self.nid(), cause, !failed);
        }
        self.peer.released(self, failed, retry, cause);
    }

    /// Drops the id if the connection was released before it was there: the peer lists a passive
    /// connection before the id is taken, so an operator can close it in between. The id and the
    /// connection hold each other, and nobody else would part them.
    pub(super) fn drop_late_id(&self) {
        // Either the release, which follows this state, finds the id, or this sees the state.
        if self.with(|inner| inner.fsm.state() == State::Dead) {
            let id = self.cm.lock().take();
            drop(id);
        }
    }

    /// Keeps the id until the peer has answered our DREQ, if it has to: the CM repeats it. Or until
    /// there is a route to tell the peer.
    fn wait_for_farewell(self: &Arc<Self>) -> bool {
        let asked = self.with(|inner| inner.asked);
        let no_route = asked && self.cm_id().is_some_and(|id| !id.has_route());
        let (unanswered, mute) = self.with(|inner| {
            if no_route {
                let _ = inner.farewell.no_route();
            }
            (inner.farewell.unanswered(), inner.farewell.is_mute())
        });
        // Listed before it says that it waits, so that a shutdown misses it in no case.
        if !unanswered || !self.peer.peers.parting.add(self, mute) {
            return false;
        }
        let waits = self.with(|inner| {
            let waits = inner.farewell.released();
            if waits {
                inner.released = Instant::now();
                // Under the lock: whoever ends the waiting cancels it.
                self.rearm_timer(if mute { MUTE_MS } else { FAREWELL_MS });
            }
            waits
        });
        if !waits {
            self.peer.peers.parting.remove(self);
        }
        waits
    }

    /// Frees an id that has waited for the peer's answer.
    fn leave(self: &Arc<Self>) {
        self.cancel_timer();
        // It may have been the one that tries again when there is memory.
        self.with(|inner| self.kick_upper(inner));
        let id = self.cm.lock().take();
        drop(id);
        self.peer.peers.parting.remove(self);
    }

    /// The id, while there is one.
    fn cm_id(&self) -> Option<Arc<CmId<Self>>> {
        self.cm.lock().clone()
    }
}

impl Leaving for Conn {
    fn is_mute(&self) -> bool {
        self.with(|inner| inner.farewell.is_mute())
    }

    fn look_for_route(self: &Arc<Self>) {
        let Some(id) = self.cm_id() else { return };
        if !id.has_route() {
            let leaves = self.with(|inner| {
                let leaves = inner.farewell.no_route();
                if inner.farewell.waits() {
                    self.rearm_timer(MUTE_MS);
                }
                leaves
            });
            if leaves {
                self.leave();
            }
            return;
        }
        let (mute, failed) = self.with(|inner| {
            let mute = inner.farewell.waits() && inner.farewell.is_mute();
            if mute && !inner.attempt_failed {
                inner.farewell.said();
                inner.released = Instant::now();
                self.rearm_timer(FAREWELL_MS);
            }
            (mute, inner.attempt_failed)
        });
        if mute && failed {
            // Freeing the id tells the peer.
            drop(id);
            self.end_farewell();
        } else if mute {
            let _ = id.disconnect();
        }
    }

    fn end_farewell(self: &Arc<Self>) {
        if self.with(|inner| inner.farewell.over()) {
            self.leave();
        }
    }
}

impl super::conn::Inner {
    /// Whether a NOOP is due though it carries nothing: the connection was idle for long, or a peer
    /// that owes an answer has been silent.
    fn wants_probe(&self, keepalive: Option<u32>) -> bool {
        let sent = self.last_send.elapsed().as_millis();
        let heard = self.last_recv.elapsed().as_millis();
        let probe = i64::from(PROBE_MS);
        (self.watched && sent >= probe && heard >= probe)
            || keepalive.is_some_and(|s| sent >= i64::from(s).saturating_mul(1000))
    }

    /// Milliseconds that the id waits for the peer's answer yet; `None` if it does not wait.
    fn farewell_left(&self) -> Option<u32> {
        let waited = u32::try_from(self.released.elapsed().as_millis()).unwrap_or(u32::MAX);
        self.farewell
            .waits()
            .then(|| FAREWELL_MS.saturating_sub(waited))
    }

    /// Milliseconds until a silent peer would have to be probed.
    fn probe_in(&self) -> u32 {
        let sent = self.last_send.elapsed().as_millis();
        let heard = self.last_recv.elapsed().as_millis();
        let left = i64::from(PROBE_MS).saturating_sub(sent.min(heard));
        u32::try_from(left)
            .unwrap_or(0)
            .clamp(LOOK_MIN_MS, PROBE_MS)
    }

    /// The cause of the first transmit found that is older than `limit` milliseconds.
    fn overdue(&self, limit: i64) -> Option<Cause> {
        self.cells
            .iter()
            .zip(self.txs.iter())
            .find_map(|(cell, tx)| {
                let waits = !matches!(cell.tx.place(), Place::Free | Place::Done);
                let age = tx.as_ref()?.since.elapsed().as_millis();
                (waits && age > limit).then(|| cell.tx.timeout_cause())
            })
    }
}
