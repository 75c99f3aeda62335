// SPDX-License-Identifier: GPL-2.0

//! Defaults that depend on the link speed: the queue depth, the number of messages that an NI may have in flight, and
//! the gather elements of a WRITE.
//!
//! The depth is bandwidth times delay, in pieces of [`PIECE`] bytes: the number of messages in flight while a credit is
//! away. Documentation/parameters.md has the reasons for the numbers. Both ends use the smaller depth, so this depth is
//! only an offer.

use core::fmt;

use crate::proto::constants::QueueDepth;

/// Microseconds that a credit is away: the time of the three messages of a PUT through the fabric, and of two wake-ups
/// of workers. Assumed.
pub const DELAY_US: u32 = 40;

/// Size of a counted message in bytes. Smaller messages keep a processor busy long before they fill the link, larger
/// ones need fewer credits.
pub const PIECE: u32 = 16 << 10;

/// Depth of peers without other settings: also the smallest that LNet gets.
pub const LEAST: u8 = 8;

/// Largest default: each connection pays for it, used or not.
pub const MOST: u8 = 32;

/// Number of an NI's peers that can use all their credits at the same time, as with ko2iblnd's defaults.
const PEERS: u32 = 32;

/// Smallest such number if the administrator set the credits of the NI.
const PEERS_LEAST: u32 = 8;

/// Smallest number of gather elements of a WRITE that can be configured, if the device has them.
const GATHER_LEAST: u16 = 16;

/// Gather elements of a WRITE unless the administrator sets the number: as many as mlx5 has. 1 MiB
/// in pages of 4 KiB needs 9 WRITEs with 30 elements, 12 with 23, 17 with 16. With 23 the send queue
/// takes half of the memory on mlx5 (tests/adapter_queue_memory.rs); `wrq_sge=23` sets that.
const GATHER: u16 = 30;

/// Largest number of gather elements that can be configured.
const GATHER_MAX: u16 = 128;

/// Speed of a link.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct LinkSpeed(u32);

impl LinkSpeed {
    /// Returns the speed of a port by the codes of its lane speed and of its number of lanes (InfiniBand, PortInfo).
    /// Unknown if one of the codes is.
    pub fn of_port(speed: u32, width: u32) -> Self {
        let lane: u32 = match speed {
            1 => 2_500,
            2 => 5_000,
            // QDR, and FDR10, which is 3 % faster.
            4 | 8 => 10_000,
            16 => 14_000,
            32 => 25_000,
            64 => 50_000,
            128 => 100_000,
            256 => 200_000,
            _ => 0,
        };
        let lanes = match width {
            1 => 1,
            2 => 4,
            4 => 8,
            8 => 12,
            16 => 2,
            _ => 0,
        };
        Self(lane.saturating_mul(lanes))
    }

    /// Creates it from a number of Mb/s.
    pub fn from_mbps(mbps: u32) -> Self {
        Self(mbps)
    }

    /// Returns it in Mb/s; 0: unknown.
    pub fn mbps(self) -> u32 {
        self.0
    }

    /// Returns the number of messages in flight while a credit is away.
    fn messages(self) -> u32 {
        // Mb/s times us is bits.
        let bits = u64::from(self.0).saturating_mul(u64::from(DELAY_US));
        let bytes = bits.div_ceil(8);
        u32::try_from(bytes.div_ceil(u64::from(PIECE))).unwrap_or(u32::MAX)
    }
}

impl fmt::Display for LinkSpeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => f.write_str("unknown speed"),
            mbps if mbps % 1000 == 0 => write!(f, "{} Gb/s", mbps / 1000),
            mbps => write!(f, "{}.{} Gb/s", mbps / 1000, mbps % 1000 / 100),
        }
    }
}

/// Returns the depth to offer on a link. `credits`: those of the NI, if the administrator set them; then at least eight
/// peers can use all of theirs.
///
/// The depth is a power of two, so that there are few values: a peer that asks for more than the other one has is
/// rejected once, and asks again.
pub fn depth(speed: LinkSpeed, credits: Option<u32>) -> QueueDepth {
    let messages = speed.messages().min(u32::from(MOST));
    let wanted = messages
        .checked_next_power_of_two()
        .unwrap_or(u32::from(MOST));
    let room = credits.map_or(u32::from(MOST), |credits| credits / PEERS_LEAST);
    let least = u32::from(LEAST).min(credits.unwrap_or(u32::MAX)).max(1);
    let depth = wanted.min(room).min(u32::from(MOST)).max(least);
    u16::try_from(depth)
        .ok()
        .and_then(QueueDepth::new)
        .unwrap_or(QueueDepth::MIN)
}

/// Reason of a depth, for the log; `credits` as for [`depth()`].
pub struct DepthReason {
    /// Speed of the link.
    pub speed: LinkSpeed,
    /// As in [`depth()`].
    pub credits: Option<u32>,
}

impl fmt::Display for DepthReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { speed, credits } = self;
        let kib = PIECE / 1024;
        write!(
            f,
            "{speed} x {DELAY_US} us / {kib} KiB, within {LEAST}..{MOST}"
        )?;
        match credits {
            Some(credits) => write!(f, " and an eighth of credits={credits}"),
            None => Ok(()),
        }
    }
}

/// Returns the default number of messages that an NI may have in flight: in proportion to the depth.
pub fn ni_credits(depth: QueueDepth) -> u32 {
    u32::from(depth.get()).saturating_mul(PEERS)
}

/// Returns the gather elements per work request: those of the device, up to a limit. `wanted` is the parameter
/// `wrq_sge` if it was set, a lower bound; at least 1.
pub fn gather(device_max: u32, wanted: Option<u32>) -> u16 {
    let elements = match wanted {
        Some(wanted) => u16::try_from(wanted)
            .unwrap_or(GATHER_MAX)
            .clamp(GATHER_LEAST, GATHER_MAX),
        None => GATHER,
    };
    let device_max = u16::try_from(device_max).unwrap_or(u16::MAX);
    device_max.min(elements).max(1)
}

#[cfg(any(test, ro2iblnd_kunit))]
#[cfg_attr(ro2iblnd_kunit, ::kernel::macros::kunit_tests(ro2ib_link_speed))]
mod tests {
    use super::*;

    fn at(gbps: u32) -> LinkSpeed {
        LinkSpeed::from_mbps(gbps.saturating_mul(1000))
    }

    /// Tests the table of Documentation/parameters.md.
    #[test]
    fn depths_match_the_document() {
        for (gbps, wanted) in [
            (1, 8),
            (10, 8),
            (25, 8),
            (40, 16),
            (50, 16),
            (56, 32),
            (100, 32),
            (200, 32),
            (400, 32),
            (800, 32),
        ] {
            assert_eq!(depth(at(gbps), None).wire(), wanted);
        }
        // 1x SDR: the speed that soft-RoCE reports for a link without a known speed.
        assert_eq!(depth(LinkSpeed::of_port(1, 1), None).wire(), 8);
        assert_eq!(depth(LinkSpeed::default(), None).wire(), 8);
        assert_eq!(ni_credits(depth(at(10), None)), 256);
        assert_eq!(ni_credits(depth(at(100), None)), 1024);
    }

    #[test]
    fn the_credits_of_an_ni_bound_the_depth() {
        for (credits, wanted) in [
            (1, 1),
            (7, 7),
            (8, 8),
            (64, 8),
            (128, 16),
            (255, 31),
            (256, 32),
            (4096, 32),
        ] {
            assert_eq!(depth(at(400), Some(credits)).wire(), wanted);
        }
        assert_eq!(depth(at(400), Some(0)).wire(), 1);
    }

    #[test]
    fn ports_say_how_fast_they_are() {
        // Speed and width as the InfiniBand specification numbers them, and the product.
        for (speed, width, mbps) in [
            (1, 1, 2_500),
            (4, 2, 40_000),
            (8, 2, 40_000),
            (16, 2, 56_000),
            (32, 1, 25_000),
            (32, 2, 100_000),
            (64, 2, 200_000),
            (64, 16, 100_000),
            (128, 2, 400_000),
            (256, 2, 800_000),
            (1, 8, 30_000),
            (4, 4, 80_000),
        ] {
            assert_eq!(LinkSpeed::of_port(speed, width).mbps(), mbps);
        }
        for (speed, width) in [
            (0, 2),
            (32, 0),
            (3, 2),
            (512, 2),
            (32, 3),
            (u32::MAX, u32::MAX),
        ] {
            assert_eq!(LinkSpeed::of_port(speed, width), LinkSpeed::default());
        }
    }

    #[test]
    fn more_speed_is_never_less_depth() {
        let mut before = 0;
        for mbps in (0..2_000_000).step_by(500) {
            let d = depth(LinkSpeed::from_mbps(mbps), None).get();
            assert!(d >= before && (LEAST..=MOST).contains(&d) && d.is_power_of_two());
            // Messages in flight while a credit is away have their credits, up to the largest default.
            let messages = LinkSpeed::from_mbps(mbps).messages();
            assert!(u32::from(d) >= messages.min(u32::from(MOST)));
            before = d;
        }
        assert_eq!(before, MOST);
        assert_eq!(depth(LinkSpeed::from_mbps(u32::MAX), None).get(), MOST);
    }

    #[test]
    fn gather_elements_are_bounded() {
        for (device, elements) in [(0, 1), (6, 6), (20, 20), (30, 30), (64, 30)] {
            assert_eq!(gather(device, None), elements);
        }
        // A configured number is a lower bound.
        assert_eq!(gather(32, Some(2)), 16);
        assert_eq!(gather(6, Some(2)), 6);
        assert_eq!(gather(32, Some(32)), 32);
        assert_eq!(gather(0, Some(0)), 1);
        assert_eq!(gather(u32::MAX, Some(u32::MAX)), GATHER_MAX);
    }
}
