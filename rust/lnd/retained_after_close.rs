// SPDX-License-Identifier: GPL-2.0

//! Requests of closed connections that LNet still retains, counted by address; [`crate::policy::retained_after_close`]
//! has the rule.
//!
//! Context: any; no lock is needed.

use kernel::prelude::*;

use crate::{
    policy::{
        retained_after_close::{
            are_too_many,
            PARTS, //
        },
        salted_hash, //
    },
    proto::nid::Nid,
    rdma::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        random, //
    }, //
};

/// Number of tables of counts: an address that shares a count with a hostile address in one table hardly ever shares
/// one in the other.
const TABLES: usize = 2;

/// Counts of retained requests of an NI.
pub(crate) struct RetainedRx {
    tables: [RetainedCounts; TABLES],
}

/// Table of counts. Several addresses share each count.
struct RetainedCounts {
    counts: KVec<Atomic<u32>>,
    salt: u64,
}

impl RetainedCounts {
    fn new() -> Result<Self> {
        let mut counts = KVec::with_capacity(PARTS, GFP_KERNEL)?;
        for _ in 0..PARTS {
            counts.push(Atomic::new(0), GFP_KERNEL)?;
        }
        Ok(Self {
            counts,
            salt: random::u64(),
        })
    }

    fn of(&self, nid: Nid) -> Option<&Atomic<u32>> {
        self.counts
            .get(salted_hash::index(nid.addr(), self.salt, self.counts.len()))
    }
}

impl RetainedRx {
    /// Creates counts of zero. May sleep.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            tables: [RetainedCounts::new()?, RetainedCounts::new()?],
        })
    }

    fn of(&self, nid: Nid) -> impl Iterator<Item = &Atomic<u32>> {
        self.tables.iter().filter_map(move |table| table.of(nid))
    }

    /// Counts `n` requests that LNet retains from a closed connection with `nid`.
    pub(crate) fn left(&self, nid: Nid, n: u16) {
        for count in self.of(nid) {
            count.fetch_add(n.into(), Relaxed);
        }
    }

    /// Counts a request that LNet has returned.
    pub(crate) fn returned(&self, nid: Nid) {
        for count in self.of(nid) {
            // The request was counted before.
            count.fetch_sub(1, Relaxed);
        }
    }

    /// Returns whether `nid` gets no connection until LNet returns some requests.
    pub(crate) fn are_too_many(&self, nid: Nid) -> bool {
        self.of(nid).all(|count| are_too_many(count.load(Relaxed)))
    }

    /// Returns the number of all retained requests.
    pub(crate) fn all(&self) -> u32 {
        let [one, _] = &self.tables;
        let counts = one.counts.iter();
        counts.fold(0, |sum, count| sum.saturating_add(count.load(Relaxed)))
    }
}
