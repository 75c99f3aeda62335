// SPDX-License-Identifier: GPL-2.0

//! Events of the connection manager, turned into events of the state machine.
//!
//! Context: the CM's workqueue, under the id's handler mutex. Code here does not wait for another handler, and does not
//! destroy an id. The connection lock is taken briefly.

use kernel::sync::{
    Arc,
    ArcBorrow, //
};

use super::{
    Conn,
    Inner, //
};
use crate::{
    lnd::{
        log,
        ni::DeviceHint, //
    },
    policy::{
        close_log::rejected_name,
        cm_id_linger::CmIdLinger,
        reconnect::{
            PeerParams,
            RetryReject, //
        }, //
    },
    proto::{
        cause::Cause,
        conn_req_check::{
            react_to_reject,
            validate_conn_ack,
            Ask,
            Expected,
            Reaction,
            Refused, //
        },
        conn_state::{
            Actions,
            ConnEvent,
            State, //
        },
        reject::RetryWhy, //
    },
    rdma::{
        cm::{
            CmHandler,
            CmId,
            CmLocked, //
        },
        cm_event::CmEvent, //
    }, //
};

/// Limit for the resolution of a route in milliseconds (protocol section 1).
const ROUTE_MS: u32 = 5000;

impl CmHandler for Conn {
    fn cm_event(this: ArcBorrow<'_, Self>, id: &CmLocked<'_>, event: &CmEvent<'_>) {
        let this: Arc<Self> = this.into();
        match *event {
            CmEvent::AddrResolved => this.addr_resolved(id),
            CmEvent::RouteResolved => this.event(ConnEvent::RouteResolved),
            CmEvent::AddrTimeout => this.event(ConnEvent::AddrTimeout),
            CmEvent::AddrError | CmEvent::RouteError => this.end(Cause::Unreachable),
            CmEvent::Established { private_data, qpn } => {
                this.with(|inner| inner.learn_qpn(qpn));
                this.cm_established(id, private_data)
            }
            CmEvent::Rejected {
                reason,
                private_data,
            } => this.rejected(reason, private_data),
            CmEvent::ConnectError => this.connect_error(),
            CmEvent::Unreachable => {
                let ms = this.with(|inner| inner.step_ms());
                this.event(ConnEvent::unreachable(ms));
            }
            CmEvent::Disconnected | CmEvent::TimewaitExit => {
                this.id_changed(CmIdLinger::heard);
                this.event(ConnEvent::Disconnected);
            }
            CmEvent::DeviceRemoval => {
                this.id_changed(CmIdLinger::over);
                this.end(Cause::DeviceGone);
            }
            CmEvent::AddrChange => this.end(Cause::AddressChanged),
            CmEvent::ConnectResponse | CmEvent::Other => this.event(ConnEvent::Ignored),
        }
    }

    fn released_in_handler(this: ArcBorrow<'_, Self>, id: CmId<Self>) {
        let this: Arc<Self> = this.into();
        this.with(|inner| inner.late_id = Some(id));
        this.kick_blocking();
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
            if !found.same(&wanted.device) || id.port() != wanted.port {
                // The address has moved to another device, or the NI has just followed it.
                self.end(Cause::Moved);
                return self.ni.tell(DeviceHint::Astray);
            }
        }
        if let Some(tos) = self.made_with.settings().tos() {
            id.set_tos(tos);
        }
        if id.resolve_route(ROUTE_MS).is_err() {
            self.end(Cause::Unreachable);
        }
    }

    /// Completes the handshake. The active side reads the CONNACK first, and closes the connection if the CONNACK is
    /// invalid: the queue pair is up already.
    fn cm_established(self: &Arc<Self>, id: &CmLocked<'_>, private_data: &[u8]) {
        let (asked, connecting, over) = self.with(|inner| {
            // For any CONNACK: the peer takes the connection for established, so at its end the CM resends the DREQ
            // until the peer answers.
            inner.connected = true;
            let connecting = inner.state.state() == State::Connecting;
            (inner.asks(), connecting, inner.state.cause().is_some())
        });
        if over {
            self.established_after_close(id);
        }
        if !self.active {
            return self.event(ConnEvent::Established);
        }
        let expected = Expected {
            me: self.ni.nid,
            my_stamp: self.ni.stamp,
            peer: self.nid(),
            asked,
        };
        match validate_conn_ack(private_data, &expected) {
            Ok(agreed) => {
                let mut guard = self.lock();
                let inner = &mut *guard;
                inner.known = PeerParams {
                    stamp: agreed.stamp,
                    depth: agreed.depth,
                    frags: agreed.frags,
                };
                inner.is_agreed = true;
                if inner.state.state() == State::Connecting {
                    self.step(inner, ConnEvent::Established);
                    self.received_early(inner);
                } else if inner.state.cause().is_some() {
                    // The peer has a connection, and may have sent messages.
                    inner.wire.established(agreed.depth, 1, agreed.stamp);
                    self.received_early_and_late(inner);
                }
            }
            Err(_) if !connecting => {}
            Err(e) => {
                log::rejected(self.nid(), &e);
                self.end(Cause::Protocol);
            }
        }
    }

    fn connect_error(self: &Arc<Self>) {
        // On an established connection completions give a better cause than the peer's reject.
        let connecting = self.with(|inner| inner.state.is_attempt());
        if connecting {
            self.end(Cause::ConnectFailed);
        } else {
            self.event(ConnEvent::Ignored);
        }
    }

    fn rejected(self: &Arc<Self>, reason: i32, private_data: &[u8]) {
        if self.active {
            self.peer.answers();
        }
        let Some(asked) = self.with(|inner| self.rejected_attempt(inner)) else {
            return;
        };
        let reaction = match react_to_reject(reason, private_data, &asked) {
            Reaction::Retry(RetryWhy::Unsaid, _) if self.peer.is_refused_often() => {
                Reaction::Fail(Refused::Unsaid)
            }
            reaction => reaction,
        };
        if let Reaction::Fail(why) = &reaction {
            log::rejected(self.nid(), why);
        }
        let mut guard = self.lock();
        let inner = &mut *guard;
        if !inner.state.is_attempt() {
            // It has ended meanwhile, for another cause.
            return;
        }
        let cause = match reaction {
            Reaction::Retry(why, ask) => {
                let known = PeerParams {
                    stamp: ask.stamp,
                    depth: ask.depth,
                    frags: ask.frags,
                };
                inner.retry = Some(RetryReject { why, known });
                Cause::Refused
            }
            Reaction::Fail(why) => {
                inner.rejected = Some(rejected_name(&why));
                refusal_cause(why)
            }
        };
        self.step(inner, ConnEvent::Fail(cause));
    }

    /// Returns the parameters of the request, if the peer has rejected that request.
    ///
    /// The peer may reject a connection that is established here: a passive side that closes it before it has the
    /// answer to its REP rejects it. That closes the connection like any other cause. The CM does not know it any more:
    /// the peer would not answer a DREQ, and none is sent.
    fn rejected_attempt(self: &Arc<Self>, inner: &mut Inner) -> Option<Ask> {
        if !inner.state.is_attempt() {
            inner.linger.over();
            if inner.linger.leaves() {
                self.kick_blocking();
            }
            self.step(inner, ConnEvent::Disconnected);
            return None;
        }
        if !self.active {
            self.step(inner, ConnEvent::Fail(Cause::ConnectFailed));
            return None;
        }
        Some(inner.asks())
    }

    /// Disconnects a connection that the CM has established after it was closed here: at the close there may have been
    /// no connection to disconnect. So the driver sends a DREQ, and the id waits for the answer. In a handler of the
    /// CM, which the release of the connection waits for.
    fn established_after_close(self: &Arc<Self>, id: &CmLocked<'_>) {
        let way = self.reachability_now(id.reachability());
        if let Some(id) = self.id() {
            self.tell_end(&id, way);
        }
        // The connection may have been released meanwhile, and its id wait for an answer to a DREQ that was never sent.
        self.id_changed(|_| {});
    }
}

fn refusal_cause(why: Refused) -> Cause {
    match why {
        Refused::NoListener => Cause::NoListener,
        _ => Cause::Refused,
    }
}
