// SPDX-License-Identifier: GPL-2.0

//! What a transmit moves and for whom: the half of a tx that the state machine
//! ([`crate::proto::tx`]) does not see.
//!
//! A [`Transfer`] owns the LNet message it will finalize, the mapping of LNet's pages, and the
//! memory region of a sink. It is finished by [`Ended::finish`], in process context, after the
//! state machine said that no work request and no remote key touches the memory any more.

use kernel::{
    prelude::*,
    sync::Arc,
    time::{
        Instant,
        Monotonic, //
    }, //
};

use super::kind::O2ib;
use crate::{
    lnet::{
        Get,
        Health as LnetHealth,
        Message, //
    },
    proto::{
        cause::{
            Cause,
            Health,
            Outcome, //
        },
        desc::Descriptor,
        wire::Fragment, //
    },
    rdma::{
        bounce::BounceBuf,
        buf::TxBuf,
        mr::{
            Mapped,
            Mr,
            Valid, //
        },
        pages::PageVec,
        sg::SgMap, //
    }, //
};

/// What bounds the work requests of one transfer.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    /// Gather elements per WRITE.
    pub(crate) max_sge: usize,
    /// Send queue slots that one transfer can ever have.
    pub(crate) sq: u16,
    /// Slots that a registration and the message behind it take.
    pub(crate) reg_and_send: u16,
}

/// Whom a transfer is for.
pub(crate) enum Owner {
    /// Nobody waits: a PUT_NAK, or an answer that carries only an error.
    Nobody,
    /// One LNet message.
    Message(Message),
    /// An optimised GET and the REPLY that LNet made up for it.
    Get(Get<O2ib>),
}

/// The memory of a transfer.
pub(crate) enum Memory {
    /// None, or copied into the message.
    None,
    /// Read by RDMA WRITEs of ours.
    Source(Arc<SgMap>),
    /// Written by the peer's RDMA WRITEs.
    Sink(Sink),
}

/// The sink of a transfer.
pub(crate) struct Sink {
    /// The memory region that covers it.
    pub(crate) key: Key,
    /// Set if LNet's pages have gaps, which one key cannot cover.
    pub(crate) bounce: Option<KBox<Bounce>>,
}

/// The peer writes into pages of ours, and the data is copied afterwards.
pub(crate) struct Bounce {
    /// Our pages.
    pub(crate) buf: BounceBuf,
    /// LNet's pages.
    pub(crate) to: PageVec,
}

/// The key of a sink, by what may be done with it next.
pub(crate) enum Key {
    /// Its registration is not posted: nobody can use it.
    Mapped(Mr<Mapped>),
    /// The peer may use it.
    Valid(Mr<Valid>),
    /// Its invalidation is posted, and it is dead when that completes; or there is none.
    Dead,
}

/// The peer's sink.
pub(crate) struct Remote {
    /// Its key.
    pub(crate) key: u32,
    /// Its pieces.
    frags: Frags,
}

enum Frags {
    One([Fragment; 1]),
    Many(KVec<Fragment>),
}

impl Remote {
    /// Copies a descriptor out of a message. Peers on current kernels send one fragment, which
    /// needs no memory. Any context.
    pub(crate) fn new(rd: &Descriptor<'_>) -> Result<Self> {
        let mut pieces = rd.fragments().filter(|f| f.nob > 0);
        let frags = match (pieces.next(), rd.nfrags()) {
            (Some(only), 1) => Frags::One([only]),
            (Some(first), n) => {
                let mut all = KVec::with_capacity(usize::from(n), GFP_ATOMIC)?;
                for f in Iterator::chain(core::iter::once(first), pieces) {
                    all.push_within_capacity(f).map_err(|_| ENOMEM)?;
                }
                Frags::Many(all)
            }
            (None, _) => return Err(EPROTO),
        };
        Ok(Self {
            key: rd.key(),
            frags,
        })
    }

    /// Its key.
    pub(crate) fn key(&self) -> u32 {
        self.key
    }

    /// Its piece number `at`.
    pub(crate) fn fragment(&self, at: usize) -> Option<Fragment> {
        match &self.frags {
            Frags::One(one) => one.get(at),
            Frags::Many(all) => all.get(at),
        }
        .copied()
    }

    /// Its pieces in order, none of them empty.
    pub(crate) fn fragments(&self) -> impl Iterator<Item = Fragment> + '_ {
        match &self.frags {
            Frags::One(one) => one.iter().copied(),
            Frags::Many(all) => all.iter().copied(),
        }
    }
}

/// One transmit's payload.
pub(crate) struct Transfer {
    pub(crate) owner: Owner,
    pub(crate) memory: Memory,
    /// Where WRITEs go, once known.
    pub(crate) remote: Option<Remote>,
    /// The message to send next.
    pub(crate) buf: Option<TxBuf>,
    /// For the PUT_DONE of a PUT, which may be due before the PUT_REQ has left its buffer.
    pub(crate) spare: Option<TxBuf>,
    /// Bytes of the message in `buf`.
    pub(crate) nob: usize,
    /// Bytes to move by RDMA; of a sink, the bytes it can take.
    pub(crate) total: u32,
    /// Bytes that arrived in a sink.
    pub(crate) arrived: u32,
    /// When it was queued, for its deadline.
    pub(crate) since: Instant<Monotonic>,
}

impl Transfer {
    /// A transfer of a message alone.
    pub(crate) fn message(owner: Owner) -> Self {
        Self {
            owner,
            memory: Memory::None,
            remote: None,
            buf: None,
            spare: None,
            nob: 0,
            total: 0,
            arrived: 0,
            since: Instant::now(),
        }
    }

    /// How many work requests moving it to `remote` can take at most, the message included.
    ///
    /// # Errors
    ///
    /// `EMSGSIZE` if that is more than the send queue will ever have, `EPROTO` if the sink is too
    /// small.
    pub(crate) fn slots(&self, remote: &Remote, limits: Limits) -> Result<u16> {
        let Memory::Source(map) = &self.memory else {
            return Err(EPROTO);
        };
        let (mut pieces, mut room) = (0usize, 0u64);
        for fragment in remote.fragments() {
            pieces = pieces.saturating_add(1);
            room = room.saturating_add(u64::from(fragment.nob));
        }
        if room < u64::from(self.total.min(map.nob())) && self.total > 0 {
            return Err(EPROTO);
        }
        // A WRITE ends with a piece of the sink, or when it has all the gather elements it may
        // have; and each end of a piece may split a range of the source in two.
        let ranges = usize::try_from(map.nr_mapped())?.saturating_add(pieces);
        let full = ranges.checked_div(limits.max_sge).unwrap_or(ranges);
        let slots = u16::try_from(pieces.saturating_add(full).saturating_add(1))?;
        if slots > limits.sq {
            return Err(EMSGSIZE);
        }
        Ok(slots)
    }

    /// Takes out what LNet gets back; the rest is only for sending.
    pub(crate) fn end(&mut self) -> Ended {
        Ended {
            owner: core::mem::replace(&mut self.owner, Owner::Nobody),
            memory: core::mem::replace(&mut self.memory, Memory::None),
            arrived: self.arrived,
        }
    }
}

impl From<Owner> for Transfer {
    /// A transfer of a message alone.
    fn from(owner: Owner) -> Self {
        Self::message(owner)
    }
}

/// What is left of a transfer when it is over.
pub(crate) struct Ended {
    owner: Owner,
    memory: Memory,
    arrived: u32,
}

impl Ended {
    /// How many messages of LNet's it is for.
    pub(crate) fn messages(&self) -> usize {
        usize::from(!matches!(self.owner, Owner::Nobody))
    }

    /// That of a message which was not sent.
    pub(crate) fn unsent(msg: Message) -> Self {
        Self {
            owner: Owner::Message(msg),
            memory: Memory::None,
            arrived: 0,
        }
    }

    /// Gives everything back to LNet. Process context, no lock held: LNet may send from inside.
    pub(crate) fn finish(self, cause: Option<Cause>, posted: bool) {
        let mut outcome = match cause {
            None => Outcome {
                status: 0,
                health: Health::Ok,
            },
            Some(cause) => cause.outcome(posted),
        };
        // Unmapped, and the CPU's view synchronised, before anybody looks at the pages: a sink by
        // the end of its key, a source here.
        match self.memory {
            Memory::None => {}
            Memory::Source(map) => drop(map),
            Memory::Sink(sink) => {
                if let (Some(mut bounce), None) = (sink.bounce, cause) {
                    let Bounce { buf, to } = &mut *bounce;
                    let copied = usize::try_from(self.arrived)
                        .map_err(|_| EOVERFLOW)
                        .and_then(|n| buf.copy_to(to, n));
                    if let Err(e) = copied {
                        outcome = Cause::Local(e.to_errno()).outcome(posted);
                    }
                }
            }
        }
        let health = lnet_health(outcome.health);
        match self.owner {
            Owner::Nobody => {}
            Owner::Message(msg) => msg.finalize(outcome.status, health),
            Owner::Get(get) => get.finalize(outcome.status, health, self.arrived),
        }
    }
}

/// LNet's name for a health.
pub(crate) fn lnet_health(health: Health) -> LnetHealth {
    match health {
        Health::Ok => LnetHealth::Ok,
        Health::LocalDropped => LnetHealth::LocalDropped,
        Health::LocalAborted => LnetHealth::LocalAborted,
        Health::LocalError => LnetHealth::LocalError,
        Health::LocalTimeout => LnetHealth::LocalTimeout,
        Health::RemoteError => LnetHealth::RemoteError,
        Health::RemoteDropped => LnetHealth::RemoteDropped,
        Health::RemoteTimeout => LnetHealth::RemoteTimeout,
        Health::NetworkTimeout => LnetHealth::NetworkTimeout,
    }
}
