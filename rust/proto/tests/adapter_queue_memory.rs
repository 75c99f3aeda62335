// SPDX-License-Identifier: GPL-2.0

//! The memory of a connection's queues on adapters, by the formulas of their kernel drivers in Linux
//! 7.3 (drivers/infiniband), and the table of it in Documentation/parameters.md.

use ro2iblnd_proto::{
    constants::QueueDepth,
    policy::queue_sizes, //
};

/// Slots for the markers that drain a queue (`DRAIN_WRS` in rust/rdma/drain.rs).
const DRAIN_WRS: u64 = 2;

/// Bytes of a page and of a message buffer.
const BUFFER: u64 = 4096;

/// The capabilities of a queue pair.
#[derive(Clone, Copy)]
struct Caps {
    wrs: u64,
    sges: u64,
    inline: u64,
}

impl Caps {
    /// Returns those of a connection of `depth` on a device that gathers `max_sge` elements and puts `inline` bytes
    /// inline.
    fn new(depth: u16, max_sge: u32, wrq_sge: Option<u32>, inline: u64) -> Self {
        let depth = QueueDepth::new(depth).expect("a depth");
        Self {
            wrs: u64::from(queue_sizes::send_queue(depth, 1, 32768)) + DRAIN_WRS,
            sges: queue_sizes::gather(max_sge, wrq_sge).into(),
            inline,
        }
    }
}

/// Returns the bytes of a send queue of mlx5: `calc_send_wqe()`, `calc_sq_size()` of hw/mlx5/qp.c.
fn mlx5(caps: Caps) -> u64 {
    // A control segment, and the larger of the segments for RDMA and for a memory key.
    let overhead = 16 + u64::max(16 + 16, 48 + 64 + 64 / 16);
    let inline = match caps.inline {
        0 => 0,
        bytes => overhead + 4 + bytes,
    };
    let entry = inline.max(overhead + 16 * caps.sges);
    (caps.wrs * entry.next_multiple_of(64)).next_power_of_two()
}

/// Returns the bytes of a send queue of mlx4: `set_kernel_sq_size()` of hw/mlx4/qp.c.
fn mlx4(caps: Caps) -> u64 {
    let overhead = 16 + 32 + 16;
    let entry = (u64::max(16 * caps.sges, caps.inline + 4) + overhead).next_power_of_two();
    let spare = 2048 / entry + 1;
    (caps.wrs + spare).next_power_of_two() * entry
}

/// Returns the bytes of a send queue of irdma, second generation: `irdma_get_wqe_shift()`,
/// `irdma_get_sqdepth()` of hw/irdma/uk.c.
fn irdma(caps: Caps) -> u64 {
    // One more for immediate data.
    let shift = match (caps.sges + 1, caps.inline) {
        (..=1, ..=8) => 0,
        (..=3, ..=39) => 1,
        (..=7, ..=101) => 2,
        _ => 3,
    };
    ((caps.wrs << shift) + 258).next_power_of_two() * 32
}

/// Returns the bytes of a send queue of hns, HIP09: `set_ext_sge_param()`, `set_wqe_buf_attr()` of
/// hw/hns/hns_roce_qp.c. The driver refuses hns for another reason.
fn hns(caps: Caps) -> u64 {
    let entries = caps.wrs.next_power_of_two();
    let inline = match caps.inline.next_power_of_two() / 16 {
        ..=2 => 0,
        sges => sges,
    };
    let extended = caps.sges.saturating_sub(2).max(inline);
    let extended = match extended {
        0 => 0,
        sges => u64::max(entries * sges.next_power_of_two() * 16, BUFFER),
    };
    (entries * 64).next_multiple_of(BUFFER) + extended.next_multiple_of(BUFFER)
}

const KIB: u64 = 1024;

#[test]
fn send_queues_of_adapters() {
    let of = |depth, max_sge, inline| Caps::new(depth, max_sge, None, inline);
    // Bytes of the send queue at depths 8, 16, 32, 128.
    let table = [8, 16, 32, 128].map(|depth| {
        [
            mlx5(of(depth, 30, 160)),
            // It takes 160 bytes for the size of an entry, and then no inline data.
            mlx4(of(depth, 32, 160)),
            irdma(of(depth, 13, 96)),
            hns(of(depth, 64, 160)),
        ]
        .map(|bytes| bytes / KIB)
    });
    assert_eq!(
        table,
        [
            [64, 128, 32, 36],
            [128, 256, 64, 72],
            [256, 512, 128, 144],
            [1024, 2048, 512, 576],
        ]
    );
}

/// Checks the values of `wrq_sge` that the document names.
#[test]
fn fewer_gather_elements_halve_the_send_queue() {
    let of = |wrq_sge| Caps::new(8, 30, wrq_sge, 160);
    assert_eq!((mlx5(of(None)), mlx5(of(Some(23)))), (64 * KIB, 32 * KIB));
    assert_eq!(mlx5(of(Some(24))), 64 * KIB);
    assert_eq!(
        (mlx4(of(Some(28))), mlx4(of(Some(29)))),
        (64 * KIB, 128 * KIB)
    );
    // WRITEs for 1 MiB in pages of 4 KiB.
    let writes = |caps: Caps| 256u64.div_ceil(caps.sges);
    assert_eq!((writes(of(None)), writes(of(Some(23)))), (9, 12));
}

/// Checks the table of Documentation/parameters.md.
#[test]
fn the_document_has_these_numbers() {
    let document = include_str!("../../../Documentation/parameters.md");
    for depth in [8, 16, 32, 128] {
        let credits = QueueDepth::new(depth).expect("a depth");
        let spare = u64::try_from(queue_sizes::spare_buffers(credits)).expect("a few");
        let buffers = u64::from(credits.rx_buffers()) + spare;
        let receive = buffers * BUFFER / KIB;
        let caps = |max_sge, inline| Caps::new(depth, max_sge, None, inline);
        let queue = mlx5(caps(30, 160)) / KIB;
        let row = format!(
            "| {depth} | {buffers}, {receive} KiB | {queue} KiB | {} KiB | {} KiB | {:.1} GB |",
            mlx4(caps(32, 160)) / KIB,
            irdma(caps(13, 96)) / KIB,
            ((receive + queue) * KIB * 5000) as f64 / 1e9,
        );
        assert!(document.contains(&row), "{row}");
    }
}
