// SPDX-License-Identifier: GPL-2.0

//! Number of bytes that a work request of a send carries inline.
//!
//! Most providers tell with a new queue pair how much it takes. Others (irdma, erdma, qedr) refuse
//! the queue pair with `EINVAL` if the driver asks for more than they can, and do not tell the limit.
//! `EINVAL` may have another cause. So a size is remembered for the device only if the queue pair
//! could be made with it and not with a larger one.
//!
//! Any context; no state.

/// Sizes in bytes, in the order of the search: all messages except IMMEDIATEs with payload; answers
/// and NOOPs, as irdma (101) and erdma (96) can; NOOPs, as irdma's first generation (48) can; none.
const STEPS: [u16; 4] = [160, 96, 48, 0];

/// The search for the inline size of a queue pair.
#[derive(Clone, Copy, Debug)]
pub struct InlineSearch {
    first: u16,
    now: u16,
}

impl InlineSearch {
    /// The largest size, which a search on a device begins with that nothing is known of.
    pub const MOST: u16 = 160;

    /// Begins with `first`, the size that an earlier search on the device ended with.
    pub fn new(first: u16) -> Self {
        Self { first, now: first }
    }

    /// Returns the size to ask for.
    pub fn now(&self) -> u16 {
        self.now
    }

    /// Goes on to a smaller size, because the device refused the queue pair. Returns whether there
    /// is one; otherwise the size is not the cause, and the search begins again.
    #[must_use]
    pub fn refused(&mut self) -> bool {
        let next = STEPS.into_iter().find(|step| *step < self.now);
        self.now = next.unwrap_or(self.first);
        next.is_some()
    }
}

#[cfg(any(test, ro2iblnd_kunit))]
#[cfg_attr(ro2iblnd_kunit, ::kernel::macros::kunit_tests(ro2ib_inline_size))]
mod tests {
    use super::*;

    /// Returns what the search ends with on a device that refuses more than `most`, and how many were refused.
    fn found(first: u16, most: u16) -> (u16, u32) {
        let mut search = InlineSearch::new(first);
        let mut refused = 0u32;
        while search.now() > most {
            refused = refused.saturating_add(1);
            assert!(search.refused());
        }
        (search.now(), refused)
    }

    #[test]
    fn a_device_is_asked_for_less_until_it_can() {
        let most = InlineSearch::MOST;
        for (device, inline, refused) in [
            (1000, 160, 0),
            (160, 160, 0),
            (101, 96, 1),
            (96, 96, 1),
            (48, 48, 2),
            (47, 0, 3),
            (0, 0, 3),
        ] {
            assert_eq!(found(most, device), (inline, refused));
            // The next connection begins with what is known.
            assert_eq!(found(inline, device), (inline, 0));
        }
    }

    #[test]
    fn inline_size_stays_after_an_unrelated_error() {
        for first in STEPS {
            let mut search = InlineSearch::new(first);
            while search.refused() {}
            assert_eq!(search.now(), first);
        }
    }
}
