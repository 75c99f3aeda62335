// SPDX-License-Identifier: GPL-2.0

//! Finished transmit, on its way from the table to LNet.
//!
//! Context: taken under the connection lock; finished in process context, without it.

use crate::{
    lnd::conn::{
        transfer::{
            Completed,
            Transfer, //
        }, //
    },
    lnet::Message,
    policy::resend::Resend,
    proto::{
        cause::{
            Cause,
            Outcome, //
        },
        tx_state::{
            Op,
            Tx, //
        }, //
    }, //
};

/// Place for a finished transmit, for LNet: it succeeded (`well`), as most do, or it `ended` otherwise.
#[derive(Default)]
pub(crate) struct FinishedTx {
    well: Option<Completed>,
    ended: Option<EndedTx>,
}

/// Finished transmit that failed, or that needs more work than to be finalized.
pub(crate) struct EndedTx {
    ended: Transfer,
    cause: Option<Cause>,
    /// The device got some of its work requests.
    posted: bool,
    /// Its next operation, or its last.
    op: Op,
    /// Milliseconds since its begin.
    age_ms: i64,
}

/// Finished transmit as the table returns it.
pub(crate) enum TakenTx {
    /// Message alone that succeeded.
    Well(Message),
    /// Another transmit, which is in the place that was given for it.
    Other,
}

impl FinishedTx {
    /// Takes a transmit out of its entry of the table, perhaps into this place, which is empty.
    #[inline(always)]
    pub(super) fn take_tx(&mut self, tx: &Tx, entry: &mut Option<Transfer>) -> TakenTx {
        let msg = match (tx.cause(), &mut *entry) {
            (None, Some(transfer)) => transfer.take_plain_message(),
            _ => None,
        };
        match msg {
            Some(msg) => {
                Transfer::clear(entry);
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
    fn take(&mut self, tx: &Tx, entry: &mut Option<Transfer>) {
        if let (None, None, Some(transfer)) = (&self.well, tx.cause(), &mut *entry) {
            if let Some(well) = transfer.take_well() {
                // Nothing is dropped that way, and the compiler knows.
                core::mem::forget(self.well.replace(well));
                return Transfer::clear(entry);
            }
        }
        self.end(tx, entry);
    }

    #[cold]
    #[inline(never)]
    fn end(&mut self, tx: &Tx, entry: &mut Option<Transfer>) {
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

    /// Takes the transmit out, if it succeeded.
    #[inline]
    pub(crate) fn take_well(&mut self) -> Option<Completed> {
        self.well.take()
    }

    /// Takes the transmit out, if it did not.
    pub(crate) fn take_ended(&mut self) -> Option<EndedTx> {
        self.ended.take()
    }
}

impl EndedTx {
    /// Returns why it failed, and the number of its LNet messages; `None` if it did not fail.
    pub(crate) fn failed(&self) -> Option<(Cause, usize)> {
        Some((self.cause?, self.ended.messages()))
    }

    /// Notes that it ended while the local device reported a fatal error.
    pub(crate) fn on_broken_device(&mut self) {
        self.cause = self.cause.map(Cause::on_broken_device);
    }

    /// Returns whether to resend the message over another connection, if it may be under way for `limit` milliseconds.
    /// Must precede [`Self::on_broken_device`], because a broken device is no fault of the message.
    pub(crate) fn again(&self, limit: i64) -> Resend {
        self.cause.map_or(Resend::Nothing, |cause| {
            Resend::of(self.op, cause, self.posted, self.age_ms > limit)
        })
    }

    /// Takes the message, if LNet gets nothing more back, and the status for LNet if it fails.
    pub(crate) fn take_lost(&mut self) -> Option<(Message, Outcome)> {
        let outcome = self.cause?.outcome(self.posted);
        Some((self.ended.unmap_message()?, outcome))
    }

    /// Finalizes all its messages. Process context, no lock held: LNet may send from inside.
    #[inline(always)]
    pub(crate) fn finish(mut self) {
        self.ended.finish(self.cause, self.posted);
    }
}
