//! Slow: something about a scheduler that should change and has not for a while.
//!
//! The watch remembers a *mark* of it between two looks. While the mark is the same it grows old;
//! when it differs, whatever was suspected is forgotten.
//!
//! What it does not do: it does not know what the mark means.

use std::time::Duration;

use super::figures::Figures;
use super::profile::Profile;

/// Something that has not changed for a while.
#[derive(Default)]
pub(super) struct Slow {
    mark: (u64, u64),
    /// When it last changed; 0 before the first look.
    pub since: u64,
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
    /// For how long the mark has been the same, in nanoseconds.
    pub fn unchanged(&mut self, mark: (u64, u64), now: u64) -> u64 {
        if self.mark != mark || self.since == 0 {
            self.clear(mark, now);
        }
        now.saturating_sub(self.since)
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
