// SPDX-License-Identifier: GPL-2.0

//! The peers of an NI by address: shards with a lock each, so that senders to different peers
//! rarely meet.
//!
//! All peers of an NI are on its network, so the IPv4 address names them. A look costs the same for a few peers and for
//! many ([`crate::proto::slots`]).
//!
//! Process context. Nothing is allocated under a lock: what a shard grows into is made before.
//!
//! # Invariants
//!
//! Of a shard: `slots` has the address of each peer in `places` and its place, and no other; a peer keeps its place as
//! long as it is in the table. Half of the slots are empty at least. `free` begins the list of the places without a
//! peer.

use kernel::{
    prelude::*,
    sync::{
        Arc,
        SpinLock, //
    }, //
};

use crate::proto::{
    nid::Nid,
    slots::{
        self,
        Slot, //
    }, //
};

/// Number of shards, a power of two.
const SHARDS: usize = 64;

/// Slots of a shard that gets its first peer.
const SLOTS_MIN: usize = 4;

/// No place.
const NOWHERE: u32 = u32::MAX;

/// What has a NID.
pub(crate) trait Named {
    /// Its NID; it stays the same.
    fn nid(&self) -> Nid;
}

/// Where a peer is, or was.
enum Place<P> {
    Peer(Arc<P>),
    /// And the next free one.
    Free(u32),
}

/// Some of the peers.
struct Shard<P> {
    slots: KVec<Slot>,
    places: KVec<Place<P>>,
    free: u32,
    peers: usize,
}

impl<P: Named> Shard<P> {
    const EMPTY: Self = Self {
        slots: KVec::new(),
        places: KVec::new(),
        free: NOWHERE,
        peers: 0,
    };

    /// An empty one with so many slots. May sleep.
    fn with_slots(n: usize) -> Result<Self> {
        Ok(Self {
            slots: KVec::from_elem(Slot::EMPTY, n, GFP_KERNEL)?,
            places: KVec::with_capacity(slots::room(n), GFP_KERNEL)?,
            ..Self::EMPTY
        })
    }

    /// Slots that it needs for one peer more; `None`: it has them.
    fn wants(&self) -> Option<usize> {
        let n = self.slots.len();
        (self.peers >= slots::room(n)).then(|| n.saturating_mul(2).max(SLOTS_MIN))
    }

    fn get(&self, addr: u32) -> Option<&Arc<P>> {
        let at = slots::find(&self.slots, addr)?;
        match self.places.get(usize::try_from(at).ok()?)? {
            Place::Peer(peer) => Some(peer),
            Place::Free(_) => None,
        }
    }

    /// All of it goes into `bigger`, which takes its place; each peer keeps its own. What is left of it holds memory
    /// only.
    fn grow(&mut self, mut bigger: Self) -> Self {
        for (at, place) in self.places.drain_all().enumerate() {
            if let (Place::Peer(peer), Ok(at)) = (&place, u32::try_from(at)) {
                let _ = slots::add(&mut bigger.slots, peer.nid().addr(), at);
            }
            let _ = bigger.places.push_within_capacity(place);
        }
        (bigger.free, bigger.peers) = (self.free, self.peers);
        core::mem::replace(self, bigger)
    }

    /// A peer whose address is not there. False: there is no room, see [`Shard::wants`].
    fn add(&mut self, peer: &Arc<P>) -> bool {
        let next = u32::try_from(self.places.len()).unwrap_or(NOWHERE);
        let at = if self.free == NOWHERE {
            next
        } else {
            self.free
        };
        if self.wants().is_some() || !slots::add(&mut self.slots, peer.nid().addr(), at) {
            return false;
        }
        let place = Place::Peer(peer.clone());
        match usize::try_from(at)
            .ok()
            .and_then(|at| self.places.get_mut(at))
        {
            Some(there) => {
                if let Place::Free(next) = core::mem::replace(there, place) {
                    self.free = next;
                }
            }
            // There are as many places as there is room for.
            None => drop(self.places.push_within_capacity(place)),
        }
        self.peers = self.peers.saturating_add(1);
        true
    }

    fn remove(&mut self, peer: &Arc<P>) -> Option<Arc<P>> {
        let addr = peer.nid().addr();
        if !Arc::ptr_eq(self.get(addr)?, peer) {
            return None;
        }
        let at = slots::remove(&mut self.slots, addr)?;
        let place = self.places.get_mut(usize::try_from(at).ok()?)?;
        let was = core::mem::replace(place, Place::Free(self.free));
        self.free = at;
        self.peers = self.peers.saturating_sub(1);
        match was {
            Place::Peer(peer) => Some(peer),
            Place::Free(_) => None,
        }
    }

    /// The first peer from that place on, and the place behind it.
    fn from(&self, place: usize) -> Option<(Arc<P>, usize)> {
        let places = self.places.iter().enumerate().skip(place);
        let mut peers = places.filter_map(|(at, place)| match place {
            Place::Peer(peer) => Some((peer.clone(), at.saturating_add(1))),
            Place::Free(_) => None,
        });
        peers.next()
    }
}

/// The table of peers, each a `P`.
pub(crate) struct PeerTable<P> {
    shards: KVec<Pin<KBox<SpinLock<Shard<P>>>>>,
}

impl<P: Named> PeerTable<P> {
    /// An empty table. May sleep.
    pub(crate) fn new() -> Result<Self> {
        let mut shards = KVec::with_capacity(SHARDS, GFP_KERNEL)?;
        for _ in 0..SHARDS {
            let shard = KBox::pin_init(
                kernel::new_spinlock!(Shard::EMPTY, "PeerTable::shard"),
                GFP_KERNEL,
            )?;
            shards.push(shard, GFP_KERNEL)?;
        }
        Ok(Self { shards })
    }

    fn shard(&self, addr: u32) -> Option<Pin<&SpinLock<Shard<P>>>> {
        // Addresses of a cluster differ in their low bits.
        let hash = addr ^ (addr >> 8) ^ (addr >> 16);
        let at = usize::try_from(hash).ok()?.checked_rem(SHARDS)?;
        self.shards.get(at).map(|shard| shard.as_ref())
    }

    /// The peer with that NID.
    #[inline]
    pub(crate) fn get(&self, nid: Nid) -> Option<Arc<P>> {
        self.shard(nid.addr())?.lock().get(nid.addr()).cloned()
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
        let shard = self.shard(nid.addr()).ok_or(EINVAL)?;
        let peer = new()?;
        let mut bigger = None;
        loop {
            let mut inner = shard.lock();
            if stopping() {
                return Err(ESHUTDOWN);
            }
            if let Some(there) = inner.get(nid.addr()) {
                return Ok(there.clone());
            }
            let left = match (inner.wants(), bigger.take()) {
                (Some(n), Some(shard)) if slots_of(&shard) >= n => Some(inner.grow(shard)),
                (_, unused) => unused,
            };
            let wants = inner.wants();
            let added = inner.add(&peer);
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

    /// Takes a peer out.
    pub(crate) fn remove(&self, peer: &Arc<P>) {
        let Some(shard) = self.shard(peer.nid().addr()) else {
            return;
        };
        let removed = shard.lock().remove(peer);
        // Freed without the lock.
        drop(removed);
    }

    /// Calls `f` for every peer, without any lock. Peers that come or go meanwhile may be missed.
    pub(crate) fn for_each(&self, mut f: impl FnMut(&Arc<P>)) {
        for shard in self.shards.iter() {
            let mut place = 0;
            loop {
                let next = shard.lock().from(place);
                let Some((peer, behind)) = next else { break };
                place = behind;
                f(&peer);
            }
        }
    }
}

fn slots_of<P>(shard: &Shard<P>) -> usize {
    shard.slots.len()
}
