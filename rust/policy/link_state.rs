// SPDX-License-Identifier: GPL-2.0

//! Link state of an NI: whether it can reach any peer, and what its connections and messages do when that changes.
//!
//! # Link
//!
//! The link is open while the interface is up with a carrier and the NI's address, and there is an RDMA device whose
//! port is active. Without a carrier of IPoIB ([`Interface::NoCarrier`]) only address resolution fails. When
//! connections lose their link, too,
//!
//! - they end at once if the device is removed, or if LNet has another NI in the same net with an open link. An NI in
//!   another net does not count, because it may lead to other nodes, and then the messages would be lost;
//! - they end after their active transfers ([`may_end`]) if the link is being closed on purpose: the peers can still be
//!   notified;
//! - otherwise they are held for [`HOLD_MS`], or [`hold_ms`], because the transport resends what was lost meanwhile.
//!   Then they end: the peer may have given them up, and a new connection takes less time than to detect that.
//!
//! If LNet has no other NI, messages wait. When the link opens, attempts begin at once, also to peers whose connection
//! the link change closed, because these peers may have waiting messages.
//!
//! # Failover
//!
//! The network notifier is called before the RDMA core moves the GID of an address to another device. Then the GIDs of
//! the old device change, and after those the GIDs of the new one, for which the driver has no event handler yet. So
//! the driver looks for the address after each of these events, and repeats that for a while. Until it is settled no
//! attempt begins, because it would be made on the old device, or with a GID that disappears in the middle of the
//! handshake. On RoCE it is not settled before the GIDs have changed.
//!
//! On some hosts GIDs change all the time: containers come and go, or IPv6 addresses are renewed. There attempts do not
//! wait for longer than [`HURRY_MS`], and looks are [`IDLE_MS`] apart, because a look visits all connections.
//!
//! The core removes the GID of an address together with the address, even if the interface has the same address once
//! more, with another prefix length. Then there is no GID until the address is set again, or the core is asked to look.
//!
//! Context: any; the caller holds the lock of the NI's link state.

use crate::proto::cause::Cause;

/// How long connections without a link are held, in milliseconds. Less than the default transport retries of RoCE: six
/// tries of 0.54 s.
pub const HOLD_MS: u64 = 3_000;

/// Returns how long a queue pair sends a packet again that is not acknowledged, in milliseconds: `retry_count` + 1
/// tries of 4.096 us * 2^`ack_timeout` each. A device may take up to four times as long (InfiniBand, volume 1,
/// 9.7.6.1.3).
/// An `ack_timeout` of 0 means that the queue pair waits forever.
pub fn transport_ms(ack_timeout: u8, retry_count: u8) -> u64 {
    const UNIT_NS: u64 = 4_096;
    if ack_timeout == 0 {
        return u64::MAX;
    }
    // The field has five bits: one try is 2.4 hours at most.
    let one_ns = UNIT_NS.checked_shl(ack_timeout.min(31).into());
    let tries = u64::from(retry_count).saturating_add(1);
    one_ns.unwrap_or(u64::MAX).saturating_mul(tries) / 1_000_000
}

/// Returns how long the connections of an NI on InfiniBand are held that have no way, in milliseconds. `transport_ms`
/// is the longest [`transport_ms`] of them; `None`: no connection knows its own. After `limit_ms` the driver ends a
/// connection in any case, because a transfer on it is stuck.
pub fn hold_ms(transport_ms: Option<u64>, limit_ms: u64) -> u64 {
    transport_ms.map_or(HOLD_MS, |ms| ms.min(limit_ms).max(HOLD_MS))
}

/// How long the link must be quiet before it is closed on purpose, in milliseconds. A peer that was notified reconnects
/// at once if it has a message. If its request arrives while the interface goes down, the CM itself rejects it, without
/// a route, and rxe does not survive that. Before, the driver drops such a request.
const QUIET_MS: u64 = 50;

/// Longest wait of an interface that is set down for a quiet link, in milliseconds (`RO2IB_LEAVE_MAX` of the shim).
const LEAVE_MS: u64 = 500;

/// Milliseconds between two checks whether it is quiet.
pub const LEAVE_LOOK_MS: u32 = 10;

/// Time limit for active transfers of a connection before the link is closed on purpose, in milliseconds. The interface
/// waits for half a second, and the disconnects need some of it.
const FINISH_MS: u64 = 250;

/// The same limit before a connection is closed on purpose. Only messages that need the next connection wait for it.
const PATIENT_MS: u64 = 1_000;

/// Time without a message sent or received that is required then, in milliseconds: a peer answers a request that it has
/// just received.
const STILL_MS: u64 = 30;

/// The same time if there is no hurry: a busy peer may take longer to answer.
const PATIENT_STILL_MS: u64 = 150;

/// Milliseconds between two checks of that.
pub const FINISH_LOOK_MS: u32 = 5;

/// How long to look again after the address was found where it was, in milliseconds. The core's work item moves it in a
/// few milliseconds; on a busy machine that item waits.
const SETTLE_MS: u64 = 1_000;

/// How long to look often, in milliseconds. An address without a device by then has lost it for longer.
const HURRY_MS: u64 = 2_000;

/// Milliseconds between two looks for an address that is on no device.
const NOWHERE_MS: u32 = 10;

/// Milliseconds between two looks whether it is still where it was.
const HERE_MS: u32 = 100;

/// How long it may be on no device, in milliseconds, before the core is asked to look. The address of a bond is found
/// sooner.
const ASK_MS: u64 = 100;

/// Milliseconds between two looks after the hurry is over.
const IDLE_MS: u32 = 1_000;

/// So many connections in a row that ended because the device refused a work request are no accident: some providers
/// promise an operation and refuse the work request that needs it. A peer cannot cause that, because the driver checks
/// what a peer sends before it posts.
pub const MANY_REFUSALS: u8 = 8;

/// A connection that lived for so many milliseconds worked: it begins a new row.
const WORKED_MS: u64 = 10_000;

/// Milliseconds between two connections of a row, at most.
const ROW_MS: u64 = 60_000;

/// Milliseconds for which messages may arrive for an NI that LNet deletes: LNet has checked twice by then.
const DELETION_MS: u64 = 3_000;

/// Returns whether a connection may end that is being closed on purpose, for `cause`, since `waited_ms` milliseconds. A
/// transfer that is cut off is lost: LNet reports that to the sender, and a task that waits for it at the other end has
/// to time out. A transfer that was all in one message may go over the next connection ([`super::resend`]). `busy`: a
/// transmit has not ended, or LNet has a request that it has not given back, or will get one. `still_ms`: milliseconds
/// since something was sent or received.
pub fn may_end(cause: Cause, busy: bool, still_ms: u64, waited_ms: u64) -> bool {
    let (limit_ms, enough_ms) = match cause {
        Cause::LinkDown => (FINISH_MS, STILL_MS),
        _ => (PATIENT_MS, PATIENT_STILL_MS),
    };
    waited_ms >= limit_ms || (!busy && still_ms >= enough_ms)
}

/// How long a peer whose connection the link change closed is remembered, in milliseconds. Longer than a message waits
/// for a connection on either side.
pub const RECALL_MS: u64 = 60_000;

/// Action for a message without a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendPolicy {
    /// Connect.
    Open,
    /// Hold the message until the link opens.
    Hold,
    /// Return it to LNet, which has another NI.
    Refuse,
}

/// State of the interface of an NI.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Interface {
    /// It is up, and has carrier and the address of the NI.
    #[default]
    Up,
    /// It is up and has the address of an NI on InfiniBand, and IPoIB has no carrier: the port is down, or the subnet
    /// manager has not let IPoIB join its multicast group yet. Connections do not need IPoIB.
    NoCarrier,
    /// It is down, or does not have the address of the NI.
    Down,
}

/// Next action of the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkAction {
    /// Nothing, or nothing yet.
    Nothing,
    /// End all connections. Waiting messages go back to LNet if [`LinkState::passage`] refuses them.
    End,
    /// Give messages that wait for a connection back to LNet, which has another NI. The connections stay.
    Refuse,
    Reconnect,
}

/// Place where the address was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddrLocation {
    /// On the device, and the port, that the NI uses.
    Here,
    /// On another device or port.
    Elsewhere,
    Nowhere,
}

/// Result of a look for the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailoverStep {
    /// Milliseconds until the next look; `None`: it is settled.
    pub again_ms: Option<u32>,
    /// No attempt to connect begins before that.
    pub hold: bool,
    /// The RDMA core is asked to look at the addresses of the interfaces, if the interface has that of the NI.
    pub rescan: bool,
}

/// Link state of one NI; the default is an open link.
#[derive(Clone, Copy, Debug, Default)]
pub struct LinkState {
    interface: Interface,
    no_device: bool,
    port_down: bool,
    /// LNet had another NI at the last check.
    other: bool,
    /// It was closed at the last check.
    closed: bool,
    /// When the connections lost their link; `None` while they have it.
    lost_ms: Option<u64>,
    /// Connections were ended since they lost it.
    ended: bool,
    /// Since when it is being closed on purpose.
    leaving_ms: Option<u64>,
    /// All connections have been asked to end since then.
    told: bool,
    /// While it is being closed on purpose: when there last was a connection, or a request of a peer.
    stirred_ms: Option<u64>,
    /// Device that has the address.
    pub address: DeviceTracker,
    pub device_state: DeviceState,
    /// When the first message arrived while LNet deletes the NI.
    deleting_ms: Option<u64>,
    deletion_logged: bool,
}

/// State of the device that the NI uses, and what the driver has logged about it. It is reset for each device.
#[derive(Clone, Copy, Debug, Default)]
pub struct DeviceState {
    /// The device refuses work requests, and is not used again. Set by [`LinkState::refused_post`].
    pub shut: bool,
    /// Connections in a row that ended because the device refused a work request.
    refusals: u8,
    /// End of the last of them.
    refused_ms: u64,
    /// No message of the connection manager leaves the device, until the device is created again.
    pub mute: bool,
    /// An attempt got no answer since the last check.
    pub unheard: bool,
    /// LID of the port at the last check; 0: the port had none, or was not checked yet.
    lid: u32,
    /// Active MTU of the port in bytes at the last check; 0: not known.
    mtu: u32,
    /// Whether the device was last logged as broken.
    pub broken_logged: bool,
    /// Error number that was logged for a device that the NI cannot use; 0: none.
    pub unusable_logged: i32,
}

impl LinkState {
    pub fn interface(&mut self, interface: Interface) {
        self.interface = interface;
        if interface != Interface::Down {
            self.leaving_ms = None;
        }
    }

    /// Records that there is a device. [`LinkState::port`] reports the state of its port.
    pub fn attached(&mut self) {
        self.no_device = false;
    }

    /// Records that the device is removed, or that the NI loses it: the caller ends all connections, and asks
    /// [`LinkState::look`] whether LNet has another NI.
    pub fn detached(&mut self, now_ms: u64) {
        self.no_device = true;
        self.closes(now_ms);
    }

    /// Records that the caller ends all connections.
    fn closes(&mut self, now_ms: u64) {
        self.closed = true;
        let _ = self.lost_ms.get_or_insert(now_ms);
        self.ended = true;
    }

    /// Records whether the port of the device is active. Returns whether that decides about the use of connections.
    pub fn port(&mut self, active: bool) -> bool {
        let carried = self.carries();
        self.port_down = !active;
        self.carries() != carried
    }

    /// Returns whether the port was active at the last query.
    pub fn is_port_active(&self) -> bool {
        !self.port_down
    }

    /// Resets the state of the device, because the NI gets another one, whose port is `active` or not. The address
    /// counts as possibly moved.
    pub fn bound(&mut self, now_ms: u64, active: bool) {
        self.port_down = !active;
        self.device_state = DeviceState::default();
        self.address.recheck(now_ms);
    }

    /// Counts a connection that existed for `lived_ms` milliseconds and ended at `now_ms` because the device refused a
    /// work request. Returns whether the link is closed for that from now on, until the NI has another device.
    /// Connections end at the next check, and messages do not wait.
    #[must_use]
    pub fn refused_post(&mut self, lived_ms: u64, now_ms: u64) -> bool {
        let state = &mut self.device_state;
        let in_row = now_ms.saturating_sub(state.refused_ms) < ROW_MS;
        let goes_on = lived_ms < WORKED_MS && in_row;
        state.refusals = if goes_on {
            state.refusals.saturating_add(1)
        } else {
            1
        };
        state.refused_ms = now_ms;
        state.refusals >= MANY_REFUSALS && !core::mem::replace(&mut state.shut, true)
    }

    /// Records the LID of the port. Returns whether the subnet manager has assigned another one since the last check.
    /// Packets that a peer sends to the old LID do not arrive. A port that is not configured has no LID: 0, or with
    /// mlx5 the permissive LID.
    pub fn has_new_lid(&mut self, lid: u32) -> bool {
        const PERMISSIVE: u32 = 0xffff;
        ![0, PERMISSIVE].contains(&lid)
            && ![0, lid].contains(&core::mem::replace(&mut self.device_state.lid, lid))
    }

    /// Records the active MTU of the port, in bytes. Returns whether it is smaller than at the last check.
    pub fn has_smaller_mtu(&mut self, mtu: u32) -> bool {
        mtu != 0 && mtu < core::mem::replace(&mut self.device_state.mtu, mtu)
    }

    /// Returns why it is closed.
    pub fn why(&self) -> Cause {
        match (self.no_device, self.device_state.shut) {
            (true, _) => Cause::DeviceGone,
            (false, true) => Cause::LocalFault,
            (false, false) => Cause::LinkDown,
        }
    }

    /// Returns whether the interface is up and has the address of the NI.
    pub fn has_interface(&self) -> bool {
        self.interface != Interface::Down
    }

    /// Returns whether connections can be made.
    pub fn is_open(&self) -> bool {
        self.interface == Interface::Up && self.carries()
    }

    /// Returns whether established connections can be used.
    fn carries(&self) -> bool {
        self.has_interface() && !self.no_device && !self.port_down && !self.device_state.shut
    }

    /// Returns whether connections ended because they have no link, or will lose it: a connection that is established
    /// now ends, too.
    pub fn ends_all(&self) -> bool {
        !self.carries() && self.ended
    }

    /// Returns what to do with a message that has no connection.
    pub fn passage(&self) -> SendPolicy {
        match (self.is_open(), self.other || self.device_state.shut) {
            (true, _) if !self.address.unsettled => SendPolicy::Open,
            (false, true) => SendPolicy::Refuse,
            _ => SendPolicy::Hold,
        }
    }

    /// Begins to close the link on purpose: the caller ends all connections now, or soon ([`may_end`]), and then calls
    /// [`LinkState::looked`].
    pub fn leaving(&mut self, now_ms: u64) {
        self.interface = Interface::Down;
        self.leaving_ms = Some(now_ms);
        self.told = false;
        self.stirred_ms = None;
        self.closes(now_ms);
    }

    /// Records a request of a peer, which gets no answer because the link is being closed.
    pub fn asked(&mut self, now_ms: u64) {
        self.stirred_ms = Some(now_ms);
    }

    /// Returns whether it is being closed on purpose.
    pub fn is_leaving(&self) -> bool {
        self.leaving_ms.is_some()
    }

    /// Returns whether it is being closed on purpose, and connections have not been asked to end yet.
    pub fn is_untold(&self) -> bool {
        self.is_leaving() && !self.told
    }

    /// Records that all connections were asked to end after [`LinkState::leaving`]. To be called again each
    /// [`LEAVE_LOOK_MS`] while it returns true. `busy`: there still are connections, or peers that have received a DREQ
    /// and not answered.
    #[must_use]
    pub fn looked(&mut self, now_ms: u64, busy: bool) -> bool {
        self.told = true;
        if busy {
            self.stirred_ms = Some(now_ms);
        }
        let waits = |since: u64| now_ms.saturating_sub(since) < LEAVE_MS;
        self.leaving_ms.is_some_and(waits) && !self.is_quiet(now_ms)
    }

    /// Returns whether the interface may go, after [`LinkState::leaving`].
    pub fn is_quiet(&self, now_ms: u64) -> bool {
        let quiet = |at: u64| now_ms.saturating_sub(at) >= QUIET_MS;
        !self.is_leaving() || (self.told && self.stirred_ms.is_none_or(quiet))
    }

    /// Returns what to do. To be called after every change, and about once a second while the link is closed. `other`:
    /// another NI of the same net has an open link. `hold_ms`: how long connections without a link are held, in
    /// milliseconds; see [`hold_ms`].
    #[must_use]
    pub fn look(&mut self, now_ms: u64, other: bool, hold_ms: u64) -> LinkAction {
        let open = self.is_open();
        let other = other && !open;
        let opened = core::mem::replace(&mut self.closed, !open) && open;
        let newly = !core::mem::replace(&mut self.other, other) && other;
        if self.carries() {
            self.ended = false;
            self.lost_ms = None;
            return match (opened, newly) {
                (true, _) => LinkAction::Reconnect,
                (false, true) => LinkAction::Refuse,
                (false, false) => LinkAction::Nothing,
            };
        }
        let since = *self.lost_ms.get_or_insert(now_ms);
        let over = other || self.device_state.shut || now_ms.saturating_sub(since) >= hold_ms;
        if newly || (over && !self.ended) {
            self.ended = true;
            return LinkAction::End;
        }
        LinkAction::Nothing
    }

    /// Counts a message that arrived while LNet deletes the NI. LNet does not announce a deletion. It waits for a
    /// moment in which it has no message of the NI, and checks for that once a second
    /// (`lnet_clear_zombies_nis_locked()`, 2.17). Peers that continue to send may never leave such a moment. Even a
    /// slow peer needs only a message now and then, because LNet has it until it has arrived.
    ///
    /// Returns `Some` if the connection is to be closed: true for the first one, which is logged.
    pub fn rx_while_deleting(&mut self, now_ms: u64) -> Option<bool> {
        let since = *self.deleting_ms.get_or_insert(now_ms);
        let is_late = now_ms.saturating_sub(since) >= DELETION_MS;
        is_late.then(|| !core::mem::replace(&mut self.deletion_logged, true))
    }
}

/// Tracker of the device that has the address.
#[derive(Clone, Copy, Debug, Default)]
pub struct DeviceTracker {
    /// Time of the last event that may have moved it.
    doubted_ms: Option<u64>,
    /// Time of the first of the events that follow each other within [`SETTLE_MS`].
    began_ms: u64,
    looked_ms: u64,
    /// The core was asked since then.
    asked: bool,
    /// The GIDs of the device are going to change.
    awaited: bool,
    /// Attempts to connect wait, because the address may be about to move to another device. Also after the NI has lost
    /// its device, because the next device may be about to lose the address.
    pub unsettled: bool,
}

impl DeviceTracker {
    /// Records an event that may have moved the address.
    pub fn recheck(&mut self, now_ms: u64) {
        // The time may have been read before a look that is under way began, which did not see the event.
        let now_ms = now_ms.max(self.looked_ms);
        if !self.is_recent(now_ms) {
            self.began_ms = now_ms;
        }
        self.doubted_ms = Some(now_ms);
        self.asked = false;
    }

    /// Records that the interface moves, or has a new hardware address. With `gids`, the GIDs change as well. Attempts
    /// wait if the NI has a device (`attached`). `take_change` takes the record that the GIDs of the device have
    /// changed.
    pub fn moves(
        &mut self,
        now_ms: u64,
        gids: bool,
        attached: bool,
        take_change: impl FnOnce() -> bool,
    ) {
        self.recheck(now_ms);
        // An earlier change is not the change that belongs to this move.
        let _ = take_change();
        self.awaited = gids;
        self.unsettled |= attached;
    }

    fn is_recent(&self, now_ms: u64) -> bool {
        let recent = |at: u64| now_ms.saturating_sub(at) < SETTLE_MS;
        self.doubted_ms.is_some_and(recent)
    }

    /// Returns whether such events have followed each other for so long that attempts no longer wait.
    fn is_long(&self, now_ms: u64) -> bool {
        self.is_recent(now_ms) && now_ms.saturating_sub(self.began_ms) >= HURRY_MS
    }

    /// Returns the milliseconds until the address is to be looked for; `None`: there is no reason to. `take_change` as
    /// for [`DeviceTracker::moves`].
    pub fn wait_ms(&mut self, now_ms: u64, take_change: impl FnOnce() -> bool) -> Option<u32> {
        if take_change() {
            self.recheck(now_ms);
            self.awaited = false;
        }
        self.doubted_ms?;
        let since = u32::try_from(now_ms.saturating_sub(self.looked_ms)).unwrap_or(IDLE_MS);
        Some(if self.is_long(now_ms) {
            IDLE_MS.saturating_sub(since)
        } else {
            0
        })
    }

    /// Records the result of a look. An address that moved is looked for again, as after any other event, because the
    /// core may not have finished.
    pub fn poll(&mut self, now_ms: u64, found: AddrLocation) -> FailoverStep {
        let since = now_ms.saturating_sub(self.doubted_ms.unwrap_or(0));
        self.looked_ms = now_ms;
        let (again_ms, hold, rescan) = match found {
            AddrLocation::Elsewhere => {
                // The address moves for sure: what follows is not one of many changes.
                self.doubted_ms = None;
                self.recheck(now_ms);
                (Some(0), true, false)
            }
            AddrLocation::Here if since >= SETTLE_MS => {
                self.doubted_ms = None;
                self.awaited = false;
                (None, false, false)
            }
            AddrLocation::Here => {
                let early = self.awaited || since < u64::from(HERE_MS);
                (Some(HERE_MS), early && !self.is_long(now_ms), false)
            }
            AddrLocation::Nowhere if since >= ASK_MS && !self.asked => {
                self.asked = true;
                (Some(NOWHERE_MS), true, true)
            }
            AddrLocation::Nowhere if since >= HURRY_MS => (Some(IDLE_MS), false, false),
            AddrLocation::Nowhere => (Some(NOWHERE_MS), true, false),
        };
        FailoverStep {
            again_ms,
            hold,
            rescan,
        }
    }

    /// Lets attempts begin, because a look that began at `now_ms` does not hold them. If there is a newer event
    /// (`pending`, or recorded), they wait for the next look, except if such events keep coming for long. Returns
    /// whether attempts waited.
    pub fn settle(&mut self, now_ms: u64, pending: bool) -> bool {
        let newer = pending || self.doubted_ms.is_some_and(|at| at >= now_ms);
        if newer && !self.is_long(now_ms) {
            return false;
        }
        core::mem::take(&mut self.unsettled)
    }
}

#[cfg(any(test, ro2iblnd_kunit))]
#[cfg_attr(ro2iblnd_kunit, ::kernel::macros::kunit_tests(ro2ib_link_state))]
mod tests {
    use core::cell::Cell;

    use super::*;

    #[test]
    fn a_port_that_is_not_configured_has_no_new_lid() {
        let mut w = LinkState::default();
        for lid in [0xffff, 17, 0xffff, 17, 0, 17] {
            assert!(!w.has_new_lid(lid));
        }
        assert!(w.has_new_lid(18));
    }

    #[test]
    fn a_short_loss_is_held() {
        let mut w = LinkState::default();
        assert_eq!(w.look(0, false, HOLD_MS), LinkAction::Nothing);
        w.interface(Interface::Down);
        assert_eq!(w.look(100, false, HOLD_MS), LinkAction::Nothing);
        assert_eq!(w.passage(), SendPolicy::Hold);
        assert_eq!(w.look(99 + HOLD_MS, false, HOLD_MS), LinkAction::Nothing);
        w.interface(Interface::Up);
        assert_eq!(w.passage(), SendPolicy::Open);
        assert_eq!(w.look(100 + HOLD_MS, false, HOLD_MS), LinkAction::Reconnect);
        assert_eq!(w.look(101 + HOLD_MS, false, HOLD_MS), LinkAction::Nothing);
    }

    #[test]
    fn transfers_finish_before_a_close() {
        for (cause, limit_ms, enough_ms) in [
            (Cause::LinkDown, FINISH_MS, STILL_MS),
            (Cause::AdminClose, PATIENT_MS, PATIENT_STILL_MS),
        ] {
            assert!(may_end(cause, false, enough_ms, 0));
            // An answer may be on its way.
            assert!(!may_end(cause, false, enough_ms.saturating_sub(1), 0));
            assert!(!may_end(cause, true, 5000, limit_ms.saturating_sub(1)));
            // But not for ever, even if all are busy all the time.
            assert!(may_end(cause, true, 5000, limit_ms));
            assert!(may_end(cause, true, 0, limit_ms));
        }
    }

    #[test]
    fn a_long_one_ends_connections_once() {
        let mut w = LinkState::default();
        w.port(false);
        assert_eq!(w.look(5, false, HOLD_MS), LinkAction::Nothing);
        assert_eq!(w.look(5 + HOLD_MS, false, HOLD_MS), LinkAction::End);
        assert_eq!(w.look(6 + HOLD_MS, false, HOLD_MS), LinkAction::Nothing);
        w.interface(Interface::Down);
        w.port(true);
        assert_eq!(w.look(7 + HOLD_MS, false, HOLD_MS), LinkAction::Nothing);
        w.interface(Interface::Up);
        assert_eq!(w.look(8 + HOLD_MS, false, HOLD_MS), LinkAction::Reconnect);
        // The next time starts at 0.
        w.port(false);
        assert_eq!(w.look(9 + HOLD_MS, false, HOLD_MS), LinkAction::Nothing);
        assert_eq!(
            w.look(9 + HOLD_MS + HOLD_MS, false, HOLD_MS),
            LinkAction::End
        );
    }

    #[test]
    fn a_way_that_is_shut_stays_shut_and_holds_nothing() {
        let mut w = LinkState::default();
        for n in 1..=u64::from(MANY_REFUSALS) {
            assert_eq!(w.refused_post(5, n), n == u64::from(MANY_REFUSALS));
        }
        // However young the NI is.
        assert_eq!(w.look(1, false, HOLD_MS), LinkAction::End);
        assert!(w.ends_all());
        assert_eq!(w.why(), Cause::LocalFault);
        assert_eq!(w.passage(), SendPolicy::Refuse);
        w.port(true);
        assert_eq!(w.look(1 + HOLD_MS, false, HOLD_MS), LinkAction::Nothing);
        assert!(!w.is_open());
        // Another device.
        w.bound(2 + HOLD_MS, true);
        assert_eq!(w.look(2 + HOLD_MS, false, HOLD_MS), LinkAction::Reconnect);
    }

    #[test]
    fn with_another_way_nothing_waits() {
        let mut w = LinkState::default();
        w.interface(Interface::Down);
        assert_eq!(w.look(1, true, HOLD_MS), LinkAction::End);
        assert_eq!(w.passage(), SendPolicy::Refuse);
        assert_eq!(w.look(2, true, HOLD_MS), LinkAction::Nothing);
        // The other one closes, too: from now on messages wait here.
        assert_eq!(w.look(3, false, HOLD_MS), LinkAction::Nothing);
        assert_eq!(w.passage(), SendPolicy::Hold);
        // It is back first: what waits goes there.
        assert_eq!(w.look(4, true, HOLD_MS), LinkAction::End);
        assert_eq!(w.passage(), SendPolicy::Refuse);
        // The last state of the other NI says nothing about the next time.
        w.interface(Interface::Up);
        assert_eq!(w.look(5, true, HOLD_MS), LinkAction::Reconnect);
        w.leaving(6);
        assert_eq!(w.passage(), SendPolicy::Hold);
        assert_eq!(w.look(6, true, HOLD_MS), LinkAction::End);
    }

    /// Tests that a removed device is like a closed link.
    #[test]
    fn messages_wait_for_a_device_that_was_removed() {
        let mut w = LinkState::default();
        assert_eq!(w.why(), Cause::LinkDown);
        w.detached(1);
        assert_eq!(
            (w.passage(), w.why()),
            (SendPolicy::Hold, Cause::DeviceGone)
        );
        assert!(w.ends_all());
        // Connections have ended.
        assert_eq!(w.look(2, false, HOLD_MS), LinkAction::Nothing);
        assert_eq!(w.look(2 + HOLD_MS, false, HOLD_MS), LinkAction::Nothing);
        // LNet has another way: what waits goes there.
        assert_eq!(w.look(3 + HOLD_MS, true, HOLD_MS), LinkAction::End);
        assert_eq!(w.passage(), SendPolicy::Refuse);
        assert_eq!(w.look(4 + HOLD_MS, false, HOLD_MS), LinkAction::Nothing);
        // The device is back before its port is up.
        w.port(false);
        w.attached();
        assert_eq!((w.passage(), w.why()), (SendPolicy::Hold, Cause::LinkDown));
        assert_eq!(w.look(5 + HOLD_MS, false, HOLD_MS), LinkAction::Nothing);
        w.port(true);
        assert_eq!(w.passage(), SendPolicy::Open);
        assert_eq!(w.look(6 + HOLD_MS, false, HOLD_MS), LinkAction::Reconnect);
        assert_eq!(w.look(7 + HOLD_MS, false, HOLD_MS), LinkAction::Nothing);
    }

    #[test]
    fn peers_that_ask_again_are_waited_for() {
        let mut w = LinkState::default();
        assert!(!w.is_leaving() && w.is_quiet(0));
        w.leaving(1);
        // Connections have not been notified yet.
        assert!(w.is_leaving() && w.is_untold() && !w.is_quiet(1));
        // There was no connection to notify.
        assert!(!w.looked(1, false) && w.is_quiet(1) && !w.is_untold());
        assert!(w.looked(2, true) && !w.is_quiet(2));
        assert!(w.looked(12, false) && !w.is_quiet(12));
        w.asked(20);
        assert!(!w.is_quiet(19 + QUIET_MS));
        assert!(w.is_quiet(20 + QUIET_MS));
        // A quiet link last time says nothing about the next time.
        w.leaving(1000);
        assert!(!w.is_quiet(1000));
        assert!(w.looked(1000, true));
        // The interface waits no longer.
        assert!(!w.looked(1000 + LEAVE_MS, true));
        w.leaving(2000);
        w.interface(Interface::Up);
        assert!(!w.is_leaving() && w.is_quiet(2000) && !w.looked(2001, true));
    }

    #[test]
    fn administrative_link_down_ends_connections_at_once() {
        let mut w = LinkState::default();
        assert!(!w.ends_all());
        w.leaving(1);
        assert!(!w.is_open() && w.ends_all());
        assert_eq!(w.look(1 + HOLD_MS, false, HOLD_MS), LinkAction::Nothing);
        assert_eq!(w.passage(), SendPolicy::Hold);
        w.interface(Interface::Up);
        assert!(!w.ends_all());
        assert_eq!(w.look(2 + HOLD_MS, false, HOLD_MS), LinkAction::Reconnect);
        // One that closes by itself is waited for.
        w.interface(Interface::Down);
        assert_eq!(w.look(3 + HOLD_MS, false, HOLD_MS), LinkAction::Nothing);
        assert!(!w.ends_all());
        assert_eq!(
            w.look(3 + HOLD_MS + HOLD_MS, false, HOLD_MS),
            LinkAction::End
        );
        assert!(w.ends_all());
    }

    #[test]
    fn transport_retries_last_as_specified() {
        // RoCE: packet lifetime 16, so 17 for the way there and back, and the CM's default.
        assert_eq!(transport_ms(17, 5), 3_221);
        // InfiniBand with the packet lifetime of a subnet manager, 18, and the adapter's own delay.
        assert_eq!(transport_ms(19, 5), 12_884);
        assert_eq!(transport_ms(19, 0), 2_147);
        assert_eq!(transport_ms(20, 7), 34_359);
        assert_eq!(transport_ms(0, 0), u64::MAX);
        // No number that a device may report is too large.
        assert_eq!(transport_ms(31, 0), 8_796_093);
        assert_eq!(transport_ms(u8::MAX, u8::MAX), 2_251_799_813);
    }

    #[test]
    fn connections_are_held_as_long_as_their_transport_retries_last() {
        assert_eq!(hold_ms(Some(12_884), 50_000), 12_884);
        assert_eq!(hold_ms(Some(34_359), 20_000), 20_000);
        assert_eq!(hold_ms(Some(u64::MAX), 50_000), 50_000);
        // Nothing may be under way on a connection whose transport gives up sooner.
        assert_eq!(hold_ms(Some(2_147), 50_000), HOLD_MS);
        assert_eq!(hold_ms(None, 50_000), HOLD_MS);

        let mut w = LinkState::default();
        w.port(false);
        let hold = hold_ms(Some(transport_ms(19, 5)), 50_000);
        assert_eq!(w.look(0, false, hold), LinkAction::Nothing);
        assert_eq!(w.look(12_000, false, hold), LinkAction::Nothing);
        assert_eq!(w.look(13_000, false, hold), LinkAction::End);
    }

    #[test]
    fn connections_go_on_without_the_carrier_of_ipoib() {
        let mut w = LinkState::default();
        w.interface(Interface::NoCarrier);
        for now_ms in [0, HOLD_MS, 100 * HOLD_MS] {
            assert_eq!(w.look(now_ms, false, HOLD_MS), LinkAction::Nothing);
        }
        // An attempt would not find the address of the peer. A request of a peer can be answered.
        assert_eq!(w.passage(), SendPolicy::Hold);
        assert!(w.has_interface() && !w.ends_all());
        // LNet has another NI: only messages without a connection go there.
        assert_eq!(w.look(101 * HOLD_MS, true, HOLD_MS), LinkAction::Refuse);
        assert_eq!(w.passage(), SendPolicy::Refuse);
        assert_eq!(w.look(102 * HOLD_MS, true, HOLD_MS), LinkAction::Nothing);
        assert_eq!(w.look(103 * HOLD_MS, false, HOLD_MS), LinkAction::Nothing);
        w.interface(Interface::Up);
        assert_eq!(w.look(104 * HOLD_MS, false, HOLD_MS), LinkAction::Reconnect);
    }

    #[test]
    fn a_port_that_fails_without_a_carrier_counts_from_then() {
        let mut w = LinkState::default();
        w.interface(Interface::NoCarrier);
        assert_eq!(w.look(0, false, HOLD_MS), LinkAction::Nothing);
        w.port(false);
        assert_eq!(w.look(5 * HOLD_MS, false, HOLD_MS), LinkAction::Nothing);
        assert_eq!(w.look(6 * HOLD_MS - 1, false, HOLD_MS), LinkAction::Nothing);
        assert_eq!(w.look(6 * HOLD_MS, false, HOLD_MS), LinkAction::End);
        assert!(w.ends_all());
        // The port is back, and IPoIB is not: peers may connect.
        w.port(true);
        assert_eq!(w.look(7 * HOLD_MS, false, HOLD_MS), LinkAction::Nothing);
        assert!(!w.ends_all());
        // The port fails again: that time is counted from its own beginning.
        w.port(false);
        assert_eq!(w.look(8 * HOLD_MS, false, HOLD_MS), LinkAction::Nothing);
        assert_eq!(w.look(9 * HOLD_MS, false, HOLD_MS), LinkAction::End);
        // An administrator sets the interface down.
        w.port(true);
        w.interface(Interface::Up);
        assert_eq!(w.look(10 * HOLD_MS, false, HOLD_MS), LinkAction::Reconnect);
        w.interface(Interface::Down);
        assert_eq!(w.look(11 * HOLD_MS, false, HOLD_MS), LinkAction::Nothing);
        assert_eq!(w.look(12 * HOLD_MS, false, HOLD_MS), LinkAction::End);
    }

    #[test]
    fn many_connections_in_a_row_are_no_accident() {
        let mut w = LinkState::default();
        for n in 1..=MANY_REFUSALS {
            assert!(!w.device_state.shut);
            // The first one may have worked for long.
            let lived_ms = if n == 1 { 1_000_000 } else { 5 };
            let now_ms = u64::from(n).saturating_mul(1_600).saturating_add(2_000_000);
            assert_eq!(w.refused_post(lived_ms, now_ms), n == MANY_REFUSALS);
        }
        assert!(w.device_state.shut);
        // The count does not overflow, and the result is reported once.
        for n in 0..1000u64 {
            assert!(!w.refused_post(0, n.saturating_add(2_020_000)));
            assert!(w.device_state.shut && w.device_state.refusals >= MANY_REFUSALS);
        }
    }

    #[test]
    fn single_refusals_are_forgotten() {
        let mut w = LinkState::default();
        for n in 0..100u64 {
            let now_ms = n.saturating_mul(ROW_MS);
            // The second one is a connection that worked.
            assert!(!w.refused_post(5, now_ms));
            assert!(!w.refused_post(WORKED_MS, now_ms.saturating_add(1)));
        }
    }

    #[test]
    fn continuous_messages_do_not_delay_ni_deletion() {
        for every_ms in [1, 100, DELETION_MS - 1] {
            let mut w = LinkState::default();
            for ms in (0..DELETION_MS).step_by(usize::try_from(every_ms).unwrap_or(1)) {
                assert_eq!(w.rx_while_deleting(ms), None);
            }
            assert_eq!(w.rx_while_deleting(DELETION_MS), Some(true));
            // Other connections are closed, too; only the first is logged.
            assert_eq!(w.rx_while_deleting(DELETION_MS + 1), Some(false));
        }
    }

    #[test]
    fn a_message_now_and_then_is_enough_to_keep_a_deleted_ni() {
        let mut w = LinkState::default();
        assert_eq!(w.rx_while_deleting(0), None);
        assert_eq!(w.rx_while_deleting(40 * DELETION_MS), Some(true));
    }

    #[test]
    fn attempts_wait_while_the_address_may_move() {
        let mut w = LinkState::default();
        w.address.moves(0, true, true, || false);
        assert_eq!(w.passage(), SendPolicy::Hold);
        assert!(w.is_open() && w.address.poll(500, AddrLocation::Here).hold);
        assert_eq!(w.address.wait_ms(600, || true), Some(0));
        assert!(!w.address.poll(700, AddrLocation::Here).hold);
        // Another event came during the look.
        assert!(!w.address.settle(700, true));
        w.address.recheck(701);
        assert!(!w.address.settle(700, false) && w.address.unsettled);
        assert!(!w.address.poll(801, AddrLocation::Here).hold);
        assert!(w.address.settle(801, false) && !w.address.settle(801, false));
        assert_eq!(w.passage(), SendPolicy::Open);
        // The NI loses its device meanwhile: the next device may be about to lose the address.
        w.address.moves(900, false, true, || false);
        w.detached(901);
        w.address.moves(902, false, false, || false);
        w.bound(903, true);
        w.attached();
        assert!(w.is_open() && w.passage() == SendPolicy::Hold);
        // Without such a move, no attempt waits.
        let mut w = LinkState::default();
        w.detached(901);
        w.address.moves(902, false, false, || false);
        w.bound(903, true);
        w.attached();
        assert_eq!(w.passage(), SendPolicy::Open);
    }

    const ASKED: FailoverStep = FailoverStep {
        again_ms: Some(NOWHERE_MS),
        hold: true,
        rescan: true,
    };

    const MOVE: FailoverStep = FailoverStep {
        again_ms: Some(0),
        hold: true,
        rescan: false,
    };

    const SETTLED: FailoverStep = FailoverStep {
        again_ms: None,
        hold: false,
        rescan: false,
    };

    fn again(ms: u32, hold: bool) -> FailoverStep {
        FailoverStep {
            again_ms: Some(ms),
            hold,
            rescan: false,
        }
    }

    #[test]
    fn nothing_is_looked_for_without_a_reason() {
        let mut h = DeviceTracker::default();
        assert_eq!(h.wait_ms(5, || false), None);
    }

    #[test]
    fn late_move_is_found() {
        let mut h = DeviceTracker::default();
        h.recheck(100);
        assert_eq!(h.poll(100, AddrLocation::Here), again(HERE_MS, true));
        assert_eq!(h.poll(190, AddrLocation::Nowhere), again(NOWHERE_MS, true));
        assert_eq!(h.poll(200, AddrLocation::Elsewhere), MOVE);
        // And perhaps back.
        assert_eq!(h.poll(220, AddrLocation::Here), again(HERE_MS, true));
        assert_eq!(h.poll(320, AddrLocation::Elsewhere), MOVE);
        assert_eq!(
            h.poll(319 + SETTLE_MS, AddrLocation::Here),
            again(HERE_MS, false)
        );
        assert_eq!(h.poll(320 + SETTLE_MS, AddrLocation::Here), SETTLED);
        assert_eq!(h.wait_ms(321 + SETTLE_MS, || false), None);
    }

    #[test]
    fn address_on_this_device_waits_for_its_gids() {
        let mut h = DeviceTracker::default();
        h.moves(0, true, true, || false);
        assert_eq!(h.poll(500, AddrLocation::Here), again(HERE_MS, true));
        // They are late: the second event starts the time again, and so does the pause.
        assert_eq!(h.wait_ms(600, || true), Some(0));
        assert_eq!(h.poll(601, AddrLocation::Here), again(HERE_MS, true));
        assert_eq!(h.poll(701, AddrLocation::Here), again(HERE_MS, false));
        // They do not change after all.
        h.moves(2_000, true, true, || false);
        let late = 1_999 + SETTLE_MS;
        assert_eq!(h.poll(late, AddrLocation::Here), again(HERE_MS, true));
        assert_eq!(h.poll(late + 1, AddrLocation::Here), SETTLED);
    }

    /// Tests a change of the GIDs that an interrupt has recorded, and that no check has seen before the move.
    #[test]
    fn test_gid_change_before_a_move_does_not_end_its_wait() {
        let mut h = DeviceTracker::default();
        let changed = Cell::new(true);
        h.moves(0, true, true, || changed.take());
        assert_eq!(h.wait_ms(1, || changed.take()), Some(0));
        assert!(h.poll(500, AddrLocation::Here).hold);
        // The change that belongs to the move.
        changed.set(true);
        assert_eq!(h.wait_ms(501, || changed.take()), Some(0));
        assert!(!h.poll(700, AddrLocation::Here).hold);
    }

    /// Tests a notifier that reads the time, and waits for the lock while a check looks for the address.
    #[test]
    fn test_move_with_an_old_time_is_newer_than_a_running_look() {
        let mut h = DeviceTracker::default();
        h.moves(0, false, true, || false);
        assert!(!h.poll(1_000, AddrLocation::Here).hold);
        h.moves(999, false, true, || false);
        assert!(!h.settle(1_000, false) && h.unsettled);
        // The next look sees the move.
        assert_eq!(h.wait_ms(1_001, || false), Some(0));
        assert_eq!(h.poll(1_001, AddrLocation::Elsewhere), MOVE);
    }

    #[test]
    fn missing_address_is_polled_until_found() {
        let mut h = DeviceTracker::default();
        h.recheck(0);
        assert_eq!(h.poll(HURRY_MS, AddrLocation::Nowhere), ASKED);
        assert_eq!(
            h.poll(HURRY_MS, AddrLocation::Nowhere),
            again(IDLE_MS, false)
        );
        assert_eq!(
            h.poll(100 * HURRY_MS, AddrLocation::Nowhere),
            again(IDLE_MS, false)
        );
        // It is back where it was, long after the reason.
        assert_eq!(h.poll(101 * HURRY_MS, AddrLocation::Here), SETTLED);
        h.recheck(7);
        assert_eq!(h.poll(8, AddrLocation::Nowhere), again(NOWHERE_MS, true));
    }

    /// Tests containers that come and go: the GIDs of the device change more often than ten times a second.
    #[test]
    fn constant_gid_changes_delay_attempts_two_seconds_at_most() {
        let mut h = DeviceTracker::default();
        let (mut held_ms, mut looks) = (0u64, 0u64);
        for now_ms in (1_000..61_000).step_by(50) {
            h.recheck(now_ms);
            if h.wait_ms(now_ms, || false) != Some(0) {
                continue;
            }
            looks = looks.saturating_add(1);
            if h.poll(now_ms, AddrLocation::Here).hold {
                held_ms = now_ms.saturating_sub(1_000);
            }
        }
        // A look visits all connections.
        assert!(held_ms < HURRY_MS && looks < 60 + HURRY_MS / 50 + 2);
        // It moves after all, and the next look finds it.
        h.recheck(62_000);
        assert_eq!(h.wait_ms(62_000, || false), Some(0));
        assert_eq!(h.poll(62_000, AddrLocation::Elsewhere), MOVE);
        assert_eq!(h.poll(62_001, AddrLocation::Here), again(HERE_MS, true));
        // When they are quiet it is settled.
        assert_eq!(h.poll(63_000, AddrLocation::Here), SETTLED);
        assert!(!h.is_long(63_000));
        h.recheck(64_000);
        assert!(!h.is_long(64_000) && h.wait_ms(64_000, || false) == Some(0));
    }

    #[test]
    fn the_core_is_asked_once_for_each_reason() {
        let mut h = DeviceTracker::default();
        h.recheck(0);
        for now_ms in [1, ASK_MS - 1] {
            let next = h.poll(now_ms, AddrLocation::Nowhere);
            assert_eq!(next, again(NOWHERE_MS, true));
        }
        assert_eq!(h.poll(ASK_MS, AddrLocation::Nowhere), ASKED);
        let next = h.poll(ASK_MS + 1, AddrLocation::Nowhere);
        assert_eq!(next, again(NOWHERE_MS, true));
        // Its GIDs change: it has found the address, or takes it away only now.
        h.recheck(500);
        assert_eq!(h.poll(501, AddrLocation::Nowhere), again(NOWHERE_MS, true));
        assert_eq!(h.poll(500 + ASK_MS, AddrLocation::Nowhere), ASKED);
        // An address that moved may be removed there.
        assert_eq!(h.poll(700, AddrLocation::Elsewhere), MOVE);
        assert_eq!(h.poll(700 + ASK_MS, AddrLocation::Nowhere), ASKED);
    }
}
