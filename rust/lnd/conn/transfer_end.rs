// SPDX-License-Identifier: GPL-2.0

//! Completion of a transfer: finalizes its LNet messages and frees its memory, after the state machine has reported
//! that no work request and no remote key uses the memory any more.
//!
//! Context: created in any context, finished in process context without a lock.

use super::rdma_sink::RdmaSink;
use crate::{
    lnd::lnet_types::{
        lnet_health,
        O2ib, //
    },
    lnet::{
        Get,
        Health as LnetHealth,
        Message,
        NiRef, //
    },
    proto::cause::{
        Cause,
        Health,
        Outcome, //
    },
    rdma::{
        owned_mapping::Mapping,
        sg::SgRef, //
    }, //
};

/// Owner of a transfer in LNet.
pub(super) enum Owner {
    /// LNet does not wait: a PUT_NAK, or an answer that carries only an error.
    Nobody,
    /// One LNet message.
    Message(Message),
    /// Optimised GET with the REPLY that LNet created for it.
    Get(Get<O2ib>),
    /// One LNet message, the pages of which are mapped.
    MappedMessage(Mapping<Message>),
    /// Optimised GET, the pages of which are mapped.
    MappedGet(Mapping<Get<O2ib>>),
}

impl Owner {
    /// Returns the mapping of its pages, if they are mapped.
    #[inline]
    pub(super) fn map(&self) -> Option<&SgRef> {
        match self {
            Self::MappedMessage(mapped) => Some(mapped.map()),
            Self::MappedGet(mapped) => Some(mapped.map()),
            Self::Nobody | Self::Message(_) | Self::Get(_) => None,
        }
    }

    /// Unmaps its pages, if they are mapped.
    #[inline(always)]
    pub(super) fn unmapped(self) -> Self {
        match self {
            Self::MappedMessage(mapped) => mapped.unmap().map_or(Self::Nobody, Self::Message),
            Self::MappedGet(mapped) => mapped.unmap().map_or(Self::Nobody, Self::Get),
            other => other,
        }
    }

    /// Unmaps its pages, and returns its message.
    ///
    /// # Errors
    ///
    /// Returns the owner if it is not just a message.
    pub(super) fn into_message(self) -> Result<Message, Self> {
        match self.unmapped() {
            Self::Message(msg) => Ok(msg),
            other => Err(other),
        }
    }

    /// Unmaps its pages, and finalizes it: `arrived` bytes came for a GET. Process context, no lock held: LNet may send
    /// from inside.
    #[inline(always)]
    fn finalize(self, status: i32, health: LnetHealth, arrived: u32) {
        // The usual cases directly: a mapped owner is not moved to be matched again.
        match self {
            Self::Nobody => {}
            Self::Message(msg) => msg.finalize(status, health),
            Self::Get(get) => get.finalize(status, health, arrived),
            Self::MappedMessage(mapped) => {
                if let Some(msg) = mapped.unmap() {
                    msg.finalize(status, health);
                }
            }
            Self::MappedGet(mapped) => {
                if let Some(get) = mapped.unmap() {
                    get.finalize(status, health, arrived);
                }
            }
        }
    }

    /// Creates the REPLY of a GET, see [`Message::into_get`].
    ///
    /// # Errors
    ///
    /// Returns the owner as it was.
    pub(super) fn into_get(self, ni: &NiRef<O2ib>) -> Result<Self, Self> {
        match self {
            Self::Message(msg) => msg.into_get(ni).map(Self::Get).map_err(Self::Message),
            Self::MappedMessage(mapped) => mapped
                .into_get(ni)
                .map(Self::MappedGet)
                .map_err(Self::MappedMessage),
            other => Err(other),
        }
    }
}

/// Memory of a transfer.
pub(super) enum TransferMemory {
    /// No memory, or it was copied into the message.
    None,
    /// Pages of its message, which this side's RDMA WRITEs read.
    Source,
    /// Sink that the peer's RDMA WRITEs write to.
    Sink(RdmaSink),
}

/// Owner of a transfer that succeeded, and the number of bytes that arrived for a GET.
pub(super) struct Completed(pub(super) Owner, pub(super) u32);

impl Completed {
    /// Finalizes it. Process context, no lock held: LNet may send from inside.
    #[inline(always)]
    pub(super) fn finish(self) {
        self.0.finalize(0, LnetHealth::Ok, self.1);
    }
}

/// Rest of a finished transfer.
pub(super) struct TransferEnd {
    owner: Owner,
    memory: TransferMemory,
    arrived: u32,
}

impl TransferEnd {
    /// Creates the rest for an owner for which `arrived` bytes came.
    #[inline(always)]
    pub(super) fn new(owner: Owner, memory: TransferMemory, arrived: u32) -> Self {
        Self {
            owner,
            memory,
            arrived,
        }
    }

    /// Returns the number of its LNet messages.
    pub(super) fn messages(&self) -> usize {
        usize::from(!matches!(self.owner, Owner::Nobody))
    }

    /// Creates the rest of a message that was not sent.
    pub(super) fn unsent(msg: Message) -> Self {
        Self {
            owner: Owner::Message(msg),
            memory: TransferMemory::None,
            arrived: 0,
        }
    }

    /// Takes the message, if LNet gets nothing more back, and unmaps its pages. Process context, no lock held.
    pub(super) fn take_message(&mut self) -> Option<Message> {
        if matches!(self.memory, TransferMemory::Sink(_)) {
            return None;
        }
        match core::mem::replace(&mut self.owner, Owner::Nobody).into_message() {
            Ok(msg) => Some(msg),
            Err(other) => {
                self.owner = other;
                None
            }
        }
    }

    /// Finalizes all its messages. Process context, no lock held: LNet may send from inside.
    // Inlined, so that the compiler knows at the call that nothing is left to be dropped.
    #[inline(always)]
    pub(super) fn finish(&mut self, cause: Option<Cause>, posted: bool) {
        let mut outcome = match cause {
            None => Outcome {
                status: 0,
                health: Health::Ok,
            },
            Some(cause) => cause.outcome(posted),
        };
        let let_go = match &mut self.memory {
            TransferMemory::Sink(sink) if cause.is_none() => sink.copy_out(self.arrived),
            _ => Ok(()),
        };
        self.memory = TransferMemory::None;
        if let Err(e) = let_go {
            outcome = Cause::Local(e.to_errno()).outcome(posted);
        }
        let health = lnet_health(outcome.health);
        let owner = core::mem::replace(&mut self.owner, Owner::Nobody);
        owner.finalize(outcome.status, health, self.arrived);
    }
}
