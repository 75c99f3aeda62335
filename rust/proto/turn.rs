// SPDX-License-Identifier: GPL-2.0

//! Whose turn it is with LNet: whether the worker that calls it has to be queued, and whether what LNet
//! sends from inside waits for the doorbell that this worker will ring anyway (the cork).
//!
//! Context: any; the caller holds the connection's lock.

/// The LNet half of a connection, as the others see it.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    /// It was queued, and has not looked yet.
    queued: bool,
    /// The task that runs it, rings the doorbell when it is through with a few jobs, and will look for
    /// more; 0 is nobody.
    owner: i32,
}

impl Turn {
    /// Nobody runs it, and it is not queued.
    pub const fn new() -> Self {
        Self {
            queued: false,
            owner: 0,
        }
    }

    /// There is something for it. True: the caller queues it, for it would not see it by itself.
    pub fn wake(&mut self) -> bool {
        if self.queued || self.owner != 0 {
            return false;
        }
        self.queued = true;
        true
    }

    /// The task `me` looks for a job. What is queued from here on may need to be looked at once more, and
    /// what it sends meanwhile waits for its doorbell.
    pub fn begin(&mut self, me: i32) {
        self.queued = false;
        self.owner = me;
    }

    /// It has no job, or rings now: from here on nothing waits for it.
    pub fn end(&mut self) {
        self.owner = 0;
    }

    /// Whether what is queued now waits for it. `me` says who asks.
    pub fn holds(&self, me: impl FnOnce() -> i32) -> bool {
        self.owner != 0 && self.owner == me()
    }
}

impl Default for Turn {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(any(test, ro2iblnd_kunit))]
#[cfg_attr(ro2iblnd_kunit, ::kernel::macros::kunit_tests(ro2iblnd_turn))]
mod tests {
    use super::*;

    #[test]
    fn it_is_queued_once() {
        let mut turn = Turn::new();
        assert!(turn.wake());
        assert!(!turn.wake());
        turn.begin(7);
        // It will look again by itself.
        assert!(!turn.wake());
        turn.end();
        assert!(turn.wake());
    }

    #[test]
    fn only_what_it_sends_itself_waits_for_it() {
        let mut turn = Turn::new();
        assert!(!turn.holds(|| 7));
        turn.begin(7);
        assert!(turn.holds(|| 7));
        assert!(!turn.holds(|| 8));
        turn.end();
        assert!(!turn.holds(|| 7));
    }
}
