// SPDX-License-Identifier: GPL-2.0

//! Connection manager ids.
//!
//! A [`CmId`] is destroyed when nobody holds it any more: neither the driver nor
//! a QP made on it, nor one of its handlers while it runs. So it may be dropped
//! anywhere in process context, even in its own handler, which then hands it to
//! [`CmHandler::last_user`].

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
        aref::ARef,
        atomic::{
            Acquire,
            Atomic,
            Full,
            Relaxed,
            Release, //
        },
        Arc,
        ArcBorrow, //
    },
    types::NotThreadSafe, //
};

use super::{
    cm_event::{
        Addr,
        CmEvent, //
    },
    device::Device,
    pd::Pd, //
};
use crate::bindings;

/// A network namespace, to create ids in.
#[derive(Clone, Copy)]
pub(crate) struct NetNs<'a> {
    net: NonNull<bindings::net>,
    _net: PhantomData<&'a bindings::net>,
}

#[cfg(ro2iblnd_kunit)]
impl NetNs<'static> {
    /// The initial namespace.
    ///
    /// # Errors
    ///
    /// None in practice.
    pub(crate) fn init() -> Result<Self> {
        Ok(Self {
            // SAFETY: No preconditions.
            net: NonNull::new(unsafe { bindings::ro2ib_init_net() }).ok_or(ENODEV)?,
            _net: PhantomData,
        })
    }
}

impl<'a> NetNs<'a> {
    /// Wraps a raw pointer.
    ///
    /// # Safety
    ///
    /// `net` is valid for all of `'a`.
    pub(crate) unsafe fn from_raw(net: NonNull<bindings::net>) -> Self {
        Self {
            net,
            _net: PhantomData,
        }
    }

    pub(super) fn as_raw(self) -> *mut bindings::net {
        self.net.as_ptr()
    }
}

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

/// Receives the events of a [`CmId`].
pub(crate) trait CmHandler: Send + Sync + Sized + 'static {
    /// An event. Process context, may sleep; the events of one id come one after
    /// the other. `id` is the one to use here: the methods of [`CmId`] that lock
    /// it would wait for ever.
    fn cm_event(this: ArcBorrow<'_, Self>, id: &CmLocked<'_>, event: &CmEvent<'_>);

    /// All other users of the id went while one of its handlers ran, which cannot
    /// destroy it: have a worker drop `id`. Process context, in a handler.
    ///
    /// Nothing of the driver is freed in the handler, and the worker waits until
    /// it has returned: whoever waits for the worker may unload the module.
    fn last_user(this: ArcBorrow<'_, Self>, id: CmId<Self>);
}

/// What the holders of an id share, and its context pointer points to.
///
/// # Invariants
///
/// `id` is valid until the last of `users` destroys it; `handler` is an
/// `Arc<H>` turned into a pointer that `drop_handler` takes back.
pub(super) struct Shared {
    id: *mut bindings::rdma_cm_id,
    users: Atomic<u32>,
    has_qp: Atomic<u32>,
    /// Its address is being resolved: no event has come since that began.
    resolving: Atomic<bool>,
    handler: *mut ffi::c_void,
    drop_handler: unsafe fn(*mut ffi::c_void),
    last_user: unsafe fn(*mut ffi::c_void, CmRef),
}

impl Shared {
    /// # Safety
    ///
    /// `ptr` came from `Arc::<H>::into_raw`.
    unsafe fn drop_handler<H>(ptr: *mut ffi::c_void) {
        // SAFETY: Guaranteed by the caller.
        drop(unsafe { Arc::<H>::from_raw(ptr.cast()) });
    }

    /// # Safety
    ///
    /// `ptr` came from `Arc::<H>::into_raw`, and the reference is kept by `id`.
    unsafe fn last_user<H: CmHandler>(ptr: *mut ffi::c_void, id: CmRef) {
        // SAFETY: Guaranteed by the caller; the clone keeps it when `id` is gone.
        let handler: Arc<H> = unsafe { ArcBorrow::from_raw(ptr.cast::<H>()) }.into();

        H::last_user(handler.as_arc_borrow(), CmId::from_ref(id));
    }

    /// With one user, and no id yet.
    pub(super) fn new<H: CmHandler>(handler: Arc<H>) -> Result<NonNull<Self>> {
        let shared = KBox::new(
            Self {
                id: core::ptr::null_mut(),
                users: Atomic::new(1),
                has_qp: Atomic::new(0),
                resolving: Atomic::new(false),
                handler: core::ptr::null_mut(),
                drop_handler: Self::drop_handler::<H>,
                last_user: Self::last_user::<H>,
            },
            GFP_KERNEL,
        )?;
        let shared = KBox::into_raw(shared);

        // SAFETY: It was just allocated.
        unsafe { (*shared).handler = Arc::into_raw(handler).cast_mut().cast() };
        NonNull::new(shared).ok_or(ENOMEM)
    }

    /// # Safety
    ///
    /// `this` has no users any more, and its id no handlers.
    unsafe fn free(this: NonNull<Self>) {
        // SAFETY: Guaranteed by the caller, and the type invariant.
        unsafe {
            let shared = KBox::from_raw(this.as_ptr());

            (shared.drop_handler)(shared.handler);
        }
    }

    /// Gets a reference, unless the last user has gone.
    fn try_get(&self) -> bool {
        let mut users = self.users.load(Relaxed);

        while users != 0 {
            match self.users.cmpxchg(users, users + 1, Acquire) {
                Ok(_) => return true,
                Err(now) => users = now,
            }
        }
        false
    }

    /// Gives a reference back inside a handler of the id; the last one to
    /// [`CmHandler::last_user`].
    ///
    /// # Safety
    ///
    /// The caller owns a reference, and runs in a handler of the id.
    pub(super) unsafe fn put_in_handler(this: NonNull<Self>) {
        // SAFETY: The reference keeps it.
        let shared = unsafe { this.as_ref() };

        if shared.users.fetch_sub(1, Full) != 1 {
            return;
        }
        // No other user is left, and there will be none: handlers do not run concurrently.
        shared.users.store(1, Relaxed);
        // INVARIANT: Counted above.
        let id = CmRef(this);

        // SAFETY: By the type invariant; `id` keeps the handler.
        unsafe { (shared.last_user)(shared.handler, id) };
    }

    /// The event handler of ids.
    ///
    /// # Safety
    ///
    /// Called by the connection manager for an id whose context is a `Shared`
    /// with a handler of type `H`.
    pub(super) unsafe extern "C" fn trampoline<H: CmHandler>(
        id: *mut bindings::rdma_cm_id,
        event: *mut bindings::rdma_cm_event,
    ) -> ffi::c_int {
        // SAFETY: `id` is valid, and its context was set to a `Shared`, which is freed after the
        // id is destroyed, and that waits for us.
        let Some(this) = NonNull::new(unsafe { bindings::ro2ib_cm_context(id) }.cast::<Self>())
        else {
            return 0;
        };
        // SAFETY: As above.
        let shared = unsafe { this.as_ref() };

        // The last user may be waiting in `rdma_destroy_id()` for us to return.
        if !shared.try_get() {
            return 0;
        }
        let mut raw = bindings::ro2ib_cm_event::default();

        // SAFETY: The core passes valid pointers.
        unsafe { bindings::ro2ib_cm_event_get(id, event, &mut raw) };
        // SAFETY: The private data is valid while the handler runs.
        let event = unsafe { CmEvent::from_raw(&raw) };
        shared.resolving.store(false, Release);
        let locked = CmLocked {
            id,
            unlock: false,
            _id: PhantomData,
            _not_send: NotThreadSafe,
        };
        // SAFETY: By the type invariant; we are a user.
        let handler = unsafe { ArcBorrow::from_raw(shared.handler.cast::<H>()) };

        H::cm_event(handler, &locked, &event);
        // SAFETY: Our own reference, from above.
        unsafe { Self::put_in_handler(this) };
        0
    }
}

/// A counted reference to an id.
///
/// # Invariants
///
/// It is one of the users.
pub(crate) struct CmRef(NonNull<Shared>);

// SAFETY: Ids may be used and destroyed by any thread, and so may handlers.
unsafe impl Send for CmRef {}
// SAFETY: The operations on ids are thread safe.
unsafe impl Sync for CmRef {}

impl Clone for CmRef {
    fn clone(&self) -> Self {
        self.shared().users.fetch_add(1, Relaxed);
        // INVARIANT: Counted above.
        Self(self.0)
    }
}

impl Drop for CmRef {
    fn drop(&mut self) {
        if self.shared().users.fetch_sub(1, Full) != 1 {
            return;
        }
        // SAFETY: We were the last user. This waits for a handler that runs, and afterwards
        // there are no more. It is not called by a handler, as that is a user of its own.
        unsafe {
            if self.shared().resolving.load(Acquire) {
                bindings::ro2ib_cm_destroy_resolving(self.as_raw());
            } else {
                bindings::rdma_destroy_id(self.as_raw());
            }
            Shared::free(self.0);
        }
    }
}

impl CmRef {
    /// Takes over one reference, and `id`, whose context is to be `shared`.
    ///
    /// # Safety
    ///
    /// The caller owns the reference and the id, which is in use by nobody else.
    pub(super) unsafe fn adopt(shared: NonNull<Shared>, id: *mut bindings::rdma_cm_id) -> Self {
        // SAFETY: Guaranteed by the caller.
        unsafe { (*shared.as_ptr()).id = id };
        // INVARIANT: Guaranteed by the caller.
        Self(shared)
    }

    fn shared(&self) -> &Shared {
        // SAFETY: By the type invariant.
        unsafe { self.0.as_ref() }
    }

    pub(super) fn as_shared(&self) -> NonNull<Shared> {
        self.0
    }

    fn as_raw(&self) -> *mut bindings::rdma_cm_id {
        self.shared().id
    }

    /// Makes the QP of this id.
    ///
    /// # Safety
    ///
    /// `pd`, `cq`, `context` and `event` stay valid until [`Self::destroy_qp`].
    pub(super) unsafe fn create_qp(
        &self,
        pd: &Pd,
        cq: *mut bindings::ib_cq,
        context: *mut ffi::c_void,
        event: Option<unsafe extern "C" fn(*mut bindings::ib_event, *mut ffi::c_void)>,
        caps: &mut bindings::ro2ib_qp_caps,
    ) -> Result<NonNull<bindings::ib_qp>> {
        let mut raw = core::ptr::null_mut();

        if self.shared().has_qp.cmpxchg(0, 1, Full).is_err() {
            return Err(EBUSY);
        }
        // SAFETY: The id is valid and has no QP; the caller guarantees the rest.
        let made = to_result(unsafe {
            bindings::ro2ib_create_qp(
                self.as_raw(),
                pd.as_raw(),
                cq,
                context,
                event,
                caps,
                &mut raw,
            )
        })
        .and_then(|()| NonNull::new(raw).ok_or(EINVAL));

        if made.is_err() {
            self.shared().has_qp.store(0, Release);
        }
        made
    }

    /// Destroys the QP of this id.
    ///
    /// # Safety
    ///
    /// The caller owns the QP that [`Self::create_qp`] made; no completion will
    /// come any more.
    pub(super) unsafe fn destroy_qp(&self) {
        // SAFETY: Guaranteed by the caller.
        unsafe { bindings::rdma_destroy_qp(self.as_raw()) };
        self.shared().has_qp.store(0, Release);
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
    pub(super) fn from_ref(id: CmRef) -> Self {
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
        let shared = Shared::new(handler)?;
        // SAFETY: `net` is valid, and `shared` outlives the id. No event comes before something
        // is done with it.
        let id = from_err_ptr(unsafe {
            bindings::ro2ib_cm_create(
                net.as_raw(),
                Some(Shared::trampoline::<H>),
                shared.as_ptr().cast(),
            )
        });

        match id {
            // SAFETY: Both are ours.
            Ok(id) => Ok(Self::from_ref(unsafe { CmRef::adopt(shared, id) })),
            Err(e) => {
                // SAFETY: There is no id, and nobody else knows `shared`.
                unsafe { Shared::free(shared) };
                Err(e)
            }
        }
    }

    /// Waits until no handler runs and keeps others from running. Not inside a
    /// handler of the same id: it has the lock.
    pub(crate) fn lock(&self) -> CmLocked<'_> {
        let id = self.id.as_raw();

        // SAFETY: The id is valid.
        unsafe { bindings::rdma_lock_handler(id) };
        CmLocked {
            id,
            unlock: true,
            _id: PhantomData,
            _not_send: NotThreadSafe,
        }
    }

    /// Begins to resolve `dst`, from `src` if given: `AddrResolved` or
    /// `AddrTimeout` or `AddrError` follows. After `AddrTimeout` without `src`: the id has one.
    ///
    /// # Errors
    ///
    /// That of `rdma_resolve_addr()`; then no event follows.
    pub(crate) fn resolve_addr(&self, src: Option<&Addr>, dst: &Addr, timeout_ms: u32) -> Result {
        let src = src.map(|addr| addr.to_raw());
        let src = src.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
        let dst = dst.to_raw();

        self.resolves(|id| {
            // SAFETY: The id is valid, the addresses too.
            unsafe { bindings::ro2ib_cm_resolve_addr(id, src, &dst, timeout_ms) }
        })
    }

    /// The same, from the highest port below 1024 that is free, whatever the port
    /// of `src` (`use_privileged_port`).
    ///
    /// # Errors
    ///
    /// As above; `EADDRINUSE` if there is none.
    pub(crate) fn resolve_addr_privileged(
        &self,
        src: &Addr,
        dst: &Addr,
        timeout_ms: u32,
    ) -> Result {
        let (src, dst) = (src.to_raw(), dst.to_raw());

        self.resolves(|id| {
            // SAFETY: The id is valid, the addresses too.
            unsafe { bindings::ro2ib_cm_resolve_addr_privileged(id, &src, &dst, timeout_ms) }
        })
    }

    /// Lets `begin` begin to resolve an address; until an event comes the id knows that it does.
    fn resolves(&self, begin: impl FnOnce(*mut bindings::rdma_cm_id) -> ffi::c_int) -> Result {
        let resolving = &self.id.shared().resolving;

        // In front, as the event may come before the function is back.
        resolving.store(true, Release);
        to_result(begin(self.id.as_raw())).inspect_err(|_| resolving.store(false, Release))
    }

    /// [`CmLocked::connect`], with the lock taken.
    pub(crate) fn connect(&self, param: &ConnParam<'_>) -> Result {
        self.lock().connect(param)
    }

    /// [`CmLocked::accept`], with the lock taken: so it waits for the handler
    /// that delivered the request.
    pub(crate) fn accept(&self, param: &ConnParam<'_>) -> Result {
        self.lock().accept(param)
    }

    /// Refuses a connection, with up to 148 bytes of private data.
    ///
    /// # Errors
    ///
    /// `EINVAL` if there is nothing to refuse.
    pub(crate) fn reject(&self, private_data: &[u8]) -> Result {
        // SAFETY: The id is valid.
        unsafe { reject(self.id.as_raw(), private_data) }
    }

    /// Whether a message to the other side can leave now, as far as this node knows. Not before the
    /// address is resolved, or the request taken.
    ///
    /// To connect, to disconnect, or to drop a connected id without a route is allowed, and fatal
    /// for rxe: see `ro2ib_cm_has_route()`.
    pub(crate) fn has_route(&self) -> bool {
        // SAFETY: The id is valid.
        unsafe { bindings::ro2ib_cm_has_route(self.id.as_raw()) }
    }

    /// Moves the QP to the error state and tells the other side.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it was never connected.
    pub(crate) fn disconnect(&self) -> Result {
        // SAFETY: The id is valid; this may be called in any state.
        to_result(unsafe { bindings::rdma_disconnect(self.id.as_raw()) })
    }

    /// Tells the connection manager that a message arrived before the last one
    /// of the handshake. Does not sleep.
    ///
    /// # Errors
    ///
    /// `EISCONN` and `EINVAL` if there is nothing to establish (any more).
    pub(crate) fn notify_comm_est(&self) -> Result {
        // SAFETY: The id is valid.
        to_result(unsafe {
            bindings::rdma_notify(self.id.as_raw(), bindings::ib_event_type_IB_EVENT_COMM_EST)
        })
    }

    /// How long the other side is to wait when there is no receive buffer, as
    /// coded in InfiniBand table 45 (0 is 655 ms, 1 is 10 us). Before connecting
    /// or accepting.
    ///
    /// # Errors
    ///
    /// `EINVAL` above 31 and for iWARP; `EOPNOTSUPP` if the kernel cannot (before 5.14).
    pub(crate) fn set_min_rnr_timer(&self, timer: u8) -> Result {
        // SAFETY: The id is valid.
        to_result(unsafe { bindings::ro2ib_cm_set_min_rnr_timer(self.id.as_raw(), timer) })
    }

    /// How long to wait for an acknowledgement: 4.096 us * 2^`timeout`. Before
    /// connecting or accepting.
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

/// An id none of whose handlers runs, other than the caller if it is one.
///
/// # Invariants
///
/// `id` is valid and its handler mutex is held, by the caller if not `unlock`.
pub(crate) struct CmLocked<'a> {
    id: *mut bindings::rdma_cm_id,
    unlock: bool,
    _id: PhantomData<&'a CmRef>,
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

    /// Lowers the path MTU to `bytes`: 256, 512, 1024, 2048 or 4096. After
    /// `RouteResolved`, before connecting.
    ///
    /// # Errors
    ///
    /// `EINVAL` for another value or if there is no route.
    pub(crate) fn set_path_mtu(&self, bytes: u32) -> Result {
        // SAFETY: By the type invariant.
        to_result(unsafe { bindings::ro2ib_cm_set_path_mtu(self.id, bytes) })
    }

    /// The path MTU in bytes, once there is a route (active side) or a request
    /// (passive side).
    pub(crate) fn path_mtu(&self) -> Option<u32> {
        // SAFETY: By the type invariant.
        let mtu = unsafe { bindings::ro2ib_cm_path_mtu(self.id) };

        (mtu != 0).then_some(mtu)
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
    /// `EINVAL` in a wrong state or for too much private data, `ENOMEM`. The
    /// request is rejected then.
    pub(crate) fn accept(&self, param: &ConnParam<'_>) -> Result {
        let raw = param.to_raw()?;

        // SAFETY: By the type invariant; the private data is copied.
        to_result(unsafe { bindings::ro2ib_cm_accept_locked(self.id, &raw) })
    }
}
