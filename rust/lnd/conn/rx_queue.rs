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

/// Requests of a connection, a `C`.
pub(super) struct RxQueue<C> {
    /// Received and decoded requests for LNet.
    requests: Fifo<KBox<Rx<C>>>,
    /// Messages that arrived before this side's ESTABLISHED event (active side).
    early: Fifo<KBox<Rx<C>>>,
    /// Free places for messages.
    places: KVec<KBox<Rx<C>>>,
    /// Number of requests that LNet has, or will get, and has not returned.
    owed: u16,
    /// Number of these when the connection was closed, less those returned since ([`RxQueue::count_retained`]).
    retained: u16,
}

/// Memory for a number of messages.
pub(super) struct RxQueueRoom<C> {
    requests: Fifo<KBox<Rx<C>>>,
    early: Fifo<KBox<Rx<C>>>,
    places: KVec<KBox<Rx<C>>>,
}

impl<C> RxQueueRoom<C> {
    /// Allocates memory for as many messages as there are receive buffers. May sleep.
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
    /// No memory.
    pub(super) const EMPTY: Self = Self {
        requests: Fifo::EMPTY,
        places: KVec::new(),
        early: Fifo::EMPTY,
        owed: 0,
        retained: 0,
    };

    /// Sets the memory at set-up, before the first receive is posted.
    pub(super) fn open(&mut self, room: RxQueueRoom<C>) {
        self.requests = room.requests;
        self.places = room.places;
        self.early = room.early;
    }

    /// Returns a place with a message of `nob` bytes that is not decoded yet, received at the time `at`. Returns `None`
    /// without a free place; the credits ensure that there is one.
    #[inline]
    pub(super) fn place(&mut self, buf: RxBuf, nob: usize, at: Timestamp) -> Option<KBox<Rx<C>>> {
        let mut rx = self.places.pop()?;
        rx.fill(buf, nob, at);
        Some(rx)
    }

    /// Frees the place of a finished message whose buffer was taken out.
    #[inline(always)]
    pub(super) fn free(&mut self, rx: KBox<Rx<C>>) {
        // The place came from this list. If the connection is closed, the list has no room any more, and the place is
        // freed.
        if let Err(full) = self.places.push_within_capacity(rx) {
            no_room(full);
        }
    }

    /// Appends a decoded request.
    #[inline(always)]
    pub(super) fn push(&mut self, rx: KBox<Rx<C>>) {
        self.owed = self.owed.saturating_add(1);
        // There is room for all places.
        self.requests.add(rx);
    }

    /// Takes the oldest request.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<KBox<Rx<C>>> {
        self.requests.pop()
    }

    /// Returns whether no request waits for LNet.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Frees the place of a finished request, whose buffer was taken out. While the connection is up.
    #[inline]
    pub(super) fn returned(&mut self, rx: KBox<Rx<C>>) {
        self.owed = self.owed.saturating_sub(1);
        self.free(rx);
    }

    /// Frees it in any state of the connection. Returns true if the caller must count it as returned
    /// ([`RxQueue::count_retained`]).
    #[must_use]
    pub(super) fn returned_late(&mut self, rx: KBox<Rx<C>>) -> bool {
        self.returned(rx);
        let counted = self.retained > 0;
        self.retained = self.retained.saturating_sub(1);
        counted
    }

    /// Returns, at the close of the connection, the number of requests that LNet has not returned, for the caller to
    /// count.
    pub(super) fn count_retained(&mut self) -> u16 {
        self.retained = self.owed;
        self.retained
    }

    /// Returns the number of requests that LNet has not returned.
    pub(super) fn owed(&self) -> u16 {
        self.owed
    }

    /// Keeps a message until the handshake is over.
    pub(super) fn defer_early(&mut self, rx: KBox<Rx<C>>) {
        // There is room for all places.
        let _ = self.early.push(rx);
    }

    /// Takes the oldest message that was kept.
    pub(super) fn take_early(&mut self) -> Option<KBox<Rx<C>>> {
        self.early.pop()
    }

    /// Returns the kept messages, the oldest first, for debugfs.
    pub(super) fn parked(&self) -> impl Iterator<Item = &Received> {
        self.early.iter().map(|rx| rx.msg())
    }

    /// Returns the number of kept messages.
    pub(super) fn nr_parked(&self) -> usize {
        self.early.len()
    }

    /// Closes the queue at the end of the connection, after the last message: returns the free places, and the messages
    /// that waited for the end of the handshake and are dropped. The caller drops them without the lock, because LNet
    /// may keep the connection for long.
    pub(super) fn close(&mut self) -> RxQueueRoom<C> {
        RxQueueRoom {
            requests: Fifo::EMPTY,
            early: core::mem::replace(&mut self.early, Fifo::EMPTY),
            places: core::mem::take(&mut self.places),
        }
    }

    /// Unmaps the buffers of requests that LNet has not got yet: LNet gets these without the device.
    pub(super) fn detach(&mut self) {
        self.requests.for_each(|rx| rx.msg_mut().detach());
    }
}
