//! Slow: something about a scheduler that should change and has not for a while.
//!
//! The watch remembers a *mark* of it between two looks. While the mark is the same it grows old;
//! when it differs, whatever was suspected is forgotten.
//!
//! *Standing still.* The monitor sleeps and looks. If it looks late, the process was stopped, the
//! machine stood still, or others had all processors; then whoever is watched may have had no
//! chance to get anywhere either. So the time by which looks were late does not make anything
//! older. It is added up beside the age, and told.
//!
//! What it does not do: it does not know what the mark means.

use std::time::Duration;

use super::figures::Figures;
use super::profile::Profile;

/// A look of the monitor.
#[derive(Clone, Copy)]
pub(super) struct Beat {
    pub now: u64,
    /// By how much it came too late, in nanoseconds.
    pub late: u64,
}

/// Something that has not changed for a while.
#[derive(Default)]
pub(super) struct Slow {
    mark: (u64, u64),
    /// When it last changed, and later by what the monitor was late since; 0 before the first look.
    pub since: u64,
    /// By how much the monitor was late since then, all in all.
    pub stood_still: u64,
    pub before: Option<Figures>,
    pub reports: u32,
    /// Whether one of these said that it is non-yielding.
    pub told_long: bool,
    /// Whether the request was cancelled for it.
    pub cancelled: bool,
    /// Where it stands still, and how much of that is in the profile, in nanoseconds.
    pub stack: Option<(String, u64)>,
    /// When it is reported again.
    pub next: u64,
}

impl Slow {
    /// For how long the mark has been the same while the monitor was in time, in nanoseconds.
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

    /// Whether there are figures to compare with. They are read halfway to the limit.
    pub fn is_measured(&mut self, age: u64, limit: Duration, thread: u32) -> bool {
        let measured = self.before.is_some();
        if !measured && u128::from(age) * 2 >= limit.as_nanos() {
            self.before = Some(Figures::read(thread));
        }
        measured
    }

    /// Adds to the profile what has passed since the last look.
    pub fn count(&mut self, age: u64, profile: &Profile) {
        if let Some((stack, counted)) = &mut self.stack {
            profile.add(stack, age.saturating_sub(*counted), 0);
            *counted = age;
        }
    }

    /// It was reported; the next time is after twice as long as the last.
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
    fn time_in_which_the_monitor_could_not_look_makes_nothing_older_b34() {
        let mut slow = Slow::default();
        let beat = |now, late| Beat { now, late };
        assert_eq!(slow.unchanged((1, 0), beat(1000, 0)), 0);
        assert_eq!(slow.unchanged((1, 0), beat(1100, 0)), 100);
        assert_eq!(slow.unchanged((1, 0), beat(4200, 3000)), 200, "of 3200");
        assert_eq!((slow.unchanged((1, 0), beat(4300, 0)), slow.stood_still), (300, 3000));
        // What was late before it changed is not its own.
        assert_eq!(slow.unchanged((2, 0), beat(9000, 4000)), 0);
        assert_eq!((slow.unchanged((2, 0), beat(9100, 50)), slow.stood_still), (50, 50));
    }

    #[test]
    fn what_goes_on_is_told_again_after_twice_as_long_each_time_b38() {
        let (mut slow, repeat) = (Slow::default(), Duration::from_nanos(100));
        let mut next_after = |now| {
            slow.reported(now, repeat);
            slow.next - now
        };
        assert_eq!([1000, 1100, 1300, 1700].map(&mut next_after), [100, 200, 400, 800]);
        // And never so late that the sum runs over.
        (0..100).for_each(|_| assert!(next_after(5000) > 800));
    }
}
