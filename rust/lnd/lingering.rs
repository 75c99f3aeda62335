// SPDX-License-Identifier: GPL-2.0

//! Closed connections whose CM id stays a little longer, because the peer has not answered the DREQ, or because there
//! is no route to send it; see [`crate::policy::cm_id_linger`].
//!
//! Context: process. Such a connection has nothing except its id, and belongs to no peer.

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
    proto::nid::Nid, //
};

/// Closed connection that still has its CM id.
pub(crate) trait Lingering: Sized {
    /// Returns the NID of the peer.
    fn nid(&self) -> Nid;

    /// Returns whether the id waits for a route, and not for an answer.
    fn is_mute(&self) -> bool;

    /// Checks for a route to the peer. Sends the DREQ, or waits for a route. May sleep.
    fn look_for_route(self: &Arc<Self>);

    /// Ends the wait. May sleep.
    fn end_farewell(self: &Arc<Self>);
}

/// Such connections of one NI, of type `C`.
#[pin_data]
pub(crate) struct LingeringConns<C> {
    /// `None` once the NI stops.
    #[pin]
    list: Mutex<Option<LingeringLists<C>>>,
}

/// Connections whose ids wait, by what they waited for when they were listed. Thousands may wait for a route while a
/// link is down, and few for an answer ([`cm_id_linger::has_room`]).
struct LingeringLists<C> {
    told: KVec<Arc<C>>,
    mute: KVec<Arc<C>>,
}

impl<C: Lingering> LingeringLists<C> {
    fn iter(&self) -> impl Iterator<Item = &Arc<C>> {
        // `pin_init` has a `chain()`, too.
        Iterator::chain(self.told.iter(), self.mute.iter())
    }

    fn len(&self) -> usize {
        self.told.len().saturating_add(self.mute.len())
    }
}

impl<C: Lingering> LingeringConns<C> {
    /// Creates an empty list.
    pub(crate) fn new() -> impl PinInit<Self> {
        let none = LingeringLists {
            mute: KVec::new(),
            told: KVec::new(),
        };
        pin_init!(Self {
            list <- kernel::new_mutex!(Some(none), "LingeringConns::list"),
        })
    }

    /// Lists `conn`. With `mute`, its DREQ is not sent yet. Returns false if the id cannot wait.
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
        let waiting = match mute {
            true => &mut waiting.mute,
            false => &mut waiting.told,
        };
        waiting.push(conn.clone(), GFP_KERNEL).is_ok()
    }

    /// Handles added or removed routes: ids without a route wait for one, ids with a route send their DREQ.
    pub(crate) fn routes_changed(&self) {
        let mut conns = KVec::new();
        for conn in self.list.lock().iter().flat_map(LingeringLists::iter) {
            // A connection that is left out checks by itself from time to time.
            if conns.push(conn.clone(), GFP_KERNEL).is_err() {
                break;
            }
        }
        // Without the mutex, which a connection takes to leave the list.
        for conn in conns.iter() {
            conn.look_for_route();
        }
    }

    /// Takes `conn` off the list.
    pub(crate) fn remove(&self, conn: &Arc<C>) {
        let Some(waiting) = &mut *self.list.lock() else {
            return;
        };
        for list in [&mut waiting.told, &mut waiting.mute] {
            if let Some(at) = list.iter().position(|c| Arc::ptr_eq(c, conn)) {
                // The last entry takes the place. The caller has another reference on `conn`.
                if let (Some(last), Some(place)) = (list.pop(), list.get_mut(at)) {
                    *place = last;
                }
                return;
            }
        }
    }

    /// Returns the number of ids that wait for the peer's answer.
    pub(crate) fn unanswered(&self) -> u32 {
        let list = self.list.lock();
        let all = list.iter().flat_map(LingeringLists::iter);
        let n = all.filter(|conn| !conn.is_mute()).count();
        u32::try_from(n).unwrap_or(u32::MAX)
    }

    /// Returns the number of ids that wait.
    pub(crate) fn len(&self) -> usize {
        let list = self.list.lock();
        list.as_ref().map_or(0, LingeringLists::len)
    }

    /// Ends all waits, and prevents new ones.
    pub(crate) fn close(&self) {
        let list = self.list.lock().take();
        for conn in list.iter().flat_map(LingeringLists::iter) {
            conn.end_farewell();
        }
    }
}
