// SPDX-License-Identifier: GPL-2.0

//! True counts of a node's driver, as its devices saw them. `true_counts_check.rs` of the runner
//! compares the driver's own counters with them.

use crate::{
    decl::r::*,
    world::w, //
};

/// Counts of a node since the world began.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Truth {
    /// Messages posted, with NOOPs.
    pub tx_msgs: u64,
    /// NOOPs among them.
    pub tx_noops: u64,
    /// Work requests that the send queue took.
    pub wrs: u64,
    /// Posts of which the send queue took a work request.
    pub doorbells: u64,
    /// Completions of sends that the driver got.
    pub cqes: u64,
    /// Completions of receives that the driver got.
    pub recv_cqes: u64,
    /// A queue pair was destroyed with completions that no driver sees: the driver's counts of
    /// these are approximate.
    pub undrained: bool,
    /// Messages that the driver finalized with an error; a GET and its REPLY are one message.
    pub messages: u64,
    /// Queue pairs that refused a work request when it was posted.
    pub refused_qps: u32,
}

impl Truth {
    /// Returns the counts with the driver's names.
    pub fn named(&self) -> [(&'static str, u64); 6] {
        [
            ("tx_msgs", self.tx_msgs),
            ("tx_noops", self.tx_noops),
            ("wrs", self.wrs),
            ("doorbells", self.doorbells),
            ("cqes", self.cqes),
            ("recv_cqes", self.recv_cqes),
        ]
    }

    /// Counts a completion that the driver gets.
    pub(crate) fn completes(&mut self, wc: &ib_wc) {
        if wc.opcode == ib_wc_opcode_IB_WC_RECV {
            self.recv_cqes = self.recv_cqes.wrapping_add(1);
        } else {
            self.cqes = self.cqes.wrapping_add(1);
        }
    }

    /// Counts a work request that the send queue takes, with the message that it sends, if any;
    /// `rings`: the first work request of a post.
    pub(crate) fn takes(&mut self, rings: bool, message: Option<&[u8]>) {
        const NOOP: u8 = 0xd0;
        self.wrs += 1;
        self.doorbells += u64::from(rings);
        if let Some(head) = message {
            self.tx_msgs += 1;
            self.tx_noops += u64::from(head.get(6) == Some(&NOOP));
        }
    }

    /// Counts a marker in the send queue, whose completion shows that the queue is drained: no
    /// counter of the driver includes it.
    pub(crate) fn marks(&mut self) {
        self.cqes = self.cqes.wrapping_sub(1);
    }

    /// Counts such a marker in the receive queue.
    pub(crate) fn marks_recv(&mut self) {
        self.recv_cqes = self.recv_cqes.wrapping_sub(1);
    }
}

/// Returns the counts of a node.
pub(crate) fn of(node: usize) -> &'static mut Truth {
    &mut w().nodes[node].truth
}
