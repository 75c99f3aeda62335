// SPDX-License-Identifier: GPL-2.0

//! What people can read while the driver runs: one file per NI in `/sys/kernel/debug/ro2iblnd/`,
//! named by its NID, with a line for the NI and one for each connection, all `key=value`.
//!
//! Documented in Documentation/operators.md.

use kernel::{
    debugfs::{
        Dir,
        File, //
    },
    fmt,
    prelude::*,
    str::CString,
    sync::Arc, //
};

use super::{
    conn::{
        Conn,
        Counts, //
    },
    ni::Ni, //
};

/// The file of an NI; it is gone when this is dropped, which waits for readers.
#[pin_data]
pub(crate) struct NiFile {
    #[pin]
    _file: File<Arc<Ni>>,
}

impl NiFile {
    /// Makes the file. May sleep.
    pub(crate) fn new(dir: &Dir, ni: &Arc<Ni>) -> Result<Pin<KBox<Self>>> {
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
        "ni={} incarnation={} device={} peers={peers} conns={} waiting={waiting} parting={}",
        core::format_args!("{}", ni.nid),
        ni.stamp,
        hca.as_ref()
            .map_or("none", |hca| hca.device.name().to_str().unwrap_or("?")),
        ni.conns(),
        ni.parting.len(),
    )?;
    // What the connections did that are over.
    let past = *ni.past.lock();
    write!(f, "past={} ", core::format_args!("{}", ni.nid))?;
    show_counts(&past, f)?;
    let mut result = Ok(());
    ni.peers.for_each(|peer| {
        for conn in peer.conns() {
            if result.is_ok() {
                result = show_conn(&conn, f);
            }
        }
    });
    result
}

fn show_conn(conn: &Conn, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let (state, credits, queues, counts, with_lnet, (sq_free, recvs, recv_wrs), idle) =
        conn.with(|inner| {
            (
                inner.fsm.state(),
                inner.credits.snapshot(),
                inner.queues.lengths(),
                inner.counts,
                inner.with_lnet,
                inner.link.as_ref().map_or((0, 0, 0), |link| {
                    (link.sq_free(), link.qp().recvs_posted(), link.recv_wrs())
                }),
                inner.last_recv.elapsed().as_millis(),
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
    show_counts(&Counts { recv_wrs, ..counts }, f)
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
    writeln!(
        f,
        "recv_wrs={} recv_cqes={} no_credit={} no_slots={} rnr={}",
        counts.recv_wrs, counts.recv_cqes, counts.no_credit, counts.no_slots, counts.rnr,
    )
}
