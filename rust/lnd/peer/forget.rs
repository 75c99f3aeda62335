// SPDX-License-Identifier: GPL-2.0

//! End of a peer: its waiting messages fail, and the peer leaves the table.
//!
//! Context: process; may sleep, because LNet may send another message from inside when a message is finalized.

use kernel::sync::Arc;

use super::{
    Connection,
    Peer, //
};
use crate::{
    lnd::log,
    proto::cause::Cause, //
};

impl<C: Connection> Peer<C> {
    /// Closes every connection and every attempt, and fails the waiting messages.
    pub(crate) fn close(self: &Arc<Self>, cause: Cause) {
        let waiting = self.with(|inner| {
            inner.policy.no_more();
            inner.pending.take()
        });
        self.ni.close_stats.messages(cause, waiting.len());
        waiting.fail(cause);
        self.for_each_conn(|conn| conn.fail(cause));
        self.with(|inner| {
            let _ = inner.policy.cancel_retry();
            self.cancel_retry_timer();
        });
        self.forget_if_idle(Some(cause));
    }

    /// Fails the waiting messages, because LNet has another path for them.
    pub(crate) fn refuse_waiting(&self) {
        let waiting = self.with(|inner| inner.pending.take());
        let cause = self.ni.way(|way| way.why());
        self.ni.close_stats.messages(cause, waiting.len());
        waiting.fail(cause);
    }

    /// Cancels the retry and forgets an idle peer, because LNet deletes the NI: messages do not wait for another
    /// attempt.
    pub(super) fn drop_pending(self: &Arc<Self>) {
        self.with(|inner| {
            let _ = inner.policy.cancel_retry();
        });
        self.forget_if_idle(Some(Cause::Shutdown));
    }

    /// Takes the peer from its table if it has no waiting message and no connection. Does not blame the peer.
    pub(crate) fn forget_if_unused(self: &Arc<Self>) {
        if self.with(|inner| inner.pending.is_empty()) {
            self.forget_if_idle(Some(Cause::PeerClosed));
        }
    }

    /// Takes the peer from its table if it has no connection and no attempt, and fails the messages that still wait.
    pub(super) fn forget_if_idle(self: &Arc<Self>, cause: Option<Cause>) {
        self.forget(cause, true);
    }

    /// Takes the peer from its table like [`Peer::forget_if_idle`]. With `asked`, this node had requested a connection
    /// or had one, so LNet is notified that the peer is down if the cause blames the peer.
    pub(super) fn forget(self: &Arc<Self>, cause: Option<Cause>, asked: bool) {
        let (waiting, heard_ms) = {
            let mut inner = self.inner.lock();
            if !inner.policy.idle() || inner.gone || !inner.conns.is_empty() {
                return;
            }
            inner.gone = true;
            inner.leaves_line(self);
            (inner.pending.take(), inner.heard_ms)
        };
        self.cancel_pending_timer();
        self.cancel_retry_timer();
        self.peers.remove(self);
        let cause = cause
            .or_else(|| self.with(|inner| inner.last_cause))
            .unwrap_or(Cause::PeerClosed);
        if !waiting.is_empty() {
            self.ni.close_stats.messages(cause, waiting.len());
            log::gave_up(self.nid, waiting.len(), cause);
        }
        waiting.fail(cause);
        if asked && !self.ni.is_stopping() && cause.blames_peer() {
            let age = self.ni.now_ms().saturating_sub(heard_ms) / 1000;
            self.ni.lnet.notify_down(self.nid.raw(), age);
        }
    }
}
