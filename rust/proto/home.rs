// SPDX-License-Identifier: GPL-2.0

//! Where the address of an NI is at home: on its RDMA device, or on another one meanwhile.
//!
//! A bond moves its address to the device below its active slave. Nobody says so in one word. The notifier of the
//! network comes first, when the RDMA core has not yet moved the GID of the address; then the GIDs of the old device
//! change, and after those the GIDs of the new one, to which nobody listens yet. So after each of these the
//! address is looked for, and for a while again: for a moment it may be nowhere.
//!
//! Until that is settled no attempt to connect is begun: it would be made on the device that is being left, or with a
//! GID that goes in the middle of the handshake. Of RoCE the GIDs always change, also if the address stays on its device;
//! so it is not settled before they have, and on a busy machine they do late.
//!
//! The core takes the GID of an address away with the address, also where the interface has that once more, with another
//! prefix length. It has none then until somebody sets the address anew, or asks the core to look.
//!
//! Context: any; the caller holds a lock.

/// How long to go on looking though the address is where it was, in milliseconds. The core's work item moves it in a few;
/// on a busy machine that item waits.
const SETTLE_MS: u64 = 1_000;

/// How long to look often, in milliseconds. What has no device by then has lost it for longer.
const HURRY_MS: u64 = 2_000;

/// Milliseconds between two looks for an address that is nowhere.
const NOWHERE_MS: u32 = 10;

/// Milliseconds between two looks whether it still is where it was.
const HERE_MS: u32 = 100;

/// How long it may be nowhere, in milliseconds, before the core is asked to look. A bond's is somewhere sooner.
const ASK_MS: u64 = 100;

/// Milliseconds between two looks when there is no hurry any more.
const IDLE_MS: u32 = 1_000;

/// Where the address was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// On the device, and the port, that the NI uses.
    Here,
    /// On another one.
    Elsewhere,
    /// On none.
    Nowhere,
}

/// What is to be done now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing.
    Rest,
    /// Nothing any more: nobody needs to wait for where it is.
    Settled,
    /// Look again after so many milliseconds. Nobody is connected to before that, if `hold`.
    AgainIn {
        /// Milliseconds.
        ms: u32,
        /// It is not settled yet.
        hold: bool,
        /// The RDMA core is told to look at the addresses of the interfaces, if the interface has that of the NI.
        ask: bool,
    },
    /// The NI follows its address.
    Move,
}

/// Whether it is known where the address is.
#[derive(Clone, Copy, Debug)]
pub struct Home {
    /// When something last was a reason to doubt it.
    doubted_ms: Option<u64>,
    /// The core was asked since then.
    asked: bool,
}

impl Home {
    /// Known.
    pub const fn new() -> Self {
        Self {
            doubted_ms: None,
            asked: false,
        }
    }

    /// Something happened that may have moved it.
    pub fn doubt(&mut self, now_ms: u64) {
        self.doubted_ms = Some(now_ms);
        self.asked = false;
    }

    /// Whether the address is to be looked for.
    pub fn is_doubted(&self) -> bool {
        self.doubted_ms.is_some()
    }

    /// It was looked for. What was moved is looked for again, as after any other reason to doubt: the core may be at it
    /// yet. `awaited`: the GIDs are going to change, and have not.
    pub fn look(&mut self, now_ms: u64, found: Found, awaited: bool) -> Next {
        let Some(doubted_ms) = self.doubted_ms else {
            return Next::Rest;
        };
        let since = now_ms.saturating_sub(doubted_ms);
        match found {
            Found::Elsewhere => {
                self.doubt(now_ms);
                Next::Move
            }
            Found::Here if since >= SETTLE_MS => {
                self.doubted_ms = None;
                Next::Settled
            }
            Found::Here => Next::AgainIn {
                ms: HERE_MS,
                hold: awaited || since < u64::from(HERE_MS),
                ask: false,
            },
            Found::Nowhere if since >= ASK_MS && !self.asked => {
                self.asked = true;
                Next::AgainIn {
                    ms: NOWHERE_MS,
                    hold: true,
                    ask: true,
                }
            }
            Found::Nowhere if since >= HURRY_MS => Next::AgainIn {
                ms: IDLE_MS,
                hold: false,
                ask: false,
            },
            Found::Nowhere => Next::AgainIn {
                ms: NOWHERE_MS,
                hold: true,
                ask: false,
            },
        }
    }
}

impl Default for Home {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(any(test, ro2iblnd_kunit))]
#[cfg_attr(ro2iblnd_kunit, ::kernel::macros::kunit_tests(ro2iblnd_home))]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_looked_for_without_a_reason() {
        let mut h = Home::new();
        assert!(!h.is_doubted());
        for found in [Found::Here, Found::Elsewhere, Found::Nowhere] {
            assert_eq!(h.look(5, found, false), Next::Rest);
        }
    }

    const ASKED: Next = Next::AgainIn {
        ms: NOWHERE_MS,
        hold: true,
        ask: true,
    };

    fn again(ms: u32, hold: bool) -> Next {
        Next::AgainIn {
            ms,
            hold,
            ask: false,
        }
    }

    #[test]
    fn what_moves_late_is_found() {
        let mut h = Home::new();
        h.doubt(100);
        assert_eq!(h.look(100, Found::Here, false), again(HERE_MS, true));
        assert_eq!(h.look(190, Found::Nowhere, false), again(NOWHERE_MS, true));
        assert_eq!(h.look(200, Found::Elsewhere, false), Next::Move);
        // And perhaps back.
        assert_eq!(h.look(220, Found::Here, false), again(HERE_MS, true));
        assert_eq!(h.look(320, Found::Elsewhere, false), Next::Move);
        assert_eq!(
            h.look(319 + SETTLE_MS, Found::Here, false),
            again(HERE_MS, false)
        );
        assert_eq!(h.look(320 + SETTLE_MS, Found::Here, false), Next::Settled);
        assert_eq!(h.look(321 + SETTLE_MS, Found::Here, false), Next::Rest);
        assert!(!h.is_doubted());
    }

    #[test]
    fn what_is_here_waits_for_its_gids() {
        let mut h = Home::new();
        h.doubt(0);
        assert_eq!(h.look(500, Found::Here, true), again(HERE_MS, true));
        // They are late: the second begins anew, and so does the pause.
        h.doubt(600);
        assert_eq!(h.look(601, Found::Here, false), again(HERE_MS, true));
        assert_eq!(h.look(701, Found::Here, false), again(HERE_MS, false));
        // They do not change after all.
        h.doubt(2_000);
        let late = 1_999 + SETTLE_MS;
        assert_eq!(h.look(late, Found::Here, true), again(HERE_MS, true));
        assert_eq!(h.look(late + 1, Found::Here, true), Next::Settled);
    }

    #[test]
    fn what_is_nowhere_is_looked_for_until_it_is_somewhere() {
        let mut h = Home::new();
        h.doubt(0);
        assert_eq!(h.look(HURRY_MS, Found::Nowhere, false), ASKED);
        assert_eq!(
            h.look(HURRY_MS, Found::Nowhere, false),
            again(IDLE_MS, false)
        );
        assert_eq!(
            h.look(100 * HURRY_MS, Found::Nowhere, false),
            again(IDLE_MS, false)
        );
        // It is back where it was, long after the reason.
        assert_eq!(h.look(101 * HURRY_MS, Found::Here, false), Next::Settled);
        h.doubt(7);
        assert_eq!(h.look(8, Found::Nowhere, false), again(NOWHERE_MS, true));
    }

    #[test]
    fn the_core_is_asked_once_for_each_reason() {
        let mut h = Home::new();
        h.doubt(0);
        for now_ms in [1, ASK_MS - 1] {
            let next = h.look(now_ms, Found::Nowhere, false);
            assert_eq!(next, again(NOWHERE_MS, true));
        }
        assert_eq!(h.look(ASK_MS, Found::Nowhere, false), ASKED);
        let next = h.look(ASK_MS + 1, Found::Nowhere, false);
        assert_eq!(next, again(NOWHERE_MS, true));
        // Its GIDs change: it has found the address, or takes it away only now.
        h.doubt(500);
        assert_eq!(h.look(501, Found::Nowhere, false), again(NOWHERE_MS, true));
        assert_eq!(h.look(500 + ASK_MS, Found::Nowhere, false), ASKED);
        // What has moved may be taken away there.
        assert_eq!(h.look(700, Found::Elsewhere, false), Next::Move);
        assert_eq!(h.look(700 + ASK_MS, Found::Nowhere, false), ASKED);
    }
}
