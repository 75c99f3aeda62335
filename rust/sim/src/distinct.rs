// SPDX-License-Identifier: GPL-2.0

//! Approximate number of distinct schedules: HyperLogLog, whose error is a hundredth here. A set of
//! 10^8 numbers would take a gigabyte; this takes 16 KiB, and merging two takes no time.

/// Exponent of the number of registers.
const BITS: u32 = 14;
const REGISTERS: usize = 1 << BITS;

/// Registers of the hashes so far.
#[derive(Clone)]
pub struct Distinct(Vec<u8>);

impl Default for Distinct {
    fn default() -> Self {
        Self(vec![0; REGISTERS])
    }
}

impl Distinct {
    /// Adds a hash.
    pub fn add(&mut self, hash: u64) {
        // As at the end of splitmix64: all bits depend on all.
        let x = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let x = x ^ (x >> 31);
        let register = &mut self.0[(x >> (64 - BITS)) as usize];
        let rank = ((x << BITS) | 1 << (BITS - 1)).leading_zeros() + 1;
        *register = (*register).max(rank as u8);
    }

    /// Adds all hashes of another set.
    pub fn merge(&mut self, other: &Self) {
        for (mine, its) in self.0.iter_mut().zip(&other.0) {
            *mine = (*mine).max(*its);
        }
    }

    /// Returns the approximate number of hashes.
    pub fn count(&self) -> f64 {
        let m = REGISTERS as f64;
        let sum: f64 = self.0.iter().map(|r| (-f64::from(*r)).exp2()).sum();
        let estimate = 0.7213 / (1.0 + 1.079 / m) * m * m / sum;
        let zeros = self.0.iter().filter(|r| **r == 0).count();
        if estimate <= 2.5 * m && zeros != 0 {
            m * (m / zeros as f64).ln()
        } else {
            estimate
        }
    }

    /// Returns the registers as a word.
    pub fn to_text(&self) -> String {
        self.0.iter().map(|r| char::from(b'0' + *r)).collect()
    }

    /// Parses that word.
    pub fn from_text(text: &str) -> Option<Self> {
        let registers: Option<Vec<u8>> = text.bytes().map(|b| b.checked_sub(b'0')).collect();
        registers.filter(|r| r.len() == REGISTERS).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_what_differs() {
        let mut parts = [Distinct::default(), Distinct::default()];
        for (n, most) in [(100_u64, 3.0), (200_000, 6_000.0)] {
            for i in 0..n {
                for _ in 0..2 {
                    parts[(i % 2) as usize].add(i.wrapping_mul(0x517c_c1b7_2722_0a95));
                }
            }
            let mut all = parts[0].clone();
            all.merge(&Distinct::from_text(&parts[1].to_text()).expect("what was written"));
            assert!((all.count() - n as f64).abs() < most, "{}", all.count());
        }
    }
}
