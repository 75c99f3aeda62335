// SPDX-License-Identifier: GPL-2.0

//! State that two nodes share: the connection manager's messages, the receive queues they send into, the
//! fate of LNet's messages.

use std::{
    collections::VecDeque,
    fmt::Debug,
    io::Write, //
};

use ro2iblnd_proto::{
    cause::Cause,
    conn_state::ConnEvent,
    handshake::ConnReq, //
};

use crate::{
    conn::{
        Conn,
        Qp, //
    },
    life::Budget,
    messages::{
        other,
        Body,
        Msg,
        Side, //
    },
    node::Node,
    our_end::Work,
    search::Fault, //
};

/// A message of the connection manager.
#[derive(Clone, Copy, Debug)]
pub enum Cm {
    /// REQ with a CONNREQ.
    Req(ConnReq),
    /// REP with a CONNACK: the stamp of the one who accepts.
    Rep(u64),
    /// REJ with the CM's reason and private data.
    Rej(i32, [u8; 24]),
    /// RTU.
    Rtu,
    /// DREQ.
    Dreq,
    /// DREP.
    Drep,
}

/// An event of the connection manager for the driver (`rdma::cm_event::CmEvent`).
#[derive(Clone, Copy, Debug)]
pub enum CmEvent {
    /// ADDR_RESOLVED.
    AddrResolved,
    /// ROUTE_RESOLVED.
    RouteResolved,
    /// ESTABLISHED, with the stamp of the CONNACK on the active side.
    Established(u64),
    /// REJECTED.
    Rejected(i32, [u8; 24]),
    /// UNREACHABLE.
    Unreachable,
    /// DISCONNECTED or TIMEWAIT_EXIT.
    Disconnected,
}

/// Where the CM is with an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CmState {
    /// No id, or no handshake yet.
    None,
    /// REQ sent.
    ReqSent,
    /// REP sent.
    RepSent,
    /// Connected.
    Up,
    /// The CM gave up: it knows nothing of this connection any more, though it may live.
    Lost,
    /// Disconnected, refused or destroyed.
    Over,
}

/// Result of one LNet message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fate {
    /// Sender.
    pub from: Side,
    /// Finalized at the sender.
    pub ended: u8,
    /// Given to LNet at the receiver.
    pub got: u8,
    /// Finalized there.
    pub taken: u8,
    /// The sender crashed after sending it.
    pub lost: bool,
    /// The receiver crashed after getting it.
    pub forgotten: bool,
}

/// Everything that both nodes share.
#[derive(Clone, Debug)]
pub struct World {
    /// CM messages to each node, with the handshake they belong to.
    pub cm: [VecDeque<(u8, Cm)>; 2],
    /// Messages by number.
    pub fates: Vec<Fate>,
    /// Handshakes so far.
    pub handshakes: u8,
    /// Messages that were posted in this step: the node, the handshake, the message.
    pub posted: Vec<(Side, u8, Msg)>,
}

/// Both nodes and the world.
#[derive(Clone, Debug)]
pub struct State {
    /// The nodes.
    pub nodes: [Node; 2],
    /// The rest.
    pub world: World,
    /// Events that may still happen.
    pub left: Budget,
}

impl State {
    pub(crate) fn conn(&self, at: Side, c: usize) -> &Conn {
        &self.nodes[at].conns[c]
    }

    /// Returns the object at the other end of the handshake.
    fn mate(&self, at: Side, c: usize) -> Option<&Conn> {
        let hs = self.conn(at, c).hs;
        self.nodes[other(at)].conns.iter().find(|m| m.hs == hs)
    }

    pub(crate) fn mate_is_up(&self, at: Side, c: usize) -> bool {
        self.mate(at, c).is_some_and(|m| m.qp == Qp::Live)
    }

    /// Returns whether no event is pending that would continue a handshake.
    pub(crate) fn stuck(&self, at: Side, c: usize) -> bool {
        let conn = self.conn(at, c);
        let flying = self.world.cm.iter().flatten().any(|(hs, _)| *hs == conn.hs);
        let busy = |c: &Conn| c.is_busy() || !c.inbox.is_empty();
        !flying && !busy(conn) && !self.mate(at, c).is_some_and(busy)
    }

    /// Moves posted messages into the receive queues of the other ends.
    pub(crate) fn transmit(&mut self) -> Result<(), Fault> {
        for (from, hs, msg) in std::mem::take(&mut self.world.posted) {
            let Some(sender) = self.nodes[from].conns.iter().find(|c| c.hs == hs) else {
                return Err("a message of a connection that is not there".into());
            };
            if sender.qp != Qp::Live {
                continue;
            }
            let to = self.nodes[other(from)]
                .conns
                .iter_mut()
                .find(|c| c.hs == hs);
            let Some(to) = to.filter(|c| c.qp == Qp::Live) else {
                continue;
            };
            match msg.body {
                Body::PutDone(key, true) | Body::GetDone(key, true) if !to.armed.contains(&key) => {
                    return Err("a WRITE meets a dead key on a live queue pair".into());
                }
                _ => {}
            }
            to.inbox.push_back(msg);
        }
        Ok(())
    }

    /// Delivers a message to the CM of `at`.
    pub(crate) fn cm_arrives(&mut self, at: Side) -> Result<(), Fault> {
        let Some((hs, cm)) = self.world.cm[at].pop_front() else {
            return Ok(());
        };
        let node = &mut self.nodes[at];
        if let Cm::Req(req) = cm {
            return node.requested(hs, &req, &mut self.world);
        }
        let Some(conn) = node.conns.iter_mut().find(|c| c.hs == hs && !c.released) else {
            match cm {
                // The node no longer has the object.
                Cm::Rep(_) => self.world.cm[other(at)].push_back((hs, Cm::Rej(10, [0; 24]))),
                Cm::Dreq => self.world.cm[other(at)].push_back((hs, Cm::Drep)),
                _ => {}
            }
            return Ok(());
        };
        match (cm, conn.cm) {
            (Cm::Rep(stamp), CmState::ReqSent) => {
                conn.cm = CmState::Up;
                conn.qp_lives();
                conn.cm_events.push_back(CmEvent::Established(stamp));
                self.world.cm[other(at)].push_back((hs, Cm::Rtu));
            }
            (Cm::Rtu, CmState::RepSent) => {
                conn.cm = CmState::Up;
                conn.cm_events.push_back(CmEvent::Established(0));
            }
            (Cm::Rej(reason, data), CmState::ReqSent | CmState::RepSent) => {
                conn.cm = CmState::Over;
                conn.cm_events.push_back(CmEvent::Rejected(reason, data));
            }
            (Cm::Dreq, CmState::Up | CmState::RepSent) => {
                conn.cm = CmState::Over;
                conn.cm_events.push_back(CmEvent::Disconnected);
                self.world.cm[other(at)].push_back((hs, Cm::Drep));
            }
            (Cm::Dreq, CmState::Lost) => {
                self.world.cm[other(at)].push_back((hs, Cm::Drep));
            }
            (Cm::Drep, CmState::Over) => conn.cm_events.push_back(CmEvent::Disconnected),
            _ => {}
        }
        Ok(())
    }

    /// Completes the oldest send work request, as the device.
    pub(crate) fn complete(&mut self, at: Side, c: usize) -> Result<(), Fault> {
        let reached = self.mate_is_up(at, c);
        let conn = &mut self.nodes[at].conns[c];
        if conn.qp == Qp::Failed {
            conn.data.retire(Err(Cause::Flushed))?;
            conn.step(ConnEvent::Fail(Cause::Flushed));
            return Ok(());
        }
        // A LOCAL_INV needs no peer.
        if !reached && !matches!(conn.data.sq.front(), Some(Work::Invalidate(_))) {
            conn.qp = Qp::Failed;
            conn.data.retire(Err(Cause::TransportRetry))?;
            conn.step(ConnEvent::Fail(Cause::TransportRetry));
            return Ok(());
        }
        while let Some(work) = conn.data.retire(Ok(()))? {
            match work {
                Work::Quiet(_) => continue,
                Work::Invalidate(index) => {
                    let key = conn.data.cookie(index);
                    conn.armed.retain(|k| *k != key);
                }
                Work::Send(_) | Work::Write(_) | Work::Noop => {}
            }
            break;
        }
        conn.pump(&mut self.world.posted)
    }
}

/// Appends something as it prints.
pub fn debug(what: &dyn Debug, out: &mut Vec<u8>) {
    let _ = write!(out, "{what:?}");
}
