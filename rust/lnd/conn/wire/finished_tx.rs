// SPDX-License-Identifier: GPL-2.0

//! Finished transmit, on its way from the table to LNet.
//!
//! Context: taken under the connection lock; finished in process context, without it.

use crate::{
    lnd::conn::{
        transfer::Transfer,
        transfer_done::{
            Completed,
            TransferEnd, //
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

/// Finished transmit, for LNet.
pub(crate) enum FinishedTx {
    /// It succeeded, as most do.
    Well(Completed),
    /// It failed, or needs more work than to be finalized.
    Ended {
        ended: TransferEnd,
        cause: Option<Cause>,
        /// The device got some of its work requests.
        posted: bool,
        /// Its next operation, or its last.
        op: Op,
        /// Milliseconds since its begin.
        age_ms: i64,
    },
}

/// Finished transmit as the table returns it.
pub(crate) enum TakenTx {
    /// Message alone that succeeded.
    Well(Message),
    /// Another transmit, which is in the variable that was given for it.
    Other,
}

impl FinishedTx {
    // Separate function, for the sake of messages alone.
    #[inline(never)]
    pub(super) fn take(to: &mut Option<Self>, tx: &Tx, entry: &mut Option<Transfer>) {
        if let (None, None, Some(transfer)) = (&to, tx.cause(), &mut *entry) {
            if let Some(well) = transfer.take_well() {
                // Nothing is dropped that way, and the compiler knows.
                core::mem::forget(to.replace(Self::Well(well)));
                return Transfer::clear(entry);
            }
        }
        Self::take_ended(to, tx, entry);
    }

    #[cold]
    #[inline(never)]
    fn take_ended(to: &mut Option<Self>, tx: &Tx, entry: &mut Option<Transfer>) {
        if let (None, Some(transfer)) = (&to, &mut *entry) {
            core::mem::forget(to.replace(Self::Ended {
                ended: transfer.end(),
                cause: tx.cause(),
                posted: tx.was_posted(),
                op: tx.op(),
                age_ms: transfer.age_ms(),
            }));
        }
        Transfer::clear(entry);
    }

    /// Returns why it failed, and the number of its LNet messages; `None` if it did not fail.
    pub(crate) fn failed(&self) -> Option<(Cause, usize)> {
        match self {
            Self::Well(_) => None,
            Self::Ended { ended, cause, .. } => Some(((*cause)?, ended.messages())),
        }
    }

    /// Notes that it ended while the local device reported a fatal error.
    pub(crate) fn on_broken_device(&mut self) {
        if let Self::Ended { cause, .. } = self {
            *cause = cause.map(Cause::on_broken_device);
        }
    }

    /// Returns whether to resend the message over another connection, if it may be under way for `limit` milliseconds.
    /// Must precede [`Self::on_broken_device`], because a broken device is no fault of the message.
    pub(crate) fn again(&self, limit: i64) -> Resend {
        match self {
            Self::Ended {
                cause: Some(cause),
                posted,
                op,
                age_ms,
                ..
            } => Resend::of(*op, *cause, *posted, *age_ms > limit),
            _ => Resend::Nothing,
        }
    }

    /// Takes the message, if LNet gets nothing more back, and the status for LNet if it fails.
    pub(crate) fn take_lost(&mut self) -> Option<(Message, Outcome)> {
        match self {
            Self::Ended {
                ended,
                cause: Some(cause),
                posted,
                ..
            } => Some((ended.take_message()?, cause.outcome(*posted))),
            _ => None,
        }
    }

    /// Finalizes all its messages. Process context, no lock held: LNet may send from inside.
    #[inline(always)]
    pub(crate) fn finish(self) {
        match self {
            Self::Well(well) => well.finish(),
            Self::Ended {
                mut ended,
                cause,
                posted,
                ..
            } => ended.finish(cause, posted),
        }
    }
}
