// SPDX-License-Identifier: GPL-2.0

//! Closed connections, failed attempts and rejects of an NI, for debugfs: the memory of [`crate::policy::close_log`],
//! its lock and its clock.
//!
//! Context: process. The lock nests inside the lock of a peer, and is held only briefly: readers copy one event at a
//! time.

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
        EventKind,
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
        reject::{
            RejectCause as Refusal,
            CAUSE_NAMES as REFUSALS, //
        }, //
    }, //
};

/// Number of closes, and of rejects, that are kept one by one: 22 KiB each.
pub(crate) const EVENTS: usize = 256;

/// Number of records of peers, 96 KiB. Only peers with a closed connection or a failed attempt take one.
const RECORDS: usize = 128 * WAYS;

/// Defines the names of other counters in debugfs, and a method of [`CloseStats`] that increments each.
macro_rules! other_counters {
    ($($(#[$doc:meta])+ $method:ident => $name:ident,)+) => {
        /// Names of the other counters, in the order of debugfs.
        const OTHERS: [&str; [$(stringify!($name)),+].len()] = [$(stringify!($name)),+];

        enum Other {
            $($name,)+
        }

        impl CloseStats {
            $(
                $(#[$doc])+
                pub(crate) fn $method(&self) {
                    self.inner.lock().count(EventKind::Others, Other::$name as usize, 1);
                }
            )+
        }
    };
}

other_counters! {
    /// Counts an operation that waited or failed because memory was missing.
    no_memory => NoMemory,
    /// Counts a mapping of GPU memory for a transfer.
    gpu_mapped => GpuMapped,
    /// Counts a message that failed because its memory is on a GPU.
    gpu_refused => GpuRefused,
    /// Counts a missing memory region. The caller also calls [`CloseStats::no_memory`] for the failed operation.
    no_region => NoRegion,
    /// Counts a reject without a reason after which the request is repeated.
    unsaid => RejectedNoReason,
    /// Counts a message that a closing connection lost and that is resent.
    sent_again => Resent,
    /// Counts a request that LNet did not take and that was dropped.
    not_for_lnet => NotForLNet,
}

/// Tables of counters of an NI, and the names of their counters, in the order of debugfs.
pub(crate) const TABLES: [(EventKind, &[&str]); 5] = [
    (EventKind::Closed, &CAUSES),
    (EventKind::Failed, &CAUSES),
    (EventKind::Messages, &CAUSES),
    (EventKind::Refused, &REFUSALS),
    (EventKind::Others, &OTHERS),
];

/// Counters of one table.
type Counters = [u64; CAUSES.len()];

// No table has more.
const _: () = assert!(REFUSALS.len() <= CAUSES.len() && OTHERS.len() <= CAUSES.len());

struct Inner {
    /// Too large for the stack.
    tally: [Counters; TABLES.len()],
    ends: CloseLog<KVec<CloseEvent>>,
    refusals: CloseLog<KVec<CloseEvent>>,
    records: KVVec<PeerHistory>,
}

impl Inner {
    fn counter(&mut self, table: EventKind, number: usize) -> Option<&mut u64> {
        self.tally.get_mut(table as usize)?.get_mut(number)
    }

    fn count(&mut self, table: EventKind, number: usize, n: u64) {
        if let Some(count) = self.counter(table, number) {
            *count = count.saturating_add(n);
        }
    }
}

/// Close log of an NI, or of requests for none of the NIs.
#[pin_data]
pub(crate) struct CloseStats {
    /// NID of the NI; `None` for requests for none of the NIs.
    pub(crate) nid: Option<Nid>,
    #[pin]
    inner: SpinLock<Inner>,
}

impl CloseStats {
    /// Creates an empty log, without an NI for rejects only. May sleep.
    pub(crate) fn new(nid: Option<Nid>) -> Result<Arc<Self>> {
        let (ends, records) = nid.map_or((0, 0), |_| (EVENTS, RECORDS));
        let ends = KVec::from_elem(CloseEvent::EMPTY, ends, GFP_KERNEL)?;
        let refusals = KVec::from_elem(CloseEvent::EMPTY, EVENTS, GFP_KERNEL)?;
        let records = KVVec::from_elem(PeerHistory::EMPTY, records, GFP_KERNEL)?;
        let inner = init!(Inner {
            tally <- init_zeroed(),
            ends: CloseLog::new(ends),
            refusals: CloseLog::new(refusals),
            records,
        });
        Arc::pin_init(
            pin_init!(Self {
                nid,
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
        let what = match up {
            true => EventKind::Closed,
            false => EventKind::Failed,
        };
        let event = CloseEvent {
            at_ms,
            peer: Some(peer),
            what,
            active,
            by: cause.initiator(),
            why: cause.name(),
            detail: detail.unwrap_or("-"),
            ..CloseEvent::EMPTY
        };
        let mut inner = self.inner.lock();
        inner.count(what, cause.number(), 1);
        close_log::record(&mut inner.records, peer.addr(), active, up, cause, at_ms);
        inner.ends.note(event)
    }

    pub(crate) fn refused(&self, peer: Option<Nid>, why: &Refusal) {
        let event = CloseEvent {
            at_ms: now_ms(),
            peer,
            what: EventKind::Refused,
            why: why.name(),
            asked: why.asked(),
            ..CloseEvent::EMPTY
        };
        let mut inner = self.inner.lock();
        inner.count(EventKind::Refused, why.number(), 1);
        let _ = inner.refusals.note(event);
    }

    /// Counts messages that were returned to LNet with an error.
    pub(crate) fn messages(&self, cause: Cause, n: usize) {
        let n = u64::try_from(n).unwrap_or(u64::MAX);
        let mut inner = self.inner.lock();
        inner.count(EventKind::Messages, cause.number(), n);
    }

    /// Returns a counter of a table. A copy of the table would be large for the stack.
    pub(crate) fn counter(&self, of: EventKind, number: usize) -> u64 {
        self.inner.lock().counter(of, number).map_or(0, |n| *n)
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

    /// Yields each end, and then each reject, oldest first. New events may be recorded meanwhile.
    pub(crate) fn events(&self) -> impl Iterator<Item = CloseEvent> + '_ {
        let list = move |of: fn(&Inner, u64) -> Option<CloseEvent>| {
            let mut number = 0;
            (0..EVENTS).map_while(move |_| {
                let event = of(&self.inner.lock(), number)?;
                number = event.number.saturating_add(1);
                Some(event)
            })
        };
        let ends = list(|inner, number| inner.ends.from(number));
        let refusals = list(|inner, number| inner.refusals.from(number));
        [ends, refusals].into_iter().flatten()
    }
}

/// Returns the time in milliseconds since the epoch.
pub(crate) fn now_ms() -> u64 {
    u64::try_from(RealTime::ktime_get() / 1_000_000).unwrap_or(0)
}
