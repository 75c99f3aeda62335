// SPDX-License-Identifier: GPL-2.0

//! The state tables of connections and transmits, written down by asking the code: every event in
//! every state. `Documentation/state-tables.md` is the output, and a test compares the two.

use std::fmt::Write;

use ro2iblnd_proto::{
    cause::Cause,
    conn_state::{
        Actions,
        ConnEvent,
        ConnFsm, //
    },
    tx_state::{
        Answer,
        Op,
        Tx,
        TxAction,
        TxState,
        Wr, //
    }, //
};

/// Returns a connection in each of its states, with the name of the state.
pub fn conn_states(over_tcp: bool) -> Vec<(&'static str, ConnFsm)> {
    let after = |events: &[ConnEvent]| {
        let mut conn = ConnFsm::new(over_tcp);
        for event in events {
            let _ = conn.on(*event);
        }
        conn
    };
    let over = ConnEvent::Fail(Cause::AdminClose);
    let mut states = vec![
        ("Init", after(&[])),
        ("Resolving", after(&[ConnEvent::Start])),
        (
            "Connecting",
            after(&[
                ConnEvent::Start,
                ConnEvent::AddrResolved,
                ConnEvent::RouteResolved,
            ]),
        ),
        ("Accepting", after(&[ConnEvent::Requested])),
        (
            "Established",
            after(&[ConnEvent::Requested, ConnEvent::EarlyTraffic]),
        ),
        ("Closing", after(&[ConnEvent::Requested, over])),
        (
            "Draining",
            after(&[ConnEvent::Requested, over, ConnEvent::DrainStarted]),
        ),
        (
            "Dead",
            after(&[
                ConnEvent::Requested,
                over,
                ConnEvent::DrainStarted,
                ConnEvent::Drained,
            ]),
        ),
    ];
    if over_tcp {
        let called = after(&[ConnEvent::Requested, ConnEvent::Established]);
        states.insert(4, ("Called", called));
    }
    states
}

/// Every event of a connection, with its name. Exhaustive by [`conn_event_name`].
pub const CONN_EVENTS: [ConnEvent; 14] = [
    ConnEvent::Start,
    ConnEvent::Requested,
    ConnEvent::AddrResolved,
    ConnEvent::AddrTimeout,
    ConnEvent::RouteResolved,
    ConnEvent::Established,
    ConnEvent::EarlyTraffic,
    ConnEvent::Timeout,
    ConnEvent::Unreachable,
    ConnEvent::Unanswered,
    ConnEvent::Disconnected,
    ConnEvent::Fail(Cause::Protocol),
    ConnEvent::DrainStarted,
    ConnEvent::Drained,
];

/// Returns the name of an event. A new one does not compile without a row.
pub fn conn_event_name(event: ConnEvent) -> &'static str {
    match event {
        ConnEvent::Start => "Start",
        ConnEvent::Requested => "Requested",
        ConnEvent::AddrResolved => "AddrResolved",
        ConnEvent::AddrTimeout => "AddrTimeout",
        ConnEvent::RouteResolved => "RouteResolved",
        ConnEvent::Established => "Established",
        ConnEvent::EarlyTraffic => "EarlyTraffic",
        ConnEvent::Timeout => "Timeout",
        ConnEvent::Unreachable => "Unreachable",
        ConnEvent::Unanswered => "Unanswered",
        ConnEvent::Disconnected => "Disconnected",
        ConnEvent::Fail(_) => "Fail(cause)",
        ConnEvent::DrainStarted => "DrainStarted",
        ConnEvent::Drained => "Drained",
    }
}

/// Names of actions, in the order in which they are done.
const ACTIONS: [(Actions, &str); 8] = [
    (Actions::RESOLVE, "resolve"),
    (Actions::RESOLVE_ROUTE, "resolve route"),
    (Actions::SET_UP, "set up"),
    (Actions::AWAIT_WORD, "await word"),
    (Actions::SPEAK, "speak"),
    (Actions::ESTABLISH, "establish"),
    (Actions::CLOSE, "close"),
    (Actions::RELEASE, "release"),
];

fn conn_cell(conn: &ConnFsm, event: ConnEvent) -> String {
    let mut after = *conn;
    let actions = after.on(event);
    let mut words = Vec::new();
    if after.state() != conn.state() {
        words.push(format!("**{:?}**", after.state()));
    }
    words.extend(
        ACTIONS
            .iter()
            .filter(|(action, _)| actions.has(*action))
            .map(|(_, name)| (*name).to_string()),
    );
    if words.is_empty() {
        "-".into()
    } else {
        words.join(", ")
    }
}

/// An event of a tx.
#[derive(Clone, Copy, Debug)]
pub enum TxEvent {
    /// [`Tx::posting`], then [`Tx::pushed`] once.
    Post,
    /// [`Tx::completed`].
    Completed(Wr, bool),
    /// [`Tx::answered`].
    Answered(Answer),
    /// [`Tx::answered_late`].
    Late(Answer),
    /// [`Tx::cancel`].
    Cancel,
    /// [`Tx::key_dead`].
    KeyDead,
}

const FLUSHED: Cause = Cause::Flushed;

/// Every event of a tx, by group, with its name.
pub const TX_EVENTS: [(&str, TxEvent); 16] = [
    ("post a work request", TxEvent::Post),
    ("cancel", TxEvent::Cancel),
    ("key dead", TxEvent::KeyDead),
    ("completed", TxEvent::Completed(Wr::Any, true)),
    ("failed", TxEvent::Completed(Wr::Any, false)),
    (
        "LOCAL_INV completed",
        TxEvent::Completed(Wr::Invalidate, true),
    ),
    (
        "LOCAL_INV failed",
        TxEvent::Completed(Wr::Invalidate, false),
    ),
    ("PUT_ACK", TxEvent::Answered(Answer::PutAck)),
    ("PUT_NAK 0", TxEvent::Answered(Answer::PutNak(0))),
    ("PUT_NAK errno", TxEvent::Answered(Answer::PutNak(-5))),
    ("PUT_DONE", TxEvent::Answered(Answer::PutDone(Ok(())))),
    (
        "PUT_DONE errno",
        TxEvent::Answered(Answer::PutDone(Err(Cause::Told(-5)))),
    ),
    ("GET_DONE", TxEvent::Answered(Answer::GetDone(Ok(())))),
    (
        "GET_DONE errno",
        TxEvent::Answered(Answer::GetDone(Err(Cause::Told(-5)))),
    ),
    ("late PUT_DONE", TxEvent::Late(Answer::PutDone(Ok(())))),
    ("late GET_DONE", TxEvent::Late(Answer::GetDone(Ok(())))),
];

/// Applies an event as the driver does; what follows.
pub fn tx_apply(tx: &mut Tx, event: TxEvent) -> Result<TxAction, Cause> {
    Ok(match event {
        TxEvent::Post => {
            tx.posting();
            tx.pushed(1);
            TxAction::Nothing
        }
        TxEvent::Completed(wr, ok) => tx.completed(wr, if ok { Ok(()) } else { Err(FLUSHED) }),
        TxEvent::Answered(answer) => tx.answered(answer)?,
        TxEvent::Late(answer) => {
            tx.answered_late(answer);
            TxAction::Nothing
        }
        TxEvent::Cancel => tx.cancel(Cause::PeerClosed),
        TxEvent::KeyDead => tx.key_dead(),
    })
}

/// Returns the situations of a tx that differ, with how each is reached.
pub fn tx_situations() -> Vec<Tx> {
    let ops = [
        Op::Immediate,
        Op::PutReq,
        Op::GetReq,
        Op::PutAck,
        Op::PutNak,
        Op::PutDone,
        Op::GetDone,
        Op::Invalidate,
    ];
    let mut found = vec![Tx::FREE];
    let mut at = 0;
    let starts = ops
        .iter()
        .filter(|op| !matches!(op, Op::Invalidate | Op::PutDone));
    found.extend(starts.map(|op| Tx::new(*op)));
    while at < found.len() {
        let tx = found[at];
        at += 1;
        for (_, event) in TX_EVENTS {
            if !can_happen(&tx, event) {
                continue;
            }
            let mut next = tx;
            let _ = tx_apply(&mut next, event);
            if !found.iter().any(|old| same(old, &next)) {
                found.push(next);
            }
        }
    }
    let rank = |tx: &Tx| (ops.iter().position(|op| *op == tx.op()), place_rank(tx));
    found.sort_by_key(|tx| (tx.place() != TxState::Free, rank(tx), tx.cause().is_some()));
    found
}

/// Returns whether the event can happen: a device completes only what was posted, the driver posts only
/// what it took from a queue, and destroys memory regions after everything else. A peer can do anything at any time.
pub fn can_happen(tx: &Tx, event: TxEvent) -> bool {
    let wrs = tx.wrs();
    match (event, tx.place()) {
        (TxEvent::Post, TxState::Queued) => true,
        // The rest of a chain.
        (TxEvent::Post, TxState::Posted) => {
            let chain = matches!(tx.op(), Op::GetReq | Op::PutAck | Op::PutDone | Op::GetDone);
            chain && (1..2).contains(&wrs) && tx.cause().is_none() && !tx.is_told()
        }
        (TxEvent::Post, _) => false,
        (TxEvent::KeyDead, place) => matches!(place, TxState::Held | TxState::Done | TxState::Free),
        (TxEvent::Completed(wr, _), TxState::Queued) => wrs > 0 && wr == Wr::Any,
        // The LOCAL_INV is the last of a tx, and completions come in order.
        (TxEvent::Completed(wr, _), TxState::Posted) => {
            let last = tx.op() == Op::Invalidate && wrs == 1;
            wrs > 0 && last == (wr == Wr::Invalidate)
        }
        (TxEvent::Completed(..), _) => false,
        // After the connection: nothing is queued, and no answer is waited for.
        (TxEvent::Late(_), place) => {
            matches!(
                place,
                TxState::Free | TxState::Posted | TxState::Held | TxState::Done
            ) && !tx.awaits_answer()
        }
        (TxEvent::Cancel | TxEvent::Answered(_), _) => true,
    }
}

fn same(a: &Tx, b: &Tx) -> bool {
    let free = a.place() == TxState::Free && b.place() == TxState::Free;
    let done = a.place() == TxState::Done && b.place() == TxState::Done;
    let causes = a.cause().is_some() == b.cause().is_some();
    let told = a.is_told() == b.is_told();
    let keys = a.is_key_live() == b.is_key_live();
    let alike = keys && told && causes && a.is_cut() == b.is_cut();
    let counts = (a.wrs(), a.awaits_answer()) == (b.wrs(), b.awaits_answer());
    free || done && causes || a.place() == b.place() && counts && a.op() == b.op() && alike
}

fn place_rank(tx: &Tx) -> (u8, u16) {
    match (tx.place(), tx.wrs(), tx.awaits_answer()) {
        (TxState::Free, ..) => (0, 0),
        (TxState::Queued, wrs, _) => (2, wrs),
        (TxState::Posted, 0, _) => (5, 0),
        (TxState::Posted, wrs, true) => (3, wrs),
        (TxState::Posted, wrs, false) => (4, wrs),
        (TxState::Held, ..) => (6, 0),
        (TxState::Done, ..) => (7, 0),
    }
}

fn place_name(tx: &Tx) -> String {
    match (tx.place(), tx.wrs(), tx.awaits_answer()) {
        (TxState::Queued, wrs, _) => format!("Queued({wrs})"),
        (TxState::Posted, 0, _) => "Waiting".into(),
        (TxState::Posted, wrs, true) => format!("Posted({wrs}, answer)"),
        (TxState::Posted, wrs, false) => format!("Posted({wrs})"),
        (place, ..) => format!("{place:?}"),
    }
}

/// Returns a situation in words.
pub fn situation(tx: &Tx) -> String {
    let mut name = match tx.place() {
        TxState::Free => return "Free".into(),
        TxState::Done => "Done".to_string(),
        _ => format!("{:?} {}", tx.op(), place_name(tx)),
    };
    if tx.is_key_live() {
        name.push_str(", key");
    }
    if tx.is_told() && tx.place() != TxState::Done && tx.op() != Op::Invalidate {
        name.push_str(", told");
    }
    match tx.cause() {
        Some(_) if tx.is_cut() => name.push_str(", cut"),
        Some(_) => name.push_str(", failed"),
        None => {}
    }
    name
}

fn tx_cell(tx: &Tx, event: TxEvent) -> String {
    if !can_happen(tx, event) {
        return String::new();
    }
    let mut after = *tx;
    let then = tx_apply(&mut after, event);
    let mut words = Vec::new();
    if place_name(&after) != place_name(tx) {
        words.push(format!("**{}**", place_name(&after)));
    }
    if after.op() != tx.op() {
        words.push(format!("{:?}", after.op()));
    }
    match then {
        Ok(TxAction::Nothing) => {}
        Ok(then) => words.push(format!("{then:?}").to_lowercase()),
        Err(_) => words.push("violation".into()),
    }
    if words.is_empty() {
        "-".into()
    } else {
        words.join(", ")
    }
}

/// Returns the whole document.
pub fn document() -> String {
    let mut out = String::from(INTRO);
    conn_table(&mut out, &conn_states(false));
    out.push_str(TCP_INTRO);
    let mut over_tcp = conn_states(true);
    over_tcp.retain(|(name, _)| ["Connecting", "Accepting", "Called"].contains(name));
    conn_table(&mut out, &over_tcp);
    out.push_str(TX_INTRO);
    let situations = tx_situations();
    for (title, range) in [
        ("Steps of the driver", 0..3),
        ("Completions", 3..7),
        ("Answers", 7..14),
    ] {
        let _ = write!(out, "\n### {title}\n\n");
        let events = &TX_EVENTS[range];
        line(
            &mut out,
            "tx",
            events.iter().map(|(name, _)| (*name).to_string()),
        );
        rule(&mut out, events.len());
        for tx in &situations {
            let cells: Vec<String> = events.iter().map(|(_, e)| tx_cell(tx, *e)).collect();
            // A row of violations or of nothing says nothing.
            if cells
                .iter()
                .any(|c| !matches!(c.as_str(), "" | "-" | "violation"))
            {
                line(&mut out, &situation(tx), cells.into_iter());
            }
        }
    }
    out
}

fn conn_table(out: &mut String, states: &[(&str, ConnFsm)]) {
    line(
        out,
        "event",
        states.iter().map(|(name, _)| (*name).to_string()),
    );
    rule(out, states.len());
    for event in CONN_EVENTS {
        line(
            out,
            conn_event_name(event),
            states.iter().map(|(_, c)| conn_cell(c, event)),
        );
    }
}

fn line(out: &mut String, first: &str, rest: impl Iterator<Item = String>) {
    let _ = write!(out, "| {first} |");
    for cell in rest {
        let _ = write!(out, " {cell} |");
    }
    out.push('\n');
}

fn rule(out: &mut String, columns: usize) {
    out.push_str(&"|---".repeat(columns + 1));
    out.push_str("|\n");
}

const INTRO: &str = "\
<!-- SPDX-License-Identifier: GPL-2.0 -->
<!-- Written by `cargo run --bin tables` in rust/proto/model; a test compares. Do not edit. -->

# State tables

## Connection

`rust/proto/conn_state.rs`. A cell has the next state, if it changes, and the actions; `-`: the event has no
effect. States only change from left to right (an active connection passes Resolving and Connecting,
a passive one Accepting). The first cause is latched.

";

const TCP_INTRO: &str = "
### Over TCP

The active side sends the first message. The states that differ:

";

const TX_INTRO: &str = "
## Transmit

`rust/proto/tx_state.rs`. A situation is the operation that is posted next or was posted last, the place of
the tx (with the number of uncompleted work requests, two at most in this table, and whether it waits
for an answer), whether a memory region covers its memory, and whether a cause is latched (`failed`;
`cut`: a cause of the connection, which counts only if a work request of the tx was not acknowledged).
A cell has the next place, the next operation if it changes, and the action of the caller: `requeue`,
`finish` (return it to LNet, once) or `violation` (close the connection). Empty cells cannot happen
without a fault of the driver or device; tests cover them, too. Situations in which a group of events
changes nothing, or is always a violation, have no row in that group.
";
