// SPDX-License-Identifier: GPL-2.0

//! Pending events of the RDMA device of an NI: recorded by event handlers, and processed by the work item in
//! [`super::ni_device`]. The file also records which of them were already logged.
//!
//! Context: events are recorded in any context, including hard interrupts; they are processed in process context.

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
        uevent,
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

/// Events that the handler of the device and others record for the work item.
#[pin_data]
pub(super) struct PendingDeviceEvents {
    /// Whether the device was last logged as broken.
    told: Atomic<bool>,
    /// The NI has its device, so its work item runs.
    watched: Atomic<bool>,
    /// An attempt got no answer: the work item checks whether it was ever sent.
    unheard: Atomic<bool>,
    /// An event may have moved the address to another device.
    astray: Atomic<bool>,
    /// Number of the move of the address whose GID change is still expected; 0 if none is expected.
    gids_due: Atomic<u32>,
    /// Number of moves of the address.
    moves: Atomic<u32>,
    /// The location of the address was not known when the NI lost its device.
    unsettled: Atomic<bool>,
    /// Error number logged for a device that the NI cannot use; 0: nothing was logged.
    no_use: Atomic<i32>,
    /// LID of the port at the last check; 0: the port had none, or was not checked yet.
    lid: Atomic<u32>,
    /// Active MTU of the port in bytes at the last check; 0: not known.
    mtu: Atomic<u32>,
    #[pin]
    device_tracker: SpinLock<DeviceTracker>,
}

impl PendingDeviceEvents {
    /// Creates an empty record for an NI without a device.
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
            device_tracker <- kernel::new_spinlock!(DeviceTracker::new(), "PendingDeviceEvents::device_tracker"),
        })
    }

    /// Clears all records, because the NI has another device. The address counts as possibly moved again.
    pub(super) fn clear(&self) {
        self.told.store(false, Release);
        self.no_use.store(0, Relaxed);
        self.lid.store(0, Relaxed);
        self.mtu.store(0, Relaxed);
        self.astray.store(true, Release);
    }

    /// Records the LID of the port. Returns whether the subnet manager has assigned another one since the last check.
    /// Packets that a peer sends to the old LID do not arrive. A port that is down has no LID.
    pub(super) fn has_new_lid(&self, lid: u32) -> bool {
        lid != 0 && ![0, lid].contains(&self.lid.xchg(lid, Full))
    }

    /// Records the active MTU of the port, in bytes. Returns whether it is smaller than at the last check.
    pub(super) fn has_smaller_mtu(&self, mtu: u32) -> bool {
        mtu != 0 && mtu < self.mtu.xchg(mtu, Full)
    }

    /// Records whether the location of the address is unknown (`unsettled`) when the NI loses its device.
    pub(super) fn leave_unsettled(&self, unsettled: bool) {
        self.unsettled.store(unsettled, Release);
    }

    /// Takes that record when the NI gets a device.
    pub(super) fn take_unsettled(&self) -> bool {
        self.unsettled.xchg(false, Full)
    }

    /// Sets whether the work item runs.
    pub(super) fn watch(&self, on: bool) {
        let _ = self.watched.xchg(on, Full);
    }

    /// Returns whether the work item runs.
    pub(super) fn is_watched(&self) -> bool {
        self.watched.load(Acquire)
    }

    /// Records an attempt that timed out. Returns whether the caller must queue the work item.
    pub(super) fn no_reply(&self) -> bool {
        !self.unheard.xchg(true, Full) && self.is_watched()
    }

    /// Records that the address may be on another device. Returns whether the caller must queue the work item.
    pub(super) fn addr_moved(&self) -> bool {
        let _ = self.astray.xchg(true, Full);
        self.is_watched()
    }

    /// Records a move of the address, or a new hardware address. With `gids`, the GIDs change as well. The caller
    /// queues the work item.
    pub(super) fn record_move(&self, gids: bool) {
        let this = self.moves.fetch_add(1, Relaxed).wrapping_add(1).max(1);
        self.gids_due.store(if gids { this } else { 0 }, Release);
        let _ = self.astray.xchg(true, Full);
    }

    /// Allows attempts to connect, because the work item has found the address. If there is a newer reason to check,
    /// the work item runs again, and attempts wait for that run. If such reasons keep coming for long, attempts start
    /// anyway. Returns whether attempts were blocked before.
    pub(super) fn block_attempts(&self, ni: &Ni) -> bool {
        let now_ms = ni.now_ms();
        let long = self.device_tracker.lock().is_long(now_ms);
        if (self.astray.load(Acquire) && !long) || !ni.set_unsettled(false) {
            return false;
        }
        let again = self.astray.load(Acquire) && self.is_watched() && !long;
        if again {
            let _ = ni.set_unsettled(true);
            if !self.is_watched() {
                // The NI has lost its device meanwhile. Without one, no attempt waits for the address.
                let _ = ni.set_unsettled(false);
            }
        }
        !again
    }

    /// Records an event of the device. Returns whether the caller must queue the work item.
    pub(super) fn record_event(&self, event: DeviceEvent, condition: &DeviceHealth) -> bool {
        match event {
            DeviceEvent::Fatal => condition.set_broken(true),
            // A device that recovers without being created again reports active ports.
            DeviceEvent::PortActive(_) => condition.set_broken(false),
            DeviceEvent::PortErr(_) | DeviceEvent::LidChange(_) => {}
            DeviceEvent::GidChange(_) => {
                self.gids_due.store(0, Release);
                return self.addr_moved();
            }
            _ => return false,
        }
        self.is_watched()
    }

    /// Returns whether the device has reported a fatal error. Logs each change.
    pub(super) fn is_fatal(&self, ni: &Ni, hca: &Hca) -> bool {
        let fatal = ni.device_health.is_broken();
        if self.told.xchg(fatal, Full) != fatal {
            let what = if fatal {
                log::broken(ni.nid);
                uevent::Device::Fatal
            } else {
                log::healed(ni.nid);
                uevent::Device::Back
            };
            let name = hca.device.name();
            uevent::device(what, &ni.nid, Some(name.as_str()));
        }
        fatal
    }

    /// Logs that the NI cannot use a device, and why, once for each error. The removal of a device is logged elsewhere.
    pub(super) fn no_use(&self, ni: &Ni, why: &StartError) {
        let (none, e) = ([ENODEV, EADDRNOTAVAIL], why.error);
        if !none.contains(&e) && self.no_use.xchg(e.to_errno(), Full) != e.to_errno() {
            log::cannot_use(ni.nid, &why.what, e);
        }
    }

    /// Returns whether no attempt leaves the device. Checks only after an attempt timed out, and only a software
    /// device: hardware is not known to fail this way. May sleep.
    pub(super) fn is_mute(&self, ni: &Ni, hca: &Hca) -> bool {
        if self.unheard.xchg(false, Full) && hca.device.is_software() {
            let addr = Addr::v4(ni.nid.addr(), 0);
            let mute = listen::gsi_qp_failed(ni.net.as_rdma(), &addr, &hca.device);
            if mute && ni.device_health.set_mute() {
                let name = hca.device.name();
                log::gsi_dead(ni.nid, name.as_str());
                uevent::device(uevent::Device::Mute, &ni.nid, Some(name.as_str()));
            }
        }
        ni.device_health.is_mute()
    }

    /// Returns the next step for the address of the NI. Calls `find` only if there is a reason to. `find` may sleep.
    pub(super) fn find_address(
        &self,
        ni: &Ni,
        find: impl FnOnce() -> AddrLocation,
    ) -> FailoverStep {
        let now_ms = ni.now_ms();
        if self.astray.xchg(false, Full) {
            self.device_tracker.lock().recheck(now_ms);
        }
        {
            let home = self.device_tracker.lock();
            if !home.is_doubted() {
                return FailoverStep::Rest;
            }
            if let Some(ms) = home.wait_ms(now_ms) {
                return FailoverStep::Later(ms);
            }
        }
        let found = find();
        let due = self.gids_due.load(Acquire);
        let next = self.device_tracker.lock().poll(now_ms, found, due != 0);
        if next == FailoverStep::Settled {
            // Except the GID change of a later move.
            let _ = self.gids_due.cmpxchg(due, 0, Full);
        }
        if matches!(next, FailoverStep::AgainIn { ask: true, .. }) {
            request_gid_rescan(ni);
        }
        next
    }
}

/// Logs and reports that the NI has lost its device `hca`.
pub(super) fn report_gone(ni: &Ni, hca: Option<&Hca>) {
    log::detached(ni.nid);
    send_uevent(ni, uevent::Device::Gone, hca);
}

/// Logs and reports that the NI has a device again.
pub(super) fn report_back(ni: &Ni, hca: Option<&Hca>) {
    log::attached(ni.nid);
    send_uevent(ni, uevent::Device::Back, hca);
}

/// Logs and reports that the NI has moved from `old` to another device.
pub(super) fn report_moved(ni: &Ni, old: &Hca, new: Option<&Hca>) {
    let (from, to) = (old.device.name(), new.map(|hca| hca.device.name()));
    let to = to.as_ref().map_or("?", DeviceName::as_str);
    log::moved(ni.nid, from.as_str(), to);
    send_uevent(ni, uevent::Device::Moved, new);
}

fn send_uevent(ni: &Ni, what: uevent::Device, hca: Option<&Hca>) {
    let name = hca.map(|hca| hca.device.name());
    uevent::device(what, &ni.nid, name.as_ref().map(DeviceName::as_str));
}

/// Asks the RDMA core to rescan the GIDs if the interface has the address of the NI, and the device has not. May sleep.
fn request_gid_rescan(ni: &Ni) {
    let hca = ni.hca().ok().filter(|hca| hca.has_gids());
    if let (true, Some(hca)) = (ni.way(|way| way.has_interface()), hca) {
        log::addr_moved(ni.nid, hca.device.name().as_str());
        hca.device.rescan_gids();
    }
}
