// SPDX-License-Identifier: GPL-2.0

//! Hash of an IPv4 address: its index in a table of fixed size, and the source port of connections to it.
//!
//! A table of fixed size is indexed by a salted hash: an address needs no memory of its own, and a peer cannot choose
//! the addresses that share its entry.
//!
//! The source port selects the path of a RoCE v2 connection through the fabric. The RDMA CM derives the flow label of a
//! RoCE connection from its two ports, and the provider derives the UDP source port of every packet of the connection
//! from the flow label. Switches (ECMP) and LAG hash that UDP port. Connections with the same source port therefore
//! share one path.
//!
//! Context: any; no state.

use crate::proto::handshake::UNPRIVILEGED;

/// Ports that connections are spread over: the privileged ones above those of well-known services.
const SPREAD: u16 = 512;

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

/// Returns the privileged port that connection `index` to the peer with the IPv4 address `addr` tries first.
///
/// The port depends on these two only: a connection that is made again takes the path of the one that it replaces.
/// Connections with different indexes below 512 to one peer have different ports.
pub fn source_port(addr: u32, index: u32) -> u16 {
    let base = self::index(addr, 0, SPREAD.into());
    let base = u16::try_from(base).unwrap_or(0);
    let index = index.checked_rem(SPREAD.into()).unwrap_or(0);
    let index = u16::try_from(index).unwrap_or(0);
    let offset = base.wrapping_add(index) % SPREAD;
    UNPRIVILEGED.wrapping_sub(1).wrapping_sub(offset)
}

#[cfg(any(test, ro2iblnd_kunit))]
#[cfg_attr(ro2iblnd_kunit, ::kernel::macros::kunit_tests(ro2ib_addr_hash))]
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

    const SERVICE: u16 = 987;

    /// Returns the UDP source port that the RDMA CM and the provider derive from the ports of a connection
    /// (`cma_get_roce_udp_flow_label()`, `rdma_flow_label_to_udp_sport()`).
    fn udp_port(source: u16) -> u16 {
        let label = u32::from(source)
            .wrapping_mul(31)
            .wrapping_add(SERVICE.into())
            & 0xf_ffff;
        let low = (label & 0x3fff) ^ (label >> 14);
        u16::try_from(low | 0xc000).unwrap_or(0)
    }

    #[test]
    fn connections_to_one_peer_have_different_paths() {
        for addr in [0, 0x0a00_0001, 0xc0a8_0102, u32::MAX] {
            for i in 0..32 {
                let port = source_port(addr, i);
                assert!((SPREAD..UNPRIVILEGED).contains(&port));
                // The port is stable.
                assert_eq!(port, source_port(addr, i));
                for j in 0..i {
                    assert!(udp_port(port) != udp_port(source_port(addr, j)));
                }
            }
            assert_eq!(source_port(addr, u32::from(SPREAD)), source_port(addr, 0));
        }
    }

    #[test]
    fn peers_are_spread_over_the_ports() {
        let mut at_1023 = 0u32;
        for addr in 0x0a00_0000..0x0a00_0800u32 {
            at_1023 = at_1023.saturating_add(u32::from(source_port(addr, 0) == 1023));
        }
        // Of 2048 peers four are expected on each port.
        assert!(at_1023 < 32);
    }
}
