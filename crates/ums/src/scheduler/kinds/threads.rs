//! Thread workers: each is a kernel thread, which waits on its event unless it has the baton. A
//! switch sets the next worker's event. The standby is a thread of its own, which is parked nearly
//! always.

use std::io;
use std::sync::Arc;

use super::kind::Kind;
use crate::os::entry;
use crate::os::linux::open::DriverThreads;
use crate::os::threads::{self, point};
use crate::scheduler::lists::WorkerId;
use crate::scheduler::lists::worker_list::STANDBY;
use crate::scheduler::switch::{Handed, SwitchEvent};
use crate::scheduler::{Core, ExecutionContext, Scheduler, SchedulerOptions, preempt};
use crate::wait::Waiter;
use crate::watch::calls::{self, BlockHandler};
use crate::watch::{Blocks, mask_here};

/// Thread workers.
pub(super) struct Threads;

impl Kind for Threads {
    fn driver_threads(_: &SchedulerOptions) -> DriverThreads {
        DriverThreads::ManyThreads
    }

    fn host(scheduler: &Arc<Scheduler>, begun: impl FnOnce()) -> io::Result<()> {
        scheduler.watch_threads()?;
        scheduler.run_standby(begun, || stand_by(scheduler));
        Ok(())
    }

    fn create(
        scheduler: &Scheduler,
        _: &mut Core,
        id: WorkerId,
        waiter: &'static Waiter,
    ) -> io::Result<ExecutionContext> {
        let scheduler = scheduler.arc();
        let name = scheduler.worker_name(id).to_string();
        let builder = std::thread::Builder::new().stack_size(scheduler.options.stack_size);
        let thread = threads::spawn(builder, name, move || {
            scheduler.arrive(waiter);
            let watched_worker = scheduler.watch_worker(waiter);
            if let Some(watched_worker) = &watched_worker {
                preempt::prepare_here(mask_here());
                calls::detect_here(&Threads);
                watched_worker.begin();
            }
            // The worker does not have the baton until it is chosen, so it touches nothing before.
            waiter.event.wait();
            watched_worker.as_ref().inspect(|watched_worker| watched_worker.enter());
            scheduler.live(id, waiter);
            watched_worker.as_ref().inspect(|watched_worker| watched_worker.end());
            entry::enter_by(None);
            waiter.give_back();
        })?;
        Ok(ExecutionContext::Thread(Box::new(thread)))
    }

    #[inline(always)]
    fn hand_over(
        scheduler: &Scheduler,
        core: &mut Core,
        to: WorkerId,
        event: SwitchEvent,
    ) -> Handed {
        let mine = core.workers.get(core.current).waiter;
        core.hand_to(scheduler, to, event);
        let theirs = core.workers.get(to).waiter;
        scheduler.held_by(theirs);
        Handed::Thread(mine, theirs)
    }

    fn leave(scheduler: &Scheduler, to: WorkerId) {
        let theirs = scheduler.with(|core| {
            core.hand_to(scheduler, to, SwitchEvent::At(core.turn_at));
            core.workers.get(to).waiter
        });
        scheduler.held_by(theirs);
        theirs.event.set();
    }

    fn rejoin(scheduler: &Scheduler, waiter: &'static Waiter, _: bool) -> bool {
        scheduler.inbox.push(waiter);
        point("leave: at the inbox");
        waiter.event.wait();
        true
    }

    fn retire(scheduler: &Scheduler, id: WorkerId) {
        let (waiter, execution) = scheduler.with(|core| scheduler.remove_worker(core, id));
        // The thread sees Retired, gives its waiter back, and ends without touching the core.
        waiter.event.set();
        if let ExecutionContext::Thread(thread) = execution {
            scheduler.with(|core| core.graves.push(*thread));
        }
    }
}

/// Runs the standby's thread.
fn stand_by(scheduler: &Scheduler) {
    loop {
        while scheduler.with(|core| core.current) == STANDBY {
            if !scheduler.stand_by_once() {
                return scheduler.take_down();
            }
            let next = scheduler.with(|core| core.current);
            if next != STANDBY {
                let theirs = scheduler.with(|core| core.workers.get(next).waiter);
                scheduler.held_by(theirs);
                scheduler.stir_place();
                theirs.event.set();
                break;
            }
        }
        scheduler.standby.event.wait();
        scheduler.make_blocked_preemptive();
    }
}

/// How thread workers run interposed calls that may block and were not declared. Only calls that
/// will surely block go preemptive, because the block watch notices the others.
impl BlockHandler for Threads {
    fn least_likelihood(&self) -> Blocks {
        Blocks::Certain
    }

    fn run_declared(&self, call: &mut dyn FnMut()) {
        preempt::undeclared(call);
    }
}
