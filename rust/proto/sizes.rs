// SPDX-License-Identifier: GPL-2.0

//! How large the queues of a connection are.
//!
//! With depth `d`, `F` fragments at most and `E` gather elements per WRITE, traffic as the credits allow it
//! needs `3d + 2` SENDs (requests, answers, PUT_DONEs, NOOPs), `d * ceil(F / E)` WRITEs, and `d` each of
//! REG_MR and LOCAL_INV. Send queue slots are counted exactly, so a shorter queue only means waiting; but the
//! longest single chain must fit.

use super::params::QueueDepth;
use super::params::FRAGS_MAX;
use super::tx::NOOP_SLOTS;

/// Gather elements a WRITE gets unless asked for more; more make every slot of the send queue larger.
const GATHER: u16 = 16;

/// Most gather elements a WRITE can be asked to have.
const GATHER_MAX: u16 = 128;

/// Gather elements per work request: what the device can, within reason. `wanted` is the parameter
/// `wrq_sge`, a lower bound; at least 1.
pub fn gather_elements(device_max: u32, wanted: u32) -> u16 {
    let wanted = u16::try_from(wanted).unwrap_or(GATHER_MAX);
    let device_max = u16::try_from(device_max).unwrap_or(u16::MAX);
    device_max.min(wanted.clamp(GATHER, GATHER_MAX)).max(1)
}

/// The longest chain of one transfer: a WRITE for every piece of a sink of [`FRAGS_MAX`] pieces, one more for
/// every `gather` ranges of a source as scattered, and the message.
pub fn longest_chain(gather: u16) -> u16 {
    let ranges = FRAGS_MAX.saturating_mul(2);
    let full = ranges.checked_div(gather).unwrap_or(ranges);
    FRAGS_MAX.saturating_add(full).saturating_add(1)
}

/// Slots of the send queue, within what the device can.
pub fn send_queue(depth: QueueDepth, gather: u16, device_max: u32) -> u16 {
    let d = u16::from(depth.get());
    let writes = FRAGS_MAX.div_ceil(gather.max(1));
    let sends = d.saturating_mul(3).saturating_add(NOOP_SLOTS);
    let chains = d.saturating_mul(writes.saturating_add(2));
    let least = longest_chain(gather).saturating_add(NOOP_SLOTS);
    let device = u16::try_from(device_max)
        .unwrap_or(u16::MAX)
        // Drain markers have slots of their own.
        .saturating_sub(2);
    sends.saturating_add(chains).max(least).min(device)
}

/// Memory regions: one for each sink of ours, one for each of the peer's requests, and as many again whose
/// invalidation has not completed when the peer already has its credit back.
pub fn memory_regions(depth: QueueDepth, peer_credits: QueueDepth) -> u16 {
    u16::from(depth.get())
        .saturating_mul(2)
        .saturating_add(u16::from(peer_credits.get()))
}

/// Receive buffers beyond those that the protocol asks for, to be posted in place of those that LNet keeps.
pub fn spare_buffers(depth: QueueDepth) -> usize {
    usize::from(depth.get().clamp(4, 32))
}

#[cfg(any(test, ro2iblnd_kunit))]
#[cfg_attr(ro2iblnd_kunit, ::kernel::macros::kunit_tests(ro2iblnd_sizes))]
mod tests {
    use super::*;

    #[test]
    fn the_longest_chain_always_fits() {
        for d in 1..=255 {
            for gather in 1..=32 {
                let depth = QueueDepth::new(d).unwrap_or(QueueDepth::MIN);
                let sq = send_queue(depth, gather, 32768);
                assert!(sq >= longest_chain(gather));
                assert!(sq <= 32766);
                assert!(send_queue(depth, gather, 512) <= 510);
            }
        }
    }

    #[test]
    fn gather_elements_are_bounded() {
        assert_eq!(gather_elements(32, 2), 16);
        assert_eq!(gather_elements(6, 2), 6);
        assert_eq!(gather_elements(32, 30), 30);
        assert_eq!(gather_elements(0, 0), 1);
        assert_eq!(gather_elements(u32::MAX, u32::MAX), GATHER_MAX);
    }
}
