// SPDX-License-Identifier: GPL-2.0

//! Closed connections of an NI whose CM ids wait for the peer's DREP, or for a route ([`crate::policy::cm_id_linger`]).
//!
//! Context: process.

use kernel::{
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    }, //
};

use crate::{
    policy::cm_id_linger,
    proto::nid::Nid, //
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
        if let Some(waiting) = &mut *self.list.lock() {
            waiting.retain(|one| !Arc::ptr_eq(&one.conn, conn));
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
