//! Stacks: the backtrace of every worker, whether or not it runs.
//!
//! ```text
//!   workers that are not idle --looker--> frames --> the application's, as text
//! ```
//!
//! No scheduler is stopped. The backtrace of each worker takes milliseconds, mostly to find names.
//! If a worker asks for the backtraces, it goes preemptive meanwhile. Idle workers are left out.

mod on_signal;

use std::fmt::{Display, Formatter};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::backtrace::looker::Looker;
use crate::current::go_preemptive;
use crate::node::{Node, NodeInner};
use crate::observe::views::{WorkerRow, worker_row};
use crate::os::clock;
use crate::record::frame::{Frame, none_of_the_application, of_the_application, shown};
use crate::record::reason::WaitReason;
use crate::scheduler::Scheduler;
use crate::scheduler::lists::worker_list::State;
use crate::wait::Waiter;

/// A worker with its backtrace. Its `Display` is a line about the worker and one for each function
/// of the application, the innermost first.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WorkerStack {
    /// The worker, as views show it.
    pub worker: WorkerRow,
    /// The name of the worker's scheduler.
    pub scheduler_name: String,
    /// The functions that it is in, the innermost first. Empty if they could not be read, because
    /// its thread did not answer or the worker kept running meanwhile.
    pub frames: Vec<Frame>,
}

impl Node {
    /// Returns the backtrace of every worker that is not idle.
    ///
    /// ```
    /// use std::time::Duration;
    /// #[inline(never)]
    /// fn waits_for_the_post() {
    ///     let _ = ums::sleep(Duration::from_secs(60));
    /// }
    /// let node = ums::Node::builder().schedulers(1).build()?;
    /// let task = node.spawn(waits_for_the_post)?;
    /// let seen = || node.stacks().iter().any(|stack| stack.to_string().contains("the_post"));
    /// while !seen() {
    ///     std::thread::sleep(Duration::from_millis(1));
    /// }
    /// task.cancel();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn stacks(&self) -> Vec<WorkerStack> {
        of_node(&self.inner)
    }

    /// Returns the backtrace of this worker, idle or not; `None` if there is no such worker.
    pub fn stack_of(&self, scheduler: usize, worker: u32) -> Option<WorkerStack> {
        let all = self.inner.all();
        let s = all.iter().find(|s| s.index == scheduler)?;
        let waiter = s.left_over().into_iter().find(|waiter| number_of(waiter) == worker)?;
        Some(outside(|| look(&mut Looker::new(), s, waiter, &all)))
    }
}

/// Runs `f`, which may block: a worker goes preemptive for it.
fn outside<R: Send>(f: impl FnOnce() -> R + Send) -> R {
    go_preemptive(WaitReason::PREEMPTIVE_EXTERNAL, f)
}

/// Returns the backtraces of all workers that are not idle.
fn of_node(node: &NodeInner) -> Vec<WorkerStack> {
    outside(|| {
        let (all, mut looker) = (node.all(), Looker::new());
        let mut stacks = Vec::new();
        for s in &all {
            let waiters = s.left_over().into_iter().filter(|waiter| !waiter.is(State::Idle));
            stacks.extend(waiters.map(|waiter| look(&mut looker, s, waiter, &all)));
        }
        stacks
    })
}

fn look(
    looker: &mut Looker,
    s: &Scheduler,
    waiter: &'static Waiter,
    all: &[Arc<Scheduler>],
) -> WorkerStack {
    let frames = looker.look(s, waiter);
    let worker = worker_row(s, waiter, clock::ticks(), all);
    WorkerStack { worker, scheduler_name: s.name().to_owned(), frames }
}

fn number_of(waiter: &Waiter) -> u32 {
    waiter.worker.load(Ordering::Relaxed)
}

impl WorkerStack {
    /// Returns the frames of the application's code, with those by which its functions call each
    /// other. Left out are the frames in which this library suspended the worker or called the
    /// system for it, and those in which it called the request.
    pub fn of_the_application(&self) -> &[Frame] {
        of_the_application(&self.frames)
    }
}

/// Returns the name of the worker's state, as views show it.
pub(crate) fn state(worker: &WorkerRow) -> String {
    format!("{:?}", worker.state).to_uppercase()
}

impl Display for WorkerStack {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let w = &self.worker;
        let made_of =
            if w.thread == 0 { "fiber".to_owned() } else { format!("thread {}", w.thread) };
        write!(f, "worker {} of scheduler {}, {made_of}: ", w.id, self.scheduler_name)?;
        f.write_str(&state(w))?;
        if let Some(reason) = w.reason {
            write!(f, " {} for {}", reason.name(), span(w.waited_ns))?;
        }
        if w.request != 0 {
            write!(f, "; request {}", w.request)?;
            if w.user != 0 {
                write!(f, " of user {}", w.user)?;
            }
            write!(f, ", running for {}", span(w.of_request.elapsed_ns))?;
        }
        let shown = shown(&self.frames);
        if shown.is_empty() {
            write!(f, "\n    {}", none_of_the_application(&self.frames))?;
        }
        for frame in shown {
            write!(f, "\n    at {}", frame.name)?;
            if let Some(place) = &frame.place {
                write!(f, " ({place})")?;
            }
        }
        Ok(())
    }
}

/// Formats a time in a readable unit.
fn span(ns: u64) -> String {
    match ns {
        0..1_000_000 => format!("{} us", ns / 1_000),
        1_000_000..1_000_000_000 => format!("{} ms", ns / 1_000_000),
        _ => format!("{}.{} s", ns / 1_000_000_000, ns / 100_000_000 % 10),
    }
}
