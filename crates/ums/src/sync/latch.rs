//! The latch: waits until something has been counted down, once.
//!
//! A number and a manual [`Event`](super::Event); whoever counts to zero sets it, for good.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::event::Event;
use crate::wait::error::WaitError;

/// Lets its waiters go on when `count_down` has been called so many times.
///
/// ```
/// let ready = ums::sync::Latch::new(2);
/// std::thread::scope(|s| {
///     s.spawn(|| ready.count_down());
///     s.spawn(|| ready.count_down());
///     ready.wait();
/// });
/// ```
#[derive(Debug)]
pub struct Latch {
    left: AtomicUsize,
    open: Event,
}

impl Latch {
    /// A latch that opens after `count` calls; at 0 it is open.
    pub const fn new(count: usize) -> Latch {
        Latch { left: AtomicUsize::new(count), open: Event::manual(count == 0) }
    }

    /// Counts one down; the last one opens the latch. Further calls change nothing.
    pub fn count_down(&self) {
        let down = |left: usize| left.checked_sub(1);
        if self.left.fetch_update(Ordering::AcqRel, Ordering::Relaxed, down) == Ok(1) {
            self.open.set();
        }
    }

    /// Whether it is open.
    pub fn is_open(&self) -> bool {
        self.open.is_set()
    }

    /// Waits until it is open, deaf to cancellation.
    pub fn wait(&self) {
        self.open.wait();
    }

    /// As [`wait`](Latch::wait), for at most this time.
    ///
    /// # Errors
    /// The time passed, or the work request was cancelled.
    pub fn wait_for(&self, time: Duration) -> Result<(), WaitError> {
        self.open.wait_for(time)
    }

    /// As [`wait`](Latch::wait), until this moment at the latest.
    ///
    /// # Errors
    /// The moment came, or the work request was cancelled.
    pub fn wait_until(&self, deadline: Instant) -> Result<(), WaitError> {
        self.open.wait_until(deadline)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::testing::SHORT;

    #[test]
    fn it_opens_at_zero_for_good() {
        let latch = Latch::new(2);
        latch.count_down();
        assert_eq!(latch.wait_for(SHORT), Err(WaitError::TimedOut));
        std::thread::scope(|s| {
            s.spawn(|| latch.wait());
            latch.count_down();
        });
        latch.count_down();
        assert!(latch.is_open() && latch.wait_until(Instant::now()).is_ok());
        Latch::new(0).wait();
    }
}
