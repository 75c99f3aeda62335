// SPDX-License-Identifier: GPL-2.0

//! Table of the counters of a connection. The driver counts and shows them by it, and ro2ibtop reads them.

/// Calls the macro `$with` with the table: a name, and the key in debugfs and in ro2ibtop's JSON. The order is that of
/// debugfs. New rows go to the end.
macro_rules! conn_counters {
    ($with:ident) => {
        $with! {
            /// Messages sent.
            TxMsgs => tx_msgs,
            /// Messages received.
            RxMsgs => rx_msgs,
            /// NOOPs among the messages sent.
            Noops => tx_noops,
            /// Work requests posted to the send queue.
            Wrs => wrs,
            /// Completed work requests of the send queue.
            Retired => retired,
            /// Calls of `ib_post_send()`.
            Doorbells => doorbells,
            /// Completions of the send queue.
            Cqes => cqes,
            /// Work requests posted to the receive queue; counted when the connection closes.
            RecvWrs => recv_wrs,
            /// Completions of the receive queue.
            RecvCqes => recv_cqes,
            /// Times the pump stopped because it had no credit.
            NoCredit => no_credit,
            /// Times the pump stopped because it had no slot of the send queue.
            NoSlots => no_slots,
            /// Sends that failed because the peer had no receive posted: its credits were wrong.
            Rnr => rnr,
            /// PUTs and GETs that waited because no buffer was reserved for their answer.
            NoReserved => no_reserved,
            /// Messages that waited or failed because memory or memory regions ran out on this node.
            NoMemory => no_memory,
            /// Messages that had arrived when the connection closed, and were delivered to LNet.
            Late => late_rx,
        }
    };
}

pub(crate) use conn_counters;
