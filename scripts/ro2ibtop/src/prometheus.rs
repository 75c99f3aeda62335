// SPDX-License-Identifier: GPL-2.0

//! The text format of Prometheus, per NI and per peer. Connections come and go too often for series.

use std::{
    collections::BTreeMap,
    fmt::Write as _, //
};

use crate::{
    model::{
        Conn,
        Ni,
        Peer, //
    },
    verdict::of_none,
    view::App, //
};

struct Out(String);

impl Out {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        self.0.push_str(name);
        for (i, (label, value)) in labels.iter().enumerate() {
            self.0.push(if i == 0 { '{' } else { ',' });
            let value = value
                .replace('\\', "\\\\")
                .replace('"', "\\\"")
                .replace('\n', "\\n");
            let _ = write!(self.0, "{label}=\"{value}\"");
        }
        if !labels.is_empty() {
            self.0.push('}');
        }
        let _ = writeln!(self.0, " {value}");
    }
}

fn of_peers(conns: &[Conn], f: impl Fn(&mut u64, &Conn)) -> BTreeMap<&str, u64> {
    let mut found = BTreeMap::new();
    for conn in conns {
        f(found.entry(conn.peer.as_str()).or_default(), conn);
    }
    found
}

/// Writes the histograms.
fn stages(out: &mut Out, nis: &[Ni]) {
    const NAME: &str = "ro2ib_stage_seconds";
    out.family(
        NAME,
        "histogram",
        "How long messages were in a stage: queued, credit, wire, answer, lnet.",
    );
    let seconds = |ns: u64| ns as f64 / 1e9;
    for ni in nis {
        for times in &ni.latency {
            let mut sum = 0u64;
            let labels = [
                ("ni", ni.nid.as_str()),
                ("stage", times.stage.as_str()),
                ("op", times.op.as_str()),
            ];
            let with = |le: &str, out: &mut Out, n: u64| {
                let labels = [labels[0], labels[1], labels[2], ("le", le)];
                out.sample(&format!("{NAME}_bucket"), &labels, n);
            };
            // All series have the same limits; otherwise they could not be summed.
            for limit in (9..40).map(|bits| 1u64 << bits) {
                let counts = times.counts.iter().filter(|(l, _)| *l == limit);
                sum = counts.fold(sum, |sum, (_, n)| sum.saturating_add(*n));
                with(&seconds(limit).to_string(), out, sum);
            }
            with("+Inf", out, times.n());
            out.sample(&format!("{NAME}_sum"), &labels, seconds(times.sum_ns));
            out.sample(&format!("{NAME}_count"), &labels, times.n());
        }
    }
}

/// Writes the metrics of peers.
fn peers(out: &mut Out, nis: &[Ni]) {
    type Of = fn(&Peer) -> Option<u64>;
    let gauges: [(&str, &str, Of); 3] = [
        (
            "ro2ib_peer_waiting",
            "Messages that wait for a connection to the peer.",
            |p| Some(p.waiting),
        ),
        (
            "ro2ib_peer_failures",
            "Attempts to connect that failed in a row.",
            |p| Some(p.failures),
        ),
        (
            "ro2ib_peer_retry_ms",
            "Milliseconds until the next attempt, if one is due.",
            |p| p.retry_ms,
        ),
    ];
    for (name, help, of) in gauges {
        out.family(name, "gauge", help);
        for ni in nis {
            // The driver has each peer once; in a damaged report the last one counts.
            let told = ni.peers.iter();
            let told: BTreeMap<&str, u64> = told
                .filter_map(|p| Some((p.nid.as_str(), of(p)?)))
                .collect();
            for (peer, n) in told {
                out.sample(name, &[("ni", &ni.nid), ("peer", peer)], n);
            }
        }
    }
    const ENDED: &str = "ro2ib_peer_ended_total";
    out.family(
        ENDED,
        "counter",
        "Connections and attempts of the peer that ended, by cause.",
    );
    for ni in nis {
        let ends = ni.peers.iter().flat_map(|peer| {
            let of_peer = peer.ends.iter();
            of_peer.map(|(cause, n)| ((peer.nid.as_str(), cause.as_str()), *n))
        });
        for ((peer, cause), n) in ends.collect::<BTreeMap<_, _>>() {
            let labels = [("ni", ni.nid.as_str()), ("peer", peer), ("cause", cause)];
            out.sample(ENDED, &labels, n);
        }
    }
}

/// Returns all metrics.
pub fn text(app: &App) -> String {
    let mut out = Out(String::new());
    let nis = &app.sample.nis;

    // At least one sample is written, so that silence is an alarm.
    out.family("ro2ib_nis", "gauge", "NIs that there are.");
    out.sample("ro2ib_nis", &[], nis.len());
    out.family(
        "ro2ib_device_up",
        "gauge",
        "Whether the NI has a working RDMA device: without a fatal error, and its GSI queue pair works.",
    );
    for ni in nis {
        let up = u8::from(ni.has_device());
        out.sample(
            "ro2ib_device_up",
            &[("ni", &ni.nid), ("device", &ni.device)],
            up,
        );
    }
    out.family(
        "ro2ib_link_up",
        "gauge",
        "Whether the NI has carrier, address and an active port.",
    );
    for ni in nis {
        let up = u8::from(!ni.link_down);
        out.sample("ro2ib_link_up", &[("ni", &ni.nid)], up);
    }
    out.family("ro2ib_connections", "gauge", "Connections by state.");
    for ni in nis {
        let mut states: BTreeMap<&str, u64> = BTreeMap::from([("Established", 0)]);
        for conn in &ni.conns {
            *states.entry(conn.state.as_str()).or_default() += 1;
        }
        for (state, n) in states {
            out.sample("ro2ib_connections", &[("ni", &ni.nid), ("state", state)], n);
        }
    }
    out.family(
        "ro2ib_waiting_messages",
        "gauge",
        "Messages that wait for a connection.",
    );
    for ni in nis {
        out.sample("ro2ib_waiting_messages", &[("ni", &ni.nid)], ni.waiting);
    }
    out.family(
        "ro2ib_messages_total",
        "counter",
        "Messages sent and received.",
    );
    for ni in nis {
        let totals = ni.totals();
        for (direction, n) in [("sent", totals.tx_msgs), ("received", totals.rx_msgs)] {
            let labels = [("ni", ni.nid.as_str()), ("direction", direction)];
            out.sample("ro2ib_messages_total", &labels, n);
        }
    }
    out.family(
        "ro2ib_stalls_total",
        "counter",
        "Times that sending stopped because credits or send queue slots ran out.",
    );
    for ni in nis {
        let totals = ni.totals();
        for (of, n) in [("credit", totals.no_credit), ("slots", totals.no_slots)] {
            out.sample("ro2ib_stalls_total", &[("ni", &ni.nid), ("of", of)], n);
        }
    }
    out.family(
        "ro2ib_rnr_total",
        "counter",
        "Sends for which the peer had no receive posted.",
    );
    for ni in nis {
        out.sample("ro2ib_rnr_total", &[("ni", &ni.nid)], ni.totals().rnr);
    }
    out.family(
        "ro2ib_ended_total",
        "counter",
        "Ends by cause: closed, failed, messages, refused, other.",
    );
    for ni in nis {
        for (of, counts) in &ni.causes {
            for (cause, n) in counts {
                let labels = [("ni", ni.nid.as_str()), ("of", of), ("cause", cause)];
                out.sample("ro2ib_ended_total", &labels, n);
            }
        }
    }
    stages(&mut out, nis);
    out.family(
        "ro2ib_unknown_ni_total",
        "counter",
        "Requests for none of the NIs, by reason.",
    );
    for (reason, n) in &app.sample.unknown_ni {
        out.sample("ro2ib_unknown_ni_total", &[("reason", reason)], n);
    }
    peers(&mut out, nis);
    type Of = fn(&mut u64, &Conn);
    let of_conns: [(&str, &str, Of); 4] = [
        (
            "ro2ib_peer_credits",
            "Credits for the peer's buffers.",
            |n, c| {
                *n = n.saturating_add(c.credits);
            },
        ),
        (
            "ro2ib_peer_queued",
            "Messages queued on connections to the peer.",
            |n, c| {
                let queued = c.q_main.saturating_add(c.q_nocred);
                *n = n.saturating_add(queued).saturating_add(c.q_unreserved);
            },
        ),
        (
            "ro2ib_peer_with_lnet",
            "Requests of the peer that LNet has not taken.",
            |n, c| {
                *n = n.saturating_add(c.with_lnet);
            },
        ),
        (
            "ro2ib_peer_oldest_ms",
            "Age of the oldest message to the peer.",
            |n, c| {
                *n = (*n).max(c.oldest_ms);
            },
        ),
    ];
    for (name, help, f) in of_conns {
        out.family(name, "gauge", help);
        for ni in nis {
            for (peer, n) in of_peers(&ni.conns, f) {
                out.sample(name, &[("ni", &ni.nid), ("peer", peer)], n);
            }
        }
    }
    out.family(
        "ro2ib_trouble",
        "gauge",
        "Connections, peers and NIs of which there is something to say.",
    );
    let mut troubles: BTreeMap<(&str, &str, &str), u64> = BTreeMap::new();
    for (ni, verdict) in nis.iter().zip(&app.nis) {
        if verdict.kind != "fine" {
            *troubles
                .entry((&ni.nid, verdict.level.name(), verdict.kind))
                .or_default() += 1;
        }
    }
    let none = of_none(&app.sample);
    if let Some(verdict) = &none {
        troubles.insert(("", verdict.level.name(), verdict.kind), 1);
    }
    for item in &app.items {
        if let (Some(ni), false) = (nis.get(item.ni), item.verdict.kind == "fine") {
            let key = (
                ni.nid.as_str(),
                item.verdict.level.name(),
                item.verdict.kind,
            );
            *troubles.entry(key).or_default() += 1;
        }
    }
    for ((ni, level, kind), n) in troubles {
        out.sample(
            "ro2ib_trouble",
            &[("ni", ni), ("level", level), ("kind", kind)],
            n,
        );
    }
    out.0
}
