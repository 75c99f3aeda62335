// SPDX-License-Identifier: GPL-2.0

//! RDMA devices, their coming and going, and their asynchronous events.

use crate::bindings;
use core::{
    marker::PhantomPinned,
    ptr::NonNull, //
};
use kernel::{
    container_of,
    error::to_result,
    ffi,
    prelude::*,
    sync::{
        aref::{
            ARef,
            AlwaysRefCounted, //
        },
        atomic::{
            Acquire,
            Atomic,
            Full,
            Release, //
        },
        Arc,
        ArcBorrow, //
    },
    types::Opaque, //
};

/// A registered RDMA device (`struct ib_device`).
///
/// While an [`ARef<Device>`] lives the device stays registered: its removal
/// waits. So whoever holds one must let go of it when told of the removal
/// ([`ClientHandler::remove`]).
///
/// # Invariants
///
/// The `ib_device` is registered for as long as the reference is valid.
#[repr(transparent)]
pub(crate) struct Device(Opaque<bindings::ib_device>);

// SAFETY: The operations on a registered device are thread safe.
unsafe impl Send for Device {}
// SAFETY: As above.
unsafe impl Sync for Device {}

// SAFETY: `ib_device_try_get()` and `ib_device_put()` count the users of the registration.
unsafe impl AlwaysRefCounted for Device {
    fn inc_ref(&self) {
        // This cannot fail: by the type invariant the device is registered and stays so.
        //
        // SAFETY: By the type invariant.
        unsafe { bindings::ro2ib_device_try_get(self.as_raw()) };
    }

    unsafe fn dec_ref(obj: NonNull<Self>) {
        // SAFETY: The caller owns a reference. Legal in any context.
        unsafe { bindings::ib_device_put(obj.cast().as_ptr()) }
    }
}

/// What a device can do. The numbers of `struct ib_device_attr` that matter here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceAttrs {
    /// Work requests per queue of a QP.
    pub(crate) max_qp_wr: u32,
    /// Scatter/gather entries per send.
    pub(crate) max_send_sge: u32,
    /// Scatter/gather entries per receive.
    pub(crate) max_recv_sge: u32,
    /// Entries per completion queue.
    pub(crate) max_cqe: u32,
    /// Pages per memory region.
    pub(crate) max_fast_reg_page_list_len: u32,
    /// Completion vectors.
    pub(crate) num_comp_vectors: u32,
    /// Ports; their numbers begin at 1.
    pub(crate) phys_port_cnt: u32,
    /// The NUMA node it is at, or -1.
    pub(crate) numa_node: i32,
    /// Memory can be registered by work requests. Without this the device is of
    /// no use here.
    pub(crate) mem_mgt_extensions: bool,
    /// Memory regions may have gaps.
    pub(crate) sg_gaps: bool,
}

impl Device {
    /// Makes a counted reference of a raw pointer.
    ///
    /// Returns `None` if the device is being removed.
    ///
    /// # Safety
    ///
    /// `ptr` points to an `ib_device` that is not freed during the call.
    pub(super) unsafe fn try_get(ptr: *mut bindings::ib_device) -> Option<ARef<Self>> {
        let dev = NonNull::new(ptr)?;

        // SAFETY: The caller guarantees that it is valid.
        if !unsafe { bindings::ro2ib_device_try_get(ptr) } {
            return None;
        }
        // SAFETY: We just got the reference that we hand over here.
        Some(unsafe { ARef::from_raw(dev.cast()) })
    }

    /// Makes a reference of a raw pointer.
    ///
    /// # Safety
    ///
    /// The device is registered for all of `'a`.
    unsafe fn from_raw<'a>(ptr: *mut bindings::ib_device) -> &'a Self {
        // SAFETY: The type is transparent; the caller guarantees the rest.
        unsafe { &*ptr.cast() }
    }

    pub(super) fn as_raw(&self) -> *mut bindings::ib_device {
        self.0.get()
    }

    /// What it can do.
    pub(crate) fn attrs(&self) -> DeviceAttrs {
        let mut a = bindings::ro2ib_device_attrs::default();

        // SAFETY: By the type invariant; `a` is valid for writes.
        unsafe { bindings::ro2ib_device_attrs(self.as_raw(), &mut a) };
        DeviceAttrs {
            max_qp_wr: a.max_qp_wr,
            max_send_sge: a.max_send_sge,
            max_recv_sge: a.max_recv_sge,
            max_cqe: a.max_cqe,
            max_fast_reg_page_list_len: a.max_fast_reg_page_list_len,
            num_comp_vectors: a.num_comp_vectors,
            phys_port_cnt: a.phys_port_cnt,
            numa_node: a.numa_node,
            mem_mgt_extensions: a.mem_mgt_extensions,
            sg_gaps: a.sg_gaps,
        }
    }

    /// Whether it is made of software, such as rxe and siw: it uses virtual addresses for DMA.
    pub(crate) fn is_software(&self) -> bool {
        // SAFETY: By the type invariant.
        unsafe { bindings::ro2ib_device_is_software(self.as_raw()) }
    }

    /// Whether a port of it, counted from 1, is up. May sleep.
    pub(crate) fn port_active(&self, port: u32) -> bool {
        // SAFETY: By the type invariant; a port that does not exist is refused.
        unsafe { bindings::ro2ib_port_active(self.as_raw(), port) }
    }

    /// Its name, such as `mlx5_0`. It may be renamed at any time: for messages.
    pub(crate) fn name(&self) -> &CStr {
        // SAFETY: By the type invariant. Names are replaced, never freed, while it is registered.
        unsafe { CStr::from_char_ptr(bindings::ro2ib_device_name(self.as_raw())) }
    }

    /// Whether both are the same device.
    pub(crate) fn same(&self, other: &Device) -> bool {
        core::ptr::eq(self, other)
    }
}

/// An asynchronous event of a device that concerns no QP or CQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeviceEvent {
    /// The device is broken (`IB_EVENT_DEVICE_FATAL`).
    Fatal,
    /// This port came up.
    PortActive(u32),
    /// This port went down.
    PortErr(u32),
    /// The LID of this port changed.
    LidChange(u32),
    /// The P_Key table of this port changed.
    PkeyChange(u32),
    /// The subnet manager of this port changed.
    SmChange(u32),
    /// The subnet manager lost what was registered at this port.
    ClientReregister(u32),
    /// The GID table of this port changed.
    GidChange(u32),
    /// Anything else: the number of the event.
    Unknown(u32),
}

impl DeviceEvent {
    /// # Safety
    ///
    /// `ev` is an event as given to a device event handler.
    unsafe fn from_raw(ev: &bindings::ib_event) -> Self {
        // SAFETY: `port_num` is plain data, and the active member for the events that use it here.
        let port = unsafe { ev.element.port_num };

        match ev.event {
            bindings::ib_event_type_IB_EVENT_DEVICE_FATAL => Self::Fatal,
            bindings::ib_event_type_IB_EVENT_PORT_ACTIVE => Self::PortActive(port),
            bindings::ib_event_type_IB_EVENT_PORT_ERR => Self::PortErr(port),
            bindings::ib_event_type_IB_EVENT_LID_CHANGE => Self::LidChange(port),
            bindings::ib_event_type_IB_EVENT_PKEY_CHANGE => Self::PkeyChange(port),
            bindings::ib_event_type_IB_EVENT_SM_CHANGE => Self::SmChange(port),
            bindings::ib_event_type_IB_EVENT_CLIENT_REREGISTER => Self::ClientReregister(port),
            bindings::ib_event_type_IB_EVENT_GID_CHANGE => Self::GidChange(port),
            other => Self::Unknown(other),
        }
    }
}

/// Receives the asynchronous events of a device.
pub(crate) trait DeviceEvents: Send + Sync + Sized + 'static {
    /// An event. Treat it as hard interrupt context: touch atomics, queue work.
    fn device_event(this: ArcBorrow<'_, Self>, event: DeviceEvent);
}

/// The registration of a [`DeviceEvents`] at one device. Dropping it waits for
/// handlers that run, and may sleep.
///
/// # Invariants
///
/// `raw` is registered from construction to drop.
#[pin_data(PinnedDrop)]
pub(crate) struct EventRegistration<T: DeviceEvents> {
    #[pin]
    raw: Opaque<bindings::ib_event_handler>,
    handler: Arc<T>,
    _device: ARef<Device>,
    #[pin]
    _pin: PhantomPinned,
}

// SAFETY: The handler may be called and dropped by any thread, as `T` is `Send` and `Sync`.
unsafe impl<T: DeviceEvents> Send for EventRegistration<T> {}
// SAFETY: There is nothing to do with a shared reference.
unsafe impl<T: DeviceEvents> Sync for EventRegistration<T> {}

impl<T: DeviceEvents> EventRegistration<T> {
    /// Registers `handler` at `device`. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(device: ARef<Device>, handler: Arc<T>) -> Result<Pin<KBox<Self>>> {
        let dev = device.as_raw();

        KBox::pin_init(
            pin_init!(&this in Self {
                raw: Opaque::zeroed(),
                handler,
                _device: device,
                _pin: PhantomPinned,
                // INVARIANT: Registered here, as the last step.
                _: {
                    // SAFETY: `this` is pinned and all other fields are initialised, so the
                    // handler may be called from now on. `drop` unregisters it.
                    unsafe {
                        bindings::ro2ib_register_event_handler(
                            Opaque::cast_into(&raw const (*this.as_ptr()).raw),
                            dev,
                            Some(Self::trampoline),
                        )
                    }
                },
            }),
            GFP_KERNEL,
        )
    }

    /// # Safety
    ///
    /// Called by the core for the handler of a registered `Self`.
    unsafe extern "C" fn trampoline(
        raw: *mut bindings::ib_event_handler,
        ev: *mut bindings::ib_event,
    ) {
        // SAFETY: `raw` is the field of a live `Self`, as it is registered.
        let this = unsafe { &*container_of!(Opaque::cast_from(raw), Self, raw) };
        // SAFETY: The core passes a valid event.
        let event = unsafe { DeviceEvent::from_raw(&*ev) };

        T::device_event(this.handler.as_arc_borrow(), event);
    }
}

#[pinned_drop]
impl<T: DeviceEvents> PinnedDrop for EventRegistration<T> {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: By the type invariant it is registered. This waits for running handlers.
        unsafe { bindings::ib_unregister_event_handler(self.raw.get()) }
    }
}

/// Is told which RDMA devices there are.
pub(crate) trait ClientHandler: Send + Sync + 'static {
    /// `device` has come; also called for those that are there at registration.
    /// May sleep.
    fn add(&self, device: &Device);

    /// `device` goes. Its removal completes when the last [`ARef<Device>`] is
    /// dropped. May sleep.
    fn remove(&self, device: &Device);
}

/// The handler of the one [`Client`] there is: the callbacks of `ib_client` carry
/// nothing that would lead to it.
static CLIENT: Atomic<*mut ffi::c_void> = Atomic::new(core::ptr::null_mut());

/// The registration of a [`ClientHandler`]. Dropping it calls
/// [`ClientHandler::remove`] for every device; it sleeps.
///
/// # Invariants
///
/// `raw` is registered, and [`CLIENT`] is `handler`.
#[pin_data(PinnedDrop)]
pub(crate) struct Client<T: ClientHandler> {
    #[pin]
    raw: Opaque<bindings::ib_client>,
    handler: Arc<T>,
    #[pin]
    _pin: PhantomPinned,
}

// SAFETY: The handler may be called and dropped by any thread, as `T` is `Send` and `Sync`.
unsafe impl<T: ClientHandler> Send for Client<T> {}
// SAFETY: There is nothing to do with a shared reference.
unsafe impl<T: ClientHandler> Sync for Client<T> {}

impl<T: ClientHandler> Client<T> {
    /// Registers `handler` under `name`. May sleep.
    ///
    /// # Errors
    ///
    /// `EBUSY` if there is a client already, `ENOMEM`.
    pub(crate) fn register(name: &'static CStr, handler: Arc<T>) -> Result<Pin<KBox<Self>>> {
        let context = Arc::as_ptr(&handler).cast_mut().cast();

        if CLIENT
            .cmpxchg(core::ptr::null_mut(), context, Full)
            .is_err()
        {
            return Err(EBUSY);
        }
        let this = KBox::try_pin_init(
            try_pin_init!(&this in Self {
                raw: Opaque::zeroed(),
                handler,
                _pin: PhantomPinned,
                // INVARIANT: Registered here; `CLIENT` was set above.
                _: {
                    // SAFETY: `this` is pinned.
                    let raw = Opaque::cast_into(unsafe { &raw const (*this.as_ptr()).raw });

                    // SAFETY: `raw` is valid for writes and stays where it is.
                    unsafe {
                        bindings::ro2ib_client_init(
                            raw,
                            name.as_char_ptr(),
                            Some(Self::add),
                            Some(Self::remove),
                        )
                    };
                    // SAFETY: `raw` is initialised, and unregistered by `drop`.
                    to_result(unsafe { bindings::ib_register_client(raw) })?;
                },
            }? Error),
            GFP_KERNEL,
        );
        if this.is_err() {
            CLIENT.store(core::ptr::null_mut(), Release);
        }
        this
    }

    fn handler<'a>() -> &'a T {
        // SAFETY: Only called while the client is registered; then `CLIENT` is its handler, of
        // this type, and alive.
        unsafe { &*CLIENT.load(Acquire).cast::<T>() }
    }

    /// # Safety
    ///
    /// Called by the core for a registered client.
    unsafe extern "C" fn add(dev: *mut bindings::ib_device) -> ffi::c_int {
        // SAFETY: The core passes a device that is registered during the call.
        Self::handler().add(unsafe { Device::from_raw(dev) });
        0
    }

    /// # Safety
    ///
    /// Called by the core for a registered client.
    unsafe extern "C" fn remove(dev: *mut bindings::ib_device, _data: *mut ffi::c_void) {
        // SAFETY: The core passes a device that is registered during the call.
        Self::handler().remove(unsafe { Device::from_raw(dev) });
    }
}

#[pinned_drop]
impl<T: ClientHandler> PinnedDrop for Client<T> {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: By the type invariant. Afterwards there are no more callbacks.
        unsafe { bindings::ib_unregister_client(self.raw.get()) };
        CLIENT.store(core::ptr::null_mut(), Release);
    }
}
