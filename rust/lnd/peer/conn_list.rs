// SPDX-License-Identifier: GPL-2.0

//! The connections of a peer, in whatever state, and which of them messages may use.
//!
//! Context: the caller holds the peer's lock. Of a connection it asks [`ConnListEntry`] only, which takes none.
//!
//! # Invariants
//!
//! - What is in `up` is in `all`, and in each once.
//! - There is room in `up` for all of `all`, so that publishing cannot fail.

use kernel::{
    prelude::*,
    sync::Arc, //
};

/// A connection as the list of its peer's connections sees it. Takes no lock.
pub(crate) trait ConnListEntry {
    /// Whether others are preferred, because the other side may have given this one up.
    fn is_doubted(&self) -> bool;

    /// Returns the index that [`Self::set_index`] set.
    fn index(&self) -> u32;

    /// Sets the index that tells the connection from the others of the peer.
    fn set_index(&self, index: u32);
}

/// The connections, each a `C`.
pub(super) struct ConnList<C> {
    /// Every connection object, in whatever state.
    all: KVec<Arc<C>>,
    /// Those that messages may use.
    up: KVec<Arc<C>>,
    /// Round robin over `up`.
    next: usize,
}

impl<C: ConnListEntry> ConnList<C> {
    /// None.
    pub(super) const EMPTY: Self = Self {
        all: KVec::new(),
        up: KVec::new(),
        next: 0,
    };

    /// Lists a new connection object, and gives it the lowest index that no other one has. Any context.
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

    /// A connection object is gone.
    pub(super) fn remove(&mut self, conn: &Arc<C>) {
        self.unpublish(conn);
        self.all.retain(|c| !Arc::ptr_eq(c, conn));
    }

    /// Messages may use it, if it is listed.
    pub(super) fn publish(&mut self, conn: &Arc<C>) {
        if !self.all.iter().any(|c| Arc::ptr_eq(c, conn)) {
            return;
        }
        // `add` made room.
        let _ = self.up.push_within_capacity(conn.clone());
    }

    /// Messages may no longer use it.
    pub(super) fn unpublish(&mut self, conn: &Arc<C>) {
        self.up.retain(|c| !Arc::ptr_eq(c, conn));
    }

    /// The next connection to use.
    pub(super) fn pick(&mut self) -> Option<Arc<C>> {
        self.next = self.next.wrapping_add(1);
        let at = self.next.checked_rem(self.up.len())?;
        match self.up.get(at) {
            Some(conn) if !conn.is_doubted() => Some(conn.clone()),
            _ => self.best(),
        }
    }

    /// The oldest connection that is not doubted, or else the newest.
    pub(super) fn best(&self) -> Option<Arc<C>> {
        let sound = self.up.iter().find(|conn| !conn.is_doubted());
        sound.or(self.up.last()).cloned()
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// How many messages may use.
    pub(super) fn usable(&self) -> usize {
        self.up.len()
    }

    /// The one at that place: new ones come at the end, and what goes moves only what is behind it.
    pub(super) fn at(&self, place: usize) -> Option<Arc<C>> {
        self.all.get(place).cloned()
    }

    /// All of them; without memory some. Any context.
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
