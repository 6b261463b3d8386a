//! The latch: opens once, when its count has reached zero.
//!
//! A number and a manual [`Event`](super::Event), which the call that counts to zero sets for good.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::event::Event;
use crate::os::threads::operation;
use crate::wait::error::WaitError;
use crate::wait::{Arm, Waitable};

/// Lets its waiters continue once `count_down` has been called a given number of times.
///
/// ```
/// let ready = ums::sync::Latch::new(2);
/// std::thread::scope(|s| {
///     s.spawn(|| ready.count_down());
///     s.spawn(|| ready.count_down());
///     ready.wait()
/// })?;
/// # Ok::<(), ums::WaitError>(())
/// ```
#[derive(Debug)]
pub struct Latch {
    left: AtomicUsize,
    open: Event,
}

impl Latch {
    /// Creates a latch that opens after `count` calls; with 0 it is open.
    pub const fn new(count: usize) -> Latch {
        Latch { left: AtomicUsize::new(count), open: Event::manual(count == 0) }
    }

    /// Reduces the count by one; the last call opens the latch. Further calls change nothing.
    pub fn count_down(&self) {
        operation("latch: count_down");
        let down = |left: usize| left.checked_sub(1);
        if self.left.fetch_update(Ordering::AcqRel, Ordering::Relaxed, down) == Ok(1) {
            self.open.set();
        }
    }

    /// Returns whether the latch is open.
    pub fn is_open(&self) -> bool {
        self.open.is_set()
    }

    /// Waits until the latch is open.
    ///
    /// # Errors
    /// [`WaitError::Cancelled`] if the work request was cancelled.
    pub fn wait(&self) -> Result<(), WaitError> {
        self.open.wait()
    }

    /// Like [`wait`](Latch::wait), for at most this time.
    ///
    /// # Errors
    /// [`WaitError`] if the time passed or the work request was cancelled.
    pub fn wait_for(&self, time: Duration) -> Result<(), WaitError> {
        self.open.wait_for(time)
    }

    /// Like [`wait`](Latch::wait), until this moment at the latest.
    ///
    /// # Errors
    /// [`WaitError`] if the moment came or the work request was cancelled.
    pub fn wait_until(&self, deadline: Instant) -> Result<(), WaitError> {
        self.open.wait_until(deadline)
    }
}

impl<'a> Waitable<'a> for &'a Latch {
    type Output = ();

    fn arm(self) -> Arm<'a, ()> {
        self.open.arm()
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
            s.spawn(|| latch.wait().unwrap());
            latch.count_down();
        });
        latch.count_down();
        assert!(latch.is_open() && latch.wait_until(Instant::now()).is_ok());
        Latch::new(0).wait().unwrap();
    }
}
