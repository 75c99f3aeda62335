// SPDX-License-Identifier: GPL-2.0

//! Listener for connection requests.

use core::ptr::NonNull;

use kernel::{
    error::{
        from_err_ptr,
        to_result, //
    },
    ffi,
    prelude::*,
    sync::{
        aref::ARef,
        Arc, //
    }, //
};

use super::{
    cm::{
        reject,
        CmHandler,
        CmId,
        Reachability, //
    },
    cm_event::{
        private_data,
        Addr, //
    },
    cm_locked::CmLocked,
    cm_ref::CmRef,
    device::Device,
    net_ns::NetNs,
    work::NofsScope, //
};
use crate::bindings;

/// Receives the requests of a [`Listener`].
pub(crate) trait ListenHandler: Send + Sync + 'static {
    /// Handles a connection request. Process context, may sleep, allocates as in a [`NofsScope`], and delays all other
    /// requests: check it, [`ConnRequest::take`] it, and leave the rest to a worker. A request that is neither taken
    /// nor rejected is dropped, as if it had been lost.
    fn connect_request(&self, request: &mut ConnRequest<'_>);

    /// Handles the removal of the listener's device: have a worker drop the listener.
    fn device_removal(&self);

    /// Handles a change of the interface's hardware address. The device may have changed, too: have a worker check.
    fn addr_change(&self);
}

/// Handler of an id that is bound and never listens.
struct NoRequests;

impl ListenHandler for NoRequests {
    fn connect_request(&self, _request: &mut ConnRequest<'_>) {}

    fn device_removal(&self) {}

    fn addr_change(&self) {}
}

/// Returns the device and port that an address belongs to now. May sleep. The reference blocks a removal of the device:
/// drop it soon.
///
/// # Errors
///
/// Those of [`Listener::bind`].
pub(crate) fn device_of(net: NetNs<'_>, addr: &Addr) -> Result<(ARef<Device>, u32)> {
    let nobody = Arc::new(NoRequests, GFP_KERNEL)?;
    let bound = Listener::bind(net, addr, nobody)?;

    Ok((bound.device().ok_or(ENODEV)?, bound.port()))
}

/// Returns whether `device`, if `addr` belongs to it, can send no messages of the CM any more; see
/// [`Device::gsi_failed`]. May sleep. False if the address is elsewhere, or the device is being removed.
pub(crate) fn gsi_qp_failed(net: NetNs<'_>, addr: &Addr, device: &Device) -> bool {
    let Ok(bound) = Arc::new(NoRequests, GFP_KERNEL)
        .map_err(Error::from)
        .and_then(|nobody| Listener::bind(net, addr, nobody))
    else {
        return false;
    };
    // SAFETY: `bound` is bound to it, and lives until this has returned.
    let is_so = || unsafe { device.gsi_failed(bound.port()) };

    bound.device().is_some_and(|here| here.same(device)) && is_so()
}

/// A request to connect, during [`ListenHandler::connect_request`].
pub(crate) struct ConnRequest<'a> {
    id: *mut bindings::rdma_cm_id,
    locked: CmLocked<'a>,
    private_data: &'a [u8],
    qpn: u32,
    packet_life_time: u8,
    taken: Option<CmRef>,
}

impl ConnRequest<'_> {
    /// Returns the private data of the request; on InfiniBand and RoCE always 56 bytes.
    pub(crate) fn private_data(&self) -> &[u8] {
        self.private_data
    }

    /// Returns the number of the other side's queue pair; 0 on iWARP.
    pub(crate) fn qpn(&self) -> u32 {
        self.qpn
    }

    /// Returns the packet life time of the path, as the requester states it: 4.096 us * 2^n. When the connection is
    /// over, the CM keeps a timer for twice that time (`cm_enter_timewait()` in drivers/infiniband/core/cm.c). 0 on
    /// iWARP.
    pub(crate) fn packet_life_time(&self) -> u8 {
        self.packet_life_time
    }

    /// Returns whether it came over TCP. There no request is dropped silently: the provider rejects a request that is
    /// neither taken nor rejected, without private data.
    pub(crate) fn is_over_tcp(&self) -> bool {
        let device = self.locked.device();
        device.is_some_and(|device| device.is_iwarp(self.locked.port()))
    }

    /// Returns whether a reject may be sent: soft-RoCE fails for good if it sends without a route.
    pub(crate) fn can_reject(&self) -> bool {
        let device = self.locked.device();
        !device.is_some_and(|device| device.is_software())
            || self.locked.reachability() == Reachability::Reachable
    }

    /// Returns the source address.
    pub(crate) fn dst_addr(&self) -> Option<Addr> {
        self.locked.dst_addr()
    }

    /// Returns the source GID over RoCE. Each Linux since 3.14 uses its IP address there, as an IPv6 address. On
    /// InfiniBand a GID belongs to a port.
    pub(crate) fn roce_gid(&self) -> Option<[u8; 16]> {
        self.locked.roce_gid()
    }

    /// Takes the request over: its further events go to `handler`. Accept or
    /// reject it later; that waits for the running handler.
    ///
    /// # Errors
    ///
    /// `EBUSY` if it was taken or rejected already, `ENOMEM`.
    pub(crate) fn take<H: CmHandler>(&mut self, handler: Arc<H>) -> Result<CmId<H>> {
        if self.taken.is_some() || self.id.is_null() {
            return Err(EBUSY);
        }
        // SAFETY: We are inside the request event of the id, which becomes ours: the listener's
        // trampoline returns 0 when it is taken.
        let id = unsafe { CmId::take_over(self.id, handler) }?;

        // The reference that stays here makes sure that the id is not destroyed inside its own
        // handler.
        self.taken = Some(id.as_ref().clone());
        Ok(id)
    }

    /// Rejects the request with up to 148 bytes of private data.
    ///
    /// # Errors
    ///
    /// `EBUSY` if it was taken or rejected already.
    pub(crate) fn reject(&mut self, private_data: &[u8]) -> Result {
        if self.taken.is_some() || self.id.is_null() {
            return Err(EBUSY);
        }
        let id = core::mem::replace(&mut self.id, core::ptr::null_mut());

        // SAFETY: `id` is valid during the event.
        unsafe { reject(id, private_data) }
    }
}

/// An id to listen on. Dropping it waits for handlers that run; not inside one.
///
/// # Invariants
///
/// `id` is bound, owned by this, and its context is `handler`.
pub(crate) struct Listener<L: ListenHandler> {
    id: NonNull<bindings::rdma_cm_id>,
    _handler: Arc<L>,
}

// SAFETY: Ids may be used and destroyed by any thread; `L` is `Send` and `Sync`.
unsafe impl<L: ListenHandler> Send for Listener<L> {}
// SAFETY: There is nothing to do with a shared reference but to ask for addresses.
unsafe impl<L: ListenHandler> Sync for Listener<L> {}

impl<L: ListenHandler> Listener<L> {
    /// Binds `addr`, and so finds its device. May sleep.
    ///
    /// # Errors
    ///
    /// `EADDRINUSE`, `EADDRNOTAVAIL`, `ENODEV` if the address belongs to no RDMA
    /// device, `ENOMEM`.
    pub(crate) fn bind(net: NetNs<'_>, addr: &Addr, handler: Arc<L>) -> Result<Self> {
        // SAFETY: `net` is valid, and `handler` is kept for as long as the id.
        let id = from_err_ptr(unsafe {
            bindings::ro2ib_cm_create(
                net.as_raw(),
                Some(Self::trampoline),
                Arc::as_ptr(&handler).cast_mut().cast(),
            )
        })?;
        // INVARIANT: It is ours.
        let this = Self {
            id: NonNull::new(id).ok_or(ENOMEM)?,
            _handler: handler,
        };
        let addr = addr.to_raw();

        // SAFETY: The id and the address are valid.
        to_result(unsafe { bindings::ro2ib_cm_bind(id, &addr) })?;
        Ok(this)
    }

    /// Starts to listen. May sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it listens already, `EADDRINUSE`, `ENOMEM`.
    pub(crate) fn start(&self) -> Result {
        // On iWARP, the CM's default number of requests waits.
        let backlog = 0;
        // SAFETY: By the type invariant.
        to_result(unsafe { bindings::ro2ib_cm_listen(self.id.as_ptr(), backlog) })
    }

    /// Returns the device of the address it listens at, if there is one.
    pub(crate) fn device(&self) -> Option<ARef<Device>> {
        self.with_locked(|id| id.device())
    }

    /// Returns the port of that device.
    pub(crate) fn port(&self) -> u32 {
        self.with_locked(|id| id.port())
    }

    fn with_locked<R>(&self, f: impl FnOnce(&CmLocked<'_>) -> R) -> R {
        // SAFETY: By the type invariant. It is bound, and never resolves an address.
        f(&unsafe { CmLocked::lock(self.id.as_ptr(), true) })
    }

    /// Handles an event of the listener, or a request.
    ///
    /// # Safety
    ///
    /// Called by the connection manager for an id whose context is an `L`.
    unsafe extern "C" fn trampoline(
        id: *mut bindings::rdma_cm_id,
        event: *mut bindings::rdma_cm_event,
    ) -> ffi::c_int {
        let _nofs = NofsScope::enter();
        let mut raw = bindings::ro2ib_cm_event::default();

        // SAFETY: The core passes valid pointers.
        unsafe { bindings::ro2ib_cm_event_get(id, event, &mut raw) };
        // SAFETY: `id` is the listener, or a new id that inherits its context; the destruction of
        // the listener waits for us.
        let handler = unsafe { &*bindings::ro2ib_cm_context(id).cast::<L>() };

        match raw.event {
            bindings::rdma_cm_event_type_RDMA_CM_EVENT_CONNECT_REQUEST => (),
            // These are for the listener itself, which its owner destroys.
            bindings::rdma_cm_event_type_RDMA_CM_EVENT_DEVICE_REMOVAL => {
                handler.device_removal();
                return 0;
            }
            bindings::rdma_cm_event_type_RDMA_CM_EVENT_ADDR_CHANGE => {
                handler.addr_change();
                return 0;
            }
            _ => return 0,
        }
        let mut request = ConnRequest {
            id,
            // SAFETY: The handler mutex of the new id is held by our caller. A request has its addresses.
            locked: unsafe { CmLocked::in_handler(id, true) },
            // SAFETY: Valid while we run.
            private_data: unsafe { private_data(&raw) },
            qpn: raw.qpn,
            packet_life_time: raw.packet_life_time,
            taken: None,
        };

        handler.connect_request(&mut request);
        match request.taken.take() {
            // Rejected by the handler, or to be dropped: the CM sends a reject of its own for any error except
            // `ENOMEM`, which drops the request.
            None if request.id.is_null() => 1,
            None => ENOMEM.to_errno(),
            Some(taken) => {
                // SAFETY: We are in a handler of the id.
                unsafe { taken.put_in_handler() };
                0
            }
        }
    }
}

impl<L: ListenHandler> Drop for Listener<L> {
    fn drop(&mut self) {
        // SAFETY: By the type invariant. It waits for handlers that run.
        unsafe { bindings::rdma_destroy_id(self.id.as_ptr()) }
    }
}
