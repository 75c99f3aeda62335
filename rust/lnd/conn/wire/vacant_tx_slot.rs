// SPDX-License-Identifier: GPL-2.0

//! Free place in the table of transmits that is about to be filled.
//!
//! Context: part of the state that the connection lock protects, and never stored.

use super::tx_slot::TxSlot;
use crate::{
    lnd::conn::transfer::Transfer,
    proto::{
        credits::Credits,
        tx_queues::TxQueues,
        tx_state::Op,
        wire::Cookie, //
    }, //
};

/// Free place for a transmit.
pub(super) struct VacantTxSlot<'a> {
    index: u16,
    cookie: Cookie,
    /// No transmit is queued.
    alone: bool,
    slot: &'a mut TxSlot,
}

impl<'a> VacantTxSlot<'a> {
    /// Creates the slot with that number, for a transmit of that name. `alone`: no other is queued.
    #[inline(always)]
    pub(super) fn new((index, cookie): (u16, Cookie), alone: bool, slot: &'a mut TxSlot) -> Self {
        Self {
            index,
            cookie,
            alone,
            slot,
        }
    }

    /// Returns its number.
    #[inline]
    pub(super) fn index(&self) -> u16 {
        self.index
    }

    /// Returns the transmit's name on the wire.
    #[inline]
    pub(super) fn cookie(&self) -> Cookie {
        self.cookie
    }

    /// Pays for a transmit of `op` if it need not wait: returns the credits that it carries. See [`TxQueues::try_pay`].
    #[inline(always)]
    pub(super) fn try_pay(
        &self,
        what: (Op, u16),
        credits: &mut Credits,
        sq_free: u16,
        patient: bool,
    ) -> Option<u8> {
        match self.alone {
            true => TxQueues::try_pay(what, credits, sq_free, patient),
            false => None,
        }
    }

    /// Stores a transmit, which takes `slots` to post. Returns its number, for the queue.
    #[inline(always)]
    pub(super) fn fill(self, slots: u16, transfer: Transfer) -> u16 {
        self.slot.transfer = Some(transfer);
        self.slot.cell.slots = slots;
        // The state allows it: the cell was just taken.
        let _ = self.slot.cell.tx.enqueue();
        self.index
    }

    /// Stores a transmit that is being posted. [`VacantTxSlot::pushed`] follows; if its work request cannot be pushed,
    /// it ends with the connection.
    #[inline(always)]
    pub(super) fn post(&mut self, transfer: Transfer) {
        self.slot.transfer = Some(transfer);
        // As above.
        let _ = self.slot.cell.tx.enqueue();
        self.slot.cell.tx.posting();
    }

    /// Notes that its work request was pushed.
    #[inline(always)]
    pub(super) fn pushed(self) {
        self.slot.cell.tx.pushed(1);
    }
}
