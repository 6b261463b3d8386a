//! A worker in the table of its scheduler: its state, its links, and its request.
//!
//! This file does not move workers from list to list.

use std::sync::atomic::Ordering;

use crate::os::linux::plain::prefetch;
use crate::scheduler::lists::{NO_WORKER, WorkerId};
use crate::scheduler::request::WorkRequest;
use crate::wait::Waiter;

/// Where a worker is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// Created, not yet run. On no list; only its scheduler's current worker may touch it.
    New = 0,
    /// It is its scheduler's current worker. On no list; it owns its stack and the baton.
    Running,
    /// It could continue its request. On the runnable list.
    Runnable,
    /// It waits for something, with a reason. On the waiter list.
    Waiting,
    /// It has no request. On the worker list.
    Idle,
    /// It runs outside its scheduler, which ignores it until it rejoins. On no list.
    Preemptive,
    /// It is ending. On no list.
    Retired,
}

impl State {
    /// Returns the state with this number; New for an unknown number.
    pub(crate) fn from_number(n: u8) -> State {
        use State::*;
        [New, Running, Runnable, Waiting, Idle, Preemptive, Retired]
            .into_iter()
            .find(|s| *s as u8 == n)
            .unwrap_or(New)
    }
}

/// How a worker is made to run: as a thread or a fiber.
pub(crate) trait Execution {
    /// Lets the processor get the memory that a switch to the worker needs. No effect otherwise.
    #[inline(always)]
    fn prefetch(&self) {}

    /// Lets the processor get the memory that `prefetch` reads. No effect otherwise.
    #[inline(always)]
    fn prefetch_early(&self) {}
}

/// One worker, as its scheduler sees it, or a vacant place (then Retired, with nothing that makes
/// it run).
///
/// It is one cache line if `S` is small, because a switch among many workers takes as long as it
/// takes to get their lines.
#[repr(align(64))]
pub(crate) struct Worker<S> {
    pub waiter: &'static Waiter,
    pub state: State,
    pub prev: WorkerId,
    pub next: WorkerId,
    /// Whether it is Runnable because its wait has ended, not because it yielded.
    pub(super) waited: bool,
    /// When it entered its list, in ticks.
    pub since: u64,
    /// The request that it starts when it is next chosen.
    pub request: Option<WorkRequest>,
    /// How it is made to run. The standby has none.
    pub execution: Option<S>,
}

impl<S: Execution> Worker<S> {
    pub(super) fn new(waiter: &'static Waiter, execution: Option<S>, now: u64) -> Worker<S> {
        Worker {
            waiter,
            state: State::New,
            waited: false,
            prev: NO_WORKER,
            next: NO_WORKER,
            since: now,
            request: None,
            execution,
        }
    }

    /// Returns whether it is Runnable because it yielded. Both fields are compared at once.
    #[inline]
    pub(super) fn has_yielded(&self) -> bool {
        [self.waited as u8, self.state as u8] == [0, State::Runnable as u8]
    }

    #[inline]
    pub(super) fn put(&mut self, to: State, now: u64) {
        self.state = to;
        self.waited = false;
        self.since = now;
        self.waiter.record.view.state.store(to as u8, Ordering::Relaxed);
    }

    /// Gets the memory that a switch to this worker needs. Called when the worker is probably the
    /// next: among many workers, most of the time of a switch is the wait for memory.
    #[inline(always)]
    pub(super) fn prefetch(&self) {
        prefetch(&self.waiter.record.view.switches);
        if let Some(execution) = &self.execution {
            execution.prefetch();
        }
    }

    /// Gets the memory that [`Worker::prefetch`] reads. Called while other workers go before this
    /// one.
    #[inline(always)]
    pub(super) fn prefetch_early(&self) {
        if let Some(execution) = &self.execution {
            execution.prefetch_early();
        }
    }

    /// Becomes Runnable because its wait has ended, behind this worker.
    #[inline]
    pub(super) fn be_signalled(&mut self, behind: WorkerId, now: u64) {
        self.put(State::Runnable, now);
        self.waited = true;
        self.prev = behind;
    }
}

impl Waiter {
    /// Returns whether the worker of this waiter is in that state, as its scheduler's current
    /// worker last wrote it.
    #[inline]
    pub(crate) fn is(&self, state: State) -> bool {
        self.record.view.state.load(Ordering::Relaxed) == state as u8
    }
}
