// SPDX-License-Identifier: GPL-2.0

//! Counters of a connection, as debugfs shows them, and their sums over the closed connections of an NI.
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
//! - Only one list is made at a time, and no connection was in the list `last` unless that is being made.

use kernel::{
    fmt,
    prelude::*,
    sync::Mutex, //
};

use super::conn_counter_table::conn_counters;
use crate::rdma::sync::{
    new_spinlock_bh,
    SpinLockBh, //
};

/// Defines [`Count`] and the keys of debugfs of the table.
macro_rules! define {
    ($($(#[$doc:meta])+ $count:ident => $key:ident,)+) => {
        #[derive(Clone, Copy)]
        pub(crate) enum Count {
            $($(#[$doc])+ $count,)+
        }

        const KEYS: [&str; [$(stringify!($key)),+].len()] = [$(stringify!($key)),+];
    };
}

conn_counters!(define);

/// Number of counters in the middle of the line of a connection; later additions are at its end.
const FIRST: usize = 12;

/// Values of all counters of a connection, or their sums over the closed connections of an NI. The owner's lock
/// protects them.
#[derive(Clone, Copy, Default)]
pub(crate) struct Counts([u64; KEYS.len()]);

impl Counts {
    #[inline(always)]
    pub(crate) fn one(&mut self, what: Count) {
        self.more(what, 1);
    }

    #[inline(always)]
    pub(crate) fn more(&mut self, what: Count, n: u16) {
        if let Some(all) = self.0.get_mut(what as usize) {
            *all = all.wrapping_add(n.into());
        }
    }

    /// Returns the counters with `recv_wrs`, which the queue pair counts.
    pub(crate) fn with_recv_wrs(mut self, recv_wrs: u64) -> Self {
        if let Some(n) = self.0.get_mut(Count::RecvWrs as usize) {
            *n = recv_wrs;
        }
        self
    }

    /// Adds the counters of a closed connection to the sums of its NI.
    fn add(&mut self, of: &Self) {
        for (sum, n) in self.0.iter_mut().zip(of.0) {
            *sum = sum.wrapping_add(n);
        }
    }

    /// Writes the first counters to a line, or the `later` ones.
    pub(crate) fn show(&self, later: bool, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (key, n)) in KEYS.iter().zip(self.0).enumerate() {
            if (at >= FIRST) == later {
                write!(f, " {key}={n}")?;
            }
        }
        Ok(())
    }
}

/// Number of the list that a connection was last in; 0 is none.
pub(crate) type SnapshotId = u64;

struct Sums {
    over: Counts,
    listed: Counts,
    /// Number of the list being made, otherwise a number that no list has.
    last: SnapshotId,
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
    pub(crate) fn new() -> impl PinInit<Self> {
        let sums = Sums {
            over: Counts::default(),
            listed: Counts::default(),
            // INVARIANT: No list has this number.
            last: 1,
        };
        pin_init!(Self {
            sums <- new_spinlock_bh!(sums, "ClosedCounters::sums"),
            lister <- kernel::new_mutex!((), "ClosedCounters::lister"),
        })
    }

    /// Adds the counters of a connection that closes and was last in `list`. Called with the connection lock held.
    pub(crate) fn add(&self, counts: &Counts, list: SnapshotId) {
        let mut sums = self.sums.lock();
        if sums.last == list {
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
        let number = {
            let mut sums = self.sums.lock();
            sums.last = sums.last.wrapping_add(1);
            sums.last
        };
        let listed = list(number);
        let mut sums = self.sums.lock();
        let over = sums.over;
        // INVARIANT: No list is being made any more; the next one has the number after this.
        sums.last = number.wrapping_add(1);
        let those = core::mem::take(&mut sums.listed);
        sums.over.add(&those);
        (listed, over)
    }
}
