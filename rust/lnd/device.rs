// SPDX-License-Identifier: GPL-2.0

//! An NI, its RDMA device and its link: the device is removed and comes back, the link goes down and
//! comes up.
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
        ArcBorrow, //
    },
    workqueue::WorkItem, //
};

use super::{
    iface::{
        Hca,
        Iface, //
    },
    log,
    ni::Ni, //
};
use crate::{
    lnet::{
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
            EventRegistration, //
        },
        work::{
            self,
            NofsScope, //
        }, //
    }, //
};

/// Id of the delayed work that looks after the device.
pub(crate) const DEVICE: u64 = 1;

/// Milliseconds between two looks for a device.
const LOOK_MS: u32 = 1000;

/// What an NI has while it has a device.
pub(crate) struct Attached {
    iface: Arc<Iface>,
    hca: Arc<Hca>,
    _events: Pin<KBox<EventRegistration<Ni>>>,
}

/// What the event handler of the device and the work item tell each other.
pub(crate) struct Health {
    /// The device is broken.
    fatal: Atomic<bool>,
    /// Events have somebody to look at them: the NI has its device.
    watched: Atomic<bool>,
    /// An attempt got no answer: whether it was ever sent is to be looked at.
    unheard: Atomic<bool>,
    /// No message of the connection manager leaves the device, and that was said.
    mute: Atomic<bool>,
}

impl Health {
    /// A device that has said nothing yet.
    pub(crate) fn new() -> Self {
        Self {
            fatal: Atomic::new(false),
            watched: Atomic::new(false),
            unheard: Atomic::new(false),
            mute: Atomic::new(false),
        }
    }
}

impl Ni {
    /// The RDMA device, while there is one.
    pub(crate) fn hca(&self) -> Result<Arc<Hca>> {
        let attached = self.attached.lock();
        Ok(attached.as_ref().ok_or(ENODEV)?.hca.clone())
    }

    /// Listens on the device that has the NI's address, and has its state looked at.
    pub(crate) fn attach(self: &Arc<Self>) -> Result<(), StartError> {
        let iface = Iface::get(self)?;
        self.health.fatal.store(false, Release);
        self.health.mute.store(false, Release);
        let events = match EventRegistration::new(iface.hca.device.clone(), self.clone()) {
            Ok(events) => events,
            Err(e) => {
                Iface::put(self, iface);
                return Err(StartError::because("cannot watch the RDMA device")(e));
            }
        };
        self.lnet.set_dma_device(Some(&iface.hca.device));
        *self.attached.lock() = Some(Attached {
            hca: iface.hca.clone(),
            iface,
            _events: events,
        });
        // Whatever came before is seen by the look that follows, what comes later asks for another.
        let _ = self.health.watched.xchg(true, Full);
        self.look_in(0);
        Ok(())
    }

    /// Stops listening and lets the device go, as far as connections do not hold it.
    pub(crate) fn leave(self: &Arc<Self>) -> bool {
        // Out of the lock: dropping waits for handlers.
        let attached = self.attached.lock().take();
        let Some(Attached {
            iface,
            hca,
            _events,
        }) = attached
        else {
            return false;
        };
        self.health.watched.store(false, Release);
        drop(_events);
        self.lnet.set_dma_device(None);
        drop(hca);
        Iface::put(self, iface);
        true
    }

    /// The device is being removed: lets everything of it go, and looks for it to come back. False:
    /// it has none.
    pub(crate) fn detach(self: &Arc<Self>) -> bool {
        if !self.leave() {
            return false;
        }
        log::detached(self.nid);
        self.peers.for_each(|peer| peer.close(Cause::DeviceGone));
        if !self.is_stopping() {
            self.lnet.set_fatal(true);
            self.look_in(LOOK_MS);
        }
        true
    }

    fn look_in(self: &Arc<Self>, ms: u32) {
        self.driver.control.rearm::<Self, DEVICE>(self.clone(), ms);
    }

    /// The device is not looked after any more. Waits for a look under way.
    pub(crate) fn stop_looking(self: &Arc<Self>) {
        let _ = work::cancel_sync::<Self, DEVICE>(self);
    }
}

impl Ni {
    /// What becomes of a message that has no connection.
    pub(crate) fn passage(&self) -> Passage {
        self.way.lock().passage()
    }

    /// Whether the interface is down, or about to go.
    pub(crate) fn is_leaving(&self) -> bool {
        !self.way.lock().has_interface()
    }

    /// The link of the interface changed, or is about to.
    pub(crate) fn link_changed(self: &Arc<Self>, event: LinkEvent) {
        let now_ms = self.now_ms();
        {
            let mut way = self.way.lock();
            match event {
                LinkEvent::Up => way.interface(true),
                LinkEvent::Down => way.interface(false),
                LinkEvent::Leaving => way.leaving(now_ms),
            }
        }
        if event == LinkEvent::Leaving {
            // Connections only: no message may go back to LNet under the locks of the caller.
            self.peers.for_each(|peer| peer.way_closed(false));
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

    /// Whether no attempt ever leaves the device. Asked only if there is a reason to, and only of a
    /// software device: of others it is not known to happen.
    fn is_mute(&self, hca: &Hca) -> bool {
        if self.health.unheard.xchg(false, Full) && hca.device.is_software() {
            let mute = hca.device.gsi_failed(hca.port);
            if mute && !self.health.mute.xchg(true, Full) {
                log::mute(self.nid, hca.device.name());
            }
        }
        self.health.mute.load(Acquire)
    }

    /// Does what the state of the way asks for.
    fn follow_way(self: &Arc<Self>, hca: &Hca, port_active: bool) {
        let other = Iface::another_open(self, &hca.device);
        let now_ms = self.now_ms();
        let (todo, open) = {
            let mut way = self.way.lock();
            way.port(port_active);
            (way.look(now_ms, other), way.is_open())
        };
        match todo {
            Todo::Nothing => {}
            Todo::End => self.end_connections(),
            Todo::Reconnect => self.peers.for_each(|peer| peer.way_opened()),
        }
        if !open || todo == Todo::Reconnect {
            self.parting.routes_changed();
        }
        if !open {
            self.look_in(LOOK_MS);
        }
    }

    /// The way closed: what is on it ends.
    fn end_connections(&self) {
        let refuse = self.passage() == Passage::Refuse;
        self.peers.for_each(|peer| peer.way_closed(refuse));
    }
}

impl WorkItem<DEVICE> for Ni {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let _nofs = NofsScope::enter();
        if this.is_stopping() {
            return;
        }
        if let Ok(hca) = this.hca() {
            // Asked, not taken from the events, which may overtake each other; and asked again, for a
            // port may say that it is up before it is. Of a bond the other port may be in use.
            let active = this.bonded || hca.device.port_active(hca.port);
            let broken = this.health.fatal.load(Acquire) || this.is_mute(&hca);
            this.lnet.set_fatal(!active || broken);
            this.follow_way(&hca, active);
        } else if this.attach().is_ok() {
            log::attached(this.nid);
        } else if !this.is_stopping() {
            // A look that began when the device was still there may have said otherwise last.
            this.lnet.set_fatal(true);
            this.look_in(LOOK_MS);
        }
    }
}

impl DeviceEvents for Ni {
    /// Hard interrupt context is possible: flags and work only.
    fn device_event(this: ArcBorrow<'_, Self>, event: DeviceEvent) {
        match event {
            DeviceEvent::Fatal => {
                let _ = this.health.fatal.xchg(true, Full);
            }
            DeviceEvent::PortErr(_) | DeviceEvent::PortActive(_) => {}
            _ => return,
        }
        if this.health.watched.load(Acquire) {
            let this: Arc<Self> = this.into();
            this.look_in(0);
        }
    }
}
