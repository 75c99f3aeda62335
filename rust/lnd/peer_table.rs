// SPDX-License-Identifier: GPL-2.0

//! The peers of an NI by address: shards with a lock each, so that senders to different peers
//! rarely meet.
//!
//! All peers of an NI are on its network, so the IPv4 address names them. A look costs the same for a few peers and for
//! many, whoever chose their addresses ([`crate::policy::addr_table`]).
//!
//! Process context. Nothing is allocated under a lock: what a shard grows or shrinks into is made before. Senders come
//! here, which the file system waits for: memory for that is made in a [`NofsScope`], whoever asks.
//!
//! # Invariants
//!
//! Of a shard: `slots` has the mark of each peer in `places` and its place, and no other; a peer keeps its place as
//! long as it is in the table, or has a lower one when the shard shrinks. Three quarters of the slots are empty at
//! least. `free` begins the list of the places without a peer.

use kernel::{
    prelude::*,
    sync::{
        Arc,
        SpinLock, //
    }, //
};

use crate::{
    policy::addr_table::{
        self,
        AddrHash,
        HashKey,
        TableSlot,
        SHARD_BITS, //
    },
    proto::nid::Nid,
    rdma::{
        random,
        work::{
            cpus,
            NofsScope, //
        }, //
    }, //
};

/// Number of shards at most.
const SHARDS: usize = 1 << SHARD_BITS;

/// And for each CPU. So senders rarely meet; and who looks at all peers, which is done each time that something
/// changes at the port, does not take more locks than that.
const SHARDS_PER_CPU: usize = 4;

/// No place.
const NOWHERE: u32 = u32::MAX;

/// What has a NID.
pub(crate) trait HasNid {
    /// Its NID; it stays the same.
    fn nid(&self) -> Nid;
}

/// Where a peer is, or was.
enum TableEntry<P> {
    Peer(Arc<P>),
    /// And the next free one.
    Free(u32),
}

/// Some of the peers.
struct Shard<P> {
    slots: KVec<TableSlot>,
    places: KVec<TableEntry<P>>,
    free: u32,
    peers: usize,
}

impl<P: HasNid> Shard<P> {
    const EMPTY: Self = Self {
        slots: KVec::new(),
        places: KVec::new(),
        free: NOWHERE,
        peers: 0,
    };

    /// An empty one with so many slots. May sleep.
    fn with_slots(n: usize) -> Result<Self> {
        Ok(Self {
            slots: KVec::from_elem(TableSlot::EMPTY, n, GFP_KERNEL)?,
            places: KVec::with_capacity(addr_table::room(n), GFP_KERNEL)?,
            ..Self::EMPTY
        })
    }

    /// Slots that it needs for one peer more; `None`: it has them.
    fn wants(&self) -> Option<usize> {
        addr_table::wants(self.slots.len(), self.peers)
    }

    /// Slots that would be enough for it; `None`: it has not far too many.
    fn spares(&self) -> Option<usize> {
        addr_table::spares(self.slots.len(), self.peers)
    }

    fn get(&self, mark: AddrHash) -> Option<&Arc<P>> {
        let at = addr_table::find(&self.slots, mark)?;
        match self.places.get(usize::try_from(at).ok()?)? {
            TableEntry::Peer(peer) => Some(peer),
            TableEntry::Free(_) => None,
        }
    }

    /// All of it goes into `other`, which is empty, has room for it, and takes its place; the peers get the lowest
    /// places, in the order that they had. What is left of it holds memory only.
    fn resize(&mut self, mut other: Self, key: HashKey) -> Self {
        for place in self.places.drain_all() {
            if let TableEntry::Peer(peer) = place {
                let _ = other.add(&peer, key.mark(peer.nid().addr()));
            }
        }
        core::mem::replace(self, other)
    }

    /// A peer whose address is not there. False: there is no room, see [`Shard::wants`].
    fn add(&mut self, peer: &Arc<P>, mark: AddrHash) -> bool {
        let next = u32::try_from(self.places.len()).unwrap_or(NOWHERE);
        let at = if self.free == NOWHERE {
            next
        } else {
            self.free
        };
        if self.wants().is_some() || !addr_table::add(&mut self.slots, mark, at) {
            return false;
        }
        let place = TableEntry::Peer(peer.clone());
        match usize::try_from(at)
            .ok()
            .and_then(|at| self.places.get_mut(at))
        {
            Some(there) => {
                if let TableEntry::Free(next) = core::mem::replace(there, place) {
                    self.free = next;
                }
            }
            // There are as many places as there is room for.
            None => drop(self.places.push_within_capacity(place)),
        }
        self.peers = self.peers.saturating_add(1);
        true
    }

    fn remove(&mut self, peer: &Arc<P>, key: HashKey) -> Option<Arc<P>> {
        let mark = key.mark(peer.nid().addr());
        if !Arc::ptr_eq(self.get(mark)?, peer) {
            return None;
        }
        let at = addr_table::remove(&mut self.slots, key, mark)?;
        let place = self.places.get_mut(usize::try_from(at).ok()?)?;
        let was = core::mem::replace(place, TableEntry::Free(self.free));
        self.free = at;
        self.peers = self.peers.saturating_sub(1);
        match was {
            TableEntry::Peer(peer) => Some(peer),
            TableEntry::Free(_) => None,
        }
    }

    /// The last peer before that place, and its place. Peers move to lower places only.
    fn before(&self, place: usize) -> Option<(Arc<P>, usize)> {
        let places = self.places.iter().enumerate().take(place).rev();
        let mut peers = places.filter_map(|(at, place)| match place {
            TableEntry::Peer(peer) => Some((peer.clone(), at)),
            TableEntry::Free(_) => None,
        });
        peers.next()
    }
}

/// How far a walk over the table is.
#[derive(Clone, Copy)]
pub(crate) struct TableWalk {
    shard: usize,
    /// The place of the last peer. Downwards, as peers move, so that none that moves is passed by.
    place: usize,
}

impl TableWalk {
    /// Before the first peer.
    pub(crate) const START: Self = Self {
        shard: 0,
        place: usize::MAX,
    };
}

/// The table of peers, each a `P`.
pub(crate) struct PeerTable<P> {
    key: HashKey,
    shards: KVec<Pin<KBox<SpinLock<Shard<P>>>>>,
}

impl<P: HasNid> PeerTable<P> {
    /// An empty table. May sleep.
    pub(crate) fn new() -> Result<Self> {
        let n = shards_for(cpus());
        let mut shards = KVec::with_capacity(n, GFP_KERNEL)?;
        for _ in 0..n {
            let shard = KBox::pin_init(
                kernel::new_spinlock!(Shard::EMPTY, "PeerTable::shard"),
                GFP_KERNEL,
            )?;
            shards.push(shard, GFP_KERNEL)?;
        }
        Ok(Self {
            key: HashKey::new(random::u64(), random::u64()),
            shards,
        })
    }

    /// What stands for a NID, and the shard that it belongs to.
    fn shard(&self, nid: Nid) -> Option<(AddrHash, Pin<&SpinLock<Shard<P>>>)> {
        let mark = self.key.mark(nid.addr());
        // A power of two.
        let at = mark.shard() & self.shards.len().wrapping_sub(1);
        let shard = self.shards.get(at)?;
        Some((mark, shard.as_ref()))
    }

    /// The peer with that NID.
    #[inline]
    pub(crate) fn get(&self, nid: Nid) -> Option<Arc<P>> {
        let (mark, shard) = self.shard(nid)?;
        let inner = shard.lock();
        inner.get(mark).cloned()
    }

    /// The same, of which `f` makes something at once, with the lock of its part of the table held: it may take the
    /// peer's, and allocates nothing.
    #[inline]
    pub(crate) fn with<R>(&self, nid: Nid, f: impl FnOnce(&P) -> Option<R>) -> Option<R> {
        let (mark, shard) = self.shard(nid)?;
        let inner = shard.lock();
        f(inner.get(mark)?)
    }

    /// The peer with that NID, made by `new` if need be. `ESHUTDOWN` if it is not there and
    /// `stopping`, which is asked under the lock. May sleep.
    pub(crate) fn get_or_add(
        &self,
        nid: Nid,
        new: impl FnOnce() -> Result<Arc<P>>,
        stopping: impl Fn() -> bool,
    ) -> Result<Arc<P>> {
        if let Some(peer) = self.get(nid) {
            return Ok(peer);
        }
        let (mark, shard) = self.shard(nid).ok_or(EINVAL)?;
        let _nofs = NofsScope::enter();
        let peer = new()?;
        let mut bigger = None;
        loop {
            let mut inner = shard.lock();
            if stopping() {
                return Err(ESHUTDOWN);
            }
            if let Some(there) = inner.get(mark) {
                return Ok(there.clone());
            }
            let left = match (inner.wants(), bigger.take()) {
                (Some(n), Some(shard)) if slots_of(&shard) >= n => {
                    Some(inner.resize(shard, self.key))
                }
                (_, unused) => unused,
            };
            let wants = inner.wants();
            let added = inner.add(&peer, mark);
            drop(inner);
            // Memory goes without the lock.
            drop(left);
            match wants {
                Some(n) => bigger = Some(Shard::with_slots(n)?),
                None if added => return Ok(peer),
                None => return Err(ENOMEM),
            }
        }
    }

    /// Takes a peer out. May sleep.
    pub(crate) fn remove(&self, peer: &Arc<P>) {
        let Some((_, shard)) = self.shard(peer.nid()) else {
            return;
        };
        let (removed, spares) = {
            let mut inner = shard.lock();
            (inner.remove(peer, self.key), inner.spares())
        };
        // Freed without the lock.
        drop(removed);
        let Some(n) = spares else { return };
        let _nofs = NofsScope::enter();
        // Without memory it stays as large as it is.
        let Ok(smaller) = Shard::with_slots(n) else {
            return;
        };
        let mut inner = shard.lock();
        let left = if inner.spares() == Some(n) {
            inner.resize(smaller, self.key)
        } else {
            smaller
        };
        drop(inner);
        // Memory goes without the lock.
        drop(left);
    }

    /// Calls `f` for every peer, without any lock. Peers that come or go meanwhile may be missed, and one that stays
    /// may be met twice.
    pub(crate) fn for_each(&self, mut f: impl FnMut(&Arc<P>)) {
        let mut walk = TableWalk::START;
        while let Some(peer) = self.next(&mut walk) {
            f(&peer);
        }
    }

    /// The next peer of a walk, which can be left and gone on with at any time; the same is said of it as of
    /// [`PeerTable::for_each`].
    pub(crate) fn next(&self, walk: &mut TableWalk) -> Option<Arc<P>> {
        loop {
            let shard = self.shards.get(walk.shard)?;
            let next = shard.lock().before(walk.place);
            if let Some((peer, at)) = next {
                walk.place = at;
                return Some(peer);
            }
            *walk = TableWalk {
                shard: walk.shard.saturating_add(1),
                ..TableWalk::START
            };
        }
    }
}

/// Shards of a table on a host with so many CPUs: a power of two.
fn shards_for(cpus: u32) -> usize {
    let n = usize::try_from(cpus).unwrap_or(SHARDS);
    n.saturating_mul(SHARDS_PER_CPU)
        .min(SHARDS)
        .next_power_of_two()
}

fn slots_of<P>(shard: &Shard<P>) -> usize {
    shard.slots.len()
}
