// SPDX-License-Identifier: GPL-2.0

//! First-in first-out queue with all its memory allocated in advance, so that the softirq half of a connection can add
//! entries without an allocation.
//!
//! # Invariants
//!
//! `len <= slots.len()`; the `len` slots from `head` on, modulo the number of slots, are `Some`.

use kernel::prelude::*;

/// First-in first-out queue of a fixed size.
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
