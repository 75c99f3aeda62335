// SPDX-License-Identifier: GPL-2.0

//! Peers of an NI by address: shards with a lock each, so that senders to different peers rarely contend.
//!
//! All peers of an NI are on its network, so the IPv4 address identifies a peer. A look-up costs the same for a few
//! peers and for many, even if a hostile host chose the addresses ([`crate::policy::peer_hash_table`]).
//!
//! Context: process. No memory is allocated under a lock: the caller allocates the new arrays of a shard before.
//! Senders that the file system waits for call this code. Therefore the memory is always allocated in a [`NofsScope`].
//!
//! # Invariants
//!
//! For each shard: `slots` has the hash and the place of each peer in `places`, and no others. A peer keeps its place
//! as long as it is in the table, or gets a lower one when the shard shrinks. At least three quarters of the slots are
//! empty. `free` is the head of the list of places without a peer.

use kernel::{
    prelude::*,
    sync::{
        Arc,
        SpinLock, //
    }, //
};

use crate::{
    policy::peer_hash_table::{
        self,
        AddrHash,
        HashKey,
        TableSlot,
        SHARD_BITS, //
    },
    proto::{
        broken::broken,
        nid::Nid, //
    },
    rdma::{
        random,
        work::{
            cpus,
            NofsScope, //
        }, //
    }, //
};

/// Maximum number of shards.
const SHARDS: usize = 1 << SHARD_BITS;

/// And for each CPU. So senders rarely meet; and who looks at all peers, which is done each time that something
/// changes at the port, does not take more locks than that.
const SHARDS_PER_CPU: usize = 4;

/// Number that stands for no place.
const NOWHERE: u32 = u32::MAX;

/// Type with a NID.
pub(crate) trait HasNid {
    /// Returns the NID, which never changes.
    fn nid(&self) -> Nid;
}

/// Place in a shard, with a peer or free.
enum TableEntry<P> {
    Peer(Arc<P>),
    /// A free place, and the next free place.
    Free(u32),
}

/// Part of the peers, with its own lock.
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

    /// Creates an empty shard with `n` slots. May sleep.
    fn with_slots(n: usize) -> Result<Self> {
        Ok(Self {
            slots: KVec::from_elem(TableSlot::EMPTY, n, GFP_KERNEL)?,
            places: KVec::with_capacity(peer_hash_table::room(n), GFP_KERNEL)?,
            ..Self::EMPTY
        })
    }

    /// Returns the number of slots needed to add one more peer; `None`: there are enough.
    fn slots_to_add(&self) -> Option<usize> {
        peer_hash_table::slots_to_add(self.slots.len(), self.peers)
    }

    /// Returns a smaller sufficient number of slots; `None`: the shard is not much too large.
    fn spares(&self) -> Option<usize> {
        peer_hash_table::spares(self.slots.len(), self.peers)
    }

    fn get(&self, mark: AddrHash) -> Option<&Arc<P>> {
        let at = peer_hash_table::find(&self.slots, mark)?;
        match self.places.get(usize::try_from(at).ok()?)? {
            TableEntry::Peer(peer) => Some(peer),
            TableEntry::Free(_) => None,
        }
    }

    /// Moves all peers into `other`, which is empty and large enough, and replaces this shard with it. Peers get the
    /// lowest places, in their previous order. The returned shard holds memory only.
    fn resize(&mut self, mut other: Self, key: HashKey) -> Self {
        for place in self.places.drain_all() {
            if let TableEntry::Peer(peer) = place {
                let _ = other.add(&peer, key.mark(peer.nid().addr()));
            }
        }
        core::mem::replace(self, other)
    }

    /// Adds a peer whose address is not in the shard. Returns false if there is no room, see [`Shard::slots_to_add`].
    fn add(&mut self, peer: &Arc<P>, mark: AddrHash) -> bool {
        let next = u32::try_from(self.places.len()).unwrap_or(NOWHERE);
        let at = if self.free == NOWHERE {
            next
        } else {
            self.free
        };
        if self.slots_to_add().is_some() || !peer_hash_table::add(&mut self.slots, mark, at) {
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
            // The capacity covers all places.
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
        let at = peer_hash_table::remove(&mut self.slots, key, mark)?;
        let place = self.places.get_mut(usize::try_from(at).ok()?)?;
        let was = core::mem::replace(place, TableEntry::Free(self.free));
        self.free = at;
        let left = self.peers.checked_sub(1);
        self.peers = left.unwrap_or_else(|| broken("a table holds more peers than it counts"));
        match was {
            TableEntry::Peer(peer) => Some(peer),
            TableEntry::Free(_) => None,
        }
    }

    /// Returns the last peer before `place`, and its place. Peers move to lower places only.
    fn before(&self, place: usize) -> Option<(Arc<P>, usize)> {
        let places = self.places.iter().enumerate().take(place).rev();
        let mut peers = places.filter_map(|(at, place)| match place {
            TableEntry::Peer(peer) => Some((peer.clone(), at)),
            TableEntry::Free(_) => None,
        });
        peers.next()
    }
}

/// Position of a walk over the table.
#[derive(Clone, Copy)]
pub(crate) struct TableWalk {
    shard: usize,
    /// Place of the last peer. The walk goes downwards, as peers move, so that it misses no peer that moves.
    place: usize,
}

impl TableWalk {
    /// Position before the first peer.
    pub(crate) const START: Self = Self {
        shard: 0,
        place: usize::MAX,
    };
}

/// Table of peers of type `P`.
pub(crate) struct PeerTable<P> {
    key: HashKey,
    shards: KVec<Pin<KBox<SpinLock<Shard<P>>>>>,
}

impl<P: HasNid> PeerTable<P> {
    /// Creates an empty table. May sleep.
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

    /// Returns the hash of a NID, and its shard.
    fn shard(&self, nid: Nid) -> Option<(AddrHash, Pin<&SpinLock<Shard<P>>>)> {
        let mark = self.key.mark(nid.addr());
        // The number of shards is a power of two.
        let at = mark.shard() & self.shards.len().wrapping_sub(1);
        let shard = self.shards.get(at)?;
        Some((mark, shard.as_ref()))
    }

    /// Returns the peer with that NID.
    #[inline]
    pub(crate) fn get(&self, nid: Nid) -> Option<Arc<P>> {
        let (mark, shard) = self.shard(nid)?;
        let inner = shard.lock();
        inner.get(mark).cloned()
    }

    /// Runs `f` on the peer with that NID, with the lock of its shard held. `f` may take the peer lock, and must not
    /// allocate memory.
    #[inline]
    pub(crate) fn with<R>(&self, nid: Nid, f: impl FnOnce(&P) -> Option<R>) -> Option<R> {
        let (mark, shard) = self.shard(nid)?;
        let inner = shard.lock();
        f(inner.get(mark)?)
    }

    /// Returns the peer with that NID, and creates it with `new` if necessary. May sleep.
    ///
    /// # Errors
    ///
    /// `ESHUTDOWN` if the peer does not exist and `stopping`, called under the lock, returns true.
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
            let left = match (inner.slots_to_add(), bigger.take()) {
                (Some(n), Some(shard)) if slots_of(&shard) >= n => {
                    Some(inner.resize(shard, self.key))
                }
                (_, unused) => unused,
            };
            let wants = inner.slots_to_add();
            let added = inner.add(&peer, mark);
            drop(inner);
            // Freed without the lock.
            drop(left);
            match wants {
                Some(n) => bigger = Some(Shard::with_slots(n)?),
                None if added => return Ok(peer),
                None => return Err(ENOMEM),
            }
        }
    }

    /// Removes a peer. May sleep.
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
        // If memory is missing, the shard keeps its size.
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
        // Freed without the lock.
        drop(left);
    }

    /// Calls `f` for every peer, without any lock. May miss peers that are added or removed meanwhile, and may visit a
    /// remaining peer twice.
    pub(crate) fn for_each(&self, mut f: impl FnMut(&Arc<P>)) {
        let mut walk = TableWalk::START;
        while let Some(peer) = self.next(&mut walk) {
            f(&peer);
        }
    }

    /// Returns the next peer of a walk, which the caller can suspend and resume at any time. May miss or repeat peers
    /// like [`PeerTable::for_each`].
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

/// Returns the number of shards for a host with `cpus` CPUs: a power of two.
fn shards_for(cpus: u32) -> usize {
    let n = usize::try_from(cpus).unwrap_or(SHARDS);
    n.saturating_mul(SHARDS_PER_CPU)
        .min(SHARDS)
        .next_power_of_two()
}

fn slots_of<P>(shard: &Shard<P>) -> usize {
    shard.slots.len()
}
