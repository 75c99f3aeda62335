// SPDX-License-Identifier: GPL-2.0

//! Counters of closed connections, summed per NI.
//!
//! The sum of these and the counters of live connections never falls. A program that draws rates would take a sum that
//! fell for a restart. Connections close while they are listed. Each must be in a list exactly once: by itself or in
//! the counters of closed connections. Therefore these counters are read last, and a connection that closes after it
//! was listed counts for the next list.
//!
//! Context: any, except that [`ClosedCounters::list`] sleeps. A connection adds its counters with its lock held, so
//! that every list finds them in one of the two places.
//!
//! # Invariants
//!
//! - `listed` is the sum of the counters added by closed connections that are in the list being made, and zero while no
//!   list is being made.
//! - Only one list is made at a time.

use kernel::{
    prelude::*,
    sync::Mutex, //
};

use super::conn_counters::Counts;
use crate::rdma::sync::{
    new_spinlock_bh,
    SpinLockBh, //
};

/// Number of the list that a connection was last in; the default is none.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SnapshotId(u64);

struct Sums {
    over: Counts,
    listed: Counts,
    /// Number of the last list that was started.
    last: SnapshotId,
    /// Whether that list is being made.
    under_way: bool,
}

/// Counters of the closed connections of an NI.
#[pin_data]
pub(crate) struct ClosedCounters {
    /// Nests inside the lock of a connection, which softirqs take, too.
    #[pin]
    sums: SpinLockBh<Sums>,
    /// Held while a list is made.
    #[pin]
    lister: Mutex<()>,
}

impl ClosedCounters {
    /// Creates counters of zero.
    pub(crate) fn new() -> impl PinInit<Self> {
        let sums = Sums {
            over: Counts::default(),
            listed: Counts::default(),
            last: SnapshotId::default(),
            under_way: false,
        };
        pin_init!(Self {
            sums <- new_spinlock_bh!(sums, "ClosedCounters::sums"),
            lister <- kernel::new_mutex!((), "ClosedCounters::lister"),
        })
    }

    /// Adds the counters of a connection that closes and was last in `list`. Called with the connection lock held.
    pub(crate) fn add(&self, counts: &Counts, list: SnapshotId) {
        let mut sums = self.sums.lock();
        if sums.under_way && sums.last == list {
            // INVARIANT: That list is being made, and has the connection.
            sums.listed.add(counts);
        } else {
            sums.over.add(counts);
        }
    }

    /// Calls `list` to list the connections, each of which records the number of the list under its lock. Returns its
    /// result and the counters of the connections that the list does not have. May sleep.
    pub(crate) fn list<R>(&self, list: impl FnOnce(SnapshotId) -> R) -> (R, Counts) {
        // INVARIANT: Only one list is made while this lock is held.
        let _lister = self.lister.lock();
        let nr = {
            let mut sums = self.sums.lock();
            sums.last = SnapshotId(sums.last.0.wrapping_add(1));
            sums.under_way = true;
            sums.last
        };
        let listed = list(nr);
        let mut sums = self.sums.lock();
        let over = sums.over;
        // INVARIANT: No list is being made any more.
        let those = core::mem::take(&mut sums.listed);
        sums.under_way = false;
        sums.over.add(&those);
        (listed, over)
    }
}
