// SPDX-License-Identifier: GPL-2.0

//! Messages of a peer: sent over one of its connections, or kept until there is one.

use kernel::{
    alloc::flags::__GFP_NOWARN,
    prelude::*,
    sync::Arc, //
};

use super::{
    Connection,
    NotSent,
    Peer,
    PeerError,
    Peers, //
};
use crate::{
    lnd::{
        lnet_types::lnet_health,
        ni::Ni,
        pending::Pending, //
    },
    lnet::{
        Message,
        SendRequest, //
    },
    policy::link_state::SendPolicy,
    proto::{
        cause::Cause,
        nid::Nid, //
    },
    rdma::work::NofsScope, //
};

impl<C: Connection> Peers<C> {
    /// Sends a message to the peer with that NID, over one of its connections, or keeps it until there is one. May
    /// sleep; re-entrant.
    ///
    /// # Errors
    ///
    /// `ESHUTDOWN` if the NI stops; otherwise the error that prevents the send. LNet then owns the message.
    pub(crate) fn send(
        self: &Arc<Self>,
        nid: Nid,
        msg: Message,
        req: &SendRequest,
    ) -> Result<(), (Message, Error)> {
        let mut msg = msg;
        loop {
            let peer = match self.get_or_add(nid) {
                Ok(peer) => peer,
                Err(ENOMEM) => {
                    fail_msg(&self.ni, msg, Cause::NoResources);
                    return Ok(());
                }
                Err(e) => return Err((msg, e)),
            };
            match peer.send(msg, req) {
                Ok(()) => return Ok(()),
                Err(PeerError::Failed(msg, e)) => return Err((msg, e)),
                Err(PeerError::Gone(back)) => {
                    // The peer is leaving the table: after the removal, the next look-up creates a new one.
                    self.remove(&peer);
                    msg = back;
                }
            }
        }
    }
}

impl<C: Connection> Peer<C> {
    /// Returns the connection for the next message of LNet; none if there is no connection, or if the caller must hand
    /// over older messages first. Process context; the caller may be in a read section of the map of peers.
    #[inline]
    pub(crate) fn next_conn(&self) -> Option<Arc<C>> {
        let mut inner = self.inner.lock();
        match inner.gone {
            true => None,
            false => inner.pick(),
        }
    }

    /// Sends a message over one of the connections, or keeps it until there is one.
    ///
    /// # Errors
    ///
    /// [`PeerError::Gone`] if the peer is out of the table: look it up again.
    pub(crate) fn send(self: &Arc<Self>, msg: Message, req: &SendRequest) -> Result<(), PeerError> {
        let mut msg = msg;
        // A peer that has left the table has no connection, and no message can wait there.
        while let Some(conn) = self.next_conn() {
            match conn.send(msg, req) {
                Ok(()) => return Ok(()),
                Err(NotSent::Failed(msg, e)) => return Err(PeerError::Failed(msg, e)),
                Err(NotSent::Lost(msg, cause)) => {
                    self.lose_one(msg, cause);
                    return Ok(());
                }
                Err(NotSent::Closed(back)) => {
                    msg = back;
                    self.unpublish(&conn);
                }
            }
        }
        self.wait(msg, req)
    }

    /// Keeps a message until there is a connection, and starts an attempt if the link is up.
    #[cold]
    #[inline(never)]
    fn wait(self: &Arc<Self>, msg: Message, req: &SendRequest) -> Result<(), PeerError> {
        let _nofs = NofsScope::enter();
        let passage = self.ni.passage();
        if passage == SendPolicy::Refuse && self.with(|inner| inner.conns.usable() == 0) {
            self.lose_one(msg, self.ni.way(|way| way.why()));
            self.forget_if_unused();
            return Ok(());
        }
        let pending = match Pending::new(msg, req) {
            Ok(pending) => pending,
            Err(msg) => {
                self.lose_one(msg, Cause::NoResources);
                // The peer may have been created for this message.
                self.forget_if_unused();
                return Ok(());
            }
        };
        // The last messages for an NI that LNet deletes use existing connections or attempts.
        let listed = self.ni.is_listed();
        let (begins, flusher) = {
            let mut inner = self.inner.lock();
            if inner.gone {
                let (msg, _) = KBox::into_inner(pending).into_parts();
                return Err(PeerError::Gone(msg));
            }
            self.keep(&mut inner, pending, false);
            let begins = listed && inner.want(self, passage);
            (begins, inner.conns.best())
        };
        if begins {
            self.attempt();
        }
        if let Some(conn) = flusher {
            self.flush(&conn);
        } else if !listed {
            self.drop_pending();
        }
        Ok(())
    }

    /// Hands waiting messages in order to `conn`, and if that is closed to the next connection, until none waits. Does
    /// nothing if another thread does this.
    pub(super) fn flush(self: &Arc<Self>, conn: &Arc<C>) {
        let mut failed = KVec::new();
        let mut next = self.flush_over(conn, usize::MAX, &mut failed);
        // Not by recursion: all of many connections may be closed and still be listed.
        while let Some(conn) = next {
            next = self.flush_over(&conn, usize::MAX, &mut failed);
        }
        self.lose(failed);
    }

    /// Hands messages over like [`Peer::flush`], in the blocking worker of `conn`, which delays the close of `conn`. If
    /// `conn` is closed, only the messages that wait at that moment go over the next connection. Later messages are
    /// sent by their senders, or when `conn` is released.
    pub(super) fn flush_own(self: &Arc<Self>, conn: &Arc<C>) {
        let mut failed = KVec::new();
        let mut next = self.flush_over(conn, usize::MAX, &mut failed);
        while let Some(conn) = next {
            let waiting = self.with(|inner| inner.pending.len());
            next = self.flush_over(&conn, waiting, &mut failed);
        }
        self.lose(failed);
    }

    /// Hands up to `most` messages to `conn` alone, unless another thread hands messages over. Returns the connection
    /// to continue with if `conn` is closed. The caller finalizes the messages in `failed`, because LNet may be slow
    /// with them, and others wait; those without memory for that are finalized here.
    fn flush_over(
        self: &Arc<Self>,
        conn: &Arc<C>,
        most: usize,
        failed: &mut KVec<(Message, Cause)>,
    ) -> Option<Arc<C>> {
        if self.with(|inner| core::mem::replace(&mut inner.flushing, true)) {
            return None;
        }
        for _ in 0..most {
            let pending = {
                let mut inner = self.inner.lock();
                match inner.pending.pop_front() {
                    Some(pending) => pending,
                    None => {
                        inner.flushing = false;
                        return None;
                    }
                }
            };
            let since = pending.since();
            let (msg, req) = KBox::into_inner(pending).into_parts();
            match conn.send(msg, &req) {
                Ok(()) => {}
                Err(NotSent::Failed(msg, e)) => {
                    self.lose_later(failed, msg, Cause::Local(e.to_errno()));
                }
                Err(NotSent::Lost(msg, cause)) => self.lose_later(failed, msg, cause),
                Err(NotSent::Closed(msg)) => {
                    let back = Pending::again(msg, &req, since);
                    let mut late = None;
                    let mut lost = None;
                    {
                        // Under one lock, so that no other hand-over begins behind this message.
                        let mut inner = self.inner.lock();
                        inner.conns.unpublish(conn);
                        inner.flushing = false;
                        match back {
                            // The peer was forgotten while the message was on its way to the connection. Treated like a
                            // new message of LNet.
                            Ok(pending) if inner.gone => {
                                late = Some(KBox::into_inner(pending).into_parts());
                            }
                            Ok(pending) => self.keep(&mut inner, pending, true),
                            Err(msg) => lost = Some(msg),
                        }
                    }
                    if let Some((msg, req)) = late {
                        if let Err((msg, e)) = self.peers.send(self.nid, msg, &req) {
                            self.lose_one(msg, Cause::Local(e.to_errno()));
                        }
                    }
                    if let Some(msg) = lost {
                        self.lose_later(failed, msg, Cause::NoResources);
                    }
                    return self.next_for_waiting();
                }
            }
        }
        self.with(|inner| inner.flushing = false);
        None
    }

    /// Finds a connection for the waiting messages: an established one, or a new one.
    pub(super) fn serve_waiting(self: &Arc<Self>) {
        if let Some(conn) = self.next_for_waiting() {
            self.flush(&conn);
        }
    }

    /// Returns an established connection if messages wait. Starts an attempt if there is none.
    ///
    /// Starts no attempt if LNet deletes the NI. Then the messages end with the last object of the peer.
    fn next_for_waiting(self: &Arc<Self>) -> Option<Arc<C>> {
        let listed = self.ni.is_listed();
        let passage = self.ni.passage();
        let (begins, flusher) = self.with(|inner| {
            if inner.pending.is_empty() || inner.gone {
                return (false, None);
            }
            if let Some(conn) = inner.conns.best() {
                return (false, Some(conn));
            }
            (listed && inner.want(self, passage), None)
        });
        if begins {
            self.attempt();
        }
        flusher
    }

    /// Adds a message to those that [`Self::lose`] finalizes; finalizes it at once if there is no memory.
    fn lose_later(&self, failed: &mut KVec<(Message, Cause)>, msg: Message, cause: Cause) {
        let _ = failed.reserve(1, GFP_NOWAIT | __GFP_NOWARN);
        if failed.len() < failed.capacity() {
            let _ = failed.push_within_capacity((msg, cause));
        } else {
            self.lose_one(msg, cause);
        }
    }

    /// Finalizes messages as [`Self::lose_one`].
    fn lose(&self, failed: KVec<(Message, Cause)>) {
        let mut failed = failed;
        for (msg, cause) in failed.drain_all() {
            self.lose_one(msg, cause);
        }
    }

    /// Finalizes a message with `cause`, because LNet does not resend a message that the driver did not take.
    fn lose_one(&self, msg: Message, cause: Cause) {
        fail_msg(&self.ni, msg, cause);
    }
}

/// Finalizes a message of an NI with `cause`, because LNet does not resend a message that the driver did not take.
pub(crate) fn fail_msg(ni: &Ni, msg: Message, cause: Cause) {
    ni.close_stats.messages(cause, 1);
    let outcome = cause.outcome(false);
    msg.finalize(outcome.status, lnet_health(outcome.health));
}
