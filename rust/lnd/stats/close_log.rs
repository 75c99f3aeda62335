// SPDX-License-Identifier: GPL-2.0

//! What an NI has seen end, for people and for programs that watch: the memory of
//! [`crate::policy::close_log`], its lock and its clock.
//!
//! Process context. The lock is taken inside of no other, and nothing is done under it that takes
//! long: readers copy out one event after the other.

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
        CAUSES,
        REFUSALS,
        WAYS, //
    },
    proto::{
        cause::Cause,
        nid::Nid,
        reject_reason::RejectCause as Refusal, //
    }, //
};

/// Closes, and refusals, that are kept one by one: 20 KiB each.
pub(crate) const EVENTS: usize = 256;

/// Peers whose ends are counted, 96 KiB. Only those of which something ended take room.
const RECORDS: usize = 128 * WAYS;

/// Counters of what an NI has seen, by the numbers of [`trail`]. Too large for the stack.
#[derive(Zeroable)]
pub(crate) struct Totals {
    /// Connections that were up.
    pub(crate) closed: [u64; CAUSES.len()],
    /// Attempts that ended without a connection.
    pub(crate) failed: [u64; CAUSES.len()],
    /// Messages that LNet got back with an error.
    pub(crate) messages: [u64; CAUSES.len()],
    /// Requests of peers that were refused.
    pub(crate) refused: [u64; REFUSALS.len()],
    /// Times there was no memory, or no memory region, for something that then waited or failed.
    pub(crate) no_memory: u64,
    /// Times among these that it was a memory region.
    pub(crate) no_region: u64,
    /// Times memory of a GPU was mapped for a transfer.
    pub(crate) gpu_mapped: u64,
    /// Messages that failed because their memory is a GPU's.
    pub(crate) gpu_refused: u64,
    /// Requests of ours that were refused without a word, and asked again.
    pub(crate) unsaid: u64,
    /// Messages that a connection lost, and that were to go over another one.
    pub(crate) sent_again: u64,
    /// Requests of peers that LNet did not take, and that were dropped.
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

/// The memory of an NI.
#[pin_data]
pub(crate) struct CloseStats {
    #[pin]
    inner: SpinLock<Inner>,
}

impl CloseStats {
    /// Nothing seen yet. May sleep.
    pub(crate) fn new() -> Result<Arc<Self>> {
        Self::with_records(RECORDS)
    }

    /// For refusals only. May sleep.
    pub(crate) fn of_refusals() -> Result<Arc<Self>> {
        Self::with_records(0)
    }

    fn with_records(n: usize) -> Result<Arc<Self>> {
        let events = if n == 0 { 0 } else { EVENTS };
        let records = KVVec::from_elem(PeerHistory::EMPTY, n, GFP_KERNEL)?;
        let ends_at = KVec::from_elem(CloseEvent::EMPTY, events, GFP_KERNEL)?;
        let refusals_at = KVec::from_elem(CloseEvent::EMPTY, EVENTS, GFP_KERNEL)?;
        // Initialised in place: the counters are too large for the stack.
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
                inner <- kernel::new_spinlock!(inner, "Seen::inner"),
            }),
            GFP_KERNEL,
        )
    }

    /// A connection that was up ended, or with `up` false an attempt. What is known of such of this peer.
    pub(crate) fn ended(
        &self,
        peer: Nid,
        active: bool,
        up: bool,
        cause: Cause,
        detail: Option<&'static str>,
    ) -> Recorded {
        let at_ms = now_ms();
        let why = close_log::cause_name(cause);
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
        count(tally, close_log::cause_number(cause), 1);
        let noted = inner.ends.note(&mut inner.ends_at, event);
        close_log::record(&mut inner.records, peer.addr(), up, cause, at_ms);
        noted
    }

    /// A request was refused.
    pub(crate) fn refused(&self, peer: Option<Nid>, why: &Refusal) {
        let number = close_log::refusal_number(why);
        let event = CloseEvent {
            at_ms: now_ms(),
            peer,
            what: EndKind::Refused,
            active: false,
            by: Initiator::Us,
            why: REFUSALS.get(number).copied().unwrap_or("?"),
            detail: "-",
            asked: why.asked(),
            times: 1,
            number: 0,
        };
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        count(&mut inner.tally.refused, number, 1);
        let _ = inner.refusals.note(&mut inner.refusals_at, event);
    }

    /// Messages went back to LNet with an error.
    pub(crate) fn messages(&self, cause: Cause, n: usize) {
        let n = u64::try_from(n).unwrap_or(u64::MAX);
        let mut inner = self.inner.lock();
        count(&mut inner.tally.messages, close_log::cause_number(cause), n);
    }

    /// Something waited or failed for want of memory.
    pub(crate) fn no_memory(&self) {
        let mut inner = self.inner.lock();
        inner.tally.no_memory = inner.tally.no_memory.saturating_add(1);
    }

    /// A memory region was not to be had; [`CloseStats::no_memory`] is called for what failed for it.
    pub(crate) fn no_region(&self) {
        let mut inner = self.inner.lock();
        inner.tally.no_region = inner.tally.no_region.saturating_add(1);
    }

    /// Memory of a GPU was mapped for a transfer.
    pub(crate) fn gpu_mapped(&self) {
        let mut inner = self.inner.lock();
        inner.tally.gpu_mapped = inner.tally.gpu_mapped.saturating_add(1);
    }

    /// A message failed because its memory is a GPU's.
    pub(crate) fn gpu_refused(&self) {
        let mut inner = self.inner.lock();
        inner.tally.gpu_refused = inner.tally.gpu_refused.saturating_add(1);
    }

    /// A peer refused without a word, and is asked again.
    pub(crate) fn unsaid(&self) {
        let mut inner = self.inner.lock();
        inner.tally.unsaid = inner.tally.unsaid.saturating_add(1);
    }

    /// A message that a connection lost is to go over another one.
    pub(crate) fn sent_again(&self) {
        let mut inner = self.inner.lock();
        inner.tally.sent_again = inner.tally.sent_again.saturating_add(1);
    }

    /// Counts a request that LNet did not take, and that was dropped.
    pub(crate) fn not_for_lnet(&self) {
        let mut inner = self.inner.lock();
        inner.tally.not_for_lnet = inner.tally.not_for_lnet.saturating_add(1);
    }

    /// Returns the counters that `of` picks.
    pub(crate) fn counters<const N: usize>(&self, of: fn(&Totals) -> [u64; N]) -> [u64; N] {
        of(&self.inner.lock().tally)
    }

    /// What is known of a peer's ends.
    pub(crate) fn of(&self, peer: Nid) -> PeerHistory {
        let inner = self.inner.lock();
        close_log::recorded(&inner.records, peer.addr()).unwrap_or(PeerHistory::EMPTY)
    }

    /// How many ends, and how many refusals, were taken down so far.
    pub(crate) fn written(&self) -> (u64, u64) {
        let inner = self.inner.lock();
        (inner.ends.written(), inner.refusals.written())
    }

    /// Calls `f` with the ends, and then with the refusals, the oldest first, and the number of each.
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
                    // New ones may come meanwhile.
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

/// Milliseconds since the epoch.
pub(crate) fn now_ms() -> u64 {
    u64::try_from(RealTime::ktime_get() / 1_000_000).unwrap_or(0)
}
