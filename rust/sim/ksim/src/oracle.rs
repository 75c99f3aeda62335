// SPDX-License-Identifier: GPL-2.0

//! What a node's driver did, as its devices saw it. What the driver says of itself is compared with that, by
//! `oracle_check.rs` of the runner.

use crate::{
    decl::r::*,
    world::w, //
};

/// Numbers of a node since the world began.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Truth {
    /// Messages posted, NOOPs too.
    pub tx_msgs: u64,
    /// NOOPs among them.
    pub tx_noops: u64,
    /// Work requests that the send queue took.
    pub wrs: u64,
    /// Posts that it took something of.
    pub doorbells: u64,
    /// Its completions that the driver was called with.
    pub cqes: u64,
    /// Completions of receives that the driver was called with.
    pub recv_cqes: u64,
    /// A queue pair went with completions that nobody will see: what is said of those is about right.
    pub undrained: bool,
    /// Messages that the driver gave back to LNet with an error; a GET and its REPLY are one.
    pub messages: u64,
    /// Queue pairs of which a work request was refused when it was posted.
    pub refused_qps: u32,
}

impl Truth {
    /// By the names that the driver has for them.
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

    /// A completion is handed to the driver.
    pub(crate) fn completes(&mut self, wc: &ib_wc) {
        if wc.opcode == ib_wc_opcode_IB_WC_RECV {
            self.recv_cqes = self.recv_cqes.wrapping_add(1);
        } else {
            self.cqes = self.cqes.wrapping_add(1);
        }
    }

    /// The send queue takes a work request, of a message if it has that element; `rings`: the first of a post.
    ///
    /// # Safety
    ///
    /// The element is of memory that is there.
    pub(crate) unsafe fn takes(&mut self, rings: bool, message: Option<&ib_sge>) {
        const NOOP: u8 = 0xd0;
        self.wrs += 1;
        self.doorbells += u64::from(rings);
        if let Some(sge) = message {
            // SAFETY: By the contract of this function.
            let head =
                unsafe { core::slice::from_raw_parts(sge.addr as *const u8, sge.length as usize) };
            self.tx_msgs += 1;
            self.tx_noops += u64::from(head.get(6) == Some(&NOOP));
        }
    }

    /// It takes a marker, whose completion says that the queue is drained: people are not told of that.
    pub(crate) fn marks(&mut self) {
        self.cqes = self.cqes.wrapping_sub(1);
    }

    /// The same of the receive queue.
    pub(crate) fn marks_recv(&mut self) {
        self.recv_cqes = self.recv_cqes.wrapping_sub(1);
    }
}

/// That of a node.
pub(crate) fn of(node: usize) -> &'static mut Truth {
    &mut w().nodes[node].truth
}
