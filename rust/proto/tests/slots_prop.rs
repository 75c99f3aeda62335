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
