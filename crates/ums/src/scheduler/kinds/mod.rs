//! The kinds of workers: threads, fibers, and threads with their own context. Each kind implements
//! the trait `Kind`, and the rest of the scheduler asks `options.kind`, which knows the
//! implementation:
//!
//! ```text
//!   asked by   question
//!   host       driver_threads, host            a scheduler begins
//!              create, end_request             a worker begins, and ends a request
//!   switch     hand_over                       the first half of a switch
//!   choose     can_resume                      is the chosen worker saved?
//!   preempt    leave, rejoin                   a worker leaves its scheduler, and rejoins it
//!   idle       retire                          a worker ends
//! ```
//!
//! The second half of a switch asks nothing, because the first returns the way out. A wake-up and
//! an I/O request do not depend on the kind. Apart from these questions, the scheduler must know
//! only whether a worker is a thread of its own (`WorkerKind::is_thread`).

mod contexts;
mod fibers;
mod kind;
mod threads;

use std::io;
use std::sync::Arc;

use contexts::Contexts;
use fiber::Fiber;
use fibers::Fibers;
use threads::Threads;

use super::switch::{Handed, SwitchEvent};
use super::way_out::WayOut;
use super::{Core, ExecutionContext, Scheduler, SchedulerOptions, WorkerKind};
use crate::os::linux::open::DriverThreads;
use crate::scheduler::lists::WorkerId;
use crate::scheduler::lists::worker_list::Execution;
use crate::wait::Waiter;

pub(super) use contexts::{Hosting, Own, Switching};
pub(super) use kind::Kind;

/// Calls a function of the kind's implementation. Inlined, this is the only branch on the kind.
macro_rules! ask {
    ($kind:ident, $question:ident($($with:expr),*)) => {
        match $kind {
            WorkerKind::Thread => Threads::$question($($with),*),
            WorkerKind::Fiber => Fibers::$question($($with),*),
            WorkerKind::OwnContext => Contexts::$question($($with),*),
        }
    };
}

/// The questions of the trait `Kind`, by the value that the options have.
impl WorkerKind {
    pub(super) fn driver_threads(self, options: &SchedulerOptions) -> DriverThreads {
        ask!(self, driver_threads(options))
    }

    pub(super) fn host(self, scheduler: &Arc<Scheduler>, begun: impl FnOnce()) -> io::Result<()> {
        ask!(self, host(scheduler, begun))
    }

    pub(super) fn create(
        self,
        scheduler: &Scheduler,
        core: &mut Core,
        id: WorkerId,
        waiter: &'static Waiter,
    ) -> io::Result<ExecutionContext> {
        ask!(self, create(scheduler, core, id, waiter))
    }

    #[inline(always)]
    pub(super) fn hand_over(
        self,
        scheduler: &Scheduler,
        core: &mut Core,
        to: WorkerId,
        event: SwitchEvent,
    ) -> Handed {
        ask!(self, hand_over(scheduler, core, to, event))
    }

    /// Returns the turn of a yield, compiled for this kind and for a scheduler with an event ring
    /// or without one.
    pub(super) fn yielding_turn(self, recorded: bool) -> fn(&Scheduler) -> WayOut {
        match (self, recorded) {
            (WorkerKind::Thread, false) => Scheduler::yielding_turn::<Threads, false>,
            (WorkerKind::Thread, true) => Scheduler::yielding_turn::<Threads, true>,
            (WorkerKind::Fiber, false) => Scheduler::yielding_turn::<Fibers, false>,
            (WorkerKind::Fiber, true) => Scheduler::yielding_turn::<Fibers, true>,
            (WorkerKind::OwnContext, false) => Scheduler::yielding_turn::<Contexts, false>,
            (WorkerKind::OwnContext, true) => Scheduler::yielding_turn::<Contexts, true>,
        }
    }

    #[inline]
    pub(super) fn can_resume(self, core: &mut Core, id: WorkerId) -> bool {
        ask!(self, can_resume(core, id))
    }

    pub(super) fn leave(self, scheduler: &Scheduler, to: WorkerId) {
        ask!(self, leave(scheduler, to))
    }

    pub(super) fn rejoin(self, scheduler: &Scheduler, waiter: &'static Waiter, lend: bool) -> bool {
        ask!(self, rejoin(scheduler, waiter, lend))
    }

    #[inline]
    pub(super) fn end_request(self, waiter: &Waiter) {
        ask!(self, end_request(waiter))
    }

    pub(super) fn retire(self, scheduler: &Scheduler, id: WorkerId) {
        ask!(self, retire(scheduler, id))
    }
}

impl Execution for ExecutionContext {
    #[inline(always)]
    fn prefetch(&self) {
        match self {
            ExecutionContext::Thread(_) => {}
            ExecutionContext::Fiber(..) => fibers::prefetch(self),
            ExecutionContext::Own(own) => own.prefetch(),
        }
    }

    #[inline(always)]
    fn prefetch_early(&self) {
        match self {
            ExecutionContext::Thread(_) => {}
            ExecutionContext::Fiber(fiber, _) => Fiber::prefetch_early(*fiber),
            ExecutionContext::Own(own) => own.prefetch_early(),
        }
    }
}
