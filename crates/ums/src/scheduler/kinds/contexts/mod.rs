//! Workers with their own context, the third kind: threads that the scheduler switches to like
//! fibers. The rest of the scheduler asks [`Contexts`] the questions of `Kind`, completes a switch
//! by `switch_context`, and keeps the data of `state`. It uses nothing else of this folder.
//!
//! * `switching` creates contexts, switches between them, and lets workers leave and rejoin.
//! * `host` is about the kernel thread that workers run on. If undeclared blocks are detected,
//!   several threads take turns at hosting: `carrier`.
//! * `calls` has the functions that block watch calls on a worker's thread.
//! * `lent` allows workers that may hold a lock which the scheduler needs to run without the baton.
//! * `mine` stores for each thread which worker it is, so that signal handlers can find it.

mod calls;
mod carrier;
mod host;
mod lent;
mod mine;
mod state;
mod switching;

use std::io;
use std::sync::Arc;

use super::kind::Kind;
use crate::os::linux::open::DriverThreads;
use crate::scheduler::lists::WorkerId;
use crate::scheduler::switch::{Handed, SwitchEvent};
use crate::scheduler::way_out::WayOut;
use crate::scheduler::{Core, ExecutionContext, Scheduler, SchedulerOptions};
use crate::wait::Waiter;

pub(in crate::scheduler) use state::{Hosting, Own, Switching};

/// Workers with their own context.
pub(super) struct Contexts;

impl Kind for Contexts {
    fn driver_threads(options: &SchedulerOptions) -> DriverThreads {
        match carrier::are_carried(options) {
            true => DriverThreads::ManyThreads,
            false => DriverThreads::OneThread,
        }
    }

    fn host(scheduler: &Arc<Scheduler>, begun: impl FnOnce()) -> io::Result<()> {
        match carrier::are_carried(&scheduler.options) {
            true => scheduler.run_carried(begun),
            false => scheduler.run_hosted(begun),
        }
    }

    fn create(
        scheduler: &Scheduler,
        core: &mut Core,
        id: WorkerId,
        waiter: &'static Waiter,
    ) -> io::Result<ExecutionContext> {
        scheduler.create_context(core, id, waiter).map(ExecutionContext::Own)
    }

    #[inline(always)]
    fn hand_over(
        scheduler: &Scheduler,
        core: &mut Core,
        to: WorkerId,
        event: SwitchEvent,
    ) -> Handed {
        let from = core.context_of(core.current);
        core.hand_to(scheduler, to, event);
        Handed::Left(WayOut::of_context(from, core.context_of(to)))
    }

    #[inline]
    fn can_resume(core: &mut Core, id: WorkerId) -> bool {
        core.can_resume_here(id)
    }

    fn leave(scheduler: &Scheduler, to: WorkerId) {
        scheduler.couple(to);
    }

    fn rejoin(scheduler: &Scheduler, waiter: &'static Waiter, lendable: bool) -> bool {
        scheduler.decouple_lendable(waiter, lendable)
    }

    fn end_request(waiter: &Waiter) {
        lent::end_request(waiter);
    }

    fn retire(scheduler: &Scheduler, id: WorkerId) {
        let (_, execution) = scheduler.with(|core| scheduler.remove_worker(core, id));
        if let ExecutionContext::Own(own) = execution {
            let thread = own.end();
            scheduler.with(|core| core.graves.push(thread));
        }
    }
}
