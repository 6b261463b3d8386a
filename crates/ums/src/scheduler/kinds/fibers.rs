//! Fiber workers: stacks on the scheduler's host thread. A fiber stores which fiber is next and
//! suspends itself. The root loop of the host thread, which is also the standby, resumes the next
//! one: two stack switches, no system call.
//!
//! Named invariant **Home**: a fiber is resumed only by its scheduler's host thread.

#![allow(unsafe_code)] // Named invariant "Home", above.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use fiber::{Fiber, Suspender};

use super::kind::{Kind, prefetch_view};
use crate::os::linux::open::DriverThreads;
use crate::os::linux::plain::prefetch;
use crate::os::planted::{self, Bug};
use crate::scheduler::host::or_abort;
use crate::scheduler::lists::WorkerId;
use crate::scheduler::lists::worker_list::{STANDBY, Worker};
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
        let saved_at = unsafe { (*fiber).saved_at() };
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
        core.hand_to(scheduler, to, event);
        Handed::Left(match core.workers.get(me).execution {
            Some(ExecutionContext::Fiber(_, Some(suspender))) => WayOut::Suspend(suspender),
            _ => WayOut::Stay,
        })
    }

    #[inline(always)]
    fn ahead(worker: &Worker<ExecutionContext>) {
        prefetch_view(worker.waiter);
        if let Some(ExecutionContext::Fiber(fiber, _)) = worker.execution {
            prefetch(fiber);
        }
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

impl Scheduler {
    /// The second half of a switch: the fiber that was current until now suspends itself.
    #[inline(always)]
    pub(in crate::scheduler) fn suspend(&self, me: Suspender) {
        // The next fiber goes to the root in a register. The root can resume it while it still
        // waits for what is on its own stack, which it has stored there a moment ago.
        let next = self.fiber.get().expose_provenance();
        // SAFETY: Home: this worker was current until now, so this is its own stack.
        unsafe { me.suspend_with(next) }
    }
}

/// Called by the root: resumes the current worker, and then each one that the last one has handed
/// the baton to. Returns false if no fiber is current. A fiber that has ended is removed, and its
/// stack returns to the pool; then it returns true.
#[inline]
fn resume(scheduler: &Scheduler) -> bool {
    let mut fiber = scheduler.fiber.get();
    while !fiber.is_null() {
        // SAFETY: Home: this is the host thread's root, the only place that resumes, and the
        // pointer comes from the execution context of a living worker, which is current. No borrow
        // of the core is alive.
        let Some(next) = (unsafe { (*fiber).resume_for_word() }) else {
            bury_current(scheduler);
            return true;
        };
        fiber = std::ptr::with_exposed_provenance_mut(next);
    }
    false
}

#[cold]
fn bury_current(scheduler: &Scheduler) {
    let (waiter, execution) = scheduler.with(|core| {
        let id = core.current;
        core.current = STANDBY;
        scheduler.current_waiter.store(Some(scheduler.standby));
        scheduler.fiber.set(std::ptr::null_mut());
        core.workers.remove(id)
    });
    waiter.give_back();
    let ExecutionContext::Fiber(fiber, _) = execution else { return };
    // SAFETY: Home: the fiber has finished and its worker is removed, so this is the only pointer
    // to what `create` made.
    let stack = unsafe { Fiber::take_from_stack(fiber) }.into_stack();
    scheduler.with(|core| core.take_stack_back(Some(stack)));
}
