// SPDX-License-Identifier: GPL-2.0

//! Hash table of peers by address: open addressing with linear probing, over slots that the caller owns.
//!
//! A lookup is about as cheap for a hundred thousand peers as for sixteen: at least three quarters of the slots are
//! empty, and a [`HashKey`] spreads the addresses. There are no deletion marks: entries behind a removed one move up.
//!
//! # Chosen addresses
//!
//! A host that owns many addresses and knew the key could choose addresses that collide, and every lookup there would
//! pass all of them. So the key is random, used for one table only, and never disclosed. A multiplication by a random
//! odd number maps two different numbers to the same of `m` places with a probability of at most 2 / `m`
//! (Dietzfelbinger and others, "A reliable randomized algorithm for the closest-pair problem", 1997), and the step
//! before it keeps different addresses different. So chosen addresses collide at most twice as often as random ones.
//!
//! The step before it removes all regularity of the addresses: with one multiplication alone, or numbers of 32 bits,
//! some keys cluster regular addresses. A hash such as SipHash would also resist a host that can observe the places of
//! addresses, and takes ten times as long. No host can observe them: the table is never disclosed, and the time of one
//! lookup is small compared with that of a message. Each message needs a lookup.
//!
//! Context: any; the caller holds the lock of the slots.

/// Key that spreads the addresses of one table.
#[derive(Clone, Copy)]
pub struct HashKey {
    first: u64,
    second: u64,
}

impl HashKey {
    /// Creates a key of random bits.
    pub const fn new(first: u64, second: u64) -> Self {
        // Odd: a multiplication by them is one to one.
        Self {
            first: first | 1,
            second: second | 1,
        }
    }

    /// Returns the hash of an address.
    #[inline]
    pub fn mark(self, addr: u32) -> AddrHash {
        let near = u64::from(addr).wrapping_mul(self.first);
        AddrHash {
            addr,
            far: (near ^ (near >> 32)).wrapping_mul(self.second),
        }
    }
}

/// Address with its hash by a [`HashKey`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddrHash {
    addr: u32,
    far: u64,
}

/// Number of bits, the highest, that choose the shard.
pub const SHARD_BITS: u32 = 6;

impl AddrHash {
    /// Returns the shard in a table that has 2 to the power of [`SHARD_BITS`] shards; for a smaller power of two, use
    /// its lowest bits.
    #[inline]
    pub fn shard(self) -> usize {
        usize::try_from(self.far >> (u64::BITS - SHARD_BITS)).unwrap_or(0)
    }
}

/// Slot for a peer's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableSlot {
    addr: u32,
    at: u32,
}

impl TableSlot {
    /// Unused slot.
    pub const EMPTY: Self = Self {
        addr: 0,
        at: u32::MAX,
    };

    fn is_empty(self) -> bool {
        self.at == u32::MAX
    }
}

/// Number of slots for the first peers.
const SLOTS_MIN: usize = 8;

/// Returns how many peers this number of slots is enough for.
pub const fn room(slots: usize) -> usize {
    slots / 4
}

/// Returns the number of slots that one more peer needs; `None`: the current number is enough.
pub fn slots_to_add(slots: usize, peers: usize) -> Option<usize> {
    (peers >= room(slots)).then(|| slots.saturating_mul(2).max(SLOTS_MIN))
}

/// Returns a smaller number of slots that is enough; `None`: there are not far too many. With the new number the peers
/// may double before more slots are needed, and half of them may go before fewer are enough.
pub fn spares(slots: usize, peers: usize) -> Option<usize> {
    let fewer = slots / 4;
    (fewer >= SLOTS_MIN && peers <= room(fewer) / 2).then_some(fewer)
}

/// Returns the slot at which the lookup of an address begins.
pub fn home_slot(slots: &[TableSlot], mark: AddrHash) -> usize {
    let n = u64::try_from(slots.len()).unwrap_or(0);
    // The highest bits are the same in all of a shard. There are less than 2^32 slots: it cannot wrap.
    let scaled = ((mark.far << SHARD_BITS) >> 32).wrapping_mul(n) >> 32;
    usize::try_from(scaled).unwrap_or(0)
}

/// Returns the next slot; the first follows the last.
fn behind(slots: &[TableSlot], at: usize) -> usize {
    let next = at.saturating_add(1);
    if next < slots.len() {
        next
    } else {
        0
    }
}

/// Returns the slot of a peer and its index, or the empty slot where it belongs; `None` if there is neither.
pub fn probe(slots: &[TableSlot], mark: AddrHash) -> Option<(usize, TableSlot)> {
    let mut at = home_slot(slots, mark);
    for _ in 0..slots.len() {
        let slot = *slots.get(at)?;
        if slot.is_empty() || slot.addr == mark.addr {
            return Some((at, slot));
        }
        at = behind(slots, at);
    }
    None
}

/// Returns the value that was stored for a peer.
#[inline]
pub fn find(slots: &[TableSlot], mark: AddrHash) -> Option<u32> {
    let (_, slot) = probe(slots, mark)?;
    (!slot.is_empty()).then_some(slot.at)
}

/// Stores `at` for a peer that is not in the table. Returns false if there is no slot. Most slots must remain empty:
/// the caller ensures [`room`].
#[must_use]
pub fn add(slots: &mut [TableSlot], mark: AddrHash, at: u32) -> bool {
    let Some((free, TableSlot::EMPTY)) = probe(slots, mark) else {
        return false;
    };
    if at == u32::MAX {
        return false;
    }
    if let Some(slot) = slots.get_mut(free) {
        *slot = TableSlot {
            addr: mark.addr,
            at,
        };
    }
    true
}

/// Removes a peer, and returns the value that was stored for it.
pub fn remove(slots: &mut [TableSlot], key: HashKey, mark: AddrHash) -> Option<u32> {
    let (mut hole, gone) = probe(slots, mark)?;
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
        // The entry may move up if its lookup passes the hole.
        let from = home_slot(slots, key.mark(slot.addr));
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
    *slots.get_mut(hole)? = TableSlot::EMPTY;
    Some(gone.at)
}

#[cfg(any(test, ro2iblnd_kunit))]
#[cfg_attr(ro2iblnd_kunit, ::kernel::macros::kunit_tests(ro2ib_peer_hash_table))]
mod tests {
    use super::*;

    const KEY: HashKey = HashKey::new(0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344);

    #[test]
    fn stored_peer_is_found_until_removed() {
        let mut slots = [TableSlot::EMPTY; 8];
        assert_eq!(find(&slots, KEY.mark(5)), None);
        for addr in 0..4 {
            assert!(add(&mut slots, KEY.mark(addr), addr.saturating_add(100)));
            assert!(!add(&mut slots, KEY.mark(addr), 7));
        }
        assert_eq!(remove(&mut slots, KEY, KEY.mark(2)), Some(102));
        assert_eq!(remove(&mut slots, KEY, KEY.mark(2)), None);
        for addr in [0, 1, 3] {
            assert_eq!(find(&slots, KEY.mark(addr)), Some(addr.saturating_add(100)));
        }
        assert!(!add(&mut slots, KEY.mark(9), u32::MAX));
    }

    #[test]
    fn no_slots_and_full_ones_end_every_look() {
        let mark = |addr| KEY.mark(addr);
        assert_eq!(find(&[], mark(1)), None);
        assert!(!add(&mut [], mark(1), 1));
        assert_eq!(remove(&mut [], KEY, mark(1)), None);
        let mut slots = [TableSlot::EMPTY; 3];
        for addr in 0..3 {
            assert!(add(&mut slots, mark(addr), addr));
        }
        assert_eq!(find(&slots, mark(3)), None);
        assert!(!add(&mut slots, mark(3), 3));
        assert_eq!(remove(&mut slots, KEY, mark(3)), None);
        assert_eq!(remove(&mut slots, KEY, mark(1)), Some(1));
        assert!(add(&mut slots, mark(3), 3));
        for addr in [0, 2, 3] {
            assert_eq!(find(&slots, mark(addr)), Some(addr));
        }
    }

    #[test]
    fn slots_follow_the_peers_up_and_down_but_not_each_of_them() {
        let mut slots = 0;
        for peers in 0..10_000 {
            if let Some(more) = slots_to_add(slots, peers) {
                slots = more;
            }
            assert!(room(slots) > peers);
            assert_eq!(spares(slots, peers), None);
        }
        let mut changes = 0usize;
        for peers in (0..10_000).rev() {
            if let Some(fewer) = spares(slots, peers) {
                slots = fewer;
                changes = changes.saturating_add(1);
                // Neither more nor fewer at once.
                assert_eq!(
                    slots_to_add(slots, peers.saturating_mul(2).saturating_sub(1)),
                    None
                );
                assert_eq!(spares(slots, peers), None);
                assert!(room(slots) > peers);
            }
        }
        assert_eq!(changes, 6);
        assert!((SLOTS_MIN..=4 * SLOTS_MIN).contains(&slots));
    }
}
