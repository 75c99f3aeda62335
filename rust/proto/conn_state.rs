// SPDX-License-Identifier: GPL-2.0

//! State machine of a connection: a total function from (state, event) to (state, actions).
//!
//! States only grow. Every CM event, queue pair event, completion, timer, LNet call and unload is a [`ConnEvent`], and
//! may happen in any state. The first cause is latched; later causes are consequences. The caller holds the
//! connection's lock, calls [`ConnFsm::on`], and performs the returned [`Actions`] in the order of their bits. Actions
//! that may sleep queue the connection's worker.
//!
//! Documentation/state-tables.md prints the table.
//!
//! Over TCP the passive side must not send first (RFC 5044, 7.1.2): a message that arrives before the caller's queue
//! pair has the socket may stay there until more data arrives, or end the attempt. So a passive connection is
//! [`State::Called`] first, for [`FIRST_WORD_MS`] at most, because other drivers may send nothing.

use super::cause::Cause;

/// Time limit of each try to resolve an address, in milliseconds; 5 s together (protocol section 1).
///
/// There are several tries because the kernel's `rdma_resolve_ip()` looks for the neighbour, and only then registers
/// for neighbours that are found. It notices a neighbour that is found in between only at the end of the try.
const RESOLVE_MS: [u16; 5] = [250, 500, 1000, 1500, 1750];

/// Time that a caller has to send first, in milliseconds. A message that arrives before a slow caller has read our
/// answer ends its attempt, and on a busy machine that took more than one second.
pub const FIRST_WORD_MS: u32 = 5000;

/// State of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    Init,
    /// Active: address and route are being resolved.
    Resolving,
    /// Active: the CONNREQ is being sent, or on its way.
    Connecting,
    /// Passive: the CONNACK is being sent, or on its way.
    Accepting,
    /// Passive: the handshake is complete, but the caller, which must send first, has not sent anything.
    Called,
    Established,
    /// Ended; the worker will disconnect it.
    Closing,
    /// The queue pair is in error, the drain markers are posted.
    Draining,
    /// Every completion has been seen; the worker frees it.
    Dead,
}

/// Event of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnEvent {
    Start,
    /// Passive: a CONNREQ was accepted as valid.
    Requested,
    AddrResolved,
    /// Active: the address was not resolved in the time of this try.
    AddrTimeout,
    RouteResolved,
    /// The handshake is complete: CM event (active: with a good CONNACK).
    Established,
    /// COMM_EST of the queue pair, or the first receive completion.
    EarlyTraffic,
    /// The timer of the attempt has run out, or the one of [`Actions::AWAIT_WORD`].
    Timeout,
    /// UNREACHABLE from the CM: a RoCE neighbour changed, or the CM repeated the REP as often as it does.
    Unreachable,
    /// UNREACHABLE after so long that the CM has given up ([`ConnEvent::unreachable`]).
    Unanswered,
    /// DISCONNECTED, TIMEWAIT_EXIT from the CM.
    Disconnected,
    /// Any other end of a connection: reject, CM error, failed work request, protocol error, deadline, administrator,
    /// shutdown, device removal.
    Fail(Cause),
    /// The worker has put the queue pair into error and posted the drain markers.
    DrainStarted,
    /// Both markers were reaped, or there never was a queue pair.
    Drained,
}

/// Time for which the CM repeats its request at least, in milliseconds: 16 times, with more than four seconds between
/// (`CMA_MAX_CM_RETRIES`, `CMA_CM_RESPONSE_TIMEOUT`). An earlier UNREACHABLE has another reason.
const ASKED_MS: i64 = 60_000;

impl ConnEvent {
    /// Returns the event for UNREACHABLE of the CM, `step_ms` milliseconds after this step of the attempt began.
    pub const fn unreachable(step_ms: i64) -> Self {
        if step_ms < ASKED_MS {
            Self::Unreachable
        } else {
            Self::Unanswered
        }
    }
}

/// Set of actions for the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Actions(u16);

impl Actions {
    pub const NONE: Self = Self(0);
    /// Queue the worker: create a cm_id if there is none yet, and resolve the address within [`ConnFsm::resolve_ms`].
    pub const RESOLVE: Self = Self(1);
    /// Call `rdma_resolve_route`, from the CM event itself.
    pub const RESOLVE_ROUTE: Self = Self(2);
    /// Queue the worker: create the queue pair, post the receives, connect or accept.
    pub const SET_UP: Self = Self(4);
    /// Set the timer to [`FIRST_WORD_MS`] instead of the end of the attempt.
    pub const AWAIT_WORD: Self = Self(8);
    /// Send a NOOP, unless another message goes: the other side waits for a message.
    pub const SPEAK: Self = Self(16);
    /// Queue the worker: publish the connection to its peer.
    pub const ESTABLISH: Self = Self(32);
    /// Remove the connection from its peer, cancel queued and waiting transmits, queue the worker to disconnect and
    /// drain.
    pub const CLOSE: Self = Self(64);
    /// Queue the worker to free everything.
    pub const RELEASE: Self = Self(128);
    /// Free the cm_id, and report to the peer object: the queue pair is gone. The worker that has released it does
    /// this; no event asks for it.
    pub const PART: Self = Self(256);
    /// Send the messages that wait for a connection: it is published. The worker that has published it does this; no
    /// event asks for it.
    pub const HAND_OVER: Self = Self(512);

    /// Steps that are useless once the connection is to be closed.
    const HANDSHAKE: Self = Self::RESOLVE.and(Self::SET_UP).and(Self::SPEAK);

    pub fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns the actions that are also in `other`.
    pub const fn only(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Returns the actions that are not in `other`.
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Returns the union.
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Worker of a connection, by what its steps wait for. Each has a work queue of its own kind. No worker begins while
/// another one runs for the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Worker {
    /// Short steps: they wait for nothing.
    Control,
    /// Steps that wait for LNet, or for messages of the CM.
    Blocking,
    /// Steps that wait for commands of the device: to create, close and destroy the queue pair.
    QueuePair,
}

impl Worker {
    /// All workers, in the order of their turns, with the steps that each does.
    const ALL: [(Self, Actions); 3] = [
        (
            Self::Control,
            Actions::RESOLVE.and(Actions::SPEAK).and(Actions::ESTABLISH),
        ),
        (Self::Blocking, Actions::HAND_OVER.and(Actions::PART)),
        (
            Self::QueuePair,
            Actions::SET_UP.and(Actions::CLOSE).and(Actions::RELEASE),
        ),
    ];
}

/// State machine of one connection.
#[derive(Clone, Copy, Debug)]
pub struct ConnFsm {
    over_tcp: bool,
    state: State,
    cause: Option<Cause>,
    /// Tries to resolve the address that timed out.
    tries: usize,
    /// Steps that wait for the workers.
    steps: Actions,
    /// Worker that runs.
    busy: Option<Worker>,
}

impl ConnFsm {
    pub const fn new(over_tcp: bool) -> Self {
        Self {
            over_tcp,
            state: State::Init,
            cause: None,
            tries: 0,
            steps: Actions::NONE,
            busy: None,
        }
    }

    #[inline]
    pub fn state(&self) -> State {
        self.state
    }

    /// Returns whether messages may be sent.
    #[inline]
    pub fn is_up(&self) -> bool {
        self.state == State::Established
    }

    pub fn is_attempt(&self) -> bool {
        self.state < State::Established
    }

    /// Returns whether receive buffers may be posted.
    #[inline]
    pub fn may_receive(&self) -> bool {
        self.state <= State::Established
    }

    /// Returns the cause of its end; `None` while it lives.
    pub fn cause(&self) -> Option<Cause> {
        self.cause
    }

    /// Returns the cause with which work under way ends.
    pub fn end_cause(&self) -> Cause {
        self.cause.unwrap_or(Cause::Flushed)
    }

    /// Returns the time limit of the next try to resolve the address, in milliseconds; 0 if there is none.
    pub fn resolve_ms(&self) -> u32 {
        RESOLVE_MS.get(self.tries).copied().map_or(0, u32::from)
    }

    /// Handles an event, and adds the steps of the workers. Total: every event is defined in every state.
    pub fn on(&mut self, event: ConnEvent) -> Actions {
        let mut event = event;
        if event == ConnEvent::AddrTimeout && self.state == State::Resolving {
            self.tries = self.tries.saturating_add(1);
            if self.resolve_ms() == 0 {
                event = ConnEvent::Fail(Cause::Unreachable);
            }
        }
        let (next, actions, cause) = step(self.over_tcp, self.state, event);
        self.state = next;
        if self.cause.is_none() {
            self.cause = cause;
        }
        self.add_steps(actions);
        actions
    }

    /// Adds steps; actions that no worker does have no effect here. Steps of the handshake are dropped if the
    /// connection is to be closed, because they take long and would tell the peer of an ended connection. A promised
    /// [`Actions::ESTABLISH`] still reaches the peer object.
    pub fn add_steps(&mut self, actions: Actions) {
        self.steps = self.steps.and(actions);
        if self.steps.has(Actions::CLOSE) {
            self.steps = self.steps.without(Actions::HANDSHAKE);
        }
    }

    /// Takes the steps for `worker`, which calls again after them, until none is left. Returns nothing while another
    /// worker runs, or has its turn first.
    pub fn take_steps(&mut self, worker: Worker) -> Actions {
        if self.busy.is_some_and(|busy| busy != worker) {
            return Actions::NONE;
        }
        let first = self.first_worker().filter(|(first, _)| *first == worker);
        let taken = first.map_or(Actions::NONE, |(_, steps)| steps);
        self.steps = self.steps.without(taken);
        self.busy = first.map(|_| worker);
        taken
    }

    /// Returns the worker to queue: none while one runs.
    pub fn next_worker(&self) -> Option<Worker> {
        let first = self.first_worker().filter(|_| self.busy.is_none());
        first.map(|(worker, _)| worker)
    }

    /// Returns the worker that has its turn first, with its steps.
    fn first_worker(&self) -> Option<(Worker, Actions)> {
        let steps = |(worker, its)| (worker, self.steps.only(its));
        let mut all = Worker::ALL.into_iter().map(steps);
        all.find(|(_, steps)| *steps != Actions::NONE)
    }
}

/// Returns the next state, the actions and the cause: the table itself.
fn step(over_tcp: bool, state: State, event: ConnEvent) -> (State, Actions, Option<Cause>) {
    use ConnEvent as E;
    use State as S;
    let stay = (state, Actions::NONE, None);
    let fail = |cause| match state < S::Closing {
        true => (S::Closing, Actions::CLOSE, Some(cause)),
        false => stay,
    };
    let is_attempt = state < S::Established;
    match (state, event) {
        (S::Init, E::Start) => (S::Resolving, Actions::RESOLVE, None),
        (S::Init, E::Requested) => (S::Accepting, Actions::SET_UP, None),
        (S::Resolving, E::AddrResolved) => (S::Resolving, Actions::RESOLVE_ROUTE, None),
        (S::Resolving, E::AddrTimeout) => (S::Resolving, Actions::RESOLVE, None),
        (S::Resolving, E::RouteResolved) => (S::Connecting, Actions::SET_UP, None),
        (S::Accepting, E::Established) if over_tcp => (S::Called, Actions::AWAIT_WORD, None),
        (S::Connecting, E::Established) if over_tcp => {
            let actions = Actions::SPEAK.and(Actions::ESTABLISH);
            (S::Established, actions, None)
        }
        (S::Connecting | S::Accepting, E::Established) => {
            (S::Established, Actions::ESTABLISH, None)
        }
        // The active side must have read the CONNACK first: it parks early messages instead. The CM does not learn of
        // it (`rdma_notify`): if the connection ended before the CM had handled it, the CM would repeat its REP for as
        // long as the peer has asked, and freeing the id would wait for that. The CM learns it from the RTU, which the
        // peer repeats with each REP.
        (S::Accepting, E::EarlyTraffic) => (S::Established, Actions::ESTABLISH, None),
        // The caller has sent a message, or has none to send.
        (S::Called, E::EarlyTraffic | E::Timeout) => (S::Established, Actions::ESTABLISH, None),
        (_, E::Timeout) if is_attempt => fail(Cause::ConnectTimeout),
        // Over RoCE the core reports this for each id whose peer's neighbour has another hardware address (7.3, since
        // 6.0): the request went to the old one. Over TCP the peer has not answered.
        (S::Resolving, E::Unreachable | E::Unanswered) | (S::Connecting, E::Unreachable)
            if !over_tcp =>
        {
            fail(Cause::AddressChanged)
        }
        (_, E::Unreachable | E::Unanswered) if is_attempt => fail(Cause::Unreachable),
        (_, E::Disconnected) if is_attempt => fail(Cause::ConnectFailed),
        (_, E::Disconnected) => fail(Cause::PeerClosed),
        (_, E::Fail(cause)) => fail(cause),
        (S::Closing, E::DrainStarted) => (S::Draining, Actions::NONE, None),
        (S::Draining, E::Drained) => (S::Dead, Actions::RELEASE, None),
        // A step that is repeated, late, or not for this role.
        _ => stay,
    }
}

#[cfg(any(test, ro2iblnd_kunit))]
#[cfg_attr(ro2iblnd_kunit, ::kernel::macros::kunit_tests(ro2ib_conn_state))]
mod tests {
    use super::*;

    const IB: bool = false;
    const TCP: bool = true;

    const STATES: [State; 9] = [
        State::Init,
        State::Resolving,
        State::Connecting,
        State::Accepting,
        State::Called,
        State::Established,
        State::Closing,
        State::Draining,
        State::Dead,
    ];
    const EVENTS: [ConnEvent; 14] = [
        ConnEvent::Start,
        ConnEvent::Requested,
        ConnEvent::AddrResolved,
        ConnEvent::AddrTimeout,
        ConnEvent::RouteResolved,
        ConnEvent::Established,
        ConnEvent::EarlyTraffic,
        ConnEvent::Timeout,
        ConnEvent::Unreachable,
        ConnEvent::Unanswered,
        ConnEvent::Disconnected,
        ConnEvent::Fail(Cause::Protocol),
        ConnEvent::DrainStarted,
        ConnEvent::Drained,
    ];

    #[test]
    fn states_only_grow_and_effects_happen_once() {
        let both = STATES.map(|s| (IB, s)).into_iter();
        for (first, state) in both.chain(STATES.map(|s| (TCP, s))) {
            for event in EVENTS {
                let (next, actions, cause) = step(first, state, event);
                assert!(next >= state);
                let closes = state < State::Closing && next == State::Closing;
                assert_eq!(actions.has(Actions::CLOSE), closes);
                assert_eq!(cause.is_some(), closes);
                let establishes = state < State::Established && next == State::Established;
                assert_eq!(actions.has(Actions::ESTABLISH), establishes);
                assert!(establishes || !actions.has(Actions::SPEAK));
                let waits = state != State::Called && next == State::Called;
                assert_eq!(actions.has(Actions::AWAIT_WORD), waits);
                let dies = state != State::Dead && next == State::Dead;
                assert_eq!(actions.has(Actions::RELEASE), dies);
            }
        }
    }

    #[test]
    fn unreachable_means_address_changed_except_over_tcp() {
        let over = |first, steps: &[ConnEvent]| {
            let mut c = ConnFsm::new(first);
            for step in steps {
                let _ = c.on(*step);
            }
            assert!(c.on(ConnEvent::Unreachable).has(Actions::CLOSE));
            c.cause()
        };
        let asking = [ConnEvent::Start, ConnEvent::RouteResolved];
        assert_eq!(over(IB, &asking), Some(Cause::AddressChanged));
        assert_eq!(over(IB, &[ConnEvent::Start]), Some(Cause::AddressChanged));
        assert_eq!(over(TCP, &asking), Some(Cause::Unreachable));
        // The passive side has an id that the core does not check.
        assert_eq!(over(IB, &[ConnEvent::Requested]), Some(Cause::Unreachable));
    }

    /// Tests a `timeout` of 300 s, with which an attempt takes longer than the CM's retries: a dead node has not moved.
    #[test]
    fn unreachable_after_the_cm_retries_is_a_timeout() {
        let mut c = ConnFsm::new(IB);
        let _ = c.on(ConnEvent::Start);
        let _ = c.on(ConnEvent::RouteResolved);
        assert_eq!(ConnEvent::unreachable(12_500), ConnEvent::Unreachable);
        assert_eq!(ConnEvent::unreachable(59_999), ConnEvent::Unreachable);
        let _ = c.on(ConnEvent::unreachable(73_000));
        assert_eq!(c.cause(), Some(Cause::Unreachable));
        // Late.
        let mut c = ConnFsm::new(IB);
        let _ = c.on(ConnEvent::Start);
        let _ = c.on(ConnEvent::RouteResolved);
        let _ = c.on(ConnEvent::Established);
        assert_eq!(c.on(ConnEvent::Unanswered), Actions::NONE);
    }

    #[test]
    fn an_address_is_asked_for_again_but_not_for_ever() {
        let mut c = ConnFsm::new(IB);
        assert!(c.on(ConnEvent::Start).has(Actions::RESOLVE));
        let mut ms = c.resolve_ms();
        // A neighbour that is found before the core registers is noticed soon.
        assert!(ms <= 250);
        while c.on(ConnEvent::AddrTimeout).has(Actions::RESOLVE) {
            assert!(c.resolve_ms() > 0);
            ms = ms.saturating_add(c.resolve_ms());
        }
        assert_eq!(ms, 5000);
        assert_eq!(c.cause(), Some(Cause::Unreachable));
        // Late.
        let mut c = ConnFsm::new(IB);
        let _ = c.on(ConnEvent::Start);
        let _ = c.on(ConnEvent::RouteResolved);
        assert_eq!(c.on(ConnEvent::AddrTimeout), Actions::NONE);
    }

    #[test]
    fn every_living_state_ends_on_failure() {
        for state in STATES {
            let (next, _, _) = step(TCP, state, ConnEvent::Fail(Cause::DeviceGone));
            assert!(next >= State::Closing);
        }
    }

    #[test]
    fn the_first_cause_is_kept() {
        let mut c = ConnFsm::new(IB);
        assert!(c.on(ConnEvent::Requested).has(Actions::SET_UP));
        assert!(c
            .on(ConnEvent::Fail(Cause::TransportRetry))
            .has(Actions::CLOSE));
        assert_eq!(c.on(ConnEvent::Disconnected), Actions::NONE);
        assert_eq!(c.cause(), Some(Cause::TransportRetry));
    }

    #[test]
    fn a_connection_that_is_to_be_closed_is_not_set_up_first() {
        let mut c = ConnFsm::new(IB);
        let _ = c.on(ConnEvent::Requested);
        let _ = c.on(ConnEvent::Fail(Cause::AdminClose));
        assert_eq!(c.take_steps(Worker::Control), Actions::NONE);
        assert_eq!(c.take_steps(Worker::QueuePair), Actions::CLOSE);
        assert_eq!(c.take_steps(Worker::QueuePair), Actions::NONE);
        // No address is resolved either.
        let mut c = ConnFsm::new(IB);
        let _ = c.on(ConnEvent::Start);
        let _ = c.on(ConnEvent::Fail(Cause::Shutdown));
        assert_eq!(c.take_steps(Worker::Control), Actions::NONE);
        assert_eq!(c.take_steps(Worker::QueuePair), Actions::CLOSE);
        // But the peer object learns of a connection that was established, because it will learn of its end.
        let mut c = ConnFsm::new(IB);
        let _ = c.on(ConnEvent::Requested);
        let _ = c.on(ConnEvent::EarlyTraffic);
        let _ = c.on(ConnEvent::Fail(Cause::Protocol));
        assert_eq!(c.next_worker(), Some(Worker::Control));
        assert_eq!(c.take_steps(Worker::QueuePair), Actions::NONE);
        assert_eq!(c.take_steps(Worker::Control), Actions::ESTABLISH);
        assert_eq!(c.take_steps(Worker::Control), Actions::NONE);
        assert_eq!(c.take_steps(Worker::QueuePair), Actions::CLOSE);
    }

    #[test]
    fn one_step_at_a_time() {
        let mut c = ConnFsm::new(IB);
        let _ = c.on(ConnEvent::Requested);
        assert_eq!(c.next_worker(), Some(Worker::QueuePair));
        assert_eq!(c.take_steps(Worker::Control), Actions::NONE);
        assert_eq!(c.take_steps(Worker::QueuePair), Actions::SET_UP);
        // No step runs beside it: the running worker finds the steps that are added meanwhile.
        let _ = c.on(ConnEvent::Established);
        assert_eq!(c.next_worker(), None);
        assert_eq!(c.take_steps(Worker::Control), Actions::NONE);
        let _ = c.on(ConnEvent::Fail(Cause::AdminClose));
        // The other worker has its turn first.
        assert_eq!(c.take_steps(Worker::QueuePair), Actions::NONE);
        assert_eq!(c.next_worker(), Some(Worker::Control));
        assert_eq!(c.take_steps(Worker::Control), Actions::ESTABLISH);
        assert_eq!(c.next_worker(), None);
        assert_eq!(c.take_steps(Worker::QueuePair), Actions::NONE);
        assert_eq!(c.take_steps(Worker::Control), Actions::NONE);
        assert_eq!(c.next_worker(), Some(Worker::QueuePair));
        assert_eq!(c.take_steps(Worker::QueuePair), Actions::CLOSE);
        // Its end comes from where the markers are reaped.
        let _ = c.on(ConnEvent::DrainStarted);
        let _ = c.on(ConnEvent::Drained);
        assert_eq!(c.take_steps(Worker::QueuePair), Actions::RELEASE);
        c.add_steps(Actions::PART);
        assert_eq!(c.take_steps(Worker::QueuePair), Actions::NONE);
        assert_eq!(c.take_steps(Worker::Blocking), Actions::PART);
        assert_eq!(c.take_steps(Worker::Blocking), Actions::NONE);
        assert_eq!(c.next_worker(), None);
    }

    /// Tests that a slow LNet or CM does not delay the short steps of other connections, which share the queue of short
    /// steps.
    #[test]
    fn steps_that_block_are_not_done_among_short_ones() {
        let mut c = ConnFsm::new(IB);
        let _ = c.on(ConnEvent::Requested);
        let _ = c.on(ConnEvent::Established);
        assert_eq!(c.take_steps(Worker::Control), Actions::ESTABLISH);
        c.add_steps(Actions::HAND_OVER);
        assert_eq!(c.take_steps(Worker::Control), Actions::NONE);
        assert_eq!(c.next_worker(), Some(Worker::Blocking));
        // An end meanwhile waits for that.
        let _ = c.on(ConnEvent::Fail(Cause::AdminClose));
        assert_eq!(c.take_steps(Worker::QueuePair), Actions::NONE);
        assert_eq!(c.take_steps(Worker::Blocking), Actions::HAND_OVER);
        assert_eq!(c.take_steps(Worker::QueuePair), Actions::NONE);
        assert_eq!(c.take_steps(Worker::Blocking), Actions::NONE);
        assert_eq!(c.take_steps(Worker::QueuePair), Actions::CLOSE);
        c.add_steps(Actions::PART);
        assert_eq!(c.take_steps(Worker::Control), Actions::NONE);
        assert_eq!(c.take_steps(Worker::QueuePair), Actions::NONE);
        assert_eq!(c.take_steps(Worker::Blocking), Actions::PART);
    }

    #[test]
    fn a_set_up_waits_for_the_step_before_it() {
        let mut c = ConnFsm::new(IB);
        let _ = c.on(ConnEvent::Start);
        assert_eq!(c.take_steps(Worker::Control), Actions::RESOLVE);
        // Both events arrive before the call that resolves the address has returned.
        let _ = c.on(ConnEvent::AddrResolved);
        let _ = c.on(ConnEvent::RouteResolved);
        assert_eq!(c.take_steps(Worker::QueuePair), Actions::NONE);
        assert_eq!(c.take_steps(Worker::Control), Actions::NONE);
        assert_eq!(c.next_worker(), Some(Worker::QueuePair));
        // A connection that is closed while it waits for its turn creates nothing.
        let _ = c.on(ConnEvent::Fail(Cause::AdminClose));
        assert_eq!(c.take_steps(Worker::QueuePair), Actions::CLOSE);
    }

    #[test]
    fn unowned_step_queues_no_worker() {
        let mut c = ConnFsm::new(IB);
        c.add_steps(Actions::AWAIT_WORD.and(Actions::RESOLVE_ROUTE));
        assert_eq!(c.next_worker(), None);
    }

    #[test]
    fn lost_rtu_is_made_good_by_the_first_receive() {
        let mut c = ConnFsm::new(IB);
        let _ = c.on(ConnEvent::Requested);
        assert_eq!(c.on(ConnEvent::EarlyTraffic), Actions::ESTABLISH);
        assert_eq!(c.on(ConnEvent::Established), Actions::NONE);
    }

    #[test]
    fn the_active_side_does_not_establish_without_a_connack() {
        let mut c = ConnFsm::new(IB);
        let _ = c.on(ConnEvent::Start);
        let _ = c.on(ConnEvent::AddrResolved);
        let _ = c.on(ConnEvent::RouteResolved);
        assert_eq!(c.on(ConnEvent::EarlyTraffic), Actions::NONE);
        assert!(c.on(ConnEvent::Established).has(Actions::ESTABLISH));
    }
    fn called() -> ConnFsm {
        let mut c = ConnFsm::new(TCP);
        let _ = c.on(ConnEvent::Requested);
        assert_eq!(c.on(ConnEvent::Established), Actions::AWAIT_WORD);
        c
    }

    #[test]
    fn passive_side_over_tcp_waits_for_a_message() {
        let mut c = called();
        assert_eq!(c.state(), State::Called);
        assert_eq!(c.on(ConnEvent::Established), Actions::NONE);
        assert_eq!(c.on(ConnEvent::EarlyTraffic), Actions::ESTABLISH);
        assert_eq!(c.state(), State::Established);
        // The message may arrive before the CM reports anything.
        let mut c = ConnFsm::new(TCP);
        let _ = c.on(ConnEvent::Requested);
        assert!(c.on(ConnEvent::EarlyTraffic).has(Actions::ESTABLISH));
        assert_eq!(c.on(ConnEvent::Established), Actions::NONE);
    }

    #[test]
    fn silent_active_side_is_answered_after_the_wait() {
        let mut c = called();
        assert_eq!(c.on(ConnEvent::Timeout), Actions::ESTABLISH);
        assert_eq!((c.state(), c.cause()), (State::Established, None));
        assert_eq!(c.on(ConnEvent::Timeout), Actions::NONE);
        // If nothing has been accepted, the timer ends the attempt.
        let mut c = ConnFsm::new(TCP);
        let _ = c.on(ConnEvent::Requested);
        assert!(c.on(ConnEvent::Timeout).has(Actions::CLOSE));
        assert_eq!(c.cause(), Some(Cause::ConnectTimeout));
        // A caller that disconnects has had no connection.
        let mut c = called();
        assert!(c.on(ConnEvent::Disconnected).has(Actions::CLOSE));
    }

    #[test]
    fn active_side_over_tcp_sends_first() {
        for (first, speaks) in [(IB, false), (TCP, true)] {
            let mut c = ConnFsm::new(first);
            let _ = c.on(ConnEvent::Start);
            let _ = c.on(ConnEvent::AddrResolved);
            let _ = c.on(ConnEvent::RouteResolved);
            let actions = c.on(ConnEvent::Established);
            assert!(actions.has(Actions::ESTABLISH));
            assert_eq!(actions.has(Actions::SPEAK), speaks);
            // Not if it ends before that.
            let _ = c.on(ConnEvent::Fail(Cause::AdminClose));
            assert!(!c.take_steps(Worker::Control).has(Actions::SPEAK));
        }
    }
}
