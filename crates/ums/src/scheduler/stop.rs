//! How a scheduler ends: the standby ends every worker, waits for every I/O request, and joins
//! every thread.

use std::sync::atomic::Ordering;

use super::Scheduler;
use crate::os::linux::open;
use crate::os::threads::ThreadHandle;
use crate::scheduler::lists::NO_WORKER;
use crate::wait::Letter;
use crate::wait::Waiter;

impl Scheduler {
    /// Asks the scheduler to end, which it does when every worker is idle and no request waits.
    pub(crate) fn end(&self) {
        self.stop.store(true, Ordering::Release);
        self.inbox.send(Letter::LookAgain);
    }

    /// Takes the scheduler down. The standby calls this, holding the baton, when every worker is
    /// idle and no request waits.
    pub(super) fn take_down(&self) {
        self.watch_no_more();
        // A routine may set another timer.
        while self.with(|core| core.call_all_now()) {
            self.look();
        }
        self.end_all_io();
        // They are unmapped soon.
        self.with(|core| core.stacks.as_mut().map(fiber::StackPool::keep_all_warm));
        loop {
            let oldest = self.with(|core| core.workers.idle.head);
            if oldest == NO_WORKER {
                break;
            }
            self.retire(oldest);
        }
        let graves = self.with(|core| std::mem::take(&mut core.graves));
        // A worker thread that panicked outside every request has said so already.
        let stacks = graves.into_iter().filter_map(|thread| thread.join().ok()?);
        self.take_stacks_back(stacks.collect());
        // A user that outlives the node keeps its schedulers, but not their stacks.
        drop(self.with(|core| core.stacks.take()));
        self.with(|core| self.publish(core));
        // The thread that opened a ring must close it (rule 1 of ARCHITECTURE.md). That is this
        // thread, but the last owner of this scheduler may be on any other. So the driver is
        // replaced here by one without a ring. If there is no descriptor left for that, the driver
        // stays.
        if let Ok(stand_in) = open::open_as(open::Choice::Sync, open::DriverThreads::ManyThreads) {
            let ring = self.with(|core| std::mem::replace(&mut core.driver, stand_in));
            drop(ring);
        }
    }

    /// Cancels all outstanding I/O requests (such as reads of idle users) and waits for every
    /// completion (rule 10 of ARCHITECTURE.md).
    fn end_all_io(&self) {
        self.with(|core| core.io.tokens().into_iter().for_each(|t| core.cancel_io(t)));
        while self.with(|core| core.io.outstanding()) > 0 {
            self.with(|core| core.driver.wait(Some(10_000_000), &mut core.done));
            self.look();
            // A routine may have submitted again.
            self.with(|core| core.io.tokens().into_iter().for_each(|t| core.cancel_io(t)));
        }
    }

    /// Joins threads that have ended, because an ended thread keeps its stack until it is joined.
    /// Returns true if there are threads that were told to end and have not ended yet.
    #[inline]
    pub(super) fn join_the_ended(&self) -> bool {
        !self.with(|core| core.graves.is_empty()) && self.join_some()
    }

    #[cold]
    fn join_some(&self) -> bool {
        let graves = self.with(|core| std::mem::take(&mut core.graves));
        let (ended, ending) = graves.into_iter().partition::<Vec<_>, _>(ThreadHandle::is_finished);
        let are_ending = !ending.is_empty();
        self.with(|core| core.graves = ending);
        self.take_stacks_back(ended.into_iter().filter_map(|t| t.join().ok()?).collect());
        are_ending
    }

    /// Returns the stacks of threads that have ended to the pool.
    fn take_stacks_back(&self, stacks: Vec<fiber::Stack>) {
        self.with(|core| stacks.into_iter().for_each(|stack| core.take_stack_back(Some(stack))));
    }

    /// Returns the waiters of workers that have not ended, for the report of an unclean end.
    pub(crate) fn left_over(&self) -> Vec<&'static Waiter> {
        self.roster.lock().all().collect()
    }
}
