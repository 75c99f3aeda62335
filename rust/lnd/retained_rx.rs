// SPDX-License-Identifier: GPL-2.0

//! Requests that LNet keeps though their connections are over, counted by address; [`crate::policy::retained_rx`] has
//! the rule.
//!
//! Any context; no lock is needed.

use kernel::prelude::*;

use crate::{
    policy::{
        addr_hash,
        retained_rx::{
            are_too_many,
            PARTS, //
        }, //
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

/// Tables of counts: who shares one in one of them with a hostile address hardly ever shares one in the other.
const TABLES: usize = 2;

/// Those of an NI.
pub(crate) struct RetainedRx {
    tables: [RetainedCounts; TABLES],
}

/// Counts, each of which some addresses share.
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
            .get(addr_hash::place(nid.addr(), self.salt, self.counts.len()))
    }
}

impl RetainedRx {
    /// None yet. May sleep.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            tables: [RetainedCounts::new()?, RetainedCounts::new()?],
        })
    }

    fn of(&self, nid: Nid) -> impl Iterator<Item = &Atomic<u32>> {
        self.tables.iter().filter_map(move |table| table.of(nid))
    }

    /// A connection with `nid` is over, of which LNet keeps `n`.
    pub(crate) fn left(&self, nid: Nid, n: u16) {
        for count in self.of(nid) {
            count.fetch_add(n.into(), Relaxed);
        }
    }

    /// LNet has given one of them back.
    pub(crate) fn returned(&self, nid: Nid) {
        for count in self.of(nid) {
            // It was counted.
            count.fetch_sub(1, Relaxed);
        }
    }

    /// Whether `nid` gets no connection before some have come back.
    pub(crate) fn are_too_many(&self, nid: Nid) -> bool {
        self.of(nid).all(|count| are_too_many(count.load(Relaxed)))
    }

    /// All of them.
    pub(crate) fn all(&self) -> u32 {
        let [one, _] = &self.tables;
        let counts = one.counts.iter();
        counts.fold(0, |sum, count| sum.saturating_add(count.load(Relaxed)))
    }
}
