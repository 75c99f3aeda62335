// SPDX-License-Identifier: GPL-2.0

//! The way out of an NI: whether it can reach anybody at all, and what its connections and messages
//! do when that changes.
//!
//! The way is open while the interface is up with a carrier and the NI's address, and there is an RDMA device whose port
//! is active. When it closes:
//!
//! - If the device is removed, connections end at once: they are of that device.
//! - If it is being closed on purpose (`ip link set down`, an address taken away), connections end
//!   while the peers can still be told, and first what is under way on them ([`may_end`]). It is the same where an
//!   administrator closes connections.
//! - If LNet has another way, through another NI of ours in the same net, they end at once, too, and nothing waits
//!   here: LNet sends it over the other. An NI in another net is none: it may lead to other nodes, and then what
//!   ends is lost.
//! - Else they are held for [`HOLD_MS`], because the transport repeats what was lost meanwhile; then
//!   they end, because by then the peer may have given them up, and a new connection is there sooner
//!   than the transport finds that out.
//!
//! Where LNet has no other way messages wait for this one to open.
//!
//! When it opens, attempts begin at once: for peers that messages wait for, and for those whose
//! connection the way took along, because it is their messages that may wait.
//!
//! Context: any; the caller holds the lock of the NI's way.

use super::cause::Cause;

/// How long connections are held though the way is closed, in milliseconds. Less than the
/// transport's retries take by default.
pub const HOLD_MS: u64 = 3_000;

/// How long nothing must have happened, in milliseconds, before a way may close that is closed on
/// purpose. A peer that was told connects anew at once if it has a message. A request of that kind in
/// the moment in which the interface goes down is refused by the CM itself, without a route, and that
/// is what rxe does not survive; before, we drop it.
const QUIET_MS: u64 = 50;

/// How long what is under way on a connection may take to end before a way is closed on purpose, in milliseconds. The
/// interface waits for half a second, and the farewells need some of it.
const FINISH_MS: u64 = 250;

/// The same before a connection is closed on purpose, for which nobody waits but the messages that want the next one.
const PATIENT_MS: u64 = 1_000;

/// How long nothing must have been sent or received then, in milliseconds: a peer answers what it has just been asked.
const STILL_MS: u64 = 30;

/// The same where there is time: a busy peer may take longer to answer.
const PATIENT_STILL_MS: u64 = 150;

/// Milliseconds between two looks at that.
pub const FINISH_LOOK_MS: u32 = 5;

/// What is under way on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnderWay {
    /// A transmit has not ended.
    pub transmits: bool,
    /// LNet has a request that it has not given back, or will get one.
    pub requests: bool,
    /// Milliseconds since something was sent or received.
    pub still_ms: u64,
}

/// Whether a connection may end that is being closed on purpose, for `cause`, since `waited_ms` milliseconds. What is
/// cut off of a transfer is lost: LNet tells whoever sent it, and who waits for it at the other end finds out by a timeout
/// of its own. What was all in one message may go over the next connection ([`super::again`]).
pub fn may_end(cause: Cause, under_way: UnderWay, waited_ms: u64) -> bool {
    let UnderWay {
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

/// How long a peer whose connection the way took along is remembered, in milliseconds. Longer than a
/// message waits for a connection on either side.
pub const RECALL_MS: u64 = 60_000;

/// What becomes of a message that has no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passage {
    /// One is made.
    Open,
    /// It waits for the way to open.
    Hold,
    /// It goes back to LNet, which has another way.
    Refuse,
}

/// What is to be done now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Todo {
    /// Nothing, or nothing yet.
    Nothing,
    /// End all connections. Messages that wait go back to LNet if [`Way::passage`] refuses them.
    End,
    /// Connect anew.
    Reconnect,
}

/// The way out of one NI.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    interface: bool,
    device: bool,
    port: bool,
    /// LNet has another one; as of the last look.
    other: bool,
    /// When it closed; `None` while it is open.
    closed_ms: Option<u64>,
    /// Connections were ended since it closed.
    ended: bool,
    /// While it is being closed on purpose: when a connection was last there, or a peer last asked for
    /// one.
    stirred_ms: Option<u64>,
}

impl Way {
    /// Open.
    pub const fn new() -> Self {
        Self {
            interface: true,
            device: true,
            port: true,
            other: false,
            closed_ms: None,
            ended: false,
            stirred_ms: None,
        }
    }

    /// The interface has carrier and address, or not.
    pub fn interface(&mut self, up: bool) {
        self.interface = up;
    }

    /// There is a device. What its port is like is for [`Way::port`] to say.
    pub fn attached(&mut self) {
        self.device = true;
    }

    /// The device is removed: the caller ends all connections, and asks [`Way::look`] whether LNet has another way.
    pub fn detached(&mut self, now_ms: u64) {
        self.device = false;
        let _ = self.closed_ms.get_or_insert(now_ms);
        self.ended = true;
    }

    /// The port of the device is active, or not.
    pub fn port(&mut self, active: bool) {
        self.port = active;
    }

    /// Why it is closed.
    pub fn why(&self) -> Cause {
        match self.device {
            true => Cause::LinkDown,
            false => Cause::DeviceGone,
        }
    }

    /// Whether the interface has carrier and address.
    pub fn has_interface(&self) -> bool {
        self.interface
    }

    /// Whether it is open.
    pub fn is_open(&self) -> bool {
        self.interface && self.device && self.port
    }

    /// Whether connections were ended because it is closing or closed: those that come to be now end, too.
    pub fn ends_all(&self) -> bool {
        !self.is_open() && self.ended
    }

    /// What becomes of a message that has no connection.
    pub fn passage(&self) -> Passage {
        match (self.is_open(), self.other) {
            (true, _) => Passage::Open,
            (false, false) => Passage::Hold,
            (false, true) => Passage::Refuse,
        }
    }

    /// It is being closed on purpose: the caller ends all connections now, or soon ([`may_end`]).
    pub fn leaving(&mut self, now_ms: u64) {
        self.interface = false;
        if self.closed_ms.is_none() {
            self.closed_ms = Some(now_ms);
        }
        self.ended = true;
        self.stirred_ms = None;
    }

    /// A peer asked for a connection, and gets no answer because the way is being closed.
    pub fn asked(&mut self, now_ms: u64) {
        self.stirred_ms = Some(now_ms);
    }

    /// After [`Way::leaving`]: whether the interface may go. `busy`: there are connections yet, or
    /// peers that have been told and not been heard.
    #[must_use]
    pub fn is_quiet(&mut self, now_ms: u64, busy: bool) -> bool {
        if busy {
            self.stirred_ms = Some(now_ms);
        }
        self.stirred_ms
            .is_none_or(|at| now_ms.saturating_sub(at) >= QUIET_MS)
    }

    /// To be asked after every change, and about once a second while it is closed. `other`: another
    /// NI of the same net has an open way.
    #[must_use]
    pub fn look(&mut self, now_ms: u64, other: bool) -> Todo {
        if self.is_open() {
            self.ended = false;
            self.other = false;
            return match self.closed_ms.take() {
                Some(_) => Todo::Reconnect,
                None => Todo::Nothing,
            };
        }
        let newly = other && !self.other;
        self.other = other;
        let since = *self.closed_ms.get_or_insert(now_ms);
        let over = other || now_ms.saturating_sub(since) >= HOLD_MS;
        if newly || (over && !self.ended) {
            self.ended = true;
            return Todo::End;
        }
        Todo::Nothing
    }
}

impl Default for Way {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(any(test, ro2iblnd_kunit))]
#[cfg_attr(ro2iblnd_kunit, ::kernel::macros::kunit_tests(ro2iblnd_way))]
mod tests {
    use super::*;

    #[test]
    fn a_short_loss_is_held() {
        let mut w = Way::new();
        assert_eq!(w.look(0, false), Todo::Nothing);
        w.interface(false);
        assert_eq!(w.look(100, false), Todo::Nothing);
        assert_eq!(w.passage(), Passage::Hold);
        assert_eq!(w.look(99 + HOLD_MS, false), Todo::Nothing);
        w.interface(true);
        assert_eq!(w.passage(), Passage::Open);
        assert_eq!(w.look(100 + HOLD_MS, false), Todo::Reconnect);
        assert_eq!(w.look(101 + HOLD_MS, false), Todo::Nothing);
    }

    #[test]
    fn what_is_under_way_ends_first() {
        let busy = |transmits, requests, still_ms| UnderWay {
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
                // But not for ever, though all are busy all the time.
                assert!(may_end(cause, under_way, limit_ms));
            }
            assert!(may_end(cause, busy(true, true, 0), limit_ms));
        }
    }

    #[test]
    fn a_long_one_ends_connections_once() {
        let mut w = Way::new();
        w.port(false);
        assert_eq!(w.look(5, false), Todo::Nothing);
        assert_eq!(w.look(5 + HOLD_MS, false), Todo::End);
        assert_eq!(w.look(6 + HOLD_MS, false), Todo::Nothing);
        w.interface(false);
        w.port(true);
        assert_eq!(w.look(7 + HOLD_MS, false), Todo::Nothing);
        w.interface(true);
        assert_eq!(w.look(8 + HOLD_MS, false), Todo::Reconnect);
        // The next time counts from its own beginning.
        w.port(false);
        assert_eq!(w.look(9 + HOLD_MS, false), Todo::Nothing);
        assert_eq!(w.look(9 + HOLD_MS + HOLD_MS, false), Todo::End);
    }

    #[test]
    fn with_another_way_nothing_waits() {
        let mut w = Way::new();
        w.interface(false);
        assert_eq!(w.look(1, true), Todo::End);
        assert_eq!(w.passage(), Passage::Refuse);
        assert_eq!(w.look(2, true), Todo::Nothing);
        // The other one closes, too: from now on messages wait here.
        assert_eq!(w.look(3, false), Todo::Nothing);
        assert_eq!(w.passage(), Passage::Hold);
        // It is back first: what waits goes there.
        assert_eq!(w.look(4, true), Todo::End);
        assert_eq!(w.passage(), Passage::Refuse);
        // What was the case last time says nothing of the next.
        w.interface(true);
        assert_eq!(w.look(5, true), Todo::Reconnect);
        w.leaving(6);
        assert_eq!(w.passage(), Passage::Hold);
        assert_eq!(w.look(6, true), Todo::End);
    }

    /// As behind a link that is down.
    #[test]
    fn messages_wait_for_a_device_that_was_removed() {
        let mut w = Way::new();
        assert_eq!(w.why(), Cause::LinkDown);
        w.detached(1);
        assert_eq!((w.passage(), w.why()), (Passage::Hold, Cause::DeviceGone));
        assert!(w.ends_all());
        // Connections have ended.
        assert_eq!(w.look(2, false), Todo::Nothing);
        assert_eq!(w.look(2 + HOLD_MS, false), Todo::Nothing);
        // LNet has another way: what waits goes there.
        assert_eq!(w.look(3 + HOLD_MS, true), Todo::End);
        assert_eq!(w.passage(), Passage::Refuse);
        assert_eq!(w.look(4 + HOLD_MS, false), Todo::Nothing);
        // The device is back before its port is up.
        w.port(false);
        w.attached();
        assert_eq!((w.passage(), w.why()), (Passage::Hold, Cause::LinkDown));
        assert_eq!(w.look(5 + HOLD_MS, false), Todo::Nothing);
        w.port(true);
        assert_eq!(w.passage(), Passage::Open);
        assert_eq!(w.look(6 + HOLD_MS, false), Todo::Reconnect);
        assert_eq!(w.look(7 + HOLD_MS, false), Todo::Nothing);
    }

    #[test]
    fn peers_that_ask_again_are_waited_for() {
        let mut w = Way::new();
        w.leaving(1);
        // There was nobody to be told.
        assert!(w.is_quiet(1, false));
        assert!(!w.is_quiet(2, true));
        assert!(!w.is_quiet(12, false));
        w.asked(20);
        assert!(!w.is_quiet(19 + QUIET_MS, false));
        assert!(w.is_quiet(20 + QUIET_MS, false));
        w.leaving(100);
        assert!(w.is_quiet(100, false));
    }

    #[test]
    fn what_closes_on_purpose_ends_at_once() {
        let mut w = Way::new();
        assert!(!w.ends_all());
        w.leaving(1);
        assert!(!w.is_open() && w.ends_all());
        assert_eq!(w.look(1 + HOLD_MS, false), Todo::Nothing);
        assert_eq!(w.passage(), Passage::Hold);
        w.interface(true);
        assert!(!w.ends_all());
        assert_eq!(w.look(2 + HOLD_MS, false), Todo::Reconnect);
        // One that closes by itself is waited for.
        w.interface(false);
        assert_eq!(w.look(3 + HOLD_MS, false), Todo::Nothing);
        assert!(!w.ends_all());
        assert_eq!(w.look(3 + HOLD_MS + HOLD_MS, false), Todo::End);
        assert!(w.ends_all());
    }
}
