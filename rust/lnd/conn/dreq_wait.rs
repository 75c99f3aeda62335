// SPDX-License-Identifier: GPL-2.0

//! Disconnect of a connection: the DREQ to the peer, and the time that the CM id stays for it.
//!
//! [`crate::policy::cm_id_linger`] has the rules, this file the clock.
//!
//! Context: any; part of the state that the connection lock protects.
//!
//! # Invariants
//!
//! While the id waits, `since` is the time when the wait began, or when the DREQ was finally sent.

use kernel::time::{
    Instant,
    Monotonic, //
};

use crate::{
    lnd::timestamp::Timestamp,
    policy::cm_id_linger::CmIdLinger,
    proto::cause::Cause, //
};

/// Time for which the id of a connection waits for the peer's DREP, in milliseconds. The CM resends a DREQ after 4.3 s,
/// the CM of OFED after 17.2 s; on InfiniBand 2.1 s later.
pub(super) const FAREWELL_MS: u32 = 25_000;

/// Milliseconds between two checks for a route to a peer that still needs a DREQ or reject.
pub(super) const MUTE_MS: u32 = 1000;

/// State of the disconnect.
pub(super) struct DreqWait {
    cm_id_linger: CmIdLinger,
    /// The driver has called the CM to connect or to accept.
    asked: bool,
    /// The CM has the peer's answer to this side's request.
    connected: bool,
    /// The driver rejects the peer's request, but could not send the reject yet.
    owes_answer: bool,
    since: Instant<Monotonic>,
    /// Cause of a graceful close, which waits for the transfers under way, and the time of its begin.
    finishing: Option<(Cause, Timestamp)>,
}

impl DreqWait {
    /// Creates the state of a new connection.
    pub(super) fn new() -> Self {
        Self {
            cm_id_linger: CmIdLinger::new(),
            asked: false,
            connected: false,
            owes_answer: false,
            since: Instant::now(),
            finishing: None,
        }
    }

    /// Begins a graceful close for `cause`, after the transfers under way. An interface that goes down does not wait as
    /// long as an administrator ([`crate::policy::link_state::may_end`]), so its cause replaces another one.
    pub(super) fn finish(&mut self, cause: Cause) {
        let first = self.finishing.map(|(first, _)| first);
        if first.is_none() || (cause == Cause::LinkDown && first != Some(cause)) {
            self.finishing = Some((cause, Timestamp::now()));
        }
    }

    /// Returns the cause of a graceful close, and the milliseconds since its begin, if one is under way.
    pub(super) fn finishing(&self) -> Option<(Cause, u64)> {
        let (cause, since) = self.finishing?;
        Some((cause, u64::try_from(since.elapsed_ms()).unwrap_or(0)))
    }

    /// Returns whether a graceful close is under way.
    pub(super) fn is_finishing(&self) -> bool {
        self.finishing.is_some()
    }

    /// Notes that the driver is about to call the CM to connect or to accept.
    pub(super) fn asked(&mut self) {
        self.asked = true;
    }

    /// Returns whether the driver has called the CM to connect or to accept.
    pub(super) fn was_asked(&self) -> bool {
        self.asked
    }

    /// Notes that the CM has the peer's answer to this side's request, valid or not.
    pub(super) fn connected(&mut self) {
        self.connected = true;
    }

    /// Returns whether the CM has the peer's answer to this side's request: for the peer it is a connection.
    pub(super) fn is_connected(&self) -> bool {
        self.connected
    }

    /// Notes that the peer's request needs a reject, but there is no route, or no id yet.
    pub(super) fn owe_answer(&mut self) {
        self.owes_answer = true;
    }

    /// Clears that note, because the id goes. Returns whether a reject is still due.
    pub(super) fn pay_answer(&mut self) -> bool {
        core::mem::replace(&mut self.owes_answer, false)
    }

    /// Begins the disconnect of an established connection: a DREQ is about to be sent, unless there is no route.
    /// Returns true if the id waited already, and must be freed now.
    #[must_use]
    pub(super) fn begin(&mut self, route: bool) -> bool {
        if route {
            // The id may have waited for the route for long: the wait for the answer has its own time.
            if !self.route_found(true) {
                self.cm_id_linger.said();
            }
            false
        } else {
            self.cm_id_linger.no_route()
        }
    }

    /// Returns, when the connection is being released, whether its id has to stay, and if so whether it waits for a
    /// route (true) or for an answer.
    pub(super) fn must_wait(&mut self, no_route: bool) -> Option<bool> {
        if no_route {
            let _ = self.cm_id_linger.no_route();
        }
        self.cm_id_linger
            .unanswered()
            .then_some(self.cm_id_linger.is_mute())
    }

    /// Begins the wait after the release. Returns the milliseconds until the next check of the id, if the id stays.
    pub(super) fn wait(&mut self) -> Option<u32> {
        if !self.cm_id_linger.released() {
            return None;
        }
        self.since = Instant::now();
        Some(if self.is_mute() { MUTE_MS } else { FAREWELL_MS })
    }

    /// Notes that there is no route to the peer. Returns whether to free the id now, and otherwise whether it waits.
    pub(super) fn no_route(&mut self) -> (bool, bool) {
        let leaves = self.cm_id_linger.no_route();
        (leaves, self.cm_id_linger.waits())
    }

    /// Notes that there is a route. Returns true if the id has waited for it. With `tell` the id then waits for an
    /// answer.
    pub(super) fn route_found(&mut self, tell: bool) -> bool {
        let waited = self.cm_id_linger.waits() && self.is_mute();
        if waited && tell {
            self.cm_id_linger.said();
            self.since = Instant::now();
        }
        waited
    }

    /// Notes that the peer has sent a DREQ or an answer. Returns true if the id waited for that, and must be freed now.
    pub(super) fn heard(&mut self) -> bool {
        self.cm_id_linger.heard()
    }

    /// Notes that no message will be sent or received any more. Returns true if the id waited, and must be freed now.
    pub(super) fn over(&mut self) -> bool {
        self.cm_id_linger.over()
    }

    /// Returns whether the id has waited, and must be freed now.
    pub(super) fn leaves(&self) -> bool {
        self.cm_id_linger.leaves()
    }

    /// Returns whether a message is due once there is a route.
    pub(super) fn is_mute(&self) -> bool {
        self.cm_id_linger.is_mute()
    }

    /// Returns the milliseconds that the id still waits for the peer's answer; `None` if it does not wait.
    pub(super) fn left_ms(&self) -> Option<u32> {
        let waited = u32::try_from(self.since.elapsed().as_millis()).unwrap_or(u32::MAX);
        self.cm_id_linger
            .waits()
            .then(|| FAREWELL_MS.saturating_sub(waited))
    }
}
