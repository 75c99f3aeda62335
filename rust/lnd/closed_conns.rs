// SPDX-License-Identifier: GPL-2.0

//! Remains of the closed connections of an NI: CM ids that wait ([`crate::policy::cm_id_linger`]), and requests that
//! LNet still retains.
//!
//! The credits of a connection limit the requests that LNet retains of it. A new connection has new credits, so a peer
//! that reconnects again and again could use up all memory (H41). The requests are counted twice by address, and some
//! addresses share a count ([`crate::policy::addr_hash`]): an address is excluded only if both of its counts are too
//! large, and it hardly ever shares both with a hostile address.
//!
//! Context: process for ids; any for requests, which need no lock.

use kernel::{
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    }, //
};

use crate::{
    policy::{
        addr_hash,
        cm_id_linger, //
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

/// Closed connection of type `C` whose CM id waits. It has nothing except the id, and belongs to no peer.
struct LingeringConn<C> {
    conn: Arc<C>,
    nid: Nid,
    /// When it was listed, the id waited for a route, and not for an answer.
    mute: bool,
}

/// Such connections of one NI. Thousands may wait for a route while a link is down, and few for an answer
/// ([`cm_id_linger::has_room`]).
#[pin_data]
pub(crate) struct LingeringConns<C> {
    /// `None` once the NI stops.
    #[pin]
    list: Mutex<Option<KVVec<LingeringConn<C>>>>,
}

impl<C> LingeringConns<C> {
    /// Creates an empty list.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            list <- kernel::new_mutex!(Some(KVVec::new()), "LingeringConns::list"),
        })
    }

    /// Lists `conn`, to the peer `nid`. With `mute`, its DREQ is not sent yet. Returns false if the id cannot wait.
    pub(crate) fn add(&self, conn: &Arc<C>, nid: Nid, mute: bool) -> bool {
        let mut list = self.list.lock();
        let Some(waiting) = &mut *list else {
            return false;
        };
        let told = waiting.iter().filter(|one| !one.mute);
        let told = told.map(|one| one.nid == nid);
        if !cm_id_linger::has_room(mute, waiting.len(), told) {
            return false;
        }
        let one = LingeringConn {
            conn: conn.clone(),
            nid,
            mute,
        };
        waiting.push(one, GFP_KERNEL).is_ok()
    }

    /// Takes `conn` off the list. The caller has another reference to `conn`.
    pub(crate) fn remove(&self, conn: &Arc<C>) {
        let mut list = self.list.lock();
        let Some(waiting) = &mut *list else {
            return;
        };
        let at = waiting.iter().position(|one| Arc::ptr_eq(&one.conn, conn));
        // The order does not matter: the last one takes the place.
        if let (Some(at), Some(last)) = (at, at.and_then(|_| waiting.pop())) {
            if let Some(place) = waiting.get_mut(at) {
                *place = last;
            }
        }
    }

    /// Returns the listed connections. If there is no memory, some are missing: they check by themselves from time to
    /// time.
    pub(crate) fn snapshot(&self) -> KVec<Arc<C>> {
        let mut conns = KVec::new();
        for one in self.list.lock().iter().flatten() {
            if conns.push(one.conn.clone(), GFP_KERNEL).is_err() {
                break;
            }
        }
        conns
    }

    /// Returns whether `f` is true for a listed connection. `f` may take the lock of a connection.
    pub(crate) fn any(&self, mut f: impl FnMut(&C) -> bool) -> bool {
        self.list.lock().iter().flatten().any(|one| f(&one.conn))
    }

    /// Returns the number of ids that wait.
    pub(crate) fn len(&self) -> usize {
        self.list.lock().as_ref().map_or(0, KVVec::len)
    }

    /// Calls `f` for each listed connection, and lists none any more.
    pub(crate) fn close(&self, f: impl Fn(&Arc<C>)) {
        let list = self.list.lock().take();
        list.iter().flatten().for_each(|one| f(&one.conn));
    }
}

/// Number of counts of a table: in a cluster of ten thousand nodes some twenty share one.
const PARTS: usize = 512;

/// Retained requests of the addresses that share a count, from which on they get no new connection: those of sixteen
/// connections with the largest queue depth, all retained.
const MOST: u32 = 4096;

// An honest peer may lose that many connections while LNet is stuck.
const _: () = assert!(16 * 255 < MOST);

/// Table of counts.
struct RetainedCounts {
    counts: KVec<Atomic<u32>>,
    salt: u64,
}

/// Counts of retained requests of an NI.
pub(crate) struct RetainedRx {
    tables: [RetainedCounts; 2],
}

impl RetainedRx {
    /// Creates counts of zero. May sleep.
    pub(crate) fn new() -> Result<Self> {
        let table = || -> Result<_> {
            let mut counts = KVec::with_capacity(PARTS, GFP_KERNEL)?;
            for _ in 0..PARTS {
                counts.push(Atomic::new(0), GFP_KERNEL)?;
            }
            let salt = random::u64();
            Ok(RetainedCounts { counts, salt })
        };
        Ok(Self {
            tables: [table()?, table()?],
        })
    }

    fn of(&self, nid: Nid) -> impl Iterator<Item = &Atomic<u32>> {
        self.tables.iter().filter_map(move |table| {
            let at = addr_hash::index(nid.addr(), table.salt, table.counts.len());
            table.counts.get(at)
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
        let [one, _] = &self.tables;
        let counts = one.counts.iter();
        counts.fold(0, |sum, count| sum.saturating_add(count.load(Relaxed)))
    }
}
