// SPDX-License-Identifier: GPL-2.0

//! Every event in every state of a connection and of a transmit, and the document that shows them.

use ro2iblnd_model::tables::{
    can_happen,
    conn_event_name,
    conn_states,
    document,
    situation,
    tx_apply,
    tx_situations,
    TxEvent,
    CONN_EVENTS,
    TX_EVENTS, //
};
use ro2iblnd_proto::{
    cause::Cause,
    conn_state::{
        Actions,
        ConnEvent,
        State, //
    },
    tx_state::{
        Op,
        Tx,
        TxAction,
        TxState,
        Wr, //
    }, //
};

#[test]
fn state_tables_match_the_code() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../../Documentation/state-tables.md"
    );
    let written = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        written == document(),
        "write it again: cargo run --bin tables > {path}"
    );
}

#[test]
fn every_event_in_every_connection_state() {
    let mut cells = 0;
    let over_tcp = conn_states(true);
    for (name, conn) in conn_states(false).into_iter().chain(over_tcp) {
        assert_eq!(name, format!("{:?}", conn.state()));
        for event in CONN_EVENTS {
            cells += 1;
            let (mut once, was) = (conn, conn.state());
            let actions = once.on(event);
            let is = once.state();
            let cell = format!("{name}, {}", conn_event_name(event));
            assert!(is >= was, "{cell}: goes back");
            let enters = |state| was < state && is == state;
            assert_eq!(
                actions.has(Actions::ESTABLISH),
                enters(State::Established),
                "{cell}"
            );
            assert_eq!(
                actions.has(Actions::CLOSE),
                enters(State::Closing),
                "{cell}"
            );
            assert_eq!(actions.has(Actions::RELEASE), enters(State::Dead), "{cell}");
            assert_eq!(once.cause().is_some(), is >= State::Closing, "{cell}");
            assert!(
                conn.cause().is_none() || once.cause() == conn.cause(),
                "{cell}: cause"
            );
            // Failure closes whatever lives; the drain alone leads on from there.
            if matches!(event, ConnEvent::Fail(_) | ConnEvent::Disconnected) {
                assert!(is >= State::Closing, "{cell}");
            }
            // A late word of the CM, or a neighbour that moved: the transport decides.
            if was == State::Established
                && matches!(event, ConnEvent::Unreachable | ConnEvent::Unanswered)
            {
                assert_eq!((is, actions), (was, Actions::NONE), "{cell}");
            }
            if was >= State::Closing {
                let drain = matches!(event, ConnEvent::DrainStarted | ConnEvent::Drained);
                assert!(is == was || drain, "{cell}");
                assert!(
                    actions == Actions::NONE || actions == Actions::RELEASE,
                    "{cell}"
                );
            }
            // The same event again has no effect twice.
            let first = actions;
            let again = once.on(event);
            for action in [
                Actions::ESTABLISH,
                Actions::CLOSE,
                Actions::RELEASE,
                Actions::SET_UP,
            ] {
                assert!(!(first.has(action) && again.has(action)), "{cell}: twice");
            }
        }
    }
    assert_eq!(cells, (8 + 9) * 14);
}

#[test]
fn over_tcp_the_other_states_are_the_same() {
    let over_tcp = conn_states(true);
    for (name, conn) in conn_states(false) {
        let same = over_tcp.iter().find(|(n, _)| *n == name);
        let (_, over_tcp) = same.expect("a state of both");
        for event in CONN_EVENTS {
            let (mut a, mut b) = (conn, *over_tcp);
            let same = (a.on(event), a.state()) == (b.on(event), b.state());
            let differs =
                event == ConnEvent::Established && ["Connecting", "Accepting"].contains(&name);
            assert_eq!(same, !differs, "{name}, {}", conn_event_name(event));
        }
    }
}

#[test]
fn every_cause_is_latched_once() {
    for (name, conn) in conn_states(true) {
        for cause in [Cause::DeviceGone, Cause::Told(-5), Cause::Shutdown] {
            let mut conn = conn;
            let before = conn.cause();
            let _ = conn.on(ConnEvent::Fail(cause));
            let _ = conn.on(ConnEvent::Disconnected);
            assert_eq!(conn.cause(), before.or(Some(cause)), "{name}");
        }
    }
}

#[test]
fn every_event_in_every_tx_situation() {
    let situations = tx_situations();
    let mut cells = 0;
    for tx in &situations {
        for (name, event) in TX_EVENTS {
            cells += 1;
            let cell = format!("{}, {name}", situation(tx));
            let mut after = *tx;
            let then = tx_apply(&mut after, event);
            check(tx, &after, event, then, &cell);
        }
    }
    println!("{} situations, {cells} cells", situations.len());
    assert!(cells >= 500);
}

/// Checks a cell; the first half also holds for cells that cannot happen.
fn check(tx: &Tx, after: &Tx, event: TxEvent, then: Result<TxAction, Cause>, cell: &str) {
    let (was, is) = (tx.place(), after.place());
    let ends = is == TxState::Done && was != TxState::Done;
    assert_eq!(then == Ok(TxAction::Finish), ends, "{cell}: handed to LNet");
    if ends {
        assert!(!after.is_key_live(), "{cell}: ends with a live key");
        let left = tx
            .wrs()
            .saturating_sub(u16::from(matches!(event, TxEvent::Completed(..))));
        assert_eq!(left, 0, "{cell}: ends while posted");
    }
    if matches!(was, TxState::Free | TxState::Done) {
        assert_eq!(is, was, "{cell}: comes back");
    }
    // The peer's answer is the result, even a late one; and all was acknowledged though the connection had ended.
    // Nothing else changes a cause.
    let late = matches!(event, TxEvent::Late(_)) && !tx.is_told();
    let well = tx.is_cut() && matches!(event, TxEvent::Completed(_, true)) && ends;
    let expected = if well { None } else { tx.cause() };
    assert!(
        tx.cause().is_none() || after.cause() == expected || late,
        "{cell}: cause"
    );
    if matches!(event, TxEvent::Completed(_, false)) && was == TxState::Posted {
        assert!(!after.is_cut(), "{cell}: may not end well any more");
    }
    assert!(
        !tx.is_told() || after.cause() == tx.cause(),
        "{cell}: the result changes"
    );
    if !can_happen(tx, event) {
        return;
    }
    // A WRITE that was flushed may be read from until the queue pair is drained.
    let reads = matches!(after.op(), Op::PutDone | Op::GetDone);
    if is == TxState::Held {
        let read = reads && after.cause().is_some();
        assert!(after.is_key_live() || read, "{cell}: held for nothing");
    }
    if matches!(event, TxEvent::Completed(_, false)) && reads {
        assert!(!ends, "{cell}: ends though its memory may be read");
    }
    let queued = is == TxState::Queued && was != TxState::Queued;
    assert_eq!(then == Ok(TxAction::Requeue), queued, "{cell}: queued");
    match event {
        TxEvent::Completed(wr, ok) => {
            assert_eq!(after.wrs(), tx.wrs().saturating_sub(1), "{cell}: count");
            let live = matches!(was, TxState::Queued | TxState::Posted);
            assert!(
                ok || !live || after.cause().is_some() || tx.is_told(),
                "{cell}: an error is a cause"
            );
            let kills = ok && wr == Wr::Invalidate;
            assert_eq!(
                after.is_key_live(),
                tx.is_key_live() && !kills,
                "{cell}: key"
            );
            assert_eq!(after.op(), tx.op(), "{cell}");
        }
        TxEvent::Answered(_) => {
            if !tx.awaits_answer() {
                assert_eq!(then, Err(Cause::Protocol), "{cell}: nobody asked");
            }
            if then.is_err() {
                assert_eq!((is, after.op()), (was, tx.op()), "{cell}: changes");
            } else {
                assert_eq!(after.wrs(), tx.wrs(), "{cell}: count");
                assert!(
                    !after.awaits_answer() && tx.awaits_answer(),
                    "{cell}: answered twice"
                );
            }
            assert_eq!(after.is_key_live(), tx.is_key_live(), "{cell}: key");
        }
        TxEvent::Cancel => {
            assert!(!after.awaits_answer(), "{cell}: still waits");
            let spared = matches!(was, TxState::Free | TxState::Held | TxState::Done);
            let latches = !spared && !tx.is_told();
            assert_eq!(
                after.cause().is_some(),
                tx.cause().is_some() || latches,
                "{cell}"
            );
            assert!(is != TxState::Queued, "{cell}");
            assert_eq!(after.wrs(), tx.wrs(), "{cell}: count");
        }
        TxEvent::Late(_) => {
            assert_eq!((is, then), (was, Ok(TxAction::Nothing)), "{cell}: goes on");
            assert_eq!(after.is_key_live(), tx.is_key_live(), "{cell}: key");
            assert_eq!((after.op(), after.wrs()), (tx.op(), tx.wrs()), "{cell}");
            let counts = after.is_told() && !tx.is_told();
            assert!(
                !counts || matches!(tx.op(), Op::GetReq | Op::PutAck) && after.cause().is_none(),
                "{cell}: an answer to something else"
            );
        }
        TxEvent::KeyDead => assert!(!after.is_key_live(), "{cell}"),
        TxEvent::Post => {
            let may = matches!(was, TxState::Queued | TxState::Posted);
            assert_eq!(after.wrs(), tx.wrs() + u16::from(may), "{cell}: count");
            assert!(after.was_posted() || !may, "{cell}");
        }
    }
}
