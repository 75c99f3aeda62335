// SPDX-License-Identifier: GPL-2.0

//! Random numbers: xoshiro256++, seeded by splitmix64. The same seed gives the same numbers, on any
//! machine and with any release of any library, because seeds are kept in files.

/// Source of random numbers.
#[derive(Clone)]
pub struct Rng([u64; 4]);

impl Rng {
    /// Creates a source from a seed.
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

    /// Returns the next number.
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

    /// Returns a number less than `n`; 0 if `n` is 0.
    #[inline]
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.u64()) * u128::from(n)) >> 64) as u64
    }

    /// Returns a number from `lo` to `hi`, both included.
    #[inline]
    pub fn range(&mut self, lo: u64, hi: u64) -> u64 {
        lo + self.below(hi.saturating_sub(lo) + 1)
    }

    /// Returns true in `n` of a million cases.
    #[inline]
    pub fn ppm(&mut self, n: u32) -> bool {
        n != 0 && self.below(1_000_000) < u64::from(n)
    }

    /// Returns true in one of `n` cases.
    #[inline]
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// Returns one of the elements.
    #[inline]
    pub fn of<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

/// Number of entries of the table of a [`Rarely`].
const AHEAD: usize = 64;

/// Event that is true in a number of a million cases, independently, as [`Rng::ppm`]; but it draws
/// one number for all the cases until the next true case, not one for each case.
pub struct Rarely {
    /// Number of false cases before the next true case.
    left: u64,
    /// `past[i]`: the probability, in 2^64ths, that no case before case `i + 1` is true. Whole
    /// numbers: the same on any machine.
    past: [u64; AHEAD],
}

impl Rarely {
    /// Event that never happens.
    pub const NEVER: Self = Self {
        left: u64::MAX,
        past: [u64::MAX; AHEAD],
    };

    /// Creates an event that happens in `ppm` of a million cases.
    pub fn new(ppm: u32, rng: &mut Rng) -> Self {
        let mut new = Self::NEVER;
        if ppm == 0 {
            return new;
        }
        let not = 1_000_000_u128.saturating_sub(ppm.into());
        let mut past = u128::from(u64::MAX);
        for entry in &mut new.past {
            past = past * not / 1_000_000;
            *entry = past as u64;
        }
        new.left = new.draw(rng);
        new
    }

    /// Returns a random number of false cases before the next true case.
    #[cold]
    fn draw(&self, rng: &mut Rng) -> u64 {
        let mut left = 0;
        loop {
            let drawn = rng.u64();
            let these = self.past.partition_point(|past| drawn < *past);
            left += these as u64;
            // The earlier cases have no influence on the following cases.
            if these < AHEAD {
                return left;
            }
        }
    }

    /// Returns whether the event happens in this case.
    #[inline]
    pub fn is(&mut self, rng: &mut Rng) -> bool {
        if self.left != 0 {
            self.left -= 1;
            return false;
        }
        self.left = self.draw(rng);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_often_as_was_asked() {
        let mut rng = Rng::new(1);
        for ppm in [0, 30, 2_000, 100_000, 500_000, 1_000_000] {
            let mut rarely = Rarely::new(ppm, &mut rng);
            let (mut n, mut twice, mut last) = (0_u32, 0_u32, false);
            for _ in 0..4_000_000 {
                let is = rarely.is(&mut rng);
                n += u32::from(is);
                twice += u32::from(is && last);
                last = is;
            }
            let p = f64::from(ppm) / 1e6;
            // Six standard deviations; the cases after a true case are as likely as any others.
            for (n, p) in [(n, p), (twice, p * p)] {
                let error = (f64::from(n) - 4e6 * p).abs();
                assert!(
                    error <= 6.0 * (4e6 * p * (1.0 - p)).sqrt() + 1.0,
                    "{ppm}: {n}"
                );
            }
        }
    }
}
