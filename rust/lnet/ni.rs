// SPDX-License-Identifier: GPL-2.0

//! Network interfaces: configuration, and calls into LNet.

use core::{
    ffi::CStr,
    marker::PhantomData,
    ptr::NonNull, //
};

use kernel::{
    error::to_result,
    prelude::*,
    sync::Arc,
    types::ForeignOwnable, //
};

use super::{
    Lnd,
    HDR_SIZE, //
};
use crate::{
    bindings,
    proto::constants::QueueDepth,
    rdma::{
        device::Device,
        net_ns, //
    }, //
};

/// State of an NI for LNet, as the driver reports it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fatal {
    /// LNet can use it.
    No,
    /// Its HCA port is not active.
    Port,
    /// An error that the driver has logged.
    Told,
}

/// Counted reference on a network namespace.
///
/// # Invariants
///
/// `ptr` is a valid `struct net` on which this value owns a reference.
pub(crate) struct NetNs {
    ptr: NonNull<bindings::net>,
}

// SAFETY: A reference on a namespace may be dropped by any thread.
unsafe impl Send for NetNs {}

// SAFETY: A shared `NetNs` only hands out the pointer and takes further references.
unsafe impl Sync for NetNs {}

impl NetNs {
    /// Returns its address, which identifies it.
    pub(crate) fn as_ptr(&self) -> *const bindings::net {
        self.ptr.as_ptr()
    }

    /// Returns the namespace for the RDMA side.
    pub(crate) fn as_rdma(&self) -> net_ns::NetNs<'_> {
        // SAFETY: By the type invariant the namespace is valid as long as `self` is borrowed.
        unsafe { net_ns::NetNs::from_raw(self.ptr) }
    }
}

impl Clone for NetNs {
    fn clone(&self) -> Self {
        // SAFETY: The namespace is valid by the type invariant.
        unsafe { bindings::ro2ib_net_get(self.ptr.as_ptr()) };
        // INVARIANT: The new reference is owned by the new value.
        Self { ptr: self.ptr }
    }
}

impl Drop for NetNs {
    fn drop(&mut self) {
        // SAFETY: By the type invariant this value owns a reference, and this is its end.
        unsafe { bindings::ro2ib_net_put(self.ptr.as_ptr()) };
    }
}

/// Configuration of an NI, after defaulting and clamping (specification, sections 8.3 and 9).
///
/// # Invariants
///
/// `raw.net` is a namespace that is referenced as long as the borrow lives.
pub(crate) struct NiConfig<'a> {
    raw: &'a bindings::ro2ib_ni_cfg,
}

/// Returns a string of the configuration, which is NUL-terminated ASCII.
fn text(bytes: &[c_char]) -> &str {
    CStr::from_bytes_until_nul(bytes)
        .ok()
        .and_then(|s| s.to_str().ok())
        .unwrap_or("?")
}

impl<'a> NiConfig<'a> {
    /// Wraps the configuration.
    ///
    /// # Safety
    ///
    /// `raw` must come from the shim, and be used only during the NI's startup.
    pub(super) unsafe fn from_raw(raw: &'a bindings::ro2ib_ni_cfg) -> Self {
        // INVARIANT: LNet references the namespace of an NI that it starts.
        Self { raw }
    }

    /// Returns the NID of the NI, 64-bit form.
    pub(crate) fn nid(&self) -> u64 {
        self.raw.nid
    }

    /// Returns the name of the NI for log lines, such as `10.0.0.1@o2ib`.
    pub(crate) fn name(&self) -> &str {
        text(&self.raw.name)
    }

    /// Returns the network namespace of the NI.
    pub(crate) fn net(&self) -> NetNs {
        // SAFETY: The namespace is valid by the type invariant.
        unsafe { bindings::ro2ib_net_get(self.raw.net) };
        NetNs {
            // INVARIANT: The reference was just taken.
            // SAFETY: The shim refuses an NI without a namespace.
            ptr: unsafe { NonNull::new_unchecked(self.raw.net) },
        }
    }

    /// Returns `peer_credits`: concurrent sends per peer, and the queue depth to offer; 1..=255.
    pub(crate) fn peer_credits(&self) -> u16 {
        self.raw.peer_credits as u16
    }

    /// Returns `service`: RDMA port of the listener and of all peers.
    pub(crate) fn service(&self) -> u16 {
        self.raw.service as u16
    }

    /// Returns `ib_mtu`: path MTU in bytes to use instead of the fabric's.
    pub(crate) fn path_mtu(&self) -> Option<u32> {
        (self.raw.ib_mtu != 0).then_some(self.raw.ib_mtu)
    }

    /// Returns `wrq_sge`: scatter/gather elements per work request, at least 1; `None` if the administrator did not set
    /// it.
    pub(crate) fn wrq_sge(&self) -> Option<u32> {
        self.raw.wrq_sge_given.then_some(self.raw.wrq_sge)
    }

    /// Returns `credits`: messages of the NI that LNet allows in flight; `None` if the administrator did not set it.
    pub(crate) fn credits(&self) -> Option<u32> {
        (!self.raw.max_tx_credits_open).then_some(self.raw.max_tx_credits)
    }
}

/// Source of the queue depth of an NI.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DepthBy {
    /// A tunable of the NI, or the parameter `peer_credits`.
    Given,
    /// The parameter `ni_tune`.
    Tuned,
    /// [`NiRef::choose_depth`].
    Link,
}

impl DepthBy {
    /// Returns the source in one word.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            DepthBy::Given => "given",
            DepthBy::Tuned => "ni_tune",
            DepthBy::Link => "link",
        }
    }
}

/// Settings for new connections, for which an administrator has tunables. The peer may reduce the queue depth.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct ConnSettings {
    conns_per_peer: u16,
    peer_credits: QueueDepth,
    /// IP type of service of connections that this side opens.
    pub(crate) tos: Option<u8>,
    /// Transport retries of a queue pair, 0..=7.
    pub(crate) retry_count: u8,
    /// Receiver-not-ready retries, 0..=7; 7 is without end.
    pub(crate) rnr_retry_count: u8,
}

/// Returns a queue depth that the shim has limited to 1..=255.
fn depth(credits: u32) -> QueueDepth {
    let depth = u16::try_from(credits).ok().and_then(QueueDepth::new);
    depth.unwrap_or(QueueDepth::MAX)
}

/// Counted reference on an NI: LNet's side of an [`Lnd`] object.
///
/// The shutdown of an NI waits until the last reference is gone, so a reference must not outlive the objects that
/// [`Lnd::shutdown`] disposes of.
///
/// # Invariants
///
/// `ptr` is a valid `ro2ib_ni` of driver `L` on which this value owns a reference; the `lnet_ni` behind it is valid as
/// long.
pub(crate) struct NiRef<L: Lnd> {
    ptr: NonNull<bindings::ro2ib_ni>,
    _driver: PhantomData<fn() -> L>,
}

// SAFETY: The reference count is atomic and all functions called on an NI take their own locks.
unsafe impl<L: Lnd> Send for NiRef<L> {}

// SAFETY: As above.
unsafe impl<L: Lnd> Sync for NiRef<L> {}

impl<L: Lnd> NiRef<L> {
    /// Takes over a reference.
    ///
    /// # Safety
    ///
    /// `ptr` must be an NI of driver `L`, with a reference that passes to the result.
    pub(super) unsafe fn from_raw(ptr: NonNull<bindings::ro2ib_ni>) -> Self {
        // INVARIANT: Guaranteed by the caller.
        Self {
            ptr,
            _driver: PhantomData,
        }
    }

    /// Returns the NI for calls into the shim.
    pub(super) fn as_ptr(&self) -> *mut bindings::ro2ib_ni {
        self.ptr.as_ptr()
    }

    /// Gives a received message to LNet.
    ///
    /// `rx` has the LNet header as received ([`Lnd::header`]), `from` is the NID of the peer the o2ib message came
    /// from, `rdma` says whether it was a PUT_REQ or GET_REQ. LNet decides now or later and calls [`Lnd::recv`] with
    /// `rx` exactly once, maybe before this returns. On error it has taken nothing, and `rx` comes back: drop the
    /// message, or close the connection on `ESHUTDOWN`. Returns true if LNet deletes the NI and waits until it has no
    /// message of the NI.
    ///
    /// Process context, no locks held.
    pub(crate) fn parse(
        &self,
        from: u64,
        rx: KBox<L::Rx>,
        rdma: bool,
    ) -> Result<bool, (KBox<L::Rx>, Error)> {
        let hdr: *const [u8; HDR_SIZE] = L::header(&rx);
        let rx = rx.into_foreign();
        // SAFETY: The NI is valid by the type invariant, and `rx` is what `Lnd::recv`'s trampoline
        // expects. `hdr` has the length LNet reads, and stays as long as `rx`, which may be gone
        // before the shim returns; but it has been read before LNet gets that.
        let rc = unsafe { bindings::ro2ib_lnet_parse(self.as_ptr(), hdr.cast(), from, rx, rdma) };
        if rc == 0 {
            return Ok(false);
        }
        match to_result(rc) {
            Ok(()) => Ok(true),
            // SAFETY: `rx` comes from `into_foreign` above. LNet has taken nothing when it returns an error, so nothing
            // else turns it back.
            Err(e) => Err((unsafe { ForeignOwnable::from_foreign(rx) }, e)),
        }
    }

    /// Tells LNet that a peer is gone: it was last heard `age` seconds ago.
    pub(crate) fn notify_down(&self, nid: u64, age: u64) {
        // SAFETY: The NI is valid by the type invariant.
        unsafe { bindings::ro2ib_lnet_notify_down(self.as_ptr(), nid, age) };
    }

    /// Tells LNet that the HCA port of the NI has failed or is back. LNet then avoids the NI if it has another; the
    /// shim watches the state of the interface itself, and logs that the link is down unless a worse error was logged.
    ///
    /// Must not be called from [`Lnd::link_event`].
    pub(crate) fn set_fatal(&self, fatal: Fatal) {
        let (on, told) = (fatal != Fatal::No, fatal == Fatal::Told);
        // SAFETY: The NI is valid by the type invariant.
        unsafe { bindings::ro2ib_lnet_set_fatal(self.as_ptr(), on, told) };
    }

    /// Returns whether the interface is a bond, or a VLAN on one. Another interface may have the address later.
    pub(crate) fn is_bonded(&self) -> bool {
        // SAFETY: The NI is valid by the type invariant.
        unsafe { bindings::ro2ib_ni_is_bonded(self.as_ptr()) }
    }

    /// Tells LNet through which device the NI's DMA goes, so that it prefers the NI that is next to a
    /// GPU; `None` before the device goes. Waits for RCU if there was one.
    pub(crate) fn set_dma_device(&self, device: Option<&Device>) {
        let device = device.map_or(core::ptr::null_mut(), Device::dma_device);
        // SAFETY: The NI is valid by the type invariant. So is the device during the call, for an RDMA
        // device is unregistered before its parent goes; the shim counts it.
        unsafe { bindings::ro2ib_lnet_set_dma_device(self.as_ptr(), device) };
    }

    /// Sets the depth that fits the link of the NI, which runs at `mbps` Mb/s (0: not known), and the matching credits
    /// of the NI. Does nothing if the administrator set a depth. While the NI starts, LNet gets both; later the depth
    /// applies to new connections.
    ///
    /// Process context. Must not be called from [`Lnd::link_event`].
    pub(crate) fn choose_depth(&self, depth: u8, credits: u32, mbps: u32) {
        // SAFETY: The NI is valid by the type invariant.
        unsafe { bindings::ro2ib_ni_choose(self.as_ptr(), depth.into(), credits, mbps) };
    }

    /// Returns the source of the queue depth. Any context.
    pub(crate) fn depth_by(&self) -> DepthBy {
        // SAFETY: The NI is valid by the type invariant.
        match unsafe { bindings::ro2ib_ni_depth_by(self.as_ptr()) } {
            bindings::ro2ib_depth_by_RO2IB_DEPTH_TUNED => DepthBy::Tuned,
            bindings::ro2ib_depth_by_RO2IB_DEPTH_CHOSEN => DepthBy::Link,
            _ => DepthBy::Given,
        }
    }

    /// Returns the NI of the same driver with that NID, which may come straight from the wire. `None` for an unknown
    /// NID, the NID of another driver's NI, and an NI that is still starting. LNet may shut the NI down at any time;
    /// holding the `Arc` does not delay that (but the [`NiRef`] inside usually does).
    pub(crate) fn find(&self, nid: u64) -> Option<Arc<L::Ni>> {
        let mut lnd = core::ptr::null_mut();
        // SAFETY: `lnd` is a local.
        let found = unsafe { bindings::ro2ib_lnet_find_ni(nid, &mut lnd) };
        if found.is_null() {
            return None;
        }
        // SAFETY: The shim returns NIs of the one registered driver only. That is `L`: by the type
        // invariant an NI of `L` is there, which keeps `L` registered. So their private data is an
        // `Arc<L::Ni>` that the startup trampoline made. It stays until `Lnd::shutdown`, which cannot
        // begin before `ro2ib_lnet_put_found`.
        let lnd: Arc<L::Ni> = unsafe { <Arc<L::Ni> as ForeignOwnable>::borrow(lnd) }.into();
        // SAFETY: The reference was given to us by `ro2ib_lnet_find_ni`.
        unsafe { bindings::ro2ib_lnet_put_found(found) };
        Some(lnd)
    }

    /// Returns whether LNet finds this NI by its NID, `nid`: not after LNet began to delete the NI.
    ///
    /// Process context, no locks held.
    pub(crate) fn is_listed(&self, nid: u64) -> bool {
        let mut lnd = core::ptr::null_mut();
        // SAFETY: `lnd` is a local.
        let found = unsafe { bindings::ro2ib_lnet_find_ni(nid, &mut lnd) };
        if found.is_null() {
            return false;
        }
        // SAFETY: The reference was given to us by `ro2ib_lnet_find_ni`.
        unsafe { bindings::ro2ib_lnet_put_found(found) };
        found == self.as_ptr()
    }

    /// Returns whether the administrator allows connections between a peer and the NI (parameter `access`). Any
    /// context.
    pub(crate) fn allows(&self, peer: u64) -> bool {
        // SAFETY: The NI is valid by the type invariant.
        unsafe { bindings::ro2ib_access_allows(self.as_ptr(), peer) }
    }

    /// Returns the current `conns_per_peer`: number of connections that the active side opens; 1..=127. Any context, as
    /// all of these.
    pub(crate) fn conns_per_peer(&self) -> u16 {
        // SAFETY: The NI is valid by the type invariant.
        let n = unsafe { bindings::ro2ib_ni_conns_per_peer(self.as_ptr()) };
        u16::try_from(n).unwrap_or(1)
    }

    /// Returns the current `peer_credits`, for new connections: the queue depth to offer, and the largest to accept.
    pub(crate) fn peer_credits(&self) -> QueueDepth {
        // SAFETY: The NI is valid by the type invariant.
        depth(unsafe { bindings::ro2ib_ni_peer_credits(self.as_ptr()) })
    }

    /// Returns the number of messages that LNet hands over for one peer at a time. The first NI of a net has set it,
    /// and it stays, whatever [`NiRef::peer_credits`] becomes.
    pub(crate) fn lnet_credits(&self) -> QueueDepth {
        // SAFETY: The NI is valid by the type invariant.
        depth(unsafe { bindings::ro2ib_ni_lnet_credits(self.as_ptr()) })
    }

    /// Returns the current `peer_credits_hiw`, a part of [`NiRef::lnet_credits`].
    pub(crate) fn peer_credits_hiw(&self) -> u8 {
        // SAFETY: The NI is valid by the type invariant.
        let n = unsafe { bindings::ro2ib_ni_peer_credits_hiw(self.as_ptr()) };
        u8::try_from(n).unwrap_or(u8::MAX)
    }

    /// Returns the current settings for new connections.
    pub(crate) fn conn_settings(&self) -> ConnSettings {
        ConnSettings {
            conns_per_peer: self.conns_per_peer(),
            peer_credits: self.peer_credits(),
            // SAFETY: The NI is valid by the type invariant.
            tos: u8::try_from(unsafe { bindings::ro2ib_ni_tos(self.as_ptr()) }).ok(),
            // SAFETY: As above.
            retry_count: unsafe { bindings::ro2ib_ni_retry_count(self.as_ptr()) },
            // SAFETY: As above.
            rnr_retry_count: unsafe { bindings::ro2ib_ni_rnr_retry_count(self.as_ptr()) },
        }
    }

    /// Returns the current `timeout`: seconds until a stuck transfer closes its connection; never 0.
    pub(crate) fn timeout(&self) -> u32 {
        // SAFETY: The NI is valid by the type invariant.
        unsafe { bindings::ro2ib_ni_timeout(self.as_ptr()) }
    }

    /// Returns the current `keepalive`: idle seconds after which a connection sends a NOOP; `None`: never.
    pub(crate) fn keepalive(&self) -> Option<u32> {
        // SAFETY: The NI is valid by the type invariant.
        match unsafe { bindings::ro2ib_ni_keepalive(self.as_ptr()) } {
            0 => None,
            s => Some(s),
        }
    }

    /// Returns the current `probe`: milliseconds of silence after which the driver probes a peer that owes an answer;
    /// 0: never.
    pub(crate) fn probe_ms(&self) -> u32 {
        // SAFETY: The NI is valid by the type invariant.
        unsafe { bindings::ro2ib_ni_probe(self.as_ptr()) }
    }

    /// Returns whether LNet has the NI in service. Any context.
    pub(crate) fn is_active(&self) -> bool {
        // SAFETY: The NI is valid by the type invariant.
        unsafe { bindings::ro2ib_ni_active(self.as_ptr()) }
    }

    /// Returns an online CPU of the peer's partition; connections of one peer are spread by `salt`. Any context.
    pub(crate) fn cpu_of(&self, nid: u64, salt: u32) -> i32 {
        // SAFETY: The NI is valid by the type invariant.
        unsafe { bindings::ro2ib_lnet_peer_cpu(self.as_ptr(), nid, salt) }
    }
}

impl<L: Lnd> Clone for NiRef<L> {
    fn clone(&self) -> Self {
        // SAFETY: The NI is valid by the type invariant.
        unsafe { bindings::ro2ib_ni_get(self.as_ptr()) };
        // INVARIANT: The new reference is owned by the new value.
        Self {
            ptr: self.ptr,
            _driver: PhantomData,
        }
    }
}

impl<L: Lnd> Drop for NiRef<L> {
    fn drop(&mut self) {
        // SAFETY: By the type invariant this value owns a reference, and this is its end.
        unsafe { bindings::ro2ib_ni_put(self.as_ptr()) };
    }
}
