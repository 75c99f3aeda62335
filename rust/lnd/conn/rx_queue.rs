// SPDX-License-Identifier: GPL-2.0

//! Received requests that LNet has not taken yet, and requests that LNet holds.
//!
//! The wire half adds requests, in softirq, and never allocates; the LNet half takes them out, in order.
//!
//! Context: any; part of the state that the connection lock protects.
//!
//! # Invariants
//!
//! - `requests` and `early` have room for as many messages as the connection has receive buffers.
//! - `owed` counts the requests that were added and have not come back.

use kernel::prelude::*;

use super::{
    prealloc_fifo::Fifo,
    rx::{
        Received,
        Rx, //
    }, //
};
use crate::proto::broken;

/// Requests of a connection, a `C`.
pub(super) struct RxQueue<C> {
    /// Received and decoded requests for LNet.
    requests: Fifo<KBox<Rx<C>>>,
    /// Messages that arrived before this side's ESTABLISHED event (active side).
    early: Fifo<KBox<Rx<C>>>,
    /// Number of requests that LNet has, or will get, and has not returned.
    owed: u16,
    /// Number of these when the connection was closed, less those returned since ([`RxQueue::count_retained`]).
    retained: u16,
}

/// Memory for a number of messages.
pub(super) struct RxQueueRoom<C> {
    requests: Fifo<KBox<Rx<C>>>,
    early: Fifo<KBox<Rx<C>>>,
}

impl<C> RxQueueRoom<C> {
    /// Allocates memory for as many messages as there are receive buffers. May sleep.
    pub(super) fn new(buffers: usize) -> Result<Self> {
        Ok(Self {
            requests: Fifo::with_capacity(buffers)?,
            early: Fifo::with_capacity(buffers)?,
        })
    }
}

impl<C> RxQueue<C> {
    /// No memory.
    pub(super) const EMPTY: Self = Self {
        requests: Fifo::EMPTY,
        early: Fifo::EMPTY,
        owed: 0,
        retained: 0,
    };

    /// Sets the memory at set-up, before the first receive is posted.
    pub(super) fn open(&mut self, room: RxQueueRoom<C>) {
        self.requests = room.requests;
        self.early = room.early;
    }

    /// Appends a decoded request.
    #[inline(always)]
    pub(super) fn push(&mut self, rx: KBox<Rx<C>>) {
        self.owed = self.owed.saturating_add(1);
        // There is room for all messages.
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

    /// Notes that LNet has returned a request. While the connection is up.
    #[inline]
    pub(super) fn returned(&mut self) {
        let left = self.owed.checked_sub(1);
        self.owed = left.unwrap_or_else(|| broken("LNet returns a request twice"));
    }

    /// Notes it in any state of the connection. Returns true if the caller must count it as returned
    /// ([`RxQueue::count_retained`]).
    #[must_use]
    pub(super) fn returned_late(&mut self) -> bool {
        self.returned();
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
        // There is room for all messages.
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

    /// Closes the queue at the end of the connection, after the last message: returns the messages that waited for the
    /// end of the handshake and are dropped. The caller drops them without the lock, because LNet may keep the
    /// connection for long.
    pub(super) fn close(&mut self) -> RxQueueRoom<C> {
        RxQueueRoom {
            requests: Fifo::EMPTY,
            early: core::mem::replace(&mut self.early, Fifo::EMPTY),
        }
    }

    /// Unmaps the buffers of requests that LNet has not got yet: LNet gets these without the device.
    pub(super) fn detach(&mut self) {
        self.requests.for_each(|rx| rx.msg_mut().detach());
    }
}
