// SPDX-License-Identifier: GPL-2.0

//! A transmit that is over, on its way from the table to LNet.
//!
//! Context: taken under the connection lock; finished in process context, without it.

use crate::{
    lnd::conn::transfer::{
        Ended,
        Transfer, //
    },
    lnet::Message,
    proto::{
        cause::Cause,
        tx::Tx, //
    }, //
};

/// A transmit that is over, for LNet.
pub(crate) struct Finished {
    ended: Ended,
    cause: Option<Cause>,
    /// The device was given some of it.
    posted: bool,
}

/// A transmit that is over.
pub(crate) enum Over {
    /// A message alone that went well, as most do.
    Well(Message),
    /// Another, which is in the place that was given for it.
    Other,
}

impl Finished {
    // Apart, because most were a message alone and went well.
    #[inline(never)]
    pub(super) fn take(to: &mut Option<Self>, tx: &Tx, entry: &mut Option<Transfer>) {
        if let (None, Some(transfer)) = (&to, &mut *entry) {
            // Nothing is dropped that way, and the compiler knows.
            core::mem::forget(to.replace(Self {
                ended: transfer.end(),
                cause: tx.cause(),
                posted: tx.was_posted(),
            }));
        }
        Transfer::clear(entry);
    }

    /// Why it failed, and how many messages of LNet's that are; `None` if it did not.
    pub(crate) fn failed(&self) -> Option<(Cause, usize)> {
        Some((self.cause?, self.ended.messages()))
    }

    /// Gives everything back to LNet. Process context, no lock held: LNet may send from inside.
    #[inline(always)]
    pub(crate) fn finish(&mut self) {
        self.ended.finish(self.cause, self.posted)
    }
}
