//! How a node is watched by the process's monitor: the options, the beginning, and what was found.

use std::sync::Arc;

use super::builder::Builder;
use super::handle::Node;
use super::inner::NodeInner;
use crate::monitor::{self, ConditionCount, Options, PastReport, ReportCounts, StallStack};
use crate::record::report::{self, WarningKind};

impl Builder {
    /// Makes the process's monitor watch this node with these options.
    ///
    /// By default, if [`warnings`](Builder::warnings) are on, the monitor makes fewer checks and
    /// reports each finding in one line. It reports a worker that has kept its scheduler for a
    /// second while other work there waits, and requests for which no worker becomes free. It does
    /// not report slow I/O, and does not look for deadlocks. With these options it reports in
    /// several lines, calls callbacks, and finds and breaks deadlocks. If there are neither options
    /// nor warnings, no monitor watches the node.
    ///
    /// The monitor costs one thread for the process, which checks four times a second while a
    /// scheduler is awake, and sleeps otherwise. With options, a worker that is reported is
    /// interrupted by a signal (SIGURG), so a system call that is not restarted may fail with
    /// `EINTR`. By default only a worker whose call is restarted is interrupted; a report about any
    /// other worker may lack the function's name.
    pub fn monitor(mut self, options: Options) -> Builder {
        self.monitor = Some(options);
        self
    }
}

impl Node {
    /// Returns how often the monitor has found each condition, or an empty list if the monitor does
    /// not watch this node.
    pub fn monitor_counts(&self) -> Vec<ConditionCount> {
        self.inner.found(ReportCounts::read)
    }

    /// Returns the backtraces of workers that kept their scheduler too long, with their times, the
    /// longest first. If `stack` and its time are printed on one line each, the lines are the input
    /// of programs that draw flame graphs.
    pub fn stalls(&self) -> Vec<StallStack> {
        self.inner.found(ReportCounts::stalls)
    }

    /// Returns the last 64 reports of the monitor about this node, the oldest first.
    pub fn last_reports(&self) -> Vec<PastReport> {
        self.inner.found(ReportCounts::recent)
    }
}

impl NodeInner {
    /// Makes the monitor watch the node, if the options ask for it.
    pub(super) fn start_watching(self: &Arc<Self>) -> std::io::Result<()> {
        let all_checks = || (self.builder.watched_by_default == Some(true)).then(Options::default);
        let asked_for = self.builder.monitor.clone().or_else(all_checks);
        let by_default = asked_for.is_none();
        let otherwise = || self.reports_in_sentences().then(Options::of_the_default);
        let Some(options) = asked_for.or_else(otherwise) else { return Ok(()) };
        crate::current::show_waits_for_short_locks();
        let weak = Arc::downgrade(self);
        let all = move || weak.upgrade().map_or_else(Vec::new, |node| node.all());
        let weak = Arc::downgrade(self);
        let last = move |user| weak.upgrade()?.user(user)?.last_request();
        match monitor::watch(options, all, last) {
            Ok(watching) => {
                *self.watching.lock() = Some(watching);
                Ok(())
            }
            Err(error) if by_default => {
                let text = format_args!(
                    "the monitor has no thread, so a worker that does not yield is not reported: \
                     {error}"
                );
                report::warn(WarningKind::Setup, text);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Returns whether the monitor's findings are reported in one line each. Applies only if no
    /// monitor options are set.
    fn reports_in_sentences(&self) -> bool {
        if crate::os::sim::is_here() {
            return false;
        }
        self.builder.warnings && self.builder.watched_by_default != Some(false)
    }

    /// Reads the monitor's findings; returns an empty list if it does not watch this node.
    pub(crate) fn found<T>(&self, read: fn(&ReportCounts) -> Vec<T>) -> Vec<T> {
        let watching = self.watching.lock();
        watching.as_ref().map_or_else(Vec::new, |watching| read(&watching.counts))
    }
}
