// SPDX-License-Identifier: GPL-2.0

//! The life of connections and transmits between two nodes: what the device, the connection manager
//! and LNet do around the driver. The driver itself, on both nodes, is in [`crate::node`], what
//! lies between them in [`crate::between_nodes`].
//!
//! CM messages travel first in, first out and may be lost; a node may crash and come back with a
//! new stamp at any time; either may be shut down. Work requests complete in order, after or before
//! the answer; those of a queue pair in error are flushed. Every fault is counted against a budget,
//! so that what the system does by itself must come to an end.

use std::fmt::Debug;

use ro2iblnd_proto::{
    cause::Cause,
    conn_state::{
        ConnEvent,
        State as Phase, //
    }, //
};

use crate::{
    between_nodes::{
        debug,
        CmEvent,
        CmState,
        Fate,
        State,
        World, //
    },
    conn::Qp,
    credit::Kind,
    messages::{
        Names,
        Side, //
    },
    node::Node,
    search::{
        Fault,
        Model, //
    }, //
};

/// Faults that may happen, and how often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// LNet messages.
    pub messages: u8,
    /// CM messages lost.
    pub losses: u8,
    /// Crashes.
    pub crashes: u8,
    /// Timers that fire although all is well, failed resolutions, errors of the queue pair.
    pub upsets: u8,
    /// Nodes shut down.
    pub shutdowns: u8,
    /// The administrator closes the connections of a peer.
    pub closes: u8,
}

/// The bounds of one search.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Limits on events.
    pub budget: Budget,
    /// Messages that LNet of each node sends.
    pub kinds: [&'static [Kind]; 2],
    /// Queue depth.
    pub depth: u16,
    /// `conns_per_peer`.
    pub conns: u16,
    /// Whether connections are over TCP.
    pub over_tcp: bool,
    /// The caller sends nothing by itself.
    pub mute: bool,
}

/// Something that can happen. The last number is that of a connection object on the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// LNet of a node sends.
    Send(Side, Kind),
    /// A node is shut down.
    Shutdown(Side),
    /// `LNET_CTL` close of all connections of the peer.
    Close(Side),
    /// A node crashes and comes back.
    Crash(Side),
    /// The oldest CM message to a node is lost.
    Lose(Side),
    /// It arrives.
    Cm(Side),
    /// The address cannot be resolved.
    BadAddress(Side, usize),
    /// A timer of the driver fires early.
    Hasty(Side, usize),
    /// The queue pair breaks.
    Break(Side, usize),
    /// The device refuses the next batch, from its first or second work request on.
    Refuse(Side, usize, u8),
    /// The driver gets its next CM event.
    CmEvent(Side, usize),
    /// The CM gives up retrying.
    CmTimeout(Side, usize),
    /// The driver's timer fires.
    Timer(Side, usize),
    /// COMM_EST of the queue pair.
    CommEst(Side, usize),
    /// A receive completion.
    Recv(Side, usize),
    /// A send completion.
    Complete(Side, usize),
    /// The receives of a queue pair in error are flushed.
    Flush(Side, usize),
    /// Both drain markers are back.
    Marker(Side, usize),
    /// The control worker does one thing.
    Control(Side, usize),
    /// The LNet half does one thing; LNet wants the data of a PUT if true.
    Upper(Side, usize, bool),
    /// The pause before the next attempt is over.
    Retry(Side),
}

impl Config {
    fn conn_steps(&self, s: &State, at: Side, c: usize, out: &mut Vec<Step>) {
        let conn = s.conn(at, c);
        let phase = conn.fsm.state();
        if conn.has_todo() {
            out.push(Step::Control(at, c));
        }
        if !conn.cm_events.is_empty() {
            out.push(Step::CmEvent(at, c));
        }
        if conn.qp == Qp::Live && !conn.inbox.is_empty() {
            out.push(Step::Recv(at, c));
            if matches!(phase, Phase::Accepting | Phase::Called) {
                out.push(Step::CommEst(at, c));
            }
        }
        if conn.qp == Qp::Failed && !conn.inbox.is_empty() {
            // Arrived before the error.
            out.push(Step::Recv(at, c));
        }
        if !conn.data.sq.is_empty() {
            out.push(Step::Complete(at, c));
        }
        if conn.qp == Qp::Failed && conn.data.posted > 0 {
            out.push(Step::Flush(at, c));
        }
        if conn.draining
            && conn.data.sq.is_empty()
            && conn.data.posted == 0
            && phase == Phase::Draining
        {
            out.push(Step::Marker(at, c));
        }
        if conn.has_job() {
            out.push(Step::Upper(at, c, true));
            if conn.next_is_put() {
                out.push(Step::Upper(at, c, false));
            }
        }
        if phase < Phase::Established && phase > Phase::Init {
            if s.stuck(at, c) {
                out.push(Step::Timer(at, c));
                if matches!(conn.cm, CmState::ReqSent | CmState::RepSent) {
                    out.push(Step::CmTimeout(at, c));
                }
            } else if s.left.upsets > 0 {
                out.push(Step::Hasty(at, c));
                if phase == Phase::Resolving {
                    out.push(Step::BadAddress(at, c));
                }
            }
        }
        if phase == Phase::Established && conn.data.txs.has_pending() {
            if !s.mate_is_up(at, c) && conn.data.sq.is_empty() {
                out.push(Step::Timer(at, c));
            } else if s.left.upsets > 0 {
                out.push(Step::Hasty(at, c));
            }
        }
        if conn.qp == Qp::Live && phase == Phase::Established && s.left.upsets > 0 {
            out.push(Step::Break(at, c));
            if conn.refuse_at.is_none() {
                out.extend([Step::Refuse(at, c, 0), Step::Refuse(at, c, 1)]);
            }
        }
    }
}

impl Model for Config {
    type State = State;
    type Step = Step;

    fn init(&self) -> State {
        State {
            nodes: [0, 1]
                .map(|side| Node::new(side, self.depth, self.conns, self.over_tcp, self.mute)),
            world: World {
                cm: Default::default(),
                fates: Vec::new(),
                handshakes: 0,
                posted: Vec::new(),
            },
            left: self.budget,
        }
    }

    fn steps(&self, s: &State, out: &mut Vec<Step>) {
        for at in 0..2 {
            let node = &s.nodes[at];
            if s.left.messages > 0 {
                out.extend(self.kinds[at].iter().map(|k| Step::Send(at, *k)));
            }
            if !s.world.cm[at].is_empty() {
                out.push(Step::Cm(at));
                if s.left.losses > 0 {
                    out.push(Step::Lose(at));
                }
            }
            if s.left.crashes > 0 {
                out.push(Step::Crash(at));
            }
            if s.left.shutdowns > 0 && !node.stopping {
                out.push(Step::Shutdown(at));
            }
            if s.left.closes > 0 && !node.conns.is_empty() {
                out.push(Step::Close(at));
            }
            if node.peer.as_ref().is_some_and(|p| p.retry_armed) {
                out.push(Step::Retry(at));
            }
            for c in 0..node.conns.len() {
                self.conn_steps(s, at, c, out);
            }
        }
    }

    fn take(&self, s: &mut State, step: Step) -> Result<(), Fault> {
        let w = &mut s.world;
        match step {
            Step::Send(at, kind) => {
                s.left.messages -= 1;
                w.fates.push(Fate {
                    from: at,
                    ..Fate::default()
                });
                let tag = w.fates.len() as u8;
                s.nodes[at].send(tag, kind, w)?;
            }
            Step::Shutdown(at) => {
                s.left.shutdowns -= 1;
                s.nodes[at].shutdown(w)?;
            }
            Step::Close(at) => {
                s.left.closes -= 1;
                s.nodes[at].close_conns(Cause::AdminClose);
            }
            Step::Crash(at) => {
                s.left.crashes -= 1;
                s.nodes[at].crash();
                for fate in &mut w.fates {
                    fate.lost |= fate.from == at;
                    fate.forgotten |= fate.from != at;
                }
            }
            Step::Lose(at) => {
                s.left.losses -= 1;
                w.cm[at].pop_front();
            }
            Step::Cm(at) => s.cm_arrives(at)?,
            Step::BadAddress(at, c) => {
                s.left.upsets -= 1;
                s.nodes[at].conns[c].cm_events.clear();
                s.nodes[at].conns[c].step(ConnEvent::Fail(Cause::Unreachable));
            }
            Step::Hasty(at, c) => {
                s.left.upsets -= 1;
                s.nodes[at].conns[c].timer();
            }
            Step::Break(at, c) => {
                s.left.upsets -= 1;
                // As the queue pair's async event has it.
                s.nodes[at].conns[c].qp = Qp::Failed;
                s.nodes[at].conns[c].step(ConnEvent::Fail(Cause::LocalFault));
            }
            Step::Refuse(at, c, taken) => {
                s.left.upsets -= 1;
                s.nodes[at].conns[c].refuse_at = Some(taken);
            }
            Step::CmEvent(at, c) => s.nodes[at].conns[c].cm_event(),
            Step::CmTimeout(at, c) => {
                s.nodes[at].conns[c].cm = CmState::Lost;
                s.nodes[at].conns[c]
                    .cm_events
                    .push_back(CmEvent::Unreachable);
            }
            Step::Timer(at, c) => s.nodes[at].conns[c].timer(),
            Step::CommEst(at, c) => s.nodes[at].conns[c].comm_est(),
            Step::Recv(at, c) => s.nodes[at].conns[c].recv_done(&mut w.posted)?,
            Step::Complete(at, c) => s.complete(at, c)?,
            Step::Flush(at, c) => {
                let conn = &mut s.nodes[at].conns[c];
                conn.inbox.clear();
                conn.data.posted = 0;
                conn.step(ConnEvent::Fail(Cause::Flushed));
            }
            Step::Marker(at, c) => {
                let conn = &mut s.nodes[at].conns[c];
                conn.draining = false;
                conn.step(ConnEvent::Drained);
            }
            Step::Control(at, c) => s.nodes[at].control(c, w)?,
            Step::Upper(at, c, want) => s.nodes[at].upper(c, want, w)?,
            Step::Retry(at) => s.nodes[at].retry(w)?,
        }
        s.transmit()?;
        for node in &mut s.nodes {
            node.free_objects()?;
        }
        Ok(())
    }

    fn environment(&self, step: Step) -> bool {
        matches!(
            step,
            Step::Send(..)
                | Step::Shutdown(_)
                | Step::Close(_)
                | Step::Crash(_)
                | Step::Lose(_)
                | Step::BadAddress(..)
                | Step::Hasty(..)
                | Step::Break(..)
                | Step::Refuse(..)
        )
    }

    fn check(&self, s: &State) -> Result<(), Fault> {
        for (tag, fate) in s.world.fates.iter().enumerate() {
            if fate.ended > 1 || fate.taken > fate.got || fate.got > 1 {
                return Err(format!("message {}: {fate:?}", tag + 1));
            }
        }
        for node in &s.nodes {
            for conn in &node.conns {
                if conn.establishments > 1 {
                    return Err("a connection is established twice".into());
                }
                if conn.inbox.len() > usize::from(conn.data.posted) {
                    return Err("a message meets no receive buffer (RNR)".into());
                }
            }
        }
        Ok(())
    }

    fn rest(&self, s: &State) -> Result<(), Fault> {
        for (tag, fate) in s.world.fates.iter().enumerate() {
            if fate.ended == 0 && !fate.lost {
                return Err(format!("message {} never ends: {fate:?}", tag + 1));
            }
            if fate.taken != fate.got && !fate.forgotten {
                return Err(format!(
                    "message {} is never finished by LNet: {fate:?}",
                    tag + 1
                ));
            }
        }
        for (at, node) in s.nodes.iter().enumerate() {
            if node.stopping && !(node.conns.is_empty() && node.peer.is_none()) {
                return Err(format!("shutdown of node {at} hangs: {node:?}"));
            }
            for conn in &node.conns {
                if conn.cm == CmState::Over {
                    return Err(format!("node {at} did not notice the end of {conn:?}"));
                }
                if conn.fsm.state() != Phase::Established || !conn.data.idle() {
                    return Err(format!("node {at} is stuck: {conn:?}"));
                }
            }
            if node.conns.is_empty() && node.peer.is_some() {
                return Err(format!(
                    "node {at} keeps a peer for nothing: {:?}",
                    node.peer
                ));
            }
        }
        Ok(())
    }

    fn encode(&self, s: &State, out: &mut Vec<u8>) {
        let b = s.left;
        out.extend([
            b.messages,
            b.losses,
            b.crashes,
            b.upsets,
            b.shutdowns,
            b.closes,
        ]);
        for f in &s.world.fates {
            out.extend([f.from as u8, f.ended, f.got, f.taken]);
            out.push(u8::from(f.lost) | u8::from(f.forgotten) << 1);
        }
        // Handshakes by order of appearance; the objects of one are encoded together.
        let mut order: Vec<u8> = Vec::new();
        for node in &s.nodes {
            node.encode(out);
            for conn in &node.conns {
                if !order.contains(&conn.hs) {
                    order.push(conn.hs);
                }
            }
        }
        for hs in order.clone() {
            let mut names = Names::default();
            for node in &s.nodes {
                if let Some(conn) = node.conns.iter().find(|c| c.hs == hs) {
                    conn.encode(node.side, &mut names, out);
                }
                out.push(b'|');
            }
            for node in &s.nodes {
                if let Some(conn) = node.conns.iter().find(|c| c.hs == hs) {
                    conn.data.encode_txs(&mut names, out);
                }
                out.push(b'|');
            }
        }
        for queue in &s.world.cm {
            for (hs, cm) in queue {
                let at = order.iter().position(|o| o == hs);
                out.push(at.map_or_else(
                    || {
                        order.push(*hs);
                        order.len() as u8 - 1
                    },
                    |at| at as u8,
                ));
                debug(cm, out);
            }
            out.push(b'/');
        }
    }
}
