// SPDX-License-Identifier: GPL-2.0

//! An NI that LNet deletes, before it asks for its shutdown.
//!
//! LNet does not say that it deletes an NI. It waits for a moment in which it has no message of it, and looks for that once
//! a second (`lnet_clear_zombies_nis_locked()`, 2.17). A peer that goes on sending need not grant it one. What the driver
//! sees of it are the messages that come in meanwhile.

/// How long they may come, in nanoseconds: LNet has looked twice by then, and found the NI busy.
const LONG_NS: u64 = 3_000_000_000;

/// After a pause of so many nanoseconds they are not what LNet waits for: it has looked in between.
const PAUSE_NS: u64 = 1_100_000_000;

/// The messages that have come in for an NI while LNet deletes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deletion {
    /// Since when, and when the last one came: nanoseconds of a clock.
    spell: Option<(u64, u64)>,
    said: bool,
}

/// What becomes of a connection on which such a message came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Late {
    /// Nothing yet.
    Stays,
    /// It ends.
    Ends {
        /// It is the first one, which people are told of.
        news: bool,
    },
}

impl Deletion {
    /// None has come.
    pub fn new() -> Self {
        Self::default()
    }

    /// One has come, at `now_ns`.
    pub fn came(&mut self, now_ns: u64) -> Late {
        let since = match self.spell {
            Some((since, last)) if now_ns.saturating_sub(last) < PAUSE_NS => since,
            _ => now_ns,
        };
        self.spell = Some((since, now_ns));
        if now_ns.saturating_sub(since) < LONG_NS {
            return Late::Stays;
        }
        let news = !core::mem::replace(&mut self.said, true);
        Late::Ends { news }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_goes_on_sending_keeps_no_ni() {
        let mut d = Deletion::new();
        for ms in (0..3000u64).step_by(100) {
            assert_eq!(d.came(ms * 1_000_000), Late::Stays);
        }
        assert_eq!(d.came(LONG_NS), Late::Ends { news: true });
        // Other connections, too; that is said once.
        assert_eq!(d.came(LONG_NS + 1), Late::Ends { news: false });
    }

    #[test]
    fn who_pauses_is_not_what_is_waited_for() {
        let mut d = Deletion::new();
        let mut now = 7;
        for _ in 0..100 {
            assert_eq!(d.came(now), Late::Stays);
            now += PAUSE_NS;
        }
        // A message just before LNet looks is enough.
        now += 2 * PAUSE_NS;
        assert_eq!(d.came(now), Late::Stays);
        assert_eq!(d.came(now + PAUSE_NS - 1), Late::Stays);
        assert_eq!(d.came(now + 2 * PAUSE_NS - 2), Late::Stays);
        assert_eq!(d.came(now + 3 * PAUSE_NS - 3), Late::Ends { news: true });
    }
}
