// SPDX-License-Identifier: GPL-2.0

//! Addresses that NIs listen on, the RDMA devices behind them, and the check of connection requests. NIs with the same
//! address (networks `o2ib` and `o2ib1` on one interface) share a listener, because a port can be bound only once.
//!
//! Requests are checked in the CM's workqueue under the listener's handler mutex, so that all other requests wait.
//! Therefore [`Iface`] only checks the request ([`crate::proto::handshake`]) and creates a small object. The
//! connection's control worker creates queue pair and buffers, and accepts the request, or rejects it if that fails.
//!
//! Context: process.
//!
//! # Locking
//!
//! A device that hangs may answer a command only after a minute. [`Iface::bound`] is held over commands of the device
//! and of the CM, so only NIs with this address wait for it. All devices share [`Ifaces::list`]: it is taken inside
//! [`Iface::bound`] and in handlers of the CM, and no code under it waits for a device, the CM, LNet or memory.
//! [`Iface::shares`] is taken inside [`Ifaces::list`].
//!
//! # Invariants
//!
//! An NI has the device of its address (`bind_device`) only if it is one of the users of its [`Iface`] (`listens`),
//! which change while [`Iface::bound`] is held. That is `None` if there are no users: a listener refers to its
//! [`Iface`], so the last NI that leaves drops the listener.

use kernel::{
    prelude::*,
    sync::{
        aref::ARef,
        Arc,
        Mutex,
        SpinLock, //
    }, //
};

use super::{
    conn::Conn,
    hca::{
        self,
        Hca, //
    },
    log,
    ni::{
        Ni,
        O2ib, //
    },
    stats::{
        close_log::CloseStats,
        conn_latency, //
    },
    timestamp::Timestamp,
    work_queues::{
        DeviceShares,
        WorkQueues, //
    }, //
};
use crate::{
    lnet::{
        params,
        Lnd,
        StartError, //
    },
    policy::{
        link_state::{
            AddrLocation,
            SendPolicy, //
        },
        request_rate::{
            timer_units,
            RateLimit,
            Rates,
            SourceBucket,
            PARTS,
            REFUSALS,
            TAKEN, //
        }, //
    },
    proto::{
        cause::Cause,
        handshake::{
            check_ni,
            device_ready,
            parse_connreq,
            CmSource, //
        },
        nid::Nid,
        reject::RejectCause as Why, //
    },
    rdma::{
        atomic::{
            Acquire,
            Atomic,
            Relaxed,
            Release, //
        },
        cm_event::Addr,
        debugfs::Dir,
        device::Device,
        listen::{
            device_of,
            ConnRequest,
            ListenHandler,
            Listener, //
        },
        random,
        work::NofsScope, //
    }, //
};

/// NI as LNet knows it.
type LnetNi = <O2ib as Lnd>::Ni;

/// State of the driver that all NIs share, as long as the module: the NIs, and objects that they need.
#[pin_data]
pub(crate) struct Ifaces {
    pub(super) workers: Arc<WorkQueues>,
    /// Folder `/sys/kernel/debug/ro2iblnd`.
    pub(super) debugfs: Dir,
    /// Log of rejected requests for none of the NIs.
    pub(super) strangers: Arc<CloseStats>,
    /// NIs, from their start to their stop. Not taken on the path of messages.
    #[pin]
    list: Mutex<KVec<Arc<LnetNi>>>,
}

/// Address that NIs listen on, independent of the device that has it, and handler of the requests that come there.
#[pin_data]
pub(crate) struct Iface {
    /// Device that has the address, while an NI uses it. Held over commands of that device.
    #[pin]
    bound: Mutex<Option<BoundAddr>>,
    /// Device, and objects that all addresses on it share.
    #[pin]
    shares: Mutex<Option<(ARef<Device>, Arc<DeviceShares>)>>,
    /// Set while the device is being removed, or if it cannot be used any more.
    removed: Atomic<bool>,
    /// All NIs, with the users of this address. No cycle remains: an NI that stops leaves the list.
    ifaces: Arc<Ifaces>,
    #[pin]
    refusals: SpinLock<RateLimiter>,
    /// Rate limit of accepted requests.
    #[pin]
    taken: SpinLock<RateLimiter>,
}

/// Address on the device that has it.
struct BoundAddr {
    hca: Arc<Hca>,
    listener: Listener<Iface>,
}

impl Ifaces {
    /// Creates an empty list, and the work queues. May sleep.
    pub(crate) fn new() -> Result<Arc<Self>> {
        let workers = WorkQueues::new()?;
        let strangers = CloseStats::new(None)?;
        Arc::pin_init(
            pin_init!(Self {
                workers,
                debugfs: Dir::new(c"ro2iblnd"),
                strangers,
                list <- kernel::new_mutex!(KVec::new(), "Ifaces::list"),
            }),
            GFP_KERNEL,
        )
    }

    /// Returns the address of `ni`, which it shares with other NIs. LNet starts one NI at a time. May sleep.
    pub(crate) fn iface(self: &Arc<Self>, ni: &Ni) -> Result<Arc<Iface>> {
        let new = Iface::new(self.clone())?;
        let addr = |ni: &Ni| (ni.nid.addr(), ni.service, ni.net.as_ptr());
        let list = self.list.lock();
        let there = list.iter().find(|other| addr(&other.ni) == addr(ni));
        Ok(there.map_or(new, |other| other.iface.clone()))
    }
}

type RateLimiter = RateLimit<KVec<SourceBucket>>;

/// Creates an unused rate limit. May sleep.
fn rate_limiter(rates: Rates) -> Result<RateLimiter> {
    let buckets = KVec::from_elem(SourceBucket::default(), PARTS, GFP_KERNEL)?;
    Ok(RateLimit::new(rates, random::u64(), buckets))
}

/// Returns the time on the clock of the rate limits.
fn now_ms() -> u64 {
    Timestamp::now().ns() / 1_000_000
}

impl Iface {
    /// Creates an address that is on no device yet. May sleep.
    fn new(ifaces: Arc<Ifaces>) -> Result<Arc<Self>> {
        let refusals = rate_limiter(REFUSALS)?;
        let taken = rate_limiter(TAKEN)?;
        Arc::pin_init(
            pin_init!(Self {
                bound <- kernel::new_mutex!(None, "Iface::bound"),
                shares <- kernel::new_mutex!(None, "Iface::shares"),
                removed: Atomic::new(false),
                ifaces,
                refusals <- kernel::new_spinlock!(refusals, "Iface::refusals"),
                taken <- kernel::new_spinlock!(taken, "Iface::taken"),
            }),
            GFP_KERNEL,
        )
    }

    /// Lists an NI that starts, and attaches it. May sleep.
    ///
    /// # Errors
    ///
    /// The reason for LNet if the NI does not start.
    pub(crate) fn start(self: &Arc<Self>, ni: &Arc<LnetNi>) -> Result<(), StartError> {
        let listed = self.ifaces.list.lock().push(ni.clone(), GFP_ATOMIC);
        listed.map_err(|e| StartError::no_memory(e.into()))?;
        self.attach(ni).inspect_err(|_| self.stop(ni))
    }

    /// Takes the device from an NI that stops, and takes the NI off the list. May sleep.
    pub(crate) fn stop(&self, ni: &Arc<LnetNi>) {
        self.detach(ni);
        let mut list = self.ifaces.list.lock();
        list.retain(|other| !Arc::ptr_eq(other, ni));
    }

    /// Gives `user` the device of its address, and starts to listen on the address. Waits for commands of that device.
    /// May sleep.
    ///
    /// # Errors
    ///
    /// The reason for LNet if the NI does not start.
    pub(crate) fn attach(self: &Arc<Self>, user: &Arc<LnetNi>) -> Result<(), StartError> {
        let mut there = self.bound.lock();
        user.listens.store(true, Relaxed);
        let entered = match &*there {
            Some(_) if self.removed.load(Acquire) => Err(StartError::because(
                "the RDMA device is being removed",
            )(ENODEV)),
            Some(bound) => user.bind_device(&bound.hca),
            None => self
                .listen(&user.ni, None)
                .map(|bound| *there = Some(bound))
                // There may be users that could not follow their address.
                .inspect_err(|_| self.set_removed()),
        };
        match entered {
            Ok(()) => user.entered(),
            Err(_) => self.leave(user, &mut there),
        }
        entered
    }

    /// Binds the address of `ni` on the device that has it now, gives that device to the users, and starts to listen:
    /// last, so that a request finds its NI. `new` is used if the address is still on its device. Called under
    /// [`Iface::bound`], without a listener, because the port can be bound only once.
    fn listen(self: &Arc<Self>, ni: &Ni, new: Option<Arc<Hca>>) -> Result<BoundAddr, StartError> {
        // Only a listener sets this outside the lock, and the drop of the previous one has waited for its handlers.
        self.removed.store(false, Release);
        let addr = Addr::v4(ni.nid.addr(), ni.service);
        let listener = Listener::bind(ni.net.as_rdma(), &addr, self.clone());
        let listener = listener.map_err(cannot_listen)?;
        let port = listener.port();
        let device = listener
            .device()
            .ok_or_else(|| StartError::because("the interface has no RDMA device")(ENODEV))?;
        let hca = match new.filter(|hca| hca.is_at(&device, port)) {
            Some(hca) => hca,
            None => self.make_hca(device, port)?,
        };
        for user in self.users() {
            user.bind_device(&hca)?;
        }
        listener.start().map_err(cannot_listen)?;
        Ok(BoundAddr { hca, listener })
    }

    /// Creates the objects that connections of this address need on `device`, except those that other addresses on it
    /// have created. From here on this address has these, so that NIs that get the same device at the same time find
    /// them.
    fn make_hca(&self, device: ARef<Device>, port: u32) -> Result<Arc<Hca>, StartError> {
        let mut new = None;
        let (shares, _old) = loop {
            {
                let list = self.ifaces.list.lock();
                let there = list.iter().find_map(|ni| {
                    let shares = ni.iface.shares.lock();
                    let same = shares.as_ref().filter(|(of, _)| of.same(&device));
                    same.map(|(_, shares)| shares.clone())
                });
                if let Some(shares) = there.or_else(|| new.take()) {
                    let now = (device.clone(), shares.clone());
                    break (shares, self.shares.lock().replace(now));
                }
            }
            // Without the mutex, which the checks of all NIs take: memory may be there only when one of them has opened
            // its link.
            let workers = &self.ifaces.workers;
            let shares = hca::regions(&device)
                .and_then(|regions| workers.for_device(regions, device.is_iwarp(port)));
            new = Some(shares.map_err(StartError::no_memory)?);
        };
        Hca::new(device, port, shares)
    }

    /// Takes the device from `user`, if it has one. When the last NI of an address leaves, its listener is closed.
    /// Waits for requests that are being checked, and for commands of the device. May sleep.
    pub(crate) fn detach(&self, user: &Arc<LnetNi>) {
        let mut there = self.bound.lock();
        if user.listens.load(Relaxed) {
            self.leave(user, &mut there);
        }
    }

    /// Takes the device from `user`, and closes the listener if there is no other user. Called under [`Iface::bound`].
    fn leave(&self, user: &Arc<LnetNi>, there: &mut Option<BoundAddr>) {
        user.listens.store(false, Relaxed);
        user.unbind_device();
        // An NI that is about to enter finds no device then, and opens the address again.
        if self.users().next().is_none() {
            let shares = self.shares.lock().take();
            drop((there.take(), shares));
        }
    }

    /// Finds where the address of `user` is now. May sleep.
    pub(crate) fn locate(user: &LnetNi) -> AddrLocation {
        let ni = &user.ni;
        let Ok(hca) = ni.hca() else {
            return AddrLocation::Nowhere;
        };
        match device_of(ni.net.as_rdma(), &Addr::v4(ni.nid.addr(), 0)) {
            Ok((device, port)) if hca.is_at(&device, port) => AddrLocation::Here,
            Ok(_) => AddrLocation::Elsewhere,
            Err(_) => AddrLocation::Nowhere,
        }
    }

    /// Follows the address of `user`, which is on another device now, with all NIs that have this address. The objects
    /// on the new device, which may take long, are created while the old listener exists. If the new device is
    /// unusable, the NIs have none, and search for one as after a removal. May sleep.
    pub(crate) fn follow_address(self: &Arc<Self>, user: &Arc<LnetNi>) {
        let mut there = self.bound.lock();
        let ni = &user.ni;
        let Ok((device, port)) = device_of(ni.net.as_rdma(), &Addr::v4(ni.nid.addr(), 0)) else {
            return;
        };
        // Another NI with this address may have been here first.
        let Some(BoundAddr { hca: old, listener }) =
            there.take_if(|bound| !bound.hca.is_at(&device, port))
        else {
            return;
        };
        let new = self.make_hca(device, port);
        // Peers that send a request from here until the end find no listener.
        drop(listener);
        match new.and_then(|new| self.listen(ni, Some(new))) {
            Ok(bound) => {
                let new = &there.insert(bound).hca;
                self.users().for_each(|user| user.moved(&old, new));
            }
            Err(e) => {
                log::cannot_follow(ni.nid, &e.what, e.error);
                self.set_removed();
            }
        }
    }

    /// Returns whether the device of `user` is being removed or is unusable, so that `user` has to leave.
    pub(crate) fn is_removed(&self, user: &LnetNi) -> bool {
        user.listens.load(Relaxed) && self.removed.load(Acquire)
    }

    /// Returns whether another NI of the net of `ni` can reach peers, on another device than `hca` or on another port
    /// of it: then LNet can use that NI. NIs on the same port do not count, because they lose the link together, even
    /// if not at the same moment. NIs of another net do not count either, because they may lead to other nodes. `hca`
    /// is `None` if `ni` has no device.
    pub(crate) fn another_open(&self, ni: &Ni, hca: Option<&Hca>) -> bool {
        let same = |other: &Hca| hca.is_some_and(|hca| other.is_at(&hca.device, hca.port));
        let list = self.ifaces.list.lock();
        let mut others = list.iter().map(|other| &other.ni);
        others.any(|other| {
            other.nid.net() == ni.nid.net()
                && other.passage() == SendPolicy::Open
                && other.on_hca(|other| !same(other)).unwrap_or(false)
        })
    }

    /// Yields the users, without the mutex of the list. The caller holds [`Iface::bound`], so they stay the same. Other
    /// NIs may start or stop meanwhile.
    fn users(&self) -> impl Iterator<Item = Arc<LnetNi>> + '_ {
        (0..).map_while(|at| self.users_in(&self.ifaces.list.lock()).nth(at).cloned())
    }

    /// Yields the users in the list of all NIs.
    fn users_in<'a>(&'a self, list: &'a [Arc<LnetNi>]) -> impl Iterator<Item = &'a Arc<LnetNi>> {
        let here = |ni: &&Arc<LnetNi>| core::ptr::eq(&*ni.iface, self) && ni.listens.load(Relaxed);
        list.iter().filter(here)
    }

    /// Makes the users leave their device, and an NI that is about to use it.
    fn set_removed(&self) {
        self.removed.store(true, Release);
        self.check_devices();
    }

    /// Makes the users check their device, because the device of the listener is being removed, or its address may be
    /// on another device. May run in a handler of the listener, so it must not wait for a device.
    fn check_devices(&self) {
        let list = self.ifaces.list.lock();
        self.users_in(&list).for_each(|user| user.doubt_address());
    }

    /// Checks a request that came from `from`. Returns the connection object for an accepted request. `Err(None)`: no
    /// answer and no record. Not over TCP. Sets the peer and the NI as soon as they are known.
    fn validate(
        &self,
        req: &ConnRequest<'_>,
        from: &CmSource,
        (src, ni): (&mut Option<Nid>, &mut Option<Arc<Ni>>),
    ) -> Result<Arc<Conn>, Option<Why>> {
        let privileged = params::require_privileged_port();
        let asked = parse_connreq(req.private_data(), from, privileged)?;
        *src = Some(asked.src);
        let (user, ready) = {
            let list = self.ifaces.list.lock();
            let asked_for = || self.users_in(&list).filter(|user| user.ni.nid == asked.dst);
            // An NI that LNet deletes may be there still, beside a new one with its NID.
            let user = asked_for().find(|user| user.ni.is_listed()).cloned();
            // LNet 2.15 lists an NI after the others of its net have started.
            let is_unlisted = user.is_none() && asked_for().next().is_some();
            let active = self.users_in(&list).map(|user| user.ni.lnet.is_active());
            (user, !is_unlisted && device_ready(active))
        };
        *ni = user.as_ref().map(|user| user.ni.clone());
        let view = ni.as_ref().map(|ni| ni.view());
        let known = check_ni(&asked, view.as_ref(), ready, from)?;
        let Some(peers) = user.as_ref().map(|user| &user.peers) else {
            return Err(Why::NoSuchNi(asked.dst).into());
        };
        if peers.ni.way(|way| !way.has_interface()) {
            // When the link is up again, this node connects.
            if req.is_over_tcp() {
                return Err(Why::Race.into());
            }
            // An answer might find no route any more.
            let now_ms = peers.ni.now_ms();
            peers.ni.way(|way| way.asked(now_ms));
            return Err(None);
        }
        if !peers.ni.lnet.allows(asked.src.raw()) {
            return Err(Why::Denied.into());
        }
        if peers.ni.retained_rx.are_too_many(asked.src) {
            return Err(Why::TooMany.into());
        }
        let units = timer_units(req.packet_life_time());
        let ration = || match req.is_over_tcp() {
            // The CM keeps no timer for a closed connection.
            true => Ok(()),
            false => self.taken.lock().take(from.payer(), now_ms(), units, false),
        };
        Ok(peers.admit(&asked, known, ration)?)
    }
}

impl ListenHandler for Iface {
    fn device_removal(&self) {
        // The listener gets the event before its connections: no message that these give up requests another connection
        // on this device.
        for user in self.users_in(&self.ifaces.list.lock()) {
            let now_ms = user.ni.now_ms();
            user.ni.way(|way| way.detached(now_ms));
        }
        // The listener cannot be dropped in its own handler.
        self.set_removed();
    }

    fn addr_change(&self) {
        self.check_devices();
    }

    fn connect_request(&self, req: &mut ConnRequest<'_>) {
        let _nofs = NofsScope::enter();
        let addr = req.dst_addr();
        let from = CmSource {
            addr: addr.and_then(|a| a.ip_v4()),
            port: addr.map_or(u16::MAX, |a| a.port()),
            gid: req.roce_gid(),
        };
        let (mut src, mut ni) = (None, None);
        let result = self.validate(req, &from, (&mut src, &mut ni));
        let view = ni.as_ref().map(|ni| ni.view());
        match result {
            Ok(conn) => {
                let taken = req
                    .take(conn.clone())
                    .and_then(|id| Ok(Arc::new(id, GFP_KERNEL)?));
                match taken {
                    Ok(id) => conn.requested(id, req.qpn()),
                    Err(e) => {
                        log::cannot(conn.nid(), "take a connection request", e);
                        conn.end(Cause::NoResources);
                        if req.is_over_tcp() {
                            let refusal = Why::NoResources(e.to_errno());
                            let _ = req.reject(&refusal.reject(view.as_ref()).encode());
                        }
                    }
                }
            }
            Err(None) => {}
            Err(Some(refusal)) => {
                let stats = ni
                    .as_ref()
                    .map_or(&self.ifaces.strangers, |ni| &ni.close_stats);
                stats.refused(src, &refusal);
                conn_latency::refused(ni.as_ref().map(|ni| ni.nid), src, &refusal);
                if refusal != Why::Race {
                    log::refused(src, &refusal);
                }
                // Beyond a rate limit a request is dropped. The requester takes that for a lost packet and repeats
                // the request after seconds. Over TCP the provider would answer.
                let is_told = !matches!(refusal, Why::TooOften | Why::TooOftenInAll);
                let may_answer = || {
                    let mut refusals = self.refusals.lock();
                    let counted = refusals.take(from.payer(), now_ms(), 1, refusal.invites());
                    counted.is_ok()
                };
                if is_told && (req.is_over_tcp() || may_answer()) && req.can_reject() {
                    let _ = req.reject(&refusal.reject(view.as_ref()).encode());
                }
            }
        }
    }
}

fn cannot_listen(e: Error) -> StartError {
    let why = match e == ENODEV {
        true => "no RDMA device has this address, see \"rdma link\"",
        false => "cannot listen (is the port in use? see the parameter \"service\")",
    };
    StartError::because(why)(e)
}
