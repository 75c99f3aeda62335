// SPDX-License-Identifier: GPL-2.0

//! Sizes of the queues of a connection, and of the parts of its work requests.
//!
//! The default depth is bandwidth times delay, in pieces of [`PIECE`] bytes; Documentation/parameters.md has the
//! reasons for the numbers. Both ends use the smaller depth, so this depth is only an offer.
//!
//! The send queue has room for what the credits allow with small transfers (Documentation/flow-control.md), and a power
//! of two as size, because adapters and rxe round it up anyway. WRITEs of large transfers use the free slots, in parts
//! ([`crate::proto::tx_table`]). With room for all of them the send queue was most of the memory of an idle connection.
//!
//! Most providers tell with a new queue pair how many bytes a work request of a send carries inline. Others (irdma,
//! erdma, qedr) refuse the queue pair with `EINVAL` if the driver asks for more than they can, and do not tell the
//! limit. `EINVAL` may have another cause. So a size is remembered for the device only if the queue pair could be made
//! with it and not with a larger one.
//!
//! Context: any; no state.

use core::fmt;

use crate::proto::{
    constants::QueueDepth,
    tx_table::NOOP_SLOTS, //
};

/// Microseconds that a credit is away: the time of the three messages of a PUT through the fabric, and of two wake-ups
/// of workers. Assumed.
pub const DELAY_US: u32 = 40;

/// Size of a counted message in bytes. Smaller messages keep a processor busy long before they fill the link, larger
/// ones need fewer credits.
pub const PIECE: u32 = 16 << 10;

/// Depth of peers without other settings: also the smallest that LNet gets.
pub const DEPTH_LEAST: u32 = 8;

/// Largest default: each connection pays for it, used or not.
pub const DEPTH_MOST: u32 = 32;

/// Number of an NI's peers that can use all their credits at the same time, as with ko2iblnd's defaults.
const PEERS: u32 = 32;

/// Smallest such number if the administrator set the credits of the NI.
const PEERS_LEAST: u32 = 8;

/// Smallest number of gather elements of a WRITE that can be configured, if the device has them.
const GATHER_LEAST: u32 = 16;

/// Gather elements of a WRITE unless the administrator sets the number: as many as mlx5 has
/// (tests/adapter_queue_memory.rs).
const GATHER: u32 = 30;

/// Largest number of gather elements that can be configured.
const GATHER_MAX: u32 = 128;

/// Returns the speed of a port in Mb/s, 0 if it is unknown, by the codes of its lane speed and of its number of lanes
/// (InfiniBand, PortInfo).
pub fn port_mbps(speed: u32, width: u32) -> u32 {
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
    lane.saturating_mul(lanes)
}

/// Returns the number of messages in flight while a credit is away.
fn messages(mbps: u32) -> u32 {
    // Mb/s times us is bits.
    let bits = u64::from(mbps).saturating_mul(u64::from(DELAY_US));
    let bytes = bits.div_ceil(8);
    u32::try_from(bytes.div_ceil(u64::from(PIECE))).unwrap_or(u32::MAX)
}

/// Returns the depth to offer on a link of that speed, which is 0 if it is unknown. `credits`: those of the NI, if the
/// administrator set them; then at least eight peers can use all of theirs.
///
/// The depth is a power of two, so that there are few values: a peer that asks for more than the other one has is
/// rejected once, and asks again.
pub fn default_depth(mbps: u32, credits: Option<u32>) -> QueueDepth {
    let wanted = messages(mbps).min(DEPTH_MOST).next_power_of_two();
    let room = credits.map_or(DEPTH_MOST, |credits| credits / PEERS_LEAST);
    let least = DEPTH_LEAST.min(credits.unwrap_or(u32::MAX)).max(1);
    let depth = wanted.min(room).min(DEPTH_MOST).max(least);
    u16::try_from(depth)
        .ok()
        .and_then(QueueDepth::new)
        .unwrap_or(QueueDepth::MIN)
}

/// Reason of a depth, for the log: the arguments of [`default_depth()`].
pub struct DepthReason(pub u32, pub Option<u32>);

impl fmt::Display for DepthReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(mbps, credits) = self;
        match mbps {
            0 => f.write_str("unknown speed")?,
            mbps if mbps % 1000 == 0 => write!(f, "{} Gb/s", mbps / 1000)?,
            mbps => write!(f, "{}.{} Gb/s", mbps / 1000, mbps % 1000 / 100)?,
        }
        let kib = PIECE / 1024;
        write!(
            f,
            " x {DELAY_US} us / {kib} KiB, within {DEPTH_LEAST}..{DEPTH_MOST}"
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
    let elements = wanted.map_or(GATHER, |n| n.clamp(GATHER_LEAST, GATHER_MAX));
    u16::try_from(device_max.min(elements).max(1)).unwrap_or(1)
}

/// Reserved places of a queue: for the drain markers, and the one that a ring leaves empty.
const OTHERS: u16 = 3;

/// Places of the smallest queue: chains go in parts of some length at any depth.
const LEAST: u16 = 64;

/// Returns the slots of the send queue, within the limit of the device. A registration takes `reg_wrs` of them.
pub fn send_queue(depth: QueueDepth, reg_wrs: u16, device_max: u32) -> u16 {
    let d = u16::from(depth.get());
    let sends = d.saturating_mul(3).saturating_add(NOOP_SLOTS);
    let small = d.saturating_mul(reg_wrs.saturating_add(2));
    let all = sends.saturating_add(small).saturating_add(OTHERS);
    let queue = all.max(LEAST).checked_next_power_of_two();
    let device = u16::try_from(device_max)
        .unwrap_or(u16::MAX)
        // Drain markers have slots of their own.
        .saturating_sub(2);
    queue.unwrap_or(u16::MAX).saturating_sub(OTHERS).min(device)
}

/// Returns the greatest depth up to `wanted` whose receives fit into a queue of the device, and for which there are
/// enough memory regions, so that one connection alone never lacks one if no more credits than that are given out.
pub fn deepest(wanted: QueueDepth, device_max: u32, max_regions: u32) -> QueueDepth {
    // The drain marker has a slot of its own.
    let receives = u16::try_from(device_max)
        .unwrap_or(u16::MAX)
        .saturating_sub(1);
    let room = receives.saturating_sub(QueueDepth::MIN.rx_buffers()) / 2;
    let most = QueueDepth::new(room.saturating_add(1)).unwrap_or(QueueDepth::MAX);
    let most_regions = u16::try_from(max_regions).unwrap_or(u16::MAX) / REGIONS;
    let covered = QueueDepth::new(most_regions.max(1)).unwrap_or(QueueDepth::MAX);
    wanted.min(most).min(covered)
}

/// Memory regions of a connection for each of its credits.
const REGIONS: u16 = 3;

/// Returns the number of memory regions: one for each sink of this node, at most `from_lnet`, one for each of the
/// peer's requests, and the same number again for regions whose invalidation has not completed when the peer already
/// has its credit back.
pub fn memory_regions(depth: QueueDepth, from_lnet: QueueDepth) -> u16 {
    u16::from(depth.get())
        .saturating_mul(2)
        .saturating_add(u16::from(from_lnet.get()))
}

/// Returns the depth to try next if the device has no room for a queue pair of `depth`: a quarter less. `None` below 1.
///
/// The next connection begins with the full depth again, because the device may have had no queue pair of any depth for
/// a moment.
pub fn shallower(depth: QueueDepth) -> Option<QueueDepth> {
    let depth = depth.wire();
    QueueDepth::new(depth.saturating_sub(depth.div_ceil(4)))
}

/// Returns the number of receive buffers beyond those of the protocol, which replace buffers that LNet keeps.
pub fn spare_buffers(depth: QueueDepth) -> usize {
    usize::from(depth.get().clamp(4, 32))
}

/// Inline size of a send in bytes that a search begins with on a device of which nothing is known: all messages except
/// IMMEDIATEs with payload.
pub const INLINE_MOST: u16 = 160;

/// Returns the inline size to try next, because the device refused the queue pair with `size`. `None`: the size is not
/// the cause. 96 bytes are answers and NOOPs, as irdma (101) and erdma (96) can; 48 are NOOPs, as irdma's first
/// generation (48) can.
pub fn smaller_inline(size: u16) -> Option<u16> {
    [96, 48, 0].into_iter().find(|smaller| *smaller < size)
}

#[cfg(any(test, ro2iblnd_kunit))]
#[cfg_attr(ro2iblnd_kunit, ::kernel::macros::kunit_tests(ro2ib_queue_sizes))]
mod tests {
    use super::*;
    use crate::proto::tx_table::PART;

    #[test]
    fn no_depth_is_tried_that_the_device_cannot_have() {
        for max in 0..1200 {
            let got = deepest(QueueDepth::MAX, max, u32::MAX);
            let takes = |d: QueueDepth| u32::from(d.rx_buffers()).saturating_add(1) <= max;
            assert!(takes(got) || got == QueueDepth::MIN);
            let more = QueueDepth::new(u16::from(got.get()).saturating_add(1));
            assert!(more.is_none_or(|more| !takes(more)));
            assert_eq!(deepest(QueueDepth::MIN, max, u32::MAX), QueueDepth::MIN);
        }
    }

    #[test]
    fn no_depth_is_tried_that_there_are_no_regions_for() {
        for regions in 0..1000 {
            let got = deepest(QueueDepth::MAX, u32::MAX, regions);
            let takes = |d: QueueDepth| u32::from(memory_regions(d, d)) <= regions;
            assert!(takes(got) || got == QueueDepth::MIN);
            let more = QueueDepth::new(u16::from(got.get()).saturating_add(1));
            assert!(more.is_none_or(|more| !takes(more)));
        }
    }

    #[test]
    fn send_queue_fits_all_that_credits_allow() {
        for d in 1..=255 {
            for reg_wrs in 1..=2 {
                let sq = send_queue(depth(d), reg_wrs, 32768);
                // Messages, and small transfers both ways.
                let each = reg_wrs.saturating_add(5);
                let small = d.saturating_mul(each).saturating_add(NOOP_SLOTS);
                assert!(sq >= small && sq <= 32766);
                // The room that costs no more memory is used.
                let places = sq.saturating_add(OTHERS);
                assert!(places.is_power_of_two());
                assert!(places == LEAST || small > places.div_euclid(2).saturating_sub(OTHERS));
                assert!(send_queue(depth(d), reg_wrs, 512) <= 510);
                // The parts of a chain fit into any queue.
                assert!(sq >= PART.saturating_add(NOOP_SLOTS));
            }
        }
        // The defaults of rxe, and the deepest that ko2iblnd has in use.
        assert_eq!(send_queue(depth(8), 2, u32::MAX), 61);
        assert_eq!(send_queue(depth(128), 2, u32::MAX), 1021);
    }

    fn depth(d: u16) -> QueueDepth {
        QueueDepth::new(d).unwrap_or(QueueDepth::MIN)
    }

    #[test]
    fn depth_is_at_most_a_quarter_below_the_room_of_the_device() {
        for wanted in 1..=255 {
            let depths = || core::iter::successors(Some(depth(wanted)), |now| shallower(*now));
            assert!(depths().count() <= 17);
            for limit in 1..=wanted {
                let found = depths().map(QueueDepth::wire).find(|found| *found <= limit);
                let least = limit.saturating_sub(limit.div_ceil(4));
                assert!(found.is_some_and(|found| found >= least));
            }
        }
    }

    fn at(gbps: u32) -> u32 {
        gbps.saturating_mul(1000)
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
            assert_eq!(default_depth(at(gbps), None).wire(), wanted);
        }
        // 1x SDR: the speed that soft-RoCE reports for a link without a known speed.
        assert_eq!(default_depth(port_mbps(1, 1), None).wire(), 8);
        assert_eq!(default_depth(0, None).wire(), 8);
        assert_eq!(ni_credits(default_depth(at(10), None)), 256);
        assert_eq!(ni_credits(default_depth(at(100), None)), 1024);
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
            assert_eq!(default_depth(at(400), Some(credits)).wire(), wanted);
        }
        assert_eq!(default_depth(at(400), Some(0)).wire(), 1);
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
            assert_eq!(port_mbps(speed, width), mbps);
        }
        for (speed, width) in [
            (0, 2),
            (32, 0),
            (3, 2),
            (512, 2),
            (32, 3),
            (u32::MAX, u32::MAX),
        ] {
            assert_eq!(port_mbps(speed, width), 0);
        }
    }

    #[test]
    fn more_speed_is_never_less_depth() {
        let mut before = 0;
        for mbps in (0..2_000_000).step_by(500) {
            let d = u32::from(default_depth(mbps, None).get());
            assert!(d >= before && (DEPTH_LEAST..=DEPTH_MOST).contains(&d) && d.is_power_of_two());
            // Messages in flight while a credit is away have their credits, up to the largest default.
            let messages = messages(mbps);
            assert!(d >= messages.min(DEPTH_MOST));
            before = d;
        }
        assert_eq!(before, DEPTH_MOST);
        let deepest = default_depth(u32::MAX, None).get();
        assert_eq!(u32::from(deepest), DEPTH_MOST);
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
        assert_eq!(u32::from(gather(u32::MAX, Some(u32::MAX))), GATHER_MAX);
    }

    /// Returns what the search ends with on a device that refuses more than `most`, and how many were refused.
    fn found(first: u16, most: u16) -> (u16, u32) {
        let (mut size, mut refused) = (first, 0u32);
        while size > most {
            refused = refused.saturating_add(1);
            size = smaller_inline(size).unwrap_or(0);
        }
        (size, refused)
    }

    #[test]
    fn a_device_is_asked_for_less_until_it_can() {
        let most = INLINE_MOST;
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
    fn test_search_for_the_inline_size_ends_after_an_unrelated_error() {
        for first in 0..=INLINE_MOST {
            let sizes = core::iter::successors(Some(first), |size| smaller_inline(*size));
            assert_eq!((sizes.clone().last(), sizes.count() <= 4), (Some(0), true));
        }
    }
}
