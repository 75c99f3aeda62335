// SPDX-License-Identifier: GPL-2.0

//! Parser of the driver's lines: `key=value` pairs, separated by blanks. The first key names the kind of the
//! line.
//!
//! A later driver may have more keys and more kinds of lines; the parser ignores both. A malformed line, or a
//! value that is not a number where one is expected, counts as unread, and the rest is used.

use crate::{
    histograms::Times,
    model::{
        Conn,
        Counts,
        Event,
        Ni,
        Peer,
        Sample, //
    },
};

/// Longest value of the driver; longer ones are cut.
const LONGEST: usize = 128;

/// Parses the file of an NI. Returns `None` if no line is of an NI.
pub fn ni(text: &str, unread: &mut u64) -> Option<Ni> {
    let mut ni = None;
    let (mut peers, mut conns, mut causes) = (Vec::new(), Vec::new(), Vec::new());
    let mut past = Counts::default();
    for line in lines(text) {
        let Some((first, _)) = line.split_once('=') else {
            *unread = unread.saturating_add(1);
            continue;
        };
        match first {
            "ni" => ni = Some(ni_line(line, unread)),
            "closed_conns" => {
                past = Counts::default();
                for (key, value) in words(line, unread) {
                    count(&mut past, key, value, unread);
                }
            }
            "causes" => causes.push(causes_line(line, unread)),
            "peer" => peers.push(peer_line(line, unread)),
            "conn" => conns.push(conn_line(line, unread)),
            _ => {}
        }
    }
    let mut ni: Ni = ni?;
    ni.past = past;
    ni.peers = peers;
    ni.conns = conns;
    ni.causes = causes.into_iter().collect();
    Some(ni)
}

/// Parses the log of closes. Returns the events and the time of the sample.
pub fn closes(text: &str, unread: &mut u64) -> (Vec<Event>, Option<f64>) {
    let mut events = Vec::new();
    let mut now = None;
    for line in lines(text) {
        if line.starts_with("event=") {
            events.push(event_line(line, unread));
        } else if line.starts_with("closes=") {
            for (key, value) in words(line, unread) {
                if key == "now" {
                    now = seconds(value, unread);
                }
            }
        } else if !line.contains('=') {
            *unread = unread.saturating_add(1);
        }
    }
    (events, now)
}

/// Parses the file with the histograms.
pub fn times(text: &str, unread: &mut u64) -> Vec<Times> {
    let mut found = Vec::new();
    for line in lines(text) {
        if line.starts_with("latency=") {
            found.push(times_line(line, unread));
        } else if !line.contains('=') {
            *unread = unread.saturating_add(1);
        }
    }
    found
}

fn times_line(line: &str, unread: &mut u64) -> Times {
    let mut times = Times::default();
    for (key, value) in words(line, unread) {
        match key {
            "stage" => times.stage = name(value),
            "op" => times.op = name(value),
            "sum_ns" => times.sum_ns = number(value, unread),
            "more" => times.counts.push((u64::MAX, number(value, unread))),
            _ => {
                if let Some(limit) = key.strip_prefix("lt_") {
                    let limit = number(limit, unread);
                    times.counts.push((limit, number(value, unread)));
                }
            }
        }
    }
    // The driver sorts them; a damaged report may not.
    times.counts.sort_unstable();
    times
}

/// Parses the file with the requests for unknown NIs.
pub fn unknown_ni(text: &str, sample: &mut Sample) {
    let mut unread = 0;
    let (events, _) = closes(text, &mut unread);
    for line in lines(text).filter(|line| line.starts_with("causes=")) {
        let (of, counts) = causes_line(line, &mut unread);
        if of == "refused" {
            sample.unknown_ni = counts;
        }
    }
    sample.unknown_ni_events = events;
    sample.unread = sample.unread.saturating_add(unread);
}

fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty())
}

/// Splits a line into its words, if its first key is `key`.
fn words<'a>(line: &'a str, unread: &mut u64) -> Vec<(&'a str, &'a str)> {
    let mut found = Vec::with_capacity(40);
    for word in line.split_ascii_whitespace() {
        match word.split_once('=') {
            Some((key, value)) => found.push((key, value)),
            None => *unread = unread.saturating_add(1),
        }
    }
    found
}

fn number(value: &str, unread: &mut u64) -> u64 {
    match value.parse::<i128>() {
        Ok(n) => u64::try_from(n.max(0)).unwrap_or(u64::MAX),
        Err(_) => {
            *unread = unread.saturating_add(1);
            0
        }
    }
}

fn seconds(value: &str, unread: &mut u64) -> Option<f64> {
    match value.parse::<f64>() {
        Ok(n) if n.is_finite() && (0.0..1e12).contains(&n) => Some(n),
        _ => {
            *unread = unread.saturating_add(1);
            None
        }
    }
}

/// Returns a printable name of limited length.
fn name(value: &str) -> String {
    value
        .chars()
        .take(LONGEST)
        .map(|c| if c.is_ascii_graphic() { c } else { '?' })
        .collect()
}

fn ni_line(line: &str, unread: &mut u64) -> Ni {
    let mut ni = Ni::default();
    for (key, value) in words(line, unread) {
        match key {
            "ni" => ni.nid = name(value),
            "incarnation" => ni.incarnation = number(value, unread),
            "speed_mbps" => ni.speed_mbps = number(value, unread),
            "bad_pkeys" => ni.bad_pkeys = number(value, unread),
            "depth" => ni.depth = number(value, unread),
            "depth_by" => ni.depth_by = name(value),
            "gather" => ni.gather = number(value, unread),
            "regions" => ni.regions = number(value, unread),
            "max_regions" => ni.max_regions = number(value, unread),
            "regions_moved" => ni.regions_moved = number(value, unread),
            "device" if value != "none" => ni.device = name(value),
            "link" => ni.link_down = value != "up",
            "health" => ni.health = name(value),
            "waiting" => ni.waiting = number(value, unread),
            "lingering" => ni.lingering = number(value, unread),
            _ => {}
        }
    }
    ni
}

fn causes_line(line: &str, unread: &mut u64) -> (String, Vec<(String, u64)>) {
    let mut of = String::new();
    let mut counts = Vec::new();
    for (key, value) in words(line, unread) {
        match key {
            "causes" => {}
            "of" => of = name(value),
            _ => counts.push((name(key), number(value, unread))),
        }
    }
    (of, counts)
}

/// Parses `cause:number,cause:number`.
fn tally(value: &str, unread: &mut u64) -> Vec<(String, u64)> {
    let mut found: Vec<(String, u64)> = Vec::new();
    for word in value.split(',') {
        let Some((cause, n)) = word.split_once(':') else {
            *unread = unread.saturating_add(1);
            continue;
        };
        let (cause, n) = (name(cause), number(n, unread));
        match found.iter_mut().find(|(known, _)| *known == cause) {
            Some((_, sum)) => *sum = sum.saturating_add(n),
            None => found.push((cause, n)),
        }
    }
    found
}

fn peer_line(line: &str, unread: &mut u64) -> Peer {
    let mut peer = Peer::default();
    for (key, value) in words(line, unread) {
        match key {
            "peer" => peer.nid = name(value),
            "conns" => peer.conns = number(value, unread),
            "usable" => peer.usable = number(value, unread),
            "waiting" => peer.waiting = number(value, unread),
            "waited_ms" => peer.waited_ms = number(value, unread),
            "closed" => peer.closed = number(value, unread),
            "failed" => peer.failed = number(value, unread),
            "last" if value != "none" => peer.last = name(value),
            "last_ago_ms" if !value.starts_with('-') => {
                peer.last_ago_ms = Some(number(value, unread));
            }
            "failures" => peer.failures = number(value, unread),
            "retry_ms" if !value.starts_with('-') => peer.retry_ms = Some(number(value, unread)),
            "ends" if value != "-" => peer.ends = tally(value, unread),
            _ => {}
        }
    }
    peer
}

fn conn_line(line: &str, unread: &mut u64) -> Conn {
    let mut conn = Conn::default();
    for (key, value) in words(line, unread) {
        match key {
            "conn" => conn.peer = name(value),
            "role" => conn.active = value == "active",
            "state" => conn.state = name(value),
            "oldest" => conn.oldest = name(value),
            "depth" => conn.depth = number(value, unread),
            "credits" => conn.credits = number(value, unread),
            "outstanding" => conn.outstanding = number(value, unread),
            "reserved" => conn.reserved = number(value, unread),
            "peer_held" => conn.peer_held = number(value, unread),
            "q_main" => conn.q_main = number(value, unread),
            "q_nocred" => conn.q_nocred = number(value, unread),
            "q_unreserved" => conn.q_unreserved = number(value, unread),
            "with_lnet" => conn.with_lnet = number(value, unread),
            "sq_free" => conn.sq_free = number(value, unread),
            "idle_ms" => conn.idle_ms = number(value, unread),
            "qpn" => conn.qpn = number(value, unread),
            "peer_qpn" => conn.peer_qpn = number(value, unread),
            "mtu" => conn.mtu = number(value, unread),
            "oldest_ms" => conn.oldest_ms = number(value, unread),
            "suspect" => conn.suspect = value == "1",
            "number" => conn.number = number(value, unread),
            _ => count(&mut conn.counts, key, value, unread),
        }
    }
    conn
}

fn count(counts: &mut Counts, key: &str, value: &str, unread: &mut u64) {
    if let Some(count) = counts.by_key(key) {
        *count = number(value, unread);
    }
}

fn event_line(line: &str, unread: &mut u64) -> Event {
    let mut event = Event {
        count: 1,
        ..Event::default()
    };
    for (key, value) in words(line, unread) {
        match key {
            "event" => event.what = name(value),
            "time" => event.time = seconds(value, unread).unwrap_or(0.0),
            "peer" => event.peer = name(value),
            "role" => event.active = value == "active",
            "by" => event.by = name(value),
            "cause" => event.cause = name(value),
            "detail" if value != "-" => event.detail = name(value),
            "requested" if value != "-" => event.requested = name(value),
            "count" => event.count = number(value, unread),
            _ => {}
        }
    }
    event
}
