// SPDX-License-Identifier: GPL-2.0

//! What people can read while the driver runs, in `/sys/kernel/debug/ro2iblnd/`: one file per NI,
//! named by its NID, with lines for the NI, its counters, each peer and each connection; one beside
//! it with what ended last; and one with the refused requests that were for no NI. All is
//! `key=value`. Keys are only ever added, and at the end of a line.
//!
//! Documented in Documentation/operators.md.

use core::ffi::CStr;

use kernel::{
    debugfs::{
        Dir,
        File, //
    },
    fmt,
    prelude::*,
    str::CString,
    sync::{
        atomic::Relaxed,
        Arc, //
    }, //
};

use super::{
    conn::{
        Conn,
        Inner, //
    },
    counts::Counts,
    ni::Ni,
    peer::Peer,
    seen::{
        self,
        Seen, //
    }, //
};
use crate::proto::{
    cause::Cause,
    nid::Nid,
    trail::{
        CAUSES,
        REFUSALS, //
    },
    tx::Place, //
};

/// The files of an NI; they are gone when this is dropped, which waits for readers.
pub(crate) struct NiFiles {
    _now: Pin<KBox<NiFile>>,
    _ends: Pin<KBox<SeenFile>>,
}

impl NiFiles {
    /// Makes the files. May sleep.
    pub(crate) fn new(dir: &Dir, ni: &Arc<Ni>) -> Result<Self> {
        let name = CString::try_from_fmt(fmt!("{}.closes", core::format_args!("{}", ni.nid)))?;
        Ok(Self {
            _now: NiFile::new(dir, ni)?,
            _ends: SeenFile::new(dir, &name, Some(ni.nid), &ni.seen)?,
        })
    }
}

#[pin_data]
struct NiFile {
    #[pin]
    _file: File<Arc<Ni>>,
}

/// A file that shows what ended.
#[pin_data]
pub(crate) struct SeenFile {
    #[pin]
    _file: File<SeenBy>,
}

struct SeenBy {
    /// The NI, if it is one's.
    nid: Option<Nid>,
    seen: Arc<Seen>,
}

impl SeenFile {
    /// Makes the file. May sleep.
    pub(crate) fn new(
        dir: &Dir,
        name: &CStr,
        nid: Option<Nid>,
        seen: &Arc<Seen>,
    ) -> Result<Pin<KBox<Self>>> {
        let seen = SeenBy {
            nid,
            seen: seen.clone(),
        };
        KBox::pin_init(
            pin_init!(Self {
                _file <- dir.read_callback_file(name, seen, &|seen: &SeenBy, f: &mut fmt::Formatter<'_>| {
                    show_ends(seen, f)
                }),
            }),
            GFP_KERNEL,
        )
    }
}

impl NiFile {
    /// Makes the file. May sleep.
    fn new(dir: &Dir, ni: &Arc<Ni>) -> Result<Pin<KBox<Self>>> {
        let name = CString::try_from_fmt(fmt!("{}", core::format_args!("{}", ni.nid)))?;
        let ni = ni.clone();
        KBox::pin_init(
            pin_init!(Self {
                _file <- dir.read_callback_file(&name, ni, &|ni: &Arc<Ni>, f: &mut fmt::Formatter<'_>| {
                    show(ni, f)
                }),
            }),
            GFP_KERNEL,
        )
    }
}

fn show(ni: &Ni, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let mut peers = 0usize;
    let mut waiting = 0usize;
    ni.peers.for_each(|peer| {
        peers = peers.saturating_add(1);
        waiting = waiting.saturating_add(peer.with(|inner| inner.waiting()));
    });
    let hca = ni.hca().ok();
    writeln!(
        f,
        "ni={} incarnation={} device={} peers={peers} conns={} waiting={waiting} parting={} link={}",
        core::format_args!("{}", ni.nid),
        ni.stamp,
        hca.as_ref()
            .map_or("none", |hca| hca.device.name().to_str().unwrap_or("?")),
        ni.conns(),
        ni.parting.len(),
        if ni.way.lock().is_open() { "up" } else { "down" },
    )?;
    // What the connections did that are over.
    let past = *ni.past.lock();
    write!(f, "past={} ", core::format_args!("{}", ni.nid))?;
    show_counts(&past, f)?;
    writeln!(f)?;
    show_tally(&ni.seen, Some(ni.nid), f)?;
    let now_ms = seen::now_ms();
    let mut result = Ok(());
    ni.peers.for_each(|peer| {
        if result.is_ok() {
            result = show_peer(ni, peer, now_ms, f);
        }
        for conn in peer.conns() {
            if result.is_ok() {
                result = show_conn(&conn, f);
            }
        }
    });
    result
}

fn show_conn(conn: &Conn, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let (state, credits, queues, counts, with_lnet, (sq_free, recvs, recv_wrs, qpn), idle, oldest) =
        conn.with(|inner| {
            (
                inner.fsm.state(),
                inner.credits.snapshot(),
                inner.queues.lengths(),
                inner.counts,
                inner.with_lnet,
                inner.link.as_ref().map_or((0, 0, 0, 0), |link| {
                    let qp = link.qp();
                    (
                        link.sq_free(),
                        qp.recvs_posted(),
                        link.recv_wrs(),
                        qp.number(),
                    )
                }),
                inner.last_recv.elapsed().as_millis(),
                oldest(inner),
            )
        });
    write!(
        f,
        "conn={} role={} state={:?} depth={} credits={} outstanding={} reserved={} peer_held={} noops={} ",
        core::format_args!("{}", conn.nid()),
        if conn.active { "active" } else { "passive" },
        state,
        credits.depth,
        credits.credits,
        credits.outstanding,
        credits.reserved,
        credits.peer_held,
        credits.noops,
    )?;
    write!(
        f,
        "q_main={} q_free={} q_unreserved={} with_lnet={with_lnet} sq_free={sq_free} recvs={recvs} idle_ms={idle} ",
        queues.main, queues.free_of_credit, queues.unreserved,
    )?;
    show_counts(&Counts { recv_wrs, ..counts }, f)?;
    let (oldest_ms, waits_for) = oldest.unwrap_or((0, "none"));
    writeln!(
        f,
        " qpn={qpn} peer_qpn={} mtu={} oldest_ms={oldest_ms} oldest={waits_for} doubted={}",
        conn.peer_qpn.load(Relaxed),
        conn.mtu.load(Relaxed),
        u8::from(conn.is_doubted()),
    )
}

/// How long the oldest transmit has waited, in milliseconds, and what for.
fn oldest(inner: &Inner) -> Option<(i64, &'static str)> {
    let txs = inner.cells.iter().zip(inner.txs.iter());
    let waiting = txs.filter_map(|(cell, tx)| {
        if matches!(cell.tx.place(), Place::Free | Place::Done) {
            return None;
        }
        let what = match cell.tx.timeout_cause() {
            Cause::DeadlineSending => "sending",
            Cause::DeadlineAnswer => "answer",
            _ => "queued",
        };
        Some((tx.as_ref()?.since.elapsed().as_millis(), what))
    });
    waiting.max_by_key(|(ms, _)| *ms)
}

fn show_peer(ni: &Ni, peer: &Peer, now_ms: u64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let (objects, usable, waiting, waited_ms) = peer.with(|inner| {
        (
            inner.objects(),
            inner.usable(),
            inner.waiting(),
            inner.waited_ms(),
        )
    });
    let record = ni.seen.of(peer.nid);
    // None yet is as long ago as can be.
    let ago = match record.at_ms {
        0 => -1,
        at_ms => i64::try_from(now_ms.saturating_sub(at_ms)).unwrap_or(-1),
    };
    writeln!(
        f,
        "peer={} conns={objects} usable={usable} waiting={waiting} waited_ms={waited_ms} closed={} failed={} last={} last_ago_ms={ago}",
        core::format_args!("{}", peer.nid),
        record.closed,
        record.failed,
        record.last,
    )
}

/// How often, by cause.
fn show_tally(seen: &Seen, nid: Option<Nid>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let tally = seen.tally();
    let of = [
        ("closed", tally.closed),
        ("failed", tally.failed),
        ("messages", tally.messages),
    ];
    for (what, counts) in of.iter().filter(|_| nid.is_some()) {
        show_causes(nid, what, &CAUSES, counts, f)?;
        writeln!(f)?;
    }
    show_causes(nid, "refused", &REFUSALS, &tally.refused, f)?;
    writeln!(f)?;
    match nid {
        Some(_) => {
            show_causes(nid, "other", &["NoMemory"], &[tally.no_memory], f)?;
            writeln!(f)
        }
        None => Ok(()),
    }
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

fn show_ends(by: &SeenBy, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let (ends, refusals) = by.seen.written();
    let now = seen::now_ms();
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
        show_tally(&by.seen, None, f)?;
    }
    let mut result = Ok(());
    by.seen.for_each(|number, event| {
        if result.is_err() {
            return;
        }
        // The kernel's printing knows a formatter of its own; `proto` implements that of `core`.
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
            result = writeln!(
                f,
                " role={} by={} cause={} detail={} times={}",
                if event.active { "active" } else { "passive" },
                core::format_args!("{by}"),
                event.why,
                event.detail,
                event.times,
            );
        }
    });
    result
}

fn show_counts(counts: &Counts, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(
        f,
        "tx_msgs={} rx_msgs={} tx_noops={} wrs={} retired={} doorbells={} cqes={} ",
        counts.tx_msgs,
        counts.rx_msgs,
        counts.noops,
        counts.wrs,
        counts.retired,
        counts.doorbells,
        counts.cqes,
    )?;
    write!(
        f,
        "recv_wrs={} recv_cqes={} no_credit={} no_slots={} rnr={}",
        counts.recv_wrs, counts.recv_cqes, counts.no_credit, counts.no_slots, counts.rnr,
    )
}
