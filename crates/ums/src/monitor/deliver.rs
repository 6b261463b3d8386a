//! Whom a report is told: a counter, a `tracing` event, a callback, stderr.

use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Condition, Options, Report};
use crate::scheduler::contain;

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
}

/// Counts by condition. One writer, the monitor.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    reports: [AtomicU64; Condition::ALL.len()],
    suppressed: [AtomicU64; Condition::ALL.len()],
}

impl Counts {
    pub fn read(&self) -> Vec<ConditionCount> {
        let count = |(at, condition): (usize, &Condition)| ConditionCount {
            condition: *condition,
            reports: self.reports[at].load(Ordering::Relaxed),
            suppressed: self.suppressed[at].load(Ordering::Relaxed),
        };
        Condition::ALL.iter().enumerate().map(count).collect()
    }

    pub(super) fn reported(&self, condition: Condition) {
        self.reports[condition as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn suppressed(&self, condition: Condition, reports: u64) {
        self.suppressed[condition as usize].fetch_add(reports, Ordering::Relaxed);
    }
}

/// Tells everybody who wants to know.
pub(super) fn deliver(report: &Report, options: &Options) {
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
        // Not eprintln: that panics when stderr is gone.
        let _ = writeln!(std::io::stderr(), "{report}");
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
        suppressed = report.suppressed,
        "{report}"
    );
}
