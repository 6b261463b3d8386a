//! The scheduler monitor: one thread per process that finds what is stuck, and says why (B31-B39).
//!
//! A cooperative scheduler stands still when a worker does not yield. The monitor looks at each
//! scheduler's marks of progress, a few times in the shortest time that matters, and reports:
//!
//! | condition | what |
//! |---|---|
//! | `STALL` | a worker has not yielded for some hundred milliseconds |
//! | `NON-YIELDING` | and not for seconds |
//! | `SLOW ROUTINE` | a completion routine runs that long (B36) |
//! | `NO WORKERS` | requests wait, all workers there may be are busy, and none comes back (B37) |
//! | `NOT PICKED UP` | requests wait for any other reason |
//! | `ALL STUCK` | no scheduler of the node has picked up a request for a minute (B35) |
//! | `SLOW SUBMISSION` | giving I/O to the system held the scheduler up (B51) |
//! | `SLOW I/O` | a wait for a file was too long (B50) |
//! | `DEADLOCK` | workers wait for each other in a circle; one wait is ended |
//!
//! ```text
//!   schedulers --marks--> watch: has anything changed? --no, for too long--> figures, sample
//!       |                                                                        |
//!       +--- alarm: awake again; slow I/O                        diagnose: who is to blame
//!                                                                                |
//!              report --> limit --> tracing event, callback, counter, text on stderr
//! ```
//!
//! *By default* ([`Builder::warnings`](crate::Builder::warnings)) a node is watched with options of
//! its own: `STALL` and `SLOW ROUTINE` from a second on where something else is held up by it,
//! `NO WORKERS` and `NOT PICKED UP`, each told in one sentence (`sentence.rs`). A stall that the
//! machine causes is not told, nor is slow I/O. Deadlocks are not looked for. That all schedulers
//! are stuck is told of each of them. The rest of this page is about options that were given.
//!
//! A report names the worker, its request and user, the functions that its thread is in, what that
//! thread used of the processor, and a [`Diagnosis`]. Most stalls are not the application's doing:
//! a machine that gives the thread no processor is named as such ([`Diagnosis::exonerates`]).
//!
//! What it costs: nothing on any path of the schedulers but a fence where one wakes from sleep. It
//! sleeps as long as all schedulers do, so an idle process has no wake-ups (B39).
//!
//! A report waits for nobody: one that stderr does not take is kept for a while, and then counted.
//!
//! What it does not do: it schedules nothing and stops nobody.

mod baton;
mod deadlock;
mod deliver;
mod diagnose;
mod figures;
mod limit;
pub(crate) mod looker;
mod profile;
mod sentence;
mod slow;
mod text;
mod unwind;
mod watch;
mod writer;

use std::sync::Arc;
use std::time::Duration;

use crate::record::reason::WaitReason;
use crate::scheduler::request::{RequestId, UserId};

pub use crate::record::frame::Frame;
pub use crate::wait::deadlock::{Deadlock, DeadlockId, DeadlockWaiter};
pub use deliver::{ConditionCount, PastReport};
pub use diagnose::{Diagnosis, Thief};
pub use figures::{ProcessUse, ThreadUse};
pub use profile::StallStack;
pub(crate) use watch::{Watching, watch};

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Condition {
    /// A worker has not yielded for longer than [`Options::stall`].
    Stall,
    /// A worker has not yielded for longer than [`Options::non_yield`].
    NonYielding,
    /// A completion routine has run for longer than [`Options::stall`] (B36).
    SlowRoutine,
    /// Requests wait, every worker there may be waits itself or is away (B37).
    NoWorkers,
    /// Requests wait and none is picked up, for another reason.
    NotPickedUp,
    /// That is so on every visible scheduler of the node (B35).
    AllStuck,
    /// A submission of I/O took longer than a quantum (B51).
    SlowSubmission,
    /// A wait for a file took longer than [`set_slow_after`](crate::io::set_slow_after) says (B50).
    SlowIo,
    /// Workers wait for each other in a circle.
    Deadlock,
}

impl Condition {
    /// All of them.
    pub const ALL: [Condition; 9] = [
        Condition::Stall,
        Condition::NonYielding,
        Condition::SlowRoutine,
        Condition::NoWorkers,
        Condition::NotPickedUp,
        Condition::AllStuck,
        Condition::SlowSubmission,
        Condition::SlowIo,
        Condition::Deadlock,
    ];

    /// Its name in texts and tables.
    pub fn name(self) -> &'static str {
        match self {
            Condition::Stall => "STALL",
            Condition::NonYielding => "NON-YIELDING",
            Condition::SlowRoutine => "SLOW ROUTINE",
            Condition::NoWorkers => "NO WORKERS",
            Condition::NotPickedUp => "NOT PICKED UP",
            Condition::AllStuck => "ALL STUCK",
            Condition::SlowSubmission => "SLOW SUBMISSION",
            Condition::SlowIo => "SLOW I/O",
            Condition::Deadlock => "DEADLOCK",
        }
    }
}

/// One finding of the monitor. Its `Display` is what goes to stderr.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report {
    /// What is wrong.
    pub condition: Condition,
    /// Who is to blame.
    pub diagnosis: Diagnosis,
    /// For how long it has been so.
    pub lasted: Duration,
    /// The scheduler's number; that of the first one when all are stuck.
    pub scheduler: usize,
    /// Its name.
    pub scheduler_name: String,
    /// The worker's number there, where there is one to name.
    pub worker: Option<u32>,
    /// The request that it carries out; 0 for none.
    pub request: RequestId,
    /// The user of that; 0 for none.
    pub user: UserId,
    /// Workers that could run if they were let.
    pub runnable: u64,
    /// Requests that have no worker yet.
    pub queued: usize,
    /// What at least half of the workers wait for, when requests are not picked up.
    pub common_wait: Option<WaitReason>,
    /// The descriptor of slow I/O.
    pub fd: Option<i32>,
    /// What the thread used, where one is to be looked at.
    pub thread: Option<ThreadUse>,
    /// What the process used, and what was left to use.
    pub process: Option<ProcessUse>,
    /// The functions that the thread is in, the innermost first.
    pub backtrace: Vec<Frame>,
    /// Whether the request was cancelled for it; see [`Options::cancel_after`].
    pub cancelled: bool,
    /// For how much of that time the monitor itself could not look, so that it is held against
    /// nobody.
    pub stood_still: Duration,
    /// The circle of a deadlock.
    pub deadlock: Option<Arc<crate::wait::deadlock::Deadlock>>,
    /// Reports of this scheduler that were left out since the last one (B38).
    pub suppressed: u64,
    /// All that is told of it where nothing was asked for.
    sentence: String,
}

impl Report {
    /// The innermost function that is not the standard library's: mostly the guilty one.
    pub fn function(&self) -> Option<&str> {
        let library = |name: &str| {
            let path = name.trim_start_matches('<');
            ["core::", "std::", "alloc::", "0x"].iter().any(|start| path.starts_with(start))
        };
        let names = self.backtrace.iter().map(|frame| frame.name.as_str());
        names.into_iter().find(|name| !library(name))
    }
}

type OnReport = Arc<dyn Fn(&Report) + Send + Sync>;

/// What the monitor looks for, and whom it tells.
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
    /// Whether these are what a node has that was given none: a sentence for each report, and no
    /// more.
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
    /// Those of a node that was given none, which says a sentence where it finds something.
    ///
    /// A starved process is not told of, a stall is told once, and that all schedulers are stuck is
    /// told of each of them. Deadlocks are not looked for: that costs something for each wait, and
    /// ends waits.
    pub(crate) fn of_the_default() -> Options {
        Options {
            stall: Duration::from_secs(1),
            starved: Duration::MAX,
            non_yield: Duration::MAX,
            // After the sentence about a standstill, which is told after one second.
            no_workers: Duration::from_secs(3),
            all_stuck: Duration::MAX,
            deadlock: Duration::MAX,
            repeat: Duration::MAX,
            per_minute: usize::MAX,
            by_default: true,
            ..Options::default()
        }
    }

    /// How long a worker, or a completion routine, may run without yielding. Default 200 ms.
    pub fn stall(mut self, span: Duration) -> Options {
        self.stall = span;
        self
    }

    /// How long that must be when the machine gave the thread no processor. Default 1 s: on a busy
    /// machine shorter times are nothing special.
    pub fn starved(mut self, span: Duration) -> Options {
        self.starved = span;
        self
    }

    /// From when on it is non-yielding. Default 10 s.
    pub fn non_yield(mut self, span: Duration) -> Options {
        self.non_yield = span;
        self
    }

    /// From when on the request of a worker that does not yield is cancelled (B41). Default: never.
    ///
    /// As by [`User::cancel`](crate::User::cancel), at the worker's next yield or wait: nothing is
    /// stopped by force. One that has no processor is left alone.
    pub fn cancel_after(mut self, span: Duration) -> Options {
        self.cancel_after = span;
        self
    }

    /// How long requests may wait while all workers wait too. Default 1 s.
    pub fn no_workers(mut self, span: Duration) -> Options {
        self.no_workers = span;
        self
    }

    /// How long requests may wait for other reasons without one being picked up. Default 10 s.
    pub fn not_picked_up(mut self, span: Duration) -> Options {
        self.not_picked_up = span;
        self
    }

    /// How long that may be so on all visible schedulers at once. Default 60 s.
    pub fn all_stuck(mut self, span: Duration) -> Options {
        self.all_stuck = span;
        self
    }

    /// How long something must have been waited for before it is looked whether that is a deadlock.
    /// Default 1 s; [`Duration::MAX`]: never.
    ///
    /// A deadlock is broken: among the waits in it that can fail with an error, the one that began
    /// last ends with [`WaitError::Deadlock`](crate::WaitError::Deadlock); if all are plain verbs
    /// (`lock`, `read`, `write`), the last of them panics.
    pub fn deadlock(mut self, span: Duration) -> Options {
        self.deadlock = span;
        self
    }

    /// Whether the report of a deadlock shall say where each lock was taken, and readers of a
    /// [`RwLock`](crate::sync::RwLock) be known by name. Default no: it costs a few microseconds
    /// and some hundred bytes for each lock that is taken. It holds for the whole process, for
    /// good.
    pub fn trace_locks(mut self, yes: bool) -> Options {
        self.trace_locks = yes;
        self
    }

    /// When something that goes on is reported again; each further time after twice as long.
    /// Default 60 s.
    pub fn repeat(mut self, span: Duration) -> Options {
        self.repeat = span;
        self
    }

    /// Most reports of one scheduler in a minute; the others are counted. Default 5.
    pub fn per_minute(mut self, reports: usize) -> Options {
        self.per_minute = reports;
        self
    }

    /// Whether reports are written to stderr. Default yes.
    pub fn stderr(mut self, yes: bool) -> Options {
        self.stderr = yes;
        self
    }

    /// Who is told of each report, on the monitor's thread, which looks at nothing meanwhile.
    pub fn on_report(mut self, tell: impl Fn(&Report) + Send + Sync + 'static) -> Options {
        self.on_report = Some(Arc::new(tell));
        self
    }

    /// How often the monitor looks.
    pub(crate) fn interval(&self) -> Duration {
        let shortest = self.stall.min(self.no_workers).min(self.not_picked_up);
        let shortest = shortest.min(self.all_stuck).min(self.deadlock).min(self.cancel_after);
        (shortest / 4).clamp(Duration::from_millis(1), Duration::from_secs(1))
    }
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let tells = self.on_report.is_some();
        write!(f, "Options(stall {:?}, non-yield {:?}, tells {tells})", self.stall, self.non_yield)
    }
}
