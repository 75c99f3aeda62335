// SPDX-License-Identifier: GPL-2.0

//! Output of `lnetctl debug peer --nid` on the console and in LNet's debug log: the lines and words of ko2iblnd, for
//! scripts and readers that know them, followed by further values.
//!
//! No memory address is printed: where ko2iblnd prints one there is a number of this driver. ko2iblnd's list of all
//! receive buffers is one line of numbers here.
//!
//! Context: process. The state of a connection is copied under its lock in one go, and printed without it.

use kernel::{
    prelude::*,
    sync::Arc,
    time::{
        ClockSource,
        Monotonic, //
    }, //
};

use super::{
    conn::{
        snapshot::{
            ConnDetails,
            ConnSnapshot,
            TxList,
            TxView, //
        },
        Conn, //
    },
    peer::{
        Connection,
        Peer, //
    }, //
};
use crate::{
    lnet::dk::console,
    proto::{
        cause::Cause,
        conn_state::State,
        tx_table::QueueKind, //
    }, //
};

/// Prints a line to the console.
macro_rules! say {
    ($($arg:tt)*) => { console(::core::format_args!($($arg)*)) };
}

/// Lists of transmits, in ko2iblnd's order: its name of each, and the list of this driver.
const LISTS: [(&str, TxList); 4] = [
    ("tx_queue_nocred", TxList::Queue(QueueKind::FreeOfCredit)),
    ("tx_queue_rsrvd", TxList::Queue(QueueKind::Unreserved)),
    ("tx_queue", TxList::Queue(QueueKind::Main)),
    ("active_txs", TxList::Active),
];

/// Prints a peer. May sleep.
pub(crate) fn peer(peer: &Arc<Peer<Conn>>) -> Result {
    let (alive_ms, races, failures, cause, objects, usable, waiting, waited_ms) =
        peer.with(|inner| {
            (
                inner.heard_ms(),
                inner.races(),
                inner.failures(),
                inner.last_cause(),
                inner.objects(),
                inner.usable(),
                inner.waiting(),
                inner.waited_ms(),
            )
        });
    let conns = peer.conns();
    // Only the connection knows when the peer was last heard on it, while the connection exists.
    let heard_ms = conns.iter().map(|conn| conn.heard_ms()).max();
    let ago_ms = peer
        .ni
        .now_ms()
        .saturating_sub(heard_ms.unwrap_or(alive_ms).max(alive_ms));
    let alive = (now_ns() / 1_000_000_000).saturating_sub(ago_ms / 1000);
    let error = cause.map_or(0, |cause| cause.outcome(true).status);
    say!("[last_alive, races, reconnected, error]: {alive}, {races}, {failures}, {error}");
    say!(
        "peer {}: conns {objects} usable {usable} waiting {waiting} waited_ms {waited_ms} last {}",
        peer.nid,
        cause.map_or("none", Cause::as_str)
    );
    for (n, conn) in conns.iter().enumerate() {
        say!("Conn {n}:");
        show_conn(conn, peer.ni.lnet.timeout())?;
    }
    Ok(())
}

// Separate from `peer` and `show_view`: the copy of a connection's state is large, and so is the code that prints it.
#[inline(never)]
fn show_conn(conn: &Conn, lnet_timeout: u32) -> Result {
    let ConnDetails { view, txs, early } = conn.details()?;
    show_view(conn, &view);
    say!("   early_rxs:");
    for (n, rx) in early.iter().enumerate() {
        say!("      rx {n} msg_type {:x} cred {}", rx.kind, rx.credits);
    }
    // NOOPs wait in no list here: a NOOP is built when it can be sent.
    say!("   tx_noops:");
    let timeout_ns = u64::from(lnet_timeout).saturating_mul(1_000_000_000);
    for (name, list) in LISTS {
        say!("   {name}:");
        for tx in txs.iter().filter(|tx| tx.list == list) {
            show_tx(tx, timeout_ns);
        }
    }
    say!(
        "   rxs: posted {} with_lnet {} early {}",
        view.wire.recvs,
        view.with_lnet,
        early.len()
    );
    Ok(())
}

#[inline(never)]
fn show_view(conn: &Conn, view: &ConnSnapshot) {
    let held = view.wire.in_use.saturating_add(usize::from(view.with_lnet));
    let (wire, c) = (&view.wire, view.wire.credits);
    let role = if view.active { "active" } else { "passive" };
    say!(
        "conn[{}] qp {}->{} [version {:x}] -> {}: {role}",
        held.saturating_add(1),
        wire.qpn,
        view.peer_qpn,
        wire.version,
        conn.nid(),
    );
    say!(
        "   state {} nposted {}/{} cred {} o_cred {} r_cred {} ({:?} depth {} peer_held {} sq_free {} mtu {})",
        state_number(view.state),
        c.noops,
        wire.posted,
        c.credits,
        c.outstanding,
        c.reserved,
        view.state,
        c.depth,
        c.peer_held,
        wire.sq_free,
        view.path.mtu.unwrap_or(0),
    );
    say!(
        "   comms_err {} (cause {} idle_ms {} oldest_ms {} suspect {})",
        view.cause.map_or(0, |cause| cause.outcome(true).status),
        view.cause.map_or("none", Cause::as_str),
        view.idle_ms,
        wire.oldest_ms,
        u8::from(view.doubted),
    );
}

#[inline(never)]
fn show_tx(tx: &TxView, timeout_ns: u64) {
    let age_ns = u64::try_from(tx.age_ms)
        .unwrap_or(0)
        .saturating_mul(1_000_000);
    let deadline = now_ns().saturating_sub(age_ns).saturating_add(timeout_ns);
    let mark = |there| if there { "!" } else { "-" };
    say!(
        "      tx {} snd {} q {} w {} rc {} dl {deadline} cookie {:#x} msg {}{} type {:x} cred 0 (age_ms {})",
        tx.index,
        tx.wrs,
        u8::from(tx.list != TxList::Active),
        u8::from(tx.answer),
        tx.status,
        tx.cookie,
        mark(tx.message),
        mark(tx.reply),
        tx.kind,
        tx.age_ms,
    );
}

/// Returns ko2iblnd's number of a state.
fn state_number(state: State) -> u8 {
    match state {
        State::Init => 0,
        State::Resolving | State::Connecting => 1,
        State::Accepting | State::Called => 2,
        State::Established => 3,
        State::Closing | State::Draining => 4,
        State::Dead => 5,
    }
}

/// Returns the nanoseconds on the clock of ko2iblnd's deadlines.
fn now_ns() -> u64 {
    u64::try_from(Monotonic::ktime_get()).unwrap_or(0)
}
