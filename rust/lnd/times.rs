// SPDX-License-Identifier: GPL-2.0

//! How long messages of an NI are where: the histograms of [`crate::proto::times`], kept for each CPU.
//!
//! Always on. To note a time is one call that adds to two numbers of the CPU it runs on; nothing is shared
//! but by those who read. Any context, no lock.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use crate::{
    proto::times::{
        self,
        Kind,
        Stage,
        BUCKETS,
        ROWS,
        SUM,
        WORDS, //
    },
    rdma::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        percpu::PerCpu, //
    }, //
};

/// Numbers on each CPU: 6.5 KiB of them.
const NUMBERS: usize = ROWS * WORDS;

/// The histograms of an NI.
pub(crate) struct Times {
    numbers: PerCpu<NUMBERS>,
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

impl Times {
    /// Nothing noted yet. May sleep.
    pub(crate) fn new() -> Result<Arc<Self>> {
        let times = Self {
            numbers: PerCpu::new()?,
            conns: Atomic::new(0),
        };
        Ok(Arc::new(times, GFP_KERNEL)?)
    }

    /// The number of a new connection: 1 is the first of the NI.
    pub(super) fn next_conn(&self) -> u32 {
        self.conns.fetch_add(1, Relaxed).wrapping_add(1)
    }

    /// A message was that long in a stage.
    #[inline(always)]
    pub(super) fn note(&self, stage: Stage, kind: Kind, ns: u64) {
        // To measure what it costs: `make no-times`.
        if cfg!(ro2iblnd_no_times) {
            return;
        }
        if let Some(row) = times::row(stage, kind) {
            let first = row.wrapping_mul(WORDS);
            let one = first.wrapping_add(times::bucket(ns));
            self.numbers.count(one, first.wrapping_add(SUM), ns);
        }
    }

    /// The histogram number `row`, while others note.
    pub(super) fn histogram(&self, row: usize) -> Histogram {
        let first = row.wrapping_mul(WORDS);
        let mut counts = [0; BUCKETS];
        for (bucket, count) in counts.iter_mut().enumerate() {
            *count = self.numbers.sum(first.wrapping_add(bucket));
        }
        Histogram {
            counts,
            sum_ns: self.numbers.sum(first.wrapping_add(SUM)),
        }
    }
}
