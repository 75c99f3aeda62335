// SPDX-License-Identifier: GPL-2.0

//! Behaviour of a peer while the link of the NI is down, when the link comes up ([`crate::policy::link_state`]), and
//! when the NI moves to another device ([`crate::policy::device_failover`]).

use kernel::sync::Arc;

use super::{
    Connection,
    Peer, //
};
use crate::{
    policy::link_state::{
        SendPolicy,
        RECALL_MS, //
    },
    proto::cause::Cause, //
};

impl<C: Connection> Peer<C> {
    /// Keeps a retry waiting for the link to come up, for a limited time.
    pub(super) fn wait_for_way(self: &Arc<Self>) {
        // Waiting messages delay the deletion of the NI.
        if !self.ni.is_listed() {
            self.drop_pending();
            // A peer with a closing connection is kept.
            return self.refuse_waiting();
        }
        if self.ni.passage() == SendPolicy::Refuse {
            self.refuse_waiting();
        }
        let now_ms = self.ni.now_ms();
        let again = self.with(|inner| {
            if self.ni.is_stopping() {
                // A connection released meanwhile may have asked for a retry.
                let _ = inner.policy.cancel_retry();
                return false;
            }
            let waiting = !inner.pending.is_empty();
            let recalled =
                inner.policy.is_recalled() && now_ms.saturating_sub(inner.lost_ms) < RECALL_MS;
            if !waiting && !recalled && !inner.policy.lacks_some() {
                let _ = inner.policy.cancel_retry();
                return false;
            }
            // The pause after an attempt may have ended meanwhile, and the retry with it.
            let again = inner.policy.hold() || inner.policy.is_due();
            if again {
                self.check_later(inner);
            }
            again
        });
        if !again {
            self.forget_if_idle(Some(self.ni.way(|way| way.why())));
        }
    }

    /// Closes each connection once its outstanding transfers have ended, because the link is about to be taken down.
    pub(crate) fn way_closes(self: &Arc<Self>) {
        self.for_each_conn(|conn| conn.finish(Cause::LinkDown));
    }

    /// Closes the connections because the link went down or the device is gone. If LNet has another path (`refuse`),
    /// also fails the messages that wait for a connection.
    pub(crate) fn way_closed(self: &Arc<Self>, refuse: bool) {
        let cause = self.ni.way(|way| way.why());
        self.for_each_conn(|conn| conn.fail(cause));
        if refuse {
            self.refuse_waiting();
        }
    }

    /// Returns for how long the transport of a connection retransmits a packet, in milliseconds: the maximum over all
    /// connections. `None`: no connection knows.
    pub(crate) fn transport_ms(&self) -> Option<u64> {
        let mut longest = None;
        self.for_each_conn(|conn| longest = longest.max(conn.transport_ms()));
        longest
    }

    /// Closes all connections because the address of the port changed.
    pub(crate) fn readdressed(&self) {
        self.for_each_conn(|conn| conn.fail(Cause::AddressChanged));
    }

    /// Closes the connections that send packets larger than `mtu` bytes, because the port no longer takes them.
    pub(crate) fn fit_mtu(&self, mtu: u32) {
        self.for_each_conn(|conn| conn.fit_mtu(mtu));
    }

    /// Reconnects because the link came up: at once if messages wait; otherwise soon, but not at the same moment as all
    /// other peers. If several connections survived, probes each of them: the peer may have closed some meanwhile
    /// without being able to say so, and messages sent on these would be lost.
    pub(crate) fn way_opened(self: &Arc<Self>) {
        if self.with(|inner| inner.conns.usable() > 1) {
            self.doubt_all();
        }
        self.with(|inner| {
            if !inner.policy.is_due() {
                return;
            }
            if inner.pending.is_empty() {
                self.recall_soon(inner);
            } else {
                self.retry_in(inner, 0);
            }
        });
    }

    /// Closes the connections on the old device, because the NI moved to another one. Waiting messages keep waiting.
    pub(crate) fn moved(self: &Arc<Self>) {
        self.for_each_conn(|conn| conn.moved());
    }
}
