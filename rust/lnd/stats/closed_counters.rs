// SPDX-License-Identifier: GPL-2.0

//! What the connections of an NI counted that are over.
//!
//! Who adds it up with what the others count has a sum that never falls: a program that draws rates takes a sum that
//! fell for one that began anew. Connections end while they are listed, and must be in that list once: either by
//! themselves, or in what is over. So what is over is told last, and a connection that ends after it was listed counts
//! for the next list.
//!
//! Context: any, but for [`ClosedCounters::list`], which sleeps. A connection adds its counters with its lock held, so
//! that no list finds them in neither place.
//!
//! # Invariants
//!
//! - `listed` is what was added by connections that the list has that is being made; nothing while none is.
//! - Of two lists one is made at a time.

use kernel::{
    prelude::*,
    sync::Mutex, //
};

use super::counters::Counts;
use crate::rdma::sync::{
    new_spinlock_bh,
    SpinLockBh, //
};

/// Which list a connection was in last; the default is none.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SnapshotId(u64);

struct Sums {
    over: Counts,
    listed: Counts,
    /// The last list that was begun.
    last: SnapshotId,
    /// It is being made.
    under_way: bool,
}

/// What the connections counted that are over.
#[pin_data]
pub(crate) struct ClosedCounters {
    /// Taken inside of the lock of a connection, which softirqs take, too.
    #[pin]
    sums: SpinLockBh<Sums>,
    /// Whoever makes a list.
    #[pin]
    lister: Mutex<()>,
}

impl ClosedCounters {
    /// Nothing.
    pub(crate) fn new() -> impl PinInit<Self> {
        let sums = Sums {
            over: Counts::default(),
            listed: Counts::default(),
            last: SnapshotId::default(),
            under_way: false,
        };
        pin_init!(Self {
            sums <- new_spinlock_bh!(sums, "Past::sums"),
            lister <- kernel::new_mutex!((), "Past::lister"),
        })
    }

    /// A connection is over that counted this, and was in that list last. Called with its lock held.
    pub(crate) fn add(&self, counts: &Counts, list: SnapshotId) {
        let mut sums = self.sums.lock();
        if sums.under_way && sums.last == list {
            // INVARIANT: That list is being made, and has it.
            sums.listed.add(counts);
        } else {
            sums.over.add(counts);
        }
    }

    /// Has `list` list the connections, each of which notes the number of the list with its lock held. Also returns
    /// what those counted that it does not have. May sleep.
    pub(crate) fn list<R>(&self, list: impl FnOnce(SnapshotId) -> R) -> (R, Counts) {
        // INVARIANT: As long as this is held.
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
        // INVARIANT: None is being made any more.
        let those = core::mem::take(&mut sums.listed);
        sums.under_way = false;
        sums.over.add(&those);
        (listed, over)
    }
}
