// SPDX-License-Identifier: GPL-2.0

//! The JSON document of `--json`, and its schema, both made from the same types.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{
    Serialize,
    Serializer, //
};

use crate::{
    model::{
        Conn,
        Counts,
        Event,
        Ni,
        Peer,
        Tally, //
    },
    verdict::{
        self,
        Level,
        Verdict,
        Way, //
    },
    view::App, //
};

/// Version of the document. It rises when the meaning of a key changes, and not when a key is added.
pub const VERSION: u32 = 1;

/// Everything that ro2ibtop knows of a node. Documentation/reference.md explains the keys that debugfs has, too.
#[derive(JsonSchema, Serialize)]
#[schemars(title = "ro2ibtop --json")]
struct Document<'a> {
    #[schemars(extend("const" = VERSION))]
    version: u32,
    /// Seconds since the epoch.
    #[serde(serialize_with = "milliseconds")]
    time: f64,
    /// Worst level of all verdicts.
    worst: Level,
    /// Words of the driver that ro2ibtop does not understand.
    unread: u64,
    /// Parameters of the module.
    parameters: &'a BTreeMap<String, String>,
    /// Requests for an NI that this node does not have, by reason.
    #[serde(serialize_with = "tally")]
    #[schemars(with = "BTreeMap<String, u64>")]
    unknown_ni: &'a Tally,
    /// The last of these requests.
    unknown_ni_events: &'a [Event],
    nis: Vec<NiDocument<'a>>,
}

/// An NI with its peers and connections.
#[derive(JsonSchema, Serialize)]
struct NiDocument<'a> {
    #[serde(flatten)]
    ni: &'a Ni,
    #[serde(flatten)]
    rate: Rate,
    /// Counters of all its connections, open and closed.
    totals: Counts,
    verdict: &'a Verdict,
    peers: Vec<PeerDocument<'a>>,
    /// Peers that failed lately and are no longer known.
    lost_peers: Vec<LostPeer>,
    conns: Vec<ConnDocument<'a>>,
}

/// A peer and its verdict.
#[derive(JsonSchema, Serialize)]
struct PeerDocument<'a> {
    #[serde(flatten)]
    peer: &'a Peer,
    verdict: Verdict,
}

/// A peer that is no longer known, and its verdict.
#[derive(JsonSchema, Serialize)]
struct LostPeer {
    nid: String,
    verdict: Verdict,
}

/// A connection with its rates and verdict.
#[derive(JsonSchema, Serialize)]
struct ConnDocument<'a> {
    #[serde(flatten)]
    conn: &'a Conn,
    #[serde(flatten)]
    rate: Rate,
    verdict: &'a Verdict,
}

/// Messages per second between the last two samples.
#[derive(JsonSchema, Serialize)]
struct Rate {
    #[serde(serialize_with = "milliseconds")]
    tx_per_s: f64,
    #[serde(serialize_with = "milliseconds")]
    rx_per_s: f64,
}

impl From<crate::history::Rate> for Rate {
    fn from(rate: crate::history::Rate) -> Self {
        Self {
            tx_per_s: rate.tx,
            rx_per_s: rate.rx,
        }
    }
}

/// Writes a number with three decimals; 0 stands for what is not finite.
pub(crate) fn milliseconds<S: Serializer>(value: &f64, to: S) -> Result<S::Ok, S::Error> {
    let value = if value.is_finite() { *value } else { 0.0 };
    to.serialize_f64((value * 1000.0).round() / 1000.0)
}

/// Writes counts by cause as an object.
pub(crate) fn tally<S: Serializer>(counts: &Tally, to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(counts.iter().map(|(name, n)| (name, n)))
}

/// Writes several of these as an object of objects.
pub(crate) fn tallies<S: Serializer>(
    all: &BTreeMap<String, Tally>,
    to: S,
) -> Result<S::Ok, S::Error> {
    let object = |counts: &Tally| counts.iter().cloned().collect::<BTreeMap<_, _>>();
    to.collect_map(all.iter().map(|(of, counts)| (of, object(counts))))
}

fn ni_document<'a>(app: &'a App, at: usize, ni: &'a Ni, verdict: &'a Verdict) -> NiDocument<'a> {
    let now = app.sample.time;
    let way = Way::of(ni, &app.history);
    let peers = ni.peers.iter().map(|peer| PeerDocument {
        peer,
        verdict: verdict::peer(ni, peer, now, way),
    });
    let lost = verdict::lost(ni, now).into_iter();
    let items = app.items.iter().filter(|item| item.ni == at);
    let conns = items.filter_map(|item| {
        let track = item.conn.and_then(|number| app.history.conn(ni, number));
        Some(ConnDocument {
            conn: app.conn(item)?,
            rate: track.map(|t| t.rate).unwrap_or_default().into(),
            verdict: &item.verdict,
        })
    });
    let rate = app.history.ni(ni).map(|t| t.rate).unwrap_or_default();
    NiDocument {
        ni,
        rate: rate.into(),
        totals: ni.totals(),
        verdict,
        peers: peers.collect(),
        lost_peers: lost
            .map(|(nid, verdict)| LostPeer { nid, verdict })
            .collect(),
        conns: conns.collect(),
    }
}

/// Returns the document: one line, with its end.
pub fn document(app: &App) -> String {
    let nis = app.sample.nis.iter().zip(&app.nis).enumerate();
    let document = Document {
        version: VERSION,
        time: app.sample.time,
        worst: app.worst(),
        unread: app.sample.unread,
        parameters: &app.sample.parameters,
        unknown_ni: &app.sample.unknown_ni,
        unknown_ni_events: &app.sample.unknown_ni_events,
        nis: nis
            .map(|(at, (ni, verdict))| ni_document(app, at, ni, verdict))
            .collect(),
    };
    // Keys are strings, and no type here fails to serialize.
    serde_json::to_string(&document).unwrap_or_default() + "\n"
}

/// Returns the JSON Schema of [`document()`].
pub fn schema() -> String {
    serde_json::to_string_pretty(&schemars::schema_for!(Document<'_>)).unwrap_or_default() + "\n"
}
