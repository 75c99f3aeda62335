// SPDX-License-Identifier: GPL-2.0

//! Set-up of a connection: the CM id, the queue pair with its receives, the handshake message, and the notification of
//! the peer object.
//!
//! Context: the workers, one at a time; may sleep. The connection lock is taken briefly, to read the requested
//! parameters and to store the created objects.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    buf_pool::BufPool,
    qp_handle::QpHandle,
    rx::Rx,
    rx_queue::Fifo,
    tx_payload::{
        new_slots,
        GROW_BY, //
    },
    Conn,
    Inner, //
};
use crate::{
    lnd::{
        hca::INLINE_UNKNOWN,
        log,
        timestamp::Timestamp, //
    },
    lnet::params,
    policy::{
        addr_hash,
        connect_queue::UNANSWERED_MS,
        queue_sizes, //
    },
    proto::{
        cause::Cause,
        conn_state::{
            Actions,
            ConnEvent,
            State, //
        },
        constants::{
            QueueDepth,
            CONN_MSG_LEN,
            MSG_SIZE_WIRE, //
        },
        reject::Refused,
        tx_table::NOOP_SLOTS,
        wire::{
            encode,
            finalize_hdr,
            BodyOut,
            ConnParams, //
        }, //
    },
    rdma::{
        atomic::Relaxed,
        buf::BufAllocator,
        cm::{
            CmId,
            ConnParam,
            Reachability, //
        },
        cm_event::Addr,
        cm_path::Path,
        qp::{
            Qp,
            QpConfig, //
        }, //
    }, //
};

/// RNR NAK timer for the peer, 5.12 ms (InfiniBand table 45): a safety net, because credits promise a posted buffer.
/// Not less, because of the NOOPs of ko2iblnd at depth 1 when a softirq is held up (Documentation/flow-control.md).
const MIN_RNR_TIMER: u8 = 18;

/// Time that a software provider waits for an acknowledgement, 1.07 s instead of the CM's 0.54 s. A busy host delays
/// the provider for long, and its retransmissions make the host busier.
const SOFTWARE_ACK_TIMEOUT: u8 = 18;

/// Failed step of a set-up, as the words after `cannot`, and its error.
struct SetupError(&'static str, Error);

/// The step that fails if the device has no room for another queue pair.
const MAKE_QP: &str = "make the queue pair or its completion queue";

impl From<Error> for SetupError {
    fn from(e: Error) -> Self {
        Self("set up the connection", e)
    }
}

/// Allocates this number of receive buffers, and posts them.
fn fill(
    link: &mut QpHandle<Conn>,
    buffers: usize,
    supply: &mut BufAllocator,
) -> Result<(), SetupError> {
    for _ in 0..buffers {
        let rx = supply.make().and_then(|buf| Rx::new(buf, GFP_KERNEL));
        let rx = rx.map_err(|e| SetupError("make the receive buffers", e))?;
        link.push_recv(rx).map_err(|_| EIO)?;
    }
    link.post_recvs().map_err(|_| EIO)?;
    Ok(())
}

impl Conn {
    /// Begins the accept of a valid request, which came with this id, from a queue pair with that number. The worker
    /// accepts. Process context, in the handler of the listener.
    pub(crate) fn requested(self: &Arc<Self>, id: Arc<CmId<Self>>, qpn: u32) {
        self.with(|inner| {
            inner.peer_qpn = qpn;
            inner.id = Some(id);
        });
        self.event(ConnEvent::Requested);
        // The peer lists a passive connection before the id is stored, so an administrator can close it in between. The
        // id and the connection hold each other, and no other code would break the cycle. Either the release, which
        // follows this state, finds the id, or this code sees the state.
        if self.with(|inner| inner.state.state() == State::Dead) {
            self.free_id();
        }
    }

    /// Creates the id and resolves the address (active side); or resolves the address again.
    pub(super) fn resolve(self: &Arc<Self>) {
        let ms = self.with(|inner| inner.state.resolve_ms());
        let dst = Addr::v4(self.nid().addr(), self.ni.service);
        let asked = match self.id() {
            Some(id) => {
                self.end_turn();
                id.resolve_addr(None, &dst, ms)
            }
            None => self.resolve_first(&dst, ms),
        };
        if let Err(e) = asked {
            log::cannot(self.nid(), "resolve the address", e);
            self.end(Cause::of_resolving(e.to_errno()));
        }
    }

    fn resolve_first(self: &Arc<Self>, dst: &Addr, ms: u32) -> Result {
        self.begin_step();
        let (me, peer) = (self.ni.nid.addr(), self.nid().addr());
        let id = CmId::create(self.ni.net.as_rdma(), self.clone())?;
        let id = Arc::new(id, GFP_KERNEL)?;
        self.with(|inner| inner.id = Some(id.clone()));
        if params::use_privileged_port() {
            let src = Addr::v4(me, addr_hash::source_port(peer, self.index()));
            id.resolve_addr_privileged(&src, dst, ms, !self.over_tcp)
        } else {
            // The CM selects a port.
            id.resolve_addr(Some(&Addr::v4(me, 0)), dst, ms)
        }
    }

    /// Begins a step of an attempt, with the time limit of each step. Called by a worker: no later step has run, in
    /// particular not the release, which ends the timer.
    fn begin_step(self: &Arc<Self>) {
        let ms = self.ni.connect_timeout_ms();
        self.with(|inner| inner.begin_step(ms));
        self.rearm_timer(ms.min(UNANSWERED_MS));
    }

    /// Creates the queue pair and posts the receives, then connects or accepts.
    pub(super) fn set_up(self: &Arc<Self>) {
        // The time for the address and the route does not count.
        self.begin_step();
        let Some(id) = self.id() else {
            return self.end(Cause::NoResources);
        };
        // The connection began at the moment when all others got the notice.
        if self.ni.ends_all() {
            return self.end(self.ni.way(|way| way.why()));
        }
        let made = self.make_link(&id).and_then(|depth| {
            let hca = self.hca()?;
            let _ = id.set_min_rnr_timer(MIN_RNR_TIMER);
            if hca.device.is_software() {
                let _ = id.set_ack_timeout(SOFTWARE_ACK_TIMEOUT);
            }
            if let (true, Some(mtu)) = (self.active, self.ni.path_mtu) {
                // iWARP has no path record to change; a device that does not answer does not connect either.
                let _ = id.set_path_mtu(mtu);
            }
            let mut msg = [0; CONN_MSG_LEN];
            self.handshake_message(depth, &mut msg)?;
            let param = ConnParam {
                private_data: &msg,
                retry_count: self.made_with.retry_count,
                rnr_retry_count: self.made_with.rnr_retry_count,
                min_rnr_timer: MIN_RNR_TIMER,
            };
            let is_too_large = |path| hca.port_mtu().is_some_and(|port| path > port);
            if !self.active && id.lock().path().mtu.is_some_and(is_too_large) {
                // Only the active side chooses the path MTU: this side sends a request instead, because the peer's port
                // accepts a path MTU below its own.
                self.end(Cause::PathMtu);
                return Ok(());
            }
            match self.reachability(id.reachability()) {
                Reachability::Reachable => {}
                // A peer that has just sent a request can be answered; but soft-RoCE fails for good if it sends without
                // a route.
                Reachability::NoRoute
                    if !self.active && !self.ni.is_unsettled() && !hca.device.is_software() => {}
                Reachability::NoRoute | Reachability::NoAddress => return Err(ENETUNREACH.into()),
            }
            // The attempt may have ended meanwhile: the steps above take long.
            let goes_on = self.with(|inner| {
                inner.asked = inner.state.is_attempt();
                inner.asked
            });
            if !goes_on {
                return Ok(());
            }
            if self.active {
                return Ok(id.connect(&param)?);
            }
            id.accept(&param).map_err(|e| {
                // The CM rejects by itself, except if the device is being removed: then the peer has no answer.
                self.with(|inner| inner.owes_reject = true);
                e.into()
            })
        });
        if let Err(SetupError(step, e)) = made {
            // iWARP returns TCP's errors at once; other transports deliver an event.
            if e == ECONNREFUSED {
                log::rejected(self.nid(), &Refused::NoListener);
                return self.end(Cause::NoListener);
            }
            if [ENETUNREACH, EHOSTUNREACH, ETIMEDOUT].contains(&e) {
                let moves = self.ni.is_unsettled() || self.is_elsewhere();
                return self.end(if moves {
                    Cause::Moved
                } else {
                    Cause::Unreachable
                });
            }
            match self.hca() {
                Ok(hca) if step == MAKE_QP && [ENOMEM, EOVERFLOW].contains(&e) => {
                    log::no_queue_pair(self.nid(), e, hca.attrs.max_qp);
                }
                _ => log::cannot(self.nid(), step, e),
            }
            self.end(Cause::NoResources);
        }
    }

    /// Writes the CONNREQ or CONNACK.
    fn handshake_message(&self, depth: QueueDepth, out: &mut [u8]) -> Result {
        let (env, frags) = self.with(|inner| (inner.envelope(), inner.known.frags));
        let params = ConnParams {
            queue_depth: depth.wire(),
            max_frags: frags.wire(),
            max_msg_size: MSG_SIZE_WIRE,
        };
        let body = if self.active {
            BodyOut::ConnReq(params)
        } else {
            BodyOut::ConnAck(params)
        };
        let nob = encode(out, &env, &body).map_err(|_| EPROTO)?;
        finalize_hdr(out, nob, 0, self.ni.cksum()).map_err(|_| EPROTO)
    }

    /// Creates the queue pair, with the requested depth or a smaller one that the device has room for, and posts the
    /// receives. Returns its depth.
    // Separate function, with `Qp::create`, so that no stack frame has more than 1 KiB
    // (tests-vm/test_driver_objdump.py).
    #[inline(never)]
    fn make_link(self: &Arc<Self>, id: &CmId<Self>) -> Result<QueueDepth, SetupError> {
        let hca = self.hca()?;
        let mut depth = hca.deepest(self.with(|inner| inner.known.depth));
        let inline_found = hca.inline.load(Relaxed);
        let known_inline = u16::try_from(inline_found & !INLINE_UNKNOWN).unwrap_or(0);
        let mut inline = known_inline;
        let (parts, sq_depth, max_sge) = loop {
            let max_sge = hca.gather(self.ni.wrq_sge);
            let sq_depth =
                queue_sizes::send_queue(depth, hca.device.wrs_per_reg(), hca.attrs.max_qp_wr);
            let config = QpConfig {
                sq_depth,
                rq_depth: depth.rx_buffers(),
                max_send_sge: max_sge,
                max_inline: inline,
                nr_mrs: queue_sizes::memory_regions(depth, self.ni.lnet.lnet_credits()),
                mr_pages: u16::try_from(hca.mr_pages).map_err(Error::from)?,
            };
            let on = (&hca.pd, &hca.shares.regions);
            let made = Qp::create(id, on, self.cpu.number(), &config, self.clone());
            let (smaller, next) = (
                queue_sizes::smaller_inline(inline),
                queue_sizes::shallower(depth),
            );
            match (made, smaller, next) {
                (Ok(parts), ..) => break (parts, sq_depth, max_sge),
                (Err(EINVAL), Some(smaller), _) => inline = smaller,
                (Err(ENOMEM | EINVAL), _, Some(next)) => (depth, inline) = (next, known_inline),
                (Err(e), ..) => return Err(SetupError(MAKE_QP, e)),
            }
        };
        // Not lower later: irdma also returns EINVAL if a command of the device has failed.
        if inline_found & INLINE_UNKNOWN != 0 {
            let _ = hca.inline.cmpxchg(inline_found, inline.into(), Relaxed);
        }
        let buffers = usize::from(depth.rx_buffers());
        let mut link = QpHandle::new(parts);
        let sq = sq_depth.saturating_sub(NOOP_SLOTS);
        let room = Fifo::with_capacity(buffers)?;
        let messages = usize::from(self.ni.lnet.lnet_credits().get());
        // No memory is allocated for these later.
        let requests = Fifo::with_capacity(buffers)?;
        let msgs = Fifo::with_capacity(messages)?;
        let all = BufPool::<Conn>::size(depth).saturating_add(buffers);
        let mut supply = BufAllocator::new(&hca.device, all);
        // Enough to send without memory. LNet sends no more messages at a time than it has credits for. An answer holds
        // its slot until its completion, and the peer has the credit for the next request before that.
        let answers = usize::from(depth.get()).saturating_mul(2);
        let mut places = new_slots(messages.saturating_add(answers).max(GROW_BY), GFP_KERNEL)?;
        let stock = BufPool::new(depth, &mut supply)
            .map_err(|e| SetupError("make the message buffers", e))?;
        self.with(|inner| {
            inner.rx_queue.open(room);
            inner.waiting_requests = requests;
            inner.waiting_msgs = msgs;
            inner.txs.grow(&mut places);
            inner.txs.open(sq);
            inner.buf_pool = stock;
            inner.max_sge = max_sge.into();
            inner.reg_and_send = link.qp().wrs_per_reg().saturating_add(1);
            inner.known.depth = depth;
        });
        let filled = fill(&mut link, buffers, &mut supply);
        // Some receives may be posted though not all are: then the connection ends like any other, and the drain does
        // not wait for a device that does not flush them.
        self.with(|inner| {
            inner.stats.who.set_qpn(link.qp().number());
            inner.link = Some(link);
        });
        filled?;
        Ok(depth)
    }

    /// Opens the connection to the peer's messages.
    pub(super) fn publish(self: &Arc<Self>) {
        let path = self.id().map_or(Path::UNKNOWN, |id| id.lock().path());
        let stamp = self.with(|inner| {
            inner.path = path;
            if inner.state.is_up() {
                self.schedule_check(inner, self.timer_ms());
            }
            inner.known.stamp
        });
        let stale = self.peer.established(self, stamp);
        self.compare_others(stamp, stale);
        let leaves = self.with(|inner| {
            inner.is_published = true;
            inner.state.add_steps(Actions::HAND_OVER);
            self.queue_upcall(inner, Timestamp::now());
            inner.finishing.is_some()
        });
        if leaves {
            self.set_usable(false);
        } else if self.ni.ends_all() {
            // The code that closed all other connections may have run before the peer listed this one.
            self.finish(self.ni.way(|way| way.why()));
        }
    }

    /// Closes the older of two connections to different incarnations of the peer, now that this one is established, to
    /// the incarnation `stamp`. Probes the other connections if the peer has requested this one, and closes an attempt
    /// of this node whose request is `stale`: the peer has connected meanwhile.
    fn compare_others(self: &Arc<Self>, stamp: u64, stale: bool) {
        // The walk begins with the connections that were listed last. The request of a passive connection came when the
        // connection was listed. So the incarnation of connections listed later is not older, even if this one waited
        // long for the first message of the peer.
        let mut is_later = !self.active;
        self.peer.for_each_conn(|other| {
            is_later &= !Arc::ptr_eq(other, self);
            let (old, new) = if is_later {
                (self, other)
            } else {
                (other, self)
            };
            let differs =
                |inner: &mut Inner| inner.state.is_up() && inner.identity.peer_stamp != stamp;
            // A third host that sends into a queue pair may have guessed its number, unless one side certainly has the
            // other's answer.
            let is_confirmed = || new.over_tcp || new.with(|inner| inner.connected);
            let is_over = || is_confirmed() || old.is_doubted.load(Relaxed);
            if self.with(|inner| inner.state.is_up()) && other.with(differs) && is_over() {
                old.end(Cause::PeerRestarted);
            } else if !self.active && !Arc::ptr_eq(other, self) {
                other.with(|inner| {
                    if other.active && stale && inner.state.is_attempt() {
                        other.step(inner, ConnEvent::Fail(Cause::Overtaken));
                    }
                });
                other.doubt(false);
            }
        });
    }

    /// Sends the messages that wait for a connection: over this one, unless it ends. Requests further connections that
    /// are due. After [`Conn::publish`], so that LNet has the peer's messages meanwhile. Calls LNet.
    pub(super) fn flush_pending(self: &Arc<Self>) {
        let stays = self.with(|inner| inner.state.is_up() && inner.finishing.is_none());
        self.peer.connect_missing();
        self.peer.serve_waiting(stays.then_some(self));
    }
}
