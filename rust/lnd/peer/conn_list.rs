// SPDX-License-Identifier: GPL-2.0

//! Connections of a peer, in any state, and which of them messages may use.
//!
//! Context: the caller holds the peer lock. The list calls only methods of [`ConnListEntry`], which take no lock.
//!
//! # Invariants
//!
//! - Each connection in `up` is in `all`, and neither list has a connection twice.
//! - `up` has capacity for all of `all`, so that publishing cannot fail.

use kernel::{
    prelude::*,
    sync::Arc, //
};

/// Connection as the list of its peer uses it. Its methods take no lock.
pub(crate) trait ConnListEntry {
    /// Returns whether others are preferred, because the peer may have closed this one.
    fn is_doubted(&self) -> bool;

    /// Returns the index that [`Self::set_index`] set.
    fn index(&self) -> u32;

    /// Sets the index that distinguishes the connection from the others of the peer.
    fn set_index(&self, index: u32);
}

/// Connections of a peer, of type `C`.
pub(super) struct ConnList<C> {
    /// All connection objects, in any state.
    all: KVec<Arc<C>>,
    /// Connections that messages may use.
    up: KVec<Arc<C>>,
    /// Round-robin position in `up`.
    next: usize,
}

impl<C: ConnListEntry> ConnList<C> {
    /// List without connections.
    pub(super) const EMPTY: Self = Self {
        all: KVec::new(),
        up: KVec::new(),
        next: 0,
    };

    /// Lists a new connection object, and assigns the lowest unused index. Any context.
    pub(super) fn add(&mut self, conn: &Arc<C>) -> Result {
        let n = self.all.len().saturating_add(1);
        let more = n.saturating_sub(self.up.len());
        self.up.reserve(more, GFP_ATOMIC)?;
        let has = |index: &u32| self.all.iter().any(|c| c.index() == *index);
        let index = (0..=u32::MAX).find(|index| !has(index));
        conn.set_index(index.unwrap_or(0));
        self.all.push(conn.clone(), GFP_ATOMIC)?;
        Ok(())
    }

    /// Removes a connection object.
    pub(super) fn remove(&mut self, conn: &Arc<C>) {
        self.unpublish(conn);
        self.all.retain(|c| !Arc::ptr_eq(c, conn));
    }

    /// Lets messages use a connection, if it is listed.
    pub(super) fn publish(&mut self, conn: &Arc<C>) {
        if !self.all.iter().any(|c| Arc::ptr_eq(c, conn)) {
            return;
        }
        // `add` made room.
        let _ = self.up.push_within_capacity(conn.clone());
    }

    /// Stops messages from using a connection.
    pub(super) fn unpublish(&mut self, conn: &Arc<C>) {
        self.up.retain(|c| !Arc::ptr_eq(c, conn));
    }

    /// Returns the next connection to use.
    pub(super) fn pick(&mut self) -> Option<Arc<C>> {
        self.next = self.next.wrapping_add(1);
        let at = self.next.checked_rem(self.up.len())?;
        match self.up.get(at) {
            Some(conn) if !conn.is_doubted() => Some(conn.clone()),
            _ => self.best(),
        }
    }

    /// Returns the oldest connection that is not doubted, otherwise the newest.
    pub(super) fn best(&self) -> Option<Arc<C>> {
        let sound = self.up.iter().find(|conn| !conn.is_doubted());
        sound.or(self.up.last()).cloned()
    }

    /// Returns the number of connections.
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Returns whether there is no connection.
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Returns the number of connections that messages may use.
    pub(super) fn usable(&self) -> usize {
        self.up.len()
    }

    /// Returns the connection at index `place`: new ones are added at the end, and a removal moves only those behind
    /// it.
    pub(super) fn at(&self, place: usize) -> Option<Arc<C>> {
        self.all.get(place).cloned()
    }

    /// Returns all connections; some are missing if there is no memory. Any context.
    pub(super) fn snapshot(&self) -> KVec<Arc<C>> {
        let mut list = KVec::new();
        for conn in self.all.iter() {
            if list.push(conn.clone(), GFP_ATOMIC).is_err() {
                break;
            }
        }
        list
    }
}
