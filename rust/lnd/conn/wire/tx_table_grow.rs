// SPDX-License-Identifier: GPL-2.0

//! Growth of the table of transmits of a connection, allocated without its lock.

use kernel::prelude::*;

use super::tx_slot::TxSlot;
use crate::proto::constants::QueueDepth;

/// Minimum of transmits that are created when the table is full; half of the current number if that is more, because
/// the table moves each time.
const GROW_BY: usize = 16;

/// Limit of transmits that a table can name.
const TXS_MAX: usize = u16::MAX as usize;

/// Memory for a bigger table of transmits.
pub(crate) struct TxTableGrow {
    /// Number of transmits before.
    have: usize,
    want: usize,
    slots: KVVec<TxSlot>,
}

impl TxTableGrow {
    /// Allocates the first table of a connection, for this number of LNet's messages and of answers to the peer: enough
    /// to send without memory. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn first(messages: QueueDepth, answers: QueueDepth) -> Result<Self> {
        let all = usize::from(messages.get()).saturating_add(answers.get().into());
        Self::with(0, all.max(GROW_BY))
    }

    /// Allocates memory for more transmits than the `have` that the table has. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, `ENOSPC` if there can be no more.
    pub(crate) fn new(have: usize) -> Result<Self> {
        Self::with(have, have.saturating_add(GROW_BY.max(have / 2)))
    }

    fn with(have: usize, want: usize) -> Result<Self> {
        let want = want.min(TXS_MAX);
        if want <= have {
            return Err(ENOSPC);
        }
        Ok(Self {
            have,
            want,
            slots: KVVec::with_capacity(want, GFP_KERNEL)?,
        })
    }

    /// Moves all `slots` over, and adds free ones behind them: returns the number of the first of those. `None`: their
    /// number has changed, because another thread was faster. The content afterwards must be freed without the lock.
    pub(super) fn take_over(&mut self, slots: &mut KVVec<TxSlot>) -> Option<u16> {
        let first = u16::try_from(self.have).ok()?;
        if slots.len() != self.have {
            return None;
        }
        // There was room for all of this.
        for slot in slots.iter_mut() {
            let slot = core::mem::replace(slot, TxSlot::FREE);
            let _ = self.slots.push_within_capacity(slot);
        }
        for _ in self.have..self.want {
            let _ = self.slots.push_within_capacity(TxSlot::FREE);
        }
        core::mem::swap(&mut self.slots, slots);
        Some(first)
    }
}
