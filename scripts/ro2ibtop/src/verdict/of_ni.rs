// SPDX-License-Identifier: GPL-2.0

//! Verdict on an NI, and on requests for an unknown NI.

use std::collections::BTreeSet;

use super::{
    ago,
    of_peer::because,
    Level,
    Verdict,
    BAD_MS,
    RECENT_S, //
};
use crate::{
    cause_texts,
    history::History,
    model::{
        Event,
        Ni,
        Sample, //
    },
    number_texts, //
};

/// Counters of devices that rise when packets are lost and retried.
const RETRIES: [&str; 17] = [
    "completer_retry_err",
    "retry_exceeded_err",
    "rcvd_seq_err",
    "out_of_seq_request",
    "duplicate_request",
    "local_ack_timeout_err",
    "req_transport_retries_exceeded",
    "packet_seq_err",
    "out_of_sequence",
    "roce_adp_retrans",
    // bnxt_re
    "implied_nak_seq_err",
    "max_retry_exceeded",
    // irdma
    "RTO",
    "Nak Sequence Error",
    "Nak Sequence Error Implied",
    "Rcvd Out of order packets",
    "RetransSegs",
];

/// Seconds for which the start of an NI is reported.
const YOUNG_S: f64 = 600.0;

/// Returns the increase since the previous sample of the counters of lost packets.
pub(super) fn retries<'a>(
    ni: &'a Ni,
    history: &'a History,
) -> impl Iterator<Item = (&'static str, u64)> + 'a {
    let rises = RETRIES
        .iter()
        .map(|name| (*name, history.hardware(ni, name)));
    rises.filter(|(_, n)| *n > 0)
}

/// Returns the verdict on an NI, without its peers.
pub fn ni(ni: &Ni, history: &History, now: f64) -> Verdict {
    if ni.device.is_empty() {
        let words = "the RDMA device is gone: look at \"rdma link\"";
        return Verdict::new(Level::Bad, "no-device", words);
    }
    if let Some(unusable) = unusable(ni) {
        return unusable;
    }
    if ni.link_down {
        let words = "the link is down: cable, switch, \"ip link\", \"rdma link\"";
        return Verdict::new(Level::Bad, "link-down", words);
    }
    if ni.counters_hang {
        let words = format!(
            "{} does not return its counters and may hang: see its lines in dmesg, \"devlink health\"",
            ni.device
        );
        return Verdict::new(Level::Bad, "counters-hang", words);
    }
    let short = history.no_memory(ni);
    if short > 0 {
        return memory(ni, history, short);
    }
    if let Some(slow) = slow(ni, history) {
        return slow;
    }
    fine(ni, now)
        .or(|| {
            let retries: Vec<String> = retries(ni, history)
                .map(|(name, n)| format!("{name} +{n}"))
                .collect();
            (!retries.is_empty()).then(|| {
                let words = format!("retries: check the fabric ({})", retries.join(", "));
                Verdict::new(Level::Warn, "retries", words)
            })
        })
        .or(|| refusing(&ni.events, now, "refusing", "refuses requests"))
        .or(|| {
            let told = history.told(ni);
            (told > 0).then(|| {
                let messages = number_texts::plural(told, "message", "messages");
                let words = format!(
                    "{messages} failed just now because a peer could not receive or answer them: check the peer"
                );
                Verdict::new(Level::Warn, "peer-failed", words)
            })
        })
        .or(|| {
            let level = match history.bad_pkeys(ni) {
                0 => Level::Note,
                _ => Level::Warn,
            };
            (ni.bad_pkeys > 0).then(|| {
                let packets = number_texts::plural(ni.bad_pkeys, "packet", "packets");
                let words = format!(
                    "{packets} of another partition since the NI has this device: compare the P_Keys of both nodes"
                );
                Verdict::new(level, "pkeys", words)
            })
        })
        // Present problems come before past ones.
        .or(|| flaps(ni, history, now))
        .or(|| {
            let before = ni.count("other", "NoMemory");
            (before > 0).then(|| {
                let times = number_texts::plural(before, "time", "times");
                Verdict::new(Level::Note, "memory", format!("was without memory {times}"))
            })
        })
}

/// Returns the problem of a device that makes LNet avoid the NI while its link is up.
fn unusable(ni: &Ni) -> Option<Verdict> {
    let device = &ni.device;
    match ni.health.as_str() {
        "broken" => {
            let words = format!(
                "{device} reported a fatal error, LNet avoids the NI: see its lines in dmesg; reset it if this lasts"
            );
            Some(Verdict::new(Level::Bad, "device-broken", words))
        }
        "gsi_dead" => {
            let words = format!(
                "no peer can connect, LNet avoids the NI: create {device} again with \"rdma link delete\" and \"rdma link add\""
            );
            Some(Verdict::new(Level::Bad, "gsi-dead", words))
        }
        "refuses" => {
            let words = format!(
                "{device} refused work requests, the NI is closed: update its driver, or use another device"
            );
            Some(Verdict::new(Level::Bad, "posts-refused", words))
        }
        _ => None,
    }
}

/// Reports a recent start, which explains failures that its peers report.
fn fine(ni: &Ni, now: f64) -> Verdict {
    let age = now - ni.incarnation as f64 / 1e6;
    if !(0.0..YOUNG_S).contains(&age) {
        return Verdict::fine();
    }
    let words = format!(
        "ok, started {} ago",
        number_texts::span((age * 1000.0) as u64)
    );
    Verdict::new(Level::Fine, "fine", words)
}

/// Reports a link or device that went away repeatedly; once may be an operator's action. The peers may be too
/// many for the driver to keep the ends of each, and all of them may be connected again.
fn flaps(ni: &Ni, history: &History, now: f64) -> Option<Verdict> {
    let flaps = history.flaps(ni);
    let [oldest, .., newest] = flaps else {
        return None;
    };
    let words = format!(
        "flaps, {} times in {}, last {} ago: {}",
        flaps.len(),
        ago(now, oldest.first),
        ago(now, newest.last),
        because(&newest.cause, "", None)
    );
    Some(Verdict::new(Level::Warn, "flaps", words))
}

/// Returns the problem that `short` messages found no memory region since the previous sample.
fn memory(ni: &Ni, history: &History, short: u64) -> Verdict {
    let want = match ni.max_regions {
        // All regions that may exist exist, and none was idle.
        most if most > 0 && ni.regions >= most => {
            format!("no memory region, all {most} are in use,")
        }
        // The device makes fewer regions than it reports, or other users have them.
        _ if history.no_region(ni) > 0 => "no memory region, the device provides none,".to_string(),
        _ => "no memory".to_string(),
    };
    let naks = history.times(ni).iter();
    let naks = naks.filter(|t| t.stage == "wire" && t.op == "PUT_NAK");
    // Other requests were rejected while no message waited for their peer.
    match naks
        .fold(0u64, |sum, t| sum.saturating_add(t.n()))
        .min(short)
    {
        0 => {
            let messages = number_texts::plural(short, "message", "messages");
            let words = format!("{want} for {messages} just now: they wait, or LNet resends them");
            Verdict::new(Level::Warn, "memory", words)
        }
        naks => {
            let puts = number_texts::plural(naks, "PUT", "PUTs");
            let words = format!("{want} for {puts} of peers just now: refused");
            Verdict::new(Level::Bad, "memory", words)
        }
    }
}

/// Returns the problem that LNet on this node has kept the credits of peers for long and receives nothing.
fn slow(ni: &Ni, history: &History) -> Option<Verdict> {
    let mut peers = BTreeSet::new();
    let mut longest = 0;
    for (number, conn) in ni.conns.iter().enumerate() {
        let kept = history.conn(ni, number).map_or(0.0, |track| track.kept);
        let ms = (kept * 1000.0) as u64;
        if ms >= BAD_MS {
            peers.insert(conn.peer.as_str());
            longest = longest.max(ms);
        }
    }
    let of = number_texts::plural(peers.len() as u64, "peer", "peers");
    (!peers.is_empty()).then(|| {
        let words = format!(
            "our LNet keeps all credits of {of} for {}: this node is slow: memory, load, disks",
            number_texts::span(longest)
        );
        Verdict::new(Level::Bad, "our-lnet-slow", words)
    })
}

fn refusing(events: &[Event], now: f64, kind: &'static str, what: &str) -> Option<Verdict> {
    let to_see = |e: &&Event| {
        e.what == "refused" && now - e.time <= RECENT_S && !cause_texts::is_negotiation(&e.cause)
    };
    let newest = events.iter().rev().find(to_see)?;
    let n = events
        .iter()
        .filter(to_see)
        .fold(0u64, |sum, e| sum.saturating_add(e.count));
    let asked = match newest.requested.as_str() {
        "" => String::new(),
        nid => format!(" for {nid}"),
    };
    let words = format!(
        "{what} ({n} in {}, last of {}{asked}): {}",
        number_texts::span((RECENT_S * 1000.0) as u64),
        newest.peer,
        cause_texts::refusal(&newest.cause)
    );
    Some(Verdict::new(Level::Warn, kind, words))
}

/// Returns the verdict on a node without NI, and on requests for unknown NIs.
pub fn of_none(sample: &Sample) -> Option<Verdict> {
    if sample.nis.is_empty() {
        let words = "there is no o2ib NI: \"lnetctl net show\", and the log of the last one";
        return Some(Verdict::new(Level::Bad, "no-ni", words));
    }
    let what = "requests for unknown NIs, compare nets and \"service\"";
    refusing(&sample.unknown_ni_events, sample.time, "unknown-ni", what)
}
