// SPDX-License-Identifier: GPL-2.0

//! Connections that are over, and whose CM id stays a little longer because the peer has not
//! answered the DREQ, or because there is no route to tell it; see [`crate::policy::cm_id_linger`].
//!
//! Process context. Such a connection has nothing else any more, and belongs to no peer.

use kernel::{
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    }, //
};

use crate::{
    policy::cm_id_linger::{
        self,
        LingeringIds, //
    },
    proto::nid::Nid,
    rdma::atomic::{
        Atomic,
        Relaxed, //
    }, //
};

/// What is left of a connection.
pub(crate) trait Lingering: Sized {
    /// Returns its place in the list, which [`LingeringConns`] writes.
    fn place(&self) -> &Atomic<u32>;

    /// The peer's.
    fn nid(&self) -> Nid;

    /// Whether it waits for a route, and not for an answer.
    fn is_mute(&self) -> bool;

    /// Looks whether there is a route to the peer, and speaks, or falls silent. May sleep.
    fn look_for_route(self: &Arc<Self>);

    /// It waits no longer. May sleep.
    fn end_farewell(self: &Arc<Self>);
}

/// Those of one NI, each a `C`.
#[pin_data]
pub(crate) struct LingeringConns<C> {
    /// `None` once the NI stops.
    #[pin]
    list: Mutex<Option<LingeringLists<C>>>,
}

/// The connections whose ids wait, by what they waited for when they were listed. Thousands may
/// wait for a route when a link is down, and few for an answer ([`cm_id_linger::has_room`]).
struct LingeringLists<C> {
    /// INVARIANT: [`Lingering::place`] of each is its place here. It changes under the mutex of the list.
    mute: KVec<Arc<C>>,
    told: KVec<Arc<C>>,
}

impl<C: Lingering> LingeringLists<C> {
    fn iter(&self) -> impl Iterator<Item = &Arc<C>> {
        // `pin_init` has a `chain()`, too.
        Iterator::chain(self.told.iter(), self.mute.iter())
    }

    fn len(&self) -> usize {
        self.told.len().saturating_add(self.mute.len())
    }

    fn add_mute(&mut self, conn: &Arc<C>) -> bool {
        let Ok(at) = u32::try_from(self.mute.len()) else {
            return false;
        };
        let added = self.mute.push(conn.clone(), GFP_KERNEL).is_ok();
        if added {
            conn.place().store(at, Relaxed);
        }
        added
    }

    /// Takes it off the list, without a look at all others.
    fn remove(&mut self, conn: &Arc<C>) -> Option<Arc<C>> {
        if let Some(at) = self.told.iter().position(|c| Arc::ptr_eq(c, conn)) {
            return self.told.remove(at).ok();
        }
        let place = conn.place().load(Relaxed);
        let at = usize::try_from(place).ok()?;
        if !self.mute.get(at).is_some_and(|c| Arc::ptr_eq(c, conn)) {
            return None;
        }
        // The last one takes its place.
        let last = self.mute.pop()?;
        last.place().store(place, Relaxed);
        match self.mute.get_mut(at) {
            Some(there) => Some(core::mem::replace(there, last)),
            None => Some(last),
        }
    }
}

impl<C: Lingering> LingeringConns<C> {
    /// Makes the empty list.
    pub(crate) fn new() -> impl PinInit<Self> {
        let none = LingeringLists {
            mute: KVec::new(),
            told: KVec::new(),
        };
        pin_init!(Self {
            list <- kernel::new_mutex!(Some(none), "Parting::list"),
        })
    }

    /// Lists `conn`, whose id has something to say yet if `mute`. False: its id cannot wait.
    pub(crate) fn add(&self, conn: &Arc<C>, mute: bool) -> bool {
        let mut list = self.list.lock();
        let Some(waiting) = &mut *list else {
            return false;
        };
        let told = &waiting.told;
        let alike = || LingeringIds {
            all: told.len(),
            of_peer: told.iter().filter(|c| c.nid() == conn.nid()).count(),
        };
        if !cm_id_linger::has_room(mute, waiting.len(), alike) {
            return false;
        }
        match mute {
            true => waiting.add_mute(conn),
            false => waiting.told.push(conn.clone(), GFP_KERNEL).is_ok(),
        }
    }

    /// Routes have come or gone: those without one fall silent, those with one speak.
    pub(crate) fn routes_changed(&self) {
        let mut conns = KVec::new();
        for conn in self.list.lock().iter().flat_map(LingeringLists::iter) {
            // What is left out looks by itself, from time to time.
            if conns.push(conn.clone(), GFP_KERNEL).is_err() {
                break;
            }
        }
        // Without the mutex, which those that leave take.
        for conn in conns.iter() {
            conn.look_for_route();
        }
    }

    /// Takes `conn` off the list.
    pub(crate) fn remove(&self, conn: &Arc<C>) {
        let mut list = self.list.lock();
        let waiting = (*list).as_mut();
        let removed = waiting.and_then(|waiting| waiting.remove(conn));
        drop(list);
        drop(removed);
    }

    /// How many wait for the peer's answer.
    pub(crate) fn unanswered(&self) -> u32 {
        let list = self.list.lock();
        let all = list.iter().flat_map(LingeringLists::iter);
        let n = all.filter(|conn| !conn.is_mute()).count();
        u32::try_from(n).unwrap_or(u32::MAX)
    }

    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        let list = self.list.lock();
        list.as_ref().map_or(0, LingeringLists::len)
    }

    /// None waits any longer, now and later.
    pub(crate) fn close(&self) {
        let list = self.list.lock().take();
        for conn in list.iter().flat_map(LingeringLists::iter) {
            conn.end_farewell();
        }
    }
}
