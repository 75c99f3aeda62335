// SPDX-License-Identifier: GPL-2.0

//! What `lnetctl debug peer --nid` shows of a peer, on the console and in LNet's debug log: the lines
//! and words of ko2iblnd, for scripts and eyes that know them, with more words behind them.
//!
//! No address of memory is shown: where ko2iblnd has one there is a number of ours. Its list of all
//! receive buffers is one line of numbers here.
//!
//! Process context. What is shown of a connection is taken under its lock in one go, and printed
//! without it.

use kernel::{
    prelude::*,
    sync::{
        atomic::Relaxed,
        Arc, //
    },
    time::{
        ClockSource,
        Monotonic, //
    }, //
};

use super::{
    conn::{
        Conn,
        Inner, //
    },
    peer::{
        Connection,
        Peer, //
    },
    transfer::Owner, //
};
use crate::{
    lnet::dk::console,
    proto::{
        cause::Cause,
        conn::State,
        credits::Snapshot,
        queues::{
            Line,
            Queues, //
        },
        tx::Place,
        wire::decode, //
    }, //
};

/// Prints a line to the console.
macro_rules! say {
    ($($arg:tt)*) => { console(::core::format_args!($($arg)*)) };
}

/// The lists of transmits, in ko2iblnd's order: its name of each, and which it is here.
const LISTS: [(&str, List); 4] = [
    ("tx_queue_nocred", List::Queue(Line::FreeOfCredit)),
    ("tx_queue_rsrvd", List::Queue(Line::Unreserved)),
    ("tx_queue", List::Queue(Line::Main)),
    ("active_txs", List::Active),
];

#[derive(Clone, Copy, PartialEq)]
enum List {
    Queue(Line),
    Active,
}

/// A transmit as it is shown.
struct TxView {
    list: List,
    index: u16,
    wrs: u16,
    answer: bool,
    status: i32,
    age_ms: i64,
    cookie: u64,
    message: bool,
    reply: bool,
    kind: u8,
}

/// A received message that waits for the handshake to end.
struct RxView {
    kind: u8,
    credits: u8,
}

/// A connection as it is shown.
struct ConnView {
    state: State,
    cause: Option<Cause>,
    version: u16,
    credits: Snapshot,
    posted: u16,
    in_use: usize,
    with_lnet: u16,
    sq_free: u16,
    recvs: usize,
    qpn: u32,
    idle_ms: i64,
    oldest_ms: i64,
}

/// Shows a peer. May sleep.
pub(crate) fn peer(peer: &Arc<Peer<Conn>>) -> Result {
    let (alive_ms, races, failures, cause, objects, usable, waiting, waited_ms) =
        peer.with(|inner| {
            (
                inner.heard_ms(),
                inner.policy.races(),
                inner.policy.failures(),
                inner.last_cause(),
                inner.objects(),
                inner.usable(),
                inner.waiting(),
                inner.waited_ms(),
            )
        });
    let conns = peer.conns();
    // When a connection was heard is known to the connection alone, while it is there.
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
        show_conn(conn)?;
    }
    Ok(())
}

fn show_conn(conn: &Conn) -> Result {
    let (cells, early) = conn.with(|inner| (inner.cells.len(), inner.early.len()));
    let mut txs = KVVec::with_capacity(cells, GFP_KERNEL)?;
    let mut rxs = KVec::with_capacity(early, GFP_KERNEL)?;
    let view = conn.with(|inner| {
        take_txs(conn, inner, &mut txs);
        for msg in inner.early.iter() {
            // Nobody has judged it yet.
            let (kind, credits) = match decode(msg.bytes()) {
                Ok(m) => (m.body.kind().wire(), m.env.credits),
                Err(_) => (0, 0),
            };
            let _ = rxs.push_within_capacity(RxView { kind, credits });
        }
        view(inner)
    });
    let held = view.in_use.saturating_add(usize::from(view.with_lnet));
    let (c, role) = (view.credits, if conn.active { "active" } else { "passive" });
    say!(
        "conn[{}] qp {}->{} [version {:x}] -> {}: {role}",
        held.saturating_add(1),
        view.qpn,
        conn.peer_qpn.load(Relaxed),
        view.version,
        conn.nid(),
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
        conn.mtu.load(Relaxed),
    );
    say!(
        "   comms_err {} (cause {} idle_ms {} oldest_ms {} doubted {})",
        view.cause.map_or(0, |cause| cause.outcome(true).status),
        view.cause.map_or("none", Cause::as_str),
        view.idle_ms,
        view.oldest_ms,
        u8::from(conn.is_doubted()),
    );
    say!("   early_rxs:");
    for (n, rx) in rxs.iter().enumerate() {
        say!("      rx {n} msg_type {:x} cred {}", rx.kind, rx.credits);
    }
    // NOOPs wait in no list here: one is made when it can go.
    say!("   tx_noops:");
    let timeout_ns = u64::from(conn.ni.lnet.timeout()).saturating_mul(1_000_000_000);
    for (name, list) in LISTS {
        say!("   {name}:");
        for tx in txs.iter().filter(|tx| tx.list == list) {
            show_tx(tx, timeout_ns);
        }
    }
    say!(
        "   rxs: posted {} with_lnet {} early {}",
        view.recvs,
        view.with_lnet,
        rxs.len()
    );
    Ok(())
}

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
        u8::from(tx.list != List::Active),
        u8::from(tx.answer),
        tx.status,
        tx.cookie,
        mark(tx.message),
        mark(tx.reply),
        tx.kind,
        tx.age_ms,
    );
}

/// Takes down every transmit that is not over; the caller has made room for as many as there are.
fn take_txs(conn: &Conn, inner: &Inner, out: &mut KVVec<TxView>) {
    for line in [Line::FreeOfCredit, Line::Unreserved, Line::Main] {
        for index in inner.queues.waiting(&inner.cells, line) {
            take_tx(conn, inner, index, List::Queue(line), out);
        }
    }
    for (index, cell) in (0u16..).zip(inner.cells.iter()) {
        if matches!(
            cell.tx.place(),
            Place::Posted { .. } | Place::Waiting | Place::Held
        ) {
            take_tx(conn, inner, index, List::Active, out);
        }
    }
}

fn take_tx(conn: &Conn, inner: &Inner, index: u16, list: List, out: &mut KVVec<TxView>) {
    let at = usize::from(index);
    let (Some(cell), Some(Some(transfer))) = (inner.cells.get(at), inner.txs.get(at)) else {
        return;
    };
    let (wrs, answer) = match cell.tx.place() {
        Place::Queued { wrs } => (wrs, false),
        Place::Posted { wrs, answer } => (wrs, answer),
        Place::Waiting => (0, true),
        _ => (0, false),
    };
    let name = Queues::name(&inner.cells, index);
    let _ = out.push_within_capacity(TxView {
        list,
        index,
        wrs,
        answer,
        status: cell.tx.cause().map_or(0, |c| c.outcome(true).status),
        age_ms: transfer.since.elapsed().as_millis(),
        cookie: name.map_or(0, |name| name.cookie(conn.mask)),
        message: matches!(transfer.owner, Owner::Message(_) | Owner::Get { .. }),
        reply: matches!(transfer.owner, Owner::Get { .. }),
        kind: cell.tx.op().message().map_or(0, |kind| kind.wire()),
    });
}

fn view(inner: &Inner) -> ConnView {
    let free = |place| matches!(place, Place::Free | Place::Done);
    let in_use = inner.cells.iter().filter(|cell| !free(cell.tx.place()));
    let posted = inner.cells.iter().filter_map(|cell| match cell.tx.place() {
        Place::Posted { wrs, .. } => Some(wrs),
        _ => None,
    });
    let ages = inner.txs.iter().flatten();
    let (sq_free, recvs, qpn) = inner.link.as_ref().map_or((0, 0, 0), |link| {
        let qp = link.qp();
        (link.sq_free(), qp.recvs_posted(), qp.number())
    });
    ConnView {
        state: inner.fsm.state(),
        cause: inner.fsm.cause(),
        version: inner.identity.version.wire(),
        credits: inner.credits.snapshot(),
        posted: posted.fold(0, u16::saturating_add),
        in_use: in_use.count(),
        with_lnet: inner.with_lnet,
        sq_free,
        recvs,
        qpn,
        idle_ms: inner.last_recv.elapsed().as_millis(),
        oldest_ms: ages
            .map(|tx| tx.since.elapsed().as_millis())
            .max()
            .unwrap_or(0),
    }
}

/// ko2iblnd's number of a state.
fn state_number(state: State) -> u8 {
    match state {
        State::Init => 0,
        State::Resolving | State::Connecting => 1,
        State::Accepting => 2,
        State::Established => 3,
        State::Closing | State::Draining => 4,
        State::Dead => 5,
    }
}

/// Nanoseconds on the clock that ko2iblnd's deadlines are on.
fn now_ns() -> u64 {
    u64::try_from(Monotonic::ktime_get()).unwrap_or(0)
}
