// SPDX-License-Identifier: GPL-2.0

//! An NI with its RDMA device and its link: what LNet starts and stops. The device is removed and comes
//! back, the interface moves to another device, the link goes down and comes up.
//!
//! The CM tells of a removal with an event on every id, and waits until all ids are destroyed; the
//! RDMA core then waits until nobody holds the device. So the NI lets everything go: listener,
//! connections, protection domain. While it has no device it looks for one every second; LNet is
//! told that the NI is not usable meanwhile, and again when it is.
//!
//! When a bond fails over, its address is on another device, and the old one may stay or be removed later. The NI
//! follows ([`crate::policy::device_failover`] says when to look, [`Ifaces::follow`] does it): it is usable all the
//! time, messages that wait for a connection go on waiting, connections of the old device end and are made anew on the
//! new one, and the old device is free when the last of them is gone. The same if only the hardware address changes;
//! then the CM ends the connections, to which peers send at the old address.
//!
//! What the state of the link means for connections and messages is [`crate::policy::link_state`]'s to say.
//! It is looked at after every event, and every second while it is down.
//!
//! Process context, but for the event handler.

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
    debugfs::{
        close_log::CloseLogFile,
        files::NiFiles,
        latency::LatencyFile, //
    },
    device_watch::{
        self,
        PendingDeviceEvents, //
    },
    hca::Hca,
    iface::{
        IfaceUser,
        Ifaces, //
    },
    index_walk::IndexWalks,
    listen::ListenTarget,
    log,
    ni::Ni,
    peer::Peers,
    reconfigure, //
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

/// Id of the delayed work that looks after the device.
const DEVICE: u64 = 1;

/// Id of the delayed work that does what concerns all peers.
const PEERS: u64 = 2;

/// Milliseconds between two looks for a device.
const LOOK_MS: u32 = 1000;

/// An NI with its device.
#[pin_data]
pub(crate) struct NiDevice {
    ni: Arc<Ni>,
    pub(crate) peers: Arc<Peers<Conn>>,
    ifaces: Arc<Ifaces>,
    /// Events of the device, while there is one.
    #[pin]
    events: Mutex<Option<Pin<KBox<EventRegistration<NiDevice>>>>>,
    #[pin]
    signs: PendingDeviceEvents,
    #[pin]
    look: DelayedWork<NiDevice, DEVICE>,
    /// Does what concerns all peers, for callers that have locks: there may be thousands, and it may call LNet.
    #[pin]
    all_peers: DelayedWork<NiDevice, PEERS>,
    /// The administrator has changed settings.
    has_new_settings: Atomic<bool>,
    /// Peers and connections as LNet lists them.
    #[pin]
    pub(crate) numbered: IndexWalks,
    /// The files in debugfs.
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
    fn settle(self: &Arc<Self>, hca: &Arc<Hca>) -> Result<(), StartError> {
        let old = self.events.lock().take();
        // Out of the lock, for that waits for handlers; and before the first event of the new one.
        drop(old);
        self.ni.condition.forget();
        self.signs.forget();
        let events = EventRegistration::new(hca.device.clone(), self.clone())
            .map_err(StartError::because("cannot watch the RDMA device"))?;
        *self.events.lock() = Some(events);
        self.ni.fit(hca);
        self.ni.lnet.set_dma_device(Some(&hca.device));
        if self.signs.take_unsettled() {
            let _ = self.ni.set_unsettled(true);
        }
        self.ni.set_hca(Some(hca.clone()));
        Ok(())
    }

    fn entered(self: &Arc<Self>) {
        self.ni.way(|way| way.attached());
        // Whatever came before is seen by the look that follows, what comes later asks for another.
        self.signs.watch(true);
        self.look_in(0);
    }

    fn unsettle(self: &Arc<Self>) {
        self.signs.watch(false);
        let events = self.events.lock().take();
        // Out of the lock: dropping waits for handlers.
        drop(events);
        self.ni.lnet.set_dma_device(None);
        // Before it has none: an attempt that fails for want of it finds the way closed.
        let now_ms = self.ni.now_ms();
        self.ni.way(|way| way.detached(now_ms));
        self.ni.set_hca(None);
        // Nobody waits for an address without a device; but the next one may be about to lose it.
        self.signs.leave_unsettled(self.ni.set_unsettled(false));
    }

    fn moved(self: &Arc<Self>, old: &Hca) {
        device_watch::tell_moved(&self.ni, old, self.ni.hca().ok().as_deref());
        // The old one may be on its way out.
        self.ni.way(|way| way.attached());
        self.peers.table.for_each(|peer| peer.moved());
        // It may be about to move once more: that look is what lets attempts begin.
        self.look_in(0);
    }

    fn doubt_home(self: &Arc<Self>) {
        if self.signs.astray() {
            self.look_in(0);
        }
    }
}

impl NiDevice {
    /// Makes it: the NI has no device yet. May sleep.
    pub(crate) fn new(ni: Arc<Ni>, ifaces: Arc<Ifaces>) -> Result<Arc<Self>> {
        let peers = Peers::new(ni.clone())?;
        Arc::pin_init(
            pin_init!(Self {
                ni,
                peers,
                ifaces,
                events <- kernel::new_mutex!(None, "Port::events"),
                signs <- PendingDeviceEvents::new(),
                look <- kernel::new_delayed_work!("Port::look"),
                all_peers <- kernel::new_delayed_work!("Port::all_peers"),
                has_new_settings: Atomic::new(false),
                numbered <- IndexWalks::new(),
                files <- kernel::new_mutex!(None, "Port::files"),
            }),
            GFP_KERNEL,
        )
    }

    /// Has these files; those it had go. May sleep.
    pub(crate) fn set_files(&self, files: Option<NiFiles<Self, CloseLogFile, LatencyFile>>) {
        let old = core::mem::replace(&mut *self.files.lock(), files);
        drop(old);
    }

    /// Listens on the device that has the NI's address, and has its state looked at.
    pub(crate) fn attach(self: &Arc<Self>) -> Result<(), StartError> {
        self.ifaces.enter(self)
    }

    /// Stops listening and lets the device go, as far as connections do not hold it. False: it had none.
    pub(crate) fn leave(self: &Arc<Self>) -> bool {
        self.ifaces.leave(self)
    }

    /// The device is being removed: lets go of it, and ends all that uses it. May sleep.
    fn detach(self: &Arc<Self>) {
        let hca = self.ni.hca().ok();
        if !self.leave() {
            return;
        }
        device_watch::tell_gone(&self.ni, hca.as_deref());
        // NIs on the same device lose it, too.
        let _ = self.follow_way(hca.as_deref());
        drop(hca);
        self.end_connections();
        self.ni.lnet.set_fatal(Fatal::Told);
        self.look_in(LOOK_MS);
    }

    /// Looks after the device in `ms` milliseconds.
    pub(crate) fn look_in(self: &Arc<Self>, ms: u32) {
        self.run_in::<DEVICE>(ms);
    }

    /// Has the delayed work run in `ms` milliseconds, unless the NI stops. Any context.
    fn run_in<const ID: u64>(self: &Arc<Self>, ms: u32)
    where
        Self: work::DelayedItem<ID>,
    {
        work::mod_delayed::<Self, ID>(self.clone(), ms);
        // Who stops the NI finds it armed, or is seen here: LNet would wait for it.
        if self.ni.is_stopping() {
            let _ = work::cancel::<Self, ID>(self);
        }
    }

    /// The device and the peers are not looked after any more. Waits for a look under way.
    pub(crate) fn stop_looking(self: &Arc<Self>) {
        let _ = work::cancel_sync::<Self, DEVICE>(self);
        let _ = work::cancel_sync::<Self, PEERS>(self);
    }

    /// Whether the interface is to wait yet before it goes down.
    pub(crate) fn is_stirring(&self) -> bool {
        self.ni.way(|way| !way.is_quiet(self.ni.now_ms()))
    }

    /// The administrator has changed settings. Any context.
    pub(crate) fn settings_changed(self: &Arc<Self>) {
        let _ = self.has_new_settings.xchg(true, Full);
        self.run_in::<PEERS>(0);
    }

    /// The link of the interface changed, or is about to.
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
            self.signs.moves(gid);
            if self.signs.is_watched() {
                let _ = self.ni.set_unsettled(true);
                // A look may have seen to it before that.
                let _ = self.signs.astray();
                self.look_in(0);
            }
            return;
        }
        if event == LinkEvent::Leaving {
            self.run_in::<PEERS>(0);
        }
        if self.signs.is_watched() {
            self.look_in(0);
        }
    }

    /// The answer to an attempt did not come in time.
    pub(crate) fn unheard(self: &Arc<Self>) {
        if self.signs.unheard() {
            self.look_in(0);
        }
    }

    /// Follows the address of the NI if that is on another device. Milliseconds until the next look, if one is due.
    fn follow_home(self: &Arc<Self>) -> Option<u32> {
        let next = self.signs.look_for_home(&self.ni, || Ifaces::find(self));
        match next {
            FailoverStep::Rest => return None,
            FailoverStep::Later(ms) => return Some(ms),
            FailoverStep::Settled | FailoverStep::AgainIn { .. } | FailoverStep::Move => {}
        }
        if next == FailoverStep::Move {
            self.ifaces.follow(self);
        }
        // On the same device its GID may be another one: what had the old one is as dead.
        self.peers.table.for_each(|peer| peer.moved());
        let (again, hold) = match next {
            FailoverStep::AgainIn { ms, hold, .. } => (Some(ms), hold),
            // The address may be about to leave that device, too.
            FailoverStep::Move => (Some(0), true),
            FailoverStep::Settled | FailoverStep::Rest | FailoverStep::Later(_) => (None, false),
        };
        // What has come since then is for the next look.
        if !hold && self.signs.settle(&self.ni) {
            self.peers.table.for_each(|peer| peer.way_opened());
        }
        // What could not speak meanwhile does now, or never will.
        self.peers.parting.routes_changed();
        again
    }

    /// Does what the state of the way asks for. Milliseconds until the next look, if it is closed.
    fn follow_way(self: &Arc<Self>, hca: Option<&Hca>) -> Option<u32> {
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
            self.peers.parting.routes_changed();
        }
        (!open).then_some(LOOK_MS)
    }

    /// Returns how long connections are held that have no way, in milliseconds.
    fn hold_ms(&self, hca: Option<&Hca>) -> u64 {
        if self.ni.way(|way| way.is_open()) || !hca.is_some_and(Hca::is_ib) {
            return link_state::HOLD_MS;
        }
        let mut longest = None;
        self.peers
            .table
            .for_each(|peer| longest = longest.max(peer.transport_ms()));
        let limit_ms = u64::try_from(self.ni.message_limit_ms()).unwrap_or(0);
        link_state::hold_ms(longest, limit_ms)
    }

    /// Ends the connections whose path is not that of the port any more. They are made again with new paths.
    fn end_outdated(&self, port: PortState) {
        if self.signs.has_new_lid(port.lid) {
            log::new_lid(self.ni.nid, port.lid);
            self.peers.table.for_each(|peer| peer.readdressed());
        }
        if self.signs.has_smaller_mtu(port.mtu) {
            self.peers.table.for_each(|peer| peer.fit_mtu(port.mtu));
        }
    }

    /// The way closed: what is on it ends.
    fn end_connections(&self) {
        let refuse = self.ni.passage() == SendPolicy::Refuse;
        self.peers.table.for_each(|peer| peer.way_closed(refuse));
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
                this.peers.table.for_each(|peer| peer.way_closes());
            }
            let (busy, now_ms) = (this.peers.are_busy(), this.ni.now_ms());
            if this.ni.way(|way| way.looked(now_ms, busy)) {
                this.run_in::<PEERS>(LEAVE_LOOK_MS);
            }
        }
        // Last: this may call LNet, and an interface that goes down waits for the other.
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
            // Asked, not taken from the events, which may overtake each other; and asked again, for a
            // port may say that it is up before it is. Of a bond the other port may be in use.
            let port = hca.device.port(hca.port);
            hca.learn(port);
            this.end_outdated(port);
            this.ni.fit(&hca);
            reconfigure::ask_anew(&this.peers);
            let refuses = this.ni.condition.refuses_posts();
            let active = port.active || this.ni.lnet.is_bonded();
            let broken = this.signs.is_fatal(&this.ni, &hca)
                || this.signs.is_mute(&this.ni, &hca)
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
            let way = this.follow_way(Some(&hca));
            drop(hca);
            let next = [way, this.follow_home()].into_iter().flatten().min();
            if let Some(ms) = next {
                // Not later than somebody else asked for meanwhile.
                let _ = work::queue_delayed::<Self, DEVICE>(this, ms);
            }
            return;
        }
        match this.attach() {
            Ok(()) => device_watch::tell_back(&this.ni, this.ni.hca().ok().as_deref()),
            Err(_) if this.ni.is_stopping() => {}
            Err(e) => {
                this.signs.no_use(&this.ni, &e);
                // A look that began when the device was still there may have said otherwise last.
                this.ni.lnet.set_fatal(Fatal::Told);
                // Another NI may have come, over which what waits can go.
                let _ = this.follow_way(None);
                this.look_in(LOOK_MS);
            }
        }
    }
}

impl DeviceEvents for NiDevice {
    /// Hard interrupt context is possible: flags and work only.
    fn device_event(this: ArcBorrow<'_, Self>, event: DeviceEvent) {
        if this.signs.heard(event, &this.ni.condition) {
            let this: Arc<Self> = this.into();
            this.look_in(0);
        }
    }
}
