//! How a node can be seen: the monitor that watches it, the event rings of its schedulers, and its
//! statistics socket.

use std::sync::Arc;

use super::{Builder, Node, NodeInner};
use crate::monitor::{self, ConditionCount, PastReport, StallStack};
use crate::node::stats_socket::StatsSocket;
use crate::record::report::{self, Kind};
use crate::wait::error::BuildError;

impl Builder {
    /// Has the process's monitor watch this node with these options (B31).
    ///
    /// Default: with [`warnings`](Builder::warnings) it watches too, and tells what it finds in one
    /// sentence each: a worker that has kept its scheduler for a second, of its own doing and while
    /// something else there waits, and requests that no worker becomes free for. Slow I/O is not
    /// told then, and deadlocks are neither looked for nor broken. These options take the place of
    /// that: reports of several lines, callbacks, deadlocks. Without either there is no monitor.
    ///
    /// What it costs: one thread for the process, which looks four times a second while a scheduler
    /// is awake and sleeps while all do. With options, a worker that is reported is interrupted by
    /// a signal (SIGURG), by which a system call that is not restarted may end with `EINTR`. By
    /// default only where the call is made again, and a sentence may lack the function's name
    /// otherwise.
    pub fn monitor(mut self, options: monitor::Options) -> Builder {
        self.monitor = Some(options);
        self
    }

    /// Whether one sentence goes to stderr when something is wrong that its user can mend, such as
    /// a worker that does not yield, or that the system refuses. Default yes. Of each kind there is
    /// one in ten seconds at most, and the next one says how many were left out. docs/diagnosing.md
    /// lists them.
    ///
    /// ```
    /// // Nothing is written, and no thread looks for workers that do not yield.
    /// let node = ums::Node::builder().warnings(false).build()?;
    /// assert!(node.monitor_counts().is_empty());
    /// # Ok::<(), ums::BuildError>(())
    /// ```
    pub fn warnings(mut self, yes: bool) -> Builder {
        self.warnings = yes;
        self
    }

    /// Records what each scheduler did last, 1024 events each, for traces and for the moment after
    /// a crash (B43). Default on. A record is some fifteen instructions and a reading of the
    /// processor's counter: nothing beside a switch between threads, but as long as the rest of a
    /// switch between fibers, so programs that do little else turn it off.
    pub fn event_ring(mut self, yes: bool) -> Builder {
        self.ring = yes;
        self
    }

    /// Tells this user's other processes about the node over a Unix-domain socket, for `ums stats`
    /// and `ums top`; see [`Node::serve_stats`]. Default: no socket.
    pub fn stats_socket(mut self, at: StatsSocket) -> Builder {
        self.stats = Some(at);
        self
    }

    /// Has what every worker is in the middle of written to stderr whenever the process gets
    /// SIGUSR2; see [`Node::print_stacks_on_sigusr2`]. Default: the signal is not ours.
    pub fn stacks_on_sigusr2(mut self, yes: bool) -> Builder {
        self.stacks_on_sigusr2 = yes;
        self
    }
}

impl Node {
    /// Begins to be watched and to tell of itself, as far as that was asked for.
    pub(super) fn be_seen(self) -> Result<Node, BuildError> {
        let os = |what| move |source| BuildError::Os { what, source };
        self.inner.be_watched().map_err(os("starting the monitor"))?;
        if let Some(at) = self.inner.builder.stats.clone() {
            self.serve_stats(at).map_err(os("opening the statistics socket"))?;
        }
        if self.inner.builder.stacks_on_sigusr2 {
            self.print_stacks_on_sigusr2().map_err(os("making ready for SIGUSR2"))?;
        }
        Ok(self)
    }

    /// What the monitor has found so far, by condition. Empty: it does not watch this node.
    pub fn monitor_counts(&self) -> Vec<ConditionCount> {
        self.inner.monitor_counts()
    }

    /// Where schedulers stood still, by backtrace, the worst first (B42). A line of
    /// `stack total_ms` for each is what programs that draw flame graphs read.
    pub fn stalls(&self) -> Vec<StallStack> {
        self.inner.stalls()
    }

    /// The last 64 reports of the monitor about this node, the oldest first.
    pub fn last_reports(&self) -> Vec<PastReport> {
        self.inner.last_reports()
    }
}

impl NodeInner {
    /// Begins to be watched, if that was asked for.
    pub(super) fn be_watched(self: &Arc<Self>) -> std::io::Result<()> {
        let asked_for = self.builder.monitor.clone();
        let by_default = asked_for.is_none();
        let otherwise = || self.sentences_are_wanted().then(monitor::Options::of_the_default);
        let Some(options) = asked_for.or_else(otherwise) else { return Ok(()) };
        crate::current::show_the_sick();
        let weak = Arc::downgrade(self);
        let all = move || weak.upgrade().map_or_else(Vec::new, |node| node.all());
        let weak = Arc::downgrade(self);
        let last = move |user| weak.upgrade()?.user(user)?.last_request();
        match monitor::watch(options, all, last) {
            Ok(watching) => {
                *self.watching.lock().unwrap_or_else(|e| e.into_inner()) = Some(watching);
                Ok(())
            }
            Err(error) if by_default => {
                let text = format_args!(
                    "the monitor has no thread, so a worker that does not yield is not reported: \
                     {error}"
                );
                report::warn(Kind::Setup, text);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Whether what the monitor finds is told in sentences, where no other way was asked for.
    fn sentences_are_wanted(&self) -> bool {
        #[cfg(feature = "sim")]
        if crate::os::sim::is_here() {
            return false;
        }
        self.builder.warnings
    }

    /// Is no longer watched: what ends is no incident.
    pub(super) fn be_left_alone(&self) {
        drop(self.stats.lock().unwrap_or_else(|e| e.into_inner()).take());
        drop(self.watching.lock().unwrap_or_else(|e| e.into_inner()).take());
    }

    /// What the monitor has found.
    pub(crate) fn monitor_counts(&self) -> Vec<ConditionCount> {
        let watching = self.watching.lock().unwrap_or_else(|e| e.into_inner());
        watching.as_ref().map_or_else(Vec::new, |watching| watching.counts.read())
    }

    /// Where schedulers stood still.
    pub(crate) fn stalls(&self) -> Vec<StallStack> {
        let watching = self.watching.lock().unwrap_or_else(|e| e.into_inner());
        watching.as_ref().map_or_else(Vec::new, |watching| watching.counts.stalls())
    }

    /// Its last reports.
    pub(crate) fn last_reports(&self) -> Vec<PastReport> {
        let watching = self.watching.lock().unwrap_or_else(|e| e.into_inner());
        watching.as_ref().map_or_else(Vec::new, |watching| watching.counts.recent())
    }
}
