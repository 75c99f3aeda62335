// SPDX-License-Identifier: GPL-2.0

//! A node with the driver on it: its peer, the connection objects, and what `rust/lnd/` does with them.
//!
//! The state machines are the real ones. Around them each function does what the driver function named in its
//! documentation does, in the same order and without more thought; what differs is that a peer has one node at
//! the other end, and that nothing is allocated.

use crate::credit::Kind;
use crate::life::debug;
use crate::life::Cm;
use crate::life::CmEvent;
use crate::life::CmState;
use crate::life::World;
use crate::ours::Ours;
use crate::ours::Transfer;
use crate::ours::Work;
use crate::search::Fault;
use crate::wire::other;
use crate::wire::Body;
use crate::wire::Msg;
use crate::wire::Names;
use crate::wire::Side;
use ro2iblnd_proto::cause::Cause;
use ro2iblnd_proto::cm_msg::check_ni;
use ro2iblnd_proto::cm_msg::check_peer;
use ro2iblnd_proto::cm_msg::cm_reason;
use ro2iblnd_proto::cm_msg::react_to_reject;
use ro2iblnd_proto::cm_msg::Ask;
use ro2iblnd_proto::cm_msg::CmSource;
use ro2iblnd_proto::cm_msg::ConnReq;
use ro2iblnd_proto::cm_msg::NiView;
use ro2iblnd_proto::cm_msg::PeerVerdict;
use ro2iblnd_proto::cm_msg::PeerView;
use ro2iblnd_proto::cm_msg::Policy as Demands;
use ro2iblnd_proto::cm_msg::Reaction;
use ro2iblnd_proto::conn::Actions;
use ro2iblnd_proto::conn::Conn as Fsm;
use ro2iblnd_proto::conn::Event;
use ro2iblnd_proto::conn::State as Phase;
use ro2iblnd_proto::credits::Credits;
use ro2iblnd_proto::credits::Repost;
use ro2iblnd_proto::nid::Nid;
use ro2iblnd_proto::params::high_water;
use ro2iblnd_proto::params::MaxFrags;
use ro2iblnd_proto::params::QueueDepth;
use ro2iblnd_proto::params::MSG_SIZE_WIRE;
use ro2iblnd_proto::peer::After;
use ro2iblnd_proto::peer::Known;
use ro2iblnd_proto::peer::Peer as Policy;
use ro2iblnd_proto::tx::Op;
use ro2iblnd_proto::tx::Place;
use ro2iblnd_proto::wire::ConnParams;
use ro2iblnd_proto::wire::Order;
use std::collections::VecDeque;

/// What the control worker does, in this order.
const TODO: [Actions; 6] = [
    Actions::RESOLVE,
    Actions::SET_UP,
    Actions::NOTIFY_CM,
    Actions::ESTABLISH,
    Actions::CLOSE,
    Actions::RELEASE,
];

/// Transmits per connection; more than a search ever needs.
const CELLS: usize = 10;
/// Slots of the send queue.
const SLOTS: u16 = 8;

/// The queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Qp {
    /// There is none.
    None,
    /// Receives are posted, the other end is not known yet.
    Ready,
    /// It sends and receives.
    Live,
    /// In error: everything is flushed.
    Failed,
}

/// `lnd::conn::Conn`.
#[derive(Clone, Debug)]
pub struct Conn {
    /// The handshake it came from.
    pub hs: u8,
    active: bool,
    /// The real state machine.
    pub fsm: Fsm,
    todo: [bool; 6],
    retry: Option<Known>,
    attempt_failed: bool,
    known: Known,
    peer_stamp: u64,
    /// Credits, queues and transmits, the real ones.
    pub data: Ours,
    early: VecDeque<Msg>,
    /// Messages in its receive buffers whose completions have not been handled.
    pub inbox: VecDeque<Msg>,
    /// The queue pair.
    pub qp: Qp,
    /// The CM's state.
    pub cm: CmState,
    /// CM events not yet handled.
    pub cm_events: VecDeque<CmEvent>,
    /// The drain markers are posted.
    pub draining: bool,
    /// Keys that the device honours.
    pub armed: Vec<u64>,
    /// How often it was established.
    pub establishments: u8,
    /// The control worker has freed everything.
    pub released: bool,
    /// The worker that calls LNet is queued.
    kicked: bool,
    /// Of RDMA requests and of small messages.
    last_tag: [u8; 2],
    /// The device will refuse the next batch from this work request on.
    pub refuse_at: Option<u8>,
    fault: Option<Fault>,
}

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

impl Conn {
    fn new(side: Side, hs: u8, active: bool, known: Known) -> Self {
        let mut data = Ours::new(side, known.depth, 1, SLOTS, CELLS);
        data.posted = 0;
        Self {
            hs,
            active,
            fsm: Fsm::new(),
            todo: [false; 6],
            retry: None,
            attempt_failed: false,
            known,
            peer_stamp: known.stamp,
            data,
            early: VecDeque::new(),
            inbox: VecDeque::new(),
            qp: Qp::None,
            cm: CmState::None,
            cm_events: VecDeque::new(),
            draining: false,
            armed: Vec::new(),
            establishments: 0,
            released: false,
            kicked: false,
            last_tag: [0; 2],
            refuse_at: None,
            fault: None,
        }
    }

    fn is_up(&self) -> bool {
        self.fsm.state() == Phase::Established
    }

    /// Whether a worker or a CM event waits for it.
    pub fn is_busy(&self) -> bool {
        self.has_todo() || !self.cm_events.is_empty()
    }

    /// Whether the control worker is queued.
    pub fn has_todo(&self) -> bool {
        self.todo.contains(&true)
    }

    /// Whether the LNet half is queued and finds something.
    pub fn has_job(&self) -> bool {
        self.kicked && self.has_work()
    }

    fn has_work(&self) -> bool {
        self.data.queues.has_done() || !self.data.held.is_empty()
    }

    /// Whether the next thing for LNet is a PUT.
    pub fn next_is_put(&self) -> bool {
        let first = self.data.held.first().map(|h| h.body);
        !self.data.queues.has_done() && matches!(first, Some(Body::PutReq(_)))
    }

    /// `Conn::step`.
    pub fn step(&mut self, event: Event) {
        let actions = self.fsm.on(event);
        if actions == Actions::NONE {
            return;
        }
        if actions.has(Actions::ESTABLISH) {
            self.established();
        }
        if actions.has(Actions::FAIL_ATTEMPT) {
            self.attempt_failed = true;
        }
        if actions.has(Actions::CLOSE) {
            // `Inner::cancel`
            let cause = self.fsm.cause().unwrap_or(Cause::Flushed);
            let by_place = matches!(
                cause,
                Cause::DeadlineQueued | Cause::DeadlineSending | Cause::DeadlineAnswer
            );
            self.data.cancel(cause, by_place);
            self.kick_upper();
        }
        for (todo, action) in self.todo.iter_mut().zip(TODO) {
            *todo |= actions.has(action);
        }
    }

    /// `Conn::established`.
    fn established(&mut self) {
        self.establishments += 1;
        let depth = self.known.depth;
        self.data.credits = Credits::new(depth, high_water(depth, 0, depth));
        self.peer_stamp = self.known.stamp;
        while let Some(msg) = self.early.pop_front() {
            // Its buffer is out of the receive queue already.
            self.data.posted += 1;
            self.received(msg);
        }
        self.kick_upper();
    }

    /// `Conn::kick_upper`.
    fn kick_upper(&mut self) {
        self.kicked |= self.has_work();
    }

    /// `wire::received`.
    fn received(&mut self, msg: Msg) {
        if !self.is_up() {
            return;
        }
        if let Err(fault) = self.data.received(msg) {
            self.fault = Some(fault);
        }
    }

    /// `pump::pump`.
    pub fn pump(&mut self, posted: &mut Vec<(Side, u8, Msg)>) -> Result<(), Fault> {
        if self.is_up() {
            let mut out = VecDeque::new();
            let before = self.data.sq.len();
            self.data.pump(false, &mut out)?;
            let refused = self.refuse_at.filter(|_| self.data.sq.len() > before);
            if let Some(taken) = refused {
                self.refuse_at = None;
                let sent = self.data.refuse(before, usize::from(taken))?;
                out.truncate(sent);
            }
            let (side, hs) = (self.data.side(), self.hs);
            posted.extend(out.into_iter().map(|msg| (side, hs, msg)));
            self.arm(before);
            if refused.is_some() {
                self.step(Event::Fail(Cause::LocalFault));
            }
        }
        self.kick_upper();
        Ok(())
    }

    /// The device executes the REG_MRs that were posted since the send queue had `before` entries.
    fn arm(&mut self, before: usize) {
        if self.qp != Qp::Live {
            return;
        }
        for work in self.data.sq.iter().skip(before) {
            if let Work::Quiet(index) = *work {
                if self.data.cells[usize::from(index)].tx.op().needs_key() {
                    self.armed.push(self.data.cookie(index));
                }
            }
        }
    }

    /// The CM has moved the queue pair to RTS.
    pub fn qp_lives(&mut self) {
        if self.qp == Qp::Ready {
            self.qp = Qp::Live;
        }
    }

    /// `QpHandler::recv_done`.
    pub fn recv_done(&mut self, posted: &mut Vec<(Side, u8, Msg)>) -> Result<(), Fault> {
        let Some(msg) = self.inbox.pop_front() else {
            return Ok(());
        };
        match self.fsm.state() {
            Phase::Init | Phase::Resolving | Phase::Connecting => {
                self.data.posted -= 1;
                self.early.push_back(msg);
                return Ok(());
            }
            Phase::Accepting => self.step(Event::EarlyTraffic),
            Phase::Established => {}
            Phase::Closing | Phase::Draining | Phase::Dead => {
                self.data.posted -= 1;
                return Ok(());
            }
        }
        self.received(msg);
        self.pump(posted)
    }

    /// `WorkItem<TIMER>`.
    pub fn timer(&mut self) {
        match self.fsm.state() {
            Phase::Init | Phase::Resolving | Phase::Connecting | Phase::Accepting => {
                self.step(Event::Fail(Cause::ConnectTimeout));
            }
            Phase::Established => {
                let waits = |p| !matches!(p, Place::Free | Place::Done);
                let late = self.data.cells.iter().find(|c| waits(c.tx.place()));
                if let Some(cause) = late.map(|c| c.tx.timeout_cause()) {
                    self.step(Event::Fail(cause));
                }
            }
            Phase::Closing | Phase::Draining | Phase::Dead => {}
        }
    }

    /// `CmHandler::cm_event`.
    pub fn cm_event(&mut self) {
        let asked = Ask {
            depth: self.known.depth,
            frags: self.known.frags,
            stamp: self.known.stamp,
        };
        match self.cm_events.pop_front() {
            // `Conn::addr_resolved`
            Some(CmEvent::AddrResolved) => {
                if self.fsm.on(Event::AddrResolved).has(Actions::RESOLVE_ROUTE) {
                    self.cm_events.push_back(CmEvent::RouteResolved);
                }
            }
            Some(CmEvent::RouteResolved) => self.step(Event::RouteResolved),
            // `Conn::cm_established`
            Some(CmEvent::Established(_)) if !self.active => self.step(Event::Established),
            Some(CmEvent::Established(stamp)) => {
                if self.fsm.state() == Phase::Connecting {
                    self.known.stamp = stamp;
                    self.step(Event::Established);
                }
            }
            // `Conn::rejected`
            Some(CmEvent::Rejected(..)) if !self.active => {
                self.step(Event::Fail(Cause::ConnectFailed));
            }
            Some(CmEvent::Rejected(reason, data)) => {
                if let Reaction::Retry(_, ask) = react_to_reject(reason, &data, &asked) {
                    self.retry = Some(Known {
                        stamp: ask.stamp,
                        depth: ask.depth,
                        frags: ask.frags,
                    });
                }
                self.step(Event::Fail(Cause::Refused));
            }
            Some(CmEvent::Unreachable) => self.step(Event::Unreachable),
            Some(CmEvent::Disconnected) => self.step(Event::Disconnected),
            None => {}
        }
    }

    /// `upper::send`. False: the connection is over.
    fn send(
        &mut self,
        tag: u8,
        kind: Kind,
        posted: &mut Vec<(Side, u8, Msg)>,
    ) -> Result<bool, Fault> {
        if !self.is_up() {
            return Ok(false);
        }
        let (op, slots) = match kind {
            Kind::Immediate => (Op::Immediate, 1),
            Kind::Put => (Op::PutReq, 1),
            Kind::Get => (Op::GetReq, 2),
        };
        self.submit(op, slots, Transfer { peer: 0, data: true, tag }, posted)
    }

    /// `Conn::submit`. False: the connection is over.
    fn submit(
        &mut self,
        op: Op,
        slots: u16,
        transfer: Transfer,
        posted: &mut Vec<(Side, u8, Msg)>,
    ) -> Result<bool, Fault> {
        if !self.is_up() {
            return Ok(false);
        }
        if !self.data.submit(op, slots, transfer)? {
            return Err("the model has too few cells".into());
        }
        self.pump(posted)?;
        Ok(true)
    }

    /// `Conn::give_back`.
    fn give_back(&mut self, how: Repost) -> Result<(), Fault> {
        // `Inner::may_receive`
        match self.fsm.state() <= Phase::Established {
            true => self.data.give_back(how),
            false => Ok(()),
        }
    }

    /// `WorkItem<UPPER>`, one round: `next_job`, then `Transfer::finish` or `parse` with `recv`.
    fn upper(&mut self, want: bool, at: Side, w: &mut World) -> Result<(), Fault> {
        if let Some((transfer, _, cookie)) = self.data.take_done()? {
            if self.armed.contains(&cookie) {
                return Err("a message is finalized while its key is armed".into());
            }
            finalize(at, transfer.tag, w);
            return Ok(());
        }
        if self.data.held.is_empty() {
            return Ok(());
        }
        let held = self.data.held.remove(0);
        // Beyond the first flight a request may wait for a reserved buffer while small messages pass it.
        let class = usize::from(held.body == Body::Immediate);
        let first_flight = w.fates.len() <= usize::from(self.known.depth.get());
        let before = match first_flight {
            true => self.last_tag.iter().copied().max().unwrap_or(0),
            false => self.last_tag[class],
        };
        if held.tag <= before {
            return Err("messages change their order".into());
        }
        self.last_tag[class] = held.tag;
        w.fates[usize::from(held.tag) - 1].got += 1;
        let answer = |peer, tag| Transfer { peer, data: true, tag };
        let (how, op, transfer) = match held.body {
            Body::PutReq(c) if want => {
                self.data.sinks += 1;
                (Repost::Plain, Op::PutAck, answer(c, held.tag))
            }
            Body::PutReq(c) => {
                finalize(at, held.tag, w);
                (Repost::ForPeer, Op::PutNak, answer(c, 0))
            }
            Body::GetReq(c) => (Repost::ForPeer, Op::GetDone, answer(c, held.tag)),
            _ => {
                finalize(at, held.tag, w);
                self.give_back(Repost::ForPeer)?;
                // `Conn::ring`
                return self.pump(&mut w.posted);
            }
        };
        self.give_back(how)?;
        let slots = if op == Op::PutNak { 1 } else { 2 };
        if !self.submit(op, slots, transfer, &mut w.posted)? {
            // `submit_or_fail`: nobody was told the key.
            self.step(Event::Fail(Cause::Flushed));
            finalize(at, transfer.tag, w);
        }
        Ok(())
    }

    /// Appends the state, but for the transmits.
    pub fn encode(&self, side: Side, names: &mut Names, out: &mut Vec<u8>) {
        debug(&self.fsm, out);
        let flags = self.todo.iter().fold(0, |f, t| f << 1 | u8::from(*t));
        out.extend([flags, self.qp as u8, self.cm as u8, self.last_tag[0], self.last_tag[1]]);
        for flag in [self.active, self.attempt_failed, self.draining, self.released, self.kicked] {
            out.push(u8::from(flag));
        }
        out.push(self.refuse_at.map_or(0, |n| n + 1));
        out.extend([self.retry.map_or(0, |k| k.stamp as u8 + 1), self.peer_stamp as u8]);
        out.push(self.known.stamp as u8);
        debug(&self.cm_events, out);
        for msg in self.inbox.iter().chain(&self.early) {
            names.msg(other(side), msg, out);
        }
        out.extend([self.inbox.len() as u8, self.early.len() as u8]);
        let mut armed: Vec<u8> = self.armed.iter().map(|k| names.of(side, *k)).collect();
        armed.sort_unstable();
        out.push(armed.len() as u8);
        out.extend(armed);
        self.data.encode(names, out);
    }
}

/// LNet gets a message back; 0 is nobody's.
fn finalize(at: Side, tag: u8, w: &mut World) {
    if let Some(fate) = usize::from(tag).checked_sub(1).and_then(|i| w.fates.get_mut(i)) {
        match fate.from == at {
            true => fate.ended += 1,
            false => fate.taken += 1,
        }
    }
}

impl Node {
    /// A node just started.
    pub fn new(side: Side, depth: u16, conns_per_peer: u16) -> Self {
        Self {
            side,
            stamp: 1 + side as u64 * 16,
            depth: QueueDepth::new(depth).expect("a depth"),
            conns_per_peer,
            stopping: false,
            peer: None,
            conns: Vec::new(),
        }
    }

    /// It loses everything and starts again.
    pub fn crash(&mut self) {
        self.stamp += 1;
        self.stopping = false;
        self.peer = None;
        self.conns.clear();
    }

    /// `PeerTable::get_or_add`.
    fn get_or_add(&mut self) -> &mut Peer {
        let known = Known { stamp: 0, depth: self.depth, frags: MaxFrags::MAX };
        self.peer.get_or_insert_with(|| Peer {
            policy: Policy::new(known),
            up: Vec::new(),
            next: 0,
            pending: VecDeque::new(),
            retry_armed: false,
        })
    }

    fn at(&self, hs: u8) -> Option<usize> {
        self.conns.iter().position(|c| c.hs == hs)
    }

    /// `Ni::send` with `Peer::send` and `Peer::wait`.
    pub fn send(&mut self, tag: u8, kind: Kind, w: &mut World) -> Result<(), Fault> {
        if self.stopping {
            finalize(self.side, tag, w);
            return Ok(());
        }
        let per_peer = self.conns_per_peer;
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
        let attempts = peer.policy.start(per_peer);
        let flusher = peer.up.first().copied();
        for _ in 0..attempts {
            self.attempt(w);
        }
        match flusher {
            Some(hs) => self.flush(hs, w),
            None => Ok(()),
        }
    }

    /// `Peer::attempt`, with `Peer::add`.
    fn attempt(&mut self, w: &mut World) {
        let Some(peer) = &self.peer else {
            return;
        };
        if self.stopping {
            return self.attempt_over(true, None, w);
        }
        w.handshakes += 1;
        let mut conn = Conn::new(self.side, w.handshakes, true, peer.policy.known);
        conn.step(Event::Start);
        self.conns.push(conn);
    }

    /// `Peer::flush`.
    fn flush(&mut self, hs: u8, w: &mut World) -> Result<(), Fault> {
        let c = self.at(hs).ok_or("flush of a connection that is not there")?;
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

    /// `Peer::serve_waiting`.
    fn serve_waiting(&mut self, w: &mut World) -> Result<(), Fault> {
        let per_peer = self.conns_per_peer;
        let Some(peer) = self.peer.as_mut().filter(|p| !p.pending.is_empty()) else {
            return Ok(());
        };
        if let Some(hs) = peer.up.first().copied() {
            return self.flush(hs, w);
        }
        for _ in 0..peer.policy.start(per_peer) {
            self.attempt(w);
        }
        Ok(())
    }

    fn unpublish(&mut self, hs: u8) {
        if let Some(peer) = &mut self.peer {
            peer.up.retain(|c| *c != hs);
        }
    }

    /// `WorkItem<RETRY>` of the peer.
    pub fn retry(&mut self, w: &mut World) -> Result<(), Fault> {
        let Some(peer) = &mut self.peer else {
            return Ok(());
        };
        peer.retry_armed = false;
        let waiting = !peer.pending.is_empty();
        if peer.policy.retry(waiting) {
            self.attempt(w);
        } else {
            self.forget_if_idle(w);
        }
        Ok(())
    }

    /// `Peer::forget_if_idle`.
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

    /// `Ni::shutdown` with `Peer::close`.
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
                let _ = peer.policy.retry(false);
            }
        }
        self.forget_if_idle(w);
        Ok(())
    }

    /// `Peer::close_conns`.
    pub fn close_conns(&mut self, cause: Cause) {
        for conn in self.conns.iter_mut().filter(|c| !c.released) {
            conn.step(Event::Fail(cause));
        }
    }

    /// `Accept::connect_request` with `judge` and `admit`.
    pub fn requested(&mut self, hs: u8, req: &ConnReq, w: &mut World) -> Result<(), Fault> {
        let back = &mut w.cm[other(self.side)];
        if self.stopping {
            // Nobody listens.
            back.push_back((hs, Cm::Rej(cm_reason::INVALID_SERVICE_ID, [0; 24])));
            return Ok(());
        }
        let view = NiView {
            nid: nid(self.side),
            stamp: self.stamp,
            peer_credits: self.depth,
            active: true,
            on_device: true,
        };
        let from = CmSource { addr: Some(req.src.addr()), port: 1000 };
        let demands = Demands { require_privileged_port: true, check_source_addr: true };
        let wanted = match check_ni(req, Some(&view), true, &from, &demands) {
            Ok(wanted) => wanted,
            Err(refusal) => {
                let bytes = refusal.reject(Some(&view)).encode();
                back.push_back((hs, Cm::Rej(cm_reason::CONSUMER_DEFINED, bytes)));
                return Ok(());
            }
        };
        let known = Known { stamp: req.src_stamp, depth: wanted.depth, frags: wanted.frags };
        let conns = self.conns.iter().filter(|c| !c.released).count() as u16;
        let peer = self.get_or_add();
        let seen = PeerView {
            stamp: (peer.policy.known.stamp != 0).then_some(peer.policy.known.stamp),
            connecting: peer.policy.connecting(),
            races: peer.policy.races(),
            conns,
            max_conns: 256,
        };
        let refusal = match check_peer(req, Some(&seen)) {
            PeerVerdict::Accept => {
                peer.policy.accepting(known);
                let mut conn = Conn::new(self.side, hs, false, known);
                conn.step(Event::Requested);
                self.conns.push(conn);
                return Ok(());
            }
            PeerVerdict::Restarted(refusal) => {
                peer.policy.known.stamp = req.src_stamp;
                self.close_conns(Cause::PeerRestarted);
                refusal
            }
            PeerVerdict::Race(refusal) => {
                peer.policy.race_counted();
                self.forget_if_unused(w);
                refusal
            }
            PeerVerdict::Refuse(refusal) => {
                self.forget_if_unused(w);
                refusal
            }
        };
        let bytes = refusal.reject(Some(&view)).encode();
        w.cm[other(self.side)].push_back((hs, Cm::Rej(cm_reason::CONSUMER_DEFINED, bytes)));
        Ok(())
    }

    /// `Peer::forget_if_unused`.
    fn forget_if_unused(&mut self, w: &mut World) {
        if self.peer.as_ref().is_some_and(|p| p.pending.is_empty()) {
            self.forget_if_idle(w);
        }
    }

    /// `WorkItem<CONTROL>`: the first thing it has to do.
    pub fn control(&mut self, c: usize, w: &mut World) -> Result<(), Fault> {
        let (side, stamp) = (self.side, self.stamp);
        let conn = &mut self.conns[c];
        let hs = conn.hs;
        let Some(first) = conn.todo.iter().position(|t| *t) else {
            return Ok(());
        };
        conn.todo[first] = false;
        match TODO[first] {
            // `Conn::resolve`
            Actions::RESOLVE => conn.cm_events.push_back(CmEvent::AddrResolved),
            // `Conn::set_up`
            Actions::SET_UP => {
                conn.data.posted = conn.known.depth.rx_buffers();
                let msg = if conn.active {
                    conn.qp = Qp::Ready;
                    conn.cm = CmState::ReqSent;
                    Cm::Req(ConnReq {
                        order: Order::Native,
                        src: nid(side),
                        src_stamp: stamp,
                        dst: nid(other(side)),
                        dst_stamp: conn.known.stamp,
                        params: ConnParams {
                            queue_depth: conn.known.depth.wire(),
                            max_frags: conn.known.frags.get(),
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
            // `Conn::notify_cm`
            Actions::NOTIFY_CM => {
                if conn.cm == CmState::RepSent {
                    conn.cm = CmState::Up;
                    conn.cm_events.push_back(CmEvent::Established(0));
                }
            }
            // `Conn::publish`
            Actions::ESTABLISH => return self.publish(c, w),
            Actions::CLOSE => self.close(c, w),
            _ => return self.release(c, w),
        }
        Ok(())
    }

    /// `Peer::established`.
    fn publish(&mut self, c: usize, w: &mut World) -> Result<(), Fault> {
        let (hs, active, known) = (self.conns[c].hs, self.conns[c].active, self.conns[c].known);
        let Some(peer) = &mut self.peer else {
            return Err("a connection outlives its peer".into());
        };
        peer.policy.established(active, known);
        peer.up.push(hs);
        for conn in &mut self.conns {
            // `Conn::is_stale`
            if conn.hs != hs && conn.is_up() && conn.peer_stamp != known.stamp {
                conn.step(Event::Fail(Cause::PeerRestarted));
            }
        }
        self.flush(hs, w)
    }

    /// `Conn::close`.
    fn close(&mut self, c: usize, w: &mut World) {
        let hs = self.conns[c].hs;
        self.unpublish(hs);
        let conn = &mut self.conns[c];
        if conn.cm == CmState::Up {
            conn.cm = CmState::Over;
            w.cm[other(self.side)].push_back((hs, Cm::Dreq));
        }
        conn.early.clear();
        conn.step(Event::DrainStarted);
        if conn.qp == Qp::None {
            conn.step(Event::Drained);
        } else {
            conn.qp = Qp::Failed;
            conn.draining = true;
        }
    }

    /// `Conn::release`, then `Peer::released`.
    fn release(&mut self, c: usize, w: &mut World) -> Result<(), Fault> {
        let conn = &mut self.conns[c];
        if !conn.data.sq.is_empty() || conn.data.posted > 0 || conn.draining {
            return Err("released while the device still has work".into());
        }
        conn.qp = Qp::None;
        conn.armed.clear();
        // Destroying the id.
        if matches!(conn.cm, CmState::ReqSent | CmState::RepSent) {
            w.cm[other(self.side)].push_back((conn.hs, Cm::Rej(4, [0; 24])));
        }
        conn.cm = CmState::Over;
        conn.cm_events.clear();
        conn.data.keys_dead();
        conn.kick_upper();
        conn.released = true;
        let (hs, active, failed) = (conn.hs, conn.active, conn.attempt_failed);
        let retry = conn.retry.take();
        self.unpublish(hs);
        let Some(peer) = &mut self.peer else {
            return Err("a connection outlives its peer".into());
        };
        if failed {
            self.attempt_over(active, retry, w);
            return Ok(());
        }
        let _ = peer.policy.closed();
        self.serve_waiting(w)?;
        self.forget_if_idle(w);
        Ok(())
    }

    /// `Peer::attempt_over`.
    fn attempt_over(&mut self, active: bool, retry: Option<Known>, w: &mut World) {
        let Some(peer) = &mut self.peer else {
            return;
        };
        if let Some(known) = retry {
            peer.policy.learnt(known);
        }
        let waiting = !peer.pending.is_empty();
        match peer.policy.failed(active, retry.is_some(), waiting, 0) {
            After::RetryIn(_) => peer.retry_armed = true,
            After::OthersRemain => {}
            After::GiveUp => self.forget_if_idle(w),
        }
    }

    /// One round of the LNet half of a connection.
    pub fn upper(&mut self, c: usize, want: bool, w: &mut World) -> Result<(), Fault> {
        let side = self.side;
        let conn = &mut self.conns[c];
        conn.upper(want, side, w)?;
        conn.kicked = conn.has_work();
        Ok(())
    }

    /// Objects that nothing refers to any more are freed.
    pub fn free_objects(&mut self) -> Result<(), Fault> {
        for conn in &mut self.conns {
            if let Some(fault) = conn.fault.take() {
                return Err(fault);
            }
            if conn.released && !conn.has_work() && conn.data.in_use() > 0 {
                return Err(format!("transmits are lost with their connection: {conn:?}"));
            }
        }
        self.conns.retain(|c| !c.released || c.has_work());
        Ok(())
    }

    /// Appends the state, but for the connections.
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
