// SPDX-License-Identifier: GPL-2.0

//! Memory that a peer writes to: a region with its key, and a bounce buffer if LNet's pages have gaps.
//!
//! Context: any, except for [`RdmaSink::copy_out`]. Owned by a transfer.
//!
//! # Invariants
//!
//! A key is registered at most once, before the message that carries it to the peer, and invalidated at most once. If
//! it is not invalidated, the destruction of the queue pair's regions ends it.

use kernel::prelude::*;

use crate::rdma::{
    bounce::BounceBuf,
    mr::{
        Mapped,
        Mr,
        Valid, //
    },
    page_vec::PageVec, //
};

/// The sink of a transfer.
pub(super) struct RdmaSink {
    /// The memory region that covers it.
    key: SinkKey,
    /// Set if LNet's pages have gaps, which one key cannot cover.
    bounce: Option<KBox<Bounce>>,
}

impl RdmaSink {
    /// Behind a region whose registration is not posted; `bounce` if that covers pages of ours.
    pub(super) fn new(mr: Mr<Mapped>, bounce: Option<KBox<Bounce>>) -> Self {
        Self {
            key: SinkKey::Mapped(mr),
            bounce,
        }
    }

    /// Takes the region, to register it.
    pub(super) fn take_unregistered(&mut self) -> Option<Mr<Mapped>> {
        match core::mem::replace(&mut self.key, SinkKey::Dead) {
            SinkKey::Mapped(mr) => Some(mr),
            SinkKey::Valid(_) | SinkKey::Dead => None,
        }
    }

    /// The registration is in the send queue, in front of the message that tells the peer.
    pub(super) fn registered(&mut self, mr: Mr<Valid>) {
        self.key = SinkKey::Valid(mr);
    }

    /// Takes the region that the peer may use, to invalidate it.
    pub(super) fn take_registered(&mut self) -> Option<Mr<Valid>> {
        match core::mem::replace(&mut self.key, SinkKey::Dead) {
            SinkKey::Valid(mr) => Some(mr),
            SinkKey::Mapped(_) | SinkKey::Dead => None,
        }
    }

    /// Whether the data goes to pages of ours first.
    pub(super) fn is_bounced(&self) -> bool {
        self.bounce.is_some()
    }

    /// The data is here, `arrived` bytes, and no key leads to it any more: copies it to LNet's pages if it
    /// is not in them. Process context.
    pub(super) fn copy_out(&mut self, arrived: u32) -> Result {
        let Some(bounce) = &mut self.bounce else {
            return Ok(());
        };
        let Bounce { buf, to } = &mut **bounce;
        let n = usize::try_from(arrived).map_err(|_| EOVERFLOW)?;
        buf.copy_to(to, n)
    }

    /// Takes the region out if its registration was never posted.
    pub(super) fn into_unregistered(self) -> Option<Mr<Mapped>> {
        match self.key {
            SinkKey::Mapped(mr) => Some(mr),
            SinkKey::Valid(_) | SinkKey::Dead => None,
        }
    }
}

/// The peer writes into pages of ours, and the data is copied afterwards.
pub(super) struct Bounce {
    /// Our pages.
    buf: BounceBuf,
    /// LNet's pages.
    to: PageVec,
}

impl Bounce {
    /// From pages of ours to LNet's.
    pub(super) fn new(buf: BounceBuf, to: PageVec) -> Self {
        Self { buf, to }
    }
}

/// The key of a sink, by what may be done with it next.
enum SinkKey {
    /// Its registration is not posted: nobody can use it.
    Mapped(Mr<Mapped>),
    /// The peer may use it.
    Valid(Mr<Valid>),
    /// Its invalidation is posted, and it is dead when that completes; or there is none.
    Dead,
}
