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

/// Milliseconds that the device has to flush its queues. It takes some, or it is dead.
const DRAIN_MS: i64 = 5_000;

/// The watch on a connection.
pub(super) struct ConnTimers {
    liveness: Liveness,
    last_recv: Timestamp,
    /// When the device was told to flush its queues.
    draining: Option<Timestamp>,
    /// The step of the handshake that is under way: when it began, and how many milliseconds it may take.
    step: (Timestamp, u32),
    /// When it was asked for a sign of life last, because another connection of the peer's came or went.
    asked: Option<Timestamp>,
    /// When idle memory regions were last looked for.
    regions: Timestamp,
    /// They are to be looked for now.
    regions_due: bool,
}

impl ConnTimers {
    /// On a connection just made.
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

    /// A step of the handshake begins, and may take `ms` milliseconds. The caller arms the timer.
    pub(super) fn begin_step(&mut self, ms: u32) {
        self.step = (Timestamp::now(), ms);
    }

    /// Milliseconds since it began.
    pub(super) fn step_ms(&self) -> i64 {
        self.step.0.elapsed_ms()
    }

    /// Milliseconds that it may take yet; 0 if its time is over.
    pub(super) fn step_left_ms(&self) -> u32 {
        let (began, ms) = self.step;
        let left = i64::from(ms).saturating_sub(began.elapsed_ms());
        u32::try_from(left).unwrap_or(0)
    }

    /// Something good was received. Returns when: now.
    #[inline]
    pub(super) fn heard(&mut self) -> Timestamp {
        self.liveness.heard();
        self.last_recv = Timestamp::now();
        self.last_recv
    }

    /// Milliseconds since something good was received.
    pub(super) fn idle_ms(&self) -> i64 {
        self.last_recv.elapsed_ms()
    }

    /// Another connection of the peer's came or went. True: this one is to be asked for a sign of life; it was
    /// not just now. NOOPs take no credit, and the peer has two buffers for them.
    pub(super) fn ask(&mut self) -> bool {
        let least = i64::from(LOOK_MIN_MS);
        if self.asked.is_some_and(|then| then.elapsed_ms() < least) {
            return false;
        }
        self.asked = Some(Timestamp::now());
        true
    }

    /// Something waits on another connection of the peer's, which is silent there. True: the timer is to look
    /// within [`ConnTimers::next_ms`]. Something was last sent here `sent_ms` ago.
    pub(super) fn probe_if_idle(&mut self, sent_ms: i64) -> bool {
        self.liveness.ask(self.ago(sent_ms))
    }

    /// Something waits from now on. True: nothing did, so the timer is to look within [`ProbeInterval`], if there is
    /// one.
    #[inline]
    pub(super) fn begin(&mut self) -> bool {
        self.liveness.begin()
    }

    /// The timer looks: something waits (`waits`), and something was last sent `sent_ms` ago. Whether the peer is
    /// to be asked: the connection was idle for `keepalive` seconds, or a peer that owes an answer has been silent
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

    /// Milliseconds until a silent peer would have to be asked; `None` if nothing waits, or it is not to be.
    pub(super) fn next_ms(&self, sent_ms: i64, probe: Option<ProbeInterval>) -> Option<u32> {
        self.liveness.next_ms(self.ago(sent_ms), probe)
    }

    /// Returns whether a worker is to look for idle regions now: the timer found `held` of them.
    pub(super) fn look_at_regions(&mut self, held: u32) -> bool {
        if held <= mr_quota::KEPT || self.regions.elapsed_ms() < mr_quota::LOOK_MS {
            return false;
        }
        self.regions = Timestamp::now();
        self.regions_due = true;
        true
    }

    /// Returns whether idle memory regions are to be looked for, once.
    pub(super) fn takes_regions(&mut self) -> bool {
        core::mem::take(&mut self.regions_due)
    }

    /// The device was told to flush its queues.
    pub(super) fn drains(&mut self) {
        self.draining = Some(Timestamp::now());
    }

    /// Whether it should have, long ago. True once.
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
