// SPDX-License-Identifier: GPL-2.0

//! A peer's attempts and connections, from the first try to the last release.
//!
//! The timer of a retry is armed with the peer's lock held, by whoever finds there that one is due. So nobody arms it
//! for what is not due any more, nor puts off what somebody else wants sooner; and that of a peer that is out of its
//! table is not armed. Else the NI could not be deleted before it has run.

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
        connect_race::STALE_REQUEST_MS,
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
            // It may wait for the release of a connection, which sees to that just now.
            this.serve_waiting();
            this.forget_if_idle(None);
        }
        // It was called, and may not have wanted its turn; or a call was lost.
        this.peers.call_next();
    }
}

impl<C: Connection> work::DelayedItem<RETRY> for Peer<C> {
    fn queue(&self) -> &work::OwnedQueue {
        &self.ni.workers.control
    }
}

impl<C: Connection> Peer<C> {
    /// A retry that has just become due is made in `ms` milliseconds. One that is armed is of an earlier one, which was
    /// not due any more, or it is to come sooner now.
    pub(super) fn retry_in(self: &Arc<Self>, inner: &mut PeerInner<C>, ms: u32) {
        if inner.gone {
            return;
        }
        self.note_retry(inner, ms);
        work::mod_delayed::<Self, RETRY>(self.clone(), ms);
    }

    /// A retry that is due cannot be made now, and looks again. Whoever armed it since that began wants it sooner.
    pub(super) fn look_later(self: &Arc<Self>, inner: &mut PeerInner<C>) {
        if !inner.gone && work::queue_delayed::<Self, RETRY>(self.clone(), HOLD_LOOK_MS) {
            self.note_retry(inner, HOLD_LOOK_MS);
        }
    }

    /// No retry is due, or it is out of its table.
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
        if self.ni.orphans.are_too_many(self.nid) {
            return self.forbidden(turn, Cause::Backlog);
        }
        let made =
            C::open(self, Some(turn), known, salt).and_then(|conn| self.add(&conn).map(|()| conn));
        match made {
            Ok(conn) => conn.start(),
            Err(e) => {
                // Of a device or NI that goes the NI itself says so, once.
                if e == ENOMEM {
                    log::cannot(self.nid, "make a connection", e);
                }
                let cause = match e {
                    ENODEV => Cause::DeviceGone,
                    _ => Cause::NoResources,
                };
                let _ = self.ni.seen.ended(self.nid, true, false, cause, None);
                conn_stats::no_conn(self.ni.nid, self.nid, cause, None);
                self.not_begun(turn, cause);
            }
        }
    }

    /// The attempt that was just counted is not to be made: the administrator does not want it, or LNet has enough of
    /// the peer's already.
    fn forbidden(self: &Arc<Self>, turn: ConnectPriority, cause: Cause) {
        let noted = self.ni.seen.ended(self.nid, true, false, cause, None);
        log::not_connected(self.nid, cause, noted);
        conn_stats::no_conn(self.ni.nid, self.nid, cause, None);
        self.not_begun(turn, cause);
    }

    /// There is no object for the attempt that was just counted.
    fn not_begun(self: &Arc<Self>, turn: ConnectPriority, cause: Cause) {
        self.peers.leave_line(turn);
        self.attempt_over(true, None, cause);
    }

    /// An attempt became a connection: it is open to all, but messages that wait go before others. [`Peer::hand_over`]
    /// is to follow. Called by the connection's control worker.
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
        // Who sends into a queue pair may have guessed its number.
        let sure = conn.is_confirmed();
        self.for_each_conn(|other| {
            // Of an earlier life of the peer; or this one is, is over by now, and came late.
            let is_over = || sure || other.is_doubted();
            if conn.is_up() && other.is_stale(known.stamp) && is_over() {
                other.fail(Cause::PeerRestarted);
            } else if !conn.is_active() && !Arc::ptr_eq(other, conn) {
                if other.is_active() && stale {
                    other.overtaken();
                }
                other.doubt();
            }
        });
    }

    /// Sends what waited over `conn`, which was established. `None`: `conn` leaves already, so what
    /// waited goes over another connection, or waits for one. Asks for further connections that are
    /// due. Called by the blocking worker of `conn`; may take long, because LNet may send another
    /// message from inside.
    pub(crate) fn hand_over(self: &Arc<Self>, conn: Option<&Arc<C>>) {
        self.see_to_more();
        match conn {
            Some(conn) => self.flush_own(conn),
            None => self.serve_waiting(),
        }
    }

    /// The connection object is released; `moved` if the NI's address is on another device than it was. Called by its
    /// blocking worker, last of all.
    pub(crate) fn released(
        self: &Arc<Self>,
        conn: &Arc<C>,
        attempt_failed: bool,
        retry: Option<RetryReject>,
        cause: Cause,
        moved: bool,
    ) {
        // Before the lock: it takes the connection's.
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
        let broke = conn.is_active() && cause.is_mishap();
        let bad = cause.is_breakage();
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
            // What waits connects below.
            let recall = (lost && !cause.is_wanted() || moved && inner.pending.is_empty())
                && !inner.gone
                && inner.policy.recall();
            match pause {
                Some(ms) => self.retry_in(inner, ms),
                None if recall && lost => self.retry_in(inner, HOLD_LOOK_MS),
                // The peer may not know yet that what it has is dead.
                None if recall => self.recall_soon(inner),
                None => return false,
            }
            true
        });
        if !retries {
            self.see_to_more();
        }
        // Messages that came while it was closing want another one.
        self.serve_waiting();
        self.forget_if_idle(Some(cause));
    }

    /// An attempt is over, and its object released.
    pub(crate) fn attempt_over(
        self: &Arc<Self>,
        active: bool,
        retry: Option<RetryReject>,
        cause: Cause,
    ) {
        if cause == Cause::ConnectTimeout {
            self.ni.tell(DeviceHint::Unheard);
        }
        let random = random::u32();
        // An NI that LNet deletes cannot be connected to, so it would lose every race against a peer that
        // keeps trying.
        let listed = self.ni.is_listed();
        // What the way closed on waits for it to open, and what had to give way here is tried again.
        let passage = self.ni.passage();
        if passage == SendPolicy::Refuse {
            self.refuse_waiting();
        }
        let later = cause.spares_who_waits() || passage == SendPolicy::Hold;
        let again = retry
            .map(|invited| invited.why)
            .or(later.then_some(RetryWhy::Early));
        let after = self.with(|inner| {
            if let Some(invited) = retry {
                inner.policy.learnt(invited);
            }
            inner.last_cause = Some(cause);
            let waiting = !inner.pending.is_empty() || cause.is_ours_to_connect();
            let waiting = waiting && listed && !inner.gone;
            let after = inner.policy.failed(active, again, waiting, random);
            if cause.is_ours_to_connect() {
                inner.policy.insist();
            }
            if let AfterFailure::RetryIn(ms) = after {
                self.retry_in(inner, ms);
            }
            after
        });
        match after {
            AfterFailure::RetryIn(_) => {}
            AfterFailure::OthersRemain => self.see_to_more(),
            // One of the peer's that nobody went on with may not have been the peer's.
            AfterFailure::GiveUp => self.forget(Some(cause), active),
        }
    }

    /// The peer's request was accepted, and the peer does not go on: what waits does not wait for that any more. May
    /// sleep.
    pub(crate) fn does_not_go_on(self: &Arc<Self>) {
        self.with(|inner| inner.policy.slowed());
        self.serve_waiting();
    }

    /// Whether attempts have failed in a row so often that one who says nothing is not asked again.
    pub(crate) fn is_refused_often(&self) -> bool {
        self.with(|inner| inner.policy.failures() >= UNSAID_MAX)
    }

    /// If one of several connections is there and nothing under way, what is missing is asked for, in its turn.
    fn see_to_more(self: &Arc<Self>) {
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

    /// Takes the peer from its table if it was only looked at. That says nothing of the peer.
    pub(crate) fn forget_if_unused(self: &Arc<Self>) {
        if self.with(|inner| inner.pending.is_empty()) {
            self.forget_if_idle(Some(Cause::PeerClosed));
        }
    }

    /// Takes the peer from its table if nothing of it remains, and fails what still waits.
    pub(super) fn forget_if_idle(self: &Arc<Self>, cause: Option<Cause>) {
        self.forget(cause, true);
    }

    /// The same. `asked`: this node had asked the peer, or had a connection with it, so LNet is told that it is down if
    /// the cause says so.
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
            self.ni.seen.messages(cause, waiting.len());
            log::gave_up(self.nid, waiting.len(), cause);
        }
        waiting.fail(cause);
        if asked && !self.ni.is_stopping() && cause.blames_peer() {
            let age = self.ni.now_ms().saturating_sub(heard_ms) / 1000;
            self.ni.lnet.notify_down(self.nid.raw(), age);
        }
    }
}
