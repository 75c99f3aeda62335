// SPDX-License-Identifier: GPL-2.0

//! What was received and LNet has not taken, and what LNet has.
//!
//! The wire half puts requests in, in softirq, and never allocates; the LNet half takes them out, in
//! order.
//!
//! Context: any; a part of what the connection lock protects.
//!
//! # Invariants
//!
//! - There is room for as many requests as the connection has receive buffers, from set-up on.
//! - `owed` counts the requests that were put in and whose buffers did not come back.

use kernel::prelude::*;

use super::{
    fifo::Fifo,
    received::{
        Received,
        Rx, //
    }, //
};

/// As many [`Rx`] wait for their next request. LNet gives back most of them before it takes another.
const RX_KEPT: usize = 4;

/// The requests of a connection, a `C`.
pub(super) struct Inbox<C> {
    /// Received and judged, for LNet to take.
    requests: Fifo<Received>,
    /// Received before our own ESTABLISHED event (active side).
    early: Fifo<Received>,
    /// Requests that LNet has, or will, and has not returned the buffer of.
    owed: u16,
    /// Kept for the next requests.
    kept: KVec<KBox<Rx<C>>>,
}

/// Room for a number of messages.
pub(super) struct Room {
    requests: Fifo<Received>,
    early: Fifo<Received>,
}

impl Room {
    /// For as many as there are receive buffers. May sleep.
    pub(super) fn new(buffers: usize) -> Result<Self> {
        Ok(Self {
            requests: Fifo::with_capacity(buffers)?,
            early: Fifo::with_capacity(buffers)?,
        })
    }
}

impl<C> Inbox<C> {
    /// Without room.
    pub(super) const EMPTY: Self = Self {
        requests: Fifo::EMPTY,
        early: Fifo::EMPTY,
        owed: 0,
        kept: KVec::new(),
    };

    /// At set-up, before the first receive is posted.
    pub(super) fn open(&mut self, room: Room) {
        self.requests = room.requests;
        self.early = room.early;
    }

    /// Puts in a request that was judged; back without room, which the credits make sure of.
    #[inline]
    pub(super) fn push(&mut self, msg: Received) -> Result<(), Received> {
        self.owed = self.owed.saturating_add(1);
        self.requests.push(msg)
    }

    /// Puts back the request that was just taken.
    pub(super) fn put_back(&mut self, msg: Received) {
        // It has left its place.
        let _ = self.requests.push_front(msg);
    }

    /// Takes the oldest request, and what to give it to LNet in, if there is one of those.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<(Received, Option<KBox<Rx<C>>>)> {
        let msg = self.requests.pop()?;
        Some((msg, self.kept.pop()))
    }

    /// Whether no request waits for LNet.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Whether room to keep some [`Rx`] is wanted, [`Inbox::room_to_keep`].
    pub(super) fn keeps_none(&self) -> bool {
        self.kept.capacity() == 0
    }

    /// Room to keep some [`Rx`]. May sleep.
    pub(super) fn room_to_keep() -> Result<KVec<KBox<Rx<C>>>> {
        Ok(KVec::with_capacity(RX_KEPT, GFP_KERNEL)?)
    }

    /// Keeps some from now on. Room that is not wanted comes back.
    pub(super) fn keep_in(&mut self, room: &mut KVec<KBox<Rx<C>>>) {
        if self.keeps_none() {
            core::mem::swap(&mut self.kept, room);
        }
    }

    /// LNet is through with a request, and gives back what it had it in.
    #[inline]
    pub(super) fn returned(&mut self, rx: KBox<Rx<C>>) {
        self.lost();
        // Beyond the capacity it is freed.
        drop(self.kept.push_within_capacity(rx));
    }

    /// LNet did not take a request, or it turned out to be none.
    #[inline]
    pub(super) fn lost(&mut self) {
        self.owed = self.owed.saturating_sub(1);
    }

    /// Requests whose buffers have not come back.
    pub(super) fn owed(&self) -> u16 {
        self.owed
    }

    /// Keeps a message until the handshake is over; back without room.
    pub(super) fn park(&mut self, msg: Received) -> Result<(), Received> {
        self.early.push(msg)
    }

    /// Takes the oldest message that was kept.
    pub(super) fn unpark(&mut self) -> Option<Received> {
        self.early.pop()
    }

    /// What was kept, the oldest first, for people.
    pub(super) fn parked(&self) -> impl Iterator<Item = &Received> {
        self.early.iter()
    }

    /// How many are kept.
    pub(super) fn nr_parked(&self) -> usize {
        self.early.len()
    }

    /// The handshake failed: what was kept is dropped.
    pub(super) fn drop_parked(&mut self) {
        while let Some(early) = self.early.pop() {
            drop(early);
        }
    }

    /// What LNet has not been given yet goes to it without the device.
    pub(super) fn detach(&mut self) {
        self.requests.for_each(Received::detach);
    }
}
