// SPDX-License-Identifier: GPL-2.0

//! Closed connections, failed attempts and rejects of an NI, for debugfs: the memory of [`crate::policy::close_log`],
//! its lock and its clock.
//!
//! Context: process. The lock nests inside no other lock and is held only briefly: readers copy one event at a time.

use kernel::{
    prelude::*,
    sync::{
        Arc,
        SpinLock, //
    },
    time::{
        ClockSource,
        RealTime, //
    }, //
};
use pin_init::init_zeroed;

use crate::{
    policy::close_log::{
        self,
        CloseEvent,
        CloseLog,
        EndKind,
        Initiator,
        PeerHistory,
        Recorded,
        WAYS, //
    },
    proto::{
        cause::{
            Cause,
            NAMES as CAUSES, //
        },
        nid::Nid,
        reject_cause::{
            RejectCause as Refusal,
            NAMES as REFUSALS, //
        }, //
    }, //
};

/// Number of closes, and of rejects, that are kept one by one: 20 KiB each.
pub(crate) const EVENTS: usize = 256;

/// Number of records of peers, 96 KiB. Only peers with a closed connection or a failed attempt take one.
const RECORDS: usize = 128 * WAYS;

/// Counters of what an NI has seen, by the numbers of [`trail`]. Too large for the stack.
#[derive(Zeroable)]
pub(crate) struct Totals {
    /// Connections that were up.
    pub(crate) closed: [u64; CAUSES.len()],
    /// Attempts that ended without a connection.
    pub(crate) failed: [u64; CAUSES.len()],
    /// Messages that were returned to LNet with an error.
    pub(crate) messages: [u64; CAUSES.len()],
    /// Rejected requests of peers.
    pub(crate) refused: [u64; REFUSALS.len()],
    /// Times that memory or a memory region was missing, and an operation waited or failed.
    pub(crate) no_memory: u64,
    /// Times among these that a memory region was missing.
    pub(crate) no_region: u64,
    /// Times that memory of a GPU was mapped for a transfer.
    pub(crate) gpu_mapped: u64,
    /// Messages that failed because their memory is on a GPU.
    pub(crate) gpu_refused: u64,
    /// Requests that a peer rejected without a reason and that were repeated.
    pub(crate) unsaid: u64,
    /// Messages that a closing connection lost and that were resent.
    pub(crate) sent_again: u64,
    /// Requests of peers that LNet did not take and that were dropped.
    pub(crate) not_for_lnet: u64,
}

struct Inner {
    tally: Totals,
    ends: CloseLog,
    ends_at: KVec<CloseEvent>,
    refusals: CloseLog,
    refusals_at: KVec<CloseEvent>,
    records: KVVec<PeerHistory>,
}

/// Close log of an NI.
#[pin_data]
pub(crate) struct CloseStats {
    #[pin]
    inner: SpinLock<Inner>,
}

impl CloseStats {
    /// Creates an empty log. May sleep.
    pub(crate) fn new() -> Result<Arc<Self>> {
        Self::with_records(RECORDS)
    }

    /// Creates an empty log for rejects only. May sleep.
    pub(crate) fn of_refusals() -> Result<Arc<Self>> {
        Self::with_records(0)
    }

    fn with_records(n: usize) -> Result<Arc<Self>> {
        let events = if n == 0 { 0 } else { EVENTS };
        let records = KVVec::from_elem(PeerHistory::EMPTY, n, GFP_KERNEL)?;
        let ends_at = KVec::from_elem(CloseEvent::EMPTY, events, GFP_KERNEL)?;
        let refusals_at = KVec::from_elem(CloseEvent::EMPTY, EVENTS, GFP_KERNEL)?;
        // Initialized in place: the counters are too large for the stack.
        let inner = init!(Inner {
            tally <- init_zeroed(),
            ends: CloseLog::new(),
            ends_at,
            refusals: CloseLog::new(),
            refusals_at,
            records,
        });
        Arc::pin_init(
            pin_init!(Self {
                inner <- kernel::new_spinlock!(inner, "CloseStats::inner"),
            }),
            GFP_KERNEL,
        )
    }

    /// Records the end of a connection (`up`) or of an attempt (`!up`). Returns the history of equal events of this
    /// peer.
    pub(crate) fn ended(
        &self,
        peer: Nid,
        active: bool,
        up: bool,
        cause: Cause,
        detail: Option<&'static str>,
    ) -> Recorded {
        let at_ms = now_ms();
        let why = cause.name();
        let event = CloseEvent {
            at_ms,
            peer: Some(peer),
            what: if up { EndKind::Closed } else { EndKind::Failed },
            active,
            by: Initiator::of(cause),
            why,
            detail: detail.unwrap_or("-"),
            asked: None,
            times: 1,
            number: 0,
        };
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        let tally = if up {
            &mut inner.tally.closed
        } else {
            &mut inner.tally.failed
        };
        count(tally, cause.number(), 1);
        let noted = inner.ends.note(&mut inner.ends_at, event);
        close_log::record(&mut inner.records, peer.addr(), up, cause, at_ms);
        noted
    }

    /// Records a rejected request.
    pub(crate) fn refused(&self, peer: Option<Nid>, why: &Refusal) {
        let event = CloseEvent {
            at_ms: now_ms(),
            peer,
            what: EndKind::Refused,
            active: false,
            by: Initiator::Us,
            why: why.name(),
            detail: "-",
            asked: why.asked(),
            times: 1,
            number: 0,
        };
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        count(&mut inner.tally.refused, why.number(), 1);
        let _ = inner.refusals.note(&mut inner.refusals_at, event);
    }

    /// Counts messages that were returned to LNet with an error.
    pub(crate) fn messages(&self, cause: Cause, n: usize) {
        let n = u64::try_from(n).unwrap_or(u64::MAX);
        let mut inner = self.inner.lock();
        count(&mut inner.tally.messages, cause.number(), n);
    }

    /// Counts an operation that waited or failed because memory was missing.
    pub(crate) fn no_memory(&self) {
        let mut inner = self.inner.lock();
        inner.tally.no_memory = inner.tally.no_memory.saturating_add(1);
    }

    /// Counts a missing memory region. The caller also calls [`CloseStats::no_memory`] for the failed operation.
    pub(crate) fn no_region(&self) {
        let mut inner = self.inner.lock();
        inner.tally.no_region = inner.tally.no_region.saturating_add(1);
    }

    /// Counts a mapping of GPU memory for a transfer.
    pub(crate) fn gpu_mapped(&self) {
        let mut inner = self.inner.lock();
        inner.tally.gpu_mapped = inner.tally.gpu_mapped.saturating_add(1);
    }

    /// Counts a message that failed because its memory is on a GPU.
    pub(crate) fn gpu_refused(&self) {
        let mut inner = self.inner.lock();
        inner.tally.gpu_refused = inner.tally.gpu_refused.saturating_add(1);
    }

    /// Counts a reject without a reason after which the request is repeated.
    pub(crate) fn unsaid(&self) {
        let mut inner = self.inner.lock();
        inner.tally.unsaid = inner.tally.unsaid.saturating_add(1);
    }

    /// Counts a message that a closing connection lost and that is resent.
    pub(crate) fn sent_again(&self) {
        let mut inner = self.inner.lock();
        inner.tally.sent_again = inner.tally.sent_again.saturating_add(1);
    }

    /// Counts a request that LNet did not take and that was dropped.
    pub(crate) fn not_for_lnet(&self) {
        let mut inner = self.inner.lock();
        inner.tally.not_for_lnet = inner.tally.not_for_lnet.saturating_add(1);
    }

    /// Returns the counters that `of` picks.
    pub(crate) fn counters<const N: usize>(&self, of: fn(&Totals) -> [u64; N]) -> [u64; N] {
        of(&self.inner.lock().tally)
    }

    /// Returns the history of the connections and attempts of a peer.
    pub(crate) fn of(&self, peer: Nid) -> PeerHistory {
        let inner = self.inner.lock();
        close_log::recorded(&inner.records, peer.addr()).unwrap_or(PeerHistory::EMPTY)
    }

    /// Returns the numbers of ends and of rejects recorded so far.
    pub(crate) fn written(&self) -> (u64, u64) {
        let inner = self.inner.lock();
        (inner.ends.written(), inner.refusals.written())
    }

    /// Calls `f` with the number and the data of each end, and then of each reject, oldest first.
    pub(crate) fn for_each(&self, mut f: impl FnMut(u64, &CloseEvent)) {
        for refusals in [false, true] {
            let mut number = 0;
            for _ in 0..EVENTS {
                let event = {
                    let inner = self.inner.lock();
                    let (trail, at) = if refusals {
                        (&inner.refusals, &inner.refusals_at)
                    } else {
                        (&inner.ends, &inner.ends_at)
                    };
                    // New events may be recorded meanwhile.
                    trail.from(at, number)
                };
                let Some(event) = event else { break };
                f(event.number, &event);
                number = event.number.saturating_add(1);
            }
        }
    }
}

fn count(tally: &mut [u64], number: usize, n: u64) {
    if let Some(count) = tally.get_mut(number) {
        *count = count.saturating_add(n);
    }
}

/// Returns the time in milliseconds since the epoch.
pub(crate) fn now_ms() -> u64 {
    u64::try_from(RealTime::ktime_get() / 1_000_000).unwrap_or(0)
}
