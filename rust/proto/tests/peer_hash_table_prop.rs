// SPDX-License-Identifier: GPL-2.0

//! The slots of peers against a map of the standard library.

use std::collections::BTreeMap;

use proptest::prelude::*;
use ro2iblnd_proto::policy::peer_hash_table::{
    self,
    AddrHash,
    HashKey,
    TableSlot,
    SHARD_BITS, //
};

proptest! {
    #[test]
    fn as_a_map(
        random in any::<(u64, u64)>(),
        steps in prop::collection::vec((0u32..40, any::<bool>(), any::<bool>()), 0..200),
    ) {
        let key = HashKey::new(random.0, random.1);
        let mut slots = [TableSlot::EMPTY; 40];
        let mut map = BTreeMap::new();
        for (at, (number, near, adds)) in steps.into_iter().enumerate() {
            // Neighbours, and what is far apart.
            let addr = if near { number } else { number.wrapping_mul(0x0100_0001) };
            // Half full: longer rows than the driver has.
            if adds && map.len() < 20 {
                let at = at as u32;
                prop_assert_eq!(peer_hash_table::add(&mut slots, key.mark(addr), at), !map.contains_key(&addr));
                map.entry(addr).or_insert(at);
            } else {
                prop_assert_eq!(peer_hash_table::remove(&mut slots, key, key.mark(addr)), map.remove(&addr));
            }
            for (addr, at) in &map {
                prop_assert_eq!(peer_hash_table::find(&slots, key.mark(*addr)), Some(*at));
            }
        }
    }
}

/// Keys, one after the other.
fn keys() -> impl Iterator<Item = HashKey> {
    // Splitmix64 (Steele, Lea, Flood).
    let mut numbers = (1u64..).map(|n| {
        let mut z = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    });
    std::iter::from_fn(move || Some(HashKey::new(numbers.next()?, numbers.next()?)))
}

/// Slots that are looked at until a peer is found.
fn distance(slots: &[TableSlot], mark: AddrHash) -> usize {
    let (at, slot) = peer_hash_table::probe(slots, mark).unwrap();
    assert_ne!(slot, TableSlot::EMPTY);
    (at + slots.len() - peer_hash_table::home_slot(slots, mark)) % slots.len() + 1
}

/// Slots that are looked at until a peer is found, on average over all and at most, in the tables that the driver has.
fn looks(key: HashKey, addrs: impl Iterator<Item = u32>) -> (f64, usize) {
    let mut tables = vec![(Vec::new(), Vec::new()); 1 << SHARD_BITS];
    for addr in addrs {
        let mark = key.mark(addr);
        let (slots, all): &mut (Vec<TableSlot>, Vec<AddrHash>) = &mut tables[mark.shard()];
        if let Some(n) = peer_hash_table::slots_to_add(slots.len(), all.len()) {
            *slots = vec![TableSlot::EMPTY; n];
            for (at, mark) in all.iter().enumerate() {
                assert!(peer_hash_table::add(slots, *mark, at as u32));
            }
        }
        assert!(peer_hash_table::add(slots, mark, all.len() as u32));
        all.push(mark);
    }
    let all = tables
        .iter()
        .flat_map(|(slots, all)| all.iter().map(|mark| distance(slots, *mark)));
    let (n, sum, most) = all.fold((0, 0, 0), |(n, sum, most), d| (n + 1, sum + d, most.max(d)));
    (sum as f64 / n as f64, most)
}

/// A network, and its address with a number.
type Net = (&'static str, fn(u32) -> u32);

const NETS: [Net; 5] = [
    ("one after the other", |n| 0x0a00_0001 + n),
    ("many subnets", |n| {
        0x0a00_0001 + (n % 200) + ((n / 200) << 8)
    }),
    ("every fourth", |n| 0x0a00_0004 + 4 * n),
    ("every 4096th", |n| (n << 12) | (n >> 20)),
    ("the other way round", |n| n.reverse_bits()),
];

#[test]
fn a_look_costs_as_much_for_a_hundred_thousand_peers_as_for_sixteen() {
    for (name, addr) in NETS {
        let (mut few, mut many, mut worst, mut most) = (0.0, 0.0, 0.0f64, 0);
        const KEYS: usize = 8;
        for key in keys().take(KEYS) {
            few += looks(key, (0..16).map(addr)).0 / KEYS as f64;
            let (mean, longest) = looks(key, (0..100_000).map(addr));
            many += mean / KEYS as f64;
            (worst, most) = (worst.max(mean), most.max(longest));
        }
        println!(
            "{name}: {few:.2} slots a look with 16 peers, {many:.2} with 100,000, \
             {worst:.2} under the worst of {KEYS} keys, {most} for the peer that is farthest"
        );
        assert!(many <= 1.3 * few, "{name}: {few} and {many}");
        assert!(worst <= 1.2, "{name}: {worst}");
        assert!(most <= 25, "{name}: {most}");
    }
}

#[test]
fn collisions_of_one_key_do_not_collide_with_another() {
    let mut keys = keys();
    let known = keys.next().unwrap();
    let slots = vec![TableSlot::EMPTY; 4096];
    // As who owns a network, and knows the key, would choose them.
    let mut chosen = Vec::new();
    let mut addr = 0x0a00_0000u32;
    while chosen.len() < 200 {
        let mark = known.mark(addr);
        if mark.shard() == 5 && peer_hash_table::home_slot(&slots, mark) < 16 {
            chosen.push(addr);
        }
        addr += 1;
    }
    let (mean, most) = looks(known, chosen.iter().copied());
    println!("known: {mean:.2} slots a look, {most} at most");
    assert!(most > 100);
    for key in keys.take(300) {
        let mut shards = [0; 1 << SHARD_BITS];
        for addr in &chosen {
            shards[key.mark(*addr).shard()] += 1;
        }
        let (mean, most) = looks(key, chosen.iter().copied());
        // Three in each on average.
        assert!(shards.into_iter().max() <= Some(16), "{shards:?}");
        assert!(mean < 1.6 && most <= 12, "{mean}, {most}");
    }
}

/// Tests that any two addresses collide at most twice as often as random ones.
#[test]
fn two_addresses_meet_as_seldom_as_chance_has_it() {
    const KEYS: usize = 50_000;
    let pairs = [
        (0, 1),
        (0, 1 << 31),
        (0x0a00_0001, 0x0a00_0101),
        (0x0a00_0001, 0x8a00_0001),
        (0x0a01_0000, 0x0a02_0000),
        (0, 0xffff_ffff),
    ];
    for (a, b) in pairs {
        let met = keys()
            .take(KEYS)
            .filter(|key| key.mark(a).shard() == key.mark(b).shard())
            .count();
        let expected = KEYS >> SHARD_BITS;
        println!("{a:#x}, {b:#x}: {met} times, {expected} by chance");
        assert!(met <= 2 * expected + expected / 10);
    }
}
