// SPDX-License-Identifier: GPL-2.0

//! The source port of a connection, which selects the path of a RoCE v2 connection through the fabric.
//!
//! The RDMA CM derives the flow label of a RoCE connection from its two ports, and the provider derives the UDP source
//! port of every packet of the connection from the flow label. Switches (ECMP) and LAG hash that UDP port. Connections
//! with the same source port therefore share one path.
//!
//! Any context; no state.

use super::salted_hash;

/// The first port that is not privileged (`PROT_SOCK` of the kernel).
pub const UNPRIVILEGED: u16 = 1024;

/// Ports that connections are spread over: the privileged ones above those of well-known services.
const SPREAD: u16 = 512;

/// Returns the privileged port that connection `index` to the peer with the IPv4 address `addr` tries first.
///
/// The port depends on these two only: a connection that is made again takes the path of the one that it replaces.
/// Connections with different indexes below 512 to one peer have different ports.
pub fn first(addr: u32, index: u32) -> u16 {
    let base = salted_hash::index(addr, 0, SPREAD.into());
    let base = u16::try_from(base).unwrap_or(0);
    let index = index.checked_rem(SPREAD.into()).unwrap_or(0);
    let index = u16::try_from(index).unwrap_or(0);
    let offset = base.wrapping_add(index) % SPREAD;
    UNPRIVILEGED.wrapping_sub(1).wrapping_sub(offset)
}

#[cfg(any(test, ro2iblnd_kunit))]
#[cfg_attr(ro2iblnd_kunit, ::kernel::macros::kunit_tests(ro2ib_ecmp_source_port))]
mod tests {
    use super::*;

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
                let port = first(addr, i);
                assert!((SPREAD..UNPRIVILEGED).contains(&port));
                // The port is stable.
                assert_eq!(port, first(addr, i));
                for j in 0..i {
                    assert!(udp_port(port) != udp_port(first(addr, j)));
                }
            }
            assert_eq!(first(addr, u32::from(SPREAD)), first(addr, 0));
        }
    }

    #[test]
    fn peers_are_spread_over_the_ports() {
        let mut at_1023 = 0u32;
        for addr in 0x0a00_0000..0x0a00_0800u32 {
            at_1023 = at_1023.saturating_add(u32::from(first(addr, 0) == 1023));
        }
        // Of 2048 peers four are expected on each port.
        assert!(at_1023 < 32);
    }
}
