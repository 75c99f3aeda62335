// SPDX-License-Identifier: GPL-2.0

//! Maps by address or number. No result may depend on the order of their elements.

use std::{
    collections::HashMap,
    hash::{
        BuildHasherDefault,
        Hasher, //
    }, //
};

/// Hasher that multiplies; for keys that no peer can choose.
#[derive(Default)]
pub struct Mul(u64);

impl Hasher for Mul {
    fn finish(&self) -> u64 {
        // A map uses the low bits first, and those of a multiple of 4096 stay 0.
        self.0.rotate_left(32)
    }

    fn write(&mut self, bytes: &[u8]) {
        for b in bytes {
            self.write_u64(u64::from(*b));
        }
    }

    fn write_u32(&mut self, v: u32) {
        self.write_u64(v.into());
    }

    fn write_u64(&mut self, v: u64) {
        self.0 = (self.0.rotate_left(5) ^ v).wrapping_mul(0x517c_c1b7_2722_0a95);
    }

    fn write_usize(&mut self, v: usize) {
        self.write_u64(v as u64);
    }
}

/// Builder of the hasher.
pub type Hash = BuildHasherDefault<Mul>;

/// Map by address or number.
pub type Map<K, V> = HashMap<K, V, Hash>;
