// SPDX-License-Identifier: GPL-2.0

//! Counters of a connection, as debugfs shows them. The owner's lock protects them.

use kernel::fmt;

/// Defines [`Count`] and the keys of debugfs, in the order in which they are shown.
macro_rules! counters {
    ($($(#[$doc:meta])+ $count:ident => $key:literal,)+) => {
        /// A counter.
        #[derive(Clone, Copy)]
        pub(crate) enum Count {
            $($(#[$doc])+ $count,)+
        }

        const KEYS: [&str; [$($key),+].len()] = [$($key),+];
    };
}

counters! {
    /// Messages sent.
    TxMsgs => "tx_msgs",
    /// Messages received.
    RxMsgs => "rx_msgs",
    /// NOOPs among the messages sent.
    Noops => "tx_noops",
    /// Work requests posted to the send queue.
    Wrs => "wrs",
    /// Completed work requests of the send queue.
    Retired => "retired",
    /// Calls of `ib_post_send()`.
    Doorbells => "doorbells",
    /// Completions of the send queue.
    Cqes => "cqes",
    /// Work requests posted to the receive queue; counted when the connection closes.
    RecvWrs => "recv_wrs",
    /// Completions of the receive queue.
    RecvCqes => "recv_cqes",
    /// Times the pump stopped because it had no credit.
    NoCredit => "no_credit",
    /// Times the pump stopped because it had no slot of the send queue.
    NoSlots => "no_slots",
    /// Sends that failed because the peer had no receive posted: its credits were wrong.
    Rnr => "rnr",
    /// PUTs and GETs that waited because no buffer was reserved for their answer.
    NoReserved => "no_reserved",
    /// Messages that waited or failed because memory or memory regions ran out on this node.
    NoMemory => "no_memory",
    /// Messages that had arrived when the connection closed, and were delivered to LNet.
    Late => "late_rx",
}

/// Number of counters in the middle of the line of a connection; later additions are at its end.
const FIRST: usize = 12;

/// Values of all counters of a connection, or their sums over the closed connections of an NI.
#[derive(Clone, Copy, Default)]
pub(crate) struct Counts([u64; KEYS.len()]);

impl Counts {
    /// Adds one to a counter.
    #[inline(always)]
    pub(crate) fn one(&mut self, what: Count) {
        if let Some(n) = self.0.get_mut(what as usize) {
            *n = n.wrapping_add(1);
        }
    }

    /// Adds `n` to a counter.
    #[inline(always)]
    pub(crate) fn more(&mut self, what: Count, n: u16) {
        if let Some(all) = self.0.get_mut(what as usize) {
            *all = all.wrapping_add(n.into());
        }
    }

    /// Returns the counters with `recv_wrs`, which the queue pair counts.
    pub(crate) fn with_recv_wrs(mut self, recv_wrs: u64) -> Self {
        if let Some(n) = self.0.get_mut(Count::RecvWrs as usize) {
            *n = recv_wrs;
        }
        self
    }

    /// Adds the counters of a closed connection to the sums of its NI.
    pub(crate) fn add(&mut self, of: &Self) {
        for (sum, n) in self.0.iter_mut().zip(of.0) {
            *sum = sum.wrapping_add(n);
        }
    }

    /// Writes the first counters as `key=value` on the line that the caller began.
    pub(crate) fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut space = "";
        for (key, n) in KEYS.iter().zip(self.0).take(FIRST) {
            write!(f, "{space}{key}={n}")?;
            space = " ";
        }
        Ok(())
    }

    /// Writes the other counters at the end of the line.
    pub(crate) fn show_later(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (key, n) in KEYS.iter().zip(self.0).skip(FIRST) {
            write!(f, " {key}={n}")?;
        }
        Ok(())
    }
}
