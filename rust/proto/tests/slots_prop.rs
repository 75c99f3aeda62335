// SPDX-License-Identifier: GPL-2.0

//! The slots of peers against a map of the standard library.

use std::collections::BTreeMap;

use proptest::prelude::*;
use ro2iblnd_proto::slots::{
    self,
    Slot, //
};

proptest! {
    #[test]
    fn as_a_map(steps in prop::collection::vec((0u32..40, any::<bool>(), any::<bool>()), 0..200)) {
        let mut slots = [Slot::EMPTY; 40];
        let mut map = BTreeMap::new();
        for (at, (key, near, adds)) in steps.into_iter().enumerate() {
            // Neighbours, and what is far apart.
            let addr = if near { key } else { key.wrapping_mul(0x0100_0001) };
            if adds && map.len() < slots::room(slots.len()) {
                let at = at as u32;
                prop_assert_eq!(slots::add(&mut slots, addr, at), !map.contains_key(&addr));
                map.entry(addr).or_insert(at);
            } else {
                prop_assert_eq!(slots::remove(&mut slots, addr), map.remove(&addr));
            }
            for (addr, at) in &map {
                prop_assert_eq!(slots::find(&slots, *addr), Some(*at));
            }
        }
    }
}

/// Slots that are looked at until an address is found.
fn distance(slots: &[Slot], addr: u32) -> usize {
    let (at, slot) = slots::look(slots, addr).unwrap();
    assert_ne!(slot, Slot::EMPTY);
    (at + slots.len() - slots::home(slots, addr)) % slots.len() + 1
}

/// Slots that are looked at until an address is found, on average over all, in 64 tables as the driver has them.
fn looks(peers: u32, addr: impl Fn(u32) -> u32) -> f64 {
    const SHARDS: usize = 64;
    let shard = |addr: u32| ((addr ^ (addr >> 8) ^ (addr >> 16)) as usize) % SHARDS;
    let mut tables = vec![(vec![Slot::EMPTY; 4], Vec::new()); SHARDS];
    for n in 0..peers {
        let (slots, all) = &mut tables[shard(addr(n))];
        if all.len() == slots::room(slots.len()) {
            *slots = vec![Slot::EMPTY; 2 * slots.len()];
            for (at, addr) in all.iter().enumerate() {
                assert!(slots::add(slots, *addr, at as u32));
            }
        }
        assert!(slots::add(slots, addr(n), all.len() as u32));
        all.push(addr(n));
    }
    let of = |(slots, all): &(Vec<Slot>, Vec<u32>)| -> usize {
        all.iter().map(|addr| distance(slots, *addr)).sum()
    };
    tables.iter().map(of).sum::<usize>() as f64 / f64::from(peers)
}

#[test]
fn a_look_costs_as_much_for_a_hundred_thousand_peers_as_for_sixteen() {
    let nets: [(&str, fn(u32) -> u32); 3] = [
        ("one after the other", |n| 0x0a00_0001 + n),
        ("many subnets", |n| {
            0x0a00_0001 + (n % 200) + ((n / 200) << 8)
        }),
        ("every fourth", |n| 0x0a00_0004 + 4 * n),
    ];
    for (name, addr) in nets {
        let few = looks(16, addr);
        let many = looks(100_000, addr);
        println!("{name}: {few:.2} slots a look with 16 peers, {many:.2} with 100,000");
        assert!(many <= 1.3 * few, "{name}: {few} and {many}");
    }
}
