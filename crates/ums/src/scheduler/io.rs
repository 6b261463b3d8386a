//! I/O of a scheduler: puts requests on the I/O list and gives them to the driver; takes them off
//! the list when they have completed.

use super::{Core, Scheduler};
use crate::os::clock;
use crate::os::planted::{self, Bug};
use crate::record::counters::add;
use crate::record::event_ring::RingEvent;
use crate::scheduler::lists::io_list::Completion;
use crate::wait::Outcome;

impl Core {
    #[inline]
    pub(super) fn driver_is_quiet(&mut self, now: u64) -> bool {
        self.io.outstanding() == 0 || !self.driver_has_news(now)
    }

    /// Declared as cold and not inlined, so that a turn without outstanding requests, such as a
    /// yield, saves no registers for this call.
    #[cold]
    #[inline(never)]
    fn driver_has_news(&mut self, now: u64) -> bool {
        self.driver.ready(now)
    }

    /// Takes completed requests off the list. Workers that waited for them become runnable;
    /// completion routines are queued, to be run when the lists are not borrowed.
    pub(super) fn reap(&mut self, scheduler: &Scheduler) {
        if !self.driver_is_quiet(0) {
            self.driver.reap(&mut self.done);
        }
        let mut done = std::mem::take(&mut self.done);
        if planted::is(Bug::LostCompletion) {
            done.truncate(1);
        }
        add(&scheduler.counters.io_completions, done.len() as u64);
        let now = if done.is_empty() { 0 } else { clock::ticks() };
        for d in done.drain(..) {
            self.completed(d.token, d.result, now);
        }
        self.done = done;
    }

    /// Handles the completion of one request. `now` is the time, in ticks.
    fn completed(&mut self, token: u64, result: i32, now: u64) {
        self.board.wipe(token);
        self.record_at(RingEvent::Complete, self.current, token as u32, now);
        match self.io.complete(token) {
            Some(Completion::Wake(ticket)) => {
                ticket.waiter.record.io.complete(token, result);
                if let Some(claimed) = ticket.claim(Outcome::Granted) {
                    self.wake(claimed.kept(), now);
                }
            }
            Some(Completion::Call(routine)) => self.routines.push_back((routine, result)),
            None => {}
        }
    }

    /// Returns whether the driver makes one call for several operations now, so that the current
    /// worker should submit even an operation that it could carry out at once.
    #[inline]
    fn gathers(&mut self, scheduler: &Scheduler) -> bool {
        let others_can_run = self.workers.runnable() > 0 || !scheduler.queue.is_empty();
        self.driver.gathers(others_can_run)
    }

    /// Asks for the cancellation of an I/O request. Its completion is still reported, once.
    pub(crate) fn cancel_io(&mut self, token: u64) {
        if self.io.is_outstanding(token) {
            self.driver.cancel(token);
        }
    }

    /// Puts a request on the I/O list and gives it to the driver. If the driver completes it
    /// immediately, it is off the list again when this returns.
    pub(crate) fn submit(
        &mut self,
        op: crate::os::driver::LiveOp<'static>,
        completion: Completion,
    ) -> Submission {
        let token = self.io.insert(completion);
        let told = *op;
        match self.driver.submit(token, op) {
            crate::os::driver::Submitted::Pending => {
                let now = clock::ticks();
                self.board.put(token, &told, now);
                self.record_at(RingEvent::Submit, self.current, told.fd() as u32, now);
                Submission::Pending(token, now)
            }
            crate::os::driver::Submitted::Done(result) => match self.io.complete(token) {
                Some(Completion::Call(routine)) => Submission::Call(token, routine, result),
                _ => Submission::Done(result),
            },
        }
    }
}

impl Scheduler {
    /// Returns whether the calling worker should submit an operation that it could carry out at
    /// once, and park until the driver has carried it out together with others. The answer is false
    /// for a caller that must not park: a completion routine, and a fiber that unwinds, which would
    /// keep its thread meanwhile (rule 11 of ARCHITECTURE.md).
    #[inline]
    pub(crate) fn gathers(&self) -> bool {
        !self.is_in_routine() && !std::thread::panicking() && self.with(|core| core.gathers(self))
    }
}

/// The state of a request after its submission.
pub(crate) enum Submission {
    /// The request is on the I/O list under this token, since this time in ticks.
    Pending(u64, u64),
    /// The request has completed; no wait is necessary.
    Done(i32),
    /// The request under this token has completed; the submitter runs its routine now.
    Call(u64, crate::scheduler::lists::io_list::CompletionRoutine, i32),
}
