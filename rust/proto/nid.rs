// SPDX-License-Identifier: GPL-2.0

//! Node identifiers in their 64-bit form, the only one this protocol carries.

use core::fmt;

/// LND type of the o2ib networks (spec 1).
pub const LND_O2IB: u8 = 5;
/// LND types of TCP networks and of the loopback, to print such a NID readably.
const LND_TCP: u8 = 2;
const LND_LO: u8 = 9;

/// A NID: LND type, network number and IPv4 address in one word (spec 2.3).
///
/// Any value can arrive from a peer, and can be held: see [`Nid::is_o2ib`].
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Nid(u64);

impl Nid {
    /// Wildcard NID: all bits set.
    pub const ANY: Nid = Nid(u64::MAX);

    /// Creates the NID of `ip` (10.0.0.1 is `0x0a000001`) on the network `o2ib<net_number>`.
    pub const fn new(net_number: u16, ip: u32) -> Self {
        Nid(((LND_O2IB as u64) << 48) | ((net_number as u64) << 32) | ip as u64)
    }

    /// Creates it from the word in LNet and on the wire.
    pub const fn from_raw(raw: u64) -> Self {
        Nid(raw)
    }

    /// Returns the word in LNet and on the wire.
    pub const fn raw(self) -> u64 {
        self.0
    }

    /// Returns the IPv4 address as a number in host order.
    pub const fn addr(self) -> u32 {
        let [_, _, _, _, a, b, c, d] = self.0.to_be_bytes();
        u32::from_be_bytes([a, b, c, d])
    }

    /// Returns the network: LND type in the upper, network number in the lower half, `0x50000 + number` for this LND.
    /// The unused top byte is included, so that two networks are equal only if their NIDs are spelled alike.
    pub const fn net(self) -> u32 {
        let [a, b, c, d, ..] = self.0.to_be_bytes();
        u32::from_be_bytes([a, b, c, d])
    }

    /// Returns the number in the network's name: 3 for `o2ib3`.
    pub const fn net_number(self) -> u16 {
        let [_, _, a, b, ..] = self.0.to_be_bytes();
        u16::from_be_bytes([a, b])
    }

    pub const fn is_any(self) -> bool {
        self.0 == u64::MAX
    }

    /// Returns whether this is a NID of our own LND: type 5 and a clear top byte. False for the wildcard, the loopback,
    /// TCP and for the malformed values with a type byte of 0xff (guards H1, H2, H3).
    pub const fn is_o2ib(self) -> bool {
        let [top, t, ..] = self.0.to_be_bytes();
        top == 0 && t == LND_O2IB
    }
}

impl fmt::Display for Nid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_any() {
            return f.write_str("<any>");
        }
        let [top, kind, ..] = self.0.to_be_bytes();
        let [a, b, c, d] = self.addr().to_be_bytes();
        match (top, kind) {
            (0, LND_O2IB) => write!(f, "{a}.{b}.{c}.{d}@o2ib")?,
            (0, LND_TCP) => write!(f, "{a}.{b}.{c}.{d}@tcp")?,
            (0, LND_LO) => write!(f, "{}@lo", self.addr())?,
            _ => return write!(f, "{:#018x}", self.0),
        }
        match self.net_number() {
            0 => Ok(()),
            n => write!(f, "{n}"),
        }
    }
}

/// Returns the value by which two nodes that connect to each other at the same time agree on a winner: the higher one
/// (spec 4.8).
///
/// LNet's `nidhash` (lnet-types.h): the network XOR the address as stored in network order and read as a native number.
/// All known deployments are little-endian, so that reading is fixed here: a big-endian node then agrees with them.
pub const fn race_key(nid: Nid) -> u32 {
    nid.net() ^ nid.addr().swap_bytes()
}

#[cfg(any(test, ro2iblnd_kunit))]
#[cfg_attr(ro2iblnd_kunit, ::kernel::macros::kunit_tests(ro2iblnd_proto_nid))]
mod tests {
    use super::*;

    #[test]
    fn layout_is_the_documented_one() {
        let nid = Nid::new(1, 0x0a00_0001);
        assert_eq!(nid.raw(), 0x0005_0001_0a00_0001);
        assert_eq!(nid.addr(), 0x0a00_0001);
        assert_eq!(nid.net(), 0x0005_0001);
        assert_eq!(nid.net_number(), 1);
        assert!(nid.is_o2ib());
    }

    #[test]
    fn foreign_nids_are_not_ours() {
        assert!(Nid::ANY.is_any());
        assert!(!Nid::ANY.is_o2ib());
        // 0@lo, 10.0.0.1@tcp, type byte 0xff, a stray bit in the top byte
        assert!(!Nid::from_raw(0x0009_0000_0000_0000).is_o2ib());
        assert!(!Nid::from_raw(0x0002_0000_0a00_0001).is_o2ib());
        assert!(!Nid::from_raw(0x00ff_0000_0a00_0001).is_o2ib());
        assert!(!Nid::from_raw(0x0105_0000_0a00_0001).is_o2ib());
    }

    #[test]
    fn race_orders_by_the_last_octet_first() {
        let low = Nid::new(0, 0x0b00_0001);
        let high = Nid::new(0, 0x0a00_0002);
        assert!(low > high);
        assert!(race_key(low) < race_key(high));
        assert_eq!(race_key(high), 0x0005_0000 ^ 0x0200_000a);
    }
}
