// SPDX-License-Identifier: GPL-2.0

//! Link state of an NI: whether it can reach any peer, and what its connections and messages do when that changes.
//!
//! The link is open while the interface is up with a carrier and the NI's address, and there is an RDMA device whose
//! port is active. An IPoIB interface without a carrier closes the link too, because address resolution goes through
//! the interface. But it does not affect the NI's connections, so they continue while the port is active
//! ([`Interface::NoCarrier`]).
//!
//! When the connections of the NI lose their link, too:
//!
//! - If the device is removed, connections end at once, because they belong to that device.
//! - If the link is being closed on purpose (`ip link set down`, an address removed), connections end while the peers
//!   can still be notified, and active transfers are completed first ([`may_end`]). The same holds when an
//!   administrator closes connections.
//! - If LNet has another NI of this node in the same net with an open link, connections end at once, too, and nothing
//!   waits here: LNet sends the messages over the other NI. An NI in another net does not count, because it may lead to
//!   other nodes, and then the messages would be lost.
//! - Otherwise they are held for [`HOLD_MS`], and on InfiniBand for as long as their transport retries last
//!   ([`hold_ms`]). The transport resends what was lost meanwhile. Then the connections end, because the peer may have
//!   given them up by then, and a new connection is established sooner than the transport detects that.
//!
//! If LNet has no other NI, messages wait for this link to open.
//!
//! When it opens, attempts begin at once: for peers with waiting messages, and for peers whose connection the link
//! change closed, because these peers may have waiting messages.
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

/// Activity on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnActivity {
    /// A transmit has not ended.
    pub transmits: bool,
    /// LNet has a request that it has not given back, or will get one.
    pub requests: bool,
    /// Milliseconds since something was sent or received.
    pub still_ms: u64,
}

/// Returns whether a connection may end that is being closed on purpose, for `cause`, since `waited_ms` milliseconds. A
/// transfer that is cut off is lost: LNet reports that to the sender, and a task that waits for it at the other end has
/// to time out. A transfer that was all in one message may go over the next connection ([`super::resend`]).
pub fn may_end(cause: Cause, under_way: ConnActivity, waited_ms: u64) -> bool {
    let ConnActivity {
        transmits,
        requests,
        still_ms,
    } = under_way;
    let (limit_ms, enough_ms) = match cause {
        Cause::LinkDown => (FINISH_MS, STILL_MS),
        _ => (PATIENT_MS, PATIENT_STILL_MS),
    };
    waited_ms >= limit_ms || (!transmits && !requests && still_ms >= enough_ms)
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interface {
    /// It is up, and has carrier and the address of the NI.
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
    /// Reconnect.
    Reconnect,
}

/// Link state of one NI.
#[derive(Clone, Copy, Debug)]
pub struct LinkState {
    interface: Interface,
    device: bool,
    port: bool,
    /// The device refuses work requests, and is not used again.
    shut: bool,
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
}

impl LinkState {
    /// Creates an open link.
    pub const fn new() -> Self {
        Self {
            interface: Interface::Up,
            device: true,
            port: true,
            shut: false,
            other: false,
            closed: false,
            lost_ms: None,
            ended: false,
            leaving_ms: None,
            told: false,
            stirred_ms: None,
        }
    }

    /// Records the state of the interface.
    pub fn interface(&mut self, interface: Interface) {
        self.interface = interface;
        if interface != Interface::Down {
            self.leaving_ms = None;
        }
    }

    /// Records that there is a device. [`LinkState::port`] reports the state of its port.
    pub fn attached(&mut self) {
        self.device = true;
    }

    /// Records that the device is removed: the caller ends all connections, and asks [`LinkState::look`] whether LNet
    /// has another NI.
    pub fn detached(&mut self, now_ms: u64) {
        self.device = false;
        self.closed = true;
        let _ = self.lost_ms.get_or_insert(now_ms);
        self.ended = true;
    }

    /// Records whether the port of the device is active.
    pub fn port(&mut self, active: bool) {
        self.port = active;
    }

    /// Closes the link because the device refuses work requests (`shut`), until the NI has another device. Connections
    /// end at the next check, and messages do not wait.
    pub fn shut(&mut self, shut: bool) {
        self.shut = shut;
    }

    /// Returns why it is closed.
    pub fn why(&self) -> Cause {
        match (self.device, self.shut) {
            (false, _) => Cause::DeviceGone,
            (true, true) => Cause::LocalFault,
            (true, false) => Cause::LinkDown,
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
        self.has_interface() && self.device && self.port && !self.shut
    }

    /// Returns whether connections ended because they have no link, or will lose it: a connection that is established
    /// now ends, too.
    pub fn ends_all(&self) -> bool {
        !self.carries() && self.ended
    }

    /// Returns what to do with a message that has no connection.
    pub fn passage(&self) -> SendPolicy {
        match (self.is_open(), self.other || self.shut) {
            (true, _) => SendPolicy::Open,
            (false, false) => SendPolicy::Hold,
            (false, true) => SendPolicy::Refuse,
        }
    }

    /// Begins to close the link on purpose: the caller ends all connections now, or soon ([`may_end`]), and then calls
    /// [`LinkState::looked`].
    pub fn leaving(&mut self, now_ms: u64) {
        self.interface = Interface::Down;
        self.leaving_ms = Some(now_ms);
        self.told = false;
        self.closed = true;
        let _ = self.lost_ms.get_or_insert(now_ms);
        self.ended = true;
        self.stirred_ms = None;
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
        if self.is_open() {
            self.ended = false;
            self.other = false;
            self.lost_ms = None;
            return match core::mem::replace(&mut self.closed, false) {
                true => LinkAction::Reconnect,
                false => LinkAction::Nothing,
            };
        }
        self.closed = true;
        let newly = other && !self.other;
        self.other = other;
        if self.carries() {
            self.ended = false;
            self.lost_ms = None;
            return match newly {
                true => LinkAction::Refuse,
                false => LinkAction::Nothing,
            };
        }
        let since = *self.lost_ms.get_or_insert(now_ms);
        let over = other || self.shut || now_ms.saturating_sub(since) >= hold_ms;
        if newly || (over && !self.ended) {
            self.ended = true;
            return LinkAction::End;
        }
        LinkAction::Nothing
    }
}

impl Default for LinkState {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(any(test, ro2iblnd_kunit))]
#[cfg_attr(ro2iblnd_kunit, ::kernel::macros::kunit_tests(ro2ib_link_state))]
mod tests {
    use super::*;

    #[test]
    fn a_short_loss_is_held() {
        let mut w = LinkState::new();
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
        let busy = |transmits, requests, still_ms| ConnActivity {
            transmits,
            requests,
            still_ms,
        };
        for (cause, limit_ms, enough_ms) in [
            (Cause::LinkDown, FINISH_MS, STILL_MS),
            (Cause::AdminClose, PATIENT_MS, PATIENT_STILL_MS),
        ] {
            assert!(may_end(cause, busy(false, false, enough_ms), 0));
            // An answer may be on its way.
            assert!(!may_end(
                cause,
                busy(false, false, enough_ms.saturating_sub(1)),
                0
            ));
            for under_way in [busy(true, false, 5000), busy(false, true, 5000)] {
                assert!(!may_end(cause, under_way, limit_ms.saturating_sub(1)));
                // But not for ever, even if all are busy all the time.
                assert!(may_end(cause, under_way, limit_ms));
            }
            assert!(may_end(cause, busy(true, true, 0), limit_ms));
        }
    }

    #[test]
    fn a_long_one_ends_connections_once() {
        let mut w = LinkState::new();
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
        let mut w = LinkState::new();
        w.shut(true);
        // However young the NI is.
        assert_eq!(w.look(1, false, HOLD_MS), LinkAction::End);
        assert!(w.ends_all());
        assert_eq!(w.why(), Cause::LocalFault);
        assert_eq!(w.passage(), SendPolicy::Refuse);
        w.port(true);
        assert_eq!(w.look(1 + HOLD_MS, false, HOLD_MS), LinkAction::Nothing);
        assert!(!w.is_open());
        // Another device.
        w.shut(false);
        assert_eq!(w.look(2 + HOLD_MS, false, HOLD_MS), LinkAction::Reconnect);
    }

    #[test]
    fn with_another_way_nothing_waits() {
        let mut w = LinkState::new();
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
        let mut w = LinkState::new();
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
        let mut w = LinkState::new();
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
        let mut w = LinkState::new();
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

        let mut w = LinkState::new();
        w.port(false);
        let hold = hold_ms(Some(transport_ms(19, 5)), 50_000);
        assert_eq!(w.look(0, false, hold), LinkAction::Nothing);
        assert_eq!(w.look(12_000, false, hold), LinkAction::Nothing);
        assert_eq!(w.look(13_000, false, hold), LinkAction::End);
    }

    #[test]
    fn connections_go_on_without_the_carrier_of_ipoib() {
        let mut w = LinkState::new();
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
        let mut w = LinkState::new();
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
}
