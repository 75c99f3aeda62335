// SPDX-License-Identifier: GPL-2.0

//! What is wrong, in words: of an NI, of a peer, of a connection. The worst there is.

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
    history::History,
    model::Ni,
    times::Times,
    words, //
};

/// How bad it is.
#[derive(Clone, Copy, Debug, JsonSchema, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
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
#[derive(Clone, Debug, JsonSchema, PartialEq, Serialize)]
pub struct Verdict {
    /// How bad it is.
    pub level: Level,
    /// For programs: one of [`KINDS`].
    #[schemars(extend("enum" = KINDS))]
    pub kind: &'static str,
    /// For people.
    pub words: String,
}

/// All kinds of verdicts.
pub const KINDS: [&str; 31] = [
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
    "doubted",
    "connecting",
    "closing",
    "waiting",
    "breaks",
    "ended",
    "no-ni",
    "no-device",
    "device-broken",
    "cm-mute",
    "link-down",
    "device-mute",
    "flaps",
    "memory",
    "retries",
    "refusing",
    "strangers",
    "told",
    "pkeys",
    "gone",
];

/// Milliseconds from which waiting is said.
const SLOW_MS: u64 = 500;
/// Milliseconds from which it is bad: the transport's first retries are over.
pub(crate) const BAD_MS: u64 = 3_000;
/// Seconds that an end is worth a word.
const RECENT_S: f64 = 120.0;

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

    /// What is shown of it: of what is fine there may be nothing to say.
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

/// What is known of the way to the peers of an NI.
#[derive(Clone, Copy, Debug, Default)]
pub struct Way {
    /// Whether data gets there.
    pub data: Data,
    /// Packets were lost since the sample before: whatever waits may wait for that.
    pub lossy: bool,
    /// The connections of the peer break again and again.
    pub breaks: bool,
}

impl Way {
    /// That of an NI.
    pub fn of(ni: &Ni, history: &History) -> Self {
        Self {
            data: Data::of(ni, history),
            lossy: of_ni::retries(ni, history).next().is_some(),
            breaks: false,
        }
    }
}

/// Whether data gets to peers, as far as the histograms of the wire tell: it is what is as large as the path allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Data {
    /// It cannot be told.
    #[default]
    Unknown,
    /// Some did since the sample before.
    Through,
    /// None has since the NI was started, and some was sent.
    Never,
}

impl Data {
    /// That of an NI. With several peers nobody knows whose it is that got through.
    fn of(ni: &Ni, history: &History) -> Self {
        let any = |times: &[Times], stage| {
            times
                .iter()
                .any(|t| t.stage == stage && DATA.contains(&t.op.as_str()) && t.n() > 0)
        };
        let through = |times: &[Times]| any(times, "wire");
        // Who only receives data, or asks for none, has sent none.
        if !any(&ni.times, "queued") && !through(&ni.times) {
            Self::Unknown
        } else if !through(&ni.times) {
            Self::Never
        } else if history.can_compare() && ni.peers.len() == 1 && through(history.times(ni)) {
            Self::Through
        } else {
            Self::Unknown
        }
    }

    /// Why some packets get through, and others do not.
    fn lossy(self) -> &'static str {
        match self {
            Self::Unknown => {
                "packets get lost, some or all large ones: cable, switch, or the MTU of the whole way, or a filter"
            }
            Self::Through => "some packets get lost, data gets through: cable, switch",
            Self::Never => {
                "no data has got through since the NI was started: the MTU of the whole way, or a filter"
            }
        }
    }

    /// Said of a peer that was lost and is there again.
    fn back(self) -> &'static str {
        match self {
            Self::Unknown => {
                "it answers again: it was away, or large packets get lost: the MTU of the whole way, or a filter"
            }
            Self::Through => "it answers again: data gets through, it was away",
            Self::Never => {
                "it answers again: no data has got through since the NI was started: the MTU of the whole way, or a filter"
            }
        }
    }
}

/// Messages that say that data was moved, which goes before them.
const DATA: [&str; 2] = ["PUT_DONE", "GET_DONE"];

fn level_of(ms: u64) -> Level {
    match ms {
        0..SLOW_MS => Level::Note,
        SLOW_MS..BAD_MS => Level::Warn,
        _ => Level::Bad,
    }
}

fn ago(now: f64, then: f64) -> String {
    words::span(((now - then).max(0.0) * 1000.0) as u64)
}
