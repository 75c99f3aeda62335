// SPDX-License-Identifier: GPL-2.0

//! What can be done with an id only while none of its handlers runs: that of its handlers
//! themselves, and what reads or changes a path, which the CM replaces in front of an event.
//!
//! A [`CmLocked`] stands for the handler mutex of the id: a handler is given one, and
//! [`super::cm::CmId::lock`] waits for one. Process context.

use core::marker::PhantomData;

use kernel::{
    error::to_result,
    prelude::*,
    sync::aref::ARef,
    types::NotThreadSafe, //
};

use super::{
    cm_event::Addr,
    cm_path::Path,
    device::Device, //
};
use crate::bindings;

/// What is sent with a connect or accept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnParam<'a> {
    /// Up to 56 bytes for a connect, 196 for an accept (InfiniBand, RoCE).
    pub(crate) private_data: &'a [u8],
    /// Transport retries, 0 to 7; ignored when accepting.
    pub(crate) retry_count: u8,
    /// Retries when the other side has no receive buffer; 7 is for ever.
    pub(crate) rnr_retry_count: u8,
}

/// What becomes of a message to the other side, as far as this node knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// It leaves.
    Open,
    /// It cannot leave now. To connect, to disconnect, or to drop a connected id is allowed, and fatal for rxe: see
    /// `ro2ib_cm_way()`.
    NoRoute,
    /// The address of this side is not on the device any more, for good: nothing is sent, and nothing comes of
    /// trying. What was sent before and is not answered is repeated as long as the id is there, and that is fatal
    /// for rxe. Of RoCE only.
    NoAddress,
}

impl ConnParam<'_> {
    fn to_raw(self) -> Result<bindings::ro2ib_conn_param> {
        Ok(bindings::ro2ib_conn_param {
            private_data: self.private_data.as_ptr().cast(),
            private_data_len: u8::try_from(self.private_data.len())?,
            retry_count: self.retry_count.min(7),
            rnr_retry_count: self.rnr_retry_count.min(7),
        })
    }
}

/// An id none of whose handlers runs, other than the caller if it is one.
///
/// # Invariants
///
/// `id` is valid and its handler mutex is held, by the caller if not `unlock`.
pub(crate) struct CmLocked<'a> {
    id: *mut bindings::rdma_cm_id,
    unlock: bool,
    _id: PhantomData<&'a ()>,
    _not_send: NotThreadSafe,
}

impl Drop for CmLocked<'_> {
    fn drop(&mut self) {
        if self.unlock {
            // SAFETY: By the type invariant.
            unsafe { bindings::rdma_unlock_handler(self.id) }
        }
    }
}

impl CmLocked<'_> {
    /// Waits until no handler of `id` runs, and keeps others from running. Sleeps.
    ///
    /// # Safety
    ///
    /// `id` is valid for as long as the result lives. Not called in a handler of it.
    pub(super) unsafe fn lock(id: *mut bindings::rdma_cm_id) -> Self {
        // SAFETY: Guaranteed by the caller.
        unsafe { bindings::rdma_lock_handler(id) };
        // INVARIANT: Taken above, and `drop` gives it back.
        Self {
            id,
            unlock: true,
            _id: PhantomData,
            _not_send: NotThreadSafe,
        }
    }

    /// # Safety
    ///
    /// `id` is valid and its handler mutex held for as long as the result lives.
    pub(super) unsafe fn in_handler(id: *mut bindings::rdma_cm_id) -> Self {
        // INVARIANT: Guaranteed by the caller.
        Self {
            id,
            unlock: false,
            _id: PhantomData,
            _not_send: NotThreadSafe,
        }
    }

    /// The device it is bound to, if it is (from `AddrResolved` on) and the
    /// device is not being removed.
    pub(crate) fn device(&self) -> Option<ARef<Device>> {
        // SAFETY: By the type invariant. A bound id keeps the device from being freed.
        unsafe { Device::try_get(bindings::ro2ib_cm_device(self.id)) }
    }

    /// The port of the device, from 1.
    pub(crate) fn port(&self) -> u32 {
        // SAFETY: By the type invariant.
        unsafe { bindings::ro2ib_cm_port(self.id) }
    }

    /// The address of the other side.
    pub(crate) fn dst_addr(&self) -> Option<Addr> {
        let mut raw = bindings::ro2ib_addr::default();

        // SAFETY: By the type invariant.
        unsafe { bindings::ro2ib_cm_dst_addr(self.id, &mut raw) }.then(|| Addr::from_raw(&raw))
    }

    /// The GID that a request over RoCE says it comes from, and that it is answered to. In the handler of a request.
    pub(super) fn roce_gid(&self) -> Option<[u8; 16]> {
        let mut gid = [0; 16];

        // SAFETY: By the type invariant; a GID has 16 bytes.
        unsafe { bindings::ro2ib_cm_roce_gid(self.id, gid.as_mut_ptr()) }.then_some(gid)
    }

    /// Sets the type of service. Before the route is resolved.
    pub(crate) fn set_tos(&self, tos: u8) {
        // SAFETY: By the type invariant.
        unsafe { bindings::rdma_set_service_type(self.id, tos.into()) }
    }

    /// Begins to resolve the route, after `AddrResolved`: `RouteResolved` or
    /// `RouteError` follows.
    ///
    /// # Errors
    ///
    /// `EINVAL` in a wrong state, `ENODEV`, `ENOMEM`.
    pub(crate) fn resolve_route(&self, timeout_ms: u32) -> Result {
        // SAFETY: By the type invariant.
        to_result(unsafe { bindings::ro2ib_cm_resolve_route(self.id, timeout_ms) })
    }

    /// What is known of the path: most of it once there is a route (active side) or a request (passive side), how
    /// often the queue pair repeats once both sides have agreed. Not while the address is being resolved: the core
    /// binds the id, and lets go again, without the handler mutex.
    pub(crate) fn path(&self) -> Path {
        let mut raw = bindings::ro2ib_cm_path::default();

        // SAFETY: By the type invariant; the handler mutex is held.
        unsafe { bindings::ro2ib_cm_path(self.id, &mut raw) };
        Path::from_raw(&raw)
    }

    /// What becomes of a message to the other side. Not before the address is resolved, or the request taken.
    pub(crate) fn way(&self) -> Way {
        // SAFETY: By the type invariant; the handler mutex is held.
        match unsafe { bindings::ro2ib_cm_way(self.id) } {
            bindings::ro2ib_cm_way_RO2IB_WAY_NO_ROUTE => Way::NoRoute,
            bindings::ro2ib_cm_way_RO2IB_WAY_NO_ADDRESS => Way::NoAddress,
            _ => Way::Open,
        }
    }

    /// Connects, after `RouteResolved`: one of `Established`, `Rejected`,
    /// `Unreachable`, `ConnectError` follows.
    ///
    /// # Errors
    ///
    /// `EINVAL` in a wrong state or for too much private data, `ENOMEM`.
    pub(crate) fn connect(&self, param: &ConnParam<'_>) -> Result {
        let raw = param.to_raw()?;

        // SAFETY: By the type invariant; the private data is copied.
        to_result(unsafe { bindings::ro2ib_cm_connect_locked(self.id, &raw) })
    }

    /// Accepts a request: `Established` follows. Receives may complete before
    /// this returns; work requests may be posted after.
    ///
    /// # Errors
    ///
    /// `EINVAL` in a wrong state or for too much private data, `ENOMEM`. The request is rejected then, but not in a wrong
    /// state.
    pub(crate) fn accept(&self, param: &ConnParam<'_>) -> Result {
        let raw = param.to_raw()?;

        // SAFETY: By the type invariant; the private data is copied.
        to_result(unsafe { bindings::ro2ib_cm_accept_locked(self.id, &raw) })
    }
}
