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
        tx::{
            Op,
            Tx, //
        }, //
    }, //
};

/// A transmit that is over, for LNet.
pub(crate) enum FinishedTx {
    /// It went well, as most do.
    Well(Completed),
    /// It failed, or there is more to do than to give it back.
    Ended {
        ended: TransferEnd,
        cause: Option<Cause>,
        /// The device was given some of it.
        posted: bool,
        /// What it was to do next, or did last.
        op: Op,
        /// For how many milliseconds it was under way.
        age_ms: i64,
    },
}

/// A transmit that is over.
pub(crate) enum TakenTx {
    /// A message alone that went well.
    Well(Message),
    /// Another, which is in the place that was given for it.
    Other,
}

impl FinishedTx {
    // Apart, for the sake of messages alone.
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

    /// Why it failed, and how many messages of LNet's that are; `None` if it did not.
    pub(crate) fn failed(&self) -> Option<(Cause, usize)> {
        match self {
            Self::Well(_) => None,
            Self::Ended { ended, cause, .. } => Some(((*cause)?, ended.messages())),
        }
    }

    /// It ended while our own device reported a fatal error.
    pub(crate) fn on_broken_device(&mut self) {
        if let Self::Ended { cause, .. } = self {
            *cause = cause.map(Cause::on_broken_device);
        }
    }

    /// Whether the message goes over another connection, if it may be under way for `limit` milliseconds. Before it is
    /// said that the device is broken: that is no message's fault.
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

    /// Takes the message, if that is all that LNet gets back, and what LNet is told if it fails.
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

    /// Gives everything back to LNet. Process context, no lock held: LNet may send from inside.
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
