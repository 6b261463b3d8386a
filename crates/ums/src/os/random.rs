//! Random numbers for choices that need not be the best one. They are fast, not secret.
//!
//! Each thread has a sequence of its own, so threads share nothing. In a simulated world the seed
//! decides each number.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

use super::sim;

/// Returns a number below `sides`; 0 if `sides` is 0.
#[inline]
pub fn below(sides: usize) -> usize {
    if let Some(picked) = sim::pick(sides as u64) {
        return picked as usize;
    }
    let number = NUMBER.try_with(|number| {
        let next = after(number.get());
        number.set(next);
        next
    });
    // The high half of the product is evenly spread, without a division.
    // Bounded: the number has 32 bits, and the sides are things of which there are fewer.
    ((u64::from(number.unwrap_or(0)) * sides as u64) >> 32) as usize
}

thread_local! {
    /// The last number; 0 before the first.
    static NUMBER: Cell<u32> = const { Cell::new(0) };
}

/// Returns the number after this one (xorshift, which never returns to 0).
#[inline]
fn after(number: u32) -> u32 {
    let mut next = if number == 0 { first() } else { number };
    next ^= next << 13;
    next ^= next >> 17;
    next ^ (next << 5)
}

/// Returns the number with which a thread begins. Each thread has another one.
#[cold]
fn first() -> u32 {
    static THREADS: AtomicU32 = AtomicU32::new(1);
    THREADS.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9E37_79B9) | 1
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_below_their_bound_and_each_is_drawn() {
        assert_eq!((below(0), below(1)), (0, 0));
        let mut drawn = [0_usize; 10];
        (0..10_000).for_each(|_| drawn[below(10)] += 1);
        assert!(drawn.iter().all(|times| (800..1200).contains(times)), "{drawn:?}");
    }
}
