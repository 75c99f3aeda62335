// SPDX-License-Identifier: GPL-2.0

//! The peers of an NI by address: shards with a lock each, so that senders to different peers
//! rarely meet.
//!
//! All peers of an NI are on its network, so the IPv4 address names them.
//!
//! Process context.

use kernel::{
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNode, //
    },
    sync::{
        Arc,
        SpinLock, //
    }, //
};

use crate::proto::nid::Nid;

/// Number of shards, a power of two.
const SHARDS: usize = 64;

type Shard<P> = SpinLock<RBTree<u32, Arc<P>>>;

/// What has a NID.
pub(crate) trait Named {
    /// Its NID; it stays the same.
    fn nid(&self) -> Nid;
}

/// The table of peers, each a `P`.
pub(crate) struct PeerTable<P> {
    shards: KVec<Pin<KBox<Shard<P>>>>,
}

impl<P: Named> PeerTable<P> {
    /// An empty table. May sleep.
    pub(crate) fn new() -> Result<Self> {
        let mut shards = KVec::with_capacity(SHARDS, GFP_KERNEL)?;
        for _ in 0..SHARDS {
            let shard = KBox::pin_init(
                kernel::new_spinlock!(RBTree::new(), "PeerTable::shard"),
                GFP_KERNEL,
            )?;
            shards.push(shard, GFP_KERNEL)?;
        }
        Ok(Self { shards })
    }

    fn shard(&self, addr: u32) -> Option<Pin<&Shard<P>>> {
        // Addresses of a cluster differ in their low bits.
        let hash = addr ^ (addr >> 8) ^ (addr >> 16);
        let at = usize::try_from(hash).ok()?.checked_rem(SHARDS)?;
        self.shards.get(at).map(|shard| shard.as_ref())
    }

    /// The peer with that NID.
    pub(crate) fn get(&self, nid: Nid) -> Option<Arc<P>> {
        self.shard(nid.addr())?.lock().get(&nid.addr()).cloned()
    }

    /// The peer with that NID, made by `new` if need be. `ESHUTDOWN` if it is not there and
    /// `stopping`, which is asked under the lock. May sleep.
    pub(crate) fn get_or_add(
        &self,
        nid: Nid,
        new: impl FnOnce() -> Result<Arc<P>>,
        stopping: impl FnOnce() -> bool,
    ) -> Result<Arc<P>> {
        if let Some(peer) = self.get(nid) {
            return Ok(peer);
        }
        let shard = self.shard(nid.addr()).ok_or(EINVAL)?;
        let peer = new()?;
        let node = RBTreeNode::new(nid.addr(), peer.clone(), GFP_KERNEL)?;
        let mut shard = shard.lock();
        if stopping() {
            return Err(ESHUTDOWN);
        }
        if let Some(there) = shard.get(&nid.addr()) {
            return Ok(there.clone());
        }
        shard.insert(node);
        Ok(peer)
    }

    /// Takes a peer out.
    pub(crate) fn remove(&self, peer: &Arc<P>) {
        let addr = peer.nid().addr();
        let Some(shard) = self.shard(addr) else {
            return;
        };
        let removed = {
            let mut shard = shard.lock();
            match shard.get(&addr) {
                Some(there) if Arc::ptr_eq(there, peer) => shard.remove_node(&addr),
                _ => None,
            }
        };
        // Freed without the lock.
        drop(removed);
    }

    /// Calls `f` for every peer, without any lock. Peers that come or go meanwhile may be missed.
    pub(crate) fn for_each(&self, mut f: impl FnMut(&Arc<P>)) {
        for shard in self.shards.iter() {
            let mut least = Some(0);
            while let Some(from) = least {
                let next = {
                    let shard = shard.lock();
                    shard
                        .cursor_lower_bound(&from)
                        .map(|at| at.current().1.clone())
                };
                let Some(peer) = next else { break };
                least = peer.nid().addr().checked_add(1);
                f(&peer);
            }
        }
    }
}
