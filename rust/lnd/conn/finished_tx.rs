// SPDX-License-Identifier: GPL-2.0

//! Finished transmit, on its way from the table to LNet.
//!
//! Context: taken under the connection lock; finished in process context, without it.

use super::tx_payload::{
    Completed,
    TxPayload, //
};
use crate::{
    lnet::Message,
    proto::{
        cause::Cause,
        tx_state::{
            Op,
            Tx, //
        }, //
    }, //
};

/// Place for a finished transmit, for LNet: it succeeded (`well`), as most do, or it `ended` otherwise.
#[derive(Default)]
pub(super) struct FinishedTx {
    pub(super) well: Option<Completed>,
    pub(super) ended: Option<EndedTx>,
}

/// Finished transmit that failed, or that needs more work than to be finalized.
pub(super) struct EndedTx {
    pub(super) ended: TxPayload,
    pub(super) cause: Option<Cause>,
    /// The device got some of its work requests.
    pub(super) posted: bool,
    /// Its next operation, or its last.
    pub(super) op: Op,
    /// Milliseconds since its begin.
    pub(super) age_ms: i64,
}

/// Finished transmit as the table returns it.
pub(super) enum TakenTx {
    /// Message alone that succeeded.
    Well(Message),
    /// Another transmit, which is in the place that was given for it.
    Other,
}

impl FinishedTx {
    /// Takes a transmit out of its entry of the table, perhaps into this place, which is empty.
    #[inline(always)]
    pub(super) fn take_tx(&mut self, tx: &Tx, entry: &mut Option<TxPayload>) -> TakenTx {
        let msg = match (tx.cause(), &mut *entry) {
            (None, Some(transfer)) => transfer.take_plain_message(),
            _ => None,
        };
        match msg {
            Some(msg) => {
                TxPayload::clear(entry);
                TakenTx::Well(msg)
            }
            None => {
                self.take(tx, entry);
                TakenTx::Other
            }
        }
    }

    // Separate function, for the sake of messages alone.
    #[inline(never)]
    fn take(&mut self, tx: &Tx, entry: &mut Option<TxPayload>) {
        if let (None, None, Some(transfer)) = (&self.well, tx.cause(), &mut *entry) {
            if let Some(well) = transfer.take_well() {
                // Nothing is dropped that way, and the compiler knows.
                core::mem::forget(self.well.replace(well));
                return TxPayload::clear(entry);
            }
        }
        self.end(tx, entry);
    }

    #[cold]
    #[inline(never)]
    fn end(&mut self, tx: &Tx, entry: &mut Option<TxPayload>) {
        if let Some(mut ended) = entry.take() {
            // Only what LNet gets back may outlive the table.
            (ended.buf, ended.spare) = (None, None);
            self.ended = Some(EndedTx {
                cause: tx.cause(),
                posted: tx.was_posted(),
                op: tx.op(),
                age_ms: ended.age_ms(),
                ended,
            });
        }
    }
}
