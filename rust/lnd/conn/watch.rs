// SPDX-License-Identifier: GPL-2.0

//! Whether something waits on a connection, how long the peer has been silent, and so when the timer
//! looks again.
//!
//! Context: any; a part of what the connection lock protects. When something was last sent is known to
//! the wire, which says so.
//!
//! # Invariants
//!
//! While a transmit waits `often` is set, and the timer armed to look within [`PROBE_MS`].

use crate::lnd::moment::Moment;

/// Milliseconds of silence after which a peer that owes an answer is probed with a NOOP. The
/// transport's acknowledgement is the reply: if the peer is dead its retries end the connection,
/// long before a deadline.
pub(super) const PROBE_MS: u32 = 3000;

/// Least milliseconds between two looks at a connection on which something waits.
const LOOK_MIN_MS: u32 = 250;

/// The watch on a connection.
pub(super) struct Watch {
    /// The timer looks often, because something waits.
    often: bool,
    last_recv: Moment,
    /// When it was asked for a sign of life last, because another connection of the peer's came or went.
    asked: Option<Moment>,
}

impl Watch {
    /// On a connection just made.
    pub(super) fn new() -> Self {
        Self {
            often: false,
            last_recv: Moment::now(),
            asked: None,
        }
    }

    /// Something good was received. Returns when: now.
    #[inline]
    pub(super) fn heard(&mut self) -> Moment {
        self.last_recv = Moment::now();
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
        self.asked = Some(Moment::now());
        true
    }

    /// Something waits from now on. True: nothing did, so the timer is to look within [`PROBE_MS`].
    #[inline]
    pub(super) fn begin(&mut self) -> bool {
        !core::mem::replace(&mut self.often, true)
    }

    /// The timer looks: something waits (`waits`), and something was last sent `sent_ms` ago. True: a NOOP
    /// is due though it carries nothing. The connection was idle for `keepalive` seconds, or a peer that
    /// owes an answer has been silent.
    pub(super) fn look(&mut self, waits: bool, sent_ms: i64, keepalive: Option<u32>) -> bool {
        self.often = waits;
        let probe = i64::from(PROBE_MS);
        (waits && sent_ms >= probe && self.idle_ms() >= probe)
            || keepalive.is_some_and(|s| sent_ms >= i64::from(s).saturating_mul(1000))
    }

    /// Milliseconds until a silent peer would have to be probed; `None` if nothing waits.
    pub(super) fn next_ms(&self, sent_ms: i64) -> Option<u32> {
        let left = i64::from(PROBE_MS).saturating_sub(sent_ms.min(self.idle_ms()));
        let left = u32::try_from(left).unwrap_or(0);
        self.often.then(|| left.clamp(LOOK_MIN_MS, PROBE_MS))
    }
}
