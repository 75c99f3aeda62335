// SPDX-License-Identifier: GPL-2.0

//! State of an NI in debugfs, in `/sys/kernel/debug/ro2iblnd/`: one file per NI, named by its NID, with lines for the
//! NI, its counters, each peer and each connection. A second file has the close log of the NI, and one file has
//! rejected requests for none of the NIs. All lines are `key=value`. New keys are only added, at the end of a line.
//!
//! Documented in Documentation/reference.md.

use kernel::fmt;

use super::close_log::show_tally;
use crate::{
    lnd::{
        conn::{
            snapshot::WireSnapshot,
            Conn, //
        },
        ni::Ni,
        ni_device::NiDevice,
        peer::{
            Peer,
            Peers, //
        },
        stats::{
            close_log,
            closed_counters::SnapshotId, //
        }, //
    },
    rdma::{
        cm_path::Path,
        debugfs::Show, //
    }, //
};

impl Show for NiDevice {
    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show(&self.peers, f)
    }
}

fn show(all: &Peers<Conn>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let ni = &all.ni;
    let mut peers = 0usize;
    let mut waiting = 0usize;
    all.table.for_each(|peer| {
        peers = peers.saturating_add(1);
        waiting = waiting.saturating_add(peer.with(|inner| inner.waiting()));
    });
    // The port is queried for the next reader: firmware may hang, and must not block readers.
    ni.check_device();
    let hca = ni.hca().ok();
    let device = hca.as_ref().map(|hca| hca.device.name());
    write!(
        f,
        "ni={} incarnation={} device={} peers={peers} conns={} waiting={waiting} lingering={} link={}",
        core::format_args!("{}", ni.nid),
        ni.stamp,
        device.as_ref().map_or("none", |name| name.as_str()),
        all.conns(),
        all.lingering.len(),
        match &device {
            None => "none",
            Some(_) if ni.way(|way| way.is_open()) => "up",
            Some(_) => "down",
        },
    )?;
    write!(
        f,
        " speed_mbps={} depth={} depth_by={} gather={}",
        hca.as_ref().map_or(0, |hca| hca.speed().0),
        ni.depth().get(),
        ni.lnet.depth_by().as_str(),
        hca.as_ref().map_or(0, |hca| hca.gather(ni.wrq_sge)),
    )?;
    let regions = hca
        .as_ref()
        .map(|hca| hca.regions.view())
        .unwrap_or_default();
    writeln!(
        f,
        " regions={} max_regions={} regions_moved={} bad_pkeys={} retained={} health={}",
        regions.allocated,
        regions.limit,
        regions.moved,
        hca.as_ref().map_or(0, |hca| hca.bad_pkeys()),
        ni.retained_rx.all(),
        // Until there is another device, the health of the last one is still stored.
        device.as_ref().map_or("ok", |_| ni.device_health()),
    )?;
    show_tally(&ni.close_stats, Some(ni.nid), f)?;
    let (shown, over) = ni.closed_counters.list(|list| show_peers(all, list, f));
    shown?;
    // Counters of the closed connections.
    write!(f, "closed_conns={} ", core::format_args!("{}", ni.nid))?;
    over.show(f)?;
    over.show_later(f)?;
    writeln!(f)
}

fn show_peers(all: &Peers<Conn>, list: SnapshotId, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let now_ms = close_log::now_ms();
    let mut result = Ok(());
    all.table.for_each(|peer| {
        if result.is_ok() {
            result = show_peer(&all.ni, peer, now_ms, f);
        }
        for conn in peer.conns() {
            if result.is_ok() {
                result = show_conn(&conn, list, f);
            }
        }
    });
    result
}

fn show_conn(conn: &Conn, list: SnapshotId, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    // The table may have shrunk meanwhile, so that the walk visits a peer twice.
    let Some(view) = conn.view(list) else {
        return Ok(());
    };
    let WireSnapshot {
        credits, queues, ..
    } = view.wire;
    write!(
        f,
        "conn={} role={} state={:?} depth={} credits={} outstanding={} reserved={} peer_held={} noops={} ",
        core::format_args!("{}", conn.nid()),
        if view.active { "active" } else { "passive" },
        view.state,
        credits.depth,
        credits.credits,
        credits.outstanding,
        credits.reserved,
        credits.peer_held,
        credits.noops,
    )?;
    write!(
        f,
        "q_main={} q_nocred={} q_unreserved={} with_lnet={} sq_free={} recvs={} idle_ms={} ",
        queues.main,
        queues.free_of_credit,
        queues.unreserved,
        view.with_lnet,
        view.wire.sq_free,
        view.wire.recvs,
        view.idle_ms,
    )?;
    view.wire.counts.show(f)?;
    let (oldest_ms, waits_for) = view.wire.oldest.unwrap_or((0, "none"));
    write!(
        f,
        " qpn={} peer_qpn={} mtu={} oldest_ms={oldest_ms} oldest={waits_for} suspect={} number={}",
        view.wire.qpn,
        view.peer_qpn,
        view.path.mtu.unwrap_or(0),
        u8::from(view.doubted),
        view.number,
    )?;
    show_path(&view.path, f)?;
    view.wire.counts.show_later(f)?;
    writeln!(f)
}

fn show_path(path: &Path, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for (key, gid) in [("sgid", path.sgid), ("dgid", path.dgid)] {
        match gid {
            Some(gid) => write!(f, " {key}={}", core::format_args!("{gid}"))?,
            None => write!(f, " {key}=none")?,
        }
    }
    write!(f, " port={}", path.port)?;
    for (key, n) in [
        ("tos", path.tos),
        ("sl", path.sl),
        ("retry_count", path.retry_count),
        ("rnr_retry_count", path.rnr_retry_count),
        ("ack_timeout", path.ack_timeout),
    ] {
        write!(f, " {key}={}", n.map_or(-1, i16::from))?;
    }
    Ok(())
}

fn show_peer(ni: &Ni, peer: &Peer<Conn>, now_ms: u64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let (objects, usable, waiting, waited_ms, failures, retry_at) = peer.with(|inner| {
        (
            inner.objects(),
            inner.usable(),
            inner.waiting(),
            inner.waited_ms(),
            inner.failures(),
            inner.retry_at_ms(),
        )
    });
    let retry_ms = retry_at.map_or(-1, |at_ms| {
        i64::try_from(at_ms.saturating_sub(ni.now_ms())).unwrap_or(-1)
    });
    let record = ni.close_stats.of(peer.nid);
    // -1: no event yet.
    let ago = match record.at_ms {
        0 => -1,
        at_ms => i64::try_from(now_ms.saturating_sub(at_ms)).unwrap_or(-1),
    };
    write!(
        f,
        "peer={} conns={objects} usable={usable} waiting={waiting} waited_ms={waited_ms} closed={} failed={} last={} last_ago_ms={ago}",
        core::format_args!("{}", peer.nid),
        record.closed,
        record.failed,
        record.last,
    )?;
    write!(f, " failures={failures} retry_ms={retry_ms} ends=")?;
    let mut before = "";
    for (cause, n) in record.ends() {
        write!(f, "{before}{cause}:{n}")?;
        before = ",";
    }
    writeln!(f, "{}", if before.is_empty() { "-" } else { "" })
}
