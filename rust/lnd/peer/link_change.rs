// SPDX-License-Identifier: GPL-2.0

//! A peer while the way to all of them is closed, and when it opens ([`crate::policy::link_state`] says why), or
//! leads over another device ([`crate::policy::device_failover`]).

use kernel::sync::Arc;

use super::{
    Connection,
    Peer,
    PeerInner, //
};
use crate::{
    policy::link_state::{
        SendPolicy,
        RECALL_MS, //
    },
    proto::cause::Cause,
    rdma::random, //
};

/// Milliseconds over which peers without a message are connected to when the way opens.
const RECALL_SPREAD_MS: u32 = 200;

impl<C: Connection> Peer<C> {
    /// The way is closed: a retry waits for it to open, but not for ever.
    pub(super) fn wait_for_way(self: &Arc<Self>) {
        // What waits holds up whoever deletes the NI.
        if !self.ni.is_listed() {
            self.let_go();
            // While a connection ends it is kept.
            return self.refuse_waiting();
        }
        if self.ni.passage() == SendPolicy::Refuse {
            self.refuse_waiting();
        }
        let now_ms = self.ni.now_ms();
        let again = self.with(|inner| {
            if self.ni.is_stopping() {
                // A connection that was released meanwhile may have asked for it.
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
            // The pause after an attempt may have ended meanwhile, and with it what is due.
            let again = inner.policy.hold() || inner.policy.is_due();
            if again {
                self.look_later(inner);
            }
            again
        });
        if !again {
            self.forget_if_idle(Some(self.ni.way(|way| way.why())));
        }
    }

    /// The way is about to close, on purpose: connections end as soon as what is under way on them has.
    pub(crate) fn way_closes(self: &Arc<Self>) {
        self.for_each_conn(|conn| conn.finish(Cause::LinkDown));
    }

    /// The way closed, or its device is gone: connections end, and if LNet has another way (`refuse`) so do messages
    /// that wait for one.
    pub(crate) fn way_closed(self: &Arc<Self>, refuse: bool) {
        let cause = self.ni.way(|way| way.why());
        self.for_each_conn(|conn| conn.fail(cause));
        if refuse {
            self.refuse_waiting();
        }
    }

    /// Returns how long the transport of a connection sends a packet again, in milliseconds: the longest of all
    /// connections. `None`: no connection knows.
    pub(crate) fn transport_ms(&self) -> Option<u64> {
        let mut longest = None;
        self.for_each_conn(|conn| longest = longest.max(conn.transport_ms()));
        longest
    }

    /// Ends all connections because peers reach the port at another address now.
    pub(crate) fn readdressed(&self) {
        self.for_each_conn(|conn| conn.fail(Cause::AddressChanged));
    }

    /// Ends the connections that send larger packets than `mtu` bytes, which the port does not take any more.
    pub(crate) fn fit_mtu(&self, mtu: u32) {
        self.for_each_conn(|conn| conn.fit_mtu(mtu));
    }

    /// LNet has another way for what waits.
    pub(crate) fn refuse_waiting(&self) {
        let waiting = self.with(|inner| inner.pending.take());
        let cause = self.ni.way(|way| way.why());
        self.ni.seen.messages(cause, waiting.len());
        waiting.fail(cause);
    }

    /// The way is open: what waits for it goes at once; others soon, but not all of them in the same moment. Of several
    /// connections that were held each is asked: the peer may have given some up meanwhile, and could not say so, and
    /// what goes over such a one is lost.
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

    /// The NI is on another device: what is on the old one ends, and is made anew. What waits goes on waiting.
    pub(crate) fn moved(self: &Arc<Self>) {
        self.for_each_conn(|conn| conn.moved());
    }

    /// A retry that is due is made soon, but not in the same moment as those of all other peers.
    pub(super) fn recall_soon(self: &Arc<Self>, inner: &mut PeerInner<C>) {
        self.retry_in(inner, random::u32() % RECALL_SPREAD_MS);
    }
}
