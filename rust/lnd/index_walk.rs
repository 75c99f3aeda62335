// SPDX-License-Identifier: GPL-2.0

//! Look-up of peers and connections by number. LNet lists them by asking for number 0, 1, 2 and so on until there is
//! none. A walk that began at the first peer for each number would take a minute with ten thousand peers, so the walk
//! continues from its last position.
//!
//! Context: process.

use kernel::{
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    }, //
};

use super::peer::{
    Connection,
    Peer, //
};
use crate::{
    proto::nid::Nid,
    rdma::rcu_map::{
        MapWalk,
        RcuMap, //
    }, //
};

/// Walks over the peers and over the connections of one NI. Administrators that list at the same time disturb each
/// other: then a walk begins at the first peer.
#[pin_data]
pub(crate) struct IndexWalks {
    #[pin]
    peers: Mutex<WalkPos>,
    #[pin]
    conns: Mutex<WalkPos>,
}

/// Position of a walk.
#[derive(Clone, Copy)]
struct WalkPos {
    /// Number of the next peer or connection.
    next: u32,
    walk: MapWalk,
    /// For connections: the peer whose connections are listed, and how many of them were listed.
    peer: Option<(Nid, usize)>,
}

impl WalkPos {
    const START: Self = Self {
        next: 0,
        walk: MapWalk::START,
        peer: None,
    };

    /// Returns the item `index` of the sequence that `step` produces. Continues from the current position if that is
    /// not behind `index`.
    fn find<T>(&mut self, index: u32, mut step: impl FnMut(&mut Self) -> Option<T>) -> Option<T> {
        if index < self.next {
            *self = Self::START;
        }
        loop {
            let found = step(self);
            if found.is_none() {
                *self = Self::START;
                return None;
            }
            let at = self.next;
            self.next = at.saturating_add(1);
            if at == index {
                return found;
            }
        }
    }
}

impl IndexWalks {
    /// Creates both walks, at the first peer.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            peers <- kernel::new_mutex!(WalkPos::START, "IndexWalks::peers"),
            conns <- kernel::new_mutex!(WalkPos::START, "IndexWalks::conns"),
        })
    }

    /// Returns peer number `index`.
    pub(crate) fn peer<C: Connection>(
        &self,
        table: &RcuMap<Peer<C>>,
        index: u32,
    ) -> Option<Arc<Peer<C>>> {
        let mut place = self.peers.lock();
        place.find(index, |place| table.next(&mut place.walk))
    }

    /// Returns connection number `index`.
    pub(crate) fn conn<C: Connection>(
        &self,
        table: &RcuMap<Peer<C>>,
        index: u32,
    ) -> Option<Arc<C>> {
        let mut place = self.conns.lock();
        place.find(index, |place| loop {
            if let Some((nid, at)) = place.peer {
                let conn = table.get(nid.addr()).and_then(|peer| peer.conn_at(at));
                if conn.is_some() {
                    place.peer = Some((nid, at.saturating_add(1)));
                    return conn;
                }
            }
            place.peer = Some((table.next(&mut place.walk)?.nid, 0));
        })
    }
}
