// SPDX-License-Identifier: GPL-2.0

//! Data of a sample.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

pub use crate::conn_counters::Counts;
use crate::{
    histograms::Times,
    json::{
        milliseconds,
        tallies,
        tally, //
    },
};

/// Counts by cause, in the driver's order.
pub type Tally = Vec<(String, u64)>;

/// Sample: everything that was read at one time.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// Seconds since the epoch.
    pub time: f64,
    /// The NIs.
    pub nis: Vec<Ni>,
    /// Requests for an NI that this node does not have, by reason.
    pub unknown_ni: Tally,
    /// The last of these requests.
    pub unknown_ni_events: Vec<Event>,
    /// Parameters of the module.
    pub parameters: BTreeMap<String, String>,
    /// Lines that were not understood.
    pub unread: u64,
}

/// An NI.
#[derive(Clone, Debug, Default, JsonSchema, Serialize)]
pub struct Ni {
    /// NID.
    pub nid: String,
    /// RDMA device, empty while the NI has none.
    pub device: String,
    /// The NI has no carrier, no address, or no active port.
    pub link_down: bool,
    /// Fault of the device: `broken`, `gsi_dead`, `refuses`, or `ok`; empty with an older driver.
    pub health: String,
    /// Speed of the port in Mb/s; 0 is unknown.
    pub speed_mbps: u64,
    /// Packets of other partitions since the start of the NI.
    pub bad_pkeys: u64,
    /// Depth of new connections, unless the peer has less; 0 with an older driver.
    pub depth: u64,
    /// Source of the depth; empty with an older driver.
    pub depth_by: String,
    /// Gather elements of a work request.
    pub gather: u64,
    /// Memory regions of all NIs of the device.
    pub regions: u64,
    /// Limit of the memory regions; 0 with an older driver.
    pub max_regions: u64,
    /// Number of idle regions that moved to another connection.
    pub regions_moved: u64,
    /// Start of the NI, in microseconds since the epoch.
    pub incarnation: u64,
    /// Messages that wait for a connection.
    pub waiting: u64,
    /// Closed connections whose CM id still exists.
    pub lingering: u64,
    /// Counters of closed connections.
    #[serde(skip)]
    pub past: Counts,
    /// Number of ends, by kind and cause.
    #[serde(rename = "ended", serialize_with = "tallies")]
    #[schemars(with = "BTreeMap<String, BTreeMap<String, u64>>")]
    pub causes: BTreeMap<String, Tally>,
    /// Peers.
    #[serde(skip)]
    pub peers: Vec<Peer>,
    /// Connections.
    #[serde(skip)]
    pub conns: Vec<Conn>,
    /// Last ends, the oldest first.
    pub events: Vec<Event>,
    /// Latency histograms since the start of the NI.
    pub latency: Vec<Times>,
    /// Counters of the device.
    pub hardware: BTreeMap<String, u64>,
    /// The device has not answered a request for its counters.
    #[serde(skip)]
    pub counters_hang: bool,
}

/// A peer.
#[derive(Clone, Debug, Default, JsonSchema, Serialize)]
pub struct Peer {
    /// NID.
    pub nid: String,
    /// Connection objects.
    pub conns: u64,
    /// Connections that messages may use.
    pub usable: u64,
    /// Messages that wait for a connection.
    pub waiting: u64,
    /// Milliseconds for which the oldest of these has waited.
    pub waited_ms: u64,
    /// Closed connections.
    pub closed: u64,
    /// Failed attempts.
    pub failed: u64,
    /// Cause of the last end; empty if there was none.
    pub last: String,
    /// Milliseconds since the last end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_ago_ms: Option<u64>,
    /// Attempts that failed in a row.
    pub failures: u64,
    /// Milliseconds until the next attempt; `None` if none is due.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_ms: Option<u64>,
    /// Ends of its connections and attempts, by cause.
    #[serde(serialize_with = "tally")]
    #[schemars(with = "BTreeMap<String, u64>")]
    pub ends: Tally,
}

/// A connection.
#[derive(Clone, Debug, Default, JsonSchema, Serialize)]
pub struct Conn {
    /// NID of the peer.
    pub peer: String,
    /// Number among the connections of the NI; 0 with an older driver.
    pub number: u64,
    /// This node asked for the connection.
    pub active: bool,
    /// State.
    pub state: String,
    /// Queue depth.
    pub depth: u64,
    /// Credits for the peer's buffers.
    pub credits: u64,
    /// Receive buffers that the peer has no credit for yet.
    pub outstanding: u64,
    /// Free buffers for answers.
    pub reserved: u64,
    /// Credits of the peer.
    pub peer_held: u64,
    /// Queued messages that wait for a credit.
    pub q_main: u64,
    /// Queued messages that need no credit.
    pub q_nocred: u64,
    /// Queued requests that wait for a reserved buffer.
    pub q_unreserved: u64,
    /// Requests that LNet has not received yet.
    pub with_lnet: u64,
    /// Free send queue slots.
    pub sq_free: u64,
    /// Milliseconds since the last receive.
    pub idle_ms: u64,
    /// Counters.
    pub counts: Counts,
    /// Number of the own queue pair; 0 is unknown.
    pub qpn: u64,
    /// Number of the peer's queue pair.
    pub peer_qpn: u64,
    /// Path MTU; 0 is unknown.
    pub mtu: u64,
    /// Age of the oldest transmit in milliseconds.
    pub oldest_ms: u64,
    /// State of the oldest transmit: `none`, `queued`, `sending` or `answer`; empty with an older driver.
    pub oldest: String,
    /// The peer may have closed the connection.
    pub suspect: bool,
}

/// End of a connection or attempt, or a rejected request.
#[derive(Clone, Debug, Default, JsonSchema, PartialEq, Serialize)]
pub struct Event {
    /// `closed`, `failed` or `refused`.
    pub what: String,
    /// Seconds since the epoch.
    #[serde(serialize_with = "milliseconds")]
    pub time: f64,
    /// The peer, `unknown` if it is not known.
    pub peer: String,
    /// This node had asked for the connection.
    pub active: bool,
    /// Side that closed first.
    pub by: String,
    /// The cause.
    pub cause: String,
    /// Reason that the peer gave; empty if none.
    pub detail: String,
    /// NID that the request was for, if it was wrong; otherwise empty.
    pub requested: String,
    /// Number of equal ends.
    pub count: u64,
}

impl Ni {
    /// Returns whether the NI has a usable device.
    pub fn has_device(&self) -> bool {
        !self.device.is_empty()
            && !matches!(self.health.as_str(), "broken" | "gsi_dead" | "refuses")
    }

    /// Returns the counters of all its connections, open and closed.
    pub fn totals(&self) -> Counts {
        let mut sum = self.past;
        for conn in &self.conns {
            sum.add(&conn.counts);
        }
        sum
    }

    /// Returns how often a cause ended something.
    pub fn count(&self, of: &str, cause: &str) -> u64 {
        let counts = self.causes.get(of);
        let found = counts.and_then(|c| c.iter().find(|(name, _)| name == cause));
        found.map_or(0, |(_, n)| *n)
    }

    /// Returns the number of ends of a kind, of all causes.
    pub fn count_all(&self, of: &str) -> u64 {
        let counts = self.causes.get(of).into_iter().flatten();
        counts.fold(0, |sum, (_, n)| sum.saturating_add(*n))
    }
}
