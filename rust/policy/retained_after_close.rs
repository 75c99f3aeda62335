// SPDX-License-Identifier: GPL-2.0

//! Limit on requests of an address that LNet retains after their connections were closed.
//!
//! The credits of a connection limit the requests that LNet retains of it. A new connection has new credits, so a peer
//! that reconnects again and again could use up all memory (H41). The requests are counted twice by address, and some
//! addresses share a count ([`super::salted_hash`]): an address is excluded only if both of its counts are too
//! large.
//!
//! Context: any.

/// Number of counts: in a cluster of ten thousand nodes some twenty share one.
pub const PARTS: usize = 512;

/// Retained requests of the addresses that share a count, from which on they get no new connection: those of sixteen
/// connections with the largest queue depth, all retained.
pub const MOST: u32 = 4096;

/// Returns whether an address with this number of retained requests must wait.
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
