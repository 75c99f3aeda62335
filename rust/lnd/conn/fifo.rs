// SPDX-License-Identifier: GPL-2.0

//! First-in first-out queue with all its memory allocated in advance, so that the softirq half of a connection can add
//! entries without an allocation.
//!
//! # Invariants
//!
//! `len <= slots.len()`; the `len` slots from `head` on, modulo the number of slots, are `Some`.

use kernel::prelude::*;

/// The queue.
pub(crate) struct Fifo<T> {
    slots: KVec<Option<T>>,
    head: usize,
    len: usize,
}

impl<T> Fifo<T> {
    /// A queue without room.
    pub(crate) const EMPTY: Self = Self {
        slots: KVec::new(),
        head: 0,
        len: 0,
    };

    /// A queue with room for `n`. May sleep.
    pub(crate) fn with_capacity(n: usize) -> Result<Self> {
        let mut slots = KVec::with_capacity(n, GFP_KERNEL)?;
        for _ in 0..n {
            slots.push_within_capacity(None).map_err(|_| ENOMEM)?;
        }
        Ok(Self {
            slots,
            head: 0,
            len: 0,
        })
    }

    /// How many are in it.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Each of them, the oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        (0..self.len).filter_map(|ahead| self.slots.get(self.index(ahead))?.as_ref())
    }

    /// Whether nothing is in it.
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Puts one in at the end, or gives it back if there is no room.
    #[inline(always)]
    pub(crate) fn push(&mut self, item: T) -> Result<(), T> {
        let at = self.index(self.len);
        match self.slots.get_mut(at) {
            Some(slot @ None) => {
                // Nothing is dropped that way, and the compiler knows.
                core::mem::forget(slot.replace(item));
                // There are no more than slots.
                self.len = self.len.wrapping_add(1);
                Ok(())
            }
            _ => Err(item),
        }
    }

    /// Puts one in at the end, where there is room; else it is dropped.
    #[inline(always)]
    pub(crate) fn add(&mut self, item: T) {
        if let Err(item) = self.push(item) {
            no_room(item);
        }
    }

    /// Takes the oldest.
    pub(crate) fn pop(&mut self) -> Option<T> {
        if self.len == 0 {
            return None;
        }
        let item = self.slots.get_mut(self.head)?.take();
        self.head = self.index(1);
        self.len = self.len.saturating_sub(1);
        item
    }

    /// Does `f` to each of them, in no particular order.
    pub(crate) fn for_each(&mut self, f: impl FnMut(&mut T)) {
        self.slots.iter_mut().flatten().for_each(f);
    }

    /// The place of the one `ahead` of the oldest, which is no more than the number of slots.
    #[inline]
    fn index(&self, ahead: usize) -> usize {
        // It is in front of the end, and that is no more than memory has bytes.
        let at = self.head.wrapping_add(ahead);
        at.checked_sub(self.slots.len()).unwrap_or(at)
    }
}

/// Apart, so that who puts something in has nothing to drop.
#[cold]
#[inline(never)]
pub(super) fn no_room<T>(item: T) {
    drop(item);
}
