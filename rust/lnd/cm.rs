// SPDX-License-Identifier: GPL-2.0

//! Events of the connection manager, turned into events of the state machine.
//!
//! They come in the CM's workqueue under the id's handler mutex: nothing here waits for another
//! handler or destroys an id.

use kernel::sync::{
    atomic::Relaxed,
    Arc,
    ArcBorrow, //
};

use super::{
    conn::Conn,
    log,
    wire, //
};
use crate::{
    proto::{
        cause::Cause,
        cm_msg::{
            judge_connack,
            react_to_reject,
            Ask,
            Expected,
            Reaction,
            Refused, //
        },
        conn::{
            Actions,
            Event,
            State, //
        },
        peer::Known,
        trail::rejected_name, //
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

/// Milliseconds to resolve a route (protocol section 1).
const ROUTE_MS: u32 = 5000;

impl CmHandler for Conn {
    fn cm_event(this: ArcBorrow<'_, Self>, id: &CmLocked<'_>, event: &CmEvent<'_>) {
        let this: Arc<Self> = this.into();
        match *event {
            CmEvent::AddrResolved => this.addr_resolved(id),
            CmEvent::RouteResolved => this.route_resolved(id),
            CmEvent::AddrTimeout => this.event(Event::AddrTimeout),
            CmEvent::AddrError | CmEvent::RouteError => this.fail(Cause::Unreachable),
            CmEvent::Established { private_data, qpn } => {
                if qpn != 0 {
                    this.peer_qpn.store(qpn, Relaxed);
                }
                this.cm_established(private_data)
            }
            CmEvent::Rejected {
                reason,
                private_data,
            } => this.rejected(reason, private_data),
            CmEvent::ConnectError => this.connect_error(),
            CmEvent::Unreachable => this.event(Event::Unreachable),
            CmEvent::Disconnected | CmEvent::TimewaitExit => {
                this.farewell_over();
                this.event(Event::Disconnected);
            }
            CmEvent::DeviceRemoval => {
                this.farewell_over();
                this.fail(Cause::DeviceGone);
            }
            CmEvent::AddrChange => this.fail(Cause::AddressChanged),
            CmEvent::ConnectResponse | CmEvent::Other => this.event(Event::Ignored),
        }
    }

    fn last_user(this: ArcBorrow<'_, Self>, id: CmId<Self>) {
        let this: Arc<Self> = this.into();
        *this.late_id.lock() = Some(id);
        this.kick_control();
    }
}

impl Conn {
    /// The id is not needed to tell the peer that the connection is over.
    fn farewell_over(self: &Arc<Self>) {
        if self.with(|inner| inner.farewell.over()) {
            self.kick_control();
        }
    }

    fn addr_resolved(self: &Arc<Self>, id: &CmLocked<'_>) {
        let actions = self.with(|inner| inner.fsm.on(Event::AddrResolved));
        if !actions.has(Actions::RESOLVE_ROUTE) {
            return;
        }
        if let Some(tos) = self.ni.lnet.tos() {
            id.set_tos(tos);
        }
        if id.resolve_route(ROUTE_MS).is_err() {
            self.fail(Cause::Unreachable);
        }
    }

    fn route_resolved(self: &Arc<Self>, id: &CmLocked<'_>) {
        if let Some(mtu) = self.ni.path_mtu {
            // Only iWARP has no path record to change.
            let _ = id.set_path_mtu(mtu);
        }
        self.event(Event::RouteResolved);
    }

    /// The handshake is complete. The active side reads the CONNACK first, and closes if it is no
    /// good: the queue pair is up already.
    fn cm_established(self: &Arc<Self>, private_data: &[u8]) {
        if !self.active {
            return self.event(Event::Established);
        }
        let mut guard = self.lock();
        let inner = &mut *guard;
        if inner.fsm.state() != State::Connecting {
            return;
        }
        let expected = Expected {
            me: self.ni.nid,
            my_stamp: self.ni.stamp,
            peer: self.nid(),
            asked: Ask {
                depth: inner.known.depth,
                frags: inner.known.frags,
                stamp: inner.known.stamp,
            },
        };
        match judge_connack(private_data, &expected) {
            Ok(agreed) => {
                inner.known = Known {
                    stamp: agreed.stamp,
                    depth: agreed.depth,
                    frags: agreed.frags,
                };
                self.step(inner, Event::Established);
                wire::received_early(self, inner);
            }
            Err(e) => {
                log::rejected(self.nid(), &e);
                self.step(inner, Event::Fail(Cause::Protocol));
            }
        }
    }

    fn connect_error(self: &Arc<Self>) {
        // On an established connection it says nothing that completions do not say better.
        let connecting = self.with(|inner| inner.fsm.state() < State::Established);
        if connecting {
            self.fail(Cause::ConnectFailed);
        } else {
            self.event(Event::Ignored);
        }
    }

    fn rejected(self: &Arc<Self>, reason: i32, private_data: &[u8]) {
        let mut guard = self.lock();
        let inner = &mut *guard;
        if !self.active {
            return self.step(inner, Event::Fail(Cause::ConnectFailed));
        }
        let asked = Ask {
            depth: inner.known.depth,
            frags: inner.known.frags,
            stamp: inner.known.stamp,
        };
        let cause = match react_to_reject(reason, private_data, &asked) {
            Reaction::Retry(_, ask) => {
                inner.retry = Some(Known {
                    stamp: ask.stamp,
                    depth: ask.depth,
                    frags: ask.frags,
                });
                Cause::Refused
            }
            Reaction::Fail(why) => {
                log::rejected(self.nid(), &why);
                inner.rejected = Some(rejected_name(&why));
                refusal_cause(why)
            }
        };
        self.step(inner, Event::Fail(cause));
    }
}

fn refusal_cause(why: Refused) -> Cause {
    match why {
        Refused::NoListener => Cause::Unreachable,
        _ => Cause::Refused,
    }
}
