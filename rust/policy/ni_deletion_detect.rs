// SPDX-License-Identifier: GPL-2.0

//! State of an NI that LNet deletes, before LNet calls its shutdown.
//!
//! LNet does not announce that it deletes an NI. It waits for a moment in which it has no message of the NI, and checks
//! for that once a second (`lnet_clear_zombies_nis_locked()`, 2.17). Peers that continue to send may never leave such a
//! moment. Even a slow peer needs only a message now and then, because LNet has it until it has arrived. The driver
//! sees only the messages that arrive meanwhile.

/// Time for which they may arrive, in nanoseconds: LNet has checked twice by then.
const LONG_NS: u64 = 3_000_000_000;

/// Messages that arrive for an NI while LNet deletes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NiDeletion {
    /// Time of the first one: nanoseconds of a clock.
    since: Option<u64>,
    said: bool,
}

/// Action for a connection on which such a message arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LateAction {
    /// None yet.
    Stays,
    /// Close it.
    Ends {
        /// Whether it is the first one, which is logged.
        news: bool,
    },
}

impl NiDeletion {
    /// Creates the state without messages.
    pub fn new() -> Self {
        Self::default()
    }

    /// Counts a message that arrived at `now_ns`.
    pub fn on_message(&mut self, now_ns: u64) -> LateAction {
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
    fn continuous_messages_do_not_delay_ni_deletion() {
        for every_ns in [1_000_000, 100_000_000, 2_999_999_999] {
            let mut d = NiDeletion::new();
            for ns in (0..LONG_NS).step_by(every_ns) {
                assert_eq!(d.on_message(ns), LateAction::Stays);
            }
            assert_eq!(d.on_message(LONG_NS), LateAction::Ends { news: true });
            // Other connections are closed, too; only the first is logged.
            assert_eq!(d.on_message(LONG_NS + 1), LateAction::Ends { news: false });
        }
    }

    #[test]
    fn a_message_now_and_then_is_enough_to_keep_it() {
        let mut d = NiDeletion::new();
        assert_eq!(d.on_message(0), LateAction::Stays);
        assert_eq!(d.on_message(40 * LONG_NS), LateAction::Ends { news: true });
    }
}
