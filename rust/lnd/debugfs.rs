// SPDX-License-Identifier: GPL-2.0

//! Files in `/sys/kernel/debug/ro2iblnd/`. An NI has three, named by its NID: its state with lines for its counters,
//! each peer and each connection; its close log (`.closes`); its latency histograms (`.latency`). One more file has the
//! rejected requests for none of the NIs. All lines are `key=value`. New keys are only added, at the end of a line.
//! `lnetctl debug peer` prints the lines of a peer and its connections on the console.
//!
//! Documented in Documentation/reference.md and Documentation/tracing.md.

use kernel::{
    fmt,
    prelude::*,
    str::CString,
    sync::Arc, //
};

use super::{
    ni::Ni,
    peer::{
        Peer,
        Peers, //
    },
    stats::{
        close_log::{
            self,
            CloseStats,
            TABLES, //
        },
        conn_counters::SnapshotId, //
    }, //
};
use crate::{
    lnet::dk::console,
    policy::{
        close_log::EventKind,
        latency::{
            histograms,
            limit,
            name, //
        }, //
    },
    proto::nid::Nid,
    rdma::{
        atomic::Relaxed,
        debugfs::{
            Dir,
            File,
            Show,
            Shown, //
        }, //
    }, //
};

/// Files of an NI.
pub(crate) struct NiFiles {
    _state: File<Peers>,
    _closes: File<CloseStats>,
    _latency: File<Ni>,
}

impl NiFiles {
    /// Makes the files. May sleep.
    pub(crate) fn new(dir: &Dir, peers: &Arc<Peers>) -> Result<Self> {
        let ni = &peers.ni;
        let nid = ni.nid;
        let name =
            |suffix: &str| CString::try_from_fmt(fmt!("{}{suffix}", core::format_args!("{nid}")));
        Ok(Self {
            _state: File::new(dir, &name("")?, peers)?,
            _closes: File::new(dir, &name(".closes")?, &ni.close_stats)?,
            _latency: File::new(dir, &name(".latency")?, ni)?,
        })
    }
}

impl Show for Peers {
    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show_ni(self, f)?;
        show_tally(&self.ni.close_stats, f)?;
        let (shown, over) = self.ni.closed_counters.list(|list| {
            let mut result = Ok(());
            self.table.for_each(|peer| {
                if result.is_ok() {
                    result = show_peer(peer, list, f);
                }
            });
            result
        });
        shown?;
        write!(f, "closed_conns={}", self.ni.nid)?;
        over.show(false, f)?;
        over.show(true, f)?;
        writeln!(f)
    }
}

fn show_ni(all: &Peers, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let ni = &all.ni;
    let (mut peers, mut waiting) = (0usize, 0usize);
    all.table.for_each(|peer| {
        peers = peers.saturating_add(1);
        waiting = waiting.saturating_add(peer.snapshot().waiting);
    });
    let lingering = all.nr_lingering();
    // The NI has a share itself.
    let live = usize::try_from(ni.live_count()).unwrap_or(0);
    // The port is queried for the next reader: firmware may hang, and must not block readers.
    ni.check_device();
    let hca = ni.hca().ok();
    let hca = hca.as_ref();
    let device = hca.map(|hca| hca.device.name());
    let regions = hca.map(|hca| hca.shares.regions.view()).unwrap_or_default();
    write!(
        f,
        "ni={} incarnation={} device={} peers={peers} conns={} waiting={waiting} \
         lingering={lingering} link={}",
        ni.nid,
        ni.stamp,
        device.as_ref().map_or("none", |name| name.as_str()),
        live.saturating_sub(lingering).saturating_sub(1),
        match hca {
            None => "none",
            Some(_) if ni.way(|way| way.is_open()) => "up",
            Some(_) => "down",
        },
    )?;
    write!(
        f,
        " speed_mbps={} depth={} depth_by={} gather={}",
        hca.map_or(0, |hca| hca.mbps()),
        ni.lnet.peer_credits().get(),
        ni.lnet.depth_by().as_str(),
        hca.map_or(0, |hca| hca.gather(ni.wrq_sge)),
    )?;
    writeln!(
        f,
        " regions={} max_regions={} regions_moved={} bad_pkeys={} retained={} health={}",
        regions.allocated,
        regions.limit,
        regions.moved,
        hca.map_or(0, |hca| hca.bad_pkeys.load(Relaxed)),
        ni.retained_rx.all(),
        // Until there is another device, the health of the last one is still stored.
        hca.map_or("ok", |_| ni.device_health()),
    )
}

impl Show for Peer {
    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counters = &self.ni.closed_counters;
        counters.list(|list| show_peer(self, list, f)).0
    }
}

/// Prints a peer and its connections on the console. May sleep.
pub(crate) fn print_peer(peer: &Peer) -> Result {
    console(core::format_args!("{}", Shown(peer)))
}

fn show_peer(peer: &Peer, list: SnapshotId, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let ni = &peer.ni;
    let view = peer.snapshot();
    let record = ni.close_stats.of(peer.nid);
    // -1: no event yet, and no attempt is due.
    let ago = match record.at_ms {
        0 => -1,
        at_ms => i64::try_from(close_log::now_ms().saturating_sub(at_ms)).unwrap_or(-1),
    };
    let retry_ms = view.retry_at_ms.map_or(-1, |at_ms| {
        i64::try_from(at_ms.saturating_sub(ni.now_ms())).unwrap_or(-1)
    });
    write!(
        f,
        "peer={} conns={} usable={} waiting={} waited_ms={}",
        peer.nid, view.conns, view.usable, view.waiting, view.waited_ms,
    )?;
    write!(
        f,
        " closed={} failed={} last={} last_ago_ms={ago} failures={} retry_ms={retry_ms} ends=",
        record.closed, record.failed, record.last, view.failures,
    )?;
    let mut before = "";
    for (cause, n) in record.ends() {
        write!(f, "{before}{cause}:{n}")?;
        before = ",";
    }
    writeln!(f, "{}", if before.is_empty() { "-" } else { "" })?;
    // Needs no memory: a connection that is left out makes the sums of the file smaller.
    let mut shown = Ok(());
    peer.for_each_conn(|conn| {
        if shown.is_ok() {
            shown = conn.show(list, f);
        }
    });
    shown
}

/// Returns which side of a connection this node is.
pub(crate) fn role(active: bool) -> &'static str {
    match active {
        true => "active",
        false => "passive",
    }
}

/// NID as text: `none` for requests for none of the NIs, or another word if a NID is missing.
struct NidOr(Option<Nid>, &'static str);

impl core::fmt::Display for NidOr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(nid) => core::fmt::Display::fmt(nid, f),
            None => f.write_str(self.1),
        }
    }
}

/// Prints how often each cause ended a connection, an attempt or a message, and each reject. Without an NI there are
/// only rejects.
fn show_tally(seen: &CloseStats, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for (kind, names) in TABLES {
        if seen.nid.is_some() || kind == EventKind::Refused {
            write!(f, "causes={} of={}", NidOr(seen.nid, "none"), kind.name())?;
            for (number, name) in names.iter().enumerate() {
                write!(f, " {name}={}", seen.counter(kind, number))?;
            }
            writeln!(f)?;
        }
    }
    Ok(())
}

impl Show for CloseStats {
    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (ends, refusals) = self.written();
        let now_ms = close_log::now_ms();
        let (s, ms) = (now_ms / 1000, now_ms % 1000);
        let nid = NidOr(self.nid, "none");
        writeln!(
            f,
            "closes={nid} ends={ends} refusals={refusals} now={s}.{ms:03}"
        )?;
        if self.nid.is_none() {
            show_tally(self, f)?;
        }
        for event in self.events() {
            let (s, ms) = (event.at_ms / 1000, event.at_ms % 1000);
            write!(
                f,
                "event={} number={} time={s}.{ms:03} peer={} role={} by={}",
                event.what.name(),
                event.number,
                NidOr(event.peer, "unknown"),
                role(event.active),
                event.by,
            )?;
            writeln!(
                f,
                " cause={} detail={} count={} requested={}",
                event.why,
                event.detail,
                event.times,
                NidOr(event.asked, "-"),
            )?;
        }
        Ok(())
    }
}

impl Show for Ni {
    /// Shows the latency histograms: a line for each that is not empty.
    // `lt_N` counts messages that took less than N nanoseconds and at least half of N; the first bucket has no lower
    // limit.
    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (stage, op) in histograms() {
            let histogram = self.times.histogram(stage, op);
            let n = histogram.messages();
            if n == 0 {
                continue;
            }
            write!(
                f,
                "latency={} stage={} op={} n={n} sum_ns={} p50_ns={} p99_ns={}",
                self.nid,
                stage.name(),
                name(op.message()),
                histogram.sum_ns,
                histogram.quantile(500),
                histogram.quantile(990),
            )?;
            for (bucket, count) in histogram.counts.iter().enumerate() {
                match limit(bucket) {
                    _ if *count == 0 => {}
                    Some(ns) => write!(f, " lt_{ns}={count}")?,
                    None => write!(f, " more={count}")?,
                }
            }
            writeln!(f)?;
        }
        Ok(())
    }
}
