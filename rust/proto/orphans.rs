// SPDX-License-Identifier: GPL-2.0

//! Requests that LNet keeps though their connections are over, and how many of one address are too many.
//!
//! What LNet keeps of one connection its credits bound. A new connection has new ones, so a peer that connects again
//! and again could have as many kept as there is memory (H41). They are counted by what a hash says of the address: no
//! memory for each, and nobody can choose whom he shares a count with.
//!
//! Context: any.

/// Counts there are: of a cluster of ten thousand nodes some twenty share one.
pub const PARTS: usize = 512;

/// Requests of connections that are over, of those who share a count, from which on they get no new connection: those of
/// sixteen connections with the largest queue depth, all of which LNet keeps.
pub const MOST: u32 = 4096;

/// The count of `addr`: less than [`PARTS`]. `salt` is random.
pub fn part_of(addr: u32, salt: u64) -> usize {
    // The bits of a sum of products with random numbers, of which the upper ones are mixed best.
    let hash = (u64::from(addr) ^ salt).wrapping_mul(salt | 1) >> 32;
    usize::try_from(hash)
        .unwrap_or(0)
        .checked_rem(PARTS)
        .unwrap_or(0)
}

/// Whether who has so many is to wait.
pub fn are_too_many(kept: u32) -> bool {
    kept >= MOST
}

#[cfg(any(test, ro2iblnd_kunit))]
#[cfg_attr(ro2iblnd_kunit, ::kernel::macros::kunit_tests(ro2iblnd_proto_orphans))]
mod tests {
    use super::*;

    #[test]
    fn one_address_has_one_count_and_others_have_others() {
        let salt = 0x9e37_79b9_7f4a_7c15;
        let one = part_of(0x0a00_0001, salt);
        assert_eq!(part_of(0x0a00_0001, salt), one);
        let mut shared = 0u32;
        for addr in 0x0a00_0002..0x0a00_0802u32 {
            let part = part_of(addr, salt);
            assert!(part < PARTS);
            shared = shared.saturating_add(u32::from(part == one));
        }
        // Of 2048 others four are to be expected.
        assert!(shared < 32);
        // Not to be foreseen without the salt.
        assert_ne!(
            (1..64u64)
                .filter(|salt| part_of(1, *salt << 40) == part_of(2, *salt << 40))
                .count(),
            63
        );
    }

    #[test]
    fn an_honest_peer_may_lose_many_connections_with_a_stuck_lnet() {
        assert!(!are_too_many(16 * 255));
        assert!(are_too_many(MOST));
    }
}
