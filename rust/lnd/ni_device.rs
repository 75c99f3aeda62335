// SPDX-License-Identifier: GPL-2.0

//! NI with its RDMA device and its link: the object that LNet starts and stops. The device is removed and comes back,
//! the interface moves to another device, the link goes down and comes up.
//!
//! The CM reports a removal with an event on every id, and waits until all ids are destroyed. The RDMA core then waits
//! until the device has no user. So the NI releases everything: listener, connections, protection domain. While the NI
//! has no device it searches for one every second. LNet is notified that the NI is not usable meanwhile, and when it is
//! usable again.
//!
//! When a bond fails over, its address is on another device, and the old one may stay or be removed later. The NI
//! follows the address ([`crate::policy::device_failover`] decides when to check, [`Ifaces::follow`] moves the NI). The
//! NI is usable all the time. Messages that wait for a connection keep waiting. Connections on the old device close and
//! are made again on the new one, and the old device is free when the last of them is released. The same happens if
//! only the hardware address changes; then the CM ends the connections, because peers send to the old address.
//!
//! [`crate::policy::link_state`] decides what the state of the link means for connections and messages. The work item
//! checks the state after every event, and every second while the link is down.
//!
//! Context: process, except for the event handler.

use kernel::{
    prelude::*,
    sync::{
        Arc,
        ArcBorrow,
        Mutex, //
    },
    workqueue::{
        DelayedWork,
        WorkItem, //
    }, //
};

use super::{
    conn::Conn,
    conn_requests::ListenTarget,
    debugfs::{
        close_log::CloseLogFile,
        files::NiFiles,
        latency::LatencyFile, //
    },
    hca::Hca,
    index_walk::IndexWalks,
    log,
    ni::Ni,
    peer::{
        Connection,
        Peers, //
    },
    pending_device_events::{
        self,
        PendingDeviceEvents, //
    },
    reconfigure,
    shared_listeners::{
        IfaceUser,
        Ifaces, //
    }, //
};
use crate::{
    lnet::{
        Fatal,
        LinkEvent,
        StartError, //
    },
    policy::{
        device_failover::FailoverStep,
        link_state::{
            self,
            Interface,
            LinkAction,
            SendPolicy,
            LEAVE_LOOK_MS, //
        }, //
    },
    proto::cause::Cause,
    rdma::{
        atomic::{
            Atomic,
            Full, //
        },
        device::{
            DeviceEvent,
            DeviceEvents,
            EventRegistration,
            PortState, //
        },
        work::{
            self,
            NofsScope, //
        }, //
    }, //
};

/// Id of the delayed work that checks the device.
const DEVICE: u64 = 1;

/// Id of the delayed work that handles all peers.
const PEERS: u64 = 2;

/// Milliseconds between two searches for a device.
const LOOK_MS: u32 = 1000;

/// NI with its device.
#[pin_data]
pub(crate) struct NiDevice {
    ni: Arc<Ni>,
    pub(crate) peers: Arc<Peers<Conn>>,
    ifaces: Arc<Ifaces>,
    /// Registration for events of the device, while the NI has one.
    #[pin]
    events: Mutex<Option<Pin<KBox<EventRegistration<NiDevice>>>>>,
    #[pin]
    device_events: PendingDeviceEvents,
    #[pin]
    look: DelayedWork<NiDevice, DEVICE>,
    /// Work for all peers, for callers that hold locks: there may be thousands of peers, and the work may call LNet.
    #[pin]
    all_peers: DelayedWork<NiDevice, PEERS>,
    /// Whether the administrator has changed settings since the last run.
    has_new_settings: Atomic<bool>,
    /// Positions in LNet's lists of peers and connections.
    #[pin]
    pub(crate) numbered: IndexWalks,
    /// Files in debugfs.
    #[pin]
    files: Mutex<Option<NiFiles<NiDevice, CloseLogFile, LatencyFile>>>,
}

kernel::impl_has_delayed_work! {
    impl HasDelayedWork<Self, DEVICE> for NiDevice { self.look }
    impl HasDelayedWork<Self, PEERS> for NiDevice { self.all_peers }
}

impl work::DelayedItem<DEVICE> for NiDevice {
    fn queue(&self) -> &work::OwnedQueue {
        &self.ni.workers.control
    }
}

impl work::DelayedItem<PEERS> for NiDevice {
    fn queue(&self) -> &work::OwnedQueue {
        &self.ni.workers.control
    }
}

impl ListenTarget for NiDevice {
    fn ni(&self) -> &Arc<Ni> {
        &self.ni
    }

    fn peers(&self) -> &Arc<Peers<Conn>> {
        &self.peers
    }
}

impl IfaceUser for NiDevice {
    fn bind_device(self: &Arc<Self>, hca: &Arc<Hca>) -> Result<(), StartError> {
        let old = self.events.lock().take();
        // Outside the lock, because dropping waits for handlers; and before the first event of the new device.
        drop(old);
        self.ni.device_health.clear();
        self.device_events.clear();
        let events = EventRegistration::new(hca.device.clone(), self.clone())
            .map_err(StartError::because("cannot watch the RDMA device"))?;
        *self.events.lock() = Some(events);
        self.ni.fit(hca);
        self.ni.lnet.set_dma_device(Some(&hca.device));
        if self.device_events.take_unsettled() {
            let _ = self.ni.set_unsettled(true);
        }
        self.ni.set_hca(Some(hca.clone()));
        Ok(())
    }

    fn entered(self: &Arc<Self>) {
        self.ni.way(|way| way.attached());
        // The check that follows sees earlier events; a later event queues another check.
        self.device_events.watch(true);
        self.schedule_check(0);
    }

    fn unbind_device(self: &Arc<Self>) {
        self.device_events.watch(false);
        let events = self.events.lock().take();
        // Outside the lock: dropping waits for handlers.
        drop(events);
        self.ni.lnet.set_dma_device(None);
        // Before the NI loses the device: an attempt that fails without a device then finds the link down.
        let now_ms = self.ni.now_ms();
        self.ni.way(|way| way.detached(now_ms));
        self.ni.set_hca(None);
        // Without a device, no attempt waits for the address; but the next device may be about to lose it.
        self.device_events
            .leave_unsettled(self.ni.set_unsettled(false));
    }

    fn moved(self: &Arc<Self>, old: &Hca) {
        pending_device_events::report_moved(&self.ni, old, self.ni.hca().ok().as_deref());
        // The old device may be about to be removed.
        self.ni.way(|way| way.attached());
        self.peers.for_each_conn(|conn| conn.moved());
        // The address may be about to move again: the check allows attempts to start.
        self.schedule_check(0);
    }

    fn doubt_home(self: &Arc<Self>) {
        if self.device_events.addr_moved() {
            self.schedule_check(0);
        }
    }
}

impl NiDevice {
    /// Creates the object; the NI has no device yet. May sleep.
    pub(crate) fn new(ni: Arc<Ni>, ifaces: Arc<Ifaces>) -> Result<Arc<Self>> {
        let peers = Peers::new(ni.clone())?;
        Arc::pin_init(
            pin_init!(Self {
                ni,
                peers,
                ifaces,
                events <- kernel::new_mutex!(None, "NiDevice::events"),
                device_events <- PendingDeviceEvents::new(),
                look <- kernel::new_delayed_work!("NiDevice::look"),
                all_peers <- kernel::new_delayed_work!("NiDevice::all_peers"),
                has_new_settings: Atomic::new(false),
                numbered <- IndexWalks::new(),
                files <- kernel::new_mutex!(None, "NiDevice::files"),
            }),
            GFP_KERNEL,
        )
    }

    /// Sets the debugfs files, and removes the previous ones. May sleep.
    pub(crate) fn set_files(&self, files: Option<NiFiles<Self, CloseLogFile, LatencyFile>>) {
        let old = core::mem::replace(&mut *self.files.lock(), files);
        drop(old);
    }

    /// Listens on the device that has the NI's address, and queues a check of its state.
    pub(crate) fn attach(self: &Arc<Self>) -> Result<(), StartError> {
        self.ifaces.attach(self)
    }

    /// Stops listening and releases the device, which connections may still hold. Returns whether the NI had a device.
    pub(crate) fn leave(self: &Arc<Self>) -> bool {
        self.ifaces.detach(self)
    }

    /// Releases the device because it is being removed, and closes its connections. May sleep.
    fn detach(self: &Arc<Self>) {
        let hca = self.ni.hca().ok();
        if !self.leave() {
            return;
        }
        pending_device_events::report_gone(&self.ni, hca.as_deref());
        // NIs on the same device lose it, too.
        let _ = self.apply_link_state(hca.as_deref());
        drop(hca);
        self.end_connections();
        self.ni.lnet.set_fatal(Fatal::Told);
        self.schedule_check(LOOK_MS);
    }

    /// Queues a check of the device in `ms` milliseconds.
    pub(crate) fn schedule_check(self: &Arc<Self>, ms: u32) {
        self.run_in::<DEVICE>(ms);
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
        let _ = work::cancel_sync::<Self, DEVICE>(self);
        let _ = work::cancel_sync::<Self, PEERS>(self);
    }

    /// Returns whether the interface has to wait before it goes down.
    pub(crate) fn is_stirring(&self) -> bool {
        self.ni.way(|way| !way.is_quiet(self.ni.now_ms()))
    }

    /// Records changed settings and queues the work for all peers. Any context.
    pub(crate) fn settings_changed(self: &Arc<Self>) {
        let _ = self.has_new_settings.xchg(true, Full);
        self.run_in::<PEERS>(0);
    }

    /// Handles a link of the interface that changed or is about to change.
    pub(crate) fn link_changed(self: &Arc<Self>, event: LinkEvent) {
        let now_ms = self.ni.now_ms();
        self.ni.way(|way| match event {
            LinkEvent::Up => way.interface(Interface::Up),
            LinkEvent::NoCarrier => way.interface(Interface::NoCarrier),
            LinkEvent::Down => way.interface(Interface::Down),
            LinkEvent::Leaving => way.leaving(now_ms),
            LinkEvent::Moved | LinkEvent::Mtu => {}
        });
        if event == LinkEvent::Moved {
            let gid = self.ni.on_hca(Hca::has_gids).unwrap_or(false);
            self.device_events.record_move(gid);
            if self.device_events.is_watched() {
                let _ = self.ni.set_unsettled(true);
                // A check may have consumed the event before that.
                let _ = self.device_events.addr_moved();
                self.schedule_check(0);
            }
            return;
        }
        if event == LinkEvent::Leaving {
            self.run_in::<PEERS>(0);
        }
        if self.device_events.is_watched() {
            self.schedule_check(0);
        }
    }

    /// Handles an attempt that timed out.
    pub(crate) fn no_reply(self: &Arc<Self>) {
        if self.device_events.no_reply() {
            self.schedule_check(0);
        }
    }

    /// Follows the address of the NI if it is on another device. Returns the milliseconds until the next check, if one
    /// is due.
    fn follow_device(self: &Arc<Self>) -> Option<u32> {
        let next = self
            .device_events
            .find_address(&self.ni, || Ifaces::locate(self));
        match next {
            FailoverStep::Rest => return None,
            FailoverStep::Later(ms) => return Some(ms),
            FailoverStep::Settled | FailoverStep::AgainIn { .. } | FailoverStep::Move => {}
        }
        if next == FailoverStep::Move {
            self.ifaces.follow_address(self);
        }
        // On the same device the GID of the address may be new: connections with the old GID are dead.
        self.peers.for_each_conn(|conn| conn.moved());
        let (again, hold) = match next {
            FailoverStep::AgainIn { ms, hold, .. } => (Some(ms), hold),
            // The address may be about to leave that device, too.
            FailoverStep::Move => (Some(0), true),
            FailoverStep::Settled | FailoverStep::Rest | FailoverStep::Later(_) => (None, false),
        };
        // The next check handles later events.
        if !hold && self.device_events.block_attempts(&self.ni) {
            self.peers.table.for_each(|peer| peer.way_opened());
        }
        // Connections that waited for a route send their DREQ now, or never will.
        self.peers.lingering.routes_changed();
        again
    }

    /// Handles the link state. Returns the milliseconds until the next check if the link is down.
    fn apply_link_state(self: &Arc<Self>, hca: Option<&Hca>) -> Option<u32> {
        let other = self.ifaces.another_open(&self.ni, hca);
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
            self.peers.lingering.routes_changed();
        }
        (!open).then_some(LOOK_MS)
    }

    /// Returns how long connections are kept while the link is down, in milliseconds.
    fn hold_ms(&self, hca: Option<&Hca>) -> u64 {
        if self.ni.way(|way| way.is_open()) || !hca.is_some_and(Hca::is_ib) {
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
        if self.device_events.has_new_lid(port.lid) {
            log::new_lid(self.ni.nid, port.lid);
            self.peers
                .for_each_conn(|conn| conn.fail(Cause::AddressChanged));
        }
        if self.device_events.has_smaller_mtu(port.mtu) {
            self.peers.for_each_conn(|conn| conn.fit_mtu(port.mtu));
        }
    }

    /// Closes all connections because the link went down.
    fn end_connections(&self) {
        let refuse = self.ni.passage() == SendPolicy::Refuse;
        let cause = self.ni.way(|way| way.why());
        self.peers.for_each_conn(|conn| conn.fail(cause));
        if refuse {
            self.peers.table.for_each(|peer| peer.refuse_waiting());
        }
    }
}

impl WorkItem<PEERS> for NiDevice {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let _nofs = NofsScope::enter();
        if this.ni.is_stopping() {
            return;
        }
        if this.ni.way(|way| way.is_leaving()) {
            if this.ni.way(|way| way.is_untold()) {
                this.peers
                    .for_each_conn(|conn| conn.finish(Cause::LinkDown));
            }
            let (busy, now_ms) = (this.peers.are_busy(), this.ni.now_ms());
            if this.ni.way(|way| way.looked(now_ms, busy)) {
                this.run_in::<PEERS>(LEAVE_LOOK_MS);
            }
        }
        // Last, because this may call LNet, and an interface that goes down waits for the first part.
        if this.has_new_settings.xchg(false, Full) {
            reconfigure::settings_changed(&this.peers);
        }
    }
}

impl WorkItem<DEVICE> for NiDevice {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let _nofs = NofsScope::enter();
        if this.ni.is_stopping() {
            return;
        }
        if this.ifaces.is_removed(&this) {
            return this.detach();
        }
        if let Ok(hca) = this.ni.hca() {
            // Queried, not taken from the events, which may overtake each other; and queried again, because a port may
            // report that it is up before it is. With a bond the other port may be in use.
            let port = hca.device.port(hca.port);
            hca.update_port(port);
            this.end_outdated(port);
            this.ni.fit(&hca);
            reconfigure::renegotiate_depth(&this.peers);
            let refuses = this.ni.device_health.refuses_posts();
            let active = port.active || this.ni.lnet.is_bonded();
            let broken = this.device_events.is_fatal(&this.ni, &hca)
                || this.device_events.is_mute(&this.ni, &hca)
                || refuses;
            this.ni.lnet.set_fatal(match (broken, active) {
                (true, _) => Fatal::Told,
                (false, false) => Fatal::Port,
                (false, true) => Fatal::No,
            });
            this.ni.way(|way| {
                way.port(active);
                way.shut(refuses);
            });
            let way = this.apply_link_state(Some(&hca));
            drop(hca);
            let next = [way, this.follow_device()].into_iter().flatten().min();
            if let Some(ms) = next {
                // Not later than other code has requested meanwhile.
                let _ = work::queue_delayed::<Self, DEVICE>(this, ms);
            }
            return;
        }
        match this.attach() {
            Ok(()) => pending_device_events::report_back(&this.ni, this.ni.hca().ok().as_deref()),
            Err(_) if this.ni.is_stopping() => {}
            Err(e) => {
                this.device_events.no_use(&this.ni, &e);
                // A check that started while the device was still there may have set another value last.
                this.ni.lnet.set_fatal(Fatal::Told);
                // There may be another NI now, over which waiting messages can go.
                let _ = this.apply_link_state(None);
                this.schedule_check(LOOK_MS);
            }
        }
    }
}

impl DeviceEvents for NiDevice {
    /// Records the event and queues work only, because hard interrupt context is possible.
    fn device_event(this: ArcBorrow<'_, Self>, event: DeviceEvent) {
        if this
            .device_events
            .record_event(event, &this.ni.device_health)
        {
            let this: Arc<Self> = this.into();
            this.schedule_check(0);
        }
    }
}
