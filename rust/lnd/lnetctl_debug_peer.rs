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
    sync::Arc, //
};

use super::{
    conn::{
        wire::snapshot::{
            ConnDetails,
            ConnSnapshot,
            TxSnapshot, //
        },
        Conn, //
    },
    peer::{
        Connection,
        Peer, //
    },
    timestamp::Timestamp, //
};
use crate::{
    lnet::dk::console,
    proto::{
        cause::Cause,
        conn_state::State,
        tx_state::TxState,
        tx_table::QueueKind, //
    }, //
};

/// Prints a line to the console.
macro_rules! say {
    ($($arg:tt)*) => { console(::core::format_args!($($arg)*)) };
}

/// Lists of transmits, in ko2iblnd's order: its name of each, and the list of this driver.
const LISTS: [(&str, Option<QueueKind>); 4] = [
    ("tx_queue_nocred", Some(QueueKind::FreeOfCredit)),
    ("tx_queue_rsrvd", Some(QueueKind::Unreserved)),
    ("tx_queue", Some(QueueKind::Main)),
    ("active_txs", None),
];

/// Prints a peer. May sleep.
pub(crate) fn peer(peer: &Arc<Peer<Conn>>) -> Result {
    let view = peer.snapshot();
    let conns = peer.conns();
    // Only the connection knows when the peer was last heard on it, while the connection exists.
    let heard_ms = conns.iter().map(|conn| conn.heard_ms()).max().unwrap_or(0);
    let ago_ms = peer.ni.now_ms().saturating_sub(heard_ms.max(view.heard_ms));
    let alive = (Timestamp::now().ns() / 1_000_000_000).saturating_sub(ago_ms / 1000);
    say!(
        "[last_alive, races, reconnected, error]: {alive}, {}, {}, {}",
        view.races,
        view.failures,
        status(view.last_cause)
    );
    say!(
        "peer {}: conns {} usable {} waiting {} waited_ms {} last {}",
        peer.nid,
        view.objects,
        view.usable,
        view.waiting,
        view.waited_ms,
        view.last_cause.map_or("none", Cause::as_str)
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
    for (n, (kind, credits)) in early.iter().enumerate() {
        say!("      rx {n} msg_type {kind:x} cred {credits}");
    }
    // NOOPs wait in no list here: a NOOP is built when it can be sent.
    say!("   tx_noops:");
    let timeout_ns = u64::from(lnet_timeout).saturating_mul(1_000_000_000);
    for (name, queue) in LISTS {
        say!("   {name}:");
        for tx in txs.iter().filter(|tx| tx.queue == queue) {
            show_tx(tx, timeout_ns);
        }
    }
    say!(
        "   rxs: posted {} with_lnet {} early {}",
        view.recvs,
        view.with_lnet,
        early.len()
    );
    Ok(())
}

#[inline(never)]
fn show_view(conn: &Conn, view: &ConnSnapshot) {
    let held = view.in_use.saturating_add(usize::from(view.with_lnet));
    let c = view.credits;
    say!(
        "conn[{}] qp {}->{} [version {:x}] -> {}: {}",
        held.saturating_add(1),
        view.qpn,
        view.peer_qpn,
        view.version,
        conn.nid(),
        if view.active { "active" } else { "passive" },
    );
    say!(
        "   state {} nposted {}/{} cred {} o_cred {} r_cred {} ({:?} depth {} peer_held {} sq_free {} mtu {})",
        state_number(view.state),
        c.noops,
        view.posted,
        c.credits,
        c.outstanding,
        c.reserved,
        view.state,
        c.depth,
        c.peer_held,
        view.sq_free,
        view.path.mtu.unwrap_or(0),
    );
    say!(
        "   comms_err {} (cause {} idle_ms {} oldest_ms {} suspect {})",
        status(view.cause),
        view.cause.map_or("none", Cause::as_str),
        view.idle_ms,
        view.oldest.0,
        u8::from(view.doubted),
    );
}

#[inline(never)]
fn show_tx(of: &TxSnapshot, timeout_ns: u64) {
    let age_ns = u64::try_from(of.age_ms)
        .unwrap_or(0)
        .saturating_mul(1_000_000);
    // On the clock of ko2iblnd's deadlines.
    let deadline = Timestamp::now()
        .ns()
        .saturating_sub(age_ns)
        .saturating_add(timeout_ns);
    let (wrs, answer) = match of.tx.place() {
        TxState::Queued { wrs } => (wrs, false),
        TxState::Posted { wrs, answer } => (wrs, answer),
        place => (0, place == TxState::Waiting),
    };
    let mark = |there| if there { "!" } else { "-" };
    say!(
        "      tx {} snd {wrs} q {} w {} rc {} dl {deadline} cookie {:#x} msg {}{} type {:x} cred 0 (age_ms {})",
        of.index,
        u8::from(of.queue.is_some()),
        u8::from(answer),
        status(of.tx.cause()),
        of.cookie.0,
        mark(of.awaited.0),
        mark(of.awaited.1),
        of.tx.op().message().map_or(0, |kind| kind.wire()),
        of.age_ms,
    );
}

/// Returns the status with which a message ends for a cause; 0 without one.
fn status(cause: Option<Cause>) -> i32 {
    cause.map_or(0, |cause| cause.outcome(true).status)
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
