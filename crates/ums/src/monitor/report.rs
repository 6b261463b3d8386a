//! A report: one finding of the monitor.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::diagnose::Diagnosis;
use super::figures::{ProcessUse, ThreadUse};
use crate::record::frame::{Frame, guilty};
use crate::record::reason::WaitReason;
use crate::scheduler::Scheduler;
use crate::scheduler::request::{RequestId, UserId};
use crate::wait::deadlock::Deadlock;

/// What is wrong with a scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Condition {
    /// A worker has not yielded for longer than [`Options::stall`](super::Options::stall).
    Stall,
    /// A worker has not yielded for longer than
    /// [`Options::non_yield`](super::Options::non_yield).
    NonYielding,
    /// A completion routine has run for longer than [`Options::stall`](super::Options::stall).
    SlowRoutine,
    /// Requests wait, the limit of workers is reached, and every worker waits itself or is
    /// preemptive.
    NoWorkers,
    /// Requests wait and none is picked up, for a reason other than `NoWorkers`.
    NotPickedUp,
    /// Requests wait and none is picked up, on every visible scheduler of the node.
    AllStuck,
    /// A submission of I/O took longer than a quantum.
    SlowSubmission,
    /// A wait for a file took longer than [`set_slow_after`](crate::io::set_slow_after) says.
    SlowIo,
    /// Workers wait for each other in a circle.
    Deadlock,
}

impl Condition {
    /// All conditions.
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

    /// Returns its name in texts and tables.
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

/// One finding of the monitor. Its `Display` is the text that goes to stderr.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report {
    /// The condition that was found.
    pub condition: Condition,
    /// The cause that the monitor names.
    pub diagnosis: Diagnosis,
    /// How long the condition has lasted.
    pub lasted: Duration,
    /// The scheduler's number. If all schedulers are stuck, the number of the first one.
    pub scheduler: usize,
    /// The scheduler's name.
    pub scheduler_name: String,
    /// The worker's number on that scheduler, if the condition concerns one worker.
    pub worker: Option<u32>,
    /// The request that the worker carries out; 0 for none.
    pub request: RequestId,
    /// The user of that request; 0 for none.
    pub user: UserId,
    /// Number of workers that are ready to run.
    pub runnable: u64,
    /// Number of requests that have no worker yet.
    pub queued: usize,
    /// The reason for which at least half of the workers wait, when requests are not picked up.
    pub common_wait: Option<WaitReason>,
    /// The descriptor of slow I/O.
    pub fd: Option<i32>,
    /// What the thread used, if the condition concerns one thread.
    pub thread: Option<ThreadUse>,
    /// What the process used, and how much processor time was idle.
    pub process: Option<ProcessUse>,
    /// The functions that the thread is in, the innermost first. Empty if the worker went on before
    /// they could be looked at, or if there were too many reports.
    pub backtrace: Vec<Frame>,
    /// Whether the monitor cancelled the request; see
    /// [`Options::cancel_after`](super::Options::cancel_after).
    pub cancelled: bool,
    /// The part of the time `lasted` in which the monitor itself could not look. That part is not
    /// counted against the worker.
    pub stood_still: Duration,
    /// The circle of waits, if the condition is a deadlock.
    pub deadlock: Option<Arc<Deadlock>>,
    /// Number of reports of this scheduler that were left out since the last one.
    pub suppressed: u64,
    /// The message that is printed instead of the report, if the node was given no options.
    pub(super) sentence: String,
}

impl Report {
    pub(super) fn new(
        condition: Condition,
        diagnosis: Diagnosis,
        lasted_ns: u64,
        s: &Scheduler,
    ) -> Report {
        Report {
            condition,
            diagnosis,
            lasted: Duration::from_nanos(lasted_ns),
            scheduler: s.index,
            scheduler_name: s.name().to_owned(),
            worker: None,
            request: 0,
            user: 0,
            runnable: s.counters.runnable.load(Ordering::Relaxed),
            queued: s.queue.len(),
            common_wait: None,
            fd: None,
            thread: None,
            process: None,
            backtrace: Vec::new(),
            cancelled: false,
            deadlock: None,
            stood_still: Duration::ZERO,
            suppressed: 0,
            sentence: String::new(),
        }
    }

    /// Returns the innermost function of the application, or of a library that it uses; usually it
    /// is the cause. If there is none, returns the innermost one that is not in the standard
    /// library.
    pub fn function(&self) -> Option<&str> {
        let library = |name: &str| {
            let path = name.trim_start_matches('<');
            ["core::", "std::", "alloc::", "0x"].iter().any(|start| path.starts_with(start))
        };
        let names = || self.backtrace.iter().map(|frame| frame.name.as_str());
        let guilty = guilty(&self.backtrace).map(|frame| frame.name.as_str());
        guilty.or_else(|| names().find(|name| !library(name)))
    }
}
