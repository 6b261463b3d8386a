//! The part of a node that tests read: lists, states and limits. Reading changes nothing.
//!
//! This module is not part of the API, and hidden from its documentation. There are two views.
//! [`lists`] is exact, because the calling worker holds the baton. [`scheduler`] reads from
//! outside, so its result may be slightly out of date.

pub mod attributes;
#[cfg(doctest)]
mod book;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
#[cfg(feature = "sim")]
pub mod sim;
mod skipped;

use std::sync::atomic::Ordering;

use crate::node::Node;
use crate::os::short_lock::ShortLock;
use crate::record::counters::SchedulerCounters;
use crate::record::reason::WaitReason;
use crate::scheduler::lists::worker_list::{Execution, State, Workers};
use crate::scheduler::lists::{ListEnds, NO_WORKER};
use crate::scheduler::{Scheduler, here};
use crate::wait::Waiter;

/// The five lists of the caller's scheduler, and the workers on them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lists {
    /// The scheduler's number.
    pub scheduler: usize,
    /// The number of the caller's worker.
    pub current: u32,
    /// The worker list, the longest idle first.
    pub idle: Vec<u32>,
    /// The runnable list, the next one first.
    pub runnable: Vec<u32>,
    /// The waiter list, the longest waiting first.
    pub waiting: Vec<u32>,
    /// Number of outstanding I/O requests.
    pub io: usize,
    /// Number of timers.
    pub timers: usize,
    /// Number of requests without a worker.
    pub queued: usize,
    /// Number of workers.
    pub workers: usize,
    /// Number of workers that are preemptive.
    pub preemptive: usize,
}

/// A scheduler, read from outside.
#[derive(Clone, Debug)]
pub struct SchedulerSnapshot {
    /// The scheduler's counters.
    pub counters: SchedulerCounters,
    /// Number of requests without a worker.
    pub queued: usize,
    /// Number of requests that are queued, running or waiting.
    pub load: usize,
    /// The scheduler's share of the maximum number of workers.
    pub workers_max: usize,
    /// The scheduler's workers, in the order of creation.
    pub workers: Vec<WorkerSnapshot>,
}

/// A worker, read from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerSnapshot {
    /// The worker's number on its scheduler.
    pub id: u32,
    /// The worker's state.
    pub state: State,
    /// The request that the worker carries out; 0 for none.
    pub request: u64,
    /// The reason of the worker's wait, or of its last wait.
    pub reason: WaitReason,
    /// The worker's kernel thread; 0 for a fiber.
    pub thread: u32,
    /// How often the worker was switched to.
    pub switches: u64,
    /// Number of requests that the worker has finished.
    pub requests_done: u64,
    /// The address of the event that the worker parks on.
    pub event: usize,
}

/// Returns the lists of the caller's scheduler.
///
/// # Panics
/// On a plain thread.
pub fn lists() -> Lists {
    let scheduler = here().expect("only a worker, which holds the baton, can read the lists");
    scheduler.with(|core| Lists {
        scheduler: scheduler.index,
        current: core.current,
        idle: on(core.workers.idle, &mut core.workers),
        runnable: [core.workers.signalled, core.workers.yielded]
            .map(|list| on(list, &mut core.workers))
            .concat(),
        waiting: waiting(&mut core.workers),
        io: core.io.outstanding(),
        timers: core.timers.len(),
        queued: scheduler.queue.len(),
        workers: core.workers.count(),
        preemptive: core.preemptive,
    })
}

/// Returns the workers' numbers on a list, front to back.
pub(crate) fn on<S: Execution>(list: ListEnds, workers: &mut Workers<S>) -> Vec<u32> {
    let (mut at, mut out) = (list.head, Vec::new());
    while at != NO_WORKER {
        out.push(at);
        at = workers.get(at).next;
    }
    assert_eq!(out.len(), list.len as usize, "a list's length is the number of its links");
    out
}

/// Returns the workers' numbers on the waiter list, the longest waiting first.
fn waiting<S: Execution>(workers: &mut Workers<S>) -> Vec<u32> {
    let mut waiting: Vec<u32> = workers.waiters().collect();
    assert_eq!(waiting.len(), workers.waiting(), "the number of workers that wait is counted");
    waiting.sort_by_key(|id| workers.get(*id).since);
    waiting
}

/// Puts a request on the I/O list of the caller's scheduler. It completes when the descriptor is
/// readable, and then runs `routine`. Returns false if the descriptor is readable already; then the
/// routine has been called.
///
/// # Panics
/// On a plain thread.
pub fn when_readable(fd: std::os::fd::RawFd, routine: impl FnOnce(i32) + Send + 'static) -> bool {
    crate::io::submit_poll(fd, Box::new(routine)).is_some()
}

/// Calls `f` with the scheduler's number, inside the library, where the calling worker holds the
/// baton and cannot lose it.
///
/// # Panics
/// On a plain thread.
pub fn with_the_baton<R>(f: impl FnOnce(usize) -> R) -> R {
    let scheduler = here().expect("only a worker has the baton");
    f(scheduler.index)
}

/// Reads the clock by which turns are timed.
pub fn ticks() -> u64 {
    crate::os::clock::ticks()
}

/// Returns the workers of the caller's scheduler, read in the same way as from outside.
///
/// # Panics
/// On a plain thread.
pub fn workers() -> Vec<WorkerSnapshot> {
    seen(&here().expect("only a worker has a scheduler"))
}

/// Returns a view of the node's scheduler with this number. The visible schedulers have the lowest
/// numbers.
///
/// # Panics
/// If there is no scheduler with this number.
pub fn scheduler(node: &Node, index: usize) -> SchedulerSnapshot {
    let scheduler = &node.inner.all()[index];
    SchedulerSnapshot {
        counters: scheduler.counters.read(),
        queued: scheduler.queue.len(),
        load: scheduler.load(),
        workers_max: scheduler.options.limit.hard,
        workers: seen(scheduler),
    }
}

fn seen(scheduler: &Scheduler) -> Vec<WorkerSnapshot> {
    scheduler.left_over().into_iter().map(see).collect()
}

fn see(waiter: &'static Waiter) -> WorkerSnapshot {
    let view = &waiter.record.view;
    WorkerSnapshot {
        id: waiter.worker.load(Ordering::Relaxed),
        state: State::from_number(view.state.load(Ordering::Relaxed)),
        request: view.request.load(Ordering::Relaxed),
        reason: WaitReason::from_index(waiter.reason.load(Ordering::Relaxed).into()),
        thread: view.thread.load(Ordering::Relaxed),
        switches: view.switches.load(Ordering::Relaxed),
        requests_done: view.requests_done.load(Ordering::Relaxed),
        event: std::ptr::from_ref(&waiter.event) as usize,
    }
}

pub use crate::os::faulty::DriverFaults;
pub use crate::os::planted;
pub use skipped::skipped;

/// While this exists, drivers of new schedulers have these faults.
pub struct Injected(());

/// Injects faults into the I/O drivers of all schedulers that this process creates from now on.
pub fn inject(faults: DriverFaults) -> Injected {
    crate::os::faulty::install(Some(faults));
    Injected(())
}

impl Drop for Injected {
    fn drop(&mut self) {
        crate::os::faulty::install(None);
    }
}

/// Takes a short lock, the same one at each call, until the result is dropped.
pub fn take_a_short_lock() -> impl Sized {
    static LOCK: ShortLock<()> = ShortLock::new(());
    LOCK.lock()
}
