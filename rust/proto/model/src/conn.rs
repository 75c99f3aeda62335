// SPDX-License-Identifier: GPL-2.0

//! A connection object of a node, as `rust/lnd/conn/` has it.
//!
//! The state machines are the real ones. Around them each function does what the driver function
//! named in its documentation does, in the same order and without more thought; what differs is
//! that nothing is allocated.

use std::collections::VecDeque;

use ro2iblnd_proto::{
    cause::Cause,
    conn_state::{
        Actions,
        ConnEvent,
        ConnFsm as Fsm,
        State as Phase,
        Worker, //
    },
    constants::{
        high_water,
        PeerParams, //
    },
    credits::{
        Credits,
        Repost, //
    },
    reject::{
        react_to_reject,
        RetryWhy, //
    },
    tx_state::Op, //
};

use crate::{
    between_nodes::{
        debug,
        CmEvent,
        CmState,
        World, //
    },
    credit::Kind,
    messages::{
        other,
        Body,
        Msg,
        Names,
        Side, //
    },
    our_end::{
        Ours,
        Transfer,
        Work, //
    },
    search::Fault, //
};

/// Steps of the workers, in order; `lnd::conn::workers::STEPS`.
pub(crate) const STEPS: [Actions; 6] = [
    Actions::RESOLVE,
    Actions::SPEAK,
    Actions::ESTABLISH,
    Actions::SET_UP,
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
    pub(crate) active: bool,
    /// The real state machine.
    pub fsm: Fsm,
    /// Worker that has taken steps, and not found that there are none left; as the state machine has it.
    pub(crate) running: Option<Worker>,
    pub(crate) retry: Option<RetryWhy>,
    pub(crate) known: PeerParams,
    pub(crate) peer_stamp: u64,
    /// Credits, queues and transmits, the real ones.
    pub data: Ours,
    pub(crate) early: VecDeque<Msg>,
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
    pub(crate) kicked: bool,
    /// Of RDMA requests and of small messages.
    last_tag: [u8; 2],
    /// The device will refuse the next batch from this work request on.
    pub refuse_at: Option<u8>,
    pub(crate) fault: Option<Fault>,
    over_tcp: bool,
    /// The other side has sent something, or its time to do so has passed.
    heard: bool,
}

impl Conn {
    /// Models `Conn::new`.
    pub fn new(side: Side, hs: u8, active: bool, over_tcp: bool, known: PeerParams) -> Self {
        let mut data = Ours::new(side, known.depth, 1, SLOTS, CELLS);
        data.posted = 0;
        Self {
            hs,
            active,
            fsm: Fsm::new(over_tcp),
            running: None,
            retry: None,
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
            over_tcp,
            heard: false,
        }
    }

    pub(crate) fn is_up(&self) -> bool {
        self.fsm.state() == Phase::Established
    }

    /// Returns whether a worker or a CM event waits for it.
    pub fn is_busy(&self) -> bool {
        self.has_todo() || !self.cm_events.is_empty()
    }

    /// Returns whether a worker runs or is queued.
    pub fn has_todo(&self) -> bool {
        self.worker().is_some()
    }

    /// Returns the worker that runs or is queued.
    pub(crate) fn worker(&self) -> Option<Worker> {
        self.running.or(self.fsm.next_worker())
    }

    /// Returns whether the LNet half is queued and finds a job.
    pub fn has_job(&self) -> bool {
        self.kicked && self.has_work()
    }

    pub(crate) fn has_work(&self) -> bool {
        self.data.txs.done().is_some() || !self.data.held.is_empty()
    }

    /// Returns whether the next message for LNet is a PUT.
    pub fn next_is_put(&self) -> bool {
        let first = self.data.held.first().map(|h| h.body);
        self.data.txs.done().is_none() && matches!(first, Some(Body::PutReq(_)))
    }

    /// Models `Conn::step`.
    pub fn step(&mut self, event: ConnEvent) {
        let actions = self.fsm.on(event);
        if actions == Actions::NONE {
            return;
        }
        if actions.has(Actions::ESTABLISH) {
            self.established();
        }
        if actions.has(Actions::CLOSE) {
            // `TxTable::cancel_all`
            let cause = self.fsm.cause().unwrap_or(Cause::Flushed);
            self.data.cancel(cause);
            self.queue_upcall();
        }
    }

    /// Models `Inner::agreed`.
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
        self.queue_upcall();
    }

    /// Models `Conn::queue_upcall`.
    pub(crate) fn queue_upcall(&mut self) {
        self.kicked |= self.has_work();
    }

    /// Models `Inner::receive`.
    fn received(&mut self, msg: Msg) {
        if !self.is_up() {
            return;
        }
        if let Err(fault) = self.data.received(msg) {
            self.fault = Some(fault);
        }
    }

    /// Models `post::pump`.
    pub fn pump(&mut self, posted: &mut Vec<(Side, u8, Msg)>) -> Result<(), Fault> {
        self.pump_probe(false, posted)
    }

    /// Models `post::pump`; with `probe` a NOOP goes if no other message does.
    pub(crate) fn pump_probe(
        &mut self,
        probe: bool,
        posted: &mut Vec<(Side, u8, Msg)>,
    ) -> Result<(), Fault> {
        if self.is_up() {
            let mut out = VecDeque::new();
            let before = self.data.sq.len();
            self.data.pump(probe, &mut out)?;
            if self.over_tcp && !self.active && !self.heard && !out.is_empty() {
                return Err("who was called speaks first, over TCP".into());
            }
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
                self.step(ConnEvent::Fail(Cause::LocalFault));
            }
        }
        self.queue_upcall();
        Ok(())
    }

    /// Executes the REG_MRs that were posted since the send queue had `before` entries, as the device.
    fn arm(&mut self, before: usize) {
        if self.qp != Qp::Live {
            return;
        }
        for work in self.data.sq.iter().skip(before) {
            if let Work::Quiet(index) = *work {
                let slot = self.data.txs.get(index);
                if slot.is_some_and(|slot| slot.tx().op().needs_key()) {
                    self.armed.push(self.data.cookie(index));
                }
            }
        }
    }

    /// Notes that the CM has moved the queue pair to RTS.
    pub fn qp_lives(&mut self) {
        if self.qp == Qp::Ready {
            self.qp = Qp::Live;
        }
    }

    /// Handles COMM_EST of the queue pair: the other side has sent something.
    pub(crate) fn comm_est(&mut self) {
        self.heard = true;
        self.step(ConnEvent::EarlyTraffic);
    }

    /// Models `CompletionReceiver::received`.
    pub fn recv_done(&mut self, posted: &mut Vec<(Side, u8, Msg)>) -> Result<(), Fault> {
        let Some(msg) = self.inbox.pop_front() else {
            return Ok(());
        };
        self.heard = true;
        match self.fsm.state() {
            Phase::Init | Phase::Resolving | Phase::Connecting => {
                self.data.posted -= 1;
                self.early.push_back(msg);
                return Ok(());
            }
            Phase::Accepting | Phase::Called => self.step(ConnEvent::EarlyTraffic),
            Phase::Established => {}
            Phase::Closing | Phase::Draining | Phase::Dead => {
                self.data.posted -= 1;
                return Ok(());
            }
        }
        self.received(msg);
        self.pump(posted)
    }

    /// Models `WorkItem<TIMER>`.
    pub fn timer(&mut self) {
        match self.fsm.state() {
            Phase::Called => {
                self.heard = true;
                self.step(ConnEvent::Timeout);
            }
            Phase::Init | Phase::Resolving | Phase::Connecting | Phase::Accepting => {
                self.step(ConnEvent::Timeout);
            }
            Phase::Established => {
                let late = self.data.txs.pending().next();
                if let Some(cause) = late.map(|(_, slot)| slot.tx().timeout_cause()) {
                    self.step(ConnEvent::Fail(cause));
                }
            }
            Phase::Closing | Phase::Draining | Phase::Dead => {}
        }
    }

    /// Models `CmHandler::cm_event`.
    pub fn cm_event(&mut self) {
        match self.cm_events.pop_front() {
            // `Conn::addr_resolved`
            Some(CmEvent::AddrResolved) => {
                let actions = self.fsm.on(ConnEvent::AddrResolved);
                let route = actions.has(Actions::RESOLVE_ROUTE);
                self.cm_events
                    .extend(route.then_some(CmEvent::RouteResolved));
            }
            Some(CmEvent::RouteResolved) => self.step(ConnEvent::RouteResolved),
            // `Conn::cm_established`
            Some(CmEvent::Established(_)) if !self.active => self.step(ConnEvent::Established),
            Some(CmEvent::Established(_)) if self.fsm.state() != Phase::Connecting => {}
            Some(CmEvent::Established(stamp)) => {
                self.known.stamp = stamp;
                self.step(ConnEvent::Established);
            }
            // `Conn::rejected`
            Some(CmEvent::Rejected(..)) if !self.active => {
                self.step(ConnEvent::Fail(Cause::ConnectFailed));
            }
            Some(CmEvent::Rejected(reason, data)) => {
                self.retry = react_to_reject(reason, &data, &self.known).ok();
                self.step(ConnEvent::Fail(Cause::Refused));
            }
            Some(CmEvent::Unreachable) => self.step(ConnEvent::Unreachable),
            Some(CmEvent::Disconnected) => self.step(ConnEvent::Disconnected),
            None => {}
        }
    }

    /// Models `send::send`. False: the connection is over.
    pub(crate) fn send(
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
        self.submit(
            op,
            slots,
            Transfer {
                peer: 0,
                data: true,
                tag,
            },
            posted,
        )
    }

    /// Models `Conn::submit`. False: the connection is over.
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

    /// Models `Conn::give_back`.
    fn give_back(&mut self, how: Repost) -> Result<(), Fault> {
        // `Inner::may_receive`
        match self.fsm.state() <= Phase::Established {
            true => self.data.give_back(how),
            false => Ok(()),
        }
    }

    /// Models a round of `WorkItem<UPPER>` with one job: a finished transmit, or `parse` with `recv`.
    pub(crate) fn upper(&mut self, want: bool, at: Side, w: &mut World) -> Result<(), Fault> {
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
        // Beyond the first flight a request may wait for a reserved buffer while small messages
        // pass it.
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
        let answer = |peer, tag| Transfer {
            peer,
            data: true,
            tag,
        };
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
            // `Conn::not_answered`: the peer does not know the key.
            self.step(ConnEvent::Fail(Cause::Flushed));
            finalize(at, transfer.tag, w);
        }
        Ok(())
    }

    /// Appends the state, without the transmits.
    pub fn encode(&self, side: Side, names: &mut Names, out: &mut Vec<u8>) {
        debug(&self.fsm, out);
        out.extend([
            self.qp as u8,
            self.cm as u8,
            self.last_tag[0],
            self.last_tag[1],
        ]);
        for flag in [
            self.active,
            self.draining,
            self.released,
            self.kicked,
            self.heard,
        ] {
            out.push(u8::from(flag));
        }
        out.push(self.refuse_at.map_or(0, |n| n + 1));
        debug(&self.retry, out);
        out.extend([self.peer_stamp as u8, self.known.stamp as u8]);
        out.push(self.establishments);
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

/// Returns a message to LNet; 0 is no message.
pub(crate) fn finalize(at: Side, tag: u8, w: &mut World) {
    if let Some(fate) = usize::from(tag)
        .checked_sub(1)
        .and_then(|i| w.fates.get_mut(i))
    {
        match fate.from == at {
            true => fate.ended += 1,
            false => fate.taken += 1,
        }
    }
}
