//! The options of the monitor: which conditions it looks for, and where its reports go.

use std::sync::Arc;
use std::time::Duration;

use super::report::Report;

type OnReport = Arc<dyn Fn(&Report) + Send + Sync>;

/// What the monitor looks for, and where its reports go.
///
/// ```
/// use std::time::Duration;
/// use ums::{Node, monitor};
///
/// let options = monitor::Options::default()
///     .stall(Duration::from_millis(50))
///     .on_report(|report| eprintln!("{:?}: {:?}", report.condition, report.diagnosis))
///     .stderr(false);
/// let node = Node::builder().monitor(options).build()?;
/// assert!(node.monitor_counts().iter().all(|count| count.reports == 0));
/// # Ok::<(), ums::BuildError>(())
/// ```
#[derive(Clone)]
#[must_use]
pub struct Options {
    pub(crate) stall: Duration,
    pub(crate) starved: Duration,
    pub(crate) non_yield: Duration,
    pub(crate) cancel_after: Duration,
    pub(crate) no_workers: Duration,
    pub(crate) not_picked_up: Duration,
    pub(crate) all_stuck: Duration,
    pub(crate) deadlock: Duration,
    pub(crate) trace_locks: bool,
    pub(crate) repeat: Duration,
    pub(crate) per_minute: usize,
    pub(crate) stderr: bool,
    pub(crate) on_report: Option<OnReport>,
    /// The node was given no options: each report is one line on stderr, and nothing else.
    pub(crate) by_default: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            stall: Duration::from_millis(200),
            starved: Duration::from_secs(1),
            non_yield: Duration::from_secs(10),
            cancel_after: Duration::MAX,
            no_workers: Duration::from_secs(1),
            not_picked_up: Duration::from_secs(10),
            all_stuck: Duration::from_secs(60),
            deadlock: Duration::from_secs(1),
            trace_locks: false,
            repeat: Duration::from_secs(60),
            per_minute: 5,
            stderr: true,
            on_report: None,
            by_default: false,
        }
    }
}

impl Options {
    /// Returns the options of a node that was given none. Each finding is printed in one line.
    pub(crate) fn of_the_default() -> Options {
        Options {
            stall: Duration::from_secs(1),
            starved: Duration::MAX,
            non_yield: Duration::MAX,
            // After the message about a standstill, which is printed after one second.
            no_workers: Duration::from_secs(3),
            all_stuck: Duration::MAX,
            deadlock: Duration::MAX,
            repeat: Duration::MAX,
            per_minute: usize::MAX,
            by_default: true,
            ..Options::default()
        }
    }

    /// Sets how long a worker or a completion routine may run without yielding before it is
    /// reported. Default 200 ms.
    pub fn stall(mut self, span: Duration) -> Options {
        self.stall = span;
        self
    }

    /// Sets how long a stall must last to be reported if the thread got no processor. Default 1 s:
    /// on a busy computer shorter times are normal.
    pub fn starved(mut self, span: Duration) -> Options {
        self.starved = span;
        self
    }

    /// Sets after what time a stall is reported as non-yielding. Default 10 s.
    pub fn non_yield(mut self, span: Duration) -> Options {
        self.non_yield = span;
        self
    }

    /// Sets after what time the request of a worker that does not yield is cancelled. Default:
    /// never.
    ///
    /// It works like [`User::cancel`](crate::User::cancel), at the worker's next yield or wait:
    /// nothing is stopped by force. The request of a worker that gets no processor is not
    /// cancelled.
    pub fn cancel_after(mut self, span: Duration) -> Options {
        self.cancel_after = span;
        self
    }

    /// Sets how long requests may wait, while all workers wait too, before `NO WORKERS` is
    /// reported. Default 1 s.
    pub fn no_workers(mut self, span: Duration) -> Options {
        self.no_workers = span;
        self
    }

    /// Sets how long requests may wait for any other reason, while none of them is picked up,
    /// before `NOT PICKED UP` is reported. Default 10 s.
    pub fn not_picked_up(mut self, span: Duration) -> Options {
        self.not_picked_up = span;
        self
    }

    /// Sets for how long no visible scheduler may have picked up a request before `ALL STUCK` is
    /// reported. Default 60 s.
    pub fn all_stuck(mut self, span: Duration) -> Options {
        self.all_stuck = span;
        self
    }

    /// Sets how long a wait must have lasted before the monitor looks whether it is part of a
    /// deadlock. Default 1 s; [`Duration::MAX`]: never.
    ///
    /// A deadlock is broken by ending one wait. Among the waits in it that can fail with an error,
    /// the one that began last ends with [`WaitError::Deadlock`](crate::WaitError::Deadlock). If
    /// all of them are calls that cannot fail (`lock`, `read`, `write`), the last of these panics.
    pub fn deadlock(mut self, span: Duration) -> Options {
        self.deadlock = span;
        self
    }

    /// Sets whether the report of a deadlock says where each lock was taken, and whether each
    /// reader of a [`RwLock`](crate::sync::RwLock) counts as an owner. Default no, because it costs
    /// a few microseconds and some hundred bytes for each lock that is taken. Once it is on, it
    /// stays on for the whole process.
    pub fn trace_locks(mut self, yes: bool) -> Options {
        self.trace_locks = yes;
        self
    }

    /// Sets after what time a condition that lasts is reported again. Each further report follows
    /// after twice the time of the one before. Default 60 s.
    pub fn repeat(mut self, span: Duration) -> Options {
        self.repeat = span;
        self
    }

    /// Sets how many reports of one scheduler are sent in a minute. Further reports are only
    /// counted. Default 5.
    pub fn per_minute(mut self, reports: usize) -> Options {
        self.per_minute = reports;
        self
    }

    /// Sets whether reports are written to stderr. Default yes.
    pub fn stderr(mut self, yes: bool) -> Options {
        self.stderr = yes;
        self
    }

    /// Sets a function that is called with each report, on the monitor's thread. The monitor does
    /// not look at any scheduler until the function returns.
    pub fn on_report(mut self, callback: impl Fn(&Report) + Send + Sync + 'static) -> Options {
        self.on_report = Some(Arc::new(callback));
        self
    }

    /// Returns the time between two looks of the monitor.
    pub(crate) fn interval(&self) -> Duration {
        let shortest = self.stall.min(self.no_workers).min(self.not_picked_up);
        let shortest = shortest.min(self.all_stuck).min(self.deadlock).min(self.cancel_after);
        let quarter = shortest.checked_div(4).unwrap_or_default();
        quarter.clamp(Duration::from_millis(1), Duration::from_secs(1))
    }
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let calls = self.on_report.is_some();
        write!(f, "Options(stall {:?}, non-yield {:?}, calls {calls})", self.stall, self.non_yield)
    }
}
