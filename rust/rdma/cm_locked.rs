// SPDX-License-Identifier: GPL-2.0

//! Operations on an id that need its handler mutex: those of its handlers, and those that read or change the path,
//! which the CM replaces before an event.
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

/// Parameters of a connect or accept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnParam<'a> {
    /// Up to 56 bytes for a connect, 196 for an accept (InfiniBand, RoCE).
    pub(crate) private_data: &'a [u8],
    /// Transport retries, 0 to 7; ignored when accepting.
    pub(crate) retry_count: u8,
    /// Retries when the other side has no receive buffer; 7 is for ever.
    pub(crate) rnr_retry_count: u8,
    /// As in `CmId::set_min_rnr_timer()`, which `rdma_accept()` of OFED overrides with this. Not used by the kernel's.
    pub(crate) min_rnr_timer: u8,
}

/// Whether a message of the CM would reach the other side, as far as this node knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reachability {
    /// The message would be sent.
    Reachable,
    /// The message cannot be sent now. Connecting, disconnecting, and dropping a connected id are allowed, but break
    /// rxe: see `ro2ib_cm_reachability()`.
    NoRoute,
    /// The address of this side has left the device for good: messages are not sent. The CM keeps resending earlier
    /// messages that were not answered while the id exists, and that breaks rxe. RoCE only.
    NoAddress,
}

impl ConnParam<'_> {
    fn to_raw(self) -> Result<bindings::ro2ib_conn_param> {
        Ok(bindings::ro2ib_conn_param {
            private_data: self.private_data.as_ptr().cast(),
            private_data_len: u8::try_from(self.private_data.len())?,
            retry_count: self.retry_count.min(7),
            rnr_retry_count: self.rnr_retry_count.min(7),
            min_rnr_timer: self.min_rnr_timer.min(31),
        })
    }
}

/// An id with its handler mutex held: no handler of it runs, except the caller if it is one.
///
/// # Invariants
///
/// `id` is valid and its handler mutex is held, by the caller if not `unlock`. If `has_address`, no address of the id
/// is being resolved, nor will be: the CM binds the id in that, and releases its device if that fails, without the
/// mutex.
pub(crate) struct CmLocked<'a> {
    id: *mut bindings::rdma_cm_id,
    unlock: bool,
    has_address: bool,
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
    /// `id` is valid for as long as the result lives. Not called in a handler of it. If `has_address`, no address of it
    /// is being resolved, nor will be.
    pub(super) unsafe fn lock(id: *mut bindings::rdma_cm_id, has_address: bool) -> Self {
        // SAFETY: Guaranteed by the caller.
        unsafe { bindings::rdma_lock_handler(id) };
        // INVARIANT: Taken above, and `drop` gives it back. The rest is guaranteed by the caller.
        Self {
            id,
            unlock: true,
            has_address,
            _id: PhantomData,
            _not_send: NotThreadSafe,
        }
    }

    /// Creates the lock of an id inside of its handler, which holds the mutex.
    ///
    /// # Safety
    ///
    /// `id` is valid and its handler mutex held for as long as the result lives. If `has_address`, no address of it is
    /// being resolved, nor will be.
    pub(super) unsafe fn in_handler(id: *mut bindings::rdma_cm_id, has_address: bool) -> Self {
        // INVARIANT: Guaranteed by the caller.
        Self {
            id,
            unlock: false,
            has_address,
            _id: PhantomData,
            _not_send: NotThreadSafe,
        }
    }

    /// Returns the device the id is bound to, from `AddrResolved` on, unless the device is being removed.
    pub(crate) fn device(&self) -> Option<ARef<Device>> {
        if !self.has_address {
            return None;
        }
        // SAFETY: By the type invariant. A bound id keeps the device from being freed.
        unsafe { Device::try_get(bindings::ro2ib_cm_device(self.id)) }
    }

    /// Returns the port of the device, from 1; 0 if the id has no address.
    pub(crate) fn port(&self) -> u32 {
        if !self.has_address {
            return 0;
        }
        // SAFETY: By the type invariant.
        unsafe { bindings::ro2ib_cm_port(self.id) }
    }

    /// Returns the address of the other side, from `AddrResolved` on.
    pub(crate) fn dst_addr(&self) -> Option<Addr> {
        if !self.has_address {
            return None;
        }
        let mut raw = bindings::ro2ib_addr::default();

        // SAFETY: By the type invariant.
        unsafe { bindings::ro2ib_cm_dst_addr(self.id, &mut raw) }.then(|| Addr::from_raw(&raw))
    }

    /// Returns the GID in a request over RoCE that the answer goes to. Only in the handler of a request.
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

    /// Sets the path MTU to `bytes` (256, 512, 1024, 2048 or 4096), or to `most` if that is less. For an id with a
    /// route that is not connected yet.
    ///
    /// # Errors
    ///
    /// `EINVAL` for another value, or if there is no route.
    pub(crate) fn set_path_mtu(&self, bytes: u32, most: u32) -> Result {
        // SAFETY: By the type invariant. The CM replaces the path record under the handler mutex only.
        to_result(unsafe { bindings::ro2ib_cm_set_path_mtu(self.id, bytes, most) })
    }

    /// Returns what is known of the path: nothing before the address is resolved, most of it once there is a route
    /// (active side) or a request (passive side), and the retries of the queue pair once both sides have agreed.
    pub(crate) fn path(&self) -> Path {
        if !self.has_address {
            return Path::UNKNOWN;
        }
        let mut raw = bindings::ro2ib_cm_path::default();

        // SAFETY: By the type invariant; the handler mutex is held.
        unsafe { bindings::ro2ib_cm_path(self.id, &mut raw) };
        Path::from_raw(&raw)
    }

    /// Returns whether a message would reach the other side; [`Reachability::Reachable`] before the address is
    /// resolved.
    pub(crate) fn reachability(&self) -> Reachability {
        if !self.has_address {
            return Reachability::Reachable;
        }
        // SAFETY: By the type invariant; the handler mutex is held.
        match unsafe { bindings::ro2ib_cm_reachability(self.id) } {
            bindings::ro2ib_cm_reachability_RO2IB_CM_NO_ROUTE => Reachability::NoRoute,
            bindings::ro2ib_cm_reachability_RO2IB_CM_NO_ADDRESS => Reachability::NoAddress,
            _ => Reachability::Reachable,
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
    /// `EINVAL` in a wrong state or for too much private data, `ENOMEM`. The request is rejected then, except in a
    /// wrong state.
    pub(crate) fn accept(&self, param: &ConnParam<'_>) -> Result {
        let raw = param.to_raw()?;

        // SAFETY: By the type invariant; the private data is copied.
        to_result(unsafe { bindings::ro2ib_cm_accept_locked(self.id, &raw) })
    }
}
