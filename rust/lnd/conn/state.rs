// SPDX-License-Identifier: GPL-2.0

//! State of a connection, the steps that its workers still have to do, and the reason to log when it closes.
//!
//! Context: any; part of the state that the connection lock protects.
//!
//! # Invariants
//!
//! - The state changes only by [`ConnState::on`]; [`crate::proto::conn_state`] is the table.
//! - `todo` holds the actions that [`ConnState::on`] returned and [`ConnState::take_todo`] has not taken yet.
//! - `fault` is `Some` only while the latched cause is its own, and has not been logged.

use super::close_reason::CloseReason;
use crate::{
    lnd::timestamp::Timestamp,
    policy::{
        connect_queue::ConnectPriority,
        reconnect::{
            PeerParams,
            RetryReject, //
        }, //
    },
    proto::{
        cause::Cause,
        conn_req_check::Ask,
        conn_state::{
            Actions,
            ConnEvent,
            ConnFsm as Fsm,
            FirstSender,
            PendingSteps,
            State,
            Worker, //
        },
        constants::QueueDepth, //
    }, //
};

/// Life cycle of a connection.
pub(super) struct ConnState {
    fsm: Fsm,
    /// Actions that the workers still have to do.
    todo: PendingSteps,
    /// Requested parameters, later the agreed ones.
    known: PeerParams,
    /// The parameters are agreed on: the life of the peer is known.
    agreed: bool,
    /// The peer object knows that the connection is established.
    published: bool,
    /// This side's attempt, and other attempts wait in line for its end.
    in_turn: Option<ConnectPriority>,
    /// The attempt ended without a connection.
    attempt_failed: bool,
    /// Time at which it was established, if it ever was.
    up: Option<Timestamp>,
    /// Milliseconds for which it was established, once it is closed.
    lived_ms: u64,
    /// Set when a reject invited another attempt.
    retry: Option<RetryReject>,
    /// Reason of the peer's reject, in one word.
    rejected: Option<&'static str>,
    /// Reason of the close, for the log.
    fault: Option<CloseReason>,
}

/// Summary of a closed connection for the log and the peer.
pub(super) struct CloseSummary {
    /// The attempt failed: it was never established.
    pub(super) failed: bool,
    /// The peer's invitation to another attempt.
    pub(super) retry: Option<RetryReject>,
    /// Cause of the end.
    pub(super) cause: Cause,
    /// Reason of the peer's reject, in one word.
    pub(super) rejected: Option<&'static str>,
}

impl ConnState {
    /// Creates the state of a new connection, which requests `known` in this `turn` of this side, or has agreed to the
    /// peer's request, and on which `first` may send first.
    pub(super) fn new(
        first: FirstSender,
        known: PeerParams,
        turn: Option<ConnectPriority>,
    ) -> Self {
        let active = turn.is_some();
        Self {
            fsm: Fsm::new(first),
            todo: PendingSteps::NONE,
            known,
            agreed: !active,
            published: false,
            in_turn: turn,
            attempt_failed: false,
            up: None,
            lived_ms: 0,
            retry: None,
            rejected: None,
            fault: None,
        }
    }

    /// Handles an event. Stores the resulting actions for the workers.
    pub(super) fn on(&mut self, event: ConnEvent) -> Actions {
        let actions = self.fsm.on(event);
        if actions.has(Actions::FAIL_ATTEMPT) {
            self.attempt_failed = true;
        }
        if actions.has(Actions::ESTABLISH) {
            self.up = Some(Timestamp::now());
        }
        if actions.has(Actions::CLOSE) {
            let ms = self.up.map_or(0, Timestamp::elapsed_ms);
            self.lived_ms = u64::try_from(ms).unwrap_or(0);
        }
        self.todo.add(actions);
        actions
    }

    /// Notes that the address is resolved. Returns true if the caller must resolve the route, from the CM event itself.
    pub(super) fn address_resolved(&mut self) -> bool {
        self.fsm
            .on(ConnEvent::AddrResolved)
            .has(Actions::RESOLVE_ROUTE)
    }

    /// Takes the actions of a worker.
    pub(super) fn take_todo(&mut self, worker: Worker) -> Actions {
        self.todo.take(worker)
    }

    /// Returns the worker to call next, if any.
    pub(super) fn next_worker(&self) -> Option<Worker> {
        self.todo.next()
    }

    /// Begins the release of the other resources, after the queue pair is destroyed.
    pub(super) fn part(&mut self) {
        self.todo.add(Actions::PART);
    }

    /// Returns the state.
    #[inline]
    pub(super) fn state(&self) -> State {
        self.fsm.state()
    }

    /// Returns whether messages may be sent.
    #[inline]
    pub(super) fn is_up(&self) -> bool {
        self.state() == State::Established
    }

    /// Returns whether it is still an attempt.
    pub(super) fn is_attempt(&self) -> bool {
        self.state() < State::Established
    }

    /// Returns whether receive buffers may be posted.
    #[inline]
    pub(super) fn may_receive(&self) -> bool {
        self.state() <= State::Established
    }

    /// Returns the cause of the end; `None` before.
    pub(super) fn cause(&self) -> Option<Cause> {
        self.fsm.cause()
    }

    /// Returns the cause with which work under way ends.
    pub(super) fn end_cause(&self) -> Cause {
        self.cause().unwrap_or(Cause::Flushed)
    }

    /// Returns the time limit of the next try to resolve the address, in milliseconds.
    pub(super) fn resolve_ms(&self) -> u32 {
        self.fsm.resolve_ms()
    }

    /// Returns the requested parameters, later the agreed ones.
    pub(super) fn known(&self) -> PeerParams {
        self.known
    }

    /// Returns the parameters of this side's request.
    pub(super) fn ask(&self) -> Ask {
        Ask {
            depth: self.known.depth,
            frags: self.known.frags,
            stamp: self.known.stamp,
        }
    }

    /// Limits the request to `depth`, because the device has no room for more.
    pub(super) fn ask_for(&mut self, depth: QueueDepth) {
        self.known.depth = depth;
    }

    /// Stores the parameters that the peer has agreed to.
    pub(super) fn agreed(&mut self, known: PeerParams) {
        self.known = known;
        self.agreed = true;
    }

    /// Stores the peer's reject, which invites another attempt.
    pub(super) fn invited(&mut self, invited: RetryReject) {
        self.retry = Some(invited);
    }

    /// Stores the reason of the peer's reject, in one word.
    pub(super) fn refused(&mut self, why: &'static str) {
        self.rejected = Some(why);
    }

    /// Stores the reason of the close, until a worker logs it. Must precede the event: a later cause is a consequence
    /// of the first, and is not logged.
    pub(super) fn blame(&mut self, fault: CloseReason) {
        if self.cause().is_none() {
            self.fault = Some(fault);
        }
    }

    /// Takes the reason that is not logged yet.
    pub(super) fn take_fault(&mut self) -> Option<CloseReason> {
        self.fault.take()
    }

    /// Notes that the peer object knows that the connection is established: now messages that wait for a connection
    /// follow.
    pub(super) fn publish(&mut self) {
        self.published = true;
        self.todo.add(Actions::HAND_OVER);
    }

    /// Returns whether LNet must wait for that: an answer of LNet must find this connection, and not an older
    /// connection that may be dead.
    pub(super) fn is_unpublished(&self) -> bool {
        self.is_up() && !self.published
    }

    /// Returns whether messages that arrived before the end count.
    pub(super) fn accepts_late_rx(&self) -> bool {
        self.end_cause().accepts_late_rx()
    }

    /// Returns whether the identity of the peer is known: which of its lives.
    pub(super) fn is_agreed(&self) -> bool {
        self.agreed
    }

    /// Takes the turn in line of this side's attempt, which then has none.
    pub(super) fn end_turn(&mut self) -> Option<ConnectPriority> {
        self.in_turn.take()
    }

    /// Returns whether the attempt ended without a connection.
    pub(super) fn attempt_failed(&self) -> bool {
        self.attempt_failed
    }

    /// Returns the milliseconds for which it was established, once it is closed.
    pub(super) fn lived_ms(&self) -> u64 {
        self.lived_ms
    }

    /// Takes the summary of the closed connection, once.
    pub(super) fn epitaph(&mut self) -> CloseSummary {
        CloseSummary {
            failed: self.attempt_failed,
            retry: self.retry.take(),
            cause: self.cause().unwrap_or(Cause::PeerClosed),
            rejected: self.rejected,
        }
    }
}
