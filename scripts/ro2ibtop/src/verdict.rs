// SPDX-License-Identifier: GPL-2.0

//! What is wrong, in words: of an NI, of a peer, of a connection. The worst there is.

use std::collections::HashSet;

use crate::{
    history::{
        History,
        Track, //
    },
    model::{
        Conn,
        Event,
        Ni,
        Peer,
        Sample, //
    },
    words, //
};

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Nothing is wrong.
    Fine,
    /// Worth knowing.
    Note,
    /// Slow, or not as it should be.
    Warn,
    /// Messages do not get through.
    Bad,
}

impl Level {
    /// For programs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fine => "fine",
            Self::Note => "note",
            Self::Warn => "warn",
            Self::Bad => "bad",
        }
    }
}

/// What is to be said of something.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// How bad it is.
    pub level: Level,
    /// For programs: one of [`KINDS`].
    pub kind: &'static str,
    /// For people.
    pub words: String,
}

/// All kinds of verdicts.
pub const KINDS: [&str; 23] = [
    "fine",
    "starved",
    "no-answer",
    "not-acknowledged",
    "lossy",
    "no-reserve",
    "no-slots",
    "our-lnet-slow",
    "queued",
    "rnr",
    "doubted",
    "connecting",
    "closing",
    "waiting",
    "breaks",
    "ended",
    "no-device",
    "link-down",
    "memory",
    "retries",
    "refusing",
    "strangers",
    "gone",
];

/// Milliseconds from which waiting is said.
const SLOW_MS: u64 = 500;
/// Milliseconds from which it is bad: the transport's first retries are over.
const BAD_MS: u64 = 3_000;
/// Seconds that an end is worth a word.
const RECENT_S: f64 = 120.0;
/// Seconds over which breaks are counted, and how many are too many.
const BREAKS_S: f64 = 600.0;
const BREAKS: u64 = 3;
/// Seconds between the ends of connections that broke together, at most.
const TOGETHER_S: f64 = 2.0;

/// Said where some packets get through, and others do not.
const LOSSY: &str =
    "packets of full size, or some, get lost: the MTU of the whole way, cable, switch";
/// Said of a peer that was lost and is there again.
const BACK: &str =
    "it answers again: it was away, or large packets get lost: the MTU of the whole way";

/// Counters of devices that rise when packets are lost and repeated.
const RETRIES: [&str; 8] = [
    "completer_retry_err",
    "retry_exceeded_err",
    "rcvd_seq_err",
    "out_of_seq_request",
    "local_ack_timeout_err",
    "packet_seq_err",
    "out_of_sequence",
    "roce_adp_retrans",
];

impl Verdict {
    fn new(level: Level, kind: &'static str, words: impl Into<String>) -> Self {
        Self {
            level,
            kind,
            words: words.into(),
        }
    }

    /// Nothing is wrong.
    pub fn fine() -> Self {
        Self::new(Level::Fine, "fine", "")
    }

    fn or(self, other: impl FnOnce() -> Option<Self>) -> Self {
        if self.level >= Level::Warn {
            return self;
        }
        match other() {
            Some(found) if found.level > self.level => found,
            _ => self,
        }
    }
}

/// Whether messages wait for a credit and there is none to use: the last one is kept for returning
/// credits.
pub fn is_starved(conn: &Conn) -> bool {
    conn.state == "Established" && conn.credits <= 1 && for_credits(conn) > 0
}

/// Messages that wait for a credit, be it behind those that wait for a buffer for their answer.
fn for_credits(conn: &Conn) -> u64 {
    conn.q_main.saturating_add(conn.q_unreserved)
}

fn level_of(ms: u64) -> Level {
    match ms {
        0..SLOW_MS => Level::Note,
        SLOW_MS..BAD_MS => Level::Warn,
        _ => Level::Bad,
    }
}

/// Of a connection.
pub fn conn(conn: &Conn, track: Option<&Track>) -> Verdict {
    let span = words::span;
    match conn.state.as_str() {
        "Established" => {}
        "Closing" | "Draining" | "Dead" => {
            return Verdict::new(Level::Note, "closing", "on its way out");
        }
        "" => {
            return Verdict::new(
                Level::Note,
                "connecting",
                "the driver does not say its state",
            )
        }
        state => {
            let words = format!("being set up ({state})");
            return Verdict::new(Level::Note, "connecting", words);
        }
    }
    if conn.counts.rnr > 0 {
        let times = words::plural(conn.counts.rnr, "send", "sends");
        let words = format!("{times} found no receive posted at the peer: a fault, report it");
        return Verdict::new(Level::Bad, "rnr", words);
    }
    let ms = conn.oldest_ms;
    if conn.oldest == "sending" && ms >= SLOW_MS {
        // What came since then came from a peer that is alive, over a way that lets something through.
        if ms >= BAD_MS && conn.idle_ms.saturating_add(SLOW_MS) <= ms {
            let words = format!(
                "not acknowledged for {}, and the peer was heard {} ago: {LOSSY}",
                span(ms),
                span(conn.idle_ms)
            );
            return Verdict::new(level_of(ms), "lossy", words);
        }
        let words = format!(
            "not acknowledged for {}: look at the fabric (cable, switch, MTU), or the peer is dead",
            span(ms)
        );
        return Verdict::new(level_of(ms), "not-acknowledged", words);
    }
    if is_starved(conn) {
        let starved = track.map_or(0, |track| (track.starved * 1000.0) as u64);
        // Without progress the oldest message tells for how long.
        let ms = if conn.oldest == "queued" || conn.oldest == "answer" {
            ms.max(starved)
        } else {
            starved
        };
        let waiting = words::plural(for_credits(conn), "message waits", "messages wait");
        if ms >= SLOW_MS {
            let words = format!(
                "peer keeps all credits for {}: its LNet is slow; {waiting}",
                span(ms)
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
        let waiting = words::plural(conn.q_unreserved, "waits", "wait");
        let words = format!(
            "more PUTs and GETs under way than the depth {}: {waiting}",
            conn.depth
        );
        return Verdict::new(Level::Note, "no-reserve", words);
    }
    let for_answers = conn.q_unreserved > 0 && conn.reserved == 0;
    if (conn.oldest == "answer" || for_answers) && ms >= SLOW_MS {
        let words = format!(
            "a PUT or GET has no answer for {}: the peer's LNet is slow",
            span(ms)
        );
        return Verdict::new(level_of(ms), "no-answer", words);
    }
    // The peer's credits lie here, in requests that LNet has not taken.
    let kept = conn.with_lnet > 0 && conn.depth > 0;
    if kept && (conn.peer_held <= 1 || conn.with_lnet.saturating_add(1) >= conn.depth) {
        let left = words::plural(conn.peer_held, "credit", "credits");
        let words = format!(
            "our LNet keeps {} requests: this node is slow, the peer has {left} left of {}",
            conn.with_lnet, conn.depth
        );
        return Verdict::new(Level::Warn, "our-lnet-slow", words);
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
    if conn.doubted {
        let words = format!("nothing heard for {}, being probed", span(conn.idle_ms));
        return Verdict::new(Level::Warn, "doubted", words);
    }
    Verdict::fine()
}

/// Events of a peer that are not older than `seconds`, the newest first.
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

fn ago(now: f64, then: f64) -> String {
    words::span(((now - then).max(0.0) * 1000.0) as u64)
}

/// `back`: the peer is connected again.
fn because(cause: &str, detail: &str, back: bool) -> String {
    let mut words = words::cause(cause).to_string();
    if !detail.is_empty() {
        words = format!("{words} ({detail})");
    }
    match words::advice(cause) {
        "" => words,
        _ if back && cause == "TransportRetry" => format!("{words}: {BACK}"),
        advice => format!("{words}: {advice}"),
    }
}

/// When it is tried again, and after how many failures in a row; `None` if it is not, or the driver does not say.
fn next_try(peer: &Peer) -> Option<String> {
    let when = match peer.retry_ms {
        Some(ms) => format!("next try in {}", words::span(ms)),
        None if peer.failures > 0 => "trying now".to_string(),
        None => return None,
    };
    Some(match peer.failures {
        0 => when,
        n => format!("{when}, {}", words::plural(n, "failure", "failures")),
    })
}

/// Why its last connection or attempt ended, as the peer knows: what all peers share may have no room for it any more.
fn last(peer: &Peer) -> Option<String> {
    let lately = peer.last_ago_ms? as f64 <= RECENT_S * 1000.0;
    (lately && !peer.last.is_empty()).then(|| because(&peer.last, "", false))
}

/// Of a peer, without its connections.
pub fn peer(ni: &Ni, peer: &Peer, now: f64) -> Verdict {
    let newest = recent(ni, &peer.nid, now, RECENT_S).next();
    let why = newest.map(|e| because(&e.cause, &e.detail, false));
    let why = why.or_else(|| last(peer));
    let next = next_try(peer).filter(|_| peer.usable == 0);
    if peer.usable == 0 && (peer.waiting > 0 || newest.is_none() && peer.retry_ms.is_some()) {
        let waiting = words::plural(peer.waiting, "message waits", "messages wait");
        let (level, mut words) = match peer.waiting {
            0 => (Level::Note, "no connection".to_string()),
            _ => (
                level_of(peer.waited_ms),
                format!("{waiting} {} for a connection", words::span(peer.waited_ms)),
            ),
        };
        if let Some(next) = next {
            words = format!("{words}; {next}");
        }
        if let Some(why) = why {
            words = format!("{words}; the last try: {why}");
        } else if peer.failures > 0 {
            // An attempt that the peer wants to be repeated is not one that ended.
            words = format!("{words}; the peer says not now: it boots, or its log has the reason");
        }
        return Verdict::new(level, "waiting", words);
    }
    let lately = match newest {
        None => Verdict::fine(),
        Some(end) if peer.usable == 0 => {
            let mut lately = ended(end, now, false);
            if let Some(next) = next {
                lately.words = format!("{}; {next}", lately.words);
            }
            lately
        }
        // It has others, or another one since.
        Some(end) => Verdict {
            level: Level::Note,
            ..ended(end, now, true)
        },
    };
    if lately.level == Level::Bad {
        return lately;
    }
    let Some(mut breaks) = breaks(ni, &peer.nid, now, peer.usable > 0) else {
        return lately;
    };
    // It is not always the same.
    if peer.ends.len() > 1 {
        breaks.words = format!("{}; so far {}", breaks.words, words::ends(&peer.ends, 2));
    }
    breaks
}

fn breaks(ni: &Ni, peer: &str, now: f64, back: bool) -> Option<Verdict> {
    let mut n = 0u64;
    let mut newest: Option<&Event> = None;
    let mut first = f64::INFINITY;
    let of_itself = |e: &&Event| e.what == "closed" && e.by != "operator";
    for event in recent(ni, peer, now, BREAKS_S).filter(of_itself) {
        // Several connections that break together are one break.
        if first - event.time > TOGETHER_S {
            n = n.saturating_add(1);
        }
        newest = newest.or(Some(event));
        first = event.time;
    }
    let newest = newest.filter(|_| n >= BREAKS)?;
    let words = format!(
        "broke {n} times in {}, last {} ago: {}",
        ago(now, first),
        ago(now, newest.time),
        because(&newest.cause, &newest.detail, back)
    );
    Some(Verdict::new(Level::Warn, "breaks", words))
}

fn ended(event: &Event, now: f64, back: bool) -> Verdict {
    let what = match event.what.as_str() {
        "failed" => "connecting failed",
        _ => "closed",
    };
    let words = format!(
        "{what} {} ago: {}",
        ago(now, event.time),
        because(&event.cause, &event.detail, back)
    );
    let level = match event.by.as_str() {
        "operator" => Level::Note,
        _ if event.cause == "Overtaken" => Level::Note,
        _ if event.what == "failed" => Level::Bad,
        _ => Level::Warn,
    };
    Verdict::new(level, "ended", words)
}

/// Peers of which something ended, as far as it is known.
pub fn noisy(ni: &Ni) -> HashSet<&str> {
    let ends = ni.events.iter().filter(|e| e.what != "refused");
    ends.map(|e| e.peer.as_str()).collect()
}

/// Peers that are in no table any more, of which something ended lately.
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
        // The newest end of each.
        if ended_lately && candidates.remove(event.peer.as_str()) {
            let verdict = match event.what.as_str() {
                "failed" => ended(event, now, false),
                _ => {
                    breaks(ni, &event.peer, now, false).unwrap_or_else(|| ended(event, now, false))
                }
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

/// Of an NI, without its peers.
pub fn ni(ni: &Ni, history: &History, now: f64) -> Verdict {
    if ni.device.is_empty() {
        let words = "the RDMA device is gone: look at \"rdma link\"";
        return Verdict::new(Level::Bad, "no-device", words);
    }
    if ni.link_down {
        let words = "the link is down: cable, switch, \"ip link\", \"rdma link\"";
        return Verdict::new(Level::Bad, "link-down", words);
    }
    let short = history.no_memory(ni);
    if short > 0 {
        let times = words::plural(short, "time", "times");
        let words = match ni.max_regions {
            // More there cannot be, and none of them lay idle.
            most if most > 0 && ni.regions >= most => {
                format!("waiting for memory regions, all {most} are in use: {times} just now")
            }
            _ => format!("waiting for memory: {times} just now"),
        };
        return Verdict::new(Level::Warn, "memory", words);
    }
    Verdict::fine()
        .or(|| {
            let retries: Vec<String> = RETRIES
                .iter()
                .map(|name| (name, history.hardware(ni, name)))
                .filter(|(_, n)| *n > 0)
                .map(|(name, n)| format!("{name} +{n}"))
                .collect();
            (!retries.is_empty()).then(|| {
                let words = format!("retries: look at the fabric ({})", retries.join(", "));
                Verdict::new(Level::Warn, "retries", words)
            })
        })
        .or(|| refusing(&ni.events, now, "refusing", "refuses requests"))
        .or(|| {
            let before = ni.count("other", "NoMemory");
            (before > 0).then(|| {
                let times = words::plural(before, "time", "times");
                Verdict::new(Level::Note, "memory", format!("was without memory {times}"))
            })
        })
}

fn refusing(events: &[Event], now: f64, kind: &'static str, what: &str) -> Option<Verdict> {
    let to_see = |e: &&Event| {
        e.what == "refused" && now - e.time <= RECENT_S && !words::is_negotiation(&e.cause)
    };
    let newest = events.iter().rev().find(to_see)?;
    let n = events
        .iter()
        .filter(to_see)
        .fold(0u64, |sum, e| sum.saturating_add(e.times));
    let words = format!(
        "{what} ({n} lately, last of {}): {}",
        newest.peer,
        words::refusal(&newest.cause)
    );
    Some(Verdict::new(Level::Warn, kind, words))
}

/// Of requests that were for none of the NIs.
pub fn strangers(sample: &Sample) -> Option<Verdict> {
    let what = "requests for none of our NIs, compare nets and \"service\"";
    refusing(&sample.stranger_events, sample.time, "strangers", what)
}
