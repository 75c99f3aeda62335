// SPDX-License-Identifier: GPL-2.0

//! Received requests that LNet has not taken yet, and requests that LNet holds.
//!
//! Softirq code adds requests, and never allocates; the worker that calls LNet takes them out, in order.
//!
//! Context: any; part of the state that the connection lock protects.
//!
//! # Invariants
//!
//! - `rxs` has room for as many messages as the connection has receive buffers.
//! - The first `early` messages of `rxs` arrived before this side's ESTABLISHED event (active side), and are not
//!   decoded. The others are requests for LNet.
//! - `owed` counts the requests that were added and have not come back.

use kernel::prelude::*;

use super::{
    prealloc_fifo::Fifo,
    rx::{
        cold_drop,
        Rx, //
    }, //
};
use crate::proto::broken;

/// Requests of a connection, a `C`.
pub(super) struct RxQueue<C> {
    rxs: Fifo<KBox<Rx<C>>>,
    early: usize,
    /// Number of requests that LNet has, or will get, and has not returned.
    owed: u16,
    /// Number of these when the connection was closed, less those returned since ([`RxQueue::count_retained`]).
    retained: u16,
}

impl<C> RxQueue<C> {
    /// No memory.
    pub(super) const EMPTY: Self = Self {
        rxs: Fifo::EMPTY,
        early: 0,
        owed: 0,
        retained: 0,
    };

    /// Sets the memory, which has room for all receive buffers, at set-up, before the first receive is posted.
    pub(super) fn open(&mut self, room: Fifo<KBox<Rx<C>>>) {
        self.rxs = room;
    }

    /// Appends a decoded request.
    #[inline(always)]
    pub(super) fn push(&mut self, rx: KBox<Rx<C>>) {
        self.owed = self.owed.saturating_add(1);
        if let Err(rx) = self.rxs.push(rx) {
            // Never happens: there is room for all messages.
            cold_drop(rx);
        }
    }

    /// Takes the oldest request.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<KBox<Rx<C>>> {
        match self.early {
            0 => self.rxs.pop(),
            _ => None,
        }
    }

    /// Returns whether no request waits for LNet.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.rxs.len() == self.early
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

    /// Keeps a message until the handshake is over. No request was added yet.
    pub(super) fn defer_early(&mut self, rx: KBox<Rx<C>>) {
        // There is room for all messages.
        if self.rxs.push(rx).is_ok() {
            self.early = self.early.saturating_add(1);
        }
    }

    /// Takes the oldest message that was kept. The requests that the caller adds meanwhile are behind all of them.
    pub(super) fn take_early(&mut self) -> Option<KBox<Rx<C>>> {
        self.early = self.early.checked_sub(1)?;
        self.rxs.pop()
    }

    /// Unmaps the buffers of requests that LNet has not got yet: LNet gets these without the device.
    pub(super) fn detach(&mut self) {
        self.rxs.for_each(|rx| rx.detach());
    }
}
