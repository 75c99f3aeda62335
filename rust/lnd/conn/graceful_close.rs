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
    disconnect::{
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
        conn_state::{
            ConnEvent,
            State, //
        },
        nid::Nid, //
    },
    rdma::{
        atomic::Atomic,
        cm::{
            CmId,
            CmLocked,
            Reachability, //
        }, //
    }, //
};

impl Conn {
    /// Ends the connection for `cause` when what is under way on it has ended, and soon in any case.
    pub(super) fn close_graceful(self: &Arc<Self>, cause: Cause) {
        self.with(|inner| {
            if inner.state.is_up() {
                inner.disconnect.finish(cause);
                let _ = self.look_whether_finished(inner);
            } else {
                self.step(inner, ConnEvent::Fail(cause));
            }
        });
        // What LNet sends from now on waits for the next one. After that was said, which whoever lists it looks for
        // when he has ([`Conn::publish`]).
        self.peer.unpublish(self);
    }

    /// Ends the connection if it waits for what is under way only, and that has ended. False: it does not wait for
    /// that.
    pub(super) fn look_whether_finished(self: &Arc<Self>, inner: &mut Inner) -> bool {
        let Some((cause, waited_ms)) = inner.disconnect.finishing() else {
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

    /// What becomes of a message to the peer. While it is not known where the address of the NI will be a device
    /// made of software is not made to speak: the GID may go before the message does.
    pub(super) fn way(&self, id: &CmId<Self>) -> Reachability {
        self.way_now(id.reachability())
    }

    /// The same, where `way` is what the CM has just said.
    fn way_now(&self, way: Reachability) -> Reachability {
        let software = || self.ni.hca().is_ok_and(|hca| hca.device.is_software());
        if way == Reachability::Reachable && self.ni.is_unsettled() && software() {
            return Reachability::NoRoute;
        }
        way
    }

    /// Drops the id if the connection was released before it was there: the peer lists a passive
    /// connection before the id is taken, so an operator can close it in between. The id and the
    /// connection hold each other, and nobody else would part them.
    pub(super) fn release_orphan_id(&self) {
        // Either the release, which follows this state, finds the id, or this sees the state.
        if self.with(|inner| inner.state.state() == State::Dead) {
            self.free_id();
        }
    }

    /// Keeps the id until the peer has answered our DREQ, if it has to: the CM repeats it. Or until
    /// there is a route to tell the peer.
    pub(super) fn wait_for_farewell(self: &Arc<Self>) -> bool {
        // A request of the peer's that was not accepted is refused when the id goes.
        let speaks = !self.active || self.with(|inner| inner.disconnect.was_asked());
        let way = self
            .cm
            .id()
            .map_or(Reachability::Reachable, |id| self.way(&id));
        if way == Reachability::NoAddress {
            // Nobody will ever be told, and what was said already must not be repeated.
            return false;
        }
        let no_route = speaks && way == Reachability::NoRoute;
        let Some(mute) = self.with(|inner| inner.disconnect.must_wait(no_route)) else {
            return false;
        };
        // Listed before it says that it waits, so that a shutdown misses it in no case.
        if !self.peer.peers.lingering.add(self, mute) {
            return false;
        }
        let waits = self.with(|inner| {
            let ms = inner.disconnect.wait();
            if let Some(ms) = ms {
                // Under the lock: whoever ends the waiting cancels it.
                self.rearm_timer(ms);
            }
            ms.is_some()
        });
        if !waits {
            self.peer.peers.lingering.remove(self);
        }
        waits
    }

    /// Frees the id. A request of the peer's that could not be refused before is refused with the cause: the CM by
    /// itself says none, and that is taken for a peer that does not know the protocol. May sleep; inside of one of the
    /// id's handlers it does not.
    pub(super) fn free_id(&self) {
        // It may not be there yet, and who brings it frees it.
        let Some(id) = self.cm.id() else { return };
        let owed = self.with(|inner| {
            let owes = inner.disconnect.pay_answer();
            owes.then(|| inner.state.end_cause())
        });
        if let Some(cause) = owed {
            self.reject(&id, cause);
        }
        self.cm.drop_id();
    }

    /// Frees an id that has waited for the peer's answer.
    pub(super) fn leave(self: &Arc<Self>) {
        self.cancel_timer();
        self.free_id();
        self.peer.peers.lingering.remove(self);
    }

    /// The CM has made the connection, and here it is over: whoever ended it may have found nothing made yet. So the
    /// peer is told, and the id waits for its answer. In a handler of the CM, for which who releases the connection
    /// waits.
    pub(super) fn established_after_close(self: &Arc<Self>, id: &CmLocked<'_>) {
        let way = self.way_now(id.reachability());
        if way == Reachability::NoAddress {
            return;
        }
        if self.with(|inner| inner.disconnect.begin(way == Reachability::Reachable)) {
            // It was released meanwhile, and its id waits for an answer to what was never said.
            self.kick_blocking();
        }
        if way == Reachability::Reachable {
            // Refused if that was done meanwhile.
            let _ = self.cm.id().map(|id| id.disconnect());
        }
    }

    /// The peer has asked or answered. In a handler of the CM.
    pub(super) fn farewell_heard(self: &Arc<Self>) {
        if self.with(|inner| inner.disconnect.heard()) {
            self.kick_blocking();
        }
    }

    /// The id is not needed to tell the peer that the connection is over: a worker of the device frees it. In a handler
    /// of the CM, too.
    pub(super) fn farewell_over(self: &Arc<Self>) {
        if self.with(|inner| inner.disconnect.over()) {
            self.kick_blocking();
        }
    }
}

impl Inner {
    /// Whether it is, or was, a connection to the peer. It may be to the peer only, whose answer was no good.
    pub(super) fn peer_has_it(&self) -> bool {
        !self.state.attempt_failed() || self.disconnect.is_connected()
    }
}

impl Lingering for Conn {
    fn nid(&self) -> Nid {
        self.peer.nid
    }

    fn place(&self) -> &Atomic<u32> {
        &self.parting_place
    }

    fn is_mute(&self) -> bool {
        self.with(|inner| inner.disconnect.is_mute())
    }

    fn look_for_route(self: &Arc<Self>) {
        let Some(id) = self.cm.id() else { return };
        let way = self.way(&id);
        if way == Reachability::NoAddress {
            return self.farewell_over();
        }
        if way == Reachability::NoRoute {
            let leaves = self.with(|inner| {
                let (leaves, waits) = inner.disconnect.no_route();
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
            let waited = inner.disconnect.route_found(made);
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
        if self.with(|inner| inner.disconnect.over()) {
            self.leave();
        }
    }
}
