// SPDX-License-Identifier: GPL-2.0

//! Index of an address in a table of fixed size, by a salted hash: an address needs no memory of its own, and a peer
//! cannot choose the addresses that share its entry.
//!
//! Context: any.

/// Returns the index of `addr`, below `places`, or 0 if `places` is 0. `salt` is random and not part of the protocol: a
/// host that knew it could choose addresses that share a counter.
pub fn index(addr: u32, salt: u64, places: usize) -> usize {
    // Of all bits (MurmurHash3's last steps): addresses are neighbours at most sites, and a product alone puts them,
    // with one salt in sixteen, into a few places.
    let mut hash = u64::from(addr).wrapping_add(salt);
    for factor in [0xff51_afd7_ed55_8ccd, 0xc4ce_b9fe_1a85_ec53] {
        hash = (hash ^ (hash >> 33)).wrapping_mul(factor);
    }
    usize::try_from(hash >> 33)
        .unwrap_or(0)
        .checked_rem(places)
        .unwrap_or(0)
}

#[cfg(any(test, ro2iblnd_kunit))]
#[cfg_attr(ro2iblnd_kunit, ::kernel::macros::kunit_tests(ro2ib_salted_hash))]
mod tests {
    use super::*;

    const SALT: u64 = 0x9e37_79b9_7f4a_7c15;

    #[test]
    fn an_address_keeps_its_index_and_few_others_share_it() {
        let one = index(0x0a00_0001, SALT, 512);
        assert_eq!(index(0x0a00_0001, SALT, 512), one);
        let mut shared = 0u32;
        for addr in 0x0a00_0002..0x0a00_0802u32 {
            let part = index(addr, SALT, 512);
            assert!(part < 512);
            shared = shared.saturating_add(u32::from(part == one));
        }
        // Of 2048 others four are to be expected.
        assert!(shared < 32);
        assert_eq!(index(1, SALT, 0), 0);
    }

    /// Tests that neighbours are spread, whatever the salt.
    #[test]
    fn neighbours_are_spread() {
        for salt in (0..256u64).map(|n| n.wrapping_mul(0x1234_5678_9abc_def1)) {
            let mut counts = [0u32; 1024];
            for addr in 0x0a00_0001..0x0a00_0201u32 {
                if let Some(count) = counts.get_mut(index(addr, salt, 1024)) {
                    *count = count.saturating_add(1);
                }
            }
            // Those that four to a place have no room for.
            let over: u32 = counts.iter().map(|n| n.saturating_sub(4)).sum();
            assert!(over < 8);
        }
    }

    #[test]
    fn neighbours_are_not_to_be_foreseen_without_the_salt() {
        let together = |salt: &u64| index(1, salt << 40, 512) == index(2, salt << 40, 512);
        assert_ne!((1..64u64).filter(together).count(), 63);
    }
}
