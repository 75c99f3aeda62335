// SPDX-License-Identifier: GPL-2.0

//! Latency histograms: the stages of a message ([`Stage`]), and how long each took. The end of a key (LOCAL_INV) is not
//! a message, and not measured.
//!
//! ```text
//!  queued ----> posted ----> all work requests done, or answered
//!     |  Queued   |       Wire, or Answer        |
//!     |  (Credit) |                              +--> queued again (PUT_DONE after the PUT_ACK)
//! ```
//!
//! A histogram has [`BUCKETS`] counts. The first counts times below [`FIRST_NS`]; the limit of each further count is
//! twice that of the one before; the last has no limit. It is stored as a row of [`WORDS`], so that there can be a row
//! for each CPU: a time is counted in the word with the number of its highest bit, or of that of [`FIRST_NS`] / 2.
//!
//! Context: any; the caller holds whatever lock protects a [`Stamps`].

use crate::proto::{
    numbered,
    tx_state::Op,
    wire::MsgType, //
};

/// Number of counts of a histogram.
pub const BUCKETS: usize = 32;

/// Limit of the first count, in nanoseconds.
pub const FIRST_NS: u64 = 512;

/// Index of the sum, in nanoseconds.
pub const SUM: usize = 0;

pub const WORDS: usize = 64;

/// Number of rows: see [`row`].
pub const ROWS: usize = 20;

numbered! {
    /// Stage of a message.
    Stage: u8 {
        /// From being given to its connection to being posted; for a PUT_DONE from the PUT_ACK. Only messages that were
        /// not posted at once are counted.
        Queued = 0 "queued",
        /// The part of that in which the connection had no credit. Only messages that waited for one are counted.
        Credit = 1 "credit",
        /// From being posted until the device has completed all of it, so that the peer's device has acknowledged it.
        /// Only messages without an answer.
        Wire = 2 "wire",
        /// From being posted to the peer's answer: the way there, the time of the peer's LNet, and the way back.
        Answer = 3 "answer",
        /// From receiving a request of the peer until LNet gave its buffer back.
        Lnet = 4 "lnet",
    }
}

/// Returns the name of a message in the protocol; `None` is LOCAL_INV, which is no message.
pub fn name(message: Option<MsgType>) -> &'static str {
    message.map_or("LOCAL_INV", MsgType::name)
}

/// Returns the index of a histogram; `None` if there is none, because the message does not pass the stage.
#[inline(always)]
pub fn row(stage: Stage, op: Op) -> Option<usize> {
    let request = matches!(op, Op::Immediate | Op::PutReq | Op::GetReq);
    // The number of a message in `Op` is added to the first index of the stage, which costs no table and no branch. A
    // message passes either Wire or Answer, so these share seven rows.
    let (first, passes) = match stage {
        Stage::Wire => (0usize, op.ends_with_send()),
        Stage::Answer => (0, op.wants_answer()),
        Stage::Queued => (7, op != Op::Invalidate),
        Stage::Credit => (14, request),
        Stage::Lnet => (17, request),
    };
    passes.then_some(first.saturating_add(op as usize))
}

/// Yields the stage and message of each histogram.
pub fn histograms() -> impl Iterator<Item = (Stage, Op)> {
    let stages = [
        Stage::Queued,
        Stage::Credit,
        Stage::Wire,
        Stage::Answer,
        Stage::Lnet,
    ];
    let ops = [
        Op::PutAck,
        Op::PutReq,
        Op::GetReq,
        Op::Immediate,
        Op::PutNak,
        Op::PutDone,
        Op::GetDone,
    ];
    let all = stages
        .into_iter()
        .flat_map(move |stage| ops.map(|op| (stage, op)));
    all.filter(|(stage, op)| row(*stage, *op).is_some())
}

/// Counts and sum of a histogram.
pub struct Histogram {
    /// Number of messages by bucket.
    pub counts: [u64; BUCKETS],
    pub sum_ns: u64,
}

impl Histogram {
    /// Reads the words of a row with `word`.
    pub fn read(word: impl Fn(usize) -> u64) -> Self {
        let mut counts = [0u64; BUCKETS];
        for at in SUM.saturating_add(1)..WORDS {
            if let Some(count) = counts.get_mut(bucket(at)) {
                *count = count.wrapping_add(word(at));
            }
        }
        Self {
            counts,
            sum_ns: word(SUM),
        }
    }

    pub fn messages(&self) -> u64 {
        self.counts.into_iter().fold(0, u64::saturating_add)
    }

    /// Returns the limit of the bucket that has the quantile `of_1000` in 1000: 500 is the median. For the last bucket
    /// that is its lower limit; 0 if all counts are 0.
    pub fn quantile(&self, of_1000: u64) -> u64 {
        let all = self.messages();
        // Large numbers lose some digits, which no display shows.
        let wanted = match all.checked_mul(of_1000) {
            Some(n) => n.div_ceil(1000),
            None => (all / 1000).saturating_mul(of_1000),
        };
        let mut seen = 0u64;
        let bucket = self.counts.iter().position(|count| {
            seen = seen.saturating_add(*count);
            seen >= wanted.max(1)
        });
        let ns = bucket.and_then(|n| limit(n).or(limit(n.saturating_sub(1))));
        ns.unwrap_or(0)
    }
}

/// Returns the bucket that a word of a row belongs to.
fn bucket(word: usize) -> usize {
    // The highest bit of the largest value below the first limit.
    let lowest = 8;
    word.saturating_sub(lowest).min(BUCKETS - 1)
}

/// Returns the upper limit of a bucket, in nanoseconds, which is exclusive; `None` for the last.
pub fn limit(bucket: usize) -> Option<u64> {
    if bucket >= BUCKETS - 1 {
        return None;
    }
    FIRST_NS.checked_shl(u32::try_from(bucket).ok()?)
}

/// Times of one transmit, each a `T`.
#[derive(Clone, Copy, Debug)]
pub struct Stamps<T> {
    /// Since when it is queued, or was before it was posted. The peer's answer may queue it again.
    pub queued: T,
    /// When the last message was posted.
    pub posted: T,
    /// The message that was posted last.
    op: Op,
}

impl<T: Copy> Stamps<T> {
    /// Starts when the transmit is given to its connection.
    #[inline]
    pub const fn new(now: T) -> Self {
        Self {
            queued: now,
            posted: now,
            op: Op::Invalidate,
        }
    }

    /// Notes that a message is posted.
    #[inline(always)]
    pub fn post(&mut self, op: Op, now: T) {
        self.op = op;
        self.posted = now;
    }

    /// Returns which message was posted last, and when, if it ends when all work requests are complete. Must be called
    /// once for each.
    #[inline(always)]
    pub fn sent(&self) -> Option<(Op, T)> {
        self.op.ends_with_send().then_some((self.op, self.posted))
    }
}

#[cfg(any(test, ro2iblnd_kunit))]
#[cfg_attr(ro2iblnd_kunit, ::kernel::macros::kunit_tests(ro2ib_latency))]
mod tests {
    use super::*;
    use crate::proto::credits::Cost;

    /// Returns the bucket of a time in nanoseconds.
    fn bucket_of(ns: u64) -> usize {
        let ns = ns | FIRST_NS.saturating_sub(1);
        bucket(usize::try_from(ns.ilog2()).unwrap_or(0))
    }

    #[test]
    fn buckets_double() {
        assert_eq!(bucket_of(0), 0);
        assert_eq!(bucket_of(511), 0);
        assert_eq!(bucket_of(512), 1);
        assert_eq!(bucket_of(1023), 1);
        assert_eq!(bucket_of(1024), 2);
        // 50 ms and 50 s.
        assert_eq!(bucket_of(50_000_000), 17);
        assert_eq!(bucket_of(50_000_000_000), 27);
        assert_eq!(bucket_of(u64::MAX), 31);
    }

    #[test]
    fn a_limit_is_the_first_of_the_next() {
        let mut before = 0;
        for n in 0..31usize {
            let end = limit(n).unwrap_or(0);
            assert_eq!(bucket_of(end), n.saturating_add(1));
            assert_eq!(bucket_of(end.saturating_sub(1)), n);
            assert_eq!(bucket_of(before), n);
            before = end;
        }
        assert_eq!(limit(31), None);
        assert_eq!(limit(usize::MAX), None);
        // No timeout is longer.
        assert!(limit(30).is_some_and(|ns| ns > 500_000_000_000));
    }

    #[test]
    fn each_histogram_has_a_row() {
        let mut used = [false; ROWS];
        for (stage, op) in histograms() {
            let row = row(stage, op).unwrap_or(usize::MAX);
            assert!(used.get(row) == Some(&false));
            if let Some(used) = used.get_mut(row) {
                *used = true;
            }
        }
        assert_eq!(used, [true; ROWS]);
        // Only a message that costs a credit may wait for one, and only a message with an answer for that.
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
            let message = op != Op::Invalidate;
            assert_eq!(row(Stage::Queued, op).is_some(), message);
            // Either the completion is the end of a message, or an answer.
            let answered = row(Stage::Answer, op).is_some();
            assert_eq!(row(Stage::Wire, op).is_some(), message && !answered);
            let pays = matches!(op.cost(), Some(Cost::Credit | Cost::CreditAndReserve));
            assert_eq!(row(Stage::Credit, op).is_some(), pays);
            assert_eq!(row(Stage::Lnet, op).is_some(), pays);
            assert!(name(op.message())
                .bytes()
                .all(|b| b.is_ascii_uppercase() || b == b'_'));
        }
    }

    #[test]
    fn words_are_read_into_buckets() {
        let all = Histogram::read(|word| match word {
            SUM => 77,
            _ => 1,
        });
        assert_eq!(all.sum_ns, 77);
        assert_eq!(all.messages(), 63);
        // Eight words are below the first limit, and 25 above the last.
        assert_eq!(all.counts.first(), Some(&8));
        assert_eq!(all.counts.last(), Some(&25));
    }

    #[test]
    fn quantiles() {
        let of = |some: &[u64], of_1000| {
            let mut counts = [0; BUCKETS];
            for (count, n) in counts.iter_mut().zip(some) {
                *count = *n;
            }
            Histogram { counts, sum_ns: 0 }.quantile(of_1000)
        };
        let counts = [0u64, 0, 0, 99, 0, 1];
        assert_eq!(of(&counts, 500), 4096);
        assert_eq!(of(&counts, 990), 4096);
        assert_eq!(of(&counts, 991), 16384);
        assert_eq!(of(&counts, 1000), 16384);
        assert_eq!(of(&counts, 0), 4096);
        assert_eq!(of(&[1, u64::MAX, 1], 500), 1024);
        assert_eq!(of(&[], 500), 0);
        // The last bucket has no upper limit.
        let mut last = [0; BUCKETS];
        if let Some(count) = last.last_mut() {
            *count = 1;
        }
        assert_eq!(of(&last, 500), 1 << 39);
    }

    #[test]
    fn an_immediate_is_queued_and_sent() {
        let mut s = Stamps::new(10u64);
        assert_eq!(s.sent(), None);
        s.post(Op::Immediate, 15);
        assert_eq!(s.queued, 10);
        assert_eq!(s.sent(), Some((Op::Immediate, 15)));
    }

    #[test]
    fn a_put_is_queued_twice() {
        let mut s = Stamps::new(0u64);
        s.post(Op::PutReq, 5);
        // Its completion is no end of a stage.
        assert_eq!(s.sent(), None);
        assert_eq!(s.posted, 5);
        s.queued = 100;
        assert_eq!(s.queued, 100);
        // The completion of the PUT_REQ may come after its answer.
        assert_eq!(s.sent(), None);
        s.post(Op::PutDone, 103);
        assert_eq!(s.sent(), Some((Op::PutDone, 103)));
    }

    #[test]
    fn a_key_is_not_measured() {
        let mut s = Stamps::new(0u64);
        s.post(Op::PutAck, 5);
        assert_eq!(s.posted, 5);
        // The completions of the PUT_ACK and of the LOCAL_INV, after the answer.
        assert_eq!(s.sent(), None);
    }
}
