// SPDX-License-Identifier: GPL-2.0

//! The driver's operations, and the functions through which the shim calls them.

use core::{
    marker::PhantomData,
    ptr::NonNull, //
};

use kernel::{
    error::to_result,
    prelude::*,
    sync::{
        Arc,
        ArcBorrow, //
    },
    types::ForeignOwnable, //
};

use super::{
    Message,
    NiConfig,
    NiRef,
    RecvRequest,
    SendRequest,
    HDR_SIZE, //
};
use crate::bindings;

/// Reason why an NI does not start; the caller logs it in one line.
pub(crate) struct StartError {
    /// The step that failed.
    pub(crate) what: Failed,
    /// The cause, which LNet gets.
    pub(crate) error: Error,
}

/// A step that failed, e.g. "cannot listen", for the log.
pub(crate) struct Failed {
    what: &'static str,
    /// The limit of the device that is too low: its name, what the device has, and what is needed.
    limit: Option<(&'static str, u32, u32)>,
}

impl core::fmt::Display for Failed {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.what)?;
        match self.limit {
            Some((limit, has, needed)) => write!(f, ": it has {has} {limit}, needed are {needed}"),
            None => Ok(()),
        }
    }
}

impl StartError {
    /// Returns a function for `map_err`: `listen().map_err(StartError::because("cannot listen"))?`.
    pub(crate) fn because(what: &'static str) -> impl FnOnce(Error) -> Self {
        let what = Failed { what, limit: None };
        move |error| Self { what, error }
    }

    /// Makes the error for an object that could not be allocated.
    pub(crate) fn no_memory(error: Error) -> Self {
        Self::because("no memory")(error)
    }

    /// Makes the error of a device with too low a limit: it has `has`, and `needed` are needed.
    pub(crate) fn limited(
        what: &'static str,
        limit: &'static str,
        (has, needed): (u32, u32),
    ) -> Self {
        Self {
            what: Failed {
                what,
                limit: Some((limit, has, needed)),
            },
            error: EOPNOTSUPP,
        }
    }
}

/// Change of the link of an NI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkEvent {
    /// The interface has carrier and address.
    Up,
    /// Carrier or address is missing.
    Down,
    /// The link is about to go; until then there is a route.
    Leaving,
    /// The interface may be on another RDMA device now.
    Moved,
    /// IPoIB has the address and no carrier, which connections do not need.
    NoCarrier,
    /// The interface has another MTU.
    Mtu,
}

/// Answer to [`Lnd::peer_info`].
pub(crate) struct PeerInfo {
    /// NID of the peer, 64-bit form.
    pub(crate) nid: u64,
    /// References on the peer.
    pub(crate) refs: u32,
}

/// Answer to [`Lnd::conn_info`].
pub(crate) struct ConnInfo {
    /// NID of the peer, 64-bit form.
    pub(crate) nid: u64,
    /// Path MTU in bytes, 0 if unknown.
    pub(crate) path_mtu: u32,
}

/// LNet network driver. The type that implements it is only a name: the objects that an NI consists of ([`Lnd::Ni`])
/// may refer to LNet's side of it by this name, and do not have to know themselves.
///
/// All functions run in process context, with no LNet lock held (except [`Lnd::older_conns`]), and may sleep;
/// allocations must be `GFP_NOFS` or stricter, because a file system may be waiting for the message.
pub(crate) trait Lnd: Sized + 'static {
    /// NI of the driver.
    type Ni: Send + Sync + 'static;
    /// Received message while LNet decides about it.
    type Rx: Send + 'static;
    /// State that all NIs share; lives as long as the [`Registration`].
    type Driver: Send + Sync + 'static;

    /// Brings an NI up: afterwards it can send and receive. On error no object of it may be left.
    fn startup(
        cfg: &NiConfig<'_>,
        ni: NiRef<Self>,
        driver: ArcBorrow<'_, Self::Driver>,
    ) -> Result<Arc<Self::Ni>, StartError>;

    /// Takes the NI down. LNet has no message in the NI any more and sends none. When this returns, no object of the NI
    /// uses LNet; the shutdown waits for the remaining clones of the [`NiRef`].
    fn shutdown(this: Arc<Self::Ni>);

    /// Sends a message. Re-entrant: LNet calls it from inside [`Message::finalize`] and
    /// [`NiRef::parse`]. On error the message goes back unfinalized, and LNet finalizes it with
    /// that error, without another try.
    ///
    /// `msg` is to be finalized when it has been sent and, for a GET or an RDMA PUT, answered.
    fn send(
        this: ArcBorrow<'_, Self::Ni>,
        msg: Message,
        req: &SendRequest,
    ) -> Result<(), (Message, Error)>;

    /// Returns the LNet header of a received message, for [`NiRef::parse`].
    fn header(rx: &Self::Rx) -> &[u8; HDR_SIZE];

    /// Prepares a message that LNet keeps for a while before it calls [`Lnd::recv`]: the driver may free scarce
    /// resources. The receive credit must not be given back yet.
    fn eager_recv(this: ArcBorrow<'_, Self::Ni>, rx: &mut Self::Rx);

    /// Completes a message that LNet got with [`NiRef::parse`]. `msg` must be finalized when the data has arrived, or
    /// for a GET when the data has been delivered. Without `msg`, the data must be discarded. The receive buffer (and
    /// its credit) must be given back in any case. On error the message, if there is one, goes back unfinalized, and
    /// LNet finalizes it with that error.
    fn recv(
        this: ArcBorrow<'_, Self::Ni>,
        rx: KBox<Self::Rx>,
        msg: Option<Message>,
        req: &RecvRequest,
    ) -> Result<(), (Option<Message>, Error)>;

    /// Handles a change of the carrier or address of the NI's interface, which LNet knows already. rtnl and the shim's
    /// lock are held: must not iterate over all peers, finalize a message, call [`NiRef::set_fatal`], or wait for a
    /// thread that does.
    fn link_event(this: ArcBorrow<'_, Self::Ni>, event: LinkEvent);

    /// Returns, after [`LinkEvent::Leaving`], whether a connection has not sent its DREQ yet or got no answer, or a
    /// peer requests a new connection. The same locks are held.
    fn link_busy(this: ArcBorrow<'_, Self::Ni>) -> bool;

    /// Returns whether its device has a GID for its address, as over RoCE: the GID goes although the interface may have
    /// the address once more. The same locks are held.
    fn has_gid(this: ArcBorrow<'_, Self::Ni>) -> bool;

    /// Returns the peer number `index`, counted from 0 in any order.
    fn peer_info(this: ArcBorrow<'_, Self::Ni>, index: u32) -> Option<PeerInfo>;

    /// Prints the state of a peer to the console ([`super::dk::console`]). `ENOENT`: no such peer.
    fn debug_peer(this: ArcBorrow<'_, Self::Ni>, nid: u64) -> Result;

    /// Forgets a peer (`None`: all of them), with its connections. `ENOENT`: no such peer.
    fn del_peer(this: ArcBorrow<'_, Self::Ni>, nid: Option<u64>) -> Result;

    /// Returns the connection number `index`, counted from 0 in any order.
    fn conn_info(this: ArcBorrow<'_, Self::Ni>, index: u32) -> Option<ConnInfo>;

    /// Handles a change of the allowed peers ([`NiRef::allows`]) or of the tunables of the NI ([`NiRef::peer_credits`]
    /// and others). The shim's lock is held, for which notifiers wait with rtnl: as for [`Lnd::link_event`].
    fn settings_changed(this: ArcBorrow<'_, Self::Ni>);

    /// Returns the number of connections that were created with other settings than new connections get
    /// ([`NiRef::conns_per_peer`] and others). A spin lock of LNet's is held: must not sleep, or call LNet.
    fn older_conns(this: ArcBorrow<'_, Self::Ni>) -> u32;

    /// Closes the connections of a peer (`None`: of all). `ENOENT`: the peer has none. If `nid` is `None`, it is no
    /// error that there are none.
    fn close_conns(this: ArcBorrow<'_, Self::Ni>, nid: Option<u64>) -> Result;
}

/// Returns the NID of a control operation, where all ones means "any".
fn nid_or_any(nid: u64) -> Option<u64> {
    (nid != u64::MAX).then_some(nid)
}

/// Trampolines of driver `L`.
///
/// The `priv` argument of each is an `Arc<L::Ni>` that [`Ops::startup`] turned foreign, and that stays so until
/// [`Ops::shutdown`], which LNet calls after every other operation has returned.
struct Ops<L: Lnd>(PhantomData<L>);

impl<L: Lnd> Ops<L> {
    const OPS: &'static bindings::ro2ib_lnd_ops = &bindings::ro2ib_lnd_ops {
        startup: Some(Self::startup),
        shutdown: Some(Self::shutdown),
        send: Some(Self::send),
        eager_recv: Some(Self::eager_recv),
        recv: Some(Self::recv),
        link_event: Some(Self::link_event),
        link_busy: Some(Self::link_busy),
        has_gid: Some(Self::has_gid),
        get_peer: Some(Self::get_peer),
        debug_peer: Some(Self::debug_peer),
        del_peer: Some(Self::del_peer),
        get_conn: Some(Self::get_conn),
        close_conns: Some(Self::close_conns),
        settings_changed: Some(Self::settings_changed),
        older_conns: Some(Self::older_conns),
    };

    /// Borrows the NI.
    ///
    /// # Safety
    ///
    /// `lnd` must be the private data of an NI that is not shut down before `'a` ends.
    unsafe fn borrow<'a>(lnd: *mut c_void) -> ArcBorrow<'a, L::Ni> {
        // SAFETY: By the requirement above, and because `startup` stores nothing else.
        unsafe { <Arc<L::Ni> as ForeignOwnable>::borrow(lnd) }
    }

    /// Starts an NI.
    ///
    /// # Safety
    ///
    /// Called by the shim: `cfg`, `ni` and `out` are valid, a reference on `ni` passes here, and
    /// `driver` is what [`Registration::new`] gave it.
    unsafe extern "C" fn startup(
        cfg: *const bindings::ro2ib_ni_cfg,
        ni: *mut bindings::ro2ib_ni,
        driver: *mut c_void,
        out: *mut *mut c_void,
    ) -> c_int {
        // SAFETY: The shim passes an NI of the registered driver, which is `L`, never NULL, with
        // a reference.
        let ni = unsafe { NiRef::<L>::from_raw(NonNull::new_unchecked(ni)) };
        // SAFETY: The shim's configuration is valid during the call.
        let cfg = unsafe { NiConfig::from_raw(&*cfg) };

        // SAFETY: `Registration::new` passed an `Arc<L::Driver>` made foreign, which stays until the
        // driver is unregistered; that cannot happen during the call.
        let driver = unsafe { <Arc<L::Driver> as ForeignOwnable>::borrow(driver) };

        match L::startup(&cfg, ni, driver) {
            Ok(lnd) => {
                // SAFETY: `out` is valid for a write.
                unsafe { *out = lnd.into_foreign() };
                0
            }
            Err(e) => {
                let what = e.what;
                pr_err!(
                    "{}: {}: {:?}\n",
                    cfg.name(),
                    core::format_args!("{what}"),
                    e.error
                );
                e.error.to_errno()
            }
        }
    }

    /// Stops an NI.
    ///
    /// # Safety
    ///
    /// Called by the shim, once per NI, as the last operation.
    unsafe extern "C" fn shutdown(lnd: *mut c_void) {
        // SAFETY: Made by `startup`; the shim does not use it again.
        L::shutdown(unsafe { <Arc<L::Ni> as ForeignOwnable>::from_foreign(lnd) });
    }

    /// Sends a message.
    ///
    /// # Safety
    ///
    /// Called by the shim: `lnd` is a running NI's, `req` is valid.
    unsafe extern "C" fn send(lnd: *mut c_void, req: *const bindings::ro2ib_send_req) -> c_int {
        // SAFETY: The NI is running during the call.
        let this = unsafe { Self::borrow(lnd) };
        // SAFETY: The shim's request is valid, and with it comes the message.
        let (msg, req) = match unsafe { SendRequest::from_raw(&*req) } {
            Ok(req) => req,
            Err(e) => return e.to_errno(),
        };
        match L::send(this, msg, req) {
            Ok(()) => 0,
            Err((msg, e)) => {
                msg.release_to_lnet();
                e.to_errno()
            }
        }
    }

    /// Prepares a message that LNet keeps for a while.
    ///
    /// # Safety
    ///
    /// Called by the shim: `lnd` is a running NI's, `rx` was given to [`NiRef::parse`] and has not
    /// come back.
    unsafe extern "C" fn eager_recv(lnd: *mut c_void, rx: *mut c_void) {
        // SAFETY: The NI is running during the call.
        let this = unsafe { Self::borrow(lnd) };
        // SAFETY: `NiRef::parse` made `rx` foreign; LNet calls this from inside `lnet_parse` or from the one thread
        // that handles the message, so nothing else uses it.
        let rx = unsafe { <KBox<L::Rx> as ForeignOwnable>::borrow_mut(rx) };
        L::eager_recv(this, rx);
    }

    /// Completes a received message.
    ///
    /// # Safety
    ///
    /// Called by the shim: `lnd` is a running NI's, `rx` was given to [`NiRef::parse`] and comes
    /// back for the first time, `req` is valid.
    unsafe extern "C" fn recv(
        lnd: *mut c_void,
        rx: *mut c_void,
        req: *const bindings::ro2ib_recv_req,
    ) -> c_int {
        // SAFETY: The NI is running during the call.
        let this = unsafe { Self::borrow(lnd) };
        // SAFETY: `NiRef::parse` made `rx` foreign, and LNet gives it back once.
        let rx = unsafe { <KBox<L::Rx> as ForeignOwnable>::from_foreign(rx) };
        // SAFETY: The shim's request is valid during the call.
        let raw = unsafe { &*req };
        // SAFETY: With the request comes the message.
        let (msg, req) = unsafe { RecvRequest::from_raw(raw) };
        match L::recv(this, rx, msg, req) {
            Ok(()) => 0,
            Err((msg, e)) => {
                if let Some(msg) = msg {
                    msg.release_to_lnet();
                }
                e.to_errno()
            }
        }
    }

    /// Handles a change of the link.
    ///
    /// # Safety
    ///
    /// Called by the shim: `lnd` is a running NI's.
    unsafe extern "C" fn link_event(lnd: *mut c_void, event: bindings::ro2ib_link_event) {
        let event = match event {
            bindings::ro2ib_link_event_RO2IB_LINK_UP => LinkEvent::Up,
            bindings::ro2ib_link_event_RO2IB_LINK_LEAVING => LinkEvent::Leaving,
            bindings::ro2ib_link_event_RO2IB_LINK_MOVED => LinkEvent::Moved,
            bindings::ro2ib_link_event_RO2IB_LINK_NO_CARRIER => LinkEvent::NoCarrier,
            bindings::ro2ib_link_event_RO2IB_LINK_MTU => LinkEvent::Mtu,
            _ => LinkEvent::Down,
        };
        // SAFETY: The NI is running during the call.
        L::link_event(unsafe { Self::borrow(lnd) }, event);
    }

    /// Returns [`Lnd::link_busy`].
    ///
    /// # Safety
    ///
    /// Called by the shim: `lnd` is a running NI's.
    unsafe extern "C" fn link_busy(lnd: *mut c_void) -> bool {
        // SAFETY: The NI is running during the call.
        L::link_busy(unsafe { Self::borrow(lnd) })
    }

    /// Returns [`Lnd::has_gid`].
    ///
    /// # Safety
    ///
    /// Called by the shim: `lnd` is a running NI's.
    unsafe extern "C" fn has_gid(lnd: *mut c_void) -> bool {
        // SAFETY: The NI is running during the call.
        L::has_gid(unsafe { Self::borrow(lnd) })
    }

    /// Returns a peer, or `ENOENT`.
    ///
    /// # Safety
    ///
    /// Called by the shim: `lnd` is a running NI's, `nid` and `refs` are valid for writes.
    unsafe extern "C" fn get_peer(
        lnd: *mut c_void,
        index: u32,
        nid: *mut u64,
        refs: *mut u32,
    ) -> c_int {
        // SAFETY: The NI is running during the call.
        let this = unsafe { Self::borrow(lnd) };
        let Some(info) = L::peer_info(this, index) else {
            return ENOENT.to_errno();
        };
        // SAFETY: Both are valid for writes.
        unsafe {
            *nid = info.nid;
            *refs = info.refs;
        }
        0
    }

    /// Prints the state of a peer.
    ///
    /// # Safety
    ///
    /// Called by the shim: `lnd` is a running NI's.
    unsafe extern "C" fn debug_peer(lnd: *mut c_void, nid: u64) -> c_int {
        // SAFETY: The NI is running during the call.
        let this = unsafe { Self::borrow(lnd) };
        L::debug_peer(this, nid).map_or_else(Error::to_errno, |()| 0)
    }

    /// Deletes a peer, or all.
    ///
    /// # Safety
    ///
    /// Called by the shim: `lnd` is a running NI's.
    unsafe extern "C" fn del_peer(lnd: *mut c_void, nid: u64) -> c_int {
        // SAFETY: The NI is running during the call.
        let this = unsafe { Self::borrow(lnd) };
        L::del_peer(this, nid_or_any(nid)).map_or_else(Error::to_errno, |()| 0)
    }

    /// Returns a connection, or `ENOENT`.
    ///
    /// # Safety
    ///
    /// Called by the shim: `lnd` is a running NI's, `nid` and `mtu` are valid for writes.
    unsafe extern "C" fn get_conn(
        lnd: *mut c_void,
        index: u32,
        nid: *mut u64,
        mtu: *mut u32,
    ) -> c_int {
        // SAFETY: The NI is running during the call.
        let this = unsafe { Self::borrow(lnd) };
        let Some(info) = L::conn_info(this, index) else {
            return ENOENT.to_errno();
        };
        // SAFETY: Both are valid for writes.
        unsafe {
            *nid = info.nid;
            *mtu = info.path_mtu;
        }
        0
    }

    /// Closes the connections of a peer, or all.
    ///
    /// # Safety
    ///
    /// Called by the shim: `lnd` is a running NI's.
    unsafe extern "C" fn close_conns(lnd: *mut c_void, nid: u64) -> c_int {
        // SAFETY: The NI is running during the call.
        let this = unsafe { Self::borrow(lnd) };
        L::close_conns(this, nid_or_any(nid)).map_or_else(Error::to_errno, |()| 0)
    }

    /// Handles a change of the settings.
    ///
    /// # Safety
    ///
    /// Called by the shim: `lnd` is a running NI's.
    unsafe extern "C" fn settings_changed(lnd: *mut c_void) {
        // SAFETY: The NI is running during the call.
        L::settings_changed(unsafe { Self::borrow(lnd) });
    }

    /// Returns [`Lnd::older_conns`].
    ///
    /// # Safety
    ///
    /// Called by the shim: `lnd` is a running NI's.
    unsafe extern "C" fn older_conns(lnd: *mut c_void) -> u32 {
        // SAFETY: The NI is running during the call.
        L::older_conns(unsafe { Self::borrow(lnd) })
    }
}

/// Registration of driver `L` with LNet; dropping it unregisters the driver. Must be dropped before any object that the
/// driver needs. (While an NI is up the module cannot be unloaded.)
///
/// # Invariants
///
/// The operations of `L` are registered, with `driver`, an `Arc<L::Driver>` made foreign; only one `Registration`
/// exists.
pub(crate) struct Registration<L: Lnd> {
    driver: NonNull<c_void>,
    _driver: PhantomData<Arc<L::Driver>>,
}

// SAFETY: It owns a reference on `L::Driver`, which is `Send` and `Sync`, and is used for nothing
// but to unregister.
unsafe impl<L: Lnd> Send for Registration<L> {}

// SAFETY: A shared `Registration` gives access to nothing.
unsafe impl<L: Lnd> Sync for Registration<L> {}

impl<L: Lnd> Registration<L> {
    /// Registers the driver. `EBUSY`: LNet has a driver for this network type already.
    pub(crate) fn new(driver: Arc<L::Driver>) -> Result<Self> {
        let driver = driver.into_foreign();
        // SAFETY: `OPS` is static, its functions do what the header asks, and `driver` is kept
        // until the driver is unregistered.
        let rc = unsafe { bindings::ro2ib_shim_register(Ops::<L>::OPS, driver) };
        if let Err(e) = to_result(rc) {
            // SAFETY: It comes from `into_foreign` above, and the shim has not kept it.
            drop(unsafe { <Arc<L::Driver> as ForeignOwnable>::from_foreign(driver) });
            return Err(e);
        }
        // INVARIANT: The driver has just been registered; the shim refuses a second one.
        Ok(Self {
            // SAFETY: `into_foreign` never returns NULL.
            driver: unsafe { NonNull::new_unchecked(driver) },
            _driver: PhantomData,
        })
    }
}

impl<L: Lnd> Drop for Registration<L> {
    fn drop(&mut self) {
        // SAFETY: By the type invariant the driver is registered. No NI is up: each holds a
        // reference on the module, and this runs when the module is being unloaded, or when its
        // initialisation failed.
        unsafe { bindings::ro2ib_shim_unregister() };
        // SAFETY: By the type invariant it is a foreign `Arc<L::Driver>`; the shim has forgotten
        // it.
        drop(unsafe { <Arc<L::Driver> as ForeignOwnable>::from_foreign(self.driver.as_ptr()) });
    }
}
