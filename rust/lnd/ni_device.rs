// SPDX-License-Identifier: GPL-2.0

//! NI with its RDMA device and its link: the object that LNet starts and stops. Event handlers record what happened and
//! queue the work item that checks the device and the link, which also runs every second while the link is down.
//! [`crate::policy::link_state`] decides what the state of the link means for connections and messages, and when to
//! look for the address. Documentation/architecture.md has the steps of a failover and of the removal of a device.
//!
//! The CM reports a removal with an event on every id, and waits until all ids are destroyed. The RDMA core then waits
//! until the device has no user. So the NI releases everything: listener, connections, protection domain.
//!
//! A second work item queries the port. A device that hangs does not answer, and the address of the NI may move away
//! from that device meanwhile.
//!
//! Changed settings (the parameters `access`, `ni_tune` and `probe`) are read from [`crate::lnet::NiRef`] each time. A
//! third work item updates state that was derived from earlier values.
//!
//! Context: process without locks, except for the event handler.

use kernel::{
    prelude::*,
    sync::{
        Arc,
        ArcBorrow,
        Mutex, //
    },
    workqueue::DelayedWork, //
};

use super::{
    conn::Conn,
    debugfs::NiFiles,
    hca::Hca,
    listeners::Iface,
    log,
    ni::Ni,
    peer::Peers, //
};
use crate::{
    lnet::{
        uevent,
        Fatal,
        LinkEvent,
        StartError, //
    },
    policy::link_state::{
        self,
        AddrLocation,
        Interface,
        LinkAction,
        LinkState,
        SendPolicy,
        LEAVE_LOOK_MS, //
    },
    proto::cause::Cause,
    rdma::{
        atomic::{
            Acquire,
            Atomic,
            Full,
            Relaxed, //
        },
        cm_event::Addr,
        device::{
            DeviceEvent,
            DeviceEvents,
            DeviceName,
            EventRegistration,
            PortState, //
        },
        listen,
        work, //
    }, //
};

/// Id of the delayed work that checks the device.
const DEVICE: u64 = 1;

/// Id of the delayed work that handles all peers.
const PEERS: u64 = 2;

/// Id of the delayed work that queries the port.
const PORT: u64 = 3;

/// Milliseconds between two searches for a device.
const LOOK_MS: u32 = 1000;

/// NI with its device.
#[pin_data]
pub(crate) struct NiDevice {
    pub(crate) ni: Arc<Ni>,
    pub(crate) peers: Arc<Peers>,
    /// Its address.
    pub(super) iface: Arc<Iface>,
    /// The NI is a user of `iface`: it has the device, or is about to get it, and listens there. Requests for other NIs
    /// are rejected. Changes while the mutex of the address is held.
    pub(super) listens: Atomic<bool>,
    /// Registration for events of the device, while the NI has one.
    #[pin]
    events: Mutex<Option<Pin<KBox<EventRegistration<NiDevice>>>>>,
    /// The NI has its device, so events queue the work item.
    watched: Atomic<bool>,
    /// The GIDs of the device have changed since the last check.
    gids_changed: Atomic<bool>,
    #[pin]
    look: DelayedWork<NiDevice, DEVICE>,
    #[pin]
    query: DelayedWork<NiDevice, PORT>,
    /// Work for all peers, for callers that hold locks: there may be thousands of peers, and the work may call LNet.
    #[pin]
    all_peers: DelayedWork<NiDevice, PEERS>,
    /// Whether the administrator has changed settings since the last run.
    has_new_settings: Atomic<bool>,
    /// Files in debugfs.
    #[pin]
    files: Mutex<Option<NiFiles>>,
}

work::delayed_items! { NiDevice, |ni| &ni.ni.workers.control,
    DEVICE in look => run_device,
    PEERS in all_peers => run_peers,
    PORT in query => run_port,
}

impl NiDevice {
    /// Creates the object; the NI has no device yet. May sleep.
    pub(crate) fn new(ni: Arc<Ni>, iface: Arc<Iface>) -> Result<Arc<Self>> {
        let peers = Peers::new(ni.clone())?;
        Arc::pin_init(
            pin_init!(Self {
                ni,
                peers,
                iface,
                listens: Atomic::new(false),
                events <- kernel::new_mutex!(None, "NiDevice::events"),
                watched: Atomic::new(false),
                gids_changed: Atomic::new(false),
                look <- kernel::new_delayed_work!("NiDevice::look"),
                query <- kernel::new_delayed_work!("NiDevice::query"),
                all_peers <- kernel::new_delayed_work!("NiDevice::all_peers"),
                has_new_settings: Atomic::new(false),
                files <- kernel::new_mutex!(None, "NiDevice::files"),
            }),
            GFP_KERNEL,
        )
    }

    /// Sets the debugfs files, and removes the previous ones. May sleep.
    pub(crate) fn set_files(&self, files: Option<NiFiles>) {
        let old = core::mem::replace(&mut *self.files.lock(), files);
        drop(old);
    }

    /// Sets the device of the NI. May sleep.
    ///
    /// # Errors
    ///
    /// The reason for LNet if the NI does not start. The NI then keeps its previous device, without events of it.
    pub(super) fn bind_device(self: &Arc<Self>, hca: &Arc<Hca>) -> Result<(), StartError> {
        let old = self.events.lock().take();
        // Outside the lock, because dropping waits for handlers; and before the first event of the new device.
        drop(old);
        let _ = self.ni.broken.xchg(false, Full);
        let now_ms = self.ni.now_ms();
        // With a bond, the other port may be in use.
        let active = hca.active.load(Relaxed) || self.ni.lnet.is_bonded();
        self.ni.way(|way| way.bound(now_ms, active));
        let events = EventRegistration::new(hca.device.clone(), self.clone())
            .map_err(StartError::because("cannot watch the RDMA device"))?;
        *self.events.lock() = Some(events);
        self.ni.fit(hca);
        self.ni.lnet.set_dma_device(Some(&hca.device));
        self.ni.set_hca(Some(hca.clone()));
        Ok(())
    }

    /// Starts the work item of the device: the NI is listed, and nothing can fail any more. Any context.
    pub(super) fn entered(self: &Arc<Self>) {
        self.ni.way(|way| way.attached());
        // The check that follows sees earlier events; a later event queues another check.
        let _ = self.watched.xchg(true, Full);
        self.run_in::<DEVICE>(0);
    }

    /// Removes the device of the NI. May sleep.
    pub(super) fn unbind_device(self: &Arc<Self>) {
        let _ = self.watched.xchg(false, Full);
        let events = self.events.lock().take();
        // Outside the lock: dropping waits for handlers.
        drop(events);
        self.ni.lnet.set_dma_device(None);
        // Before the NI loses the device: an attempt that fails without a device then finds the link down.
        let now_ms = self.ni.now_ms();
        self.ni.way(|way| way.detached(now_ms));
        self.ni.set_hca(None);
    }

    /// Closes the connections on `old`, the previous device of the NI: they are made again on `new`. May sleep.
    pub(super) fn moved(self: &Arc<Self>, old: &Hca, new: &Hca) {
        let (from, to) = (old.device.name(), new.device.name());
        log::moved(self.ni.nid, from.as_str(), to.as_str());
        self.send_uevent(uevent::Device::Moved, Some(new));
        // The old device may be about to be removed.
        self.ni.way(|way| way.attached());
        self.peers.for_each_conn(|conn| conn.moved());
        // The address may be about to move again: the check allows attempts to start.
        self.run_in::<DEVICE>(0);
    }

    /// Queues a check because the address of the NI may be on another device, or its device is being removed. Any
    /// context except interrupts.
    pub(super) fn doubt_address(self: &Arc<Self>) {
        self.ni.way(|way| way.address.recheck(self.ni.now_ms()));
        self.check_soon();
    }

    /// Releases the device because it is being removed, and closes its connections. May sleep.
    fn detach(self: &Arc<Self>) {
        let hca = self.ni.hca().ok();
        self.iface.detach(self);
        log::detached(self.ni.nid);
        self.send_uevent(uevent::Device::Gone, hca.as_deref());
        // NIs on the same device lose it, too.
        let _ = self.apply_link_state(hca.as_deref());
        drop(hca);
        self.end_connections();
        self.ni.lnet.set_fatal(Fatal::Told);
        self.run_in::<DEVICE>(LOOK_MS);
    }

    /// Searches for a device that has the address of the NI.
    fn search(self: &Arc<Self>) {
        let Err(e) = self.iface.attach(self) else {
            log::attached(self.ni.nid);
            return self.send_uevent(uevent::Device::Back, self.ni.hca().ok().as_deref());
        };
        if self.ni.is_stopping() {
            return;
        }
        // The removal of a device is logged elsewhere, and each other error once.
        if ![ENODEV, EADDRNOTAVAIL].contains(&e.error) {
            let errno = e.error.to_errno();
            let replace = |way: &mut LinkState| {
                core::mem::replace(&mut way.device_state.unusable_logged, errno)
            };
            if self.ni.way(replace) != errno {
                log::cannot_use(self.ni.nid, &e.what, e.error);
            }
        }
        // A check that started while the device was still there may have set another value last.
        self.ni.lnet.set_fatal(Fatal::Told);
        // There may be another NI now, over which waiting messages can go.
        let _ = self.apply_link_state(None);
        self.run_in::<DEVICE>(LOOK_MS);
    }

    /// Checks the device, the link as of the last query of the port, and the address. Returns the milliseconds until
    /// the next check, if one is due.
    fn check(self: &Arc<Self>, hca: Arc<Hca>) -> Option<u32> {
        let ni = &self.ni;
        let unusable = self.is_unusable(&hca);
        ni.lnet
            .set_fatal(match (unusable, ni.way(|way| way.is_port_active())) {
                (true, _) => Fatal::Told,
                (false, false) => Fatal::Port,
                (false, true) => Fatal::No,
            });
        let way = self.apply_link_state(Some(&hca));
        drop(hca);
        self.run_in::<PORT>(0);
        [way, self.follow_address()].into_iter().flatten().min()
    }

    /// Queries the port, not taken from the events, which may overtake each other; and queried at each check, because a
    /// port may report that it is up before it is. Waits for the device.
    fn query_port(self: &Arc<Self>, hca: &Arc<Hca>) {
        let ni = &self.ni;
        let port = hca.device.port(hca.port);
        if !ni.on_hca(|now| core::ptr::eq(now, &**hca)).unwrap_or(false) {
            // The NI has left the device meanwhile, and a check of the next one follows.
            return;
        }
        hca.update_port(port);
        // A port that is down may report any LID and MTU.
        if port.active {
            self.end_outdated(port);
        }
        ni.fit(hca);
        let active = port.active || ni.lnet.is_bonded();
        if ni.way(|way| way.port(active)) {
            self.run_in::<DEVICE>(0);
        }
    }

    /// Returns whether LNet cannot use the device although its port may be active, and logs each change.
    fn is_unusable(&self, hca: &Hca) -> bool {
        let ni = &self.ni;
        let broken = ni.is_broken();
        let logged = ni.way(|way| core::mem::replace(&mut way.device_state.broken_logged, broken));
        if logged != broken {
            let what = if broken {
                log::broken(ni.nid);
                uevent::Device::Fatal
            } else {
                log::healed(ni.nid);
                uevent::Device::Back
            };
            self.send_uevent(what, Some(hca));
        }
        if broken {
            return true;
        }
        // Only after an attempt timed out, and only a software device: hardware is not known to fail this way.
        let unheard = ni.way(|way| core::mem::take(&mut way.device_state.unheard));
        if unheard && hca.device.is_software() {
            let addr = Addr::v4(ni.nid.addr(), 0);
            let mute = listen::gsi_qp_failed(ni.net.as_rdma(), &addr, &hca.device);
            if mute && !ni.way(|way| core::mem::replace(&mut way.device_state.mute, true)) {
                log::gsi_dead(ni.nid, hca.device.name().as_str());
                self.send_uevent(uevent::Device::Mute, Some(hca));
            }
        }
        ni.way(|way| way.device_state.mute || way.device_state.shut)
    }

    fn send_uevent(&self, what: uevent::Device, hca: Option<&Hca>) {
        let name = hca.map(|hca| hca.device.name());
        uevent::device(what, &self.ni.nid, name.as_ref().map(DeviceName::as_str));
    }

    /// Queues a check of the device, if the NI has one. Any context.
    pub(super) fn check_soon(self: &Arc<Self>) {
        if self.watched.load(Acquire) {
            self.run_in::<DEVICE>(0);
        }
    }

    /// Queues the delayed work for `ms` milliseconds from now, unless the NI stops. Any context.
    fn run_in<const ID: u64>(self: &Arc<Self>, ms: u32)
    where
        Self: work::DelayedItem<ID>,
    {
        work::mod_delayed::<Self, ID>(self.clone(), ms);
        // Either the stop of the NI finds the work armed, or this check sees the stop: LNet would wait for the work.
        if self.ni.is_stopping() {
            let _ = work::cancel::<Self, ID>(self);
        }
    }

    /// Cancels the delayed works, and waits for a run that has started.
    pub(crate) fn stop_looking(self: &Arc<Self>) {
        let _ = work::cancel_sync::<Self, PORT>(self);
        let _ = work::cancel_sync::<Self, DEVICE>(self);
        let _ = work::cancel_sync::<Self, PEERS>(self);
    }

    /// Records changed settings and queues the work for all peers. Any context.
    pub(crate) fn settings_changed(self: &Arc<Self>) {
        let _ = self.has_new_settings.xchg(true, Full);
        self.run_in::<PEERS>(0);
    }

    /// Handles a link of the interface that changed or is about to change.
    pub(crate) fn link_changed(self: &Arc<Self>, event: LinkEvent) {
        let gids = self.ni.on_hca(Hca::has_gids).unwrap_or(false);
        let now_ms = self.ni.now_ms();
        self.ni.way(|way| match event {
            LinkEvent::Up => {
                way.interface(Interface::Up);
                if !gids {
                    // The address may be on another interface now, and no event of a GID tells.
                    way.address.recheck(now_ms);
                }
            }
            LinkEvent::NoCarrier => way.interface(Interface::NoCarrier),
            LinkEvent::Down => way.interface(Interface::Down),
            LinkEvent::Leaving => way.leaving(now_ms),
            LinkEvent::Moved => {
                let attached = self.watched.load(Acquire);
                let take_change = || self.gids_changed.xchg(false, Full);
                way.address.moves(now_ms, gids, attached, take_change);
            }
            LinkEvent::Mtu => {}
        });
        if event == LinkEvent::Leaving {
            self.run_in::<PEERS>(0);
        }
        self.check_soon();
    }

    /// Looks for the address of the NI if there is a reason to, and follows it to another device. Returns the
    /// milliseconds until the next look, if one is due.
    fn follow_address(self: &Arc<Self>) -> Option<u32> {
        let ni = &self.ni;
        let now_ms = ni.now_ms();
        // Under the lock: a move that comes later waits for its own change of the GIDs.
        let take_change = || self.gids_changed.xchg(false, Full);
        let wait_ms = ni.way(|way| way.address.wait_ms(now_ms, take_change))?;
        if wait_ms > 0 {
            return Some(wait_ms);
        }
        let found = Iface::locate(self);
        let step = ni.way(|way| way.address.poll(now_ms, found));
        let asks = step.rescan && ni.way(|way| way.has_interface());
        if let (true, Ok(hca)) = (asks, ni.hca()) {
            if hca.has_gids() {
                // The interface has the address, and the device has not.
                log::addr_moved(ni.nid, hca.device.name().as_str());
                hca.device.rescan_gids();
            }
        }
        if found == AddrLocation::Elsewhere {
            self.iface.follow_address(self);
        }
        // On the same device the GID of the address may be new: connections with the old GID are dead.
        self.peers.for_each_conn(|conn| conn.moved());
        // The next check handles later events.
        let pending = self.gids_changed.load(Acquire);
        if !step.hold && ni.way(|way| way.address.settle(now_ms, pending)) {
            self.peers.table.for_each(|peer| peer.way_opened());
        }
        // Connections that waited for a route send their DREQ now, or never will.
        self.peers.for_each_lingering(Conn::look_for_route);
        step.again_ms
    }

    /// Handles the link state. Returns the milliseconds until the next check if the link is down.
    fn apply_link_state(self: &Arc<Self>, hca: Option<&Hca>) -> Option<u32> {
        let other = self.iface.another_open(&self.ni, hca);
        let now_ms = self.ni.now_ms();
        let hold_ms = self.hold_ms(hca);
        let (todo, open) = self
            .ni
            .way(|way| (way.look(now_ms, other, hold_ms), way.is_open()));
        match todo {
            LinkAction::Nothing => {}
            LinkAction::End => self.end_connections(),
            LinkAction::Refuse => self.peers.table.for_each(|peer| peer.refuse_waiting()),
            LinkAction::Reconnect => self.peers.table.for_each(|peer| peer.way_opened()),
        }
        if !open || todo == LinkAction::Reconnect {
            self.peers.for_each_lingering(Conn::look_for_route);
        }
        (!open).then_some(LOOK_MS)
    }

    /// Returns how long connections are kept while the link is down, in milliseconds.
    fn hold_ms(&self, hca: Option<&Hca>) -> u64 {
        if self.ni.way(|way| way.is_open()) || !hca.is_some_and(|hca| hca.device.is_ib(hca.port)) {
            return link_state::HOLD_MS;
        }
        let mut longest = None;
        self.peers
            .for_each_conn(|conn| longest = longest.max(conn.transport_ms()));
        let limit_ms = u64::try_from(self.ni.message_limit_ms()).unwrap_or(0);
        link_state::hold_ms(longest, limit_ms)
    }

    /// Closes the connections whose path no longer matches the port. They are made again with new paths.
    fn end_outdated(&self, port: PortState) {
        if self.ni.way(|way| way.has_new_lid(port.lid)) {
            log::new_lid(self.ni.nid, port.lid);
            self.peers
                .for_each_conn(|conn| conn.end(Cause::AddressChanged));
        }
        if self.ni.way(|way| way.has_smaller_mtu(port.mtu)) {
            self.peers.for_each_conn(|conn| {
                if conn.path_mtu() > port.mtu {
                    conn.end(Cause::PathMtu);
                }
            });
        }
    }

    /// Closes all connections because the link went down.
    fn end_connections(&self) {
        let refuse = self.ni.passage() == SendPolicy::Refuse;
        let cause = self.ni.way(|way| way.why());
        self.peers.for_each_conn(|conn| conn.end(cause));
        if refuse {
            self.peers.table.for_each(|peer| peer.refuse_waiting());
        }
    }

    /// Closes connections to peers that are not allowed any more. Runs the timers of the other connections at once,
    /// because their timeouts may have changed. Messages that wait for a denied peer go back to LNet.
    fn apply_settings(&self) {
        self.peers.table.for_each(|peer| {
            if !self.ni.lnet.allows(peer.nid.raw()) {
                peer.close(Cause::Denied);
                return;
            }
            peer.for_each_conn(|conn| conn.check_now());
        });
    }

    /// Handles all peers, for the events since the last run.
    fn run_peers(self: &Arc<Self>) {
        if self.ni.is_stopping() {
            return;
        }
        if self.ni.way(|way| way.is_leaving()) {
            if self.ni.way(|way| way.is_untold()) {
                self.peers
                    .for_each_conn(|conn| conn.finish(Cause::LinkDown));
            }
            // An answered DREQ proves that the message left this node.
            let mut busy = false;
            self.peers.for_each_conn(|_| busy = true);
            self.peers
                .for_each_lingering(|conn| busy |= !conn.is_mute());
            let now_ms = self.ni.now_ms();
            if self.ni.way(|way| way.looked(now_ms, busy)) {
                self.run_in::<PEERS>(LEAVE_LOOK_MS);
            }
        }
        // Last, because this may call LNet, and an interface that goes down waits for the first part.
        if self.has_new_settings.xchg(false, Full) {
            self.apply_settings();
        }
    }

    /// Checks the device, or searches for one.
    fn run_device(self: &Arc<Self>) {
        if self.ni.is_stopping() {
            return;
        }
        if self.iface.is_removed(self) {
            return self.detach();
        }
        let Ok(hca) = self.ni.hca() else {
            return self.search();
        };
        if let Some(ms) = self.check(hca) {
            // Not later than other code has requested meanwhile.
            let _ = work::queue_delayed::<Self, DEVICE>(self.clone(), ms);
        }
    }

    /// Queries the port.
    fn run_port(self: &Arc<Self>) {
        if let (false, Ok(hca)) = (self.ni.is_stopping(), self.ni.hca()) {
            self.query_port(&hca);
        }
    }
}

impl DeviceEvents for NiDevice {
    /// Records the event and queues work only, because hard interrupt context is possible.
    fn device_event(this: ArcBorrow<'_, Self>, event: DeviceEvent) {
        let this: Arc<Self> = this.into();
        let _ = match event {
            DeviceEvent::Fatal => this.ni.broken.xchg(true, Full),
            // A device that recovers without being created again reports active ports.
            DeviceEvent::PortActive(_) => this.ni.broken.xchg(false, Full),
            DeviceEvent::GidChange(_) => this.gids_changed.xchg(true, Full),
            DeviceEvent::PortErr(_) | DeviceEvent::LidChange(_) => false,
            _ => return,
        };
        this.check_soon();
    }
}
