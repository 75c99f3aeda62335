// SPDX-License-Identifier: GPL-2.0

//! Timeout of messages that wait for a connection, and the time of the next check.
//!
//! Context: any.

/// Milliseconds between two checks of messages that may wait longer than usual: the reason may end at any time.
const LOOK_MS: u32 = 1000;

/// Progress of a peer while messages wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerProgress {
    /// The peer waits for its turn to connect.
    pub in_line: bool,
    /// Milliseconds since its turn came, if it ever waited for it.
    pub called_ms_ago: Option<u64>,
    /// An attempt of either side is in flight.
    pub under_way: bool,
}

/// Timeout of messages that wait for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PendingTimeout {
    usual_ms: i64,
    most_ms: i64,
}

impl PendingTimeout {
    /// Creates it. `usual_ms` is for one attempt and some more; after `most_ms` LNet gives a message up.
    pub const fn new(usual_ms: i64, most_ms: i64) -> Self {
        Self { usual_ms, most_ms }
    }

    /// Returns how long a message may wait, in milliseconds: as long as LNet waits for it, if the peer is in the queue,
    /// has just been called, or has an attempt in flight, of which each step has a limit of its own. Never longer: a
    /// peer that connects again and again, and never gets established, always has an attempt in flight.
    pub fn limit_ms(self, meanwhile: PeerProgress) -> i64 {
        let called = meanwhile.called_ms_ago.map(i64::try_from);
        let late = called.is_some_and(|ago| ago.is_ok_and(|ms| ms < self.usual_ms));
        if late || meanwhile.in_line || meanwhile.under_way {
            self.usual_ms.max(self.most_ms)
        } else {
            self.usual_ms
        }
    }

    /// Returns the milliseconds until the next check, if the oldest message has waited for `waited_ms`. It will have
    /// waited for longer than usual then.
    pub fn look_in_ms(self, waited_ms: i64) -> u32 {
        let left = self.usual_ms.saturating_sub(waited_ms);
        if left < 0 {
            return LOOK_MS;
        }
        u32::try_from(left.saturating_add(1)).unwrap_or(u32::MAX)
    }
}

#[cfg(any(test, ro2iblnd_kunit))]
#[cfg_attr(ro2iblnd_kunit, ::kernel::macros::kunit_tests(ro2ib_pending_timeout))]
mod tests {
    use super::*;

    const NOTHING: PeerProgress = PeerProgress {
        in_line: false,
        called_ms_ago: None,
        under_way: false,
    };

    #[test]
    fn queued_peer_waits_until_the_lnet_deadline() {
        let patience = PendingTimeout::new(22_500, 50_000);
        assert_eq!(patience.limit_ms(NOTHING), 22_500);
        let in_line = PeerProgress {
            in_line: true,
            ..NOTHING
        };
        let under_way = PeerProgress {
            under_way: true,
            ..NOTHING
        };
        let called = |ms| PeerProgress {
            called_ms_ago: Some(ms),
            ..NOTHING
        };
        assert_eq!(patience.limit_ms(in_line), 50_000);
        assert_eq!(patience.limit_ms(under_way), 50_000);
        assert_eq!(patience.limit_ms(called(22_499)), 50_000);
        assert_eq!(patience.limit_ms(called(22_500)), 22_500);
        assert_eq!(patience.limit_ms(called(u64::MAX)), 22_500);
        // With a short timeout of LNet's it is not less than usual.
        assert_eq!(
            PendingTimeout::new(15_000, 8_000).limit_ms(under_way),
            15_000
        );
    }

    #[test]
    fn pending_check_runs_at_the_limit_and_then_each_second() {
        let patience = PendingTimeout::new(15_000, 50_000);
        for waited_ms in [0_i64, 1, 14_999, 15_000] {
            let then = waited_ms.saturating_add(i64::from(patience.look_in_ms(waited_ms)));
            assert!(then > 15_000 && then <= 15_001);
        }
        for waited_ms in [15_001, 49_999, i64::MAX] {
            assert_eq!(patience.look_in_ms(waited_ms), LOOK_MS);
        }
        assert_eq!(PendingTimeout::new(i64::MAX, 0).look_in_ms(0), u32::MAX);
    }
}
