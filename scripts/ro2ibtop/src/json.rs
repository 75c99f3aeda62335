// SPDX-License-Identifier: GPL-2.0

//! All that is known, as JSON: `schema.json` beside this package says what is where.

use std::fmt::Write as _;

use crate::{
    model::{
        Counts,
        Event, //
    },
    verdict::{
        self,
        Verdict, //
    },
    view::App, //
};

/// Changed when something in it means something else than before; not for additions.
pub const VERSION: u32 = 1;

/// A document, written from front to back.
#[derive(Default)]
struct Out {
    text: String,
    comma: bool,
}

impl Out {
    fn separate(&mut self) {
        if self.comma {
            self.text.push(',');
        }
        self.comma = true;
    }

    fn key(&mut self, key: &str) {
        self.separate();
        string(&mut self.text, key);
        self.text.push(':');
        self.comma = false;
    }

    fn open(&mut self, bracket: char) {
        self.separate();
        self.text.push(bracket);
        self.comma = false;
    }

    fn close(&mut self, bracket: char) {
        self.text.push(bracket);
        self.comma = true;
    }

    fn text(&mut self, key: &str, value: &str) {
        self.key(key);
        self.separate();
        string(&mut self.text, value);
    }

    fn number(&mut self, key: &str, value: u64) {
        self.key(key);
        self.separate();
        let _ = write!(self.text, "{value}");
    }

    fn real(&mut self, key: &str, value: f64) {
        self.key(key);
        self.separate();
        let value = if value.is_finite() { value } else { 0.0 };
        let _ = write!(self.text, "{value:.3}");
    }

    fn flag(&mut self, key: &str, value: bool) {
        self.key(key);
        self.separate();
        self.text.push_str(if value { "true" } else { "false" });
    }

    fn list<T>(&mut self, key: &str, of: impl IntoIterator<Item = T>, f: impl Fn(&mut Self, T)) {
        self.key(key);
        self.open('[');
        for item in of {
            self.open('{');
            f(self, item);
            self.close('}');
        }
        self.close(']');
    }

    fn object(&mut self, key: &str, f: impl FnOnce(&mut Self)) {
        self.key(key);
        self.open('{');
        f(self);
        self.close('}');
    }
}

fn string(out: &mut String, value: &str) {
    out.push('"');
    for c in value.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            c if c < ' ' => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

fn counts(out: &mut Out, counts: &Counts) {
    out.number("tx_msgs", counts.tx_msgs);
    out.number("rx_msgs", counts.rx_msgs);
    out.number("tx_noops", counts.tx_noops);
    out.number("wrs", counts.wrs);
    out.number("no_credit", counts.no_credit);
    out.number("no_slots", counts.no_slots);
    out.number("rnr", counts.rnr);
    out.number("no_memory", counts.no_memory);
}

fn said(out: &mut Out, verdict: &Verdict) {
    out.object("verdict", |out| {
        out.text("level", verdict.level.name());
        out.text("kind", verdict.kind);
        out.text("words", &verdict.words);
    });
}

fn event(out: &mut Out, event: &Event) {
    out.text("what", &event.what);
    out.real("time", event.time);
    out.text("peer", &event.peer);
    out.flag("active", event.active);
    out.text("by", &event.by);
    out.text("cause", &event.cause);
    out.text("detail", &event.detail);
    out.text("asked", &event.asked);
    out.number("times", event.times);
}

fn tally(out: &mut Out, key: &str, counts: &[(String, u64)]) {
    out.object(key, |out| {
        for (name, n) in counts {
            out.number(name, *n);
        }
    });
}

/// The document, one line with its end.
pub fn document(app: &App) -> String {
    let mut out = Out::default();
    let now = app.sample.time;
    out.open('{');
    out.number("version", VERSION.into());
    out.real("time", now);
    out.text("worst", app.worst().name());
    out.number("unread", app.sample.unread);
    out.object("parameters", |out| {
        for (name, value) in &app.sample.parameters {
            out.text(name, value);
        }
    });
    tally(&mut out, "strangers", &app.sample.strangers);
    out.list("stranger_events", &app.sample.stranger_events, event);
    let nis = app.sample.nis.iter().zip(&app.nis).enumerate();
    out.list("nis", nis, |out, (at, (ni, verdict))| {
        let rate = app.history.ni(ni).map(|t| t.rate).unwrap_or_default();
        let way = verdict::Way::of(ni, &app.history);
        out.text("nid", &ni.nid);
        out.text("device", &ni.device);
        out.flag("link_down", ni.link_down);
        out.text("health", &ni.health);
        out.number("incarnation", ni.incarnation);
        out.number("speed_mbps", ni.speed_mbps);
        out.number("bad_pkeys", ni.bad_pkeys);
        out.number("depth", ni.depth);
        out.text("depth_by", &ni.depth_by);
        out.number("gather", ni.gather);
        out.number("regions", ni.regions);
        out.number("max_regions", ni.max_regions);
        out.number("regions_moved", ni.regions_moved);
        out.number("waiting", ni.waiting);
        out.number("parting", ni.parting);
        out.real("tx_per_s", rate.tx);
        out.real("rx_per_s", rate.rx);
        out.object("totals", |out| counts(out, &ni.totals()));
        out.object("ended", |out| {
            for (of, counts) in &ni.causes {
                tally(out, of, counts);
            }
        });
        out.object("hardware", |out| {
            for (name, n) in &ni.hardware {
                out.number(name, *n);
            }
        });
        out.list("times", &ni.times, |out, times| {
            out.text("stage", &times.stage);
            out.text("op", &times.op);
            out.number("n", times.n());
            out.number("sum_ns", times.sum_ns);
            for (key, of_1000) in [("p50_ns", 500), ("p99_ns", 990)] {
                if let Some(ns) = times.quantile(of_1000) {
                    out.number(key, ns);
                }
            }
        });
        said(out, verdict);
        out.list("peers", &ni.peers, |out, peer| {
            out.text("nid", &peer.nid);
            out.number("conns", peer.conns);
            out.number("usable", peer.usable);
            out.number("waiting", peer.waiting);
            out.number("waited_ms", peer.waited_ms);
            out.number("closed", peer.closed);
            out.number("failed", peer.failed);
            out.text("last", &peer.last);
            if let Some(ms) = peer.last_ago_ms {
                out.number("last_ago_ms", ms);
            }
            out.number("failures", peer.failures);
            if let Some(ms) = peer.retry_ms {
                out.number("retry_ms", ms);
            }
            tally(out, "ends", &peer.ends);
            said(out, &verdict::peer(ni, peer, now, way));
        });
        out.list(
            "lost_peers",
            verdict::lost(ni, now),
            |out, (nid, verdict)| {
                out.text("nid", &nid);
                said(out, &verdict);
            },
        );
        let conns = app.items.iter().filter(|item| item.ni == at);
        let conns = conns.filter_map(|item| Some((item, app.conn(item)?)));
        out.list("conns", conns, |out, (item, conn)| {
            let rate = item.conn.and_then(|number| app.history.conn(ni, number));
            let rate = rate.map(|t| t.rate).unwrap_or_default();
            out.text("peer", &conn.peer);
            out.number("number", conn.number);
            out.flag("active", conn.active);
            out.text("state", &conn.state);
            for (key, n) in [
                ("depth", conn.depth),
                ("credits", conn.credits),
                ("outstanding", conn.outstanding),
                ("reserved", conn.reserved),
                ("peer_held", conn.peer_held),
                ("q_main", conn.q_main),
                ("q_free", conn.q_free),
                ("q_unreserved", conn.q_unreserved),
                ("with_lnet", conn.with_lnet),
                ("sq_free", conn.sq_free),
                ("idle_ms", conn.idle_ms),
                ("qpn", conn.qpn),
                ("peer_qpn", conn.peer_qpn),
                ("mtu", conn.mtu),
                ("oldest_ms", conn.oldest_ms),
            ] {
                out.number(key, n);
            }
            out.text("oldest", &conn.oldest);
            out.flag("doubted", conn.doubted);
            out.real("tx_per_s", rate.tx);
            out.real("rx_per_s", rate.rx);
            out.object("counts", |out| counts(out, &conn.counts));
            said(out, &item.verdict);
        });
        out.list("events", &ni.events, event);
    });
    out.close('}');
    out.text.push('\n');
    out.text
}
