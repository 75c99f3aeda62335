// SPDX-License-Identifier: GPL-2.0

//! Messages of a peer: sent over one of its connections, or kept until there is one, for a limited time. Events after
//! which they can be sent, or no longer wait: a connection is established or released, or the next attempt is due.
//!
//! The timer of messages that wait depends on nothing else: not on an attempt of this node (a peer that sends requests
//! all the time and never continues leaves none), not on the turn of a worker (a worker may wait for minutes behind a
//! device that hangs), not on a retry. While messages wait, the timer runs once a second: LNet, which deletes an NI,
//! waits for its messages, too, and these must not wait for the pause before another attempt.
//!
//! Context: process; may sleep.
//!
//! # Invariants
//!
//! While messages wait in a peer that is in its table, the timer is armed, or is running and has not taken the lock
//! yet. It is armed only for such a peer, with the peer lock held; the code that takes a peer from the table cancels
//! the timer afterwards.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    fail_msg,
    Conn,
    NotSent,
    Peer,
    PeerInner,
    Peers,
    Pending,
    PendingList,
    PENDING,
    RECHECK_MS,
    RETRY, //
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
            ConnectPriority,
            QueueState, //
        },
        link_state::{
            SendPolicy,
            RECALL_MS, //
        }, //
    },
    proto::{
        cause::Cause,
        handshake::STALE_REQUEST_MS,
        nid::Nid,
        reject::RetryWhy, //
    },
    rdma::{
        random,
        work::{
            self,
            NofsScope, //
        }, //
    }, //
};

impl Peers {
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
            // Usually this is all, and no reference on the peer is needed. A peer that has left the table has no
            // connection, and no message can wait there.
            let next = self.table.with(nid.addr(), |peer| peer.next_conn());
            let result = match next.flatten() {
                Some(conn) => conn.send(msg, req).inspect_err(|why| {
                    if let NotSent::Closed(_) = why {
                        conn.set_usable(false);
                    }
                }),
                None => match self.get_or_add(nid) {
                    Ok(peer) => peer.wait(msg, req),
                    Err(ENOMEM) => Err(NotSent::Lost(msg, Cause::NoResources)),
                    Err(e) => Err(NotSent::Failed(msg, e)),
                },
            };
            msg = match result {
                Ok(()) => return Ok(()),
                Err(NotSent::Failed(msg, e)) => return Err((msg, e)),
                Err(NotSent::Lost(msg, cause)) => {
                    fail_msg(&self.ni, msg, cause);
                    return Ok(());
                }
                Err(NotSent::Closed(msg)) => msg,
            };
        }
    }
}

/// Next step for the messages of a peer that wait.
enum Next {
    Conn(Arc<Conn>),
    /// An attempt was counted, which the caller starts.
    Attempt(ConnectPriority),
    Nothing,
}

impl Peer {
    /// Returns the connection for the next message of LNet; none if there is no connection, or if the caller must hand
    /// over older messages first. Process context; the caller may be in a read section of the map of peers.
    #[inline]
    fn next_conn(&self) -> Option<Arc<Conn>> {
        let mut inner = self.inner.lock();
        if inner.gone || !inner.pending.is_empty() && !inner.flushing {
            return None;
        }
        inner.conns.pick()
    }

    /// Keeps a message until there is a connection, and starts an attempt if the link is up.
    #[cold]
    #[inline(never)]
    fn wait(self: &Arc<Self>, msg: Message, req: &SendRequest) -> Result<(), NotSent> {
        let _nofs = NofsScope::enter();
        let refused = self.ni.passage() == SendPolicy::Refuse;
        let kept = match refused && self.with(|inner| inner.conns.usable() == 0) {
            true => Err((msg, self.ni.way(|way| way.why()))),
            false => Pending::new(msg, req).map_err(|msg| (msg, Cause::NoResources)),
        };
        let pending = kept.map_err(|(msg, cause)| {
            // The peer may have been created for this message.
            self.forget_if_unused();
            NotSent::Lost(msg, cause)
        })?;
        let may_start = self.may_start();
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
        // Under one lock: the peer is forgotten, and the message fails, if nothing else uses the peer.
        let next = self.choose(&mut inner, may_start);
        drop(inner);
        if let Some(conn) = self.start(next) {
            self.hand_over(conn, false);
        }
        if !self.ni.is_listed() {
            self.drop_retry(Cause::Shutdown);
        }
        Ok(())
    }

    /// Hands waiting messages in order to a connection, and if that is closed to the next connection, until none waits.
    /// If there is no connection, starts an attempt. Does nothing if another thread hands messages over. May take long,
    /// because LNet may send another message from inside.
    ///
    /// `own`: the caller is the blocking worker of that connection, which goes first, and delays its close. If it is
    /// closed, only the messages that wait at that moment go over the next connection. Later messages are sent by their
    /// senders, or when it is released.
    pub(crate) fn serve_waiting(self: &Arc<Self>, own: Option<&Arc<Conn>>) {
        if let Some(conn) = own.cloned().or_else(|| self.next_for_waiting()) {
            self.hand_over(conn, own.is_some());
        }
    }

    fn hand_over(self: &Arc<Self>, conn: Arc<Conn>, own: bool) {
        let mut conn = conn;
        // Finalized last, because LNet may be slow with them, and others wait.
        let mut failed = PendingList::default();
        let mut most = usize::MAX;
        // Not by recursion: all of many connections may be closed and still be listed.
        while let Some(next) = self.flush_over(&conn, most, &mut failed) {
            conn = next;
            if own {
                most = self.with(|inner| inner.pending.len());
            }
        }
        // If the peer lost its last connection meanwhile, it was kept.
        self.forget(None, true);
        failed.fail(&self.ni, Cause::PeerClosed);
    }

    /// Hands up to `most` messages to `conn` alone, unless another thread hands messages over. Returns the connection
    /// to continue with if `conn` is closed. Adds messages that the caller finalizes to `failed`.
    fn flush_over(
        self: &Arc<Self>,
        conn: &Arc<Conn>,
        most: usize,
        failed: &mut PendingList,
    ) -> Option<Arc<Conn>> {
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
                    // Under one lock, so that no other hand-over begins behind this message.
                    self.with(|inner| {
                        conn.set_usable(false);
                        inner.flushing = false;
                        inner.pending.push_front(pending);
                        self.arm_pending_timer(inner);
                    });
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

    /// Returns an established connection if messages wait. If there is none, starts an attempt; if the link is down, or
    /// the peer has to wait for its turn, a retry follows.
    fn next_for_waiting(self: &Arc<Self>) -> Option<Arc<Conn>> {
        let may_start = self.may_start();
        let next = self.with(|inner| match inner.pending.is_empty() || inner.gone {
            true => Next::Nothing,
            false => self.choose(inner, may_start),
        });
        self.start(next)
    }

    /// Returns whether an attempt may start for a message, and whether it may start now. None starts if LNet deletes
    /// the NI: then the messages end with the last object of the peer. For [`Peer::choose`], without a lock.
    fn may_start(&self) -> (bool, bool) {
        let is_open = self.ni.passage() == SendPolicy::Open;
        (self.ni.is_listed(), is_open)
    }

    /// Chooses what to do for the messages that wait, and counts an attempt or arms a retry if there is no connection.
    fn choose(self: &Arc<Self>, inner: &mut PeerInner, (may_start, is_open): (bool, bool)) -> Next {
        if let Some(conn) = inner.conns.best() {
            return Next::Conn(conn);
        }
        if !may_start || !inner.policy.may_start() {
            return Next::Nothing;
        }
        match is_open.then(|| inner.begin(self, 1)).flatten() {
            Some(turn) => Next::Attempt(turn),
            None => {
                if inner.policy.hold() {
                    self.retry_in(inner, RECHECK_MS);
                }
                Next::Nothing
            }
        }
    }

    /// Starts the chosen attempt, or returns the chosen connection.
    fn start(self: &Arc<Self>, next: Next) -> Option<Arc<Conn>> {
        match next {
            Next::Conn(conn) => return Some(conn),
            Next::Attempt(turn) => self.attempt(turn),
            Next::Nothing => {}
        }
        None
    }

    /// Arms the timer of the waiting messages, unless it is armed, or no message waits.
    fn arm_pending_timer(self: &Arc<Self>, inner: &PeerInner) {
        if inner.gone || inner.pending.is_empty() {
            return;
        }
        let ms = next_look_ms(self.limit_ms(inner), inner.pending.waited_ms());
        let _ = work::queue_delayed::<Self, PENDING>(self.clone(), ms);
    }

    /// Returns how long a message may wait for a connection, in milliseconds.
    fn limit_ms(&self, inner: &PeerInner) -> i64 {
        let since = self.ni.now_ms().saturating_sub(inner.called_ms);
        let called_ms_ago = (inner.called_ms != 0).then_some(since);
        let waits = matches!(inner.turn, QueueState::Waits(_));
        let under_way = waits || inner.policy.is_under_way();
        let (usual_ms, most_ms) = (self.ni.pending_limit_ms(), self.ni.message_limit_ms());
        pending_limit_ms(usual_ms, most_ms, under_way, called_ms_ago)
    }
}

work::delayed_items! { Peer, |peer| &peer.ni.workers.control,
    PENDING in pending_timer => run_pending,
    RETRY in retry => run_retry,
}

impl Peer {
    /// Ends the messages that have waited too long.
    fn run_pending(self: &Arc<Self>) {
        let expired = self.with(|inner| {
            let expired = inner.pending.take_expired(self.limit_ms(inner));
            self.arm_pending_timer(inner);
            expired
        });
        // A peer that could not be asked is not blamed.
        let cause = match self.ni.passage() {
            SendPolicy::Open => Cause::DeadlineConnecting,
            SendPolicy::Hold | SendPolicy::Refuse => self.ni.way(|way| way.why()),
        };
        expired.fail(&self.ni, cause);
        if !self.ni.is_listed() {
            self.drop_retry(Cause::Shutdown);
        }
    }

    /// Makes the attempts that are due.
    fn run_retry(self: &Arc<Self>) {
        if self.ni.passage() != SendPolicy::Open {
            return self.wait_for_link();
        }
        let listed = self.ni.is_listed();
        let wanted = self.ni.lnet.conns_per_peer();
        let (attempts, turn) = self.with(|inner| {
            let waiting = !inner.pending.is_empty();
            let attempts = match listed {
                true => inner.policy.due_attempts(waiting, wanted),
                false => 0,
            };
            if attempts == 0 {
                inner.policy.cancel_retry();
                return (0, None);
            }
            let turn = inner.begin(self, attempts);
            if turn.is_none() {
                self.check_later(inner);
            }
            (attempts, turn)
        });
        if let Some(turn) = turn {
            (0..attempts).for_each(|_| self.attempt(turn));
        } else if attempts == 0 {
            // Messages may wait for the release of a connection, which is running at this moment.
            self.serve_waiting(None);
            // LNet deletes the NI: the cause of the last attempt, which may have been the peer's, is not why messages
            // fail.
            self.forget((!listed).then_some(Cause::Shutdown), true);
        }
        // The peer had its turn, and may not have used it; or a call was lost.
        self.peers.call_next();
    }

    /// Keeps a retry waiting for the link to come up, for a limited time.
    fn wait_for_link(self: &Arc<Self>) {
        // Waiting messages delay the deletion of the NI.
        if !self.ni.is_listed() {
            self.drop_retry(Cause::Shutdown);
            // A peer with a closing connection is kept.
            return self.refuse_waiting();
        }
        if self.ni.passage() == SendPolicy::Refuse {
            self.refuse_waiting();
        }
        let now_ms = self.ni.now_ms();
        self.with(|inner| {
            let policy = &mut inner.policy;
            let recalled = policy.is_recalled() && now_ms.saturating_sub(inner.lost_ms) < RECALL_MS;
            // More connections beside established ones wait for the link, too.
            let more = policy.has_conns() && policy.is_due();
            let wanted = !inner.pending.is_empty() || recalled || more;
            // A connection released meanwhile may have asked for a retry.
            if !wanted || self.ni.is_stopping() {
                policy.cancel_retry();
            } else if policy.hold() || policy.is_due() {
                // The pause after an attempt may have ended meanwhile, and the retry with it.
                self.check_later(inner);
            }
        });
        self.forget(Some(self.ni.way(|way| way.why())), true);
    }

    /// Publishes a connection that was just established. The waiting messages are handed over next, by
    /// [`Peer::serve_waiting`]. Returns whether the last request of this node is so old that it was lost. Called by the
    /// connection's control worker.
    pub(crate) fn established(&self, conn: &Conn, stamp: u64) -> bool {
        let now_ms = self.ni.now_ms();
        conn.end_turn();
        self.with(|inner| {
            inner.policy.established(conn.is_active(), stamp);
            inner.last_cause = None;
            conn.set_usable(true);
            now_ms.saturating_sub(inner.asked_ms) >= STALE_REQUEST_MS
        })
    }

    /// Handles the release of a connection object, which was established for `lived_ms` milliseconds, unless it was a
    /// failed attempt, and received the last valid message at `heard_ms`; `moved` if the NI's address is on another
    /// device than before. Called by the blocking worker of the connection, as its last step.
    pub(crate) fn released(
        self: &Arc<Self>,
        conn: &Arc<Conn>,
        (lived_ms, heard_ms): (Option<u64>, u64),
        retry: Option<RetryWhy>,
        cause: Cause,
        moved: bool,
    ) {
        self.with(|inner| {
            inner.heard_ms = inner.heard_ms.max(heard_ms);
            inner.conns.remove(conn);
        });
        conn.end_turn();
        let Some(lived_ms) = lived_ms else {
            let cause = if moved { Cause::Moved } else { cause };
            return self.attempt_over(conn.is_active(), retry, cause);
        };
        let reconnects = !cause.has(Cause::IS_WANTED) && !self.ni.is_stopping();
        let lost = self.ni.passage() != SendPolicy::Open;
        let now_ms = self.ni.now_ms();
        let broke = conn.is_active() && cause.has(Cause::IS_RETRYABLE);
        let bad = !cause.has(Cause::IS_OURS);
        let retries = self.with(|inner| {
            inner.last_cause = Some(cause);
            inner.policy.closed(broke);
            let waiting = !inner.pending.is_empty() && !inner.gone;
            let pause = inner.policy.ended(lived_ms, bad, waiting, random::u32());
            inner.lost_ms = now_ms;
            // Waiting messages reconnect below, unless the link is down.
            let recall = lost || moved && inner.pending.is_empty();
            let recall = recall && reconnects && !inner.gone && inner.policy.reconnect();
            match pause {
                Some(ms) => self.retry_in(inner, ms),
                None if recall && lost => self.retry_in(inner, RECHECK_MS),
                // The peer may not know yet that its side of the connection is dead.
                None if recall => self.recall_soon(inner),
                None => return false,
            }
            true
        });
        if !retries {
            self.connect_missing();
        }
        // Messages that arrived while the connection was closing need another one.
        self.serve_waiting(None);
        self.forget(Some(cause), true);
    }
}
