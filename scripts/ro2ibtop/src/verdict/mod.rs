// SPDX-License-Identifier: GPL-2.0

//! Verdicts in words: the worst problem of an NI, a peer or a connection.

mod of_conn;
mod of_ni;
mod of_peer;

pub use of_conn::{
    conn,
    is_starved,
    keeps_credits, //
};
pub use of_ni::{
    ni,
    of_none, //
};
pub use of_peer::{
    lost,
    noisy,
    peer,
    unsteady, //
};

use schemars::JsonSchema;
use serde::Serialize;

use crate::{
    histograms::Times,
    history::History,
    model::Ni,
    number_texts, //
};

/// Severity of a verdict.
#[derive(Clone, Copy, Debug, JsonSchema, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// No problem.
    Fine,
    /// Worth knowing.
    Note,
    /// Slow, or not as it should be.
    Warn,
    /// Messages do not get through.
    Bad,
}

impl Level {
    /// Returns the name that programs read.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fine => "fine",
            Self::Note => "note",
            Self::Warn => "warn",
            Self::Bad => "bad",
        }
    }
}

/// Verdict on an NI, a peer or a connection.
#[derive(Clone, Debug, JsonSchema, PartialEq, Serialize)]
pub struct Verdict {
    /// Severity.
    pub level: Level,
    /// Kind, for programs: one of [`KINDS`].
    #[schemars(extend("enum" = KINDS))]
    pub kind: &'static str,
    /// Text, for operators.
    pub words: String,
}

/// All kinds of verdicts.
pub const KINDS: [&str; 32] = [
    "fine",
    "starved",
    "no-answer",
    "not-acknowledged",
    "lossy",
    "full",
    "no-reserve",
    "no-slots",
    "our-lnet-slow",
    "queued",
    "rnr",
    "suspect",
    "connecting",
    "closing",
    "waiting",
    "breaks",
    "ended",
    "no-ni",
    "no-device",
    "device-broken",
    "gsi-dead",
    "posts-refused",
    "link-down",
    "counters-hang",
    "flaps",
    "memory",
    "retries",
    "refusing",
    "unknown-ni",
    "peer-failed",
    "pkeys",
    "gone",
];

/// Milliseconds from which a wait is reported.
const SLOW_MS: u64 = 500;
/// Milliseconds from which a wait is bad: the transport's first retries are over.
pub(crate) const BAD_MS: u64 = 3_000;
/// Seconds for which the end of a connection is reported.
const RECENT_S: f64 = 120.0;

impl Verdict {
    fn new(level: Level, kind: &'static str, words: impl Into<String>) -> Self {
        Self {
            level,
            kind,
            words: words.into(),
        }
    }

    /// Creates the verdict that there is no problem.
    pub fn fine() -> Self {
        Self::new(Level::Fine, "fine", "")
    }

    /// Returns the text, or `ok` if it is empty.
    pub fn words_or_ok(&self) -> &str {
        match self.words.as_str() {
            "" => "ok",
            words => words,
        }
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

/// State of the path to the peers of an NI.
#[derive(Clone, Copy, Debug, Default)]
pub struct Way {
    /// Whether data arrives.
    pub data: Data,
    /// Packets were lost since the previous sample: a message that waits may wait for a retry.
    pub lossy: bool,
    /// The connections of the peer break repeatedly.
    pub breaks: bool,
}

impl Way {
    /// Returns the state of the path of an NI.
    pub fn of(ni: &Ni, history: &History) -> Self {
        Self {
            data: Data::of(ni, history),
            lossy: of_ni::retries(ni, history).next().is_some(),
            breaks: false,
        }
    }
}

/// Whether data reaches peers, judged by the histograms of the wire: packets of data are as large as the path
/// allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Data {
    /// The histograms do not show it.
    #[default]
    Unknown,
    /// Data arrived since the previous sample.
    Through,
    /// Data was sent, and none arrived since the start of the NI.
    Never,
}

impl Data {
    /// Returns the state for an NI. With several peers, the histograms do not show which peer received data.
    fn of(ni: &Ni, history: &History) -> Self {
        let any = |times: &[Times], stage| {
            times
                .iter()
                .any(|t| t.stage == stage && DATA.contains(&t.op.as_str()) && t.n() > 0)
        };
        let through = |times: &[Times]| any(times, "wire");
        // Data follows the answer to a PUT_REQ, and LNet's answer to a GET_REQ.
        let asked = ni.latency.iter().any(|t| {
            let data_follows = [("answer", "PUT_REQ"), ("lnet", "GET_REQ")];
            data_follows.contains(&(t.stage.as_str(), t.op.as_str())) && t.n() > 0
        });
        // A node that only receives data, or requests none, has sent none.
        if !asked && !any(&ni.latency, "queued") && !through(&ni.latency) {
            Self::Unknown
        } else if !through(&ni.latency) {
            Self::Never
        } else if history.can_compare() && ni.peers.len() == 1 && through(history.times(ni)) {
            Self::Through
        } else {
            Self::Unknown
        }
    }

    /// Returns why some packets arrive and others do not.
    fn lossy(self) -> &'static str {
        match self {
            Self::Unknown => {
                "packets get lost, some or all large ones: cable, switch, or the MTU of the whole path, or a filter"
            }
            Self::Through => "some packets get lost, data gets through: cable, switch",
            Self::Never => {
                "no data has got through since the NI was started: the MTU of the whole path, or a filter"
            }
        }
    }

    /// Returns the verdict on a peer that was lost and is connected again.
    fn back(self) -> &'static str {
        match self {
            Self::Unknown => {
                "it answers again: it was away, or large packets get lost: the MTU of the whole path, or a filter"
            }
            Self::Through => "it answers again: data gets through, it was away",
            Self::Never => {
                "it answers again: no data has got through since the NI was started: the MTU of the whole path, or a filter"
            }
        }
    }
}

/// Messages that report a transfer, sent after its data.
const DATA: [&str; 2] = ["PUT_DONE", "GET_DONE"];

fn level_of(ms: u64) -> Level {
    match ms {
        0..SLOW_MS => Level::Note,
        SLOW_MS..BAD_MS => Level::Warn,
        _ => Level::Bad,
    }
}

fn ago(now: f64, then: f64) -> String {
    number_texts::span(((now - then).max(0.0) * 1000.0) as u64)
}
