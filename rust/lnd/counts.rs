// SPDX-License-Identifier: GPL-2.0

//! Counters of a connection, for people. Plain numbers, under the lock of whoever has them.

use kernel::fmt;

/// What is counted, in the order in which it is shown.
#[derive(Clone, Copy)]
pub(crate) enum Count {
    /// Messages sent.
    TxMsgs,
    /// Messages received.
    RxMsgs,
    /// NOOPs among those sent.
    Noops,
    /// Work requests posted to the send queue.
    Wrs,
    /// Work requests of the send queue that ended.
    Retired,
    /// Calls of `ib_post_send`.
    Doorbells,
    /// Completions that told of ended work requests.
    Cqes,
    /// Work requests posted to the receive queue; known when the connection is over.
    RecvWrs,
    /// Receive completions reaped.
    RecvCqes,
    /// Times the pump stopped for want of a credit.
    NoCredit,
    /// Times the pump stopped for want of send queue slots.
    NoSlots,
    /// Sends that failed because the peer had no receive posted: its credits were wrong.
    Rnr,
    /// PUTs and GETs that found no reserved buffer for their answer, and waited for one.
    NoReserved,
    /// Messages that waited or failed for want of memory or memory regions here.
    NoMemory,
    /// Messages that had arrived when the connection ended, and were taken.
    Late,
}

/// The keys, in the order of [`Count`].
const KEYS: [&str; 15] = [
    "tx_msgs",
    "rx_msgs",
    "tx_noops",
    "wrs",
    "retired",
    "doorbells",
    "cqes",
    "recv_wrs",
    "recv_cqes",
    "no_credit",
    "no_slots",
    "rnr",
    "no_reserved",
    "no_memory",
    "late",
];

/// How many of them are in the middle of the line of a connection; what came later is at its end.
const FIRST: usize = 12;

/// Counters for people.
#[derive(Clone, Copy, Default)]
pub(crate) struct Counts([u64; KEYS.len()]);

impl Counts {
    /// Counts one more.
    #[inline(always)]
    pub(crate) fn one(&mut self, what: Count) {
        if let Some(n) = self.0.get_mut(what as usize) {
            *n = n.wrapping_add(1);
        }
    }

    /// Counts `n` more.
    #[inline(always)]
    pub(crate) fn more(&mut self, what: Count, n: u16) {
        if let Some(all) = self.0.get_mut(what as usize) {
            *all = all.wrapping_add(n.into());
        }
    }

    /// The same, but for the receives that were posted, which the queue pair counts.
    pub(crate) fn with_recv_wrs(mut self, recv_wrs: u64) -> Self {
        if let Some(n) = self.0.get_mut(Count::RecvWrs as usize) {
            *n = recv_wrs;
        }
        self
    }

    /// Adds those of a connection that is over to those of its NI.
    pub(crate) fn add(&mut self, of: &Self) {
        for (sum, n) in self.0.iter_mut().zip(of.0) {
            *sum = sum.wrapping_add(n);
        }
    }

    /// Writes the first of them as `key=value`, on the line that was begun.
    pub(crate) fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut space = "";
        for (key, n) in KEYS.iter().zip(self.0).take(FIRST) {
            write!(f, "{space}{key}={n}")?;
            space = " ";
        }
        Ok(())
    }

    /// Writes the others, for the end of the line.
    pub(crate) fn show_later(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (key, n) in KEYS.iter().zip(self.0).skip(FIRST) {
            write!(f, " {key}={n}")?;
        }
        Ok(())
    }
}
