// SPDX-License-Identifier: GPL-2.0

//! CM id of a connection: whether the peer can be reached over it, the DREQ or reject at the end, and the wait of the
//! id for the DREP or for a route. [`crate::policy::cm_id_linger`] has the rules, and why no message of the CM may be
//! sent without a route.
//!
//! Context: process; may sleep, except where the CM's handlers are named. The connection lock is taken briefly, and the
//! id freed without it: the drop of the last reference waits for the CM.
//!
//! # Invariants
//!
//! While the id waits, the connection is listed in [`crate::lnd::lingering`], and the timer is armed. The code that
//! ends the wait under the lock frees the id.

use kernel::sync::Arc;

use super::{
    Conn,
    Inner, //
};
use crate::{
    lnd::lingering::Lingering,
    policy::cm_id_linger::{
        CmIdLinger,
        LINGER_MS,
        ROUTE_CHECK_MS, //
    },
    proto::{
        cause::Cause,
        conn_req_check::{
            NiView,
            Refusal, //
        },
        conn_state::State,
        nid::Nid, //
    },
    rdma::cm::{
        CmId,
        Reachability, //
    }, //
};

impl Inner {
    /// Returns whether it is, or was, a connection for the peer. If the peer's answer was invalid, it may be one for
    /// the peer only.
    fn peer_has_it(&self) -> bool {
        !self.attempt_failed || self.connected
    }

    /// Notes that the DREQ is about to be sent. The id may have waited for the route for long: the wait for the answer
    /// has its own time.
    fn sends_dreq(&mut self) {
        if self.linger.waits() {
            self.begin_step(LINGER_MS);
        }
        self.linger.said();
    }
}

impl Conn {
    /// Returns the id, while there is one.
    pub(super) fn id(&self) -> Option<Arc<CmId<Self>>> {
        self.with(|inner| inner.id.clone())
    }

    /// Returns whether a message can reach the peer. While the next device of the NI's address is unknown, a software
    /// device must not send: the GID may go before the message does.
    pub(super) fn reachability(&self, id: &CmId<Self>) -> Reachability {
        self.reachability_now(id.reachability())
    }

    /// Returns whether a message can reach the peer, by what the CM has just returned. Does not sleep.
    pub(super) fn reachability_now(&self, now: Reachability) -> Reachability {
        let software = || self.ni.hca().is_ok_and(|hca| hca.device.is_software());
        if now == Reachability::Reachable && self.ni.is_unsettled() && software() {
            return Reachability::NoRoute;
        }
        now
    }

    /// Returns whether the NI has another device by now, or the address has left the device of the connection.
    pub(super) fn is_elsewhere(&self) -> bool {
        if let (Ok(old), Ok(new)) = (self.hca(), self.ni.hca()) {
            if !Arc::ptr_eq(&old, &new) {
                return true;
            }
        }
        // Last, because it waits for the handlers of the id. On iWARP a connect may hold the id for minutes, and there
        // is no GID to check.
        if self.over_tcp {
            return false;
        }
        self.id()
            .is_some_and(|id| id.reachability() == Reachability::NoAddress)
    }

    /// Sends the DREQ, or the reject of the peer's request, or notes that it is due once there is a route. In a handler
    /// of the CM, too.
    pub(super) fn tell_end(&self, id: &CmId<Self>, way: Reachability) {
        let (asked, cause) = self.with(|inner| {
            let made = inner.peer_has_it();
            match way {
                Reachability::Reachable if made => inner.sends_dreq(),
                Reachability::NoRoute => {
                    if made {
                        inner.linger.no_route();
                    }
                    inner.owes_reject |= !inner.asked;
                }
                // The peer can never be told without an address.
                Reachability::Reachable | Reachability::NoAddress => {}
            }
            (inner.asked, inner.state.end_cause())
        });
        match (way, asked) {
            // Refused if it was never connected, or is disconnected; the drain puts the queue pair into error anyway.
            (Reachability::Reachable, true) => {
                let _ = id.disconnect();
            }
            (Reachability::Reachable, false) => self.reject(id, cause),
            (Reachability::NoRoute | Reachability::NoAddress, _) => {}
        }
    }

    /// Rejects, for `cause`, a request that was taken and will not be accepted (passive side).
    fn reject(&self, id: &CmId<Self>, cause: Cause) {
        if self.active {
            return;
        }
        let ni = NiView {
            nid: self.ni.nid,
            stamp: self.ni.stamp,
            peer_credits: self.ni.depth(),
            active: true,
        };
        let refusal = Refusal::of_taken(cause).reject(Some(&ni));
        let _ = id.reject(&refusal.encode());
    }

    /// Keeps the id of a released connection until the peer has answered the DREQ, which the CM resends, or until there
    /// is a route for the DREQ, if either is needed. Returns whether the id stays.
    pub(super) fn wait_for_drep(self: &Arc<Self>) -> bool {
        let way = self
            .id()
            .map_or(Reachability::Reachable, |id| self.reachability(&id));
        if way == Reachability::NoAddress {
            // The peer can never be told, and the CM must not resend earlier messages.
            return false;
        }
        let mute = self.with(|inner| {
            // The CM rejects a request of the peer that was not accepted when the id is freed.
            let speaks = !self.active || inner.asked;
            let no_route = speaks && way == Reachability::NoRoute;
            if no_route {
                inner.linger.no_route();
            }
            let waits = inner.linger.is_unanswered();
            waits.then_some(inner.linger.is_mute())
        });
        let Some(mute) = mute else { return false };
        // Listed before the wait begins, so that a shutdown never misses it.
        if !self.peer.peers.lingering.add(self, mute) {
            return false;
        }
        let waits = self.with(|inner| {
            let waits = inner.linger.released();
            if waits {
                inner.begin_step(LINGER_MS);
                // Under the lock: the code that ends the wait cancels it.
                self.rearm_timer(match inner.linger.is_mute() {
                    true => ROUTE_CHECK_MS,
                    false => LINGER_MS,
                });
            }
            waits
        });
        if !waits {
            self.peer.peers.lingering.remove(self);
        }
        waits
    }

    /// Frees the id. If a request of the peer could not be rejected before, rejects it with the cause: the CM by itself
    /// gives none, and the peer takes that for a node that does not know the protocol. Not inside one of the id's
    /// handlers.
    pub(super) fn free_id(&self) {
        // The id may not be stored yet, and the code that stores it frees it.
        let Some(id) = self.id() else { return };
        let owed = self.with(|inner| {
            let owes = core::mem::take(&mut inner.owes_reject);
            owes.then(|| inner.state.end_cause())
        });
        if let Some(cause) = owed {
            self.reject(&id, cause);
        }
        drop(id);
        let id = self.with(|inner| inner.id.take());
        drop(id);
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

    /// Frees an id that has waited.
    pub(super) fn leave(self: &Arc<Self>) {
        self.cancel_timer();
        self.free_id();
        self.peer.peers.lingering.remove(self);
    }

    /// Notes what happened to the disconnect, and requests that a worker frees an id that waited for it. In a handler
    /// of the CM, too.
    pub(super) fn id_changed(self: &Arc<Self>, change: impl FnOnce(&mut CmIdLinger)) {
        let leaves = self.with(|inner| {
            change(&mut inner.linger);
            inner.linger.leaves()
        });
        if leaves {
            self.kick_blocking();
        }
    }
}

impl Lingering for Conn {
    fn nid(&self) -> Nid {
        self.peer.nid
    }

    fn is_mute(&self) -> bool {
        self.with(|inner| inner.linger.is_mute())
    }

    fn look_for_route(self: &Arc<Self>) {
        let Some(id) = self.id() else { return };
        let way = self.reachability(&id);
        match way {
            Reachability::NoAddress => self.id_changed(CmIdLinger::over),
            Reachability::NoRoute => {
                self.id_changed(CmIdLinger::no_route);
                self.with(|inner| {
                    if inner.linger.waits() {
                        self.rearm_timer(ROUTE_CHECK_MS);
                    }
                });
            }
            Reachability::Reachable => {
                let (waited, made) = self.with(|inner| {
                    let waited = inner.linger.waits() && inner.linger.is_mute();
                    let made = inner.peer_has_it();
                    if waited && made {
                        inner.sends_dreq();
                        self.rearm_timer(LINGER_MS);
                    }
                    (waited, made)
                });
                if waited && !made {
                    // Freeing the id tells the peer.
                    self.id_changed(CmIdLinger::over);
                } else if waited {
                    let _ = id.disconnect();
                }
            }
        }
    }

    fn end_farewell(self: &Arc<Self>) {
        let leaves = self.with(|inner| {
            inner.linger.over();
            inner.linger.leaves()
        });
        if leaves {
            self.leave();
        }
    }
}
