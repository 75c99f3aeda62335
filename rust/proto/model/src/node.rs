// SPDX-License-Identifier: GPL-2.0

//! A node with the driver on it: its peer and its connection objects ([`crate::conn`]), and what
//! `rust/lnd/{peer,listeners.rs,conn/workers.rs,ops.rs}` do with them.
//!
//! The state machines are the real ones; each function names the one of the driver that it stands
//! for. There is one peer, because there is one other node.

use std::collections::VecDeque;

use ro2iblnd_proto::{
    cause::Cause,
    conn_state::{
        Actions,
        ConnEvent, //
    },
    constants::{
        QueueDepth,
        MSG_SIZE_WIRE, //
    },
    handshake::{
        check_ni,
        check_peer,
        CmSource,
        ConnReq,
        NiView,
        PeerView, //
    },
    nid::Nid,
    policy::reconnect::ReconnectState as Policy,
    reject::{
        cm_reason,
        RejectCause,
        RetryWhy, //
    },
    wire::ConnParams, //
};

use crate::{
    between_nodes::{
        debug,
        Cm,
        CmEvent,
        CmState,
        World, //
    },
    conn::{
        finalize,
        Conn,
        Qp,
        STEPS, //
    },
    credit::Kind,
    messages::{
        other,
        Side, //
    },
    search::Fault, //
};

/// `lnd::peer::Peer`.
#[derive(Clone, Debug)]
pub struct Peer {
    policy: Policy,
    up: Vec<u8>,
    next: usize,
    pending: VecDeque<(u8, Kind)>,
    /// The delayed work is queued.
    pub retry_armed: bool,
}

/// A node.
#[derive(Clone, Debug)]
pub struct Node {
    /// Its number.
    pub side: Side,
    stamp: u64,
    depth: QueueDepth,
    /// `conns_per_peer`.
    pub conns_per_peer: u16,
    over_tcp: bool,
    /// It connects and sends nothing, as other drivers do.
    mute: bool,
    /// It is being shut down.
    pub stopping: bool,
    /// The entry for the other node.
    pub peer: Option<Peer>,
    /// The connection objects.
    pub conns: Vec<Conn>,
}

fn nid(side: Side) -> Nid {
    Nid::new(0, 0x0a00_0001 + side as u32)
}

impl Node {
    /// Creates a node that was just started.
    pub fn new(side: Side, depth: u16, conns_per_peer: u16, over_tcp: bool, mute: bool) -> Self {
        Self {
            side,
            stamp: 1 + side as u64 * 16,
            depth: QueueDepth::new(depth).expect("a depth"),
            conns_per_peer,
            over_tcp,
            mute,
            stopping: false,
            peer: None,
            conns: Vec::new(),
        }
    }

    /// Restarts the node, which loses all state.
    pub fn crash(&mut self) {
        self.stamp += 1;
        self.stopping = false;
        self.peer = None;
        self.conns.clear();
    }

    /// Models `Peers::get_or_add`.
    fn get_or_add(&mut self) -> &mut Peer {
        let mut policy = Policy::default();
        policy.known.depth = self.depth;
        self.peer.get_or_insert_with(|| Peer {
            policy,
            up: Vec::new(),
            next: 0,
            pending: VecDeque::new(),
            retry_armed: false,
        })
    }

    fn at(&self, hs: u8) -> Option<usize> {
        self.conns.iter().position(|c| c.hs == hs)
    }

    /// Models `lnd_send` (`ops.rs`) with `Peer::send` and `Peer::wait`.
    pub fn send(&mut self, tag: u8, kind: Kind, w: &mut World) -> Result<(), Fault> {
        if self.stopping {
            finalize(self.side, tag, w);
            return Ok(());
        }
        loop {
            let peer = self.get_or_add();
            // `PeerInner::pick`
            if !peer.pending.is_empty() || peer.up.is_empty() {
                break;
            }
            peer.next += 1;
            let hs = peer.up[peer.next % peer.up.len()];
            let c = self.at(hs).ok_or("a connection that is up is not there")?;
            if self.conns[c].send(tag, kind, &mut w.posted)? {
                return Ok(());
            }
            self.unpublish(hs);
        }
        let peer = self.get_or_add();
        peer.pending.push_back((tag, kind));
        let begins = peer.policy.may_start();
        if begins {
            peer.policy.begin(1);
        }
        let flusher = peer.up.first().copied();
        if begins {
            self.attempt(w);
        }
        match flusher {
            Some(hs) => self.flush(hs, w),
            None => Ok(()),
        }
    }

    /// Models `Peer::attempt`, with `Peer::add`.
    fn attempt(&mut self, w: &mut World) {
        let Some(peer) = &self.peer else {
            return;
        };
        if self.stopping {
            return self.attempt_over(true, None, w);
        }
        w.handshakes += 1;
        let mut conn = Conn::new(
            self.side,
            w.handshakes,
            true,
            self.over_tcp,
            peer.policy.known,
        );
        conn.step(ConnEvent::Start);
        self.conns.push(conn);
    }

    /// Models `Peer::flush`.
    fn flush(&mut self, hs: u8, w: &mut World) -> Result<(), Fault> {
        let c = self
            .at(hs)
            .ok_or("flush of a connection that is not there")?;
        while let Some((tag, kind)) = self.peer.as_mut().and_then(|p| p.pending.pop_front()) {
            if !self.conns[c].send(tag, kind, &mut w.posted)? {
                self.unpublish(hs);
                if let Some(peer) = &mut self.peer {
                    peer.pending.push_front((tag, kind));
                }
                return self.serve_waiting(w);
            }
        }
        Ok(())
    }

    /// Models `Peer::serve_waiting`.
    fn serve_waiting(&mut self, w: &mut World) -> Result<(), Fault> {
        let Some(peer) = self.peer.as_mut().filter(|p| !p.pending.is_empty()) else {
            return Ok(());
        };
        if let Some(hs) = peer.up.first().copied() {
            return self.flush(hs, w);
        }
        if peer.policy.may_start() {
            peer.policy.begin(1);
            self.attempt(w);
        }
        Ok(())
    }

    fn unpublish(&mut self, hs: u8) {
        if let Some(peer) = &mut self.peer {
            peer.up.retain(|c| *c != hs);
        }
    }

    /// Models `WorkItem<RETRY>` of the peer.
    pub fn retry(&mut self, w: &mut World) -> Result<(), Fault> {
        let per_peer = self.conns_per_peer;
        let Some(peer) = &mut self.peer else {
            return Ok(());
        };
        peer.retry_armed = false;
        let waiting = !peer.pending.is_empty();
        let attempts = peer.policy.due_attempts(waiting, per_peer);
        match attempts {
            0 => peer.policy.cancel_retry(),
            _ => peer.policy.begin(attempts),
        }
        for _ in 0..attempts {
            self.attempt(w);
        }
        if attempts == 0 {
            self.forget_if_idle(w);
        }
        Ok(())
    }

    /// Models `Peer::forget`.
    fn forget_if_idle(&mut self, w: &mut World) {
        let Some(peer) = &mut self.peer else {
            return;
        };
        let listed = self.conns.iter().any(|c| !c.released);
        if !peer.policy.idle() || listed {
            return;
        }
        let pending = std::mem::take(&mut peer.pending);
        self.peer = None;
        for (tag, _) in pending {
            finalize(self.side, tag, w);
        }
    }

    /// Models `shutdown` (`ops.rs`) with `Peer::close`.
    pub fn shutdown(&mut self, w: &mut World) -> Result<(), Fault> {
        self.stopping = true;
        let Some(peer) = &mut self.peer else {
            return Ok(());
        };
        for (tag, _) in std::mem::take(&mut peer.pending) {
            finalize(self.side, tag, w);
        }
        self.close_conns(Cause::Shutdown);
        if let Some(peer) = &mut self.peer {
            if std::mem::take(&mut peer.retry_armed) {
                peer.policy.cancel_retry();
            }
        }
        self.forget_if_idle(w);
        Ok(())
    }

    /// Models `Peer::finish_conns`.
    pub fn close_conns(&mut self, cause: Cause) {
        for conn in self.conns.iter_mut().filter(|c| !c.released) {
            conn.step(ConnEvent::Fail(cause));
        }
    }

    /// Models `Iface::connect_request` with `validate` and `admit`.
    pub fn requested(&mut self, hs: u8, req: &ConnReq, w: &mut World) -> Result<(), Fault> {
        let back = &mut w.cm[other(self.side)];
        if self.stopping {
            // No listener.
            back.push_back((hs, Cm::Rej(cm_reason::INVALID_SERVICE_ID, [0; 24])));
            return Ok(());
        }
        let view = NiView {
            nid: nid(self.side),
            stamp: self.stamp,
            peer_credits: self.depth,
            active: true,
        };
        let from = CmSource {
            addr: Some(req.src.addr()),
            port: 1000,
            gid: None,
        };
        let known = match check_ni(req, Some(&view), true, &from) {
            Ok(known) => known,
            Err(refusal) => {
                let bytes = refusal.reject(Some(&view)).encode();
                back.push_back((hs, Cm::Rej(cm_reason::CONSUMER_DEFINED, bytes)));
                return Ok(());
            }
        };
        let conns = self.conns.iter().filter(|c| !c.released).count() as u16;
        let peer = self.get_or_add();
        let seen = PeerView {
            stamp: (peer.policy.known.stamp != 0).then_some(peer.policy.known.stamp),
            connecting_ms: peer.policy.connecting().then_some(0),
            races: peer.policy.races,
            conns,
            max_conns: 256,
        };
        let refusal = match check_peer(req, &seen) {
            Ok(_) => {
                peer.policy.accepting();
                let mut conn = Conn::new(self.side, hs, false, self.over_tcp, known);
                conn.step(ConnEvent::Requested);
                self.conns.push(conn);
                return Ok(());
            }
            Err(refusal) => {
                if refusal == RejectCause::Race {
                    peer.policy.race_counted();
                }
                self.forget_if_unused(w);
                refusal
            }
        };
        let bytes = refusal.reject(Some(&view)).encode();
        w.cm[other(self.side)].push_back((hs, Cm::Rej(cm_reason::CONSUMER_DEFINED, bytes)));
        Ok(())
    }

    /// Models `Peer::forget_if_unused`.
    fn forget_if_unused(&mut self, w: &mut World) {
        if self.peer.as_ref().is_some_and(|p| p.pending.is_empty()) {
            self.forget_if_idle(w);
        }
    }

    /// Models one round of `Conn::work`, in the worker that runs or is queued.
    pub fn control(&mut self, c: usize, w: &mut World) -> Result<(), Fault> {
        let conn = &mut self.conns[c];
        let Some(worker) = conn.worker() else {
            return Ok(());
        };
        let steps = conn.fsm.take_steps(worker);
        conn.running = (steps != Actions::NONE).then_some(worker);
        for step in STEPS.into_iter().filter(|step| steps.has(*step)) {
            self.worker_step(c, step, w)?;
        }
        Ok(())
    }

    fn worker_step(&mut self, c: usize, step: Actions, w: &mut World) -> Result<(), Fault> {
        let (side, stamp) = (self.side, self.stamp);
        let conn = &mut self.conns[c];
        let hs = conn.hs;
        match step {
            // `Conn::resolve`
            Actions::RESOLVE => conn.cm_events.push_back(CmEvent::AddrResolved),
            // `Conn::set_up`
            Actions::SET_UP => {
                conn.data.posted = conn.known.depth.rx_buffers();
                let msg = if conn.active {
                    conn.qp = Qp::Ready;
                    conn.cm = CmState::ReqSent;
                    Cm::Req(ConnReq {
                        src: nid(side),
                        src_stamp: stamp,
                        dst: nid(other(side)),
                        dst_stamp: conn.known.stamp,
                        params: ConnParams {
                            queue_depth: conn.known.depth.wire(),
                            max_frags: conn.known.frags.wire(),
                            max_msg_size: MSG_SIZE_WIRE,
                        },
                    })
                } else {
                    conn.qp = Qp::Live;
                    conn.cm = CmState::RepSent;
                    Cm::Rep(stamp)
                };
                w.cm[other(side)].push_back((hs, msg));
            }
            // `STEPS` of `conn/workers.rs`
            Actions::SPEAK if self.mute => {}
            Actions::SPEAK => return conn.pump_probe(true, &mut w.posted),
            // `Conn::publish`
            Actions::ESTABLISH => return self.publish(c, w),
            Actions::CLOSE => self.close(c, w),
            _ => return self.release(c, w),
        }
        Ok(())
    }

    /// Models `Peer::established`.
    fn publish(&mut self, c: usize, w: &mut World) -> Result<(), Fault> {
        let (hs, active, known) = (self.conns[c].hs, self.conns[c].active, self.conns[c].known);
        let per_peer = self.conns_per_peer;
        let Some(peer) = &mut self.peer else {
            return Err("a connection outlives its peer".into());
        };
        peer.policy.established(active, known.stamp);
        // `Peer::connect_missing`
        peer.retry_armed |= !self.stopping && peer.policy.more(per_peer, 0).is_some();
        peer.up.push(hs);
        for conn in &mut self.conns {
            // `Conn::is_stale`
            if conn.hs != hs && conn.is_up() && conn.peer_stamp != known.stamp {
                conn.step(ConnEvent::Fail(Cause::PeerRestarted));
            }
        }
        self.flush(hs, w)
    }

    /// Models `Conn::close`.
    fn close(&mut self, c: usize, w: &mut World) {
        let hs = self.conns[c].hs;
        self.unpublish(hs);
        let conn = &mut self.conns[c];
        if conn.cm == CmState::Up {
            conn.cm = CmState::Over;
            w.cm[other(self.side)].push_back((hs, Cm::Dreq));
        }
        conn.early.clear();
        conn.step(ConnEvent::DrainStarted);
        if conn.qp == Qp::None {
            conn.step(ConnEvent::Drained);
        } else {
            conn.qp = Qp::Failed;
            conn.draining = true;
        }
    }

    /// Models `Conn::release`, then `Peer::released`.
    fn release(&mut self, c: usize, w: &mut World) -> Result<(), Fault> {
        let conn = &mut self.conns[c];
        if !conn.data.sq.is_empty() || conn.data.posted > 0 || conn.draining {
            return Err("released while the device still has work".into());
        }
        conn.qp = Qp::None;
        conn.armed.clear();
        // Destroying the id; or `Conn::reject`.
        let unanswered = !conn.active && conn.cm == CmState::None;
        if unanswered || matches!(conn.cm, CmState::ReqSent | CmState::RepSent) {
            w.cm[other(self.side)].push_back((conn.hs, Cm::Rej(4, [0; 24])));
        }
        conn.cm = CmState::Over;
        conn.cm_events.clear();
        conn.data.keys_dead();
        conn.queue_upcall();
        conn.released = true;
        let (hs, active, failed) = (conn.hs, conn.active, conn.establishments == 0);
        let retry = conn.retry.take();
        self.unpublish(hs);
        let Some(peer) = &mut self.peer else {
            return Err("a connection outlives its peer".into());
        };
        if failed {
            self.attempt_over(active, retry, w);
            return Ok(());
        }
        peer.policy.closed(false);
        self.serve_waiting(w)?;
        self.forget_if_idle(w);
        Ok(())
    }

    /// Models `Peer::attempt_over`.
    fn attempt_over(&mut self, active: bool, retry: Option<RetryWhy>, w: &mut World) {
        let per_peer = self.conns_per_peer;
        let Some(peer) = &mut self.peer else {
            return;
        };
        let waiting = !peer.pending.is_empty();
        if active {
            peer.policy.closing();
        }
        if peer.policy.failed(active, retry, waiting, 0).is_some() {
            peer.retry_armed = true;
            return;
        }
        peer.retry_armed |= !self.stopping && peer.policy.more(per_peer, 0).is_some();
        self.forget_if_idle(w);
    }

    /// Runs the LNet half of a connection once.
    pub fn upper(&mut self, c: usize, want: bool, w: &mut World) -> Result<(), Fault> {
        let side = self.side;
        let conn = &mut self.conns[c];
        conn.upper(want, side, w)?;
        conn.kicked = conn.has_work();
        Ok(())
    }

    /// Frees objects that nothing refers to any more.
    pub fn free_objects(&mut self) -> Result<(), Fault> {
        for conn in &mut self.conns {
            if let Some(fault) = conn.fault.take() {
                return Err(fault);
            }
            if conn.released && !conn.has_work() && conn.data.in_use() > 0 {
                return Err(format!(
                    "transmits are lost with their connection: {conn:?}"
                ));
            }
        }
        self.conns.retain(|c| !c.released || c.has_work());
        Ok(())
    }

    /// Appends the state, without the connections.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend([self.stamp as u8, u8::from(self.stopping)]);
        if let Some(peer) = &self.peer {
            debug(&peer.policy, out);
            for hs in &peer.up {
                out.push(self.at(*hs).map_or(0xff, |c| c as u8));
            }
            let n = peer.up.len().max(1);
            out.extend([(peer.next % n) as u8, u8::from(peer.retry_armed)]);
            for (tag, kind) in &peer.pending {
                out.extend([*tag, *kind as u8]);
            }
        }
        out.extend([b'.', self.conns.len() as u8]);
    }
}
