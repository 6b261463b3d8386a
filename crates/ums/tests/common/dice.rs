//! Random numbers from a seed, for tests that must be able to run again with the same choices.
//!
//! The generator is SplitMix64: consecutive seeds give unrelated rows of numbers.

use std::time::Duration;

/// A row of random numbers. The value is the seed.
pub struct Dice(pub u64);

impl Dice {
    /// Returns a number below `sides`.
    pub fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % sides
    }

    /// Returns a duration below `most` microseconds.
    pub fn micros(&mut self, most: u64) -> Duration {
        Duration::from_micros(self.roll(most))
    }

    /// Returns a number of bytes that is often small, and sometimes larger than what one receive
    /// takes.
    pub fn size(&mut self) -> usize {
        let most = [1, 7, 200, 6000][self.roll(4) as usize];
        1 + self.roll(most) as usize
    }
}
