// SPDX-License-Identifier: GPL-2.0

//! Liveness probe of a silent peer that owes an answer.
//!
//! The probe is a NOOP, and the transport's acknowledgement is the reply: if there is none, the transport's retries end
//! the connection, long before a deadline (Documentation/operators.md has the times).
//!
//! After a probe that the transport acknowledges but the peer does not answer, probes are rare: a slow peer has two
//! buffers for NOOPs, which must not be filled while it is held up.
//!
//! A dead connection does not mean a dead peer, so each connection is probed by itself, but all at the same time
//! ([`Check::All`], [`Liveness::ask`]), so that their timeouts do not add up.
//!
//! Context: any; the caller holds the connection's lock, for [`pick`] the peer's.

/// Shortest time between two probes of a peer that has sent nothing since, in milliseconds.
pub const AGAIN_MS: u32 = 3000;

/// Shortest time between two checks of a connection that waits for something, in milliseconds.
pub const LOOK_MIN_MS: u32 = 250;

/// Largest [`ProbeInterval`], in milliseconds.
pub const PROBE_MAX_MS: u32 = 60_000;

/// Silence after which a peer that owes an answer is probed, in milliseconds.
///
/// # Invariants
///
/// `LOOK_MIN_MS <= value <= PROBE_MAX_MS`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeInterval(u32);

impl ProbeInterval {
    /// Creates it from the parameter `probe`, in milliseconds. 0: no probes. Other values are clamped to the range.
    pub fn of_ms(ms: u32) -> Option<Self> {
        // INVARIANT: By `clamp`.
        (ms > 0).then(|| Self(ms.clamp(LOOK_MIN_MS, PROBE_MAX_MS)))
    }

    pub fn ms(self) -> u32 {
        self.0
    }
}

/// Milliseconds since something was sent, and since something was received.
#[derive(Clone, Copy, Debug)]
pub struct Elapsed {
    pub sent: i64,
    pub heard: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Check {
    Nothing,
    /// A NOOP is due, even if it carries no credits.
    Probe,
    /// A NOOP is due, and the peer must be probed on its other connections, too.
    All,
}

/// Liveness of one connection; the default is the state of a new one.
///
/// # Invariants
///
/// While [`Liveness::next_ms`] returns a time, the caller's timer checks within it. It returns none while nothing waits
/// and no probe is requested, or while there is no [`ProbeInterval`]; when that is set the timer must check at once.
#[derive(Clone, Copy, Debug, Default)]
pub struct Liveness {
    /// Something waited at the last check.
    waits: bool,
    /// Something waits on another connection of the peer's.
    asked: bool,
    /// The peer was probed, and has sent nothing since.
    probed: bool,
}

impl Liveness {
    /// Notes a message of the peer.
    #[inline]
    pub fn heard(&mut self) {
        self.asked = false;
        self.probed = false;
    }

    /// Notes that something waits from now on. Returns true if nothing did before, so that the timer must check within
    /// [`ProbeInterval`], if there is one.
    #[inline]
    pub fn begin(&mut self) -> bool {
        !core::mem::replace(&mut self.waits, true)
    }

    /// Notes that something waits on another connection, whose peer is silent. Returns true if the timer must check
    /// within [`Liveness::next_ms`]. It may be armed for later, for something that no longer waits.
    #[must_use]
    pub fn ask(&mut self, ago: Elapsed) -> bool {
        if self.asked || self.is_fresh(ago) {
            return false;
        }
        self.asked = true;
        true
    }

    /// Returns whether the transport is already retrying.
    fn is_fresh(&self, ago: Elapsed) -> bool {
        self.probed && ago.sent < i64::from(AGAIN_MS)
    }

    /// Handles the timer; `waits` if something waits. `keepalive` is the number of seconds after which an idle
    /// connection on which this node has sent nothing is probed.
    pub fn look(
        &mut self,
        waits: bool,
        ago: Elapsed,
        probe: Option<ProbeInterval>,
        keepalive: Option<u32>,
    ) -> Check {
        self.waits = waits;
        let after = probe.map(|probe| i64::from(self.interval(probe)));
        let silent = after.is_some_and(|after| ago.sent >= after && ago.heard >= after);
        if silent && (waits || self.asked) {
            self.asked = false;
            self.probed = true;
            return match waits {
                true => Check::All,
                false => Check::Probe,
            };
        }
        match keepalive {
            Some(s) if ago.sent >= i64::from(s).saturating_mul(1000) => Check::Probe,
            _ => Check::Nothing,
        }
    }

    /// Returns the milliseconds until a silent peer may have to be probed; `None` if nothing waits, or probes are off.
    /// No more than [`ProbeInterval`], because the peer may send something and fall silent again.
    pub fn next_ms(&self, ago: Elapsed, probe: Option<ProbeInterval>) -> Option<u32> {
        let probe = probe.filter(|_| self.waits || self.asked)?;
        let left = i64::from(self.interval(probe)).saturating_sub(ago.sent.min(ago.heard));
        let left = u32::try_from(left).unwrap_or(0);
        // No less than the first, by the invariant of `ProbeInterval`.
        Some(left.max(LOOK_MIN_MS).min(probe.ms()))
    }

    fn interval(&self, probe: ProbeInterval) -> u32 {
        match self.probed {
            true => probe.ms().max(AGAIN_MS),
            false => probe.ms(),
        }
    }
}

/// Returns the connection for the next message of a peer: the connections that are usable take turns. `last` is the
/// place of the one that had the last turn. `None`: no connection `is_usable`.
#[inline]
pub fn pick<'a, T>(
    last: &mut usize,
    all: &'a [T],
    is_usable: impl Fn(&T) -> bool,
) -> Option<&'a T> {
    (0..all.len()).find_map(|_| {
        *last = last.wrapping_add(1).checked_rem(all.len())?;
        all.get(*last).filter(|conn| is_usable(conn))
    })
}

#[cfg(any(test, ro2iblnd_kunit))]
#[cfg_attr(ro2iblnd_kunit, ::kernel::macros::kunit_tests(ro2ib_liveness))]
mod tests {
    use core::cell::Cell;

    use super::*;

    /// Connection with its timer, simulated by the millisecond.
    struct Line {
        silence: Liveness,
        now: i64,
        sent: i64,
        heard: i64,
        due: Option<i64>,
        waits: bool,
        probe: Option<ProbeInterval>,
    }

    impl Line {
        fn new() -> Self {
            Self::with(1000)
        }

        fn with(probe_ms: u32) -> Self {
            Self {
                probe: ProbeInterval::of_ms(probe_ms),
                silence: Liveness::default(),
                now: 0,
                sent: 0,
                heard: 0,
                due: None,
                waits: false,
            }
        }

        fn ago(&self) -> Elapsed {
            Elapsed {
                sent: self.now.saturating_sub(self.sent),
                heard: self.now.saturating_sub(self.heard),
            }
        }

        fn send(&mut self) {
            self.waits = true;
            self.sent = self.now;
            if self.silence.begin() {
                let due = self
                    .probe
                    .map(|p| self.now.saturating_add(i64::from(p.ms())));
                self.due = due.or(self.due);
            }
        }

        fn hear(&mut self) {
            self.heard = self.now;
            self.silence.heard();
        }

        fn arm(&mut self) {
            let ms = self.silence.next_ms(self.ago(), self.probe);
            self.due = ms.map(|ms| self.now.saturating_add(i64::from(ms)));
        }

        /// Changes the interval: the timer checks at once.
        fn tune(&mut self, probe_ms: u32) {
            self.probe = ProbeInterval::of_ms(probe_ms);
            self.due = Some(self.now);
        }

        /// Advances the time by a millisecond.
        fn tick(&mut self) -> Check {
            self.now = self.now.saturating_add(1);
            if self.due.is_none_or(|due| self.now < due) {
                return Check::Nothing;
            }
            let look = self.silence.look(self.waits, self.ago(), self.probe, None);
            if look != Check::Nothing {
                self.sent = self.now;
            }
            self.arm();
            look
        }

        /// Returns the times of its probes until `end`; three are enough.
        fn asks(&mut self, end: i64) -> [i64; 3] {
            let mut at = [0; 3];
            let mut free = at.iter_mut();
            while self.now < end {
                if self.tick() != Check::Nothing {
                    if let Some(slot) = free.next() {
                        *slot = self.now;
                    }
                }
            }
            at
        }
    }

    #[test]
    fn silent_peer_is_probed_after_one_second_then_every_three() {
        let mut line = Line::new();
        line.send();
        assert_eq!(line.asks(8000), [1000, 4000, 7000]);
        // It lives: the next silence is asked about at once.
        line.hear();
        line.send();
        assert_eq!(line.asks(10_000), [9000, 0, 0]);
    }

    #[test]
    fn first_probe_interval_follows_the_parameter() {
        for (probe_ms, expected) in [
            (250, [250, 3250, 6250]),
            (500, [500, 3500, 6500]),
            (3000, [3000, 6000, 9000]),
            (10_000, [10_000, 20_000, 30_000]),
            (0, [0; 3]),
            // Out of the range.
            (1, [250, 3250, 6250]),
            (u32::MAX, [60_000, 120_000, 180_000]),
        ] {
            let mut line = Line::with(probe_ms);
            line.send();
            assert_eq!((probe_ms, line.asks(200_000)), (probe_ms, expected));
        }
    }

    #[test]
    fn changed_probe_interval_applies_at_once() {
        let mut line = Line::with(60_000);
        line.send();
        assert_eq!(line.asks(2000), [0; 3]);
        // Shorter than the silence: now.
        line.tune(500);
        assert_eq!(line.asks(3000), [2001, 0, 0]);
        // The other one is probed relative to its own last message.
        line.tune(0);
        assert_eq!(line.asks(60_000), [0; 3]);
        assert_eq!(line.due, None);
        line.tune(250);
        assert_eq!(line.asks(61_000), [60_001, 0, 0]);
        // Longer: the next probe is later.
        line.hear();
        line.send();
        line.tune(3000);
        assert_eq!(line.asks(66_000), [64_000, 0, 0]);
    }

    #[test]
    fn answering_peer_is_not_probed() {
        let mut line = Line::new();
        line.send();
        for _ in 0..20 {
            assert_eq!(line.asks(line.now.saturating_add(900)), [0; 3]);
            line.hear();
        }
    }

    #[test]
    fn recent_send_replaces_a_probe() {
        let mut line = Line::new();
        line.send();
        assert_eq!(line.asks(900), [0; 3]);
        line.send();
        assert_eq!(line.asks(3000), [1900, 0, 0]);
    }

    #[test]
    fn an_idle_connection_is_quiet() {
        let mut line = Line::new();
        line.send();
        assert_eq!(line.asks(500), [0; 3]);
        line.hear();
        line.waits = false;
        assert_eq!(line.asks(100_000), [0; 3]);
        assert_eq!(line.due, None);
        // Except for keepalive, which probes this connection only.
        let ago = line.ago();
        let mut keepalive = |s| line.silence.look(false, ago, line.probe, Some(s));
        assert_eq!(
            (keepalive(100), keepalive(101)),
            (Check::Probe, Check::Nothing)
        );
    }

    #[test]
    fn all_connections_are_asked_at_once() {
        let (mut one, mut other) = (Line::new(), Line::new());
        one.send();
        let mut asked = [0; 2];
        for _ in 0..1300 {
            let look = one.tick();
            if look == Check::All {
                asked[0] = one.now;
                if other.silence.ask(other.ago()) {
                    other.arm();
                }
            }
            // Nothing waits on this connection, so it does not ask for probes on others.
            match other.tick() {
                Check::Nothing => {}
                Check::Probe if asked[1] == 0 => asked[1] = other.now,
                look => assert_eq!(look, Check::Probe),
            }
        }
        assert_eq!(asked[0], 1000);
        // Within the least time between two looks.
        assert!(asked[1] > 0 && asked[1] <= 1000_i64.saturating_add(LOOK_MIN_MS.into()));
    }

    #[test]
    fn one_that_waits_no_more_is_asked_as_well() {
        let mut other = Line::new();
        other.now = 900;
        other.send();
        other.waits = false;
        // Its timer would look, find nothing, and never again.
        other.now = 1890;
        assert!(other.silence.ask(other.ago()));
        other.arm();
        assert!(other.asks(10_000)[0] <= 2150);
    }

    #[test]
    fn one_that_spoke_meanwhile_need_not_be_asked() {
        let mut other = Line::new();
        other.now = 5000;
        assert!(other.silence.ask(other.ago()));
        other.arm();
        // Once is enough.
        assert!(!other.silence.ask(other.ago()));
        other.hear();
        assert_eq!(other.asks(20_000), [0; 3]);
        // Nor one that was asked just now.
        assert!(other.silence.ask(other.ago()));
        assert_eq!(
            other.silence.look(false, other.ago(), other.probe, None),
            Check::Probe
        );
        other.sent = other.now;
        assert!(!other.silence.ask(other.ago()));
    }

    #[test]
    fn test_usable_connections_share_all_turns_alike() {
        for len in 1..=6usize {
            for usable in 0..1u32 << len {
                let conns = [const { Cell::new(0usize) }; 6];
                let all = [0, 1, 2, 3, 4, 5].map(|at| (usable >> at & 1 != 0, conns.get(at)));
                let all = all.split_at(len).0;
                let turns = len.saturating_mul(60);
                let mut last = 0;
                for _ in 0..turns {
                    let found = pick(&mut last, all, |(is_usable, _)| *is_usable);
                    assert_eq!(found.is_some(), usable > 0);
                    if let Some((_, Some(count))) = found {
                        count.set(count.get().saturating_add(1));
                    }
                }
                // No count of connections of which each takes its turn in 60 rounds has a remainder.
                let share = turns.checked_div(usable.count_ones() as usize).unwrap_or(0);
                for (is_usable, count) in all {
                    let count = count.map_or(0, |count| count.get());
                    assert_eq!(count, if *is_usable { share } else { 0 });
                }
            }
        }
    }
}
