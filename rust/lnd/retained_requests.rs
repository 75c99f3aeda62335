// SPDX-License-Identifier: GPL-2.0

//! Requests of closed connections of an NI that LNet retains, counted by the address of the peer.
//!
//! The credits of a connection limit the requests that LNet retains of it. A new connection has new credits, so a peer
//! that reconnects again and again could use up all memory (H41). The requests are counted twice by address, and some
//! addresses share a count ([`crate::policy::addr_hash`]): an address is excluded only if both of its counts are too
//! large, and it hardly ever shares both with a hostile address.
//!
//! Context: any; no lock is needed.

use kernel::prelude::*;

use crate::{
    policy::addr_hash,
    proto::nid::Nid,
    rdma::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        random, //
    }, //
};

/// Number of counts of a table: in a cluster of ten thousand nodes some twenty share one.
const PARTS: usize = 512;

/// Retained requests of the addresses that share a count, from which on they get no new connection: those of sixteen
/// connections with the largest queue depth, all retained.
const MOST: u32 = 4096;

// An honest peer may lose that many connections while LNet is stuck.
const _: () = assert!(16 * 255 < MOST);

/// Counts of retained requests of an NI.
pub(crate) struct RetainedRx {
    /// Two tables of [`PARTS`], one behind the other.
    counts: KVec<Atomic<u32>>,
    salts: [u64; 2],
}

impl RetainedRx {
    /// Creates counts of zero. May sleep.
    pub(crate) fn new() -> Result<Self> {
        let mut counts = KVec::with_capacity(2 * PARTS, GFP_KERNEL)?;
        for _ in 0..2 * PARTS {
            counts.push(Atomic::new(0), GFP_KERNEL)?;
        }
        let salts = [random::u64(), random::u64()];
        Ok(Self { counts, salts })
    }

    fn of(&self, nid: Nid) -> impl Iterator<Item = &Atomic<u32>> {
        let tables = self.counts.chunks(PARTS).zip(self.salts);
        tables.filter_map(move |(table, salt)| {
            table.get(addr_hash::index(nid.addr(), salt, table.len()))
        })
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
        self.of(nid).all(|count| count.load(Relaxed) >= MOST)
    }

    /// Returns the number of all retained requests.
    pub(crate) fn all(&self) -> u32 {
        let counts = self.counts.iter().take(PARTS);
        counts.fold(0, |sum, count| sum.saturating_add(count.load(Relaxed)))
    }
}
