// SPDX-License-Identifier: GPL-2.0

//! Counters of a connection, for people. Plain numbers, under the lock of whoever has them.

use kernel::fmt;

/// Counters for people.
#[derive(Clone, Copy, Default)]
pub(crate) struct Counts {
    /// Messages sent.
    pub(crate) tx_msgs: u64,
    /// Messages received.
    pub(crate) rx_msgs: u64,
    /// NOOPs among those sent.
    pub(crate) noops: u64,
    /// Work requests posted to the send queue.
    pub(crate) wrs: u64,
    /// Calls of `ib_post_send`.
    pub(crate) doorbells: u64,
    /// Work requests of the send queue that ended.
    pub(crate) retired: u64,
    /// Completions that told so.
    pub(crate) cqes: u64,
    /// Work requests posted to the receive queue; known when the connection is over.
    pub(crate) recv_wrs: u64,
    /// Receive completions reaped.
    pub(crate) recv_cqes: u64,
    /// Times the pump stopped for want of a credit.
    pub(crate) no_credit: u64,
    /// Times the pump stopped for want of send queue slots.
    pub(crate) no_slots: u64,
    /// Sends that failed because the peer had no receive posted: its credits were wrong.
    pub(crate) rnr: u64,
}

impl Counts {
    /// Adds those of a connection that is over to those of its NI.
    pub(crate) fn add(&mut self, of: &Self) {
        for (sum, n) in [
            (&mut self.tx_msgs, of.tx_msgs),
            (&mut self.rx_msgs, of.rx_msgs),
            (&mut self.noops, of.noops),
            (&mut self.wrs, of.wrs),
            (&mut self.doorbells, of.doorbells),
            (&mut self.retired, of.retired),
            (&mut self.cqes, of.cqes),
            (&mut self.recv_wrs, of.recv_wrs),
            (&mut self.recv_cqes, of.recv_cqes),
            (&mut self.no_credit, of.no_credit),
            (&mut self.no_slots, of.no_slots),
            (&mut self.rnr, of.rnr),
        ] {
            *sum = sum.wrapping_add(n);
        }
    }

    /// Writes them as `key=value`, on the line that was begun.
    pub(crate) fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "tx_msgs={} rx_msgs={} tx_noops={} wrs={} retired={} doorbells={} cqes={} ",
            self.tx_msgs,
            self.rx_msgs,
            self.noops,
            self.wrs,
            self.retired,
            self.doorbells,
            self.cqes,
        )?;
        write!(
            f,
            "recv_wrs={} recv_cqes={} no_credit={} no_slots={} rnr={}",
            self.recv_wrs, self.recv_cqes, self.no_credit, self.no_slots, self.rnr,
        )
    }
}
