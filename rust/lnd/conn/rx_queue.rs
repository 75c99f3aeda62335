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

use super::rx::{
    cold_drop,
    Rx, //
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

/// First-in first-out queue with all its memory allocated in advance.
///
/// # Invariants
///
/// `len <= slots.len()`; the `len` slots from `head` on, modulo the number of slots, are `Some`.
pub(crate) struct Fifo<T> {
    slots: KVec<Option<T>>,
    head: usize,
    len: usize,
}

impl<T> Fifo<T> {
    /// Queue without room.
    pub(crate) const EMPTY: Self = Self {
        slots: KVec::new(),
        head: 0,
        len: 0,
    };

    /// Creates a queue with room for `n` entries. May sleep.
    pub(crate) fn with_capacity(n: usize) -> Result<Self> {
        let mut slots = KVec::with_capacity(n, GFP_KERNEL)?;
        for _ in 0..n {
            slots.push_within_capacity(None).map_err(|_| ENOMEM)?;
        }
        Ok(Self {
            slots,
            ..Self::EMPTY
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends an entry, or returns it if there is no room.
    #[inline(always)]
    pub(crate) fn push(&mut self, item: T) -> Result<(), T> {
        let at = self.index(self.len);
        match self.slots.get_mut(at) {
            Some(slot @ None) => {
                // Nothing is dropped that way, and the compiler knows.
                core::mem::forget(slot.replace(item));
                // There are no more entries than slots.
                self.len = self.len.wrapping_add(1);
                Ok(())
            }
            _ => Err(item),
        }
    }

    /// Takes the oldest entry.
    pub(crate) fn pop(&mut self) -> Option<T> {
        if self.len == 0 {
            return None;
        }
        let item = self.slots.get_mut(self.head)?.take();
        self.head = self.index(1);
        self.len = self.len.saturating_sub(1);
        item
    }

    /// Calls `f` for each entry, in no particular order.
    pub(crate) fn for_each(&mut self, f: impl FnMut(&mut T)) {
        self.slots.iter_mut().flatten().for_each(f);
    }

    /// Returns the index of the entry `ahead` after the oldest; `ahead` is no more than the number of slots.
    #[inline]
    fn index(&self, ahead: usize) -> usize {
        // The entry is before the end, which is no more than the number of bytes of memory.
        let at = self.head.wrapping_add(ahead);
        at.checked_sub(self.slots.len()).unwrap_or(at)
    }
}
