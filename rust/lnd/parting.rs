// SPDX-License-Identifier: GPL-2.0

//! Connections that are over, and whose CM id stays a little longer because the peer has not
//! answered the DREQ; see [`crate::proto::farewell`].
//!
//! Process context. Such a connection has nothing else any more, and belongs to no peer.

use kernel::{
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    }, //
};

use super::conn::Conn;

/// Ids that may wait at the same time on one NI. A peer that is gone for good answers none; what
/// would be more is freed at once.
const PARTING_MAX: usize = 32;

/// Those of one NI.
#[pin_data]
pub(crate) struct Parting {
    /// `None` once the NI stops.
    #[pin]
    list: Mutex<Option<KVec<Arc<Conn>>>>,
}

impl Parting {
    /// None yet.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            list <- kernel::new_mutex!(Some(KVec::new()), "Parting::list"),
        })
    }

    /// Lists `conn`. False: its id cannot wait.
    pub(crate) fn add(&self, conn: &Arc<Conn>) -> bool {
        match &mut *self.list.lock() {
            Some(list) if list.len() < PARTING_MAX => list.push(conn.clone(), GFP_KERNEL).is_ok(),
            _ => false,
        }
    }

    /// Takes `conn` off the list.
    pub(crate) fn remove(&self, conn: &Arc<Conn>) {
        if let Some(list) = &mut *self.list.lock() {
            list.retain(|c| !Arc::ptr_eq(c, conn));
        }
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
