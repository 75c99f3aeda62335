// SPDX-License-Identifier: GPL-2.0

//! An NI that LNet deletes, before it asks for its shutdown.
//!
//! LNet does not say that it deletes an NI. It waits for a moment in which it has no message of it, and looks for that
//! once a second (`lnet_clear_zombies_nis_locked()`, 2.17). Peers that go on sending need not grant it one, and a slow
//! one needs a message now and then for that: LNet has it until it is there. What the driver sees are the messages that
//! come in meanwhile.

/// For how long they may come, in nanoseconds: LNet has looked twice by then.
const LONG_NS: u64 = 3_000_000_000;

/// The messages that have come in for an NI while LNet deletes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NiDeletion {
    /// When the first one came: nanoseconds of a clock.
    since: Option<u64>,
    said: bool,
}

/// What becomes of a connection on which such a message came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LateAction {
    /// Nothing yet.
    Stays,
    /// It ends.
    Ends {
        /// It is the first one, which people are told of.
        news: bool,
    },
}

impl NiDeletion {
    /// None has come.
    pub fn new() -> Self {
        Self::default()
    }

    /// One has come, at `now_ns`.
    pub fn came(&mut self, now_ns: u64) -> LateAction {
        let since = *self.since.get_or_insert(now_ns);
        if now_ns.saturating_sub(since) < LONG_NS {
            return LateAction::Stays;
        }
        let news = !core::mem::replace(&mut self.said, true);
        LateAction::Ends { news }
    }
}

#[cfg(any(test, ro2iblnd_kunit))]
#[cfg_attr(ro2iblnd_kunit, ::kernel::macros::kunit_tests(ro2ib_ni_deletion))]
mod tests {
    use super::*;

    #[test]
    fn who_goes_on_sending_keeps_no_ni() {
        for every_ns in [1_000_000, 100_000_000, 2_999_999_999] {
            let mut d = NiDeletion::new();
            for ns in (0..LONG_NS).step_by(every_ns) {
                assert_eq!(d.came(ns), LateAction::Stays);
            }
            assert_eq!(d.came(LONG_NS), LateAction::Ends { news: true });
            // Other connections, too; that is said once.
            assert_eq!(d.came(LONG_NS + 1), LateAction::Ends { news: false });
        }
    }

    #[test]
    fn a_message_now_and_then_is_enough_to_keep_it() {
        let mut d = NiDeletion::new();
        assert_eq!(d.came(0), LateAction::Stays);
        assert_eq!(d.came(40 * LONG_NS), LateAction::Ends { news: true });
    }
}
