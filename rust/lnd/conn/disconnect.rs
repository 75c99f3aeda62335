// SPDX-License-Identifier: GPL-2.0

//! Disconnect of a connection: the DREQ to the peer, and how long the CM id stays for it.
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

/// Milliseconds that the id of a connection waits for the peer's DREP. The CM repeats a DREQ after
/// 4.3 s.
pub(super) const FAREWELL_MS: u32 = 10_000;

/// Milliseconds between two looks for a route to a peer that could not be told.
pub(super) const MUTE_MS: u32 = 1000;

/// The end of a connection, as the peer hears of it.
pub(super) struct DisconnectState {
    cm_id_linger: CmIdLinger,
    /// The CM was told to connect or to accept.
    asked: bool,
    /// The CM has the peer's answer to our request.
    connected: bool,
    /// The peer's request is not to be accepted, and it could not be told so yet.
    owes_answer: bool,
    since: Instant<Monotonic>,
    /// It is to end for that cause, when what is under way has ended, and since when it is.
    finishing: Option<(Cause, Timestamp)>,
}

impl DisconnectState {
    /// Of a connection just made.
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

    /// It is to end for `cause`, when what is under way has ended. An interface that goes does not wait for as long as
    /// an administrator does ([`crate::policy::link_state::may_end`]), so that cause takes the place of another one.
    pub(super) fn finish(&mut self, cause: Cause) {
        let first = self.finishing.map(|(first, _)| first);
        if first.is_none() || (cause == Cause::LinkDown && first != Some(cause)) {
            self.finishing = Some((cause, Timestamp::now()));
        }
    }

    /// If it is to end so: for what, and for how many milliseconds already.
    pub(super) fn finishing(&self) -> Option<(Cause, u64)> {
        let (cause, since) = self.finishing?;
        Some((cause, u64::try_from(since.elapsed_ms()).unwrap_or(0)))
    }

    /// Whether it is to end so.
    pub(super) fn is_finishing(&self) -> bool {
        self.finishing.is_some()
    }

    /// The CM is about to be told to connect or to accept.
    pub(super) fn asked(&mut self) {
        self.asked = true;
    }

    /// Whether the CM was told to connect or to accept.
    pub(super) fn was_asked(&self) -> bool {
        self.asked
    }

    /// The CM has the peer's answer to our request, good or not.
    pub(super) fn connected(&mut self) {
        self.connected = true;
    }

    /// Whether the CM has the peer's answer to our request: to the peer it is a connection.
    pub(super) fn is_connected(&self) -> bool {
        self.connected
    }

    /// The peer's request was to be refused, and there is no route, or no id yet.
    pub(super) fn owe_answer(&mut self) {
        self.owes_answer = true;
    }

    /// The id goes. True: a request is to be refused yet.
    pub(super) fn pay_answer(&mut self) -> bool {
        core::mem::replace(&mut self.owes_answer, false)
    }

    /// A connection that was established ends: our DREQ is about to be sent, unless there is no route. True: the id
    /// waited already, and is to be freed now.
    #[must_use]
    pub(super) fn begin(&mut self, route: bool) -> bool {
        if route {
            // It may have waited for the route for long: the answer has its own time.
            if !self.route_found(true) {
                self.cm_id_linger.said();
            }
            false
        } else {
            self.cm_id_linger.no_route()
        }
    }

    /// The connection is being released: whether its id has to stay, and if so whether to wait for a
    /// route (true) or for an answer.
    pub(super) fn must_wait(&mut self, no_route: bool) -> Option<bool> {
        if no_route {
            let _ = self.cm_id_linger.no_route();
        }
        self.cm_id_linger
            .unanswered()
            .then_some(self.cm_id_linger.is_mute())
    }

    /// The connection is released. Milliseconds after which to look at its id, if that stays.
    pub(super) fn wait(&mut self) -> Option<u32> {
        if !self.cm_id_linger.released() {
            return None;
        }
        self.since = Instant::now();
        Some(if self.is_mute() { MUTE_MS } else { FAREWELL_MS })
    }

    /// There is no route to the peer: whether to free the id now, and otherwise whether it waits.
    pub(super) fn no_route(&mut self) -> (bool, bool) {
        let leaves = self.cm_id_linger.no_route();
        (leaves, self.cm_id_linger.waits())
    }

    /// There is a route. True: the id has waited for it. It goes on to wait, for an answer, if `tell`.
    pub(super) fn route_found(&mut self, tell: bool) -> bool {
        let waited = self.cm_id_linger.waits() && self.is_mute();
        if waited && tell {
            self.cm_id_linger.said();
            self.since = Instant::now();
        }
        waited
    }

    /// The peer has asked or answered. True: the id waited for that, and is to be freed now.
    pub(super) fn heard(&mut self) -> bool {
        self.cm_id_linger.heard()
    }

    /// Nothing more is to be said or heard. True: the id waited, and is to be freed now.
    pub(super) fn over(&mut self) -> bool {
        self.cm_id_linger.over()
    }

    /// Whether the id has waited, and is to be freed now.
    pub(super) fn leaves(&self) -> bool {
        self.cm_id_linger.leaves()
    }

    /// Whether there is something to say once there is a route.
    pub(super) fn is_mute(&self) -> bool {
        self.cm_id_linger.is_mute()
    }

    /// Milliseconds that the id waits for the peer's answer yet; `None` if it does not wait.
    pub(super) fn left_ms(&self) -> Option<u32> {
        let waited = u32::try_from(self.since.elapsed().as_millis()).unwrap_or(u32::MAX);
        self.cm_id_linger
            .waits()
            .then(|| FAREWELL_MS.saturating_sub(waited))
    }
}
