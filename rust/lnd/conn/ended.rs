// SPDX-License-Identifier: GPL-2.0

//! Whom a transfer is for and what memory it has, and what LNet gets back of it when it is over: after the state machine said
//! that no work request and no remote key touches the memory any more.
//!
//! Context: made in any, finished in process context without a lock.

use super::sink::Sink;
use crate::{
    lnd::{
        health::lnet_health,
        kind::O2ib, //
    },
    lnet::{
        Get,
        Health as LnetHealth,
        Message, //
    },
    proto::cause::{
        Cause,
        Health,
        Outcome, //
    },
    rdma::sg::SgRef, //
};

/// Whom a transfer is for.
pub(super) enum Owner {
    /// Nobody waits: a PUT_NAK, or an answer that carries only an error.
    Nobody,
    /// One LNet message.
    Message(Message),
    /// An optimised GET and the REPLY that LNet made up for it.
    Get(Get<O2ib>),
}

/// The memory of a transfer.
pub(super) enum Memory {
    /// None, or copied into the message.
    None,
    /// Read by RDMA WRITEs of ours.
    Source(SgRef),
    /// Written by the peer's RDMA WRITEs.
    Sink(Sink),
}

/// What LNet gets back of a transfer that went well.
pub(super) enum Well {
    /// A message, and what was read of its pages.
    Sent(Message, Option<SgRef>),
    /// A GET, and how many bytes arrived.
    Got(Get<O2ib>, u32),
}

impl Well {
    /// Gives it back to LNet. Process context, no lock held: LNet may send from inside.
    #[inline(always)]
    pub(super) fn finish(self) {
        match self {
            Self::Sent(msg, map) => {
                // Unmapped, before anybody looks at the pages.
                drop(map);
                msg.finalize(0, LnetHealth::Ok);
            }
            Self::Got(get, arrived) => get.finalize(0, LnetHealth::Ok, arrived),
        }
    }
}

/// What is left of a transfer when it is over.
pub(super) struct Ended {
    owner: Owner,
    memory: Memory,
    arrived: u32,
}

impl Ended {
    /// Of what `arrived` bytes came for.
    #[inline(always)]
    pub(super) fn new(owner: Owner, memory: Memory, arrived: u32) -> Self {
        Self {
            owner,
            memory,
            arrived,
        }
    }

    /// How many messages of LNet's it is for.
    pub(super) fn messages(&self) -> usize {
        usize::from(!matches!(self.owner, Owner::Nobody))
    }

    /// That of a message which was not sent.
    pub(super) fn unsent(msg: Message) -> Self {
        Self {
            owner: Owner::Message(msg),
            memory: Memory::None,
            arrived: 0,
        }
    }

    /// Takes the message, if that is all that LNet gets back; what was read for it is unmapped. Process context, no lock
    /// held.
    pub(super) fn take_message(&mut self) -> Option<Message> {
        if matches!(self.memory, Memory::Sink(_)) {
            return None;
        }
        match core::mem::replace(&mut self.owner, Owner::Nobody) {
            Owner::Message(msg) => {
                self.memory = Memory::None;
                Some(msg)
            }
            other => {
                self.owner = other;
                None
            }
        }
    }

    /// Gives everything back to LNet. Process context, no lock held: LNet may send from inside.
    // Compiled where it is used, to know there that nothing is left to be dropped.
    #[inline(always)]
    pub(super) fn finish(&mut self, cause: Option<Cause>, posted: bool) {
        let mut outcome = match cause {
            None => Outcome {
                status: 0,
                health: Health::Ok,
            },
            Some(cause) => cause.outcome(posted),
        };
        // Unmapped, and the CPU's view synchronised, before anybody looks at the pages: a sink by
        // the end of its key, a source here.
        let let_go = match &mut self.memory {
            Memory::Sink(sink) if cause.is_none() => sink.copy_out(self.arrived),
            _ => Ok(()),
        };
        self.memory = Memory::None;
        if let Err(e) = let_go {
            outcome = Cause::Local(e.to_errno()).outcome(posted);
        }
        let health = lnet_health(outcome.health);
        match core::mem::replace(&mut self.owner, Owner::Nobody) {
            Owner::Nobody => {}
            Owner::Message(msg) => msg.finalize(outcome.status, health),
            Owner::Get(get) => get.finalize(outcome.status, health, self.arrived),
        }
    }
}
