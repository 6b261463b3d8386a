//! Whom a report is told: a counter, a `tracing` event, a callback, stderr.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use super::profile::{Profile, StallStack};
use super::{Condition, Options, Report, sentence, writer};
use crate::os::clock;
use crate::record::report;
use crate::scheduler::contain;

/// Reports that are remembered.
const KEPT: usize = 64;

/// How often a condition was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConditionCount {
    /// The condition.
    pub condition: Condition,
    /// Reports of it.
    pub reports: u64,
    /// More that were left out, because there were too many (B38).
    pub suppressed: u64,
    /// Reports that could not be written to stderr, because nobody took them there.
    pub unwritten: u64,
}

/// A report, and when it was made.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PastReport {
    /// How many the monitor made of this node before it.
    pub number: u64,
    /// How long ago it was made, in nanoseconds.
    pub age_ns: u64,
    /// The report.
    pub report: Arc<Report>,
}

/// The last reports.
#[derive(Debug, Default)]
struct Recent {
    /// With the time of each.
    reports: VecDeque<(u64, Arc<Report>)>,
    /// How many there have been.
    all: u64,
}

/// Counts by condition. One writer, the monitor.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    reports: [AtomicU64; Condition::ALL.len()],
    suppressed: [AtomicU64; Condition::ALL.len()],
    unwritten: [AtomicU64; Condition::ALL.len()],
    /// Where schedulers stood still.
    pub(super) profile: Profile,
    recent: Mutex<Recent>,
}

impl Counts {
    pub fn read(&self) -> Vec<ConditionCount> {
        let count = |(at, condition): (usize, &Condition)| ConditionCount {
            condition: *condition,
            reports: self.reports[at].load(Ordering::Relaxed),
            suppressed: self.suppressed[at].load(Ordering::Relaxed),
            unwritten: self.unwritten[at].load(Ordering::Relaxed),
        };
        Condition::ALL.iter().enumerate().map(count).collect()
    }

    /// Where schedulers stood still, the worst first.
    pub fn stalls(&self) -> Vec<StallStack> {
        self.profile.read()
    }

    /// The last reports, the oldest first.
    pub fn recent(&self) -> Vec<PastReport> {
        let now = clock::now();
        let kept = self.lock();
        let first = kept.all - kept.reports.len() as u64;
        let past = |(at, (then, report)): (usize, &(u64, Arc<Report>))| PastReport {
            number: first + at as u64,
            age_ns: now.saturating_sub(*then),
            report: report.clone(),
        };
        kept.reports.iter().enumerate().map(past).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Recent> {
        self.recent.lock().unwrap_or_else(|e| e.into_inner())
    }

    pub(super) fn reported(&self, report: Report) -> Arc<Report> {
        self.reports[report.condition as usize].fetch_add(1, Ordering::Relaxed);
        let report = Arc::new(report);
        let mut kept = self.lock();
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

/// Tells everybody who wants to know.
pub(super) fn deliver(report: &Report, options: &Options, counts: &Arc<Counts>) {
    if options.by_default {
        return report::warn(sentence::kind(report), format_args!("{}", report.sentence));
    }
    // A subscriber that panics is not the end of the monitor, nor is a callback that does.
    contain(|| event(report));
    if let Some(tell) = &options.on_report
        && !contain(|| tell(report))
    {
        contain(|| {
            tracing::error!(target: "ums::monitor", "the callback for reports panicked");
        });
    }
    if options.stderr {
        writer::write(report.to_string(), report.condition, counts);
    }
}

fn event(report: &Report) {
    tracing::warn!(
        target: "ums::monitor",
        condition = report.condition.name(),
        diagnosis = %report.diagnosis,
        exonerated = report.diagnosis.exonerates(),
        scheduler = report.scheduler,
        worker = report.worker,
        request = report.request,
        user = report.user,
        lasted_ms = report.lasted.as_millis() as u64,
        queued = report.queued,
        function = report.function(),
        cancelled = report.cancelled,
        suppressed = report.suppressed,
        "{report}"
    );
}
