//! Fiber workers: stacks on the scheduler's host thread. A fiber stores which fiber is next and
//! suspends itself. The root loop of the host thread, which is also the standby, resumes the next
//! one: two stack switches, no system call.
//!
//! Named invariant **Home**: a fiber is resumed only by its scheduler's host thread.

#![allow(unsafe_code)] // Named invariant "Home", above.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use fiber::{Fiber, Resume, Suspender};

use super::kind::Kind;
use crate::os::linux::open::DriverThreads;
use crate::os::planted::{self, Bug};
use crate::scheduler::host::or_abort;
use crate::scheduler::lists::WorkerId;
use crate::scheduler::lists::worker_list::STANDBY;
use crate::scheduler::switch::{Handed, SwitchEvent, WayOut};
use crate::scheduler::{Core, ExecutionContext, Scheduler, SchedulerOptions, here};
use crate::wait::Waiter;

/// Fiber workers.
pub(super) struct Fibers;

impl Kind for Fibers {
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
        // SAFETY: Home: this worker was current until now, so this is its own stack.
        unsafe { me.suspend() }
    }
}

/// Called by the root: resumes the current worker. Returns false if no fiber is current. A fiber
/// that has ended is removed, and its stack returns to the pool.
#[inline]
fn resume(scheduler: &Scheduler) -> bool {
    let fiber = scheduler.with(|core| core.fiber);
    if fiber.is_null() {
        return false;
    }
    // SAFETY: Home: this is the host thread's root, the only place that resumes, and the pointer
    // comes from the execution context of a living worker. No borrow of the core is alive.
    if unsafe { (*fiber).resume() } == Resume::Finished {
        bury_current(scheduler);
    }
    true
}

#[cold]
fn bury_current(scheduler: &Scheduler) {
    let (waiter, execution) = scheduler.with(|core| {
        let id = core.current;
        core.current = STANDBY;
        scheduler.current_waiter.store(Some(scheduler.standby));
        core.fiber = std::ptr::null_mut();
        core.workers.remove(id)
    });
    waiter.give_back();
    let ExecutionContext::Fiber(fiber, _) = execution else { return };
    // SAFETY: Home: the fiber has finished and its worker is removed, so this is the only pointer
    // to what `create` made.
    let stack = unsafe { Fiber::take_from_stack(fiber) }.into_stack();
    scheduler.with(|core| core.take_stack_back(Some(stack)));
}
