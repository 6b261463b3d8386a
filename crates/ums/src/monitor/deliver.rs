//! Delivers a report to its receivers: a `tracing` event, a callback, stderr.

use std::sync::Arc;

use super::counts::ReportCounts;
use super::options::Options;
use super::report::Report;
use super::{sentence, writer};
use crate::os::panics::contain;
use crate::record::report;

/// Sends a report to every receiver that the options name.
pub(super) fn deliver(report: &Report, options: &Options, counts: &Arc<ReportCounts>) {
    if options.by_default {
        return report::warn(sentence::kind(report), format_args!("{}", report.sentence));
    }
    // A panic in a tracing subscriber or in the callback does not end the monitor.
    contain(|| event(report));
    if let Some(callback) = &options.on_report
        && !contain(|| callback(report))
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
