// SPDX-License-Identifier: GPL-2.0

//! Connection and its CM: events of the CM, turned into events of the state machine; whether the peer can be reached;
//! the DREQ or reject at the end, and the wait of the id for the DREP or for a route. [`crate::policy::cm_id_linger`]
//! has the rules of that wait, and why no message of the CM may be sent without a route.
//!
//! Context: events in the CM's workqueue, under the id's handler mutex: code there does not wait for another handler,
//! and does not destroy an id. Other functions in process context; they may sleep. The connection lock is taken
//! briefly, and the id freed without it: the drop of the last reference waits for the CM.
//!
//! # Invariants
//!
//! While the id waits, the connection is listed in [`Peers`](crate::lnd::peer::Peers), and the timer is armed. The code
//! that ends the wait under the lock queues the worker that frees the id.

use kernel::sync::{
    Arc,
    ArcBorrow, //
};

use super::{
    Conn,
    Inner, //
};
use crate::{
    lnd::log,
    policy::{
        cm_id_linger::{
            CmIdLinger,
            LINGER_MS,
            ROUTE_CHECK_MS, //
        }, //
    },
    proto::{
        cause::Cause,
        conn_state::{
            Actions,
            ConnEvent,
            State,
            Worker, //
        },
        handshake::validate_conn_ack,
        reject::{
            react_to_reject,
            Refused,
            RejectCause,
            RetryWhy,
            UNSAID_MAX, //
        }, //
    },
    rdma::{
        cm::{
            CmHandler,
            CmId,
            CmLocked,
            Reachability, //
        },
        cm_event::CmEvent, //
    }, //
};

/// Limit for the resolution of a route in milliseconds (protocol section 1).
const ROUTE_MS: u32 = 5000;

impl CmHandler for Conn {
    fn cm_event(this: ArcBorrow<'_, Self>, id: &CmLocked<'_>, event: &CmEvent<'_>) {
        let this: Arc<Self> = this.into();
        if matches!(
            event,
            CmEvent::Established { .. }
                | CmEvent::Rejected { .. }
                | CmEvent::ConnectError
                | CmEvent::Unreachable
        ) {
            this.with(|inner| inner.answered = true);
        }
        match *event {
            CmEvent::AddrResolved => this.addr_resolved(id),
            CmEvent::RouteResolved => this.event(ConnEvent::RouteResolved),
            CmEvent::AddrTimeout => this.event(ConnEvent::AddrTimeout),
            CmEvent::AddrError | CmEvent::RouteError => this.end(Cause::Unreachable),
            CmEvent::Established { private_data, qpn } => {
                this.cm_established(id, private_data, qpn)
            }
            CmEvent::Rejected {
                reason,
                private_data,
            } => this.rejected(reason, private_data),
            // On an established connection completions give a better cause than the peer's reject.
            CmEvent::ConnectError if this.with(|inner| !inner.state.is_attempt()) => {}
            CmEvent::ConnectError => this.end(Cause::ConnectFailed),
            CmEvent::Unreachable => {
                let ms = this.with(|inner| inner.step_ms());
                this.event(ConnEvent::unreachable(ms));
            }
            CmEvent::Disconnected | CmEvent::TimewaitExit => {
                this.id_changed(CmIdLinger::heard);
                this.event(ConnEvent::Disconnected);
            }
            CmEvent::DeviceRemoval => {
                this.end_linger();
                this.end(Cause::DeviceGone);
            }
            CmEvent::AddrChange => this.end(Cause::AddressChanged),
            CmEvent::ConnectResponse | CmEvent::Other => {}
        }
    }

    fn released_in_handler(this: ArcBorrow<'_, Self>, id: CmId<Self>) {
        let this: Arc<Self> = this.into();
        this.with(|inner| inner.late_id = Some(id));
        this.kick(Worker::Blocking);
    }
}

impl Conn {
    fn addr_resolved(self: &Arc<Self>, id: &CmLocked<'_>) {
        let actions = self.with(|inner| inner.state.on(ConnEvent::AddrResolved));
        if !actions.has(Actions::RESOLVE_ROUTE) {
            return;
        }
        let (found, wanted) = (id.device(), self.hca());
        if let (Some(found), Ok(wanted)) = (found, wanted) {
            if !wanted.is_at(&found, id.port()) {
                // The address has moved to another device, or the NI has just followed it.
                self.end(Cause::Moved);
                self.ni.way(|way| way.address.recheck(self.ni.now_ms()));
                return self.ni.check_device();
            }
        }
        if let Some(tos) = self.made_with.tos {
            id.set_tos(tos);
        }
        if let Err(e) = id.resolve_route(ROUTE_MS) {
            log::cannot(self.nid(), "resolve the route", e);
            self.end(Cause::of_resolving(e.to_errno()));
        }
    }

    /// Completes the handshake. The active side reads the CONNACK first, and closes the connection if the CONNACK is
    /// invalid: the queue pair is up already.
    fn cm_established(self: &Arc<Self>, id: &CmLocked<'_>, private_data: &[u8], qpn: u32) {
        let (asked, expected, over) = self.with(|inner| {
            // Over iWARP it is unknown.
            if qpn != 0 {
                inner.peer_qpn = qpn;
            }
            // For any CONNACK: the peer takes the connection for established, so at its end the CM resends the DREQ
            // until the peer answers.
            inner.connected = true;
            (inner.known, inner.identity, inner.state.cause().is_some())
        });
        if over {
            self.established_after_close(id);
        }
        if !self.active {
            return self.event(ConnEvent::Established);
        }
        match validate_conn_ack(private_data, &expected, &asked) {
            Ok(agreed) => {
                let mut guard = self.inner.lock();
                let inner = &mut *guard;
                inner.known = agreed;
                inner.is_agreed = true;
                if inner.state.state() == State::Connecting {
                    self.step(inner, ConnEvent::Established);
                    self.received_early(inner);
                } else if inner.state.cause().is_some() {
                    // The peer has a connection, and may have sent messages.
                    inner.agreed(1);
                    self.received_early(inner);
                }
            }
            Err(_) if over => {}
            Err(e) => {
                log::rejected(self.nid(), &e);
                self.end(Cause::Protocol);
            }
        }
    }

    /// Ends an attempt whose request the peer has rejected.
    ///
    /// The peer may reject a connection that is established here: a passive side that closes it before it has the
    /// answer to its REP rejects it. That closes the connection like any other cause. The CM does not know it any more:
    /// the peer would not answer a DREQ, and none is sent.
    fn rejected(self: &Arc<Self>, reason: i32, private_data: &[u8]) {
        let failures = self.peer.snapshot().failures;
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        if !inner.state.is_attempt() {
            inner.linger.over();
            self.after_linger_change(inner);
            return self.step(inner, ConnEvent::Disconnected);
        }
        if !self.active {
            return self.step(inner, ConnEvent::Fail(Cause::ConnectFailed));
        }
        let refused = match react_to_reject(reason, private_data, &inner.known) {
            Ok(RetryWhy::Unsaid) if failures >= UNSAID_MAX => Refused::NoReason,
            Ok(why) => {
                inner.retry = Some(why);
                return self.step(inner, ConnEvent::Fail(Cause::Refused));
            }
            Err(refused) => refused,
        };
        inner.rejected = Some(match refused {
            Refused::Reason(why) => why.name(),
            _ => refused.name(),
        });
        let cause = match refused {
            Refused::NoListener => Cause::NoListener,
            _ => Cause::Refused,
        };
        self.step(inner, ConnEvent::Fail(cause));
        drop(guard);
        log::rejected(self.nid(), &refused);
    }

    /// Disconnects a connection that the CM has established after it was closed here: at the close there may have been
    /// no connection to disconnect. So the driver sends a DREQ, and the id waits for the answer. In a handler of the
    /// CM, which the release of the connection waits for.
    fn established_after_close(self: &Arc<Self>, id: &CmLocked<'_>) {
        let way = self.reachability(id.reachability());
        if let Some(id) = self.id() {
            self.tell_end(&id, way);
        }
        // The connection may have been released meanwhile, and its id wait for an answer to a DREQ that was never sent.
        self.with(|inner| self.after_linger_change(inner));
    }
}

impl Inner {
    /// Returns whether a closed connection was one for the peer. If the peer's answer was invalid, it may have been one
    /// for the peer only.
    fn peer_has_it(&self) -> bool {
        self.up.is_some() || self.connected
    }

    /// Notes that the DREQ is about to be sent. An id may have waited for the route for long: the wait for the answer
    /// has its own time.
    fn sends_dreq(&mut self) {
        if self.linger.waits() && self.linger.is_mute() {
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

    /// Returns whether a message can reach the peer, by what the CM has just returned. While the next device of the
    /// NI's address is unknown, a software device must not send: the GID may go before the message does.
    pub(super) fn reachability(&self, by_cm: Reachability) -> Reachability {
        let software = || self.ni.hca().is_ok_and(|hca| hca.device.is_software());
        if by_cm == Reachability::Reachable && self.ni.is_unsettled() && software() {
            return Reachability::NoRoute;
        }
        by_cm
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
            // The CM sends nothing if the queue pair does not enter the error state. Over TCP also the peer's end is an
            // error.
            (Reachability::Reachable, true) => {
                if id.disconnect().is_err() && !self.over_tcp {
                    self.with(|inner| inner.linger.unsaid());
                }
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
        let refusal = RejectCause::of_taken(cause).reject(Some(&self.ni.view()));
        let _ = id.reject(&refusal.encode());
    }

    /// Keeps the id of a released connection until the peer has answered the DREQ, which the CM resends, or until there
    /// is a route for the DREQ, if either is needed. Returns whether the id stays.
    pub(super) fn wait_for_drep(self: &Arc<Self>) -> bool {
        let way = self.id().map_or(Reachability::Reachable, |id| {
            self.reachability(id.reachability())
        });
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
        if !self.peer.peers.add_lingering(self, mute) {
            return false;
        }
        let waits = self.with(|inner| {
            let waits = inner.linger.released();
            inner.begin_step(LINGER_MS);
            // Under the lock: the code that ends the wait cancels it.
            self.after_linger_change(inner);
            waits
        });
        if !waits {
            self.peer.peers.remove_lingering(self);
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

    /// Notes what happened to the disconnect, and requests that a worker frees an id that waited for it. In a handler
    /// of the CM, too.
    fn id_changed(self: &Arc<Self>, change: impl FnOnce(&mut CmIdLinger)) {
        self.with(|inner| {
            change(&mut inner.linger);
            self.after_linger_change(inner);
        });
    }

    /// Arms the timer for the next check of an id that waits; requests that a worker frees an id that waited and no
    /// longer does.
    pub(super) fn after_linger_change(self: &Arc<Self>, inner: &Inner) {
        if inner.linger.leaves() {
            self.kick(Worker::Blocking);
        } else if inner.linger.waits() {
            self.rearm_timer(match inner.linger.is_mute() {
                true => ROUTE_CHECK_MS,
                false => inner.step_left_ms(),
            });
        }
    }

    /// Returns whether the id waits for a route, and not for an answer.
    pub(crate) fn is_mute(&self) -> bool {
        self.with(|inner| inner.linger.is_mute())
    }

    /// Checks for a route to the peer. Sends the DREQ, or waits for a route. May sleep.
    pub(crate) fn look_for_route(self: &Arc<Self>) {
        let Some(id) = self.id() else {
            return self.end_linger();
        };
        let way = self.reachability(id.reachability());
        let sends = self.with(|inner| {
            let due = inner.linger.waits() && inner.linger.is_mute();
            let made = inner.peer_has_it();
            match way {
                Reachability::NoRoute => inner.linger.no_route(),
                Reachability::Reachable if !due => {}
                Reachability::Reachable if made => inner.sends_dreq(),
                // Freeing the id tells the peer, or the peer can never be told.
                Reachability::Reachable | Reachability::NoAddress => inner.linger.over(),
            }
            self.after_linger_change(inner);
            way == Reachability::Reachable && due && made
        });
        if sends {
            // The queue pair is destroyed, and keeps the CM from nothing.
            let _ = id.disconnect();
        }
    }

    /// Ends the wait of the id: a worker frees it.
    pub(crate) fn end_linger(self: &Arc<Self>) {
        self.id_changed(CmIdLinger::over);
    }
}
