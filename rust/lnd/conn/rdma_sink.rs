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
    page_frags::PageVec, //
};

/// Sink of a transfer.
pub(super) struct RdmaSink {
    /// Key of the memory region that covers it.
    key: SinkKey,
    /// Set if LNet's pages have gaps, which one key cannot cover.
    bounce: Option<KBox<Bounce>>,
}

impl RdmaSink {
    /// Creates a sink behind a region whose registration is not posted; `bounce` if that covers a bounce buffer.
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

    /// Stores the region after its registration was pushed, in front of the message that tells the peer its key.
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

    /// Returns whether the data goes to a bounce buffer first.
    pub(super) fn is_bounced(&self) -> bool {
        self.bounce.is_some()
    }

    /// Copies the received data, `arrived` bytes, to LNet's pages if it is not there, when no key leads to it any more.
    /// Process context.
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

/// Bounce buffer: the peer writes into it, and the data is copied afterwards.
pub(super) struct Bounce {
    /// Pages of the bounce buffer.
    buf: BounceBuf,
    /// LNet's pages.
    to: PageVec,
}

impl Bounce {
    /// Creates a bounce buffer for LNet's pages.
    pub(super) fn new(buf: BounceBuf, to: PageVec) -> Self {
        Self { buf, to }
    }
}

/// Key of a sink, by the next operation that is allowed.
enum SinkKey {
    /// Its registration is not posted: no node can use it.
    Mapped(Mr<Mapped>),
    /// The peer may use it.
    Valid(Mr<Valid>),
    /// Its invalidation is posted, and the key is dead when that completes; or there is no key.
    Dead,
}
