// SPDX-License-Identifier: GPL-2.0

//! What was heard of the RDMA device of an NI, until its look ([`super::ni_device`]) sees to it, and what of that
//! people were told.
//!
//! Context: notes are taken in any, hard interrupts included; what is found out of them is for process context.

use kernel::{
    prelude::*,
    sync::SpinLock, //
};

use super::{
    device_health::DeviceHealth,
    hca::Hca,
    log,
    ni::Ni, //
};
use crate::{
    lnet::{
        notice,
        StartError, //
    },
    policy::device_failover::{
        AddrLocation,
        DeviceTracker,
        FailoverStep, //
    },
    rdma::{
        atomic::{
            Acquire,
            Atomic,
            Full,
            Relaxed,
            Release, //
        },
        cm_event::Addr,
        device::{
            DeviceEvent,
            DeviceName, //
        },
        listen, //
    }, //
};

/// What the event handler of the device and others tell the work item.
#[pin_data]
pub(super) struct PendingDeviceEvents {
    /// What people were told of whether the device is broken.
    told: Atomic<bool>,
    /// There is somebody to look: the NI has its device.
    watched: Atomic<bool>,
    /// An attempt got no answer: whether it was ever sent is to be looked at.
    unheard: Atomic<bool>,
    /// Something happened that may have moved the address to another device.
    astray: Atomic<bool>,
    /// The move of the address after which its GIDs have not changed yet, and are going to; 0 if there is none.
    gids_due: Atomic<u32>,
    /// How often the address has moved.
    moves: Atomic<u32>,
    /// It was not known where the address is when the NI lost its device.
    unsettled: Atomic<bool>,
    /// The error that the device which is there cannot be used for, as people were told; 0: they were not.
    no_use: Atomic<i32>,
    /// The LID of the port at the last look; 0: it had none, or there was no look yet.
    lid: Atomic<u32>,
    /// The active MTU of the port in bytes at the last look; 0: not known.
    mtu: Atomic<u32>,
    #[pin]
    home: SpinLock<DeviceTracker>,
}

impl PendingDeviceEvents {
    /// Of no device.
    pub(super) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            told: Atomic::new(false),
            watched: Atomic::new(false),
            unheard: Atomic::new(false),
            astray: Atomic::new(false),
            gids_due: Atomic::new(0),
            moves: Atomic::new(0),
            unsettled: Atomic::new(false),
            no_use: Atomic::new(0),
            lid: Atomic::new(0),
            mtu: Atomic::new(0),
            home <- kernel::new_spinlock!(DeviceTracker::new(), "Signs::home"),
        })
    }

    /// The NI has another device, of which nothing was heard yet; not even that the address has left it again.
    pub(super) fn forget(&self) {
        self.told.store(false, Release);
        self.no_use.store(0, Relaxed);
        self.lid.store(0, Relaxed);
        self.mtu.store(0, Relaxed);
        self.astray.store(true, Release);
    }

    /// Notes the LID of the port. Returns whether the subnet manager gave the port another one since the last look.
    /// Packets of a peer that go to the old one do not arrive. A port that is down has no LID.
    pub(super) fn has_new_lid(&self, lid: u32) -> bool {
        lid != 0 && ![0, lid].contains(&self.lid.xchg(lid, Full))
    }

    /// Notes the active MTU of the port, in bytes. Returns whether it is smaller than at the last look.
    pub(super) fn has_smaller_mtu(&self, mtu: u32) -> bool {
        mtu != 0 && mtu < self.mtu.xchg(mtu, Full)
    }

    /// The NI loses its device, and it is not known where its address is, if `unsettled`.
    pub(super) fn leave_unsettled(&self, unsettled: bool) {
        self.unsettled.store(unsettled, Release);
    }

    /// The NI gets a device: whether it was not known before where its address is.
    pub(super) fn take_unsettled(&self) -> bool {
        self.unsettled.xchg(false, Full)
    }

    /// Somebody looks from now on, or nobody does.
    pub(super) fn watch(&self, on: bool) {
        let _ = self.watched.xchg(on, Full);
    }

    /// Whether somebody looks.
    pub(super) fn is_watched(&self) -> bool {
        self.watched.load(Acquire)
    }

    /// The answer to an attempt did not come in time. True: a look is due.
    pub(super) fn unheard(&self) -> bool {
        !self.unheard.xchg(true, Full) && self.is_watched()
    }

    /// The address may be on another device. True: a look is due.
    pub(super) fn astray(&self) -> bool {
        let _ = self.astray.xchg(true, Full);
        self.is_watched()
    }

    /// The address moves, or gets another hardware address; `gids`: its GIDs change with that. A look is due.
    pub(super) fn moves(&self, gids: bool) {
        let this = self.moves.fetch_add(1, Relaxed).wrapping_add(1).max(1);
        self.gids_due.store(if gids { this } else { 0 }, Release);
        let _ = self.astray.xchg(true, Full);
    }

    /// The look has found where the address is: attempts may begin, unless there is a newer reason
    /// to look again, which has a look of its own. Where such reasons never end, attempts begin all
    /// the same. True: they could not before.
    pub(super) fn settle(&self, ni: &Ni) -> bool {
        let now_ms = ni.now_ms();
        let long = self.home.lock().is_long(now_ms);
        if (self.astray.load(Acquire) && !long) || !ni.set_unsettled(false) {
            return false;
        }
        let again = self.astray.load(Acquire) && self.is_watched() && !long;
        if again {
            let _ = ni.set_unsettled(true);
            if !self.is_watched() {
                // The NI has lost its device just then, without which nobody waits for an address.
                let _ = ni.set_unsettled(false);
            }
        }
        !again
    }

    /// The device told this. True: a look is due.
    pub(super) fn heard(&self, event: DeviceEvent, condition: &DeviceHealth) -> bool {
        match event {
            DeviceEvent::Fatal => condition.set_broken(true),
            // A device that recovers without being made anew tells so of its ports.
            DeviceEvent::PortActive(_) => condition.set_broken(false),
            DeviceEvent::PortErr(_) | DeviceEvent::LidChange(_) => {}
            DeviceEvent::GidChange(_) => {
                self.gids_due.store(0, Release);
                return self.astray();
            }
            _ => return false,
        }
        self.is_watched()
    }

    /// Whether the device is broken, by its own words; people are told when that changes.
    pub(super) fn is_fatal(&self, ni: &Ni, hca: &Hca) -> bool {
        let fatal = ni.condition.is_broken();
        if self.told.xchg(fatal, Full) != fatal {
            let what = if fatal {
                log::broken(ni.nid);
                notice::Device::Fatal
            } else {
                log::healed(ni.nid);
                notice::Device::Back
            };
            let name = hca.device.name();
            notice::device(what, &ni.nid, Some(name.as_str()));
        }
        fatal
    }

    /// The NI has no device, and could not get one for this reason. That there is none was said when it went.
    pub(super) fn no_use(&self, ni: &Ni, why: &StartError) {
        let (none, e) = ([ENODEV, EADDRNOTAVAIL], why.error);
        if !none.contains(&e) && self.no_use.xchg(e.to_errno(), Full) != e.to_errno() {
            log::cannot_use(ni.nid, &why.what, e);
        }
    }

    /// Whether no attempt ever leaves the device. Asked only if there is a reason to, and only of a
    /// software device: of others it is not known to happen. May sleep.
    pub(super) fn is_mute(&self, ni: &Ni, hca: &Hca) -> bool {
        if self.unheard.xchg(false, Full) && hca.device.is_software() {
            let addr = Addr::v4(ni.nid.addr(), 0);
            let mute = listen::gsi_qp_failed(ni.net.as_rdma(), &addr, &hca.device);
            if mute && ni.condition.set_mute() {
                let name = hca.device.name();
                log::mute(ni.nid, name.as_str());
                notice::device(notice::Device::Mute, &ni.nid, Some(name.as_str()));
            }
        }
        ni.condition.is_mute()
    }

    /// What is to be done about the NI's address, which `find` looks for if there is a reason to. `find` may sleep.
    pub(super) fn look_for_home(
        &self,
        ni: &Ni,
        find: impl FnOnce() -> AddrLocation,
    ) -> FailoverStep {
        let now_ms = ni.now_ms();
        if self.astray.xchg(false, Full) {
            self.home.lock().doubt(now_ms);
        }
        {
            let home = self.home.lock();
            if !home.is_doubted() {
                return FailoverStep::Rest;
            }
            if let Some(ms) = home.wait_ms(now_ms) {
                return FailoverStep::Later(ms);
            }
        }
        let found = find();
        let due = self.gids_due.load(Acquire);
        let next = self.home.lock().look(now_ms, found, due != 0);
        if next == FailoverStep::Settled {
            // But not those of a move that has come since then.
            let _ = self.gids_due.cmpxchg(due, 0, Full);
        }
        if matches!(next, FailoverStep::AgainIn { ask: true, .. }) {
            ask_core(ni);
        }
        next
    }
}

/// Tells people that the NI has lost its device `hca`.
pub(super) fn tell_gone(ni: &Ni, hca: Option<&Hca>) {
    log::detached(ni.nid);
    tell(ni, notice::Device::Gone, hca);
}

/// Tells people that the NI has a device again.
pub(super) fn tell_back(ni: &Ni, hca: Option<&Hca>) {
    log::attached(ni.nid);
    tell(ni, notice::Device::Back, hca);
}

/// Tells people that the NI has another device than `old`.
pub(super) fn tell_moved(ni: &Ni, old: &Hca, new: Option<&Hca>) {
    let (from, to) = (old.device.name(), new.map(|hca| hca.device.name()));
    let to = to.as_ref().map_or("?", DeviceName::as_str);
    log::moved(ni.nid, from.as_str(), to);
    tell(ni, notice::Device::Moved, new);
}

fn tell(ni: &Ni, what: notice::Device, hca: Option<&Hca>) {
    let name = hca.map(|hca| hca.device.name());
    notice::device(what, &ni.nid, name.as_ref().map(DeviceName::as_str));
}

/// Has the RDMA core look for the address of the NI, which its interface has, and the device has not. May sleep.
fn ask_core(ni: &Ni) {
    let hca = ni.hca().ok().filter(|hca| hca.has_gids());
    if let (true, Some(hca)) = (ni.way(|way| way.has_interface()), hca) {
        log::astray(ni.nid, hca.device.name().as_str());
        hca.device.rescan_gids();
    }
}
