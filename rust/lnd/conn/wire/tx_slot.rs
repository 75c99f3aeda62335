// SPDX-License-Identifier: GPL-2.0

//! Slot of the table of transmits of a connection: the state of a transmit, and its payload.
//!
//! Context: part of the state that the connection lock protects.

use crate::{
    lnd::conn::transfer::Transfer,
    proto::tx_queues::{
        HasTxCell,
        TxCell, //
    }, //
};

/// Slot for a transmit.
pub(super) struct TxSlot {
    pub(super) cell: TxCell,
    /// Payload of the transmit; `None` while the slot is free.
    pub(super) transfer: Option<Transfer>,
}

impl TxSlot {
    /// Slot without a transmit.
    pub(super) const FREE: Self = Self {
        cell: TxCell::FREE,
        transfer: None,
    };
}

impl HasTxCell for TxSlot {
    #[inline(always)]
    fn cell(&self) -> &TxCell {
        &self.cell
    }

    #[inline(always)]
    fn cell_mut(&mut self) -> &mut TxCell {
        &mut self.cell
    }
}
