// SPDX-License-Identifier: GPL-2.0

//! Where a peer is found by its address: open addressing with linear probing, over slots that the caller owns.
//!
//! A look is about as cheap for a hundred thousand peers as for sixteen: half of the slots are empty at least, and
//! addresses that follow each other are spread by a multiplication. Nothing is marked as deleted: what stands
//! behind a peer that goes moves up.
//!
//! Context: any; the caller holds the lock of the slots.

/// 2^32 by the golden ratio: what is near in an address is far in the product (Knuth, 6.4).
const SPREAD: u32 = 0x9e37_79b1;

/// A place for a peer's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    addr: u32,
    at: u32,
}

impl Slot {
    /// Nobody's.
    pub const EMPTY: Self = Self {
        addr: 0,
        at: u32::MAX,
    };

    fn is_empty(self) -> bool {
        self.at == u32::MAX
    }
}

/// How many peers so many slots are enough for.
pub const fn room(slots: usize) -> usize {
    slots / 2
}

/// Where the look for an address begins.
pub fn home(slots: &[Slot], addr: u32) -> usize {
    let n = u32::try_from(slots.len()).unwrap_or(u32::MAX);
    // Of two numbers of 32 bits: it cannot wrap.
    let scaled = u64::from(addr.wrapping_mul(SPREAD)).wrapping_mul(n.into()) >> 32;
    usize::try_from(scaled).unwrap_or(0)
}

/// The slot behind that one; the first follows the last.
fn behind(slots: &[Slot], at: usize) -> usize {
    let next = at.saturating_add(1);
    if next < slots.len() {
        next
    } else {
        0
    }
}

/// The slot of an address with its number, or the empty one where it belongs; `None` if there is neither.
pub fn look(slots: &[Slot], addr: u32) -> Option<(usize, Slot)> {
    let mut at = home(slots, addr);
    for _ in 0..slots.len() {
        let slot = *slots.get(at)?;
        if slot.is_empty() || slot.addr == addr {
            return Some((at, slot));
        }
        at = behind(slots, at);
    }
    None
}

/// What was stored for an address.
#[inline]
pub fn find(slots: &[Slot], addr: u32) -> Option<u32> {
    let (_, slot) = look(slots, addr)?;
    (!slot.is_empty()).then_some(slot.at)
}

/// Stores `at` for an address that is not there. False: there is no slot. Half of them are to stay empty: the
/// caller sees to [`room`].
#[must_use]
pub fn add(slots: &mut [Slot], addr: u32, at: u32) -> bool {
    let Some((free, Slot::EMPTY)) = look(slots, addr) else {
        return false;
    };
    if at == u32::MAX {
        return false;
    }
    if let Some(slot) = slots.get_mut(free) {
        *slot = Slot { addr, at };
    }
    true
}

/// Forgets an address: what was stored for it.
pub fn remove(slots: &mut [Slot], addr: u32) -> Option<u32> {
    let (mut hole, gone) = look(slots, addr)?;
    if gone.is_empty() {
        return None;
    }
    let mut at = hole;
    for _ in 0..slots.len() {
        at = behind(slots, at);
        let slot = *slots.get(at)?;
        if slot.is_empty() {
            break;
        }
        // It may move up if its look passes the hole.
        let from = home(slots, slot.addr);
        let passes = if hole <= at {
            from <= hole || from > at
        } else {
            from <= hole && from > at
        };
        if passes {
            *slots.get_mut(hole)? = slot;
            hole = at;
        }
    }
    *slots.get_mut(hole)? = Slot::EMPTY;
    Some(gone.at)
}

#[cfg(any(test, ro2iblnd_kunit))]
#[cfg_attr(ro2iblnd_kunit, ::kernel::macros::kunit_tests(ro2iblnd_slots))]
mod tests {
    use super::*;

    #[test]
    fn what_is_stored_is_found_until_it_is_removed() {
        let mut slots = [Slot::EMPTY; 8];
        assert_eq!(find(&slots, 5), None);
        for addr in 0..4 {
            assert!(add(&mut slots, addr, addr.saturating_add(100)));
            assert!(!add(&mut slots, addr, 7));
        }
        assert_eq!(remove(&mut slots, 2), Some(102));
        assert_eq!(remove(&mut slots, 2), None);
        for addr in [0, 1, 3] {
            assert_eq!(find(&slots, addr), Some(addr.saturating_add(100)));
        }
        assert!(!add(&mut slots, 9, u32::MAX));
    }

    #[test]
    fn no_slots_and_full_ones_end_every_look() {
        assert_eq!(find(&[], 1), None);
        assert!(!add(&mut [], 1, 1));
        assert_eq!(remove(&mut [], 1), None);
        let mut slots = [Slot::EMPTY; 3];
        for addr in 0..3 {
            assert!(add(&mut slots, addr, addr));
        }
        assert_eq!(find(&slots, 3), None);
        assert!(!add(&mut slots, 3, 3));
        assert_eq!(remove(&mut slots, 3), None);
        assert_eq!(remove(&mut slots, 1), Some(1));
        assert!(add(&mut slots, 3, 3));
        for addr in [0, 2, 3] {
            assert_eq!(find(&slots, addr), Some(addr));
        }
    }
}
