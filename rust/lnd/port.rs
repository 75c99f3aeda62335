// SPDX-License-Identifier: GPL-2.0

//! An NI with its RDMA device and its link: what LNet starts and stops. The device is removed and comes
//! back, the link goes down and comes up.
//!
//! The CM tells of a removal with an event on every id, and waits until all ids are destroyed; the
//! RDMA core then waits until nobody holds the device. So the NI lets everything go: listener,
//! connections, protection domain. While it has no device it looks for one every second; LNet is
//! told that the NI is not usable meanwhile, and again when it is.
//!
//! What the state of the link means for connections and messages is [`crate::proto::way`]'s to say.
//! It is looked at after every event, and every second while it is down.
//!
//! Process context, but for the event handler.

use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Full,
            Release, //
        },
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
    files::Files,
    hca::Hca,
    iface::{
        Ifaces,
        User, //
    },
    listen::Asked,
    log,
    ni::Ni,
    peer::Peers,
    show_seen::SeenBy,
    show_times::TimesOf, //
};
use crate::{
    lnet::{
        notice,
        LinkEvent,
        StartError, //
    },
    proto::{
        cause::Cause,
        way::{
            Passage,
            Todo, //
        }, //
    },
    rdma::{
        device::{
            DeviceEvent,
            DeviceEvents,
            DeviceName,
            EventRegistration, //
        },
        work::{
            self,
            NofsScope, //
        }, //
    }, //
};

/// Id of the delayed work that looks after the device.
const DEVICE: u64 = 1;

/// Milliseconds between two looks for a device.
const LOOK_MS: u32 = 1000;

/// What the event handler of the device and the work item tell each other.
struct Health {
    /// The device said that it is broken, and of none of its ports since that it is active.
    fatal: Atomic<bool>,
    /// What of that people were told.
    told: Atomic<bool>,
    /// Events have somebody to look at them: the NI has its device.
    watched: Atomic<bool>,
    /// An attempt got no answer: whether it was ever sent is to be looked at.
    unheard: Atomic<bool>,
    /// No message of the connection manager leaves the device, and that was said.
    mute: Atomic<bool>,
}

impl Health {
    /// A device that has said nothing yet.
    fn new() -> Self {
        Self {
            fatal: Atomic::new(false),
            told: Atomic::new(false),
            watched: Atomic::new(false),
            unheard: Atomic::new(false),
            mute: Atomic::new(false),
        }
    }
}

/// The name of a device, if there is one.
fn name_of(hca: &Option<Arc<Hca>>) -> Option<DeviceName> {
    hca.as_ref().map(|hca| hca.device.name())
}

/// An NI with its device.
#[pin_data]
pub(crate) struct Port {
    ni: Arc<Ni>,
    pub(crate) peers: Arc<Peers<Conn>>,
    ifaces: Arc<Ifaces>,
    /// The interface is a bond.
    bonded: bool,
    /// Events of the device, while there is one.
    #[pin]
    events: Mutex<Option<Pin<KBox<EventRegistration<Port>>>>>,
    health: Health,
    #[pin]
    look: DelayedWork<Port, DEVICE>,
    /// The files in debugfs.
    #[pin]
    files: Mutex<Option<Files<Port, SeenBy, TimesOf>>>,
}

kernel::impl_has_delayed_work! {
    impl HasDelayedWork<Self, DEVICE> for Port { self.look }
}

impl work::Timed<DEVICE> for Port {
    fn queue(&self) -> &work::OwnedQueue {
        &self.ni.workers.control
    }
}

impl Asked for Port {
    fn ni(&self) -> &Arc<Ni> {
        &self.ni
    }

    fn peers(&self) -> &Arc<Peers<Conn>> {
        &self.peers
    }
}

impl User for Port {
    fn detach(self: &Arc<Self>) -> bool {
        let hca = self.ni.hca().ok();
        if !self.leave() {
            return false;
        }
        log::detached(self.ni.nid);
        let name = name_of(&hca);
        let name = name.as_ref().map(DeviceName::as_str);
        notice::device(notice::Device::Gone, &self.ni.nid, name);
        drop(hca);
        self.peers
            .table
            .for_each(|peer| peer.close(Cause::DeviceGone));
        if !self.ni.is_stopping() {
            self.ni.lnet.set_fatal(true);
            self.look_in(LOOK_MS);
        }
        true
    }
}

impl Port {
    /// Makes it: the NI has no device yet. May sleep.
    pub(crate) fn new(ni: Arc<Ni>, ifaces: Arc<Ifaces>, bonded: bool) -> Result<Arc<Self>> {
        let peers = Peers::new(ni.clone())?;
        Arc::pin_init(
            pin_init!(Self {
                ni,
                peers,
                ifaces,
                bonded,
                events <- kernel::new_mutex!(None, "Port::events"),
                health: Health::new(),
                look <- kernel::new_delayed_work!("Port::look"),
                files <- kernel::new_mutex!(None, "Port::files"),
            }),
            GFP_KERNEL,
        )
    }

    /// Has these files; those it had go. May sleep.
    pub(crate) fn set_files(&self, files: Option<Files<Self, SeenBy, TimesOf>>) {
        let old = core::mem::replace(&mut *self.files.lock(), files);
        drop(old);
    }

    /// Listens on the device that has the NI's address, and has its state looked at.
    pub(crate) fn attach(self: &Arc<Self>) -> Result<(), StartError> {
        let hca = self.ifaces.enter(self)?;
        self.health.fatal.store(false, Release);
        self.health.told.store(false, Release);
        self.health.mute.store(false, Release);
        let events = match EventRegistration::new(hca.device.clone(), self.clone()) {
            Ok(events) => events,
            Err(e) => {
                self.ifaces.leave(self);
                return Err(StartError::because("cannot watch the RDMA device")(e));
            }
        };
        self.ni.fit(&hca);
        self.ni.lnet.set_dma_device(Some(&hca.device));
        self.ni.set_hca(Some(hca));
        // Last: from here on it can be taken off the device again, whole.
        *self.events.lock() = Some(events);
        // Whatever came before is seen by the look that follows, what comes later asks for another.
        let _ = self.health.watched.xchg(true, Full);
        self.look_in(0);
        Ok(())
    }

    /// Stops listening and lets the device go, as far as connections do not hold it.
    pub(crate) fn leave(self: &Arc<Self>) -> bool {
        // Out of the lock: dropping waits for handlers.
        let events = self.events.lock().take();
        if events.is_none() {
            return false;
        }
        self.health.watched.store(false, Release);
        drop(events);
        self.ni.lnet.set_dma_device(None);
        self.ni.set_hca(None);
        self.ifaces.leave(self);
        true
    }

    fn look_in(self: &Arc<Self>, ms: u32) {
        work::rearm::<Self, DEVICE>(self.clone(), ms);
    }

    /// The device is not looked after any more. Waits for a look under way.
    pub(crate) fn stop_looking(self: &Arc<Self>) {
        let _ = work::cancel_sync::<Self, DEVICE>(self);
    }
}

impl Port {
    /// Whether the interface is to wait yet before it goes down.
    pub(crate) fn is_stirring(&self) -> bool {
        let busy = self.peers.are_busy();
        let now_ms = self.ni.now_ms();
        self.ni.way(|way| !way.is_quiet(now_ms, busy))
    }

    /// The link of the interface changed, or is about to.
    pub(crate) fn link_changed(self: &Arc<Self>, event: LinkEvent) {
        let now_ms = self.ni.now_ms();
        self.ni.way(|way| match event {
            LinkEvent::Up => way.interface(true),
            LinkEvent::Down => way.interface(false),
            LinkEvent::Leaving => way.leaving(now_ms),
        });
        if event == LinkEvent::Leaving {
            // Connections only: no message may go back to LNet under the locks of the caller.
            self.peers.table.for_each(|peer| peer.way_closed(false));
        }
        if self.health.watched.load(Acquire) {
            self.look_in(0);
        }
    }

    /// The answer to an attempt did not come in time.
    pub(crate) fn unheard(self: &Arc<Self>) {
        if !self.health.unheard.xchg(true, Full) && self.health.watched.load(Acquire) {
            self.look_in(0);
        }
    }

    /// Whether the device is broken, by its own words; people are told when that changes.
    fn is_fatal(&self, hca: &Hca) -> bool {
        let fatal = self.health.fatal.load(Acquire);
        if self.health.told.xchg(fatal, Full) != fatal {
            let what = if fatal {
                log::broken(self.ni.nid);
                notice::Device::Fatal
            } else {
                log::healed(self.ni.nid);
                notice::Device::Back
            };
            let name = hca.device.name();
            notice::device(what, &self.ni.nid, Some(name.as_str()));
        }
        fatal
    }

    /// Whether no attempt ever leaves the device. Asked only if there is a reason to, and only of a
    /// software device: of others it is not known to happen.
    fn is_mute(&self, hca: &Hca) -> bool {
        if self.health.unheard.xchg(false, Full) && hca.device.is_software() {
            let mute = hca.device.gsi_failed(hca.port);
            if mute && !self.health.mute.xchg(true, Full) {
                let name = hca.device.name();
                log::mute(self.ni.nid, name.as_str());
                notice::device(notice::Device::Mute, &self.ni.nid, Some(name.as_str()));
            }
        }
        self.health.mute.load(Acquire)
    }

    /// Does what the state of the way asks for.
    fn follow_way(self: &Arc<Self>, hca: &Hca, port_active: bool) {
        let other = self.ifaces.another_open(&hca.device);
        let now_ms = self.ni.now_ms();
        let (todo, open) = self.ni.way(|way| {
            way.port(port_active);
            (way.look(now_ms, other), way.is_open())
        });
        match todo {
            Todo::Nothing => {}
            Todo::End => self.end_connections(),
            Todo::Reconnect => self.peers.table.for_each(|peer| peer.way_opened()),
        }
        if !open || todo == Todo::Reconnect {
            self.peers.parting.routes_changed();
        }
        if !open {
            self.look_in(LOOK_MS);
        }
    }

    /// The way closed: what is on it ends.
    fn end_connections(&self) {
        let refuse = self.ni.passage() == Passage::Refuse;
        self.peers.table.for_each(|peer| peer.way_closed(refuse));
    }
}

impl WorkItem<DEVICE> for Port {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let _nofs = NofsScope::enter();
        if this.ni.is_stopping() {
            return;
        }
        if let Ok(hca) = this.ni.hca() {
            // Asked, not taken from the events, which may overtake each other; and asked again, for a
            // port may say that it is up before it is. Of a bond the other port may be in use.
            let port = hca.device.port(hca.port);
            hca.learn(port);
            this.ni.fit(&hca);
            let active = this.bonded || port.active;
            let broken = this.is_fatal(&hca) || this.is_mute(&hca);
            this.ni.lnet.set_fatal(!active || broken);
            this.follow_way(&hca, active);
        } else if this.attach().is_ok() {
            log::attached(this.ni.nid);
            let name = name_of(&this.ni.hca().ok());
            let name = name.as_ref().map(DeviceName::as_str);
            notice::device(notice::Device::Back, &this.ni.nid, name);
        } else if !this.ni.is_stopping() {
            // A look that began when the device was still there may have said otherwise last.
            this.ni.lnet.set_fatal(true);
            this.look_in(LOOK_MS);
        }
    }
}

impl DeviceEvents for Port {
    /// Hard interrupt context is possible: flags and work only.
    fn device_event(this: ArcBorrow<'_, Self>, event: DeviceEvent) {
        match event {
            DeviceEvent::Fatal => {
                let _ = this.health.fatal.xchg(true, Full);
            }
            // A device that recovers without being made anew tells so of its ports.
            DeviceEvent::PortActive(_) => {
                let _ = this.health.fatal.xchg(false, Full);
            }
            DeviceEvent::PortErr(_) => {}
            _ => return,
        }
        if this.health.watched.load(Acquire) {
            let this: Arc<Self> = this.into();
            this.look_in(0);
        }
    }
}
