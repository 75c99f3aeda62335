// SPDX-License-Identifier: GPL-2.0

//! Liveness of the peer: whether work waits on a connection, how long the peer has been silent, and so when the timer
//! runs next; before the connection is established, how much time a step of the handshake has left.
//!
//! Context: any; part of the state that the connection lock protects. The caller passes the time of the last send,
//! which [`super::wire`] knows.
//!
//! # Invariants
//!
//! While [`ConnTimers::next_ms`] is `Some`, the timer is armed to run within that time. The administrator may change
//! the limits at any time; then the timer is armed again ([`Conn::check_now`](super::Conn::check_now)).

use crate::{
    lnd::timestamp::Timestamp,
    policy::{
        liveness::{
            Check,
            Elapsed,
            Liveness,
            ProbeInterval,
            LOOK_MIN_MS, //
        },
        mr_quota, //
    }, //
};

/// Milliseconds that the device has to flush its queues. A device that takes longer is dead.
const DRAIN_MS: i64 = 5_000;

/// Timers of a connection.
pub(super) struct ConnTimers {
    liveness: Liveness,
    last_recv: Timestamp,
    /// Time when the device began to flush its queues.
    draining: Option<Timestamp>,
    /// Current step of the handshake: the time of its begin, and its limit in milliseconds.
    step: (Timestamp, u32),
    /// Time of the last probe that another connection of the peer caused when it was established or closed.
    asked: Option<Timestamp>,
    /// Time of the last check for idle memory regions.
    regions: Timestamp,
    /// A check for idle memory regions is due.
    regions_due: bool,
}

impl ConnTimers {
    /// Creates the timers of a new connection.
    pub(super) fn new() -> Self {
        Self {
            liveness: Liveness::NEW,
            last_recv: Timestamp::now(),
            draining: None,
            step: (Timestamp::now(), 0),
            asked: None,
            regions: Timestamp::now(),
            regions_due: false,
        }
    }

    /// Begins a step of the handshake, which may take `ms` milliseconds. The caller arms the timer.
    pub(super) fn begin_step(&mut self, ms: u32) {
        self.step = (Timestamp::now(), ms);
    }

    /// Returns the milliseconds since the step began.
    pub(super) fn step_ms(&self) -> i64 {
        self.step.0.elapsed_ms()
    }

    /// Returns the milliseconds that are left for the step; 0 if its time is over.
    pub(super) fn step_left_ms(&self) -> u32 {
        let (began, ms) = self.step;
        let left = i64::from(ms).saturating_sub(began.elapsed_ms());
        u32::try_from(left).unwrap_or(0)
    }

    /// Notes that a valid message was received at `now`.
    #[inline]
    pub(super) fn heard(&mut self, now: Timestamp) {
        self.liveness.heard();
        self.last_recv = now;
    }

    /// Returns the milliseconds since a valid message was received.
    pub(super) fn idle_ms(&self) -> i64 {
        self.last_recv.elapsed_ms()
    }

    /// Notes that another connection of the peer was established or closed. Returns true if the driver must probe the
    /// peer on this connection: there was no such probe just now. NOOPs take no credit, and the peer has two buffers
    /// for them.
    pub(super) fn ask(&mut self) -> bool {
        let least = i64::from(LOOK_MIN_MS);
        if self.asked.is_some_and(|then| then.elapsed_ms() < least) {
            return false;
        }
        self.asked = Some(Timestamp::now());
        true
    }

    /// Notes that work waits on another connection of the peer, which is silent there. Returns true if the timer must
    /// run within [`ConnTimers::next_ms`]. `sent_ms`: milliseconds since the last send here.
    pub(super) fn probe_if_idle(&mut self, sent_ms: i64) -> bool {
        self.liveness.ask(self.ago(sent_ms))
    }

    /// Notes that work waits from now on. Returns true if none did, so that the timer must run within
    /// [`ProbeInterval`], if there is one.
    #[inline]
    pub(super) fn begin(&mut self) -> bool {
        self.liveness.begin()
    }

    /// Checks the timers: `waits` is whether work waits, and `sent_ms` the time since the last send. Returns whether to
    /// probe the peer: the connection was idle for `keepalive` seconds, or a peer that owes an answer has been silent
    /// for as long as `probe`.
    pub(super) fn look(
        &mut self,
        waits: bool,
        sent_ms: i64,
        probe: Option<ProbeInterval>,
        keepalive: Option<u32>,
    ) -> Check {
        let ago = self.ago(sent_ms);
        self.liveness.look(waits, ago, probe, keepalive)
    }

    /// Returns the milliseconds until the driver probes a silent peer; `None` if no work waits, or probes are off.
    pub(super) fn next_ms(&self, sent_ms: i64, probe: Option<ProbeInterval>) -> Option<u32> {
        self.liveness.next_ms(self.ago(sent_ms), probe)
    }

    /// Returns whether a worker must check for idle regions now: the timer found `held` of them.
    pub(super) fn look_at_regions(&mut self, held: u32) -> bool {
        if held <= mr_quota::KEPT || self.regions.elapsed_ms() < mr_quota::LOOK_MS {
            return false;
        }
        self.regions = Timestamp::now();
        self.regions_due = true;
        true
    }

    /// Returns whether a check for idle memory regions is due, once.
    pub(super) fn takes_regions(&mut self) -> bool {
        core::mem::take(&mut self.regions_due)
    }

    /// Notes that the device begins to flush its queues.
    pub(super) fn drains(&mut self) {
        self.draining = Some(Timestamp::now());
    }

    /// Returns whether the time for that is over. True once.
    pub(super) fn drains_for_too_long(&mut self) -> bool {
        self.draining
            .take_if(|since| since.elapsed_ms() >= DRAIN_MS)
            .is_some()
    }

    fn ago(&self, sent_ms: i64) -> Elapsed {
        Elapsed {
            sent: sent_ms,
            heard: self.idle_ms(),
        }
    }
}
