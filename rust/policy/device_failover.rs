// SPDX-License-Identifier: GPL-2.0

//! Failover of an NI's address to another RDMA device.
//!
//! A bond moves its address to the device below its active slave. No single event reports that. The network notifier is
//! called first, when the RDMA core has not yet moved the GID of the address. Then the GIDs of the old device change,
//! and after those the GIDs of the new one, for which the driver has no event handler yet. So the driver looks for the
//! address after each of these events, and repeats that for a while: for a moment the address may be on no device.
//!
//! Until that is settled no attempt to connect begins, because it would be made on the old device, or with a GID that
//! disappears in the middle of the handshake. On RoCE the GIDs always change, even if the address stays on its device;
//! so it is not settled before that change, which is late on a busy machine.
//!
//! On some hosts GIDs change all the time: containers come and go, or IPv6 addresses are renewed. There each change is
//! a reason to look, but attempts do not wait for longer than [`HURRY_MS`], and looks are [`IDLE_MS`] apart from then
//! on, because a look visits all connections.
//!
//! The core removes the GID of an address together with the address, even if the interface has the same address once
//! more, with another prefix length. Then there is no GID until the address is set again, or the core is asked to look.
//!
//! Context: any; the caller holds a lock.

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

/// Place where the address was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddrLocation {
    /// On the device, and the port, that the NI uses.
    Here,
    /// On another device or port.
    Elsewhere,
    /// On no device.
    Nowhere,
}

/// Next action of the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailoverStep {
    /// Nothing.
    Rest,
    /// Nothing any more: no attempt needs to wait for the address.
    Settled,
    /// Nothing yet: the last look was a moment ago. To be called again after this time, in milliseconds.
    Later(u32),
    /// Look again after this time. No attempt to connect begins before that, if `hold`.
    AgainIn {
        /// Milliseconds.
        ms: u32,
        /// It is not settled yet.
        hold: bool,
        /// The RDMA core is asked to look at the addresses of the interfaces, if the interface has that of the NI.
        ask: bool,
    },
    /// The NI follows its address.
    Move,
}

/// Tracker of the device that has the address.
#[derive(Clone, Copy, Debug)]
pub struct DeviceTracker {
    /// Time of the last event that may have moved it.
    doubted_ms: Option<u64>,
    /// Time of the first of the events that follow each other within [`SETTLE_MS`].
    began_ms: u64,
    /// Time of the last look.
    looked_ms: u64,
    /// The core was asked since then.
    asked: bool,
}

impl DeviceTracker {
    /// Creates a tracker of an address whose device is known.
    pub const fn new() -> Self {
        Self {
            doubted_ms: None,
            began_ms: 0,
            looked_ms: 0,
            asked: false,
        }
    }

    /// Records an event that may have moved the address.
    pub fn recheck(&mut self, now_ms: u64) {
        if !self.is_recent(now_ms) {
            self.began_ms = now_ms;
        }
        self.doubted_ms = Some(now_ms);
        self.asked = false;
    }

    fn is_recent(&self, now_ms: u64) -> bool {
        let recent = |at: u64| now_ms.saturating_sub(at) < SETTLE_MS;
        self.doubted_ms.is_some_and(recent)
    }

    /// Returns whether such events have followed each other for so long that attempts no longer wait.
    pub fn is_long(&self, now_ms: u64) -> bool {
        self.is_recent(now_ms) && now_ms.saturating_sub(self.began_ms) >= HURRY_MS
    }

    /// Returns the milliseconds until it is to be looked for, if that is not now.
    pub fn wait_ms(&self, now_ms: u64) -> Option<u32> {
        let since = now_ms.saturating_sub(self.looked_ms);
        let left = u64::from(IDLE_MS).saturating_sub(since);
        let left = u32::try_from(left).ok().filter(|ms| *ms > 0);
        left.filter(|_| self.is_long(now_ms))
    }

    /// Returns whether to look for the address.
    pub fn is_doubted(&self) -> bool {
        self.doubted_ms.is_some()
    }

    /// Records the result of a look. An address that moved is looked for again, as after any other event, because the
    /// core may not have finished. `awaited`: the GIDs are going to change, and have not.
    pub fn poll(&mut self, now_ms: u64, found: AddrLocation, awaited: bool) -> FailoverStep {
        let Some(doubted_ms) = self.doubted_ms else {
            return FailoverStep::Rest;
        };
        let since = now_ms.saturating_sub(doubted_ms);
        self.looked_ms = now_ms;
        match found {
            AddrLocation::Elsewhere => {
                // The address moves for sure: what follows is not one of many changes.
                self.doubted_ms = None;
                self.recheck(now_ms);
                FailoverStep::Move
            }
            AddrLocation::Here if since >= SETTLE_MS => {
                self.doubted_ms = None;
                FailoverStep::Settled
            }
            AddrLocation::Here => FailoverStep::AgainIn {
                ms: HERE_MS,
                hold: !self.is_long(now_ms) && (awaited || since < u64::from(HERE_MS)),
                ask: false,
            },
            AddrLocation::Nowhere if since >= ASK_MS && !self.asked => {
                self.asked = true;
                FailoverStep::AgainIn {
                    ms: NOWHERE_MS,
                    hold: true,
                    ask: true,
                }
            }
            AddrLocation::Nowhere if since >= HURRY_MS => FailoverStep::AgainIn {
                ms: IDLE_MS,
                hold: false,
                ask: false,
            },
            AddrLocation::Nowhere => FailoverStep::AgainIn {
                ms: NOWHERE_MS,
                hold: true,
                ask: false,
            },
        }
    }
}

impl Default for DeviceTracker {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(any(test, ro2iblnd_kunit))]
#[cfg_attr(ro2iblnd_kunit, ::kernel::macros::kunit_tests(ro2ib_device_failover))]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_looked_for_without_a_reason() {
        let mut h = DeviceTracker::new();
        assert!(!h.is_doubted());
        for found in [
            AddrLocation::Here,
            AddrLocation::Elsewhere,
            AddrLocation::Nowhere,
        ] {
            assert_eq!(h.poll(5, found, false), FailoverStep::Rest);
        }
    }

    const ASKED: FailoverStep = FailoverStep::AgainIn {
        ms: NOWHERE_MS,
        hold: true,
        ask: true,
    };

    fn again(ms: u32, hold: bool) -> FailoverStep {
        FailoverStep::AgainIn {
            ms,
            hold,
            ask: false,
        }
    }

    #[test]
    fn late_move_is_found() {
        let mut h = DeviceTracker::new();
        h.recheck(100);
        assert_eq!(h.poll(100, AddrLocation::Here, false), again(HERE_MS, true));
        assert_eq!(
            h.poll(190, AddrLocation::Nowhere, false),
            again(NOWHERE_MS, true)
        );
        assert_eq!(
            h.poll(200, AddrLocation::Elsewhere, false),
            FailoverStep::Move
        );
        // And perhaps back.
        assert_eq!(h.poll(220, AddrLocation::Here, false), again(HERE_MS, true));
        assert_eq!(
            h.poll(320, AddrLocation::Elsewhere, false),
            FailoverStep::Move
        );
        assert_eq!(
            h.poll(319 + SETTLE_MS, AddrLocation::Here, false),
            again(HERE_MS, false)
        );
        assert_eq!(
            h.poll(320 + SETTLE_MS, AddrLocation::Here, false),
            FailoverStep::Settled
        );
        assert_eq!(
            h.poll(321 + SETTLE_MS, AddrLocation::Here, false),
            FailoverStep::Rest
        );
        assert!(!h.is_doubted());
    }

    #[test]
    fn address_on_this_device_waits_for_its_gids() {
        let mut h = DeviceTracker::new();
        h.recheck(0);
        assert_eq!(h.poll(500, AddrLocation::Here, true), again(HERE_MS, true));
        // They are late: the second event starts the time again, and so does the pause.
        h.recheck(600);
        assert_eq!(h.poll(601, AddrLocation::Here, false), again(HERE_MS, true));
        assert_eq!(
            h.poll(701, AddrLocation::Here, false),
            again(HERE_MS, false)
        );
        // They do not change after all.
        h.recheck(2_000);
        let late = 1_999 + SETTLE_MS;
        assert_eq!(h.poll(late, AddrLocation::Here, true), again(HERE_MS, true));
        assert_eq!(
            h.poll(late + 1, AddrLocation::Here, true),
            FailoverStep::Settled
        );
    }

    #[test]
    fn missing_address_is_polled_until_found() {
        let mut h = DeviceTracker::new();
        h.recheck(0);
        assert_eq!(h.poll(HURRY_MS, AddrLocation::Nowhere, false), ASKED);
        assert_eq!(
            h.poll(HURRY_MS, AddrLocation::Nowhere, false),
            again(IDLE_MS, false)
        );
        assert_eq!(
            h.poll(100 * HURRY_MS, AddrLocation::Nowhere, false),
            again(IDLE_MS, false)
        );
        // It is back where it was, long after the reason.
        assert_eq!(
            h.poll(101 * HURRY_MS, AddrLocation::Here, false),
            FailoverStep::Settled
        );
        h.recheck(7);
        assert_eq!(
            h.poll(8, AddrLocation::Nowhere, false),
            again(NOWHERE_MS, true)
        );
    }

    /// Tests containers that come and go: the GIDs of the device change more often than ten times a second.
    #[test]
    fn constant_gid_changes_delay_attempts_two_seconds_at_most() {
        let mut h = DeviceTracker::new();
        let (mut held_ms, mut looks) = (0u64, 0u64);
        for now_ms in (1_000..61_000).step_by(50) {
            h.recheck(now_ms);
            if h.wait_ms(now_ms).is_some() {
                continue;
            }
            looks = looks.saturating_add(1);
            if let FailoverStep::AgainIn { hold: true, .. } =
                h.poll(now_ms, AddrLocation::Here, false)
            {
                held_ms = now_ms.saturating_sub(1_000);
            }
        }
        // A look visits all connections.
        assert!(held_ms < HURRY_MS && looks < 60 + HURRY_MS / 50 + 2);
        // It moves after all, and the next look finds it.
        h.recheck(62_000);
        assert_eq!(h.wait_ms(62_000), None);
        assert_eq!(
            h.poll(62_000, AddrLocation::Elsewhere, false),
            FailoverStep::Move
        );
        assert_eq!(
            h.poll(62_001, AddrLocation::Here, false),
            again(HERE_MS, true)
        );
        // When they are quiet it is settled.
        assert_eq!(
            h.poll(63_000, AddrLocation::Here, false),
            FailoverStep::Settled
        );
        assert!(!h.is_long(63_000));
        h.recheck(64_000);
        assert!(!h.is_long(64_000) && h.wait_ms(64_000).is_none());
    }

    #[test]
    fn the_core_is_asked_once_for_each_reason() {
        let mut h = DeviceTracker::new();
        h.recheck(0);
        for now_ms in [1, ASK_MS - 1] {
            let next = h.poll(now_ms, AddrLocation::Nowhere, false);
            assert_eq!(next, again(NOWHERE_MS, true));
        }
        assert_eq!(h.poll(ASK_MS, AddrLocation::Nowhere, false), ASKED);
        let next = h.poll(ASK_MS + 1, AddrLocation::Nowhere, false);
        assert_eq!(next, again(NOWHERE_MS, true));
        // Its GIDs change: it has found the address, or takes it away only now.
        h.recheck(500);
        assert_eq!(
            h.poll(501, AddrLocation::Nowhere, false),
            again(NOWHERE_MS, true)
        );
        assert_eq!(h.poll(500 + ASK_MS, AddrLocation::Nowhere, false), ASKED);
        // An address that moved may be removed there.
        assert_eq!(
            h.poll(700, AddrLocation::Elsewhere, false),
            FailoverStep::Move
        );
        assert_eq!(h.poll(700 + ASK_MS, AddrLocation::Nowhere, false), ASKED);
    }
}
