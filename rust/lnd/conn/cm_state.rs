// SPDX-License-Identifier: GPL-2.0

//! State of a connection in the connection manager: its id, and the path to the peer.
//!
//! Context: process, except for the queue pair number. Callers clone the id, and never use it under its lock. The
//! reference that is taken out may be the last one, whose drop waits for the CM: not under a lock either.
//!
//! # Invariants
//!
//! - An id that is stored here holds the connection as its handler: the cycle ends with [`CmState::drop_id`].
//! - `late` is an id whose other references were dropped inside one of its own handlers: the blocking worker frees it.

use kernel::{
    prelude::*,
    sync::{
        Arc,
        SpinLock, //
    }, //
};

use crate::rdma::{
    atomic::{
        Atomic,
        Relaxed, //
    },
    cm::{
        CmHandler,
        CmId, //
    },
    cm_path::Path, //
};

/// CM state of a connection, a `C`.
#[pin_data]
pub(super) struct CmState<C: CmHandler> {
    #[pin]
    id: SpinLock<Option<Arc<CmId<C>>>>,
    #[pin]
    late: SpinLock<Option<CmId<C>>>,
    /// Number of the peer's queue pair, 0 if unknown.
    peer_qpn: Atomic<u32>,
    /// Path at the time when it was established: it does not change.
    #[pin]
    path: SpinLock<Path>,
}

impl<C: CmHandler> CmState<C> {
    /// Creates the state without an id.
    pub(super) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            id <- kernel::new_spinlock!(None, "CmState::id"),
            late <- kernel::new_spinlock!(None, "CmState::late"),
            peer_qpn: Atomic::new(0),
            path <- kernel::new_spinlock!(Path::UNKNOWN, "CmState::path"),
        })
    }

    /// Returns the id, while there is one.
    pub(super) fn id(&self) -> Option<Arc<CmId<C>>> {
        self.id.lock().clone()
    }

    /// Stores the id.
    pub(super) fn set_id(&self, id: Arc<CmId<C>>) {
        *self.id.lock() = Some(id);
    }

    /// Drops the id. May sleep; does not inside one of its handlers.
    pub(super) fn drop_id(&self) {
        let id = self.id.lock().take();
        drop(id);
    }

    /// Stores an id, dropped inside one of its handlers, for [`CmState::drop_late`].
    pub(super) fn leave_late(&self, id: CmId<C>) {
        *self.late.lock() = Some(id);
    }

    /// Frees such an id. May sleep.
    pub(super) fn drop_late(&self) {
        let late = self.late.lock().take();
        drop(late);
    }

    /// Stores the number of the peer's queue pair; 0: unknown.
    pub(super) fn learn_qpn(&self, qpn: u32) {
        if qpn != 0 {
            self.peer_qpn.store(qpn, Relaxed);
        }
    }

    /// Returns the number of the peer's queue pair, 0 if unknown.
    pub(super) fn peer_qpn(&self) -> u32 {
        self.peer_qpn.load(Relaxed)
    }

    /// Returns the path MTU in bytes, 0 if unknown. Not under a lock that is taken in softirq.
    pub(super) fn path_mtu(&self) -> u32 {
        self.known_path().mtu.unwrap_or(0)
    }

    /// Stores the path, once the connection is established. May sleep; not in a handler of the CM.
    pub(super) fn learn_path(&self) {
        let path = self.id().map_or(Path::UNKNOWN, |id| id.lock().path());
        *self.path.lock() = path;
    }

    /// Returns the path at the time when the connection was established. Not under a lock that is taken in softirq.
    pub(super) fn known_path(&self) -> Path {
        *self.path.lock()
    }
}
