// SPDX-License-Identifier: GPL-2.0

//! Attempts and connections of a peer, from the first attempt to the last release.
//!
//! The code that finds a retry due arms its timer, while it still holds the peer lock. Therefore the timer is not armed
//! for a retry that is no longer due, and does not delay a retry that other code wants sooner. It is not armed for a
//! peer that is out of its table. Otherwise the NI could not be deleted before the timer has run.

use kernel::{
    prelude::*,
    sync::Arc,
    workqueue::WorkItem, //
};

use super::{
    Connection,
    Peer,
    PeerInner,
    HOLD_LOOK_MS,
    RETRY, //
};
use crate::{
    lnd::{
        log,
        ni::DeviceHint,
        stats::conn_stats, //
    },
    policy::{
        connect_queue::ConnectPriority,
        link_state::SendPolicy,
        reconnect::{
            AfterFailure,
            PeerParams,
            RetryReject, //
        }, //
    },
    proto::{
        cause::Cause,
        conn_req_peer_check::STALE_REQUEST_MS,
        reject::{
            RetryWhy,
            UNSAID_MAX, //
        }, //
    },
    rdma::{
        random,
        work::{
            self,
            NofsScope, //
        }, //
    }, //
};

impl<C: Connection> WorkItem<RETRY> for Peer<C> {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let _nofs = NofsScope::enter();
        if this.ni.passage() != SendPolicy::Open {
            return this.wait_for_way();
        }
        let listed = this.ni.is_listed();
        let (attempts, again) = this.with(|inner| {
            if !listed {
                let _ = inner.policy.cancel_retry();
            }
            let (attempts, again) = inner.try_again(&this);
            if again {
                this.look_later(inner);
            }
            (attempts, again)
        });
        for _ in 0..attempts {
            this.attempt();
        }
        if attempts == 0 && !again {
            // Messages may wait for the release of a connection, which is running at this moment.
            this.serve_waiting();
            // LNet deletes the NI: the cause of the last attempt, which may have been the peer's, is not why messages
            // fail.
            this.forget_if_idle((!listed).then_some(Cause::Shutdown));
        }
        // The peer had its turn, and may not have used it; or a call was lost.
        this.peers.call_next();
    }
}

impl<C: Connection> work::DelayedItem<RETRY> for Peer<C> {
    fn queue(&self) -> &work::OwnedQueue {
        &self.ni.workers.control
    }
}

impl<C: Connection> Peer<C> {
    /// Schedules a retry that has just become due, in `ms` milliseconds. An armed timer belongs to an earlier retry
    /// that is no longer due, or the retry has to come sooner now.
    pub(super) fn retry_in(self: &Arc<Self>, inner: &mut PeerInner<C>, ms: u32) {
        if inner.gone {
            return;
        }
        self.note_retry(inner, ms);
        work::mod_delayed::<Self, RETRY>(self.clone(), ms);
    }

    /// Checks again later, because a due retry cannot be made now. Does not delay a timer that was armed meanwhile.
    pub(super) fn look_later(self: &Arc<Self>, inner: &mut PeerInner<C>) {
        if !inner.gone && work::queue_delayed::<Self, RETRY>(self.clone(), HOLD_LOOK_MS) {
            self.note_retry(inner, HOLD_LOOK_MS);
        }
    }

    /// Cancels the retry, because none is due or the peer is out of its table.
    pub(super) fn retry_no_more(self: &Arc<Self>) {
        let _ = work::cancel::<Self, RETRY>(self);
    }

    /// Starts one attempt that the policy has already counted.
    pub(super) fn attempt(self: &Arc<Self>) {
        let now_ms = self.ni.now_ms();
        let (known, salt, turn) = self.with(|inner| {
            inner.asked_ms = now_ms;
            (inner.policy.known, inner.conns.len(), inner.claim)
        });
        let salt = u32::try_from(salt).unwrap_or(0);
        if !self.ni.lnet.allows(self.nid.raw()) {
            return self.forbidden(turn, Cause::Denied);
        }
        if self.ni.retained_rx.are_too_many(self.nid) {
            return self.forbidden(turn, Cause::Backlog);
        }
        let made =
            C::open(self, Some(turn), known, salt).and_then(|conn| self.add(&conn).map(|()| conn));
        match made {
            Ok(conn) => conn.start(),
            Err(e) => {
                // The NI logs once that its device is gone or that it stops.
                if e == ENOMEM {
                    log::cannot(self.nid, "make a connection", e);
                }
                let cause = match e {
                    ENODEV => Cause::DeviceGone,
                    _ => Cause::NoResources,
                };
                let _ = self
                    .ni
                    .close_stats
                    .ended(self.nid, true, false, cause, None);
                conn_stats::no_conn(self.ni.nid, self.nid, cause, None);
                self.not_begun(turn, cause);
            }
        }
    }

    /// Ends an attempt that was just counted and is not to be made: the administrator denies the peer, or LNet already
    /// retains too many received buffers of the peer.
    fn forbidden(self: &Arc<Self>, turn: ConnectPriority, cause: Cause) {
        let noted = self
            .ni
            .close_stats
            .ended(self.nid, true, false, cause, None);
        log::not_connected(self.nid, cause, noted);
        conn_stats::no_conn(self.ni.nid, self.nid, cause, None);
        self.not_begun(turn, cause);
    }

    /// Ends an attempt that was just counted and has no object.
    fn not_begun(self: &Arc<Self>, turn: ConnectPriority, cause: Cause) {
        self.peers.leave_line(turn);
        self.with(|inner| inner.policy.closing());
        self.attempt_over(true, None, cause);
    }

    /// Publishes a connection that was just established. Waiting messages go before others: the caller calls
    /// [`Peer::flush_pending`] next. Called by the connection's control worker.
    pub(crate) fn established(self: &Arc<Self>, conn: &Arc<C>, known: PeerParams) {
        let now_ms = self.ni.now_ms();
        self.end_turn(conn);
        if conn.is_active() {
            self.answers();
        }
        let stale = self.with(|inner| {
            inner.policy.established(conn.is_active(), known);
            inner.last_cause = None;
            inner.conns.publish(conn);
            now_ms.saturating_sub(inner.asked_ms) >= STALE_REQUEST_MS
        });
        // The walk begins with the connections that were listed last. The request of a passive connection came when the
        // connection was listed. So the incarnation of connections listed later is not older, even if `conn` waited
        // long for the first message of the peer.
        let mut is_later = !conn.is_active();
        self.for_each_conn(|other| {
            is_later &= !Arc::ptr_eq(other, conn);
            let (old, new) = if is_later {
                (conn, other)
            } else {
                (other, conn)
            };
            // A host that sends into a queue pair may have guessed its number.
            let is_over = || new.is_confirmed() || old.is_doubted();
            if conn.is_up() && other.is_stale(known.stamp) && is_over() {
                old.fail(Cause::PeerRestarted);
            } else if !conn.is_active() && !Arc::ptr_eq(other, conn) {
                if other.is_active() && stale {
                    other.overtaken();
                }
                other.doubt();
            }
        });
    }

    /// Sends the waiting messages over `conn`, which was established. `None`: `conn` is already closing, so waiting
    /// messages go over another connection, or wait for one. Requests further connections that are due. Called by the
    /// blocking worker of `conn`; may take long, because LNet may send another message from inside.
    pub(crate) fn flush_pending(self: &Arc<Self>, conn: Option<&Arc<C>>) {
        self.connect_missing();
        match conn {
            Some(conn) => self.flush_own(conn),
            None => self.serve_waiting(),
        }
    }

    /// Handles the release of a connection object; `moved` if the NI's address is on another device than before. Called
    /// by the blocking worker of the connection, as its last step.
    pub(crate) fn released(
        self: &Arc<Self>,
        conn: &Arc<C>,
        attempt_failed: bool,
        retry: Option<RetryReject>,
        cause: Cause,
        moved: bool,
    ) {
        // Before the peer lock, because the connection lock is taken here.
        let (heard_ms, lived_ms) = (conn.heard_ms(), conn.lived_ms());
        {
            let mut inner = self.inner.lock();
            inner.heard_ms = inner.heard_ms.max(heard_ms);
            inner.conns.remove(conn);
        }
        self.end_turn(conn);
        if attempt_failed {
            let cause = if moved { Cause::Moved } else { cause };
            self.attempt_over(conn.is_active(), retry, cause);
            return;
        }
        let moved = moved && !cause.is_wanted() && !self.ni.is_stopping();
        let lost = self.ni.passage() != SendPolicy::Open && !self.ni.is_stopping();
        let now_ms = self.ni.now_ms();
        let broke = conn.is_active() && cause.is_retryable();
        let bad = cause.needs_backoff();
        let random = random::u32();
        let retries = self.with(|inner| {
            inner.last_cause = Some(cause);
            let _ = inner.policy.closed();
            let waiting = !inner.pending.is_empty() && !inner.gone;
            let pause = inner.policy.ended(lived_ms, bad, waiting, random);
            inner.lost_ms = now_ms;
            if broke {
                inner.policy.broke();
            }
            // Waiting messages reconnect below.
            let recall = (lost && !cause.is_wanted() || moved && inner.pending.is_empty())
                && !inner.gone
                && inner.policy.reconnect();
            match pause {
                Some(ms) => self.retry_in(inner, ms),
                None if recall && lost => self.retry_in(inner, HOLD_LOOK_MS),
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
        self.serve_waiting();
        self.forget_if_idle(Some(cause));
    }

    /// Handles the end of an attempt, whose object is released.
    pub(crate) fn attempt_over(
        self: &Arc<Self>,
        active: bool,
        retry: Option<RetryReject>,
        cause: Cause,
    ) {
        if cause == Cause::ConnectTimeout {
            self.ni.tell(DeviceHint::Unheard);
        }
        if self.ni.passage() == SendPolicy::Refuse {
            self.refuse_waiting();
        }
        match self.count_failure(active, retry, cause) {
            AfterFailure::RetryIn(_) => {}
            AfterFailure::OthersRemain => self.connect_missing(),
            // A request of the peer that was not continued may not have been from the peer.
            AfterFailure::GiveUp => self.forget(Some(cause), active),
        }
    }

    /// Handles the failure to create a connection for a request that was accepted ([`Peer::validate`]). Finalizes no
    /// message, because all other requests wait for the caller, a handler of a listener.
    pub(crate) fn accept_failed(self: &Arc<Self>, cause: Cause) {
        match self.count_failure(false, None, cause) {
            AfterFailure::RetryIn(_) => {}
            AfterFailure::OthersRemain => self.connect_missing(),
            // The retry, which finds nothing due, forgets the peer.
            AfterFailure::GiveUp => self.with(|inner| self.retry_in(inner, 0)),
        }
    }

    /// Counts a failed attempt, and schedules the retry if one is due.
    fn count_failure(
        self: &Arc<Self>,
        active: bool,
        retry: Option<RetryReject>,
        cause: Cause,
    ) -> AfterFailure {
        let random = random::u32();
        // An NI that LNet deletes cannot be connected to, so it would lose every race against a peer that
        // keeps trying.
        let listed = self.ni.is_listed();
        // An attempt that ended because the link went down waits for the link; an attempt that gave way on this node is
        // repeated.
        let later = cause.spares_who_waits() || self.ni.passage() == SendPolicy::Hold;
        let again = retry
            .map(|invited| invited.why)
            .or(later.then_some(RetryWhy::Early));
        self.with(|inner| {
            if let Some(invited) = retry {
                inner.policy.learnt(invited);
            }
            inner.last_cause = Some(cause);
            let waiting = !inner.pending.is_empty() || cause.is_ours_to_connect();
            let waiting = waiting && listed && !inner.gone;
            let after = inner.policy.failed(active, again, waiting, random);
            if cause.is_ours_to_connect() {
                inner.policy.force_retry();
            }
            if let AfterFailure::RetryIn(ms) = after {
                self.retry_in(inner, ms);
            }
            after
        })
    }

    /// Stops waiting for a peer whose request was accepted and that does not continue. May sleep.
    pub(crate) fn does_not_go_on(self: &Arc<Self>) {
        self.with(|inner| inner.policy.slowed());
        self.serve_waiting();
    }

    /// Returns whether so many consecutive attempts failed that a reject without a reason is not followed by another
    /// attempt.
    pub(crate) fn is_refused_often(&self) -> bool {
        self.with(|inner| inner.policy.failures() >= UNSAID_MAX)
    }

    /// Schedules the missing connections, in their turn, if one of several connections exists and no attempt is under
    /// way.
    fn connect_missing(self: &Arc<Self>) {
        if !self.ni.is_listed() || self.ni.is_stopping() {
            return;
        }
        let wanted = self.ni.lnet.conns_per_peer();
        let random = random::u32();
        self.with(|inner| {
            if let Some(ms) = inner.policy.more(wanted, random) {
                self.retry_in(inner, ms);
            }
        });
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
    fn forget(self: &Arc<Self>, cause: Option<Cause>, asked: bool) {
        let (waiting, heard_ms) = {
            let mut inner = self.inner.lock();
            if !inner.policy.idle() || inner.gone || !inner.conns.is_empty() {
                return;
            }
            inner.gone = true;
            inner.leaves_line(self);
            (inner.pending.take(), inner.heard_ms)
        };
        self.look_no_more();
        self.retry_no_more();
        self.peers.table.remove(self);
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
