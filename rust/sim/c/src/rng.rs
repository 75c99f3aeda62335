// SPDX-License-Identifier: GPL-2.0

//! Random numbers: xoshiro256++, seeded by splitmix64. The same seed gives the same numbers, on any
//! machine and with any release of any library, because seeds are kept in files.

/// A source of numbers.
#[derive(Clone)]
pub struct Rng([u64; 4]);

impl Rng {
    /// From a seed.
    pub fn new(seed: u64) -> Self {
        let mut z = seed;
        let mut next = || {
            z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut x = z;
            x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            x ^ (x >> 31)
        };
        Self([next(), next(), next(), next()])
    }

    /// The next number.
    #[inline]
    pub fn u64(&mut self) -> u64 {
        let s = &mut self.0;
        let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// Less than `n`; 0 if that is 0.
    #[inline]
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.u64()) * u128::from(n)) >> 64) as u64
    }

    /// From `lo` to `hi`, both included.
    #[inline]
    pub fn range(&mut self, lo: u64, hi: u64) -> u64 {
        lo + self.below(hi.saturating_sub(lo) + 1)
    }

    /// True in `n` of a million cases.
    #[inline]
    pub fn ppm(&mut self, n: u32) -> bool {
        n != 0 && self.below(1_000_000) < u64::from(n)
    }

    /// True in one of `n` cases.
    #[inline]
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// One of them.
    #[inline]
    pub fn of<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}
