// SPDX-License-Identifier: GPL-2.0

//! RDMA devices and their asynchronous events.

use core::{
    marker::PhantomPinned,
    ptr::NonNull, //
};

use kernel::{
    container_of,
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        aref::{
            ARef,
            AlwaysRefCounted, //
        },
        Arc,
        ArcBorrow, //
    },
    types::Opaque, //
};

use crate::bindings;

/// A registered RDMA device (`struct ib_device`).
///
/// While an [`ARef<Device>`] lives the device stays registered. Its holder must
/// drop it when the connection manager reports `DEVICE_REMOVAL`, or the
/// unregistration hangs.
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

/// Bytes of a name at most, with the NUL (`IB_DEVICE_NAME_MAX`).
const NAME_LEN: usize = 64;

/// Copy of the name of a device.
pub(crate) struct DeviceName([u8; NAME_LEN]);

impl DeviceName {
    /// Returns the text.
    pub(crate) fn as_str(&self) -> &str {
        CStr::from_bytes_until_nul(&self.0)
            .ok()
            .and_then(|name| name.to_str().ok())
            .unwrap_or("?")
    }
}

/// Capabilities of a device: the fields of `struct ib_device_attr` that the driver uses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceAttrs {
    /// Queue pairs of all users of the device.
    pub(crate) max_qp: u32,
    /// Work requests per queue of a QP.
    pub(crate) max_qp_wr: u32,
    /// Scatter/gather entries per send.
    pub(crate) max_send_sge: u32,
    /// Entries per completion queue.
    pub(crate) max_cqe: u32,
    /// Memory regions; 0 if it does not say.
    pub(crate) max_mr: u32,
    /// Pages per memory region.
    pub(crate) max_fast_reg_page_list_len: u32,
    /// Sizes that the pages of a memory region may have, a bit each; 0 if it does not say.
    pub(crate) page_size_cap: u64,
    /// Memory can be registered by work requests. Without this the device is of
    /// no use here.
    pub(crate) mem_mgt_extensions: bool,
    /// The device accepts LOCAL_INV work requests, as `mem_mgt_extensions` promises.
    pub(crate) local_inv: bool,
}

impl DeviceAttrs {
    /// Returns the page size of its memory regions. `None`: it has none as small as the kernel's.
    pub(crate) fn region_page(&self) -> Option<RegionPage> {
        RegionPage::choose(self.page_size_cap, OUR_PAGE)
    }
}

/// Size of the kernel's pages, as a power of two.
const OUR_PAGE: u32 = PAGE_SIZE.ilog2();

/// The size of a page of memory regions.
///
/// The size of the kernel's pages if the device has it, otherwise the next smaller one: irdma has 4 KiB and 2 MiB, also
/// where the kernel's pages have 64 KiB. irdma takes any other size for 4 KiB without an error, and data goes to wrong
/// places.
///
/// # Invariants
///
/// Two to the power of `shift`. A size that the device has, if it reports its sizes, and no larger than the kernel's
/// pages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RegionPage {
    shift: u32,
}

impl RegionPage {
    /// No device has smaller ones than 512 bytes, and of those 16 bits can count what a region has
    /// ([`super::qp::QpConfig::mr_pages`]).
    const LEAST: u32 = 9;

    /// Returns the largest size in `cap` (one bit per size) that is no larger than `ours`, the kernel's, as a power of
    /// two. A device that reports no sizes has all.
    pub(crate) fn choose(cap: u64, ours: u32) -> Option<Self> {
        if cap == 0 {
            // INVARIANT: It does not say.
            return Some(Self { shift: ours });
        }
        let larger = u64::MAX.checked_shl(ours.saturating_add(1)).unwrap_or(0);
        let shift = (cap & !larger).checked_ilog2()?;

        // INVARIANT: The last bit that is there, up to that of our own.
        (shift >= Self::LEAST).then_some(Self { shift })
    }

    /// Returns the size in bytes.
    pub(crate) fn len(self) -> u32 {
        1_u32.wrapping_shl(self.shift)
    }

    /// Returns the number of pages that `nob` contiguous bytes touch at most, wherever they begin.
    pub(crate) fn max_pages_for(self, nob: u32) -> u32 {
        nob.div_ceil(self.len().max(1)).saturating_add(1)
    }

    /// Returns the number of pages of this size in one page of the kernel.
    pub(super) fn per_kernel_page(self) -> u32 {
        1_u32.wrapping_shl(OUR_PAGE.saturating_sub(self.shift))
    }
}

/// State of a port of a device; all 0 if there is no such port.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PortState {
    /// It is up.
    pub(crate) active: bool,
    /// Active MTU in bytes; 0 if it does not say.
    pub(crate) mtu: u32,
    /// The LID that the subnet manager gave it; 0 if it has none, as over Ethernet.
    pub(crate) lid: u32,
    /// Code of the speed of a lane, as in PortInfo.
    pub(crate) speed: u32,
    /// Code of the number of lanes.
    pub(crate) width: u32,
    /// Packets of other partitions that the port dropped since the counter was reset.
    pub(crate) bad_pkeys: u32,
}

impl Device {
    /// Creates a counted reference from a raw pointer.
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

    pub(super) fn as_raw(&self) -> *mut bindings::ib_device {
        self.0.get()
    }

    /// Returns its capabilities.
    pub(crate) fn attrs(&self) -> DeviceAttrs {
        let mut a = bindings::ro2ib_device_attrs::default();

        // SAFETY: By the type invariant; `a` is valid for writes.
        unsafe { bindings::ro2ib_device_attrs(self.as_raw(), &mut a) };
        DeviceAttrs {
            max_qp: a.max_qp,
            max_qp_wr: a.max_qp_wr,
            max_send_sge: a.max_send_sge,
            max_cqe: a.max_cqe,
            max_mr: a.max_mr,
            max_fast_reg_page_list_len: a.max_fast_reg_page_list_len,
            page_size_cap: a.page_size_cap,
            mem_mgt_extensions: a.mem_mgt_extensions,
            local_inv: a.local_inv,
        }
    }

    /// Returns whether it is a software device: rxe or siw. These are slow to answer, and raise completions in work
    /// items of their own.
    pub(crate) fn is_software(&self) -> bool {
        // SAFETY: By the type invariant.
        unsafe { bindings::ro2ib_device_is_software(self.as_raw()) }
    }

    /// Returns whether it raises completions in an interrupt.
    pub(super) fn uses_irq_completions(&self) -> bool {
        // SAFETY: By the type invariant.
        unsafe { bindings::ro2ib_device_uses_irq(self.as_raw()) }
    }

    /// Returns whether connections of that port go over TCP; false if there is no such port.
    pub(crate) fn is_iwarp(&self, port: u32) -> bool {
        // SAFETY: By the type invariant; the function knows which ports there are.
        unsafe { bindings::ro2ib_device_is_iwarp(self.as_raw(), port) }
    }

    /// Returns whether connections of that port go over Ethernet, with the address of an interface as GID; false if
    /// there is no such port.
    pub(crate) fn is_roce(&self, port: u32) -> bool {
        // SAFETY: By the type invariant; the function knows which ports there are.
        unsafe { bindings::ro2ib_device_is_roce(self.as_raw(), port) }
    }

    /// Returns whether the port is one of InfiniBand or OPA, whose paths the subnet manager gives.
    pub(crate) fn is_ib(&self, port: u32) -> bool {
        // SAFETY: By the type invariant.
        unsafe { bindings::ro2ib_device_is_ib(self.as_raw(), port) }
    }

    /// Returns whether it executes local work requests again when it retransmits the work requests before them, as rxe
    /// does; see [`super::sq::SendQueue::push_reg`].
    fn replays_local_wrs(&self) -> bool {
        // SAFETY: By the type invariant.
        unsafe { bindings::ro2ib_device_replays_local_wrs(self.as_raw()) }
    }

    /// Returns whether it reads the memory of a work request after that has ended, unless a completion is requested;
    /// see [`super::qp::Qp::signals_all`].
    pub(super) fn reads_after_completion(&self) -> bool {
        // SAFETY: By the type invariant.
        unsafe { bindings::ro2ib_device_reads_after_completion(self.as_raw()) }
    }

    /// Returns the number of work requests that one registration takes; see [`super::sq::SendQueue::push_reg`].
    pub(crate) fn wrs_per_reg(&self) -> u16 {
        1 + u16::from(self.replays_local_wrs())
    }

    /// Returns the state of a port, counted from 1. May sleep.
    pub(crate) fn port(&self, port: u32) -> PortState {
        let mut p = bindings::ro2ib_port::default();

        // SAFETY: By the type invariant; `p` is valid for writes; a port that does not exist is refused.
        unsafe { bindings::ro2ib_port_query(self.as_raw(), port, &mut p) };
        PortState {
            active: p.active,
            mtu: p.mtu,
            lid: p.lid,
            speed: p.speed,
            width: p.width,
            bad_pkeys: p.bad_pkeys,
        }
    }

    /// Makes the RDMA core check the addresses of all interfaces and add missing GIDs to the ports of the device
    /// (Ethernet only). Takes the lock of the network configuration: sleeps, and must not be called with that lock
    /// held.
    pub(crate) fn rescan_gids(&self) {
        // SAFETY: By the type invariant it is registered, and so has its tables of GIDs.
        unsafe { bindings::rdma_roce_rescan_device(self.as_raw()) }
    }

    /// Returns whether a port, counted from 1, can send no messages of the connection manager any more because their
    /// queue pair (the GSI QP) is in the error state. On rxe it stays there. May sleep.
    ///
    /// # Safety
    ///
    /// An id of the CM is bound to it during the call. This queries the MAD layer, which frees its state as soon as its
    /// client goes, and that is not before the CM's client has gone, which waits for ids.
    pub(super) unsafe fn gsi_failed(&self, port: u32) -> bool {
        // SAFETY: By the type invariant; the function knows which ports there are. The caller guarantees the rest.
        unsafe { bindings::ro2ib_gsi_failed(self.as_raw(), port) }
    }

    /// Returns a copy of its name, such as `mlx5_0`, for messages: it may be renamed at any time.
    pub(crate) fn name(&self) -> DeviceName {
        let mut name = DeviceName([0; NAME_LEN]);

        // SAFETY: By the type invariant; there is room for as many bytes.
        unsafe { bindings::ro2ib_device_name(self.as_raw(), name.0.as_mut_ptr().cast(), NAME_LEN) };
        name
    }

    /// Returns the device that its DMA goes through, or NULL if the kernel does no DMA for it (rxe, siw, hfi1). Valid
    /// while this device is registered.
    pub(crate) fn dma_device(&self) -> *mut bindings::device {
        // SAFETY: By the type invariant.
        unsafe { bindings::ro2ib_device_dma(self.as_raw()) }
    }

    /// Returns whether both are the same device.
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
    /// Returns the event.
    ///
    /// # Safety
    ///
    /// `ev` is an event as given to a device event handler.
    unsafe fn from_raw(ev: &bindings::ib_event) -> Self {
        // SAFETY: `port_num` is plain data, and the active member for the events that use it here.
        let port = unsafe { bindings::ro2ib_event_port(ev) };

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
    /// Handles an event. Treat it as hard interrupt context: touch atomics, queue work.
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
            pin_init!(Self {
                handler,
                _device: device,
                _pin: PhantomPinned,
                // INVARIANT: Registered here, as the last step.
                raw <- Opaque::ffi_init(|slot| {
                    // SAFETY: `slot` is pinned and all other fields are initialised, so the
                    // handler may be called from now on. `drop` unregisters it.
                    unsafe {
                        bindings::ro2ib_register_event_handler(
                            slot,
                            dev,
                            Some(Self::trampoline),
                        )
                    }
                }),
            }),
            GFP_KERNEL,
        )
    }

    /// Handles an event of the device.
    ///
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
