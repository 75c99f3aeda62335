// SPDX-License-Identifier: GPL-2.0

//! Attempts to connect to a peer: their turn in the connect queue of the NI ([`crate::policy::connect_queue`]), their
//! failure, and the timer for the next attempt. Connection requests of the peer.
//!
//! A call of a peer that waits for its turn is a hint, and may be lost: such a peer checks again every second
//! ([`RECHECK_MS`]), and then calls the next peer.
//!
//! The code that finds a retry due arms the timer, while it still holds the peer lock. Therefore the timer is not armed
//! for a retry that is no longer due, and does not delay a retry that other code wants sooner. It is not armed for a
//! peer that is out of its table. Otherwise the NI could not be deleted before the timer has run.
//!
//! Context: process; may sleep, except that [`Peers::admit`], for which all requests to a listener wait, finalizes no
//! message. The lock of the queue and the lock of a rate limit nest inside the peer lock; no memory is allocated under
//! them. A peer is called with neither held.
//!
//! # Invariants
//!
//! The attempts that the queue counts are the attempts of this node that the policies of the peers have counted
//! ([`crate::policy::reconnect::ReconnectState::begin`]) and that have not ended their turn
//! ([`Conn::end_turn`](super::Conn::end_turn)). Each attempt keeps the priority that it was counted with, and is
//! counted off with it.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    Conn,
    Peer,
    PeerInner,
    Peers,
    RECHECK_MS,
    RETRY, //
};
use crate::{
    lnd::{
        log,
        stats::conn_latency, //
    },
    policy::{
        connect_queue::{
            ConnectPriority,
            QueueState, //
        },
        link_state::SendPolicy, //
    },
    proto::{
        cause::Cause,
        constants::{
            PeerParams,
            QueueDepth, //
        },
        handshake::{
            check_peer,
            ConnReq,
            PeerView, //
        },
        reject::{
            RejectCause,
            RetryWhy, //
        }, //
    },
    rdma::{
        random,
        rcu_map::MapWalk,
        work, //
    }, //
};

/// Minimum number of connections that a peer may have: more than `conns_per_peer` of this node, because the peer's may
/// be larger.
const CONNS_MIN: u16 = 32;

/// Time in milliseconds over which reconnects of peers without a waiting message are spread when the link comes up.
const RECALL_SPREAD_MS: u32 = 200;

impl Peers {
    /// Checks a request against the state of the peer (stage 3), and with `ration`, which returns whether its rate
    /// limit has room for it. Counts an accepted request, and returns its connection object.
    pub(crate) fn admit(
        self: &Arc<Self>,
        asked: &ConnReq,
        known: PeerParams,
        ration: impl Fn() -> Result<(), RejectCause>,
    ) -> Result<Arc<Conn>, RejectCause> {
        let no_resources = |e: Error| RejectCause::NoResources(e.to_errno());
        // An unknown peer takes no memory before this check.
        let is_known = self.table.get(asked.src.addr()).is_some();
        if !is_known {
            ration()?;
        }
        let wanted = self.ni.lnet.conns_per_peer();
        loop {
            let peer = self.get_or_add(asked.src).map_err(no_resources)?;
            let now_ms = self.ni.now_ms();
            let verdict = peer.with(|inner| {
                if inner.gone {
                    return None;
                }
                let conns = inner.objects();
                let policy = &mut inner.policy;
                let connecting_ms = now_ms.saturating_sub(inner.asked_ms);
                let view = PeerView {
                    stamp: (policy.known.stamp != 0).then_some(policy.known.stamp),
                    races: policy.races,
                    connecting_ms: policy.connecting().then_some(connecting_ms),
                    conns,
                    // The connections that the peer opens, and those of this node.
                    max_conns: wanted.max(CONNS_MIN / 2).saturating_mul(2),
                };
                let checked = check_peer(asked, &view);
                if checked == Err(RejectCause::Race) {
                    policy.race_counted();
                }
                let rationed = || if is_known { ration() } else { Ok(()) };
                let result = checked.and_then(|is_reborn| rationed().map(|()| is_reborn));
                if result.is_ok() {
                    policy.accepting();
                }
                Some(result)
            });
            match verdict {
                None => {
                    // The peer is leaving its table: after the removal, the next look-up creates a new one.
                    self.remove(&peer);
                    continue;
                }
                Some(Err(refusal)) => {
                    peer.forget_if_unused();
                    return Err(refusal);
                }
                // A restarted peer answers on none of them.
                Some(Ok(true)) => peer.for_each_conn(|conn| conn.doubt(true)),
                Some(Ok(false)) => {}
            }
            return peer.open(None, known).map_err(|e| {
                // No message is finalized here, because all other requests wait for this one.
                peer.count_failure(false, None, Cause::NoResources);
                peer.with(|inner| {
                    if inner.policy.idle() {
                        // The retry, which finds nothing due, forgets the peer.
                        peer.retry_in(inner, 0);
                    }
                });
                no_resources(e)
            });
        }
    }

    /// Ends the turn of an attempt of this node that entered with priority `claim`, and calls the next peer.
    pub(crate) fn leave_line(&self, claim: ConnectPriority) {
        self.line.lock().leave(claim);
        self.call_next();
    }

    /// Calls the next peer that waits for its turn, if there is room.
    pub(super) fn call_next(&self) {
        if self.line.lock().next().is_none() {
            return;
        }
        let mut walk = *self.turn_walk.lock();
        // To the end of the table, and from its begin.
        for _ in 0..2 {
            while let Some(peer) = self.table.next(&mut walk) {
                if peer.call() {
                    *self.turn_walk.lock() = walk;
                    return;
                }
            }
            walk = MapWalk::default();
        }
    }
}

impl Peer {
    /// Calls the peer if it waits with the priority whose turn it is. Returns false if it does not, or no longer wants
    /// the turn.
    fn call(self: &Arc<Self>) -> bool {
        self.with(|inner| {
            let QueueState::Waits(claim) = inner.turn else {
                return false;
            };
            let mut line = self.peers.line.lock();
            if line.next() != Some(claim) {
                return false;
            }
            line.forget(&mut inner.turn);
            drop(line);
            if !inner.policy.is_due() {
                return false;
            }
            inner.turn = QueueState::Called;
            inner.called_ms = self.ni.now_ms();
            self.retry_in(inner, 0);
            true
        })
    }

    /// Starts one attempt that the policy has already counted, in that `turn`.
    pub(super) fn attempt(self: &Arc<Self>, turn: ConnectPriority) {
        let now_ms = self.ni.now_ms();
        let depth = self.ni.lnet.peer_credits();
        let mut known = self.with(|inner| {
            inner.asked_ms = now_ms;
            // To request more than the peer accepts costs a rejected request.
            if core::mem::replace(&mut inner.offered, depth) != depth {
                inner.policy.known.depth = QueueDepth::MAX;
            }
            inner.policy.known
        });
        known.depth = known.depth.min(depth);
        let made = if !self.ni.lnet.allows(self.nid.raw()) {
            Err(Cause::Denied)
        } else if self.ni.retained_rx.are_too_many(self.nid) {
            Err(Cause::Backlog)
        } else {
            self.open(Some(turn), known).map_err(|e| {
                // The NI logs once that its device is gone or that it stops.
                if e == ENOMEM {
                    log::cannot(self.nid, "make a connection", e);
                }
                match e {
                    ENODEV => Cause::DeviceGone,
                    _ => Cause::NoResources,
                }
            })
        };
        let cause = match made {
            Ok(conn) => return conn.start(),
            Err(cause) => cause,
        };
        let stats = &self.ni.close_stats;
        let noted = stats.ended(self.nid, true, false, cause, None);
        if matches!(cause, Cause::Denied | Cause::Backlog) {
            log::not_connected(self.nid, cause, noted);
        }
        conn_latency::no_conn(self.ni.nid, self.nid, cause);
        self.peers.leave_line(turn);
        self.with(|inner| inner.policy.closing());
        self.attempt_over(true, None, cause);
    }

    /// Handles the end of an attempt, whose object is released.
    pub(super) fn attempt_over(
        self: &Arc<Self>,
        active: bool,
        retry: Option<RetryWhy>,
        cause: Cause,
    ) {
        if cause == Cause::ConnectTimeout {
            let set = |was: &mut bool| core::mem::replace(was, true);
            if !self.ni.way(|way| set(&mut way.device_state.unheard)) {
                self.ni.check_device();
            }
        }
        if self.ni.passage() == SendPolicy::Refuse {
            self.refuse_waiting();
        }
        self.count_failure(active, retry, cause);
        // A request of the peer that was not continued may not have been from the peer.
        self.forget(Some(cause), active);
    }

    /// Counts a failed attempt, and schedules the next one, or those for missing connections.
    fn count_failure(self: &Arc<Self>, active: bool, retry: Option<RetryWhy>, cause: Cause) {
        // An NI that LNet deletes cannot be connected to, so it would lose every race against a peer that
        // keeps trying.
        let listed = self.ni.is_listed();
        // An attempt that ended because the link went down waits for the link; an attempt that gave way on this node is
        // repeated.
        let later = cause.has(Cause::SPARES_WAITING) || self.ni.passage() == SendPolicy::Hold;
        let again = retry.or(later.then_some(RetryWhy::Early));
        let retries = self.with(|inner| {
            inner.last_cause = Some(cause);
            let waiting = !inner.pending.is_empty() || cause.has(Cause::IS_OURS_TO_CONNECT);
            let waiting = waiting && listed && !inner.gone;
            let pause = inner.policy.failed(active, again, waiting, random::u32());
            if cause.has(Cause::IS_OURS_TO_CONNECT) {
                inner.policy.force_retry();
            }
            pause.map(|ms| self.retry_in(inner, ms)).is_some()
        });
        if !retries {
            self.connect_missing();
        }
    }

    /// Schedules the missing connections, in their turn, if one of several connections exists and no attempt is under
    /// way.
    pub(crate) fn connect_missing(self: &Arc<Self>) {
        if !self.ni.is_listed() || self.ni.is_stopping() {
            return;
        }
        let wanted = self.ni.lnet.conns_per_peer();
        self.with(|inner| {
            if let Some(ms) = inner.policy.more(wanted, random::u32()) {
                self.retry_in(inner, ms);
            }
        });
    }

    /// Reconnects because the link came up: at once if messages wait; otherwise soon, but not at the same moment as all
    /// other peers. If several connections survived, probes each of them: the peer may have closed some meanwhile
    /// without being able to say so, and messages sent on these would be lost.
    pub(crate) fn way_opened(self: &Arc<Self>) {
        if self.with(|inner| inner.conns.usable() > 1) {
            self.for_each_conn(|conn| conn.doubt(false));
        }
        self.with(|inner| {
            if inner.policy.is_due() {
                let ms = match inner.pending.is_empty() {
                    true => random::u32() % RECALL_SPREAD_MS,
                    false => 0,
                };
                self.retry_in(inner, ms);
            }
        });
    }

    /// Schedules a retry that has just become due, in `ms` milliseconds. An armed timer belongs to an earlier retry
    /// that is no longer due, or the retry has to come sooner now.
    pub(super) fn retry_in(self: &Arc<Self>, inner: &mut PeerInner, ms: u32) {
        if !inner.gone {
            inner.retry_ms = self.ni.now_ms().saturating_add(u64::from(ms));
            work::mod_delayed::<Self, RETRY>(self.clone(), ms);
        }
    }

    /// Checks again later, because a due retry cannot be made now. Does not delay a timer that was armed meanwhile.
    pub(super) fn check_later(self: &Arc<Self>, inner: &mut PeerInner) {
        if !inner.gone && work::queue_delayed::<Self, RETRY>(self.clone(), RECHECK_MS) {
            inner.retry_ms = self.ni.now_ms().saturating_add(u64::from(RECHECK_MS));
        }
    }

    /// Schedules a due retry soon, but not at the same moment as those of all other peers.
    pub(super) fn recall_soon(self: &Arc<Self>, inner: &mut PeerInner) {
        self.retry_in(inner, random::u32() % RECALL_SPREAD_MS);
    }
}

impl PeerInner {
    /// Counts this number of attempts, and returns their turn, if they may begin now. Otherwise the peer waits in the
    /// queue.
    pub(super) fn begin(&mut self, peer: &Peer, attempts: u16) -> Option<ConnectPriority> {
        let claim = match self.policy.has_conns() {
            true => ConnectPriority::More,
            false if peer.ni.close_stats.of(peer.nid).is_silent => ConnectPriority::Silent,
            false => ConnectPriority::First,
        };
        let mut line = peer.peers.line.lock();
        if !line.enter(claim, attempts, &mut self.turn) {
            return None;
        }
        drop(line);
        self.policy.begin(attempts);
        Some(claim)
    }
}
