// SPDX-License-Identifier: GPL-2.0

//! Latency of messages of an NI by stage: the histograms of [`crate::policy::latency`], kept for each CPU.
//!
//! Always on. Recording a time is one call that adds to two numbers of the current CPU; only readers share them between
//! CPUs. Context: any; no lock.

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
        percpu_histogram::PercpuHistogram, //
    }, //
};

/// Histograms of an NI: 10 KiB on each CPU.
pub(crate) struct LatencyStats {
    numbers: PercpuHistogram<ROWS>,
    /// Number of connections that were given a number.
    conns: Atomic<u32>,
}

/// Histogram of one row.
pub(crate) struct Histogram {
    /// Number of messages by bucket.
    pub(crate) counts: [u64; BUCKETS],
    /// Sum of all times, in nanoseconds.
    pub(crate) sum_ns: u64,
}

impl LatencyStats {
    /// Creates empty histograms. May sleep.
    pub(crate) fn new() -> Result<Arc<Self>> {
        let times = Self {
            numbers: PercpuHistogram::new()?,
            conns: Atomic::new(0),
        };
        Ok(Arc::new(times, GFP_KERNEL)?)
    }

    /// Returns the number of a new connection: 1 is the first of the NI.
    pub(crate) fn next_conn(&self) -> u32 {
        self.conns.fetch_add(1, Relaxed).wrapping_add(1)
    }

    /// Records that a message was in a stage for `ns` nanoseconds.
    #[inline(always)]
    pub(crate) fn record(&self, stage: Stage, kind: TxKind, ns: u64) {
        // For a measurement of its cost: `make no-times`.
        if cfg!(ro2iblnd_no_times) {
            return;
        }
        if let Some(row) = latency::row(stage, kind) {
            self.numbers.record(row, ns);
        }
    }

    /// Returns the histogram of row `row`; recording may go on meanwhile.
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
