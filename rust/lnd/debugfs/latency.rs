// SPDX-License-Identifier: GPL-2.0

//! Latency histograms of an NI in debugfs: a line for each that is not empty.
//!
//! Documented in Documentation/tracing.md.

use kernel::{
    fmt,
    prelude::*,
    sync::Arc, //
};

use crate::{
    lnd::stats::latency::{
        Histogram,
        LatencyStats, //
    },
    policy::latency::{
        limit,
        quantile,
        Stage,
        TxKind,
        ROW_NAMES, //
    },
    proto::nid::Nid,
    rdma::debugfs::Show, //
};

/// Latency histograms of one NI.
pub(crate) struct LatencyFile {
    nid: Nid,
    times: Arc<LatencyStats>,
}

impl LatencyFile {
    /// Creates the file of `nid`. May sleep.
    pub(crate) fn new(nid: Nid, times: &Arc<LatencyStats>) -> Result<Arc<Self>> {
        let times = times.clone();
        Ok(Arc::new(Self { nid, times }, GFP_KERNEL)?)
    }
}

impl Show for LatencyFile {
    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (row, (stage, kind)) in ROW_NAMES.iter().enumerate() {
            let histogram = self.times.histogram(row);
            show_histogram(self.nid, *stage, *kind, &histogram, f)?;
        }
        Ok(())
    }
}

/// Prints a histogram. `lt_N` counts messages that took less than N nanoseconds and at least half of N; the first
/// bucket has no lower limit.
fn show_histogram(
    nid: Nid,
    stage: Stage,
    kind: TxKind,
    histogram: &Histogram,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    let Histogram { counts, sum_ns } = histogram;
    let n = counts.iter().fold(0u64, |n, c| n.wrapping_add(*c));
    if n == 0 {
        return Ok(());
    }
    write!(
        f,
        "latency={} stage={} op={} n={n} sum_ns={sum_ns}",
        core::format_args!("{nid}"),
        stage.name(),
        kind.name(),
    )?;
    for (key, of_1000) in [("p50_ns", 500), ("p99_ns", 990)] {
        // The last bucket has no upper limit: its lower limit is printed.
        let ns = quantile(counts, of_1000).and_then(|b| limit(b).or(limit(b.saturating_sub(1))));
        write!(f, " {key}={}", ns.unwrap_or(0))?;
    }
    for (bucket, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
        match limit(bucket) {
            Some(ns) => write!(f, " lt_{ns}={count}")?,
            None => write!(f, " more={count}")?,
        }
    }
    writeln!(f)
}
