// SPDX-License-Identifier: GPL-2.0

//! Latency histograms: the stages of a message, and how long each took.
//!
//! A message that is sent passes Queued, and then Answer if the peer answers it, otherwise Wire. The part of Queued in
//! which a credit was missing is also Credit. A request that is received is with LNet until LNet gives its buffer back.
//! The end of a key (LOCAL_INV) is not a message, and not measured.
//!
//! ```text
//!  queued ----> posted ----> all work requests done, or answered
//!     |  Queued   |       Wire, or Answer        |
//!     |  (Credit) |                              +--> queued again (PUT_DONE after the PUT_ACK)
//! ```
//!
//! A histogram has [`BUCKETS`] counts. The first counts times below [`FIRST_NS`]; the limit of each further count is
//! twice that of the one before; the last has no limit. It is stored as a row of 64 numbers, so that there can be a row
//! for each CPU. A time is counted in the number of its highest bit; times below [`FIRST_NS`] in the last number below
//! that. [`words`] returns the numbers of a bucket. [`SUM`] has the sum in nanoseconds.
//!
//! Context: any; the caller holds whatever lock protects a [`Stamps`].

use core::ops::Range;

use crate::proto::{
    tx_state::Op,
    wire::MsgType, //
};

/// Number of counts of a histogram.
pub const BUCKETS: usize = 32;

/// Limit of the first count, in nanoseconds.
pub const FIRST_NS: u64 = 512;

/// Index of the sum, in nanoseconds.
pub const SUM: usize = 0;

/// Number of histograms.
pub const ROWS: usize = ROW_NAMES.len();

/// Stage of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// From being given to its connection to being posted; for a PUT_DONE from the PUT_ACK. Only messages that were not
    /// posted at once are counted.
    Queued,
    /// The part of that in which the connection had no credit. Only messages that waited for one are counted.
    Credit,
    /// From being posted until the device has completed all of it, so that the peer's device has acknowledged it. Only
    /// messages without an answer.
    Wire,
    /// From being posted to the peer's answer: the way there, the time of the peer's LNet, and the way back.
    Answer,
    /// From receiving a request of the peer until LNet gave its buffer back.
    Lnet,
}

impl Stage {
    /// Returns its name, for programs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Credit => "credit",
            Self::Wire => "wire",
            Self::Answer => "answer",
            Self::Lnet => "lnet",
        }
    }
}

/// Kind of a message, in an order in which the kinds of each stage are neighbours ([`row`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxKind {
    /// PUT_ACK.
    PutAck,
    /// PUT_REQ.
    PutReq,
    /// GET_REQ.
    GetReq,
    /// IMMEDIATE.
    Immediate,
    /// PUT_NAK.
    PutNak,
    /// PUT_DONE, with the WRITEs in front.
    PutDone,
    /// GET_DONE, with the WRITEs in front.
    GetDone,
    /// LOCAL_INV, which is no message; its time is not measured.
    Invalidate,
    /// NOOP; its time is not measured.
    Noop,
}

impl TxKind {
    /// Returns its name: that of the message in the protocol.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Immediate => "IMMEDIATE",
            Self::PutReq => "PUT_REQ",
            Self::PutAck => "PUT_ACK",
            Self::PutNak => "PUT_NAK",
            Self::PutDone => "PUT_DONE",
            Self::GetReq => "GET_REQ",
            Self::GetDone => "GET_DONE",
            Self::Noop => "NOOP",
            Self::Invalidate => "LOCAL_INV",
        }
    }

    /// Returns whether the peer answers it.
    #[inline]
    const fn is_answered(self) -> bool {
        matches!(self, Self::PutAck | Self::PutReq | Self::GetReq)
    }

    /// Returns the kind of a received message; `None` for messages of the handshake.
    #[inline]
    pub const fn of_message(message: MsgType) -> Option<Self> {
        Some(match message {
            MsgType::Immediate => Self::Immediate,
            MsgType::PutReq => Self::PutReq,
            MsgType::PutAck => Self::PutAck,
            MsgType::PutNak => Self::PutNak,
            MsgType::PutDone => Self::PutDone,
            MsgType::GetReq => Self::GetReq,
            MsgType::GetDone => Self::GetDone,
            MsgType::Noop => Self::Noop,
            MsgType::ConnReq | MsgType::ConnAck => return None,
        })
    }
}

impl From<Op> for TxKind {
    #[inline]
    fn from(op: Op) -> Self {
        match op {
            Op::Immediate => Self::Immediate,
            Op::PutReq => Self::PutReq,
            Op::GetReq => Self::GetReq,
            Op::PutAck => Self::PutAck,
            Op::PutNak => Self::PutNak,
            Op::PutDone => Self::PutDone,
            Op::GetDone => Self::GetDone,
            Op::Invalidate => Self::Invalidate,
        }
    }
}

/// Stage and kind of each histogram, in order.
pub const ROW_NAMES: [(Stage, TxKind); 20] = [
    (Stage::Queued, TxKind::PutAck),
    (Stage::Queued, TxKind::PutReq),
    (Stage::Queued, TxKind::GetReq),
    (Stage::Queued, TxKind::Immediate),
    (Stage::Queued, TxKind::PutNak),
    (Stage::Queued, TxKind::PutDone),
    (Stage::Queued, TxKind::GetDone),
    (Stage::Credit, TxKind::PutReq),
    (Stage::Credit, TxKind::GetReq),
    (Stage::Credit, TxKind::Immediate),
    (Stage::Wire, TxKind::Immediate),
    (Stage::Wire, TxKind::PutNak),
    (Stage::Wire, TxKind::PutDone),
    (Stage::Wire, TxKind::GetDone),
    (Stage::Answer, TxKind::PutAck),
    (Stage::Answer, TxKind::PutReq),
    (Stage::Answer, TxKind::GetReq),
    (Stage::Lnet, TxKind::PutReq),
    (Stage::Lnet, TxKind::GetReq),
    (Stage::Lnet, TxKind::Immediate),
];

/// Returns the index of a histogram; `None` if there is none, because the kind does not pass the stage.
#[inline]
pub const fn row(stage: Stage, kind: TxKind) -> Option<usize> {
    // The index of the stage's first histogram, and its kinds.
    let (first, kinds) = match stage {
        Stage::Queued => (0usize, (TxKind::PutAck, TxKind::GetDone)),
        Stage::Credit => (7, (TxKind::PutReq, TxKind::Immediate)),
        Stage::Wire => (10, (TxKind::Immediate, TxKind::GetDone)),
        Stage::Answer => (14, (TxKind::PutAck, TxKind::GetReq)),
        Stage::Lnet => (17, (TxKind::PutReq, TxKind::Immediate)),
    };
    let (from, to, at) = (kinds.0 as usize, kinds.1 as usize, kind as usize);
    match at.checked_sub(from) {
        Some(n) if at <= to => Some(first.saturating_add(n)),
        _ => None,
    }
}

/// Returns the numbers of a row that form a bucket: one, except for the last bucket.
pub fn words(bucket: usize) -> Range<usize> {
    // The highest bit of the largest value below the first limit.
    let lowest = 8usize;
    let first = lowest.saturating_add(bucket);
    let end = match bucket < BUCKETS.saturating_sub(1) {
        true => first.saturating_add(1),
        false => 64,
    };
    first..end
}

/// Returns the upper limit of a bucket, in nanoseconds, which is exclusive; `None` for the last.
pub fn limit(bucket: usize) -> Option<u64> {
    if bucket >= BUCKETS.saturating_sub(1) {
        return None;
    }
    FIRST_NS.checked_shl(u32::try_from(bucket).ok()?)
}

/// Returns the bucket of the quantile `of_1000` in 1000: 500 is the median. `None` if all counts are 0.
pub fn quantile(counts: &[u64], of_1000: u64) -> Option<usize> {
    let all = counts.iter().fold(0u64, |n, c| n.saturating_add(*c));
    if all == 0 {
        return None;
    }
    // Large numbers lose some digits, which no display shows.
    let wanted = match all.checked_mul(of_1000) {
        Some(n) => n.div_ceil(1000),
        None => (all / 1000).saturating_mul(of_1000),
    };
    let mut seen = 0u64;
    for (bucket, count) in counts.iter().enumerate() {
        seen = seen.saturating_add(*count);
        if seen >= wanted.max(1) {
            return Some(bucket);
        }
    }
    None
}

/// Clock of one transmit: the time at which its stage began. `T` is a point in time.
#[derive(Clone, Copy, Debug)]
pub struct Stamps<T> {
    since: T,
    /// The message that was posted; `None` while it is queued, and after its last stage.
    posted: Option<TxKind>,
}

impl<T: Copy> Stamps<T> {
    /// Starts the clock when the transmit is given to its connection.
    #[inline]
    pub const fn queued(now: T) -> Self {
        Self {
            since: now,
            posted: None,
        }
    }

    /// Notes that a message is posted; returns since when it was queued.
    #[inline]
    pub fn posted(&mut self, kind: TxKind, now: T) -> T {
        self.posted = Some(kind);
        core::mem::replace(&mut self.since, now)
    }

    /// Notes that all work requests are complete. Returns which message was posted, and when, if it has no answer.
    #[inline]
    pub fn sent(&mut self) -> Option<(TxKind, T)> {
        let kind = self.posted.filter(|kind| !kind.is_answered())?;
        self.posted = None;
        Some((kind, self.since))
    }

    /// Notes the peer's answer; the transmit may be queued again. Returns which message was answered, and when it was
    /// posted; `None` if no answer was expected.
    #[inline]
    pub fn answered(&mut self, now: T) -> Option<(TxKind, T)> {
        let kind = self.posted.take()?;
        Some((kind, core::mem::replace(&mut self.since, now)))
    }
}

#[cfg(any(test, ro2iblnd_kunit))]
#[cfg_attr(ro2iblnd_kunit, ::kernel::macros::kunit_tests(ro2ib_latency))]
mod tests {
    use super::*;
    use crate::proto::credits::Cost;

    /// Returns the bucket of a time in nanoseconds.
    fn bucket(ns: u64) -> usize {
        let ns = ns | FIRST_NS.saturating_sub(1);
        let word = usize::try_from(ns.ilog2()).unwrap_or(0);
        let mut having = (0..BUCKETS).filter(|bucket| words(*bucket).contains(&word));
        let one = having.next().unwrap_or(usize::MAX);
        assert_eq!(having.next(), None);
        assert!(word != SUM);
        one
    }

    #[test]
    fn buckets_double() {
        assert_eq!(bucket(0), 0);
        assert_eq!(bucket(511), 0);
        assert_eq!(bucket(512), 1);
        assert_eq!(bucket(1023), 1);
        assert_eq!(bucket(1024), 2);
        // 50 ms and 50 s.
        assert_eq!(bucket(50_000_000), 17);
        assert_eq!(bucket(50_000_000_000), 27);
        assert_eq!(bucket(u64::MAX), 31);
    }

    #[test]
    fn a_limit_is_the_first_of_the_next() {
        let mut before = 0;
        for n in 0..31usize {
            let end = limit(n).unwrap_or(0);
            assert_eq!(bucket(end), n.saturating_add(1));
            assert_eq!(bucket(end.saturating_sub(1)), n);
            assert_eq!(bucket(before), n);
            before = end;
        }
        assert_eq!(limit(31), None);
        assert_eq!(limit(usize::MAX), None);
        // No timeout is longer.
        assert!(limit(30).is_some_and(|ns| ns > 500_000_000_000));
    }

    #[test]
    fn rows_are_where_their_names_are() {
        for (n, (stage, kind)) in ROW_NAMES.iter().enumerate() {
            assert_eq!(row(*stage, *kind), Some(n));
        }
        // Only a kind that costs a credit may wait for one, and only a kind with an answer for that.
        let ops = [
            Op::Immediate,
            Op::PutReq,
            Op::GetReq,
            Op::PutAck,
            Op::PutNak,
            Op::PutDone,
            Op::GetDone,
            Op::Invalidate,
        ];
        for op in ops {
            let kind = TxKind::from(op);
            let message = op != Op::Invalidate;
            assert_eq!(row(Stage::Queued, kind).is_some(), message);
            // Either the completion is the end of a message, or an answer.
            let answered = row(Stage::Answer, kind).is_some();
            assert_eq!(kind.is_answered(), answered);
            assert_eq!(row(Stage::Wire, kind).is_some(), message && !answered);
            let pays = matches!(op.cost(), Some(Cost::Credit | Cost::CreditAndReserve));
            assert_eq!(row(Stage::Credit, kind).is_some(), pays);
            assert_eq!(op.message().and_then(TxKind::of_message).is_some(), message);
        }
        for stage in [
            Stage::Queued,
            Stage::Credit,
            Stage::Wire,
            Stage::Answer,
            Stage::Lnet,
        ] {
            assert_eq!(row(stage, TxKind::Noop), None);
        }
        assert_eq!(row(Stage::Lnet, TxKind::PutAck), None);
    }

    #[test]
    fn quantiles() {
        let counts = [0u64, 0, 0, 99, 0, 1];
        assert_eq!(quantile(&counts, 500), Some(3));
        assert_eq!(quantile(&counts, 990), Some(3));
        assert_eq!(quantile(&counts, 991), Some(5));
        assert_eq!(quantile(&counts, 1000), Some(5));
        assert_eq!(quantile(&counts, 0), Some(3));
        assert_eq!(quantile(&[1, u64::MAX, 1], 500), Some(1));
        assert_eq!(quantile(&[0; BUCKETS], 500), None);
        assert_eq!(quantile(&[], 500), None);
    }

    #[test]
    fn an_immediate_is_queued_and_sent() {
        let mut s = Stamps::queued(10u64);
        assert_eq!(s.sent(), None);
        assert_eq!(s.answered(11), None);
        assert_eq!(s.posted(TxKind::Immediate, 15), 10);
        assert_eq!(s.sent(), Some((TxKind::Immediate, 15)));
        assert_eq!(s.sent(), None);
    }

    #[test]
    fn a_put_is_queued_twice() {
        let mut s = Stamps::queued(0u64);
        assert_eq!(s.posted(TxKind::PutReq, 5), 0);
        // Its completion is no end of a stage.
        assert_eq!(s.sent(), None);
        assert_eq!(s.answered(100), Some((TxKind::PutReq, 5)));
        assert_eq!(s.posted(TxKind::PutDone, 103), 100);
        assert_eq!(s.sent(), Some((TxKind::PutDone, 103)));
    }

    #[test]
    fn an_answer_may_be_faster_than_the_completion() {
        let mut s = Stamps::queued(0u64);
        let _ = s.posted(TxKind::PutAck, 5);
        assert_eq!(s.answered(9), Some((TxKind::PutAck, 5)));
        // The completions of the PUT_ACK and of the LOCAL_INV.
        assert_eq!(s.sent(), None);
        assert_eq!(s.answered(12), None);
    }
}
