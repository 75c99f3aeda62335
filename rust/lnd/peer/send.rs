// SPDX-License-Identifier: GPL-2.0

//! Messages of a peer: sent over one of its connections, or kept until there is one, for a limited time.
//!
//! The timer of messages that wait depends on nothing else: not on an attempt of this node (a peer that sends requests
//! all the time and never continues leaves none), not on the turn of a worker (a worker may wait for minutes behind a
//! device that hangs), not on a retry. While messages wait, the timer runs once a second: LNet, which deletes an NI,
//! waits for its messages, too, and these must not wait for the pause before another attempt.
//!
//! # Invariants
//!
//! While messages wait in a peer that is in its table, the timer is armed, or is running and has not taken the lock
//! yet. It is armed only for such a peer, with the peer lock held; the code that takes a peer from the table cancels
//! the timer afterwards.

use kernel::{
    prelude::*,
    sync::Arc,
    workqueue::WorkItem, //
};

use super::{
    pending::{
        fail_msg,
        Pending,
        PendingList, //
    },
    Connection,
    NotSent,
    Peer,
    PeerInner,
    Peers,
    PENDING, //
};
use crate::{
    lnet::{
        Message,
        SendRequest, //
    },
    policy::{
        connect_queue::{
            next_look_ms,
            pending_limit_ms,
            QueueState, //
        },
        link_state::SendPolicy, //
    },
    proto::{
        cause::Cause,
        nid::Nid, //
    },
    rdma::work::{
        self,
        NofsScope, //
    }, //
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
        let next = self.table.with(nid.addr(), |peer| peer.next_conn());
        let mut result = match next.flatten() {
            // Usually this is all, and no reference on the peer is needed.
            Some(conn) => conn.send(msg, req),
            None => Err(NotSent::Closed(msg)),
        };
        loop {
            let msg = match result {
                Ok(()) => return Ok(()),
                Err(NotSent::Failed(msg, e)) => return Err((msg, e)),
                Err(NotSent::Lost(msg, cause)) => {
                    fail_msg(&self.ni, msg, cause);
                    return Ok(());
                }
                Err(NotSent::Closed(msg)) => msg,
            };
            result = match self.get_or_add(nid) {
                Ok(peer) => peer.send(msg, req),
                Err(ENOMEM) => Err(NotSent::Lost(msg, Cause::NoResources)),
                Err(e) => Err(NotSent::Failed(msg, e)),
            };
        }
    }
}

impl<C: Connection> Peer<C> {
    /// Returns the connection for the next message of LNet; none if there is no connection, or if the caller must hand
    /// over older messages first. Process context; the caller may be in a read section of the map of peers.
    #[inline]
    fn next_conn(&self) -> Option<Arc<C>> {
        let mut inner = self.inner.lock();
        if inner.gone || !inner.pending.is_empty() && !inner.flushing {
            return None;
        }
        inner.conns.pick()
    }

    /// Sends a message over one of the connections, or keeps it until there is one.
    fn send(self: &Arc<Self>, msg: Message, req: &SendRequest) -> Result<(), NotSent> {
        let mut msg = msg;
        // A peer that has left the table has no connection, and no message can wait there.
        while let Some(conn) = self.next_conn() {
            match conn.send(msg, req) {
                Err(NotSent::Closed(back)) => msg = back,
                result => return result,
            }
            self.unpublish(&conn);
        }
        self.wait(msg, req)
    }

    /// Keeps a message until there is a connection, and starts an attempt if the link is up.
    #[cold]
    #[inline(never)]
    fn wait(self: &Arc<Self>, msg: Message, req: &SendRequest) -> Result<(), NotSent> {
        let _nofs = NofsScope::enter();
        let passage = self.ni.passage();
        let kept =
            match passage == SendPolicy::Refuse && self.with(|inner| inner.conns.usable() == 0) {
                true => Err((msg, self.ni.way(|way| way.why()))),
                false => Pending::new(msg, req).map_err(|msg| (msg, Cause::NoResources)),
            };
        let pending = match kept {
            Ok(pending) => pending,
            Err((msg, cause)) => {
                // The peer may have been created for this message.
                self.forget_if_unused();
                return Err(NotSent::Lost(msg, cause));
            }
        };
        // The last messages for an NI that LNet deletes use existing connections or attempts.
        let listed = self.ni.is_listed();
        let (turn, flusher) = {
            let mut inner = self.inner.lock();
            if inner.gone {
                drop(inner);
                // After the removal, the next look-up creates a new peer.
                self.peers.remove(self);
                let msg = KBox::into_inner(pending).msg;
                return msg.map_or(Ok(()), |msg| Err(NotSent::Closed(msg)));
            }
            inner.pending.push_back(pending);
            self.arm_pending_timer(&inner);
            let turn = match listed {
                true => inner.want(self, passage),
                false => None,
            };
            (turn, inner.conns.best())
        };
        if let Some(turn) = turn {
            self.attempt(turn);
        }
        if let Some(conn) = flusher {
            self.flush(conn, false);
        } else if !listed {
            self.drop_retry(Cause::Shutdown);
        }
        Ok(())
    }

    /// Hands waiting messages in order to `conn`, and if that is closed to the next connection, until none waits. Does
    /// nothing if another thread does this.
    ///
    /// `own`: the caller is the blocking worker of `conn`, and delays its close. If `conn` is closed, only the messages
    /// that wait at that moment go over the next connection. Later messages are sent by their senders, or when `conn`
    /// is released.
    pub(super) fn flush(self: &Arc<Self>, conn: Arc<C>, own: bool) {
        // Finalized last, because LNet may be slow with them, and others wait.
        let mut failed = PendingList::EMPTY;
        let mut next = Some(conn);
        let mut most = usize::MAX;
        // Not by recursion: all of many connections may be closed and still be listed.
        while let Some(conn) = next {
            next = self.flush_over(&conn, most, &mut failed);
            if own {
                most = self.with(|inner| inner.pending.len());
            }
        }
        failed.fail(&self.ni, Cause::PeerClosed);
    }

    /// Hands up to `most` messages to `conn` alone, unless another thread hands messages over. Returns the connection
    /// to continue with if `conn` is closed. Adds messages that the caller finalizes to `failed`.
    fn flush_over(
        self: &Arc<Self>,
        conn: &Arc<C>,
        most: usize,
        failed: &mut PendingList,
    ) -> Option<Arc<C>> {
        if self.with(|inner| core::mem::replace(&mut inner.flushing, true)) {
            return None;
        }
        for _ in 0..most {
            let next = self.with(|inner| {
                let next = inner.pending.pop_front();
                inner.flushing = next.is_some();
                next
            });
            let mut pending = next?;
            let Some(msg) = pending.msg.take() else {
                continue;
            };
            let (msg, cause) = match conn.send(msg, &pending.req) {
                Ok(()) => continue,
                Err(NotSent::Failed(msg, e)) => (msg, Cause::Local(e.to_errno())),
                Err(NotSent::Lost(msg, cause)) => (msg, cause),
                Err(NotSent::Closed(msg)) => {
                    pending.msg = Some(msg);
                    self.take_back(conn, pending);
                    return self.next_for_waiting();
                }
            };
            pending.msg = Some(msg);
            pending.cause = Some(cause);
            failed.push_back(pending);
        }
        self.with(|inner| inner.flushing = false);
        None
    }

    /// Keeps a message in front of the others, because `conn` is closed, and ends the hand-over.
    fn take_back(self: &Arc<Self>, conn: &Arc<C>, pending: KBox<Pending>) {
        // Under one lock, so that no other hand-over begins behind this message.
        let late = self.with(|inner| {
            inner.conns.publish(conn, false);
            inner.flushing = false;
            if inner.gone {
                return Some(pending);
            }
            inner.pending.push_front(pending);
            self.arm_pending_timer(inner);
            None
        });
        // The peer was forgotten while the message was on its way to the connection. Treated like a new message of
        // LNet.
        if let Some(Pending {
            msg: Some(msg),
            req,
            ..
        }) = late.map(KBox::into_inner)
        {
            if let Err((msg, e)) = self.peers.send(self.nid, msg, &req) {
                fail_msg(&self.ni, msg, Cause::Local(e.to_errno()));
            }
        }
    }

    /// Finds a connection for the waiting messages: an established one, or a new one.
    pub(crate) fn serve_waiting(self: &Arc<Self>) {
        if let Some(conn) = self.next_for_waiting() {
            self.flush(conn, false);
        }
    }

    /// Returns an established connection if messages wait. Starts an attempt if there is none.
    ///
    /// Starts no attempt if LNet deletes the NI. Then the messages end with the last object of the peer.
    fn next_for_waiting(self: &Arc<Self>) -> Option<Arc<C>> {
        let listed = self.ni.is_listed();
        let passage = self.ni.passage();
        let (turn, flusher) = self.with(|inner| {
            if inner.pending.is_empty() || inner.gone {
                return (None, None);
            }
            match inner.conns.best() {
                None if listed => (inner.want(self, passage), None),
                conn => (None, conn),
            }
        });
        if let Some(turn) = turn {
            self.attempt(turn);
        }
        flusher
    }

    /// Arms the timer of the waiting messages, unless it is armed, or no message waits.
    fn arm_pending_timer(self: &Arc<Self>, inner: &PeerInner<C>) {
        if inner.gone || inner.pending.is_empty() {
            return;
        }
        let ms = next_look_ms(self.limit_ms(inner), inner.pending.waited_ms());
        let _ = work::queue_delayed::<Self, PENDING>(self.clone(), ms);
    }

    /// Returns how long a message may wait for a connection, in milliseconds.
    fn limit_ms(&self, inner: &PeerInner<C>) -> i64 {
        let since = self.ni.now_ms().saturating_sub(inner.called_ms);
        let called_ms_ago = (inner.called_ms != 0).then_some(since);
        let waits = matches!(inner.turn, QueueState::Waits(_));
        let under_way = waits || inner.policy.is_under_way();
        let (usual_ms, most_ms) = (self.ni.pending_limit_ms(), self.ni.message_limit_ms());
        pending_limit_ms(usual_ms, most_ms, under_way, called_ms_ago)
    }
}

impl<C: Connection> work::DelayedItem<PENDING> for Peer<C> {
    /// Returns a queue where a waiting item delays no other item.
    fn queue(&self) -> &work::OwnedQueue {
        &self.ni.workers.control
    }
}

impl<C: Connection> WorkItem<PENDING> for Peer<C> {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let _nofs = NofsScope::enter();
        let expired = this.with(|inner| {
            let expired = inner.pending.take_expired(this.limit_ms(inner));
            this.arm_pending_timer(inner);
            expired
        });
        // A peer that could not be asked is not blamed.
        let cause = match this.ni.passage() {
            SendPolicy::Open => Cause::DeadlineConnecting,
            SendPolicy::Hold | SendPolicy::Refuse => this.ni.way(|way| way.why()),
        };
        expired.fail(&this.ni, cause);
        if !this.ni.is_listed() {
            this.drop_retry(Cause::Shutdown);
        }
    }
}
