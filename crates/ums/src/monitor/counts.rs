//! Counts of the reports of each condition, and the last reports themselves.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::profile::{Profile, StallStack};
use super::report::{Condition, Report};
use crate::os::clock;
use crate::os::lock::Lock;

/// Number of reports that are kept.
const KEPT: usize = 64;

/// How often a condition was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConditionCount {
    /// The condition.
    pub condition: Condition,
    /// Number of reports of it.
    pub reports: u64,
    /// Number of reports that were left out, because there were too many.
    pub suppressed: u64,
    /// Number of reports that could not be written to stderr: it was closed, or its reader stopped.
    pub unwritten: u64,
}

/// A report, and when it was made.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PastReport {
    /// Number of reports of this node before this one.
    pub number: u64,
    /// How long ago it was made, in nanoseconds.
    pub age_ns: u64,
    /// The report.
    pub report: Arc<Report>,
}

/// The last reports.
#[derive(Debug, Default)]
struct Recent {
    /// The reports, with the time of each.
    reports: VecDeque<(u64, Arc<Report>)>,
    /// Number of all reports so far.
    all: u64,
}

/// Counts by condition, written by the monitor and by the thread that writes reports to stderr.
#[derive(Debug, Default)]
pub(crate) struct ReportCounts {
    reports: [AtomicU64; Condition::ALL.len()],
    suppressed: [AtomicU64; Condition::ALL.len()],
    unwritten: [AtomicU64; Condition::ALL.len()],
    /// The stacks in which schedulers stood still.
    pub(super) profile: Profile,
    recent: Lock<Recent>,
}

impl ReportCounts {
    pub fn read(&self) -> Vec<ConditionCount> {
        let count = |(at, condition): (usize, &Condition)| ConditionCount {
            condition: *condition,
            reports: self.reports[at].load(Ordering::Relaxed),
            suppressed: self.suppressed[at].load(Ordering::Relaxed),
            unwritten: self.unwritten[at].load(Ordering::Relaxed),
        };
        Condition::ALL.iter().enumerate().map(count).collect()
    }

    /// Returns the stacks in which schedulers stood still, the one with most time first.
    pub fn stalls(&self) -> Vec<StallStack> {
        self.profile.read()
    }

    /// Returns the last reports, the oldest first.
    pub fn recent(&self) -> Vec<PastReport> {
        let now = clock::now();
        let kept = self.recent.lock();
        let first = kept.all - kept.reports.len() as u64;
        let past = |(at, (then, report)): (usize, &(u64, Arc<Report>))| PastReport {
            number: first + at as u64,
            age_ns: now.saturating_sub(*then),
            report: report.clone(),
        };
        kept.reports.iter().enumerate().map(past).collect()
    }

    pub(super) fn reported(&self, report: Report) -> Arc<Report> {
        self.reports[report.condition as usize].fetch_add(1, Ordering::Relaxed);
        let report = Arc::new(report);
        let mut kept = self.recent.lock();
        if kept.reports.len() >= KEPT {
            kept.reports.pop_front();
        }
        kept.reports.push_back((clock::now(), report.clone()));
        kept.all += 1;
        report
    }

    pub(super) fn unwritten(&self, condition: Condition) {
        self.unwritten[condition as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn suppressed(&self, condition: Condition, reports: u64) {
        self.suppressed[condition as usize].fetch_add(reports, Ordering::Relaxed);
    }
}
