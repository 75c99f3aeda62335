// SPDX-License-Identifier: GPL-2.0

//! Requests that LNet keeps though their connections are over, and how many of one address are too many.
//!
//! What LNet keeps of one connection its credits bound. A new connection has new ones, so a peer that connects again
//! and again could have as many kept as there is memory (H41). They are counted by address, of which some share
//! a count ([`super::addr_hash`]), twice: who is kept out shares both.
//!
//! Context: any.

/// Counts there are: of a cluster of ten thousand nodes some twenty share one.
pub const PARTS: usize = 512;

/// Requests of connections that are over, of those who share a count, from which on they get no new connection: those
/// of sixteen connections with the largest queue depth, all of which LNet keeps.
pub const MOST: u32 = 4096;

/// Whether who has so many is to wait.
pub fn are_too_many(kept: u32) -> bool {
    kept >= MOST
}

#[cfg(any(test, ro2iblnd_kunit))]
#[cfg_attr(ro2iblnd_kunit, ::kernel::macros::kunit_tests(ro2ib_retained_rx))]
mod tests {
    use super::*;

    #[test]
    fn an_honest_peer_may_lose_many_connections_with_a_stuck_lnet() {
        assert!(!are_too_many(16 * 255));
        assert!(are_too_many(MOST));
    }
}
