//! Fiber workers: stacks on the scheduler's host thread. A fiber passes to the next one: one stack
//! switch, no system call. If no other can run, it suspends itself, and the root loop of the host
//! thread, which is also the standby, goes on.
//!
//! Named invariant **Home**: a fiber is resumed only by its scheduler's host thread.

#![allow(unsafe_code)] // Named invariant "Home", above.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use fiber::{Fiber, Resume, Suspender};

use super::kind::Kind;
use crate::os::linux::open::DriverThreads;
use crate::os::planted::{self, Bug};
use crate::scheduler::host::or_abort;
use crate::scheduler::lists::WorkerId;
use crate::scheduler::lists::worker_list::STANDBY;
use crate::scheduler::switch::{Handed, SwitchEvent};
use crate::scheduler::way_out::WayOut;
use crate::scheduler::{Core, ExecutionContext, Scheduler, SchedulerOptions, here};
use crate::wait::Waiter;

/// Fiber workers.
pub(super) struct Fibers;

impl Kind for Fibers {
    const SHARES_PANIC_COUNT: bool = true;

    fn driver_threads(_: &SchedulerOptions) -> DriverThreads {
        DriverThreads::OneThread
    }

    fn host(scheduler: &Arc<Scheduler>, begun: impl FnOnce()) -> io::Result<()> {
        let _alternate_stack = fiber::prepare_host_thread();
        scheduler.run_standby(begun, || scheduler.root(resume));
        Ok(())
    }

    fn create(
        scheduler: &Scheduler,
        core: &mut Core,
        id: WorkerId,
        waiter: &'static Waiter,
    ) -> io::Result<ExecutionContext> {
        let pool = core.stacks.get_or_insert_with(|| scheduler.options.stacks());
        let stack = pool.take().map_err(io::Error::other)?;
        waiter.record.view.stack_is(stack.range());
        if planted::is(Bug::StackReusedTooEarly) {
            // SAFETY: Home: broken on purpose, in a build with planted bugs.
            pool.give(unsafe { std::ptr::read(&stack) });
        }
        let fiber = Fiber::on_its_stack(stack, scheduler.worker_name(id), move |suspender| {
            let scheduler = here().expect("a fiber is resumed by its host thread");
            scheduler.with(|core| {
                if let Some(ExecutionContext::Fiber(_, way_out)) =
                    &mut core.workers.get(id).execution
                {
                    *way_out = Some(suspender);
                }
            });
            or_abort(|| scheduler.worker_main(id, waiter));
        });
        // SAFETY: Home: the fiber was made just above, and is resumed only when it is chosen.
        let saved_at = unsafe { fiber.as_ref() }.saved_at();
        waiter.record.view.saved_at.store(saved_at.unwrap_or(0), Ordering::Relaxed);
        Ok(ExecutionContext::Fiber(fiber, None))
    }

    #[inline(always)]
    fn hand_over(
        scheduler: &Scheduler,
        core: &mut Core,
        to: WorkerId,
        event: SwitchEvent,
    ) -> Handed {
        let me = core.current;
        core.switches_to(to, event);
        let (mine, theirs) = core.workers.get_both(me, to);
        theirs.waiter.is_current(scheduler);
        let next = match theirs.execution {
            Some(ExecutionContext::Fiber(fiber, _)) => Some(fiber),
            _ => None,
        };
        Handed::Left(match mine.execution {
            Some(ExecutionContext::Fiber(_, Some(suspender))) => WayOut::of_fiber(suspender, next),
            _ => WayOut::STAY,
        })
    }

    fn leave(_: &Scheduler, _: WorkerId) {
        unreachable!("a fiber cannot leave its thread: its closure is sent as an errand");
    }

    fn rejoin(_: &Scheduler, _: &'static Waiter, _: bool) -> bool {
        unreachable!("a fiber has not left its scheduler");
    }

    fn retire(scheduler: &Scheduler, id: WorkerId) {
        let by_root = scheduler.with(|core| core.current) == STANDBY;
        // The fiber is resumed once more, to run to its end.
        scheduler.switch_to(id);
        if by_root {
            resume(scheduler);
        }
    }
}

/// Lets the processor get the memory that a switch to a worker needs, if that is a fiber.
#[inline(always)]
pub(super) fn prefetch(worker: &ExecutionContext) {
    if let ExecutionContext::Fiber(fiber, _) = worker {
        // SAFETY: Home: the fiber of a living worker.
        unsafe { Fiber::prefetch(*fiber) };
    }
}

impl Core {
    /// Returns the fiber of a worker of this kind; none for the standby.
    #[inline(always)]
    fn fiber_of(&mut self, id: WorkerId) -> Option<NonNull<Fiber>> {
        match self.workers.get(id).execution {
            Some(ExecutionContext::Fiber(fiber, _)) => Some(fiber),
            _ => None,
        }
    }
}

impl Scheduler {
    /// The second half of a switch: the fiber that was current until now leaves its stack.
    #[inline(always)]
    pub(in crate::scheduler) fn switch_fiber(&self, me: Suspender, next: Option<NonNull<Fiber>>) {
        // SAFETY: Home: this worker was current until now, so this is its own stack. The next fiber
        // is that of a living worker, which is current now; no other place resumes it.
        unsafe {
            match next {
                Some(next) => me.pass(next),
                None => me.suspend(),
            }
        }
    }
}

/// Called by the root: resumes the current worker, which may hand the baton to others. Returns
/// false if no fiber is current. A fiber that has ended is removed, and its stack returns to the
/// pool; then it returns true.
#[inline]
fn resume(scheduler: &Scheduler) -> bool {
    let Some(fiber) = scheduler.with(|core| core.fiber_of(core.current)) else { return false };
    // SAFETY: Home: this is the host thread's root, the only place that resumes, and the pointer
    // comes from the execution context of a living worker, which is current. No borrow of the core
    // is alive.
    match unsafe { Fiber::run(fiber) } {
        Resume::Suspended => {
            let current = scheduler.with(|core| core.current);
            debug_assert_eq!(current, STANDBY, "a fiber without a next one hands to the standby");
            false
        }
        Resume::Finished => {
            bury_current(scheduler);
            true
        }
    }
}

#[cold]
fn bury_current(scheduler: &Scheduler) {
    let (waiter, execution) = scheduler.with(|core| {
        let id = core.current;
        core.current = STANDBY;
        scheduler.current_waiter.store(Some(scheduler.standby));
        scheduler.remove_worker(core, id)
    });
    waiter.give_back();
    let ExecutionContext::Fiber(fiber, _) = execution else { return };
    // SAFETY: Home: the fiber has finished and its worker is removed, so this is the only pointer
    // to what `create` made.
    let stack = unsafe { Fiber::take_from_stack(fiber) }.into_stack();
    scheduler.with(|core| core.take_stack_back(Some(stack)));
}
