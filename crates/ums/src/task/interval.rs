//! An interval: ticks at equal distances, for work that recurs.
//!
//! ```text
//!   new    tick    tick              (late)  tick = 2       tick
//!    |------|-------|-------|-------|---|-----|-------|
//! ```
//!
//! The ticks lie on a grid that begins when the interval is made. A caller that comes late gets its
//! tick at once, and is told how many periods have passed; the next tick is on the grid again. So
//! lateness does not add up, and no ticks pile up.

use std::time::Duration;

use crate::current::{checkpoint, sleep, yield_if_due};
use crate::os::clock;
use crate::wait::error::WaitError;
use crate::wait::{Arm, Source, Ticket, Waitable};

/// Ticks at equal distances.
///
/// ```
/// use std::time::Duration;
/// use ums::task::Interval;
///
/// let node = ums::Node::builder().schedulers(1).build()?;
/// node.run(|| {
///     let mut interval = Interval::new(Duration::from_millis(2));
///     for _ in 0..3 {
///         let passed = interval.tick()?;
///         assert!(passed >= 1);
///     }
///     Ok::<(), ums::WaitError>(())
/// })
/// .unwrap();
/// # Ok::<(), ums::BuildError>(())
/// ```
#[derive(Debug)]
pub struct Interval {
    /// When the next tick is, in nanoseconds of the clock.
    next: u64,
    period: u64,
}

impl Interval {
    /// Makes an interval whose first tick is one period from now.
    ///
    /// # Panics
    /// If `period` is zero.
    #[track_caller]
    pub fn new(period: Duration) -> Interval {
        assert!(!period.is_zero(), "the period of an interval is zero: it would tick all the time");
        let period = u64::try_from(period.as_nanos()).unwrap_or(u64::MAX);
        Interval { next: clock::now().saturating_add(period), period }
    }

    /// Waits for the next tick; other workers run meanwhile. Returns how many periods have passed
    /// since the tick before: 1, or more if the caller came later than the next tick.
    ///
    /// # Errors
    /// Those of [`sleep`](crate::sleep). The tick is not lost: the next call waits for it, or
    /// counts it.
    pub fn tick(&mut self) -> Result<u64, WaitError> {
        let left = self.next.saturating_sub(clock::now());
        if left > 0 {
            sleep(Duration::from_nanos(left))?;
        } else {
            // A caller that is always late would not let others run, and not hear a cancellation.
            checkpoint()?;
        }
        Ok(self.passed())
    }

    /// Notes the tick that has come, and those that were missed.
    fn passed(&mut self) -> u64 {
        let passed = 1 + clock::now().saturating_sub(self.next) / self.period;
        self.next = self.next.saturating_add(passed.saturating_mul(self.period));
        passed
    }
}

impl<'a> Waitable<'a> for &'a mut Interval {
    /// How many periods have passed since the tick before, as [`Interval::tick`] returns it.
    type Output = u64;

    fn arm(self) -> Arm<'a, u64> {
        Arm::new(self)
    }
}

impl Source<u64> for &mut Interval {
    fn try_now(&mut self) -> Option<u64> {
        // A loop that is always late lets others run.
        yield_if_due();
        (clock::now() >= self.next).then(|| self.passed())
    }

    fn deadline(&self) -> u64 {
        self.next
    }

    /// The select itself parks until the deadline.
    fn queue(&self, _: Ticket) -> bool {
        true
    }

    fn unqueue(&self, _: Ticket, _: bool) {}

    fn granted(&mut self) -> Option<u64> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::with_timeout;

    #[test]
    fn a_caller_that_is_late_is_told_how_many_periods_have_passed() {
        let node = crate::Node::builder().schedulers(1).build().unwrap();
        node.run(|| {
            let mut interval = Interval::new(Duration::from_millis(1));
            let first = interval.next;
            interval.next -= 10_500_000;
            let passed = interval.tick().unwrap();
            assert!(passed >= 10, "{passed} periods");
            assert_eq!(interval.next, first - 10_500_000 + passed * 1_000_000, "on the grid");
        });
    }

    #[test]
    fn a_tick_whose_wait_ends_early_is_not_lost() {
        let node = crate::Node::builder().schedulers(1).build().unwrap();
        node.run(|| {
            let mut interval = Interval::new(Duration::from_secs(1_000_000));
            let next = interval.next;
            let ended = with_timeout(Duration::from_millis(1), || interval.tick());
            assert_eq!((ended, interval.next), (Err(WaitError::TimedOut), next));
        });
    }

    #[test]
    #[should_panic = "the period of an interval is zero"]
    fn a_period_of_zero_is_refused() {
        Interval::new(Duration::ZERO);
    }
}
