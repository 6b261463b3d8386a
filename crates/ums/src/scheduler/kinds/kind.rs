//! The questions that a scheduler asks the kind of its workers. `kinds/mod.rs` lists the questions.

use std::io;
use std::sync::Arc;

use crate::os::linux::open::DriverThreads;
use crate::scheduler::lists::WorkerId;
use crate::scheduler::switch::{Handed, SwitchEvent};
use crate::scheduler::{Core, ExecutionContext, Scheduler, SchedulerOptions};
use crate::wait::Waiter;

/// A kind of workers.
pub(in crate::scheduler) trait Kind {
    /// Whether the workers share the panic count of their host thread.
    const SHARES_PANIC_COUNT: bool = false;

    /// Returns which threads will call the I/O driver of a scheduler with these options.
    fn driver_threads(options: &SchedulerOptions) -> DriverThreads;

    /// Makes the calling thread the host of the scheduler's workers, or their standby, until the
    /// scheduler ends. Calls `begun` when the scheduler is ready for requests.
    fn host(scheduler: &Arc<Scheduler>, begun: impl FnOnce()) -> io::Result<()>;

    /// Creates the thread or fiber of a new worker. The worker runs when it is chosen.
    fn create(
        scheduler: &Scheduler,
        core: &mut Core,
        id: WorkerId,
        waiter: &'static Waiter,
    ) -> io::Result<ExecutionContext>;

    /// The first half of a switch: `to` is current from now on. The caller completes the switch
    /// with the returned value.
    fn hand_over(
        scheduler: &Scheduler,
        core: &mut Core,
        to: WorkerId,
        event: SwitchEvent,
    ) -> Handed;

    /// Returns whether a worker that was chosen, and whose state is Running, can be resumed. If it
    /// runs without the baton it cannot, and becomes Preemptive again.
    fn can_resume(_: &mut Core, _: WorkerId) -> bool {
        true
    }

    /// Hands the baton to `to`. When this returns, the worker that was current is outside its
    /// scheduler, and may block.
    fn leave(scheduler: &Scheduler, to: WorkerId);

    /// Brings a worker that has left back to its scheduler. Returns true when it has the baton.
    /// Returns false if it was allowed to run without the baton instead, which only a `lendable`
    /// worker may be.
    fn rejoin(scheduler: &Scheduler, waiter: &'static Waiter, lendable: bool) -> bool;

    /// Called by a worker at the end of its request: if it runs without the baton, it has the baton
    /// when this returns.
    fn end_request(_: &Waiter) {}

    /// Ends a worker that was idle. Its state is Retired.
    fn retire(scheduler: &Scheduler, id: WorkerId);
}
