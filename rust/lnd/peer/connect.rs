// SPDX-License-Identifier: GPL-2.0

//! Attempts to connect to a peer, and their failure.
//!
//! Context: process; may sleep, except for [`Peer::accept_failed`], which finalizes no message.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    Connection,
    Peer, //
};
use crate::{
    lnd::{
        log,
        ni::DeviceHint,
        stats::conn_trace, //
    },
    policy::{
        connect_queue::ConnectPriority,
        link_state::SendPolicy,
        reconnect::{
            AfterFailure,
            RetryReject, //
        }, //
    },
    proto::{
        cause::Cause,
        reject::{
            RetryWhy,
            UNSAID_MAX, //
        }, //
    },
    rdma::random, //
};

impl<C: Connection> Peer<C> {
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
                conn_trace::no_conn(self.ni.nid, self.nid, cause, None);
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
        conn_trace::no_conn(self.ni.nid, self.nid, cause, None);
        self.not_begun(turn, cause);
    }

    /// Ends an attempt that was just counted and has no object.
    fn not_begun(self: &Arc<Self>, turn: ConnectPriority, cause: Cause) {
        self.peers.leave_line(turn);
        self.with(|inner| inner.policy.closing());
        self.attempt_over(true, None, cause);
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

    /// Returns whether so many consecutive attempts failed that a reject without a reason is not followed by another
    /// attempt.
    pub(crate) fn is_refused_often(&self) -> bool {
        self.with(|inner| inner.policy.failures() >= UNSAID_MAX)
    }

    /// Schedules the missing connections, in their turn, if one of several connections exists and no attempt is under
    /// way.
    pub(super) fn connect_missing(self: &Arc<Self>) {
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
}
