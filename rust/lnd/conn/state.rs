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
        params::QueueDepth, //
    }, //
};

/// The life of a connection.
pub(super) struct ConnState {
    fsm: Fsm,
    /// What the workers have to do.
    todo: PendingSteps,
    /// What was asked for, later what was agreed on.
    known: PeerParams,
    /// It was agreed on: which life of the peer this is with is known.
    agreed: bool,
    /// The peer object knows that it is established.
    published: bool,
    /// It is our attempt, and others wait in line for its end.
    in_turn: Option<ConnectPriority>,
    /// The attempt ended without a connection.
    attempt_failed: bool,
    /// Since when it is established, if it ever was.
    up: Option<Timestamp>,
    /// For how many milliseconds it was, once it is over.
    lived_ms: u64,
    /// Set when a reject invited another attempt.
    retry: Option<RetryReject>,
    /// Why the peer refused the attempt, in one word.
    rejected: Option<&'static str>,
    /// What went wrong, for people.
    fault: Option<CloseReason>,
}

/// What is left to say of a connection that is over.
pub(super) struct CloseSummary {
    /// It was an attempt and no more.
    pub(super) failed: bool,
    /// Another attempt was invited.
    pub(super) retry: Option<RetryReject>,
    /// Why it ended.
    pub(super) cause: Cause,
    /// Why the peer refused, in one word.
    pub(super) rejected: Option<&'static str>,
}

impl ConnState {
    /// Of a connection just made, which asks for `known` in that `turn` of ours, or has agreed to what the peer asked
    /// for, and on which `first` may speak first.
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

    /// One step. What the worker has to do of it is remembered.
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

    /// The address is resolved. True: the caller resolves the route, from the CM event itself.
    pub(super) fn address_resolved(&mut self) -> bool {
        self.fsm
            .on(ConnEvent::AddrResolved)
            .has(Actions::RESOLVE_ROUTE)
    }

    /// Takes what a worker has to do.
    pub(super) fn take_todo(&mut self, worker: Worker) -> Actions {
        self.todo.take(worker)
    }

    /// Which worker is to be called, if one is.
    pub(super) fn next_worker(&self) -> Option<Worker> {
        self.todo.next()
    }

    /// The queue pair is gone: now the rest.
    pub(super) fn part(&mut self) {
        self.todo.add(Actions::PART);
    }

    /// Where it is.
    #[inline]
    pub(super) fn state(&self) -> State {
        self.fsm.state()
    }

    /// Whether messages may be sent.
    #[inline]
    pub(super) fn is_up(&self) -> bool {
        self.state() == State::Established
    }

    /// Whether it is an attempt yet.
    pub(super) fn is_attempt(&self) -> bool {
        self.state() < State::Established
    }

    /// Whether receive buffers may be posted.
    #[inline]
    pub(super) fn may_receive(&self) -> bool {
        self.state() <= State::Established
    }

    /// Why it ended; `None` while it lives.
    pub(super) fn cause(&self) -> Option<Cause> {
        self.fsm.cause()
    }

    /// Why what is under way ends with it.
    pub(super) fn end_cause(&self) -> Cause {
        self.cause().unwrap_or(Cause::Flushed)
    }

    /// How long the next try to resolve the address takes at most, in milliseconds.
    pub(super) fn resolve_ms(&self) -> u32 {
        self.fsm.resolve_ms()
    }

    /// What was asked for, later what was agreed on.
    pub(super) fn known(&self) -> PeerParams {
        self.known
    }

    /// What our request asked for.
    pub(super) fn ask(&self) -> Ask {
        Ask {
            depth: self.known.depth,
            frags: self.known.frags,
            stamp: self.known.stamp,
        }
    }

    /// The device has no room for more than `depth`.
    pub(super) fn ask_for(&mut self, depth: QueueDepth) {
        self.known.depth = depth;
    }

    /// The peer has agreed to this.
    pub(super) fn agreed(&mut self, known: PeerParams) {
        self.known = known;
        self.agreed = true;
    }

    /// The peer refused, and invites another attempt.
    pub(super) fn invited(&mut self, invited: RetryReject) {
        self.retry = Some(invited);
    }

    /// The peer refused, and this is why in one word.
    pub(super) fn refused(&mut self, why: &'static str) {
        self.rejected = Some(why);
    }

    /// Remembers what ends it, until a worker tells of it. Call it before the event: what comes
    /// after the first cause is a consequence, and nothing is said of it.
    pub(super) fn blame(&mut self, fault: CloseReason) {
        if self.cause().is_none() {
            self.fault = Some(fault);
        }
    }

    /// What nobody has told of yet.
    pub(super) fn take_fault(&mut self) -> Option<CloseReason> {
        self.fault.take()
    }

    /// The peer object knows that it is established: now what waits for a connection.
    pub(super) fn publish(&mut self) {
        self.published = true;
        self.todo.add(Actions::HAND_OVER);
    }

    /// Whether LNet must wait for that: an answer of its must find this connection, and not an older one
    /// that may be dead.
    pub(super) fn is_unpublished(&self) -> bool {
        self.is_up() && !self.published
    }

    /// Whether what arrived before it ended counts.
    pub(super) fn accepts_late_rx(&self) -> bool {
        self.end_cause().accepts_late_rx()
    }

    /// Whether it is known who the peer is: which of its lives.
    pub(super) fn is_agreed(&self) -> bool {
        self.agreed
    }

    /// The turn in line of our attempt, which has none any more.
    pub(super) fn end_turn(&mut self) -> Option<ConnectPriority> {
        self.in_turn.take()
    }

    /// Whether the attempt ended without a connection.
    pub(super) fn attempt_failed(&self) -> bool {
        self.attempt_failed
    }

    /// For how many milliseconds it was established, once it is over.
    pub(super) fn lived_ms(&self) -> u64 {
        self.lived_ms
    }

    /// What is left to say of it, once.
    pub(super) fn epitaph(&mut self) -> CloseSummary {
        CloseSummary {
            failed: self.attempt_failed,
            retry: self.retry.take(),
            cause: self.cause().unwrap_or(Cause::PeerClosed),
            rejected: self.rejected,
        }
    }
}
