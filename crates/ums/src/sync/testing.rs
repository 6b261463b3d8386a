//! Shared by the tests of this folder: a bounded wait for a condition, and random numbers.

use std::time::{Duration, Instant};

/// Waits until `condition` holds; fails the test after a minute.
pub(super) fn until(mut condition: impl FnMut() -> bool) {
    let limit = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < limit, "a condition that must become true did not");
        std::thread::yield_now();
    }
}

/// A long time, for waits that must not reach it.
pub(super) const LONG: Duration = Duration::from_secs(60);

/// A short time, for waits that must reach it.
pub(super) const SHORT: Duration = Duration::from_millis(2);

/// A small random sequence (xorshift), the same for the same seed.
pub(super) struct Dice(pub u64);

impl Dice {
    pub(super) fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}
