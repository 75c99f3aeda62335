// SPDX-License-Identifier: GPL-2.0

//! What was read, as data.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use crate::{
    json::{
        milliseconds,
        tallies,
        tally, //
    },
    times::Times, //
};

/// Counts by cause, in the driver's order.
pub type Tally = Vec<(String, u64)>;

/// Everything that was read at one time.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// Seconds since the epoch.
    pub time: f64,
    /// The NIs.
    pub nis: Vec<Ni>,
    /// Requests that were for none of the NIs, by reason.
    pub strangers: Tally,
    /// The last of those.
    pub stranger_events: Vec<Event>,
    /// Parameters of the module.
    pub parameters: BTreeMap<String, String>,
    /// Lines that were not understood.
    pub unread: u64,
}

/// An NI.
#[derive(Clone, Debug, Default, JsonSchema, Serialize)]
pub struct Ni {
    /// Its NID.
    pub nid: String,
    /// Its RDMA device, empty while it has none.
    pub device: String,
    /// It has no carrier, no address, or a port that is not active.
    pub link_down: bool,
    /// What is wrong with its device: `broken`, `mute`, or `ok`; empty with an older driver.
    pub health: String,
    /// Speed of its port in Mb/s; 0 is unknown.
    pub speed_mbps: u64,
    /// Packets of other partitions since it was started.
    pub bad_pkeys: u64,
    /// Depth of new connections, if the peer has as much; 0 with an older driver.
    pub depth: u64,
    /// Who says so; empty with an older driver.
    pub depth_by: String,
    /// Gather elements of a work request.
    pub gather: u64,
    /// Memory regions that all NIs of the device have together.
    pub regions: u64,
    /// How many they may have; 0 with an older driver.
    pub max_regions: u64,
    /// How often one that lay idle went to another connection.
    pub regions_moved: u64,
    /// Microseconds since the epoch when it was started.
    pub incarnation: u64,
    /// Messages that wait for a connection.
    pub waiting: u64,
    /// Connections that are over but for their CM id.
    pub parting: u64,
    /// Counters of the connections that are over.
    #[serde(skip)]
    pub past: Counts,
    /// How often things ended, by what ended and by cause.
    #[serde(rename = "ended", serialize_with = "tallies")]
    #[schemars(with = "BTreeMap<String, BTreeMap<String, u64>>")]
    pub causes: BTreeMap<String, Tally>,
    /// Peers.
    #[serde(skip)]
    pub peers: Vec<Peer>,
    /// Connections.
    #[serde(skip)]
    pub conns: Vec<Conn>,
    /// What ended last, the oldest first.
    pub events: Vec<Event>,
    /// How long messages were where, since it was started.
    pub times: Vec<Times>,
    /// Counters of the device.
    pub hardware: BTreeMap<String, u64>,
    /// The device was asked for them, and has not answered.
    #[serde(skip)]
    pub mute: bool,
}

/// A peer.
#[derive(Clone, Debug, Default, JsonSchema, Serialize)]
pub struct Peer {
    /// Its NID.
    pub nid: String,
    /// Connection objects.
    pub conns: u64,
    /// Those that messages may use.
    pub usable: u64,
    /// Messages that wait for a connection.
    pub waiting: u64,
    /// Milliseconds the oldest of them has waited.
    pub waited_ms: u64,
    /// Connections that ended.
    pub closed: u64,
    /// Attempts that ended without one.
    pub failed: u64,
    /// Why the last of them ended; empty if none did.
    pub last: String,
    /// Milliseconds since then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_ago_ms: Option<u64>,
    /// Attempts that failed in a row.
    pub failures: u64,
    /// Milliseconds until the next one; `None` if none is due.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_ms: Option<u64>,
    /// What its connections and attempts ended of, and how often.
    #[serde(serialize_with = "tally")]
    #[schemars(with = "BTreeMap<String, u64>")]
    pub ends: Tally,
}

/// A connection.
#[derive(Clone, Debug, Default, JsonSchema, Serialize)]
pub struct Conn {
    /// The peer's NID.
    pub peer: String,
    /// Of those that the NI had; 0 with an older driver.
    pub number: u64,
    /// We asked for it.
    pub active: bool,
    /// Its state.
    pub state: String,
    /// Queue depth.
    pub depth: u64,
    /// Credits for the peer's buffers.
    pub credits: u64,
    /// Buffers the peer has not been told about.
    pub outstanding: u64,
    /// Buffers free for answers.
    pub reserved: u64,
    /// Credits the peer has.
    pub peer_held: u64,
    /// Queued for want of a credit.
    pub q_main: u64,
    /// Queued, need no credit.
    pub q_free: u64,
    /// Queued for want of a buffer for the answer.
    pub q_unreserved: u64,
    /// Requests that LNet has not taken yet.
    pub with_lnet: u64,
    /// Free send queue slots.
    pub sq_free: u64,
    /// Milliseconds since the last receive.
    pub idle_ms: u64,
    /// Counters.
    pub counts: Counts,
    /// Number of our queue pair; 0 is unknown.
    pub qpn: u64,
    /// Number of the peer's.
    pub peer_qpn: u64,
    /// Path MTU; 0 is unknown.
    pub mtu: u64,
    /// Age of the oldest transmit in milliseconds.
    pub oldest_ms: u64,
    /// What it waits for: `none`, `queued`, `sending` or `answer`; empty with an older driver.
    pub oldest: String,
    /// The peer may have given it up.
    pub doubted: bool,
}

/// Counters of a connection, or the sums of an NI.
#[derive(Clone, Copy, Debug, Default, JsonSchema, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Messages sent.
    pub tx_msgs: u64,
    /// Messages received.
    pub rx_msgs: u64,
    /// NOOPs sent.
    pub tx_noops: u64,
    /// Work requests of the send queue.
    pub wrs: u64,
    /// Times that some of them were acknowledged.
    pub retired: u64,
    /// Times the pump stopped for want of a credit.
    pub no_credit: u64,
    /// Times it stopped for want of send queue slots.
    pub no_slots: u64,
    /// Sends for which the peer had no receive posted.
    pub rnr: u64,
    /// Messages that waited or failed for want of memory or memory regions.
    pub no_memory: u64,
}

impl Counts {
    /// Adds.
    pub fn add(&mut self, other: &Self) {
        for (sum, n) in [
            (&mut self.tx_msgs, other.tx_msgs),
            (&mut self.rx_msgs, other.rx_msgs),
            (&mut self.tx_noops, other.tx_noops),
            (&mut self.wrs, other.wrs),
            (&mut self.retired, other.retired),
            (&mut self.no_credit, other.no_credit),
            (&mut self.no_slots, other.no_slots),
            (&mut self.rnr, other.rnr),
            (&mut self.no_memory, other.no_memory),
        ] {
            *sum = sum.saturating_add(n);
        }
    }
}

/// Something that ended.
#[derive(Clone, Debug, Default, JsonSchema, PartialEq, Serialize)]
pub struct Event {
    /// `closed`, `failed` or `refused`.
    pub what: String,
    /// Seconds since the epoch.
    #[serde(serialize_with = "milliseconds")]
    pub time: f64,
    /// The peer, `unknown` if it is not known.
    pub peer: String,
    /// We had asked for the connection.
    pub active: bool,
    /// Who began the end.
    pub by: String,
    /// The cause.
    pub cause: String,
    /// What the peer said; empty if nothing.
    pub detail: String,
    /// The NID that was asked for, if that is what was wrong; else empty.
    pub asked: String,
    /// How many.
    pub times: u64,
}

impl Ni {
    /// Whether it has a device, and that can be used.
    pub fn has_device(&self) -> bool {
        !self.device.is_empty() && !matches!(self.health.as_str(), "broken" | "mute")
    }

    /// Counters of all its connections, past and present.
    pub fn totals(&self) -> Counts {
        let mut sum = self.past;
        for conn in &self.conns {
            sum.add(&conn.counts);
        }
        sum
    }

    /// How often something ended for that cause.
    pub fn count(&self, of: &str, cause: &str) -> u64 {
        let counts = self.causes.get(of);
        let found = counts.and_then(|c| c.iter().find(|(name, _)| name == cause));
        found.map_or(0, |(_, n)| *n)
    }

    /// How often something ended, whatever the cause.
    pub fn count_all(&self, of: &str) -> u64 {
        let counts = self.causes.get(of).into_iter().flatten();
        counts.fold(0, |sum, (_, n)| sum.saturating_add(*n))
    }
}
