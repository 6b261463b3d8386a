//! Measures for how long something about a scheduler has not changed, although it should.
//!
//! Between two looks the monitor remembers a *mark*: numbers that change when there is progress.
//! While the mark stays the same, its age grows. When the mark differs, every suspicion is dropped.
//!
//! *Standing still.* The monitor sleeps between its looks. If a look is late, the process was
//! stopped, the computer stood still, or other processes had all processors. Then the watched
//! worker may have had no chance to run either. So the time by which looks were late does not count
//! as age. It is added up separately, and reported.
//!
//! The code in this file does not depend on the parts of the mark.

use std::time::Duration;

use super::figures::{Figures, ProcessUse, ThreadUse};
use super::profile::Profile;

/// A look of the monitor.
#[derive(Clone, Copy)]
pub(super) struct Beat {
    /// The time of the look.
    pub now: u64,
    /// The number of nanoseconds by which the look was late.
    pub late: u64,
}

/// A mark that has not changed for a while.
#[derive(Default)]
pub(super) struct Slow {
    mark: (u64, u64),
    /// When the mark last changed, plus the time by which the monitor was late since then; 0 before
    /// the first look.
    pub since: u64,
    /// The total time by which the monitor was late since the mark changed.
    pub stood_still: u64,
    /// The figures to compare with, and the value of `stood_still` when they were read.
    before: Option<(Figures, u64)>,
    pub reports: u32,
    /// Whether one of the reports had the condition `NonYielding`.
    pub reported_as_long: bool,
    /// Whether the request was cancelled because its worker does not yield.
    pub cancelled: bool,
    /// The stack in which the worker stands still, and how much of that time is already in the
    /// profile, in nanoseconds.
    pub stack: Option<(String, u64)>,
    /// The earliest time of the next report.
    pub next: u64,
}

impl Slow {
    /// Returns for how long the mark has been the same, in nanoseconds, without the time by which
    /// the monitor was late.
    pub fn unchanged(&mut self, mark: (u64, u64), beat: Beat) -> u64 {
        if self.mark != mark || self.since == 0 {
            self.clear(mark, beat.now);
        } else {
            self.since += beat.late;
            self.stood_still += beat.late;
        }
        beat.now.saturating_sub(self.since)
    }

    pub fn clear(&mut self, mark: (u64, u64), now: u64) {
        *self = Slow { mark, since: now, ..Slow::default() };
    }

    /// Returns true if there are earlier figures to compare with. They are read when half of the
    /// limit has passed.
    pub fn is_measured(&mut self, age: u64, limit: Duration, thread: u32) -> bool {
        let measured = self.before.is_some();
        if !measured && u128::from(age) * 2 >= limit.as_nanos() {
            self.before = Some((Figures::read(thread), self.stood_still));
        }
        measured
    }

    /// Returns what the thread and the process have used since the earlier figures were read, and
    /// for how long the monitor was late meanwhile.
    pub fn used(&self, thread: u32) -> Option<(ThreadUse, ProcessUse, Duration)> {
        let (before, stood_still) = self.before.as_ref()?;
        let (used, process) = Figures::read(thread).since(before);
        Some((used, process, Duration::from_nanos(self.stood_still - stood_still)))
    }

    /// Adds the time since the last look to the profile.
    pub fn count(&mut self, age: u64, profile: &Profile) {
        if let Some((stack, counted)) = &mut self.stack {
            profile.add(stack, age.saturating_sub(*counted), 0);
            *counted = age;
        }
    }

    /// Records a report. The time until the next report doubles with each report.
    pub fn reported(&mut self, now: u64, repeat: Duration) {
        let span = ns(repeat).saturating_mul(1 << self.reports.min(20));
        self.next = now.saturating_add(span);
        self.reports += 1;
    }
}

pub(super) fn ns(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_in_which_the_monitor_could_not_look_adds_nothing_to_the_age_b34() {
        let mut slow = Slow::default();
        let beat = |now, late| Beat { now, late };
        assert_eq!(slow.unchanged((1, 0), beat(1000, 0)), 0);
        assert_eq!(slow.unchanged((1, 0), beat(1100, 0)), 100);
        assert_eq!(slow.unchanged((1, 0), beat(4200, 3000)), 200, "of 3200");
        assert_eq!((slow.unchanged((1, 0), beat(4300, 0)), slow.stood_still), (300, 3000));
        // The time by which the look was late before the mark changed does not count for the new
        // mark.
        assert_eq!(slow.unchanged((2, 0), beat(9000, 4000)), 0);
        assert_eq!((slow.unchanged((2, 0), beat(9100, 50)), slow.stood_still), (50, 50));
    }

    #[test]
    fn what_lasts_is_reported_again_after_twice_as_long_each_time_b38() {
        let (mut slow, repeat) = (Slow::default(), Duration::from_nanos(100));
        let mut next_after = |now| {
            slow.reported(now, repeat);
            slow.next - now
        };
        assert_eq!([1000, 1100, 1300, 1700].map(&mut next_after), [100, 200, 400, 800]);
        // Even after many reports the sum does not overflow.
        (0..100).for_each(|_| assert!(next_after(5000) > 800));
    }
}
