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
    pub(super) fn driver_is_quiet(&mut self) -> bool {
        self.io.outstanding() == 0 || !self.driver.ready()
    }

    /// Takes completed requests off the list. Workers that waited for them become runnable;
    /// completion routines are queued, to be run when the lists are not borrowed.
    pub(super) fn reap(&mut self, scheduler: &Scheduler) {
        if !self.driver_is_quiet() {
            self.driver.reap(&mut self.done);
        }
        let mut done = std::mem::take(&mut self.done);
        if planted::is(Bug::LostCompletion) {
            done.truncate(1);
        }
        add(&scheduler.counters.io_completions, done.len() as u64);
        for d in done.drain(..) {
            self.completed(d.token, d.result);
        }
        self.done = done;
    }

    /// Handles the completion of one request.
    pub(super) fn completed(&mut self, token: u64, result: i32) {
        self.board.wipe(token);
        self.record(RingEvent::Complete, self.current, token as u32);
        match self.io.complete(token, result) {
            Some(Completion::Wake(ticket)) => {
                if let Some(claimed) = ticket.claim(Outcome::Granted) {
                    self.wake(claimed.kept(), clock::ticks());
                }
            }
            Some(Completion::Call(routine)) => self.routines.push_back((routine, result)),
            None => {}
        }
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
                self.board.put(token, &told, clock::ticks());
                self.record(RingEvent::Submit, self.current, told.fd() as u32);
                Submission::Pending(token)
            }
            crate::os::driver::Submitted::Done(result) => match self.io.complete(token, result) {
                Some(Completion::Call(routine)) => Submission::Call(token, routine, result),
                _ => Submission::Done(self.io.take_result(token)),
            },
        }
    }
}

/// What became of a submitted request.
pub(crate) enum Submission {
    /// It is on the I/O list under this token.
    Pending(u64),
    /// It has completed; no wait is necessary.
    Done(i32),
    /// The request under this token has completed; the submitter runs its routine now.
    Call(u64, crate::scheduler::lists::io_list::CompletionRoutine, i32),
}
