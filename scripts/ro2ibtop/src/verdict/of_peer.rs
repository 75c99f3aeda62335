// SPDX-License-Identifier: GPL-2.0

//! Verdict on a peer, and on one that is gone.

use std::collections::HashSet;

use super::{
    ago,
    level_of,
    Data,
    Level,
    Verdict,
    Way,
    RECENT_S, //
};
use crate::{
    cause_texts,
    model::{
        Event,
        Ni,
        Peer, //
    },
    number_texts, //
};

/// Seconds over which breaks are counted, and the number that is too many.
const BREAKS_S: f64 = 600.0;
const BREAKS: u64 = 3;
/// Seconds within which connections that broke together ended.
const TOGETHER_S: f64 = 2.0;

/// Returns the events of a peer within the last `seconds`, the newest first.
fn recent<'a>(
    ni: &'a Ni,
    peer: &'a str,
    now: f64,
    seconds: f64,
) -> impl Iterator<Item = &'a Event> {
    let of_peer =
        move |e: &&Event| e.peer == peer && e.what != "refused" && now - e.time <= seconds;
    ni.events.iter().rev().filter(of_peer)
}

/// Returns the verdict on a lost peer; `back`: the peer is connected again, with the state of its data.
pub(super) fn because(cause: &str, detail: &str, back: Option<Data>) -> String {
    let mut words = cause_texts::cause(cause).to_string();
    if !detail.is_empty() {
        words = format!("{words} ({detail})");
    }
    match cause_texts::advice(cause, detail) {
        "" => words,
        advice => match back {
            Some(data) if cause == "TransportRetry" => format!("{words}: {}", data.back()),
            _ => format!("{words}: {advice}"),
        },
    }
}

/// Formats when the next attempt is, and after how many failures; `None` if none is due or the driver does
/// not report it.
fn next_try(peer: &Peer) -> Option<String> {
    let when = match peer.retry_ms {
        Some(ms) => format!("next try in {}", number_texts::span(ms)),
        None if peer.failures > 0 => "trying now".to_string(),
        None => return None,
    };
    Some(match peer.failures {
        0 => when,
        n => format!("{when}, {}", number_texts::plural(n, "failure", "failures")),
    })
}

/// Returns why its last connection or attempt ended. The peer itself keeps it, because the shared log may
/// have dropped it.
fn last(peer: &Peer) -> Option<String> {
    let lately = peer.last_ago_ms? as f64 <= RECENT_S * 1000.0;
    (lately && !peer.last.is_empty()).then(|| because(&peer.last, "", None))
}

/// Returns the verdict on a peer, without its connections.
pub fn peer(ni: &Ni, peer: &Peer, now: f64, way: Way) -> Verdict {
    let newest = recent(ni, &peer.nid, now, RECENT_S).next();
    let why = newest.map(|e| because(&e.cause, &e.detail, None));
    let why = why.or_else(|| last(peer));
    let next = next_try(peer).filter(|_| peer.usable == 0);
    if peer.usable == 0 && (peer.waiting > 0 || newest.is_none() && peer.retry_ms.is_some()) {
        let waiting = number_texts::plural(peer.waiting, "message waits", "messages wait");
        let (level, mut words) = match peer.waiting {
            0 => (Level::Note, "no connection".to_string()),
            _ => (
                level_of(peer.waited_ms),
                format!(
                    "{waiting} {} for a connection",
                    number_texts::span(peer.waited_ms)
                ),
            ),
        };
        if let Some(next) = next {
            words = format!("{words}; {next}");
        }
        if let Some(why) = why {
            words = format!("{words}; the last try: {why}");
        } else if peer.failures > 0 {
            // An attempt that the peer asked to repeat has not failed.
            words =
                format!("{words}; the peer rejects for now: it boots, or its log has the reason");
        }
        return Verdict::new(level, "waiting", words);
    }
    let lately = match newest {
        None => Verdict::fine(),
        Some(end) if peer.usable == 0 => {
            let mut lately = ended(ni, end, now, None);
            if let Some(next) = next {
                lately.words = format!("{}; {next}", lately.words);
            }
            lately
        }
        // The peer has other connections, or connected again since.
        Some(end) => Verdict {
            level: Level::Note,
            ..ended(ni, end, now, Some(way.data))
        },
    };
    if lately.level == Level::Bad {
        return lately;
    }
    let Some(mut breaks) = breaks(ni, &peer.nid, now, (peer.usable > 0).then_some(way.data)) else {
        return lately;
    };
    // The causes may differ.
    if peer.ends.len() > 1 {
        breaks.words = format!(
            "{}; so far {}",
            breaks.words,
            cause_texts::ends(&peer.ends, 2)
        );
    }
    breaks
}

fn breaks(ni: &Ni, peer: &str, now: f64, back: Option<Data>) -> Option<Verdict> {
    let mut n = 0u64;
    let mut newest: Option<&Event> = None;
    let mut first = f64::INFINITY;
    let of_itself = |e: &&Event| e.what == "closed" && e.by != "operator";
    for event in recent(ni, peer, now, BREAKS_S).filter(of_itself) {
        // Several connections that break together count as one break.
        if first - event.time > TOGETHER_S {
            n = n.saturating_add(1);
        }
        newest = newest.or(Some(event));
        first = event.time;
    }
    let newest = newest.filter(|_| n >= BREAKS)?;
    // Two nodes with one NID end each other's connection in this way.
    let two = match newest.cause.as_str() {
        "PeerRestarted" => ", or two nodes have its address",
        _ => "",
    };
    let words = format!(
        "broke {n} times in {}, last {} ago: {}{two}",
        ago(now, first),
        ago(now, newest.time),
        because(&newest.cause, &newest.detail, back)
    );
    Some(Verdict::new(Level::Warn, "breaks", words))
}

/// Returns when the last connection of that peer before this event broke because the peer was silent.
fn silent(ni: &Ni, event: &Event) -> Option<f64> {
    let before = recent(ni, &event.peer, event.time, BREAKS_S);
    let closed = before
        .filter(|e| e.what == "closed" && e.time <= event.time)
        .max_by(|a, b| a.time.total_cmp(&b.time))?;
    matches!(
        closed.cause.as_str(),
        "TransportRetry" | "DeadlineSending" | "DeadlineAnswer"
    )
    .then_some(closed.time)
}

fn ended(ni: &Ni, event: &Event, now: f64, back: Option<Data>) -> Verdict {
    let what = match event.what.as_str() {
        "failed" => "connecting failed",
        _ => "closed",
    };
    let words = format!(
        "{what} {} ago: {}",
        ago(now, event.time),
        because(&event.cause, &event.detail, back)
    );
    let words = match silent(ni, event) {
        Some(since) if event.cause == "ConnectTimeout" => {
            format!(
                "{words}; a connection to it broke {} ago: it fell silent",
                ago(now, since)
            )
        }
        _ => words,
    };
    let level = match event.by.as_str() {
        "operator" => Level::Note,
        _ if event.cause == "Overtaken" => Level::Note,
        _ if event.what == "failed" => Level::Bad,
        // The connection closed in order, or the client started again: it unmounted, or booted.
        _ if matches!(event.cause.as_str(), "PeerClosed" | "PeerRestarted") => Level::Note,
        _ => Level::Warn,
    };
    Verdict::new(level, "ended", words)
}

/// Returns peers whose connections broke repeatedly of late, and not by an operator's action.
pub fn unsteady(ni: &Ni, now: f64) -> HashSet<&str> {
    let broke = |e: &&Event| {
        e.what == "closed"
            && e.by != "operator"
            && e.cause != "Overtaken"
            && now - e.time <= RECENT_S
    };
    let mut once = HashSet::new();
    let twice = ni.events.iter().filter(broke).map(|e| e.peer.as_str());
    twice.filter(|peer| !once.insert(*peer)).collect()
}

/// Returns peers with an end in the log.
pub fn noisy(ni: &Ni) -> HashSet<&str> {
    let ends = ni.events.iter().filter(|e| e.what != "refused");
    ends.map(|e| e.peer.as_str()).collect()
}

/// Returns peers that the driver no longer has, and whose connections ended lately.
pub fn lost(ni: &Ni, now: f64) -> Vec<(String, Verdict)> {
    let mut candidates = noisy(ni);
    candidates.remove("unknown");
    for peer in &ni.peers {
        candidates.remove(peer.nid.as_str());
    }
    for conn in &ni.conns {
        candidates.remove(conn.peer.as_str());
    }
    let mut found = Vec::new();
    for event in ni.events.iter().rev() {
        let ended_lately = now - event.time <= RECENT_S && event.what != "refused";
        // Take the newest end of each.
        if ended_lately && candidates.remove(event.peer.as_str()) {
            let verdict = match event.what.as_str() {
                "failed" => ended(ni, event, now, None),
                _ => breaks(ni, &event.peer, now, None)
                    .unwrap_or_else(|| ended(ni, event, now, None)),
            };
            let kind = match verdict.kind {
                "ended" => "gone",
                other => other,
            };
            found.push((event.peer.clone(), Verdict { kind, ..verdict }));
        }
    }
    found
}
