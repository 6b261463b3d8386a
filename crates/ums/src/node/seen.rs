//! The options for observing a node, and the end of that. `watched.rs` has those of the monitor.

use super::builder::Builder;
use super::handle::Node;
use super::inner::NodeInner;

impl Builder {
    /// Sets what the environment says of the monitor: all checks, or none.
    pub(crate) fn watch_by_default(&mut self, yes: bool) {
        self.watched_by_default = Some(yes);
    }

    /// Sets whether problems are reported on stderr, in one line each. Reported are problems
    /// that the program or its operator can fix, such as a worker that does not yield, and refusals
    /// of the system. The default is true. There is at most one message of each kind in ten
    /// seconds, and the next one says how many were left out. The page `docs/diagnosing.md` in the
    /// repository lists the messages, and what to do.
    ///
    /// ```
    /// // Nothing is written, and no thread checks for workers that do not yield.
    /// let node = ums::Node::builder().warnings(false).build()?;
    /// # Ok::<(), ums::BuildError>(())
    /// ```
    pub fn warnings(mut self, yes: bool) -> Builder {
        self.warnings = yes;
        self
    }

    /// Lets messages name what a C program calls and sets. For the C interface.
    #[doc(hidden)]
    pub fn for_c(mut self) -> Builder {
        self.for_c = true;
        self
    }

    /// Sets whether each scheduler records its last 1024 events, for traces and for reports after a
    /// crash. The default is true. A record costs about fifteen instructions and a read of the
    /// processor's time stamp counter: little compared with a switch between threads, but as much
    /// as a switch between fibers.
    pub fn event_ring(mut self, yes: bool) -> Builder {
        self.ring = yes;
        self
    }
}

impl Node {
    /// Sets what `ums stats` shows beside the program's name and number, where a user must choose
    /// among several processes: which address it serves, for example. At first it is empty.
    ///
    /// ```
    /// let node = ums::Node::builder().schedulers(1).build()?;
    /// node.describe("port 127.0.0.1:7777, cache /var/cache/my-proxy");
    /// # Ok::<(), ums::BuildError>(())
    /// ```
    pub fn describe(&self, text: impl Into<String>) {
        *self.inner.about.lock() = text.into();
    }
}

impl NodeInner {
    /// Ends what other threads do for the node while it runs: the statistics socket, a trace, and
    /// the monitor's watch. Otherwise the end of a node could be reported as a problem.
    pub(super) fn stop_observing(&self) {
        drop(self.stats.lock().take());
        let recording = self.recording.lock().take();
        recording.into_iter().for_each(|end| end());
        #[cfg(feature = "monitor")]
        drop(self.watching.lock().take());
    }
}
