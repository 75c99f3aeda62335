// SPDX-License-Identifier: GPL-2.0

//! Graceful close: the transfers that still run when a connection is closed on purpose, and the CM id that stays after
//! the close until the peer has answered, or the DREQ can be sent.
//!
//! Context: process; may sleep. The connection lock is taken briefly, and the id freed without it.
//!
//! # Invariants
//!
//! While the id waits, the connection is listed in [`crate::lnd::lingering`], and the timer is armed. The code that
//! ends the wait under the lock frees the id.

use kernel::sync::Arc;

use super::{
    dreq_wait::{
        FAREWELL_MS,
        MUTE_MS, //
    },
    Conn,
    Inner, //
};
use crate::{
    lnd::lingering::Lingering,
    policy::link_state::{
        may_end,
        ConnActivity,
        FINISH_LOOK_MS, //
    },
    proto::{
        cause::Cause,
        conn_req_check::{
            NiView,
            Refusal, //
        },
        conn_state::{
            ConnEvent,
            State, //
        },
        nid::Nid, //
    },
    rdma::cm::{
        CmId,
        CmLocked,
        Reachability, //
    }, //
};

impl Conn {
    /// Closes the connection for `cause` when the transfers under way have ended, and soon in any case.
    pub(super) fn close_graceful(self: &Arc<Self>, cause: Cause) {
        self.with(|inner| {
            if inner.state.is_up() {
                inner.dreq_wait.finish(cause);
                let _ = self.look_whether_finished(inner);
            } else {
                self.step(inner, ConnEvent::Fail(cause));
            }
        });
        // LNet's next messages wait for the next connection. This must follow the begin of the close, which a caller
        // that lists the connection checks afterwards ([`Conn::publish`]).
        self.peer.unpublish(self);
    }

    /// Closes the connection if it waits only for transfers under way, and these have ended. Returns false if it does
    /// not wait for them.
    pub(super) fn look_whether_finished(self: &Arc<Self>, inner: &mut Inner) -> bool {
        let Some((cause, waited_ms)) = inner.dreq_wait.finishing() else {
            return false;
        };
        let still_ms = inner.timers.idle_ms().min(inner.wire.sent_ms());
        let under_way = ConnActivity {
            transmits: inner.wire.has_pending(),
            requests: inner.rx_queue.owed() > 0,
            still_ms: u64::try_from(still_ms).unwrap_or(0),
        };
        if may_end(cause, under_way, waited_ms) {
            self.step(inner, ConnEvent::Fail(cause));
        } else {
            self.rearm_timer(FINISH_LOOK_MS);
        }
        true
    }

    /// Drops the id if the connection was released before the id was stored: the peer lists a passive connection before
    /// the id is taken, so an administrator can close it in between. The id and the connection hold each other, and no
    /// other code would break the cycle.
    pub(super) fn release_orphan_id(&self) {
        // Either the release, which follows this state, finds the id, or this code sees the state.
        if self.with(|inner| inner.state.state() == State::Dead) {
            self.free_id();
        }
    }

    /// Keeps the id until the peer has answered the DREQ, which the CM resends, or until there is a route for the DREQ,
    /// if either is needed.
    pub(super) fn wait_for_farewell(self: &Arc<Self>) -> bool {
        // The CM rejects a request of the peer that was not accepted when the id is freed.
        let speaks = !self.active || self.with(|inner| inner.dreq_wait.was_asked());
        let way = self
            .cm
            .id()
            .map_or(Reachability::Reachable, |id| self.reachability(&id));
        if way == Reachability::NoAddress {
            // The peer can never be told, and the CM must not resend earlier messages.
            return false;
        }
        let no_route = speaks && way == Reachability::NoRoute;
        let Some(mute) = self.with(|inner| inner.dreq_wait.must_wait(no_route)) else {
            return false;
        };
        // Listed before the wait begins, so that a shutdown never misses it.
        if !self.peer.peers.lingering.add(self, mute) {
            return false;
        }
        let waits = self.with(|inner| {
            let ms = inner.dreq_wait.wait();
            if let Some(ms) = ms {
                // Under the lock: the code that ends the wait cancels it.
                self.rearm_timer(ms);
            }
            ms.is_some()
        });
        if !waits {
            self.peer.peers.lingering.remove(self);
        }
        waits
    }

    /// Frees the id. If a request of the peer could not be rejected before, rejects it with the cause: the CM by itself
    /// gives none, and the peer takes that for a node that does not know the protocol. May sleep; does not inside one
    /// of the id's handlers.
    pub(super) fn free_id(&self) {
        // The id may not be stored yet, and the code that stores it frees it.
        let Some(id) = self.cm.id() else { return };
        let owed = self.with(|inner| {
            let owes = inner.dreq_wait.pay_answer();
            owes.then(|| inner.state.end_cause())
        });
        if let Some(cause) = owed {
            self.reject(&id, cause);
        }
        self.cm.drop_id();
    }

    /// Rejects, for `cause`, a request that was taken and will not be accepted (passive side).
    pub(super) fn reject(&self, id: &CmId<Self>, cause: Cause) {
        if !self.active {
            let refusal = Refusal::of_taken(cause).reject(Some(&self.ni_view()));
            let _ = id.reject(&refusal.encode());
        }
    }

    fn ni_view(&self) -> NiView {
        NiView {
            nid: self.ni.nid,
            stamp: self.ni.stamp,
            peer_credits: self.ni.depth(),
            active: true,
        }
    }

    /// Frees an id that has waited for the peer's answer.
    pub(super) fn leave(self: &Arc<Self>) {
        self.cancel_timer();
        self.free_id();
        self.peer.peers.lingering.remove(self);
    }

    /// Disconnects a connection that the CM has established after it was closed here: at the close there may have been
    /// no connection to disconnect. So the driver sends a DREQ, and the id waits for the answer. In a handler of the
    /// CM, which the release of the connection waits for.
    pub(super) fn established_after_close(self: &Arc<Self>, id: &CmLocked<'_>) {
        let way = self.reachability_now(id.reachability());
        if way == Reachability::NoAddress {
            return;
        }
        if self.with(|inner| inner.dreq_wait.begin(way == Reachability::Reachable)) {
            // The connection was released meanwhile, and its id waits for an answer to a DREQ that was never sent.
            self.kick_blocking();
        }
        if way == Reachability::Reachable {
            // Refused if that was done meanwhile.
            let _ = self.cm.id().map(|id| id.disconnect());
        }
    }

    /// Handles a DREQ or an answer of the peer. In a handler of the CM.
    pub(super) fn farewell_heard(self: &Arc<Self>) {
        if self.with(|inner| inner.dreq_wait.heard()) {
            self.kick_blocking();
        }
    }

    /// Requests that a worker of the device frees the id: it is not needed to send a DREQ any more. In a handler of the
    /// CM, too.
    pub(super) fn farewell_over(self: &Arc<Self>) {
        if self.with(|inner| inner.dreq_wait.over()) {
            self.kick_blocking();
        }
    }
}

impl Inner {
    /// Returns whether it is, or was, a connection for the peer. If the peer's answer was invalid, it may be one for
    /// the peer only.
    pub(super) fn peer_has_it(&self) -> bool {
        !self.state.attempt_failed() || self.dreq_wait.is_connected()
    }
}

impl Lingering for Conn {
    fn nid(&self) -> Nid {
        self.peer.nid
    }

    fn is_mute(&self) -> bool {
        self.with(|inner| inner.dreq_wait.is_mute())
    }

    fn look_for_route(self: &Arc<Self>) {
        let Some(id) = self.cm.id() else { return };
        let way = self.reachability(&id);
        if way == Reachability::NoAddress {
            return self.farewell_over();
        }
        if way == Reachability::NoRoute {
            let leaves = self.with(|inner| {
                let (leaves, waits) = inner.dreq_wait.no_route();
                if waits {
                    self.rearm_timer(MUTE_MS);
                }
                leaves
            });
            if leaves {
                self.kick_blocking();
            }
            return;
        }
        let (waited, made) = self.with(|inner| {
            let made = inner.peer_has_it();
            let waited = inner.dreq_wait.route_found(made);
            if waited && made {
                self.rearm_timer(FAREWELL_MS);
            }
            (waited, made)
        });
        if waited && !made {
            // Freeing the id tells the peer.
            self.farewell_over();
        } else if waited {
            let _ = id.disconnect();
        }
    }

    fn end_farewell(self: &Arc<Self>) {
        if self.with(|inner| inner.dreq_wait.over()) {
            self.leave();
        }
    }
}
