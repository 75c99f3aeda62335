// SPDX-License-Identifier: GPL-2.0

//! How long messages of an NI are where: the histograms of [`crate::policy::latency`], kept for each CPU.
//!
//! Always on. To note a time is one call that adds to two numbers of the CPU it runs on; nothing is shared
//! but by those who read. Any context, no lock.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use crate::{
    policy::latency::{
        self,
        Stage,
        TxKind,
        BUCKETS,
        ROWS,
        SUM, //
    },
    rdma::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        percpu::PercpuHistogram, //
    }, //
};

/// The histograms of an NI: 12.5 KiB on each CPU.
pub(crate) struct LatencyStats {
    numbers: PercpuHistogram<ROWS>,
    /// Connections that were given a number.
    conns: Atomic<u32>,
}

/// One histogram.
pub(crate) struct Histogram {
    /// How often, by bucket.
    pub(crate) counts: [u64; BUCKETS],
    /// All of it together, in nanoseconds.
    pub(crate) sum_ns: u64,
}

impl LatencyStats {
    /// Nothing noted yet. May sleep.
    pub(crate) fn new() -> Result<Arc<Self>> {
        let times = Self {
            numbers: PercpuHistogram::new()?,
            conns: Atomic::new(0),
        };
        Ok(Arc::new(times, GFP_KERNEL)?)
    }

    /// The number of a new connection: 1 is the first of the NI.
    pub(crate) fn next_conn(&self) -> u32 {
        self.conns.fetch_add(1, Relaxed).wrapping_add(1)
    }

    /// A message was that long in a stage.
    #[inline(always)]
    pub(crate) fn note(&self, stage: Stage, kind: TxKind, ns: u64) {
        // To measure what it costs: `make no-times`.
        if cfg!(ro2iblnd_no_times) {
            return;
        }
        if let Some(row) = latency::row(stage, kind) {
            self.numbers.record(row, ns);
        }
    }

    /// The histogram number `row`, while others note.
    pub(crate) fn histogram(&self, row: usize) -> Histogram {
        let mut counts = [0u64; BUCKETS];
        for (bucket, count) in counts.iter_mut().enumerate() {
            let words = latency::words(bucket).map(|word| self.numbers.sum(row, word));
            *count = words.fold(0, u64::wrapping_add);
        }
        Histogram {
            counts,
            sum_ns: self.numbers.sum(row, SUM),
        }
    }
}
