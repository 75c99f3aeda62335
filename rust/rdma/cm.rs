// SPDX-License-Identifier: GPL-2.0

//! Connection manager ids.
//!
//! A [`CmId`] is destroyed with its last reference ([`super::cm_ref`]). So it may be dropped anywhere in process
//! context, even in its own handler, which then hands it to [`CmHandler::released_in_handler`].
//!
//! Handlers run in a work queue of the CM, under the handler mutex of their id, one after the other,
//! and do not enter file systems to allocate.

use core::{
    marker::PhantomData,
    ptr::NonNull, //
};

use kernel::{
    error::{
        from_err_ptr,
        to_result, //
    },
    ffi,
    prelude::*,
    sync::{
        Arc,
        ArcBorrow, //
    }, //
};

use super::{
    cm_event::{
        Addr,
        CmEvent, //
    },
    cm_ref::{
        CmRef,
        HandlerOps,
        Shared, //
    },
    net_ns::NetNs,
    work::NofsScope, //
};
use crate::bindings;

// Types that handlers use.
pub(crate) use super::cm_locked::{
    CmLocked,
    ConnParam,
    Reachability, //
};

/// Receives the events of a [`CmId`].
pub(crate) trait CmHandler: Send + Sync + Sized + 'static {
    /// Handles an event. Process context, may sleep, and allocates as in a [`NofsScope`]; the events of one id come one
    /// after the other. A handler uses `id` here: the methods of [`CmId`] that lock the id would deadlock.
    fn cm_event(this: ArcBorrow<'_, Self>, id: &CmLocked<'_>, event: &CmEvent<'_>);

    /// Takes the last reference to the id, which was released while a handler ran. A handler cannot destroy its id:
    /// have a worker drop `id`. Process context, in a handler.
    ///
    /// Nothing of the driver is freed in the handler, and the worker waits until the handler has returned. So the
    /// module may be unloaded when the worker is done.
    fn released_in_handler(this: ArcBorrow<'_, Self>, id: CmId<Self>);
}

/// Functions of an id for its handler: an `Arc<H>` that became a pointer.
struct HandlerVtable<H>(PhantomData<H>);

impl<H: CmHandler> HandlerVtable<H> {
    const OPS: HandlerOps = HandlerOps {
        drop: Self::drop_handler,
        released_in_handler: Self::released_in_handler,
    };

    /// Drops the reference to the handler.
    ///
    /// # Safety
    ///
    /// `ptr` came from `Arc::<H>::into_raw`, and is not used again.
    unsafe fn drop_handler(ptr: *mut ffi::c_void) {
        // SAFETY: Guaranteed by the caller.
        drop(unsafe { Arc::<H>::from_raw(ptr.cast()) });
    }

    /// Hands the last reference to the handler.
    ///
    /// # Safety
    ///
    /// `ptr` came from `Arc::<H>::into_raw`, and the reference is kept by `id`.
    unsafe fn released_in_handler(ptr: *mut ffi::c_void, id: CmRef) {
        // SAFETY: Guaranteed by the caller; the clone keeps it when `id` is gone.
        let handler: Arc<H> = unsafe { ArcBorrow::from_raw(ptr.cast::<H>()) }.into();

        H::released_in_handler(handler.as_arc_borrow(), CmId::from_ref(id));
    }

    /// Creates the state of an id whose events go to `handler`.
    fn shared(handler: Arc<H>) -> Result<NonNull<Shared>> {
        let raw = Arc::into_raw(handler).cast_mut().cast();

        // SAFETY: The functions above are for what `Arc::into_raw` returns, and `H` is `Send` and
        // `Sync`.
        unsafe { Shared::new(raw, Self::OPS) }.inspect_err(|_| {
            // SAFETY: It has not been taken.
            unsafe { Self::drop_handler(raw) }
        })
    }

    /// Handles an event of an id.
    ///
    /// # Safety
    ///
    /// Called by the connection manager for an id whose context is a [`Shared`] that [`Self::shared`]
    /// made.
    unsafe extern "C" fn trampoline(
        id: *mut bindings::rdma_cm_id,
        event: *mut bindings::rdma_cm_event,
    ) -> ffi::c_int {
        let _nofs = NofsScope::enter();
        // SAFETY: `id` is valid, and its context was set to a `Shared`, which is freed after the
        // id is destroyed, and that waits for us.
        let Some(this) = NonNull::new(unsafe { bindings::ro2ib_cm_context(id) }.cast::<Shared>())
        else {
            return 0;
        };
        // The last user may be waiting in `rdma_destroy_id()` for us to return.
        // SAFETY: As above.
        let Some(user) = (unsafe { Shared::try_get(this) }) else {
            return 0;
        };
        let mut raw = bindings::ro2ib_cm_event::default();

        // SAFETY: The core passes valid pointers.
        unsafe { bindings::ro2ib_cm_event_get(id, event, &mut raw) };
        // SAFETY: The private data is valid while the handler runs.
        let event = unsafe { CmEvent::from_raw(&raw) };
        match event {
            CmEvent::AddrResolved => user.shared().resolve_done(),
            // An address may change while another one is being resolved.
            CmEvent::AddrChange => {}
            _ => user.shared().resolve_failed(),
        }
        // SAFETY: Our caller holds the handler mutex while we run. By the invariant of `Shared` no address is resolved
        // once that is done.
        let locked = unsafe { CmLocked::in_handler(id, user.shared().is_resolved()) };
        // SAFETY: It is what `Arc::<H>::into_raw` returned, and we are a user.
        let handler = unsafe { ArcBorrow::from_raw(user.shared().handler().cast::<H>()) };

        H::cm_event(handler, &locked, &event);
        // SAFETY: We are a handler of the id.
        unsafe { user.put_in_handler() };
        0
    }
}

/// A connection manager id (`struct rdma_cm_id`) for reliable connections, whose
/// events go to an `H`.
///
/// All methods are for process context and may sleep, unless they say more.
pub(crate) struct CmId<H: CmHandler> {
    id: CmRef,
    _handler: PhantomData<Arc<H>>,
}

impl<H: CmHandler> AsRef<CmRef> for CmId<H> {
    fn as_ref(&self) -> &CmRef {
        &self.id
    }
}

impl<H: CmHandler> CmId<H> {
    fn from_ref(id: CmRef) -> Self {
        Self {
            id,
            _handler: PhantomData,
        }
    }

    /// Creates an id.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn create(net: NetNs<'_>, handler: Arc<H>) -> Result<Self> {
        let shared = HandlerVtable::shared(handler)?;
        // SAFETY: `net` is valid, and `shared` outlives the id. No event comes before something
        // is done with it.
        let id = from_err_ptr(unsafe {
            bindings::ro2ib_cm_create(
                net.as_raw(),
                Some(HandlerVtable::<H>::trampoline),
                shared.as_ptr().cast(),
            )
        });

        match id {
            // SAFETY: Both are ours.
            Ok(id) => Ok(Self::from_ref(unsafe { CmRef::adopt(shared, id) })),
            Err(e) => {
                // SAFETY: There is no id, and nothing else points to `shared`.
                unsafe { Shared::free(shared) };
                Err(e)
            }
        }
    }

    /// Takes over the id of a request to connect: its events go to `handler` from now on.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; then nothing has happened.
    ///
    /// # Safety
    ///
    /// The caller runs in the request event of `id`, and owns `id`.
    pub(super) unsafe fn take_over(id: *mut bindings::rdma_cm_id, handler: Arc<H>) -> Result<Self> {
        let shared = HandlerVtable::shared(handler)?;
        // SAFETY: The reference is ours, and so is the id.
        let taken = unsafe { CmRef::adopt(shared, id) };

        // A request has its addresses.
        taken.shared().resolve_done();

        // SAFETY: We are inside the request event of `id`, and `shared` outlives it.
        unsafe {
            bindings::ro2ib_cm_adopt(
                id,
                Some(HandlerVtable::<H>::trampoline),
                shared.as_ptr().cast(),
            )
        };
        Ok(Self::from_ref(taken))
    }

    /// Waits until no handler runs, and keeps handlers from running. Not inside a handler of the same id: it has the
    /// lock.
    pub(crate) fn lock(&self) -> CmLocked<'_> {
        self.id.lock()
    }

    /// Begins to resolve `dst`, from `src` if given: `AddrResolved` or
    /// `AddrTimeout` or `AddrError` follows. After `AddrTimeout` without `src`: the id has one.
    ///
    /// # Errors
    ///
    /// That of `rdma_resolve_addr()`, or `EBUSY` if an address is being resolved; then no event of
    /// this follows.
    pub(crate) fn resolve_addr(&self, src: Option<&Addr>, dst: &Addr, timeout_ms: u32) -> Result {
        let src = src.map(|addr| addr.to_raw());
        let src = src.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
        let dst = dst.to_raw();

        self.id.begin_resolve(|id| {
            // SAFETY: The id is valid, the addresses too.
            unsafe { bindings::ro2ib_cm_resolve_addr(id, src, &dst, timeout_ms) }
        })
    }

    /// Begins to resolve `dst` from a port below 1024 (`use_privileged_port`). If `share`, connections may share a
    /// port, which they cannot over TCP: uses the port of `src`, or the next lower free one; otherwise any free one.
    ///
    /// # Errors
    ///
    /// Those of [`Self::resolve_addr`]; `EADDRINUSE` if no port is free.
    pub(crate) fn resolve_addr_privileged(
        &self,
        src: &Addr,
        dst: &Addr,
        timeout_ms: u32,
        share: bool,
    ) -> Result {
        let (src, dst) = (src.to_raw(), dst.to_raw());

        self.id.begin_resolve(|id| {
            // SAFETY: The id is valid, the addresses too.
            unsafe { bindings::ro2ib_cm_resolve_addr_privileged(id, &src, &dst, timeout_ms, share) }
        })
    }

    /// Takes the lock and calls [`CmLocked::connect`].
    pub(crate) fn connect(&self, param: &ConnParam<'_>) -> Result {
        self.lock().connect(param)
    }

    /// Takes the lock and calls [`CmLocked::accept`]: so it waits for the handler that delivered the request.
    pub(crate) fn accept(&self, param: &ConnParam<'_>) -> Result {
        self.lock().accept(param)
    }

    /// Rejects a connection, with up to 148 bytes of private data.
    ///
    /// # Errors
    ///
    /// `EINVAL` if there is nothing to reject.
    pub(crate) fn reject(&self, private_data: &[u8]) -> Result {
        // SAFETY: The id is valid.
        unsafe { reject(self.id.as_raw(), private_data) }
    }

    /// Takes the lock and calls [`CmLocked::reachability`].
    pub(crate) fn reachability(&self) -> Reachability {
        self.lock().reachability()
    }

    /// Moves the QP to the error state and sends a DREQ to the other side.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it was never connected.
    pub(crate) fn disconnect(&self) -> Result {
        // SAFETY: The id is valid; this may be called in any state.
        to_result(unsafe { bindings::rdma_disconnect(self.id.as_raw()) })
    }

    /// Sets how long the other side waits when there is no receive buffer, as coded in InfiniBand table 45 (0 is 655
    /// ms, 1 is 10 us). Call before connecting or accepting.
    ///
    /// # Errors
    ///
    /// `EINVAL` above 31; `EOPNOTSUPP` if the kernel cannot set it (before 5.14).
    pub(crate) fn set_min_rnr_timer(&self, timer: u8) -> Result {
        // SAFETY: The id is valid.
        to_result(unsafe { bindings::ro2ib_cm_set_min_rnr_timer(self.id.as_raw(), timer) })
    }

    /// Sets the path MTU to `bytes` (256, 512, 1024, 2048 or 4096), or to what the port can do if that is less. For an
    /// id with a route that is not connected yet. The device is asked without the handler mutex, because that may take
    /// the lock of the network configuration. Sleeps.
    ///
    /// # Errors
    ///
    /// `EINVAL` for another value, or if there is no route; `ENODEV` if there is no device, or it does not answer.
    pub(crate) fn set_path_mtu(&self, bytes: u32) -> Result {
        let (device, port) = {
            let locked = self.lock();
            (locked.device().ok_or(ENODEV)?, locked.port())
        };
        let most = device.port(port).mtu;

        if most == 0 {
            return Err(ENODEV);
        }
        self.lock().set_path_mtu(bytes, most)
    }

    /// Sets how long to wait for an acknowledgement: 4.096 us * 2^`timeout`. Call before connecting or accepting.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the id is no reliable connection.
    pub(crate) fn set_ack_timeout(&self, timeout: u8) -> Result {
        // SAFETY: The id is valid.
        to_result(unsafe { bindings::rdma_set_ack_timeout(self.id.as_raw(), timeout) })
    }
}

/// Refuses a connection.
///
/// # Safety
///
/// `id` is valid.
pub(super) unsafe fn reject(id: *mut bindings::rdma_cm_id, private_data: &[u8]) -> Result {
    let len = u8::try_from(private_data.len())?;

    // SAFETY: Guaranteed by the caller; the data is valid for `len` bytes.
    to_result(unsafe { bindings::ro2ib_cm_reject(id, private_data.as_ptr().cast(), len) })
}
