// SPDX-License-Identifier: GPL-2.0

//! How long a message may wait for a connection, and when somebody is to look.
//!
//! Context: any.

/// Milliseconds between two looks at messages that may wait for longer than usual: the reason may end at any time.
const LOOK_MS: u32 = 1000;

/// What else there is of the peer while messages wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerProgress {
    /// It waits for its turn to connect.
    pub in_line: bool,
    /// Milliseconds since its turn came, if it ever waited for it.
    pub called_ms_ago: Option<u64>,
    /// An attempt is under way, of whichever side.
    pub under_way: bool,
}

/// How long messages may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PendingTimeout {
    usual_ms: i64,
    most_ms: i64,
}

impl PendingTimeout {
    /// `usual_ms` is for one attempt and some more; after `most_ms` LNet gives a message up.
    pub const fn new(usual_ms: i64, most_ms: i64) -> Self {
        Self { usual_ms, most_ms }
    }

    /// Milliseconds that a message may wait. As long as LNet waits for it, if the peer is in line, has just been
    /// called, or has an attempt under way, of which each step has a limit of its own. But no longer: a peer that asks
    /// again and again, and never goes on, has one under way all the time.
    pub fn limit_ms(self, meanwhile: PeerProgress) -> i64 {
        let called = meanwhile.called_ms_ago.map(i64::try_from);
        let late = called.is_some_and(|ago| ago.is_ok_and(|ms| ms < self.usual_ms));
        if late || meanwhile.in_line || meanwhile.under_way {
            self.usual_ms.max(self.most_ms)
        } else {
            self.usual_ms
        }
    }

    /// Milliseconds until somebody is to look after messages of which the oldest has waited for `waited_ms`. It has
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
    fn who_has_a_reason_waits_as_long_as_lnet_does() {
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
    fn somebody_looks_when_the_usual_time_is_over_and_then_each_second() {
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
