// SPDX-License-Identifier: GPL-2.0

//! Received requests that LNet has not taken yet, and requests that LNet holds.
//!
//! The wire half adds requests, in softirq, and never allocates; the LNet half takes them out, in order.
//!
//! Context: any; part of the state that the connection lock protects.
//!
//! # Invariants
//!
//! - There are as many places as the connection has receive buffers, from set-up to its end. Each is in `places`,
//!   `requests` or `early`, is held by LNet, or belongs to the message that is being processed.
//! - `owed` counts the requests that were added and have not come back.

use kernel::prelude::*;

use super::{
    fifo::{
        no_room,
        Fifo, //
    },
    rx::{
        Received,
        Rx, //
    }, //
};
use crate::{
    lnd::timestamp::Timestamp,
    rdma::buf::RxBuf, //
};

/// The requests of a connection, a `C`.
pub(super) struct RxQueue<C> {
    /// Received and judged, for LNet to take.
    requests: Fifo<KBox<Rx<C>>>,
    /// Received before our own ESTABLISHED event (active side).
    early: Fifo<KBox<Rx<C>>>,
    /// For what comes.
    places: KVec<KBox<Rx<C>>>,
    /// Requests that LNet has, or will, and has not given back.
    owed: u16,
    /// Those of them that were counted when the connection was over ([`RxQueue::count_retained`]).
    retained: u16,
}

/// Room for a number of messages.
pub(super) struct RxQueueRoom<C> {
    requests: Fifo<KBox<Rx<C>>>,
    early: Fifo<KBox<Rx<C>>>,
    places: KVec<KBox<Rx<C>>>,
}

impl<C> RxQueueRoom<C> {
    /// For as many as there are receive buffers. May sleep.
    pub(super) fn new(buffers: usize) -> Result<Self> {
        let mut places = KVec::with_capacity(buffers, GFP_KERNEL)?;
        for _ in 0..buffers {
            places
                .push_within_capacity(Rx::new()?)
                .map_err(|_| ENOMEM)?;
        }
        Ok(Self {
            requests: Fifo::with_capacity(buffers)?,
            places,
            early: Fifo::with_capacity(buffers)?,
        })
    }
}

impl<C> RxQueue<C> {
    /// Without room.
    pub(super) const EMPTY: Self = Self {
        requests: Fifo::EMPTY,
        places: KVec::new(),
        early: Fifo::EMPTY,
        owed: 0,
        retained: 0,
    };

    /// At set-up, before the first receive is posted.
    pub(super) fn open(&mut self, room: RxQueueRoom<C>) {
        self.requests = room.requests;
        self.places = room.places;
        self.early = room.early;
    }

    /// A place with a message of `nob` bytes that nobody has judged, received `at` that moment. Nothing without a free
    /// one, which the credits make sure of.
    #[inline]
    pub(super) fn place(&mut self, buf: RxBuf, nob: usize, at: Timestamp) -> Option<KBox<Rx<C>>> {
        let mut rx = self.places.pop()?;
        rx.fill(buf, nob, at);
        Some(rx)
    }

    /// A message is over, and its buffer was taken out: its place is free.
    #[inline(always)]
    pub(super) fn free(&mut self, rx: KBox<Rx<C>>) {
        // It was taken from there. If the connection is over there is no place any more, and it is freed.
        if let Err(full) = self.places.push_within_capacity(rx) {
            no_room(full);
        }
    }

    /// Puts in a request that was judged.
    #[inline(always)]
    pub(super) fn push(&mut self, rx: KBox<Rx<C>>) {
        self.owed = self.owed.saturating_add(1);
        // There is room for all that there are.
        self.requests.add(rx);
    }

    /// Takes the oldest request.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<KBox<Rx<C>>> {
        self.requests.pop()
    }

    /// Whether no request waits for LNet.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// A request is over, and its buffer was taken out. While the connection is up.
    #[inline]
    pub(super) fn returned(&mut self, rx: KBox<Rx<C>>) {
        self.owed = self.owed.saturating_sub(1);
        self.free(rx);
    }

    /// The same, whatever the connection is. True: it is to be counted off ([`RxQueue::count_retained`]).
    #[must_use]
    pub(super) fn returned_late(&mut self, rx: KBox<Rx<C>>) -> bool {
        self.returned(rx);
        let counted = self.retained > 0;
        self.retained = self.retained.saturating_sub(1);
        counted
    }

    /// The connection is over. Requests that have not come back, for somebody to count.
    pub(super) fn count_retained(&mut self) -> u16 {
        self.retained = self.owed;
        self.retained
    }

    /// Requests that have not come back.
    pub(super) fn owed(&self) -> u16 {
        self.owed
    }

    /// Keeps a message until the handshake is over.
    pub(super) fn defer_early(&mut self, rx: KBox<Rx<C>>) {
        // There is room for all that there are.
        let _ = self.early.push(rx);
    }

    /// Takes the oldest message that was kept.
    pub(super) fn take_early(&mut self) -> Option<KBox<Rx<C>>> {
        self.early.pop()
    }

    /// What was kept, the oldest first, for people.
    pub(super) fn parked(&self) -> impl Iterator<Item = &Received> {
        self.early.iter().map(|rx| rx.msg())
    }

    /// How many are kept.
    pub(super) fn nr_parked(&self) -> usize {
        self.early.len()
    }

    /// The connection is over, and nothing comes any more: the places that are free, and what was kept until the
    /// handshake was over and is dropped. For the caller to drop without the lock: LNet may keep the connection for
    /// long.
    pub(super) fn close(&mut self) -> RxQueueRoom<C> {
        RxQueueRoom {
            requests: Fifo::EMPTY,
            early: core::mem::replace(&mut self.early, Fifo::EMPTY),
            places: core::mem::take(&mut self.places),
        }
    }

    /// What LNet has not been given yet goes to it without the device.
    pub(super) fn detach(&mut self) {
        self.requests.for_each(|rx| rx.msg_mut().detach());
    }
}
