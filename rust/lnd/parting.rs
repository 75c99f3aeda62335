// SPDX-License-Identifier: GPL-2.0

//! Connections that are over, and whose CM id stays a little longer because the peer has not
//! answered the DREQ, or because there is no route to tell it; see [`crate::proto::farewell`].
//!
//! Process context. Such a connection has nothing else any more, and belongs to no peer.

use kernel::{
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    }, //
};

use crate::proto::{
    farewell::{
        self,
        Alike, //
    },
    nid::Nid, //
};

/// What is left of a connection.
pub(crate) trait Leaving: Sized {
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
pub(crate) struct Parting<C> {
    /// `None` once the NI stops.
    #[pin]
    list: Mutex<Option<KVec<Arc<C>>>>,
}

impl<C: Leaving> Parting<C> {
    /// None yet.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            list <- kernel::new_mutex!(Some(KVec::new()), "Parting::list"),
        })
    }

    /// Lists `conn`, whose id has something to say yet if `mute`. False: its id cannot wait.
    pub(crate) fn add(&self, conn: &Arc<C>, mute: bool) -> bool {
        match &mut *self.list.lock() {
            Some(list) => {
                let alike = || {
                    let (mut all, mut of_peer) = (0usize, 0usize);
                    for other in list.iter().filter(|c| !c.is_mute()) {
                        all = all.saturating_add(1);
                        of_peer = of_peer.saturating_add((other.nid() == conn.nid()).into());
                    }
                    Alike { all, of_peer }
                };
                farewell::has_room(mute, list.len(), alike)
                    && list.push(conn.clone(), GFP_KERNEL).is_ok()
            }
            None => false,
        }
    }

    /// Routes have come or gone: those without one fall silent, those with one speak.
    pub(crate) fn routes_changed(&self) {
        let mut conns = KVec::new();
        for conn in self.list.lock().iter().flatten() {
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
        if let Some(list) = &mut *self.list.lock() {
            list.retain(|c| !Arc::ptr_eq(c, conn));
        }
    }

    /// How many wait for the peer's answer.
    pub(crate) fn unanswered(&self) -> u32 {
        let list = self.list.lock();
        let n = list.iter().flatten().filter(|conn| !conn.is_mute()).count();
        u32::try_from(n).unwrap_or(u32::MAX)
    }

    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        let list = self.list.lock();
        list.as_ref().map_or(0, |list| list.len())
    }

    /// None waits any longer, now and later.
    pub(crate) fn close(&self) {
        let list = self.list.lock().take();
        for conn in list.iter().flatten() {
            conn.end_farewell();
        }
    }
}
