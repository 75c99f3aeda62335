// SPDX-License-Identifier: GPL-2.0

//! Close log in debugfs: ends of connections, rejects, and how often each cause occurred.

use kernel::{
    fmt,
    prelude::*,
    sync::Arc, //
};

use crate::{
    lnd::stats::close_log::{
        self,
        CloseStats,
        Totals, //
    },
    proto::{
        cause::NAMES as CAUSES,
        nid::Nid,
        reject_cause::NAMES as REFUSALS, //
    },
    rdma::debugfs::Show, //
};

/// Close log of an NI, or of requests for none of the NIs.
pub(crate) struct CloseLogFile {
    /// NID of the NI; `None` for requests for none of the NIs.
    nid: Option<Nid>,
    close_stats: Arc<CloseStats>,
}

impl CloseLogFile {
    /// Creates the file of `nid`; `None`: of requests for none of the NIs. May sleep.
    pub(crate) fn new(nid: Option<Nid>, seen: &Arc<CloseStats>) -> Result<Arc<Self>> {
        let seen = seen.clone();
        Ok(Arc::new(
            Self {
                nid,
                close_stats: seen,
            },
            GFP_KERNEL,
        )?)
    }
}

impl Show for CloseLogFile {
    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show_ends(self, f)
    }
}

/// Prints how often each cause ended a connection, an attempt or a message, and each reject.
pub(crate) fn show_tally(
    seen: &CloseStats,
    nid: Option<Nid>,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    if nid.is_some() {
        show_row(seen, nid, "closed", &CAUSES, |tally| tally.closed, f)?;
        show_row(seen, nid, "failed", &CAUSES, |tally| tally.failed, f)?;
        show_row(seen, nid, "messages", &CAUSES, |tally| tally.messages, f)?;
    }
    show_row(seen, nid, "refused", &REFUSALS, |tally| tally.refused, f)?;
    if nid.is_some() {
        let others = [
            "NoMemory",
            "GpuMapped",
            "GpuRefused",
            "NoRegion",
            "RejectedNoReason",
            "Resent",
            "NotForLNet",
        ];
        let counts = |tally: &Totals| {
            [
                tally.no_memory,
                tally.gpu_mapped,
                tally.gpu_refused,
                tally.no_region,
                tally.unsaid,
                tally.sent_again,
                tally.not_for_lnet,
            ]
        };
        show_row(seen, nid, "other", &others, counts, f)?;
    }
    Ok(())
}

/// Prints a line of counters. Copies only these: all counters together are too large for the stack.
#[inline(never)]
fn show_row<const N: usize>(
    seen: &CloseStats,
    nid: Option<Nid>,
    what: &str,
    names: &[&str; N],
    of: fn(&Totals) -> [u64; N],
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    show_causes(nid, what, names, &seen.counters(of), f)?;
    writeln!(f)
}

fn show_causes(
    nid: Option<Nid>,
    of: &str,
    names: &[&str],
    counts: &[u64],
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    match nid {
        Some(nid) => write!(f, "causes={}", core::format_args!("{nid}"))?,
        None => write!(f, "causes=none")?,
    }
    write!(f, " of={of}")?;
    for (name, n) in names.iter().zip(counts) {
        write!(f, " {name}={n}")?;
    }
    Ok(())
}

fn show_ends(by: &CloseLogFile, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let (ends, refusals) = by.close_stats.written();
    let now = close_log::now_ms();
    match by.nid {
        Some(nid) => write!(f, "closes={}", core::format_args!("{nid}"))?,
        None => write!(f, "closes=none")?,
    }
    writeln!(
        f,
        " ends={ends} refusals={refusals} now={}.{:03}",
        now / 1000,
        now % 1000
    )?;
    if by.nid.is_none() {
        show_tally(&by.close_stats, None, f)?;
    }
    let mut result = Ok(());
    by.close_stats.for_each(|number, event| {
        if result.is_err() {
            return;
        }
        // The kernel's printing uses its own formatter; `proto` implements the one of `core`.
        let (event_is, by) = (event.what, event.by);
        result = write!(
            f,
            "event={} number={number} time={}.{:03} peer=",
            core::format_args!("{event_is}"),
            event.at_ms / 1000,
            event.at_ms % 1000
        );
        if result.is_ok() {
            result = match event.peer {
                Some(peer) => write!(f, "{}", core::format_args!("{peer}")),
                None => f.write_str("unknown"),
            };
        }
        if result.is_ok() {
            result = write!(
                f,
                " role={} by={} cause={} detail={} count={} requested=",
                if event.active { "active" } else { "passive" },
                core::format_args!("{by}"),
                event.why,
                event.detail,
                event.times,
            );
        }
        if result.is_ok() {
            result = match event.asked {
                Some(asked) => writeln!(f, "{}", core::format_args!("{asked}")),
                None => writeln!(f, "-"),
            };
        }
    });
    result
}
