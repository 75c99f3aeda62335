// SPDX-License-Identifier: GPL-2.0

//! Protocol constants and the two negotiated numbers as bounded types.

/// Magic of every o2ib message and reject (spec 1).
pub const MAGIC: u32 = 0x0be9_1b91;
/// Magic reserved for a future unified LNet protocol (spec 4.6).
pub const MAGIC_UNIFIED: u32 = 0x4572_6963;
/// Bytes in the largest message, header included; also the size of every receive buffer.
pub const MSG_SIZE: usize = 4096;
/// [`MSG_SIZE`] as negotiated in connection parameters.
pub const MSG_SIZE_WIRE: u32 = 4096;
/// Bytes in the o2ib header.
pub const HEADER_LEN: usize = 48;
/// Bytes in the LNet header inside messages.
pub const LNET_HDR_LEN: usize = 72;
/// Bytes before the payload of an IMMEDIATE.
pub const IMMEDIATE_HEAD: usize = HEADER_LEN + LNET_HDR_LEN;
/// Payload bytes that fit in an IMMEDIATE.
pub const IMMEDIATE_MAX: usize = MSG_SIZE - IMMEDIATE_HEAD;
/// Bytes in a CONNREQ or CONNACK.
pub const CONN_MSG_LEN: usize = 56;
pub const REJECT_LEN: usize = 24;
/// Most fragments in a descriptor: 1 MiB in 4 KiB pages with an unaligned start.
pub const FRAGS_MAX: u16 = 257;
/// Most bytes in one LNet message.
pub const LNET_MTU: u32 = 1 << 20;
/// Most pieces of memory of an LNet message: pages of 4 KiB, the first and the last of which may be partial
/// (`LNET_MAX_IOV`).
pub const LNET_PIECES: u32 = 257;
/// Receive buffers beyond those covered by credits, for NOOPs (version 2).
pub const OOB_BUFFERS: u16 = 2;
/// Lost connection races after which the lower NID is let through (spec 4.8).
pub const RACES_MAX: u8 = 20;

const _: () = assert!(IMMEDIATE_MAX == 3976);

/// Negotiated number.
///
/// # Invariants
///
/// 1 <= value <= `MOST`.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Negotiated<const MOST: u16>(u16);

impl<const MOST: u16> Negotiated<MOST> {
    pub const MIN: Self = Self(1);
    pub const MAX: Self = Self(MOST);

    pub fn new(v: u16) -> Option<Self> {
        // INVARIANT: By the range.
        (1..=MOST).contains(&v).then_some(Self(v))
    }

    /// Returns the number as in connection parameters.
    pub const fn wire(self) -> u16 {
        self.0
    }
}

/// Most fragments that either side will put in a descriptor.
pub type MaxFrags = Negotiated<FRAGS_MAX>;

/// Queue depth of a connection: how many messages may be under way in each direction before credits must come back.
pub type QueueDepth = Negotiated<255>;

impl QueueDepth {
    pub const fn get(self) -> u8 {
        let [_, depth] = self.0.to_be_bytes();
        depth
    }

    /// Returns the number of receive buffers of a connection (version 2): one per credit, one per answer to our own
    /// requests, and two for NOOPs (spec 5.2).
    pub const fn rx_buffers(self) -> u16 {
        self.0.saturating_mul(2).saturating_add(OOB_BUFFERS)
    }
}

/// Parameters of a connection request, later the agreed ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerParams {
    /// The peer's incarnation (`dststamp` of a request); 0 = unknown.
    pub stamp: u64,
    pub depth: QueueDepth,
    pub frags: MaxFrags,
}

impl Default for PeerParams {
    /// Returns the parameters for a peer of which nothing is known.
    fn default() -> Self {
        Self {
            stamp: 0,
            depth: QueueDepth::MAX,
            frags: MaxFrags::MAX,
        }
    }
}

/// Returns the number of returned credits at which a NOOP carries them back (spec 5.5).
///
/// `hiw` is the threshold set for `pc` peer credits; it is scaled to the negotiated depth. Never 0 (guard H6), never
/// above the depth, and never below half of the depth, rounded up: each NOOP carries at least that many, thus at most
/// [`super::credits::NOOPS_MAX`] can be in flight to a side whose softirq lags behind. Send completions do not bound
/// that, because they come from the peer's HCA. The rounding at depths 3, 4 and 6 matters.
pub fn high_water(depth: QueueDepth, hiw: u8, pc: QueueDepth) -> u8 {
    let scaled = depth.0.saturating_mul(hiw.into()).checked_div(pc.0);
    let least = depth.get().div_ceil(2);
    u8::try_from(scaled.unwrap_or(0))
        .unwrap_or(u8::MAX)
        .clamp(least, depth.get())
}

#[cfg(any(test, ro2iblnd_kunit))]
#[cfg_attr(ro2iblnd_kunit, ::kernel::macros::kunit_tests(ro2iblnd_proto_params))]
mod tests {
    use super::*;

    #[test]
    fn bounds_hold() {
        assert!(QueueDepth::new(0).is_none());
        assert!(QueueDepth::new(1).is_some());
        assert!(QueueDepth::new(255).is_some());
        assert!(QueueDepth::new(256).is_none());
        assert!(MaxFrags::new(0).is_none());
        assert!(MaxFrags::new(1).is_some());
        assert!(MaxFrags::new(257).is_some());
        assert!(MaxFrags::new(258).is_none());
        assert_eq!(QueueDepth::MAX.rx_buffers(), 512);
    }

    #[test]
    fn high_water_scales_and_is_never_zero() {
        let pc = QueueDepth::MAX;
        for d in 1..=255u16 {
            for h in 0..=255u8 {
                let Some(depth) = QueueDepth::new(d) else {
                    continue;
                };
                let w = high_water(depth, h, pc);
                assert!(w >= 1);
                assert!(w <= depth.get());
                // No more NOOPs than out-of-band buffers can be on their way.
                assert!(depth.get().div_euclid(w) <= 2);
            }
        }
        let Some(eight) = QueueDepth::new(8) else {
            return;
        };
        let Some(thirty_two) = QueueDepth::new(32) else {
            return;
        };
        assert_eq!(high_water(eight, 4, eight), 4);
        assert_eq!(high_water(eight, 16, thirty_two), 4);
        assert_eq!(high_water(QueueDepth::MIN, 4, eight), 1);
    }
}
