// SPDX-License-Identifier: GPL-2.0

//! Verdict on a connection.

use super::{
    level_of,
    Level,
    Verdict,
    Way,
    SLOW_MS, //
};
use crate::{
    history::Track,
    model::Conn,
    number_texts, //
};

/// Milliseconds by which the last receive must be later than an unacknowledged send: it may have been on its
/// way.
const HEARD_MS: u64 = 200;

/// Returns whether messages wait for a credit and none is usable; the last credit is kept for returning
/// credits.
pub fn is_starved(conn: &Conn) -> bool {
    conn.state == "Established" && conn.credits <= 1 && for_credits(conn) > 0
}

/// Returns the messages that wait for a credit, also behind messages that wait for a reserved buffer.
fn for_credits(conn: &Conn) -> u64 {
    conn.q_main.saturating_add(conn.q_unreserved)
}

/// Returns whether this node holds the peer's credits, in requests that LNet has not received.
pub fn keeps_credits(conn: &Conn) -> bool {
    conn.with_lnet > 0
        && conn.depth > 0
        && (conn.peer_held <= 1 || conn.with_lnet.saturating_add(1) >= conn.depth)
}

/// Returns why a peer does not return credits.
fn slow(way: Way) -> &'static str {
    match (way.lossy, way.breaks) {
        (true, _) => "packets get lost, as the NI says; if not, the peer's LNet is slow",
        (false, true) => {
            "connections break, so messages of the peer may be lost: check the peer; or its LNet is slow"
        }
        (false, false) => "the peer's LNet is slow",
    }
}

/// Returns the verdict on a connection.
pub fn conn(conn: &Conn, track: Option<&Track>, way: Way) -> Verdict {
    let span = number_texts::span;
    match conn.state.as_str() {
        "Established" => {}
        "Closing" | "Draining" | "Dead" => {
            return Verdict::new(Level::Note, "closing", "closing");
        }
        "" => return Verdict::new(Level::Note, "connecting", "state unknown"),
        state => {
            let words = format!("being set up ({state})");
            return Verdict::new(Level::Note, "connecting", words);
        }
    }
    if conn.counts.rnr > 0 {
        let times = number_texts::plural(conn.counts.rnr, "send", "sends");
        let words = format!("{times} found no receive posted at the peer: a fault, report it");
        return Verdict::new(Level::Bad, "rnr", words);
    }
    let short = track.map_or(0, |track| track.rise.no_memory);
    if short > 0 {
        let messages = number_texts::plural(short, "message", "messages");
        let words = format!("no memory, or no memory region, here for {messages} just now");
        return Verdict::new(Level::Bad, "memory", words);
    }
    let ms = conn.oldest_ms;
    // Sends are acknowledged in order: while acknowledgements arrive, the path is good, and an old message
    // has waited here.
    let still = track.and_then(|track| track.still);
    let stands = still.map_or(ms, |still| ms.min((still * 1000.0) as u64));
    if conn.oldest == "sending" && stands >= SLOW_MS {
        let ms = stands;
        // A receive since then came from a living peer, over a path that lets some packets through.
        if conn.idle_ms.saturating_add(HEARD_MS) <= ms {
            let words = format!(
                "not acknowledged for {}, and the peer was heard {} ago: {}",
                span(ms),
                span(conn.idle_ms),
                way.data.lossy()
            );
            return Verdict::new(level_of(ms), "lossy", words);
        }
        let words = format!(
            "not acknowledged for {}: check the fabric (cable, switch, MTU), or the peer is dead",
            span(ms)
        );
        return Verdict::new(level_of(ms), "not-acknowledged", words);
    }
    if is_starved(conn) {
        let starved = track.map_or(0, |track| (track.starved * 1000.0) as u64);
        // Without progress, the oldest message shows how long it has been.
        let ms = if conn.oldest == "queued" || conn.oldest == "answer" {
            ms.max(starved)
        } else {
            starved
        };
        let waiting = number_texts::plural(for_credits(conn), "message waits", "messages wait");
        if ms >= SLOW_MS {
            let words = format!(
                "peer keeps all credits for {}: {}; {waiting}",
                span(ms),
                slow(way)
            );
            return Verdict::new(level_of(ms), "starved", words);
        }
        let words = format!(
            "all credits in use, {waiting}: peer_credits {} is small",
            conn.depth
        );
        return Verdict::new(Level::Note, "starved", words);
    }
    if conn.q_unreserved > 0 && conn.reserved == 0 && ms < SLOW_MS {
        let waiting = number_texts::plural(conn.q_unreserved, "waits", "wait");
        let words = format!(
            "more PUTs and GETs in progress than the depth {}: {waiting}",
            conn.depth
        );
        return Verdict::new(Level::Note, "no-reserve", words);
    }
    let for_answers = conn.q_unreserved > 0 && conn.reserved == 0;
    if (conn.oldest == "answer" || for_answers) && ms >= SLOW_MS {
        let words = format!("a PUT or GET has no answer for {}: {}", span(ms), slow(way));
        return Verdict::new(level_of(ms), "no-answer", words);
    }
    if keeps_credits(conn) {
        let left = number_texts::plural(conn.peer_held, "credit", "credits");
        let kept = track.map_or(0, |track| (track.kept * 1000.0) as u64);
        let since = match kept {
            0..SLOW_MS => String::new(),
            ms => format!(" for {}", span(ms)),
        };
        let words = format!(
            "our LNet keeps {} requests{since}: this node is slow, the peer has {left} left of {}",
            conn.with_lnet, conn.depth
        );
        return Verdict::new(level_of(kept).max(Level::Warn), "our-lnet-slow", words);
    }
    if conn.oldest == "queued" && ms >= SLOW_MS {
        if conn.sq_free == 0 {
            let words = format!(
                "send queue is full for {}: large transfers in pieces",
                span(ms)
            );
            return Verdict::new(level_of(ms), "no-slots", words);
        }
        let words = format!("a message is queued for {}", span(ms));
        return Verdict::new(level_of(ms).min(Level::Warn), "queued", words);
    }
    if conn.oldest == "sending" && ms >= SLOW_MS && !conn.suspect {
        let words = format!("sends take {} and progress: a link is saturated", span(ms));
        return Verdict::new(Level::Note, "full", words);
    }
    if conn.suspect {
        let words = format!("nothing heard for {}, being probed", span(conn.idle_ms));
        return Verdict::new(Level::Warn, "suspect", words);
    }
    Verdict::fine()
}
