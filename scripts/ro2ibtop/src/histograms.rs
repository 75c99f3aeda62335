// SPDX-License-Identifier: GPL-2.0

//! Histograms of the driver: how long messages stay in each stage, and the increase since another sample.

use schemars::JsonSchema;
use serde::Serialize;

/// Histogram of one stage and one operation.
#[derive(Clone, Debug, Default, JsonSchema, PartialEq, Eq, Serialize)]
#[serde(into = "Summary")]
#[schemars(with = "Summary")]
pub struct Times {
    /// `queued`, `credit`, `wire`, `answer` or `lnet`.
    pub stage: String,
    /// The message, in the words of the protocol.
    pub op: String,
    /// Sum of all times, in nanoseconds.
    pub sum_ns: u64,
    /// Number of messages by limit: those that took less than the limit in nanoseconds, and not less than the
    /// limit before it. `u64::MAX` is the last limit.
    pub counts: Vec<(u64, u64)>,
}

/// A histogram as programs get it.
#[derive(JsonSchema, Serialize)]
struct Summary {
    /// `queued`, `credit`, `wire`, `answer` or `lnet`.
    stage: String,
    /// The message, in the words of the protocol.
    op: String,
    /// Number of messages.
    n: u64,
    /// Sum of their times.
    sum_ns: u64,
    /// Upper limit of the time that half of them took; missing if the histogram has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    p50_ns: Option<u64>,
    /// Upper limit of the time that 99 % of them took; missing if the histogram has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    p99_ns: Option<u64>,
}

impl From<Times> for Summary {
    fn from(times: Times) -> Self {
        Self {
            n: times.n(),
            sum_ns: times.sum_ns,
            p50_ns: times.quantile(500),
            p99_ns: times.quantile(990),
            stage: times.stage,
            op: times.op,
        }
    }
}

impl Times {
    /// Returns the number of messages.
    pub fn n(&self) -> u64 {
        let counts = self.counts.iter().map(|(_, n)| n);
        counts.fold(0, |sum, n| sum.saturating_add(*n))
    }

    /// Returns the limit in nanoseconds that `of_1000` of 1000 messages stayed below; `None` without messages
    /// or limit.
    pub fn quantile(&self, of_1000: u64) -> Option<u64> {
        let n = u128::from(self.n());
        let wanted = (n * u128::from(of_1000)).div_ceil(1000).max(1);
        let mut seen = 0;
        for (limit, count) in &self.counts {
            seen += u128::from(*count);
            if seen >= wanted {
                return (*limit != u64::MAX).then_some(*limit);
            }
        }
        None
    }

    /// Returns the increase since `before`, or everything if `before` is of an earlier start of the NI.
    fn since(&self, before: &Self) -> Self {
        let old = |limit: u64| {
            let found = before.counts.iter().find(|(l, _)| *l == limit);
            found.map_or(0, |(_, n)| *n)
        };
        let mut counts = Vec::with_capacity(self.counts.len());
        for (limit, n) in &self.counts {
            let Some(more) = n.checked_sub(old(*limit)) else {
                return self.clone();
            };
            if more > 0 {
                counts.push((*limit, more));
            }
        }
        Self {
            stage: self.stage.clone(),
            op: self.op.clone(),
            sum_ns: self.sum_ns.saturating_sub(before.sum_ns),
            counts,
        }
    }
}

/// Returns the increase of each histogram since another sample, without those that did not change.
pub fn since(now: &[Times], before: &[Times]) -> Vec<Times> {
    let more = now.iter().map(|times| {
        let old = before
            .iter()
            .find(|old| old.stage == times.stage && old.op == times.op);
        old.map_or_else(|| times.clone(), |old| times.since(old))
    });
    more.filter(|times| times.n() > 0).collect()
}

/// Sorts stages by the time they took, most first.
pub fn costly(times: &[Times]) -> Vec<&Times> {
    // Messages that wait for a credit are counted as queued, too.
    let all = times.iter().filter(|t| t.stage != "credit" && t.n() > 0);
    let mut all: Vec<_> = all.collect();
    all.sort_by_key(|times| std::cmp::Reverse(times.sum_ns));
    all
}

/// Formats a time in a few characters.
pub fn span(ns: u64) -> String {
    let (n, unit) = match ns {
        0..1_000 => return format!("{ns} ns"),
        1_000..1_000_000 => (ns, "us"),
        1_000_000..1_000_000_000 => (ns / 1_000, "ms"),
        _ => (ns / 1_000_000, "s"),
    };
    match n {
        0..10_000 => format!("{}.{} {unit}", n / 1000, n % 1000 / 100),
        _ => format!("{} {unit}", n / 1000),
    }
}
