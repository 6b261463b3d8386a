//! Enqueueing: puts a request in a scheduler's work queue, and wakes a scheduler that sleeps, so
//! that the request is noticed.

use std::sync::atomic::Ordering;

use super::{Here, PeersUnnotified, Scheduler, away, here, here_with_baton};
use crate::scheduler::lists::{NO_WORKER, WorkerId};
use crate::scheduler::request::WorkRequest;
use crate::scheduler::work_queue::Caller;
use crate::wait::error::EnqueueError;

impl Scheduler {
    /// Queues a request here. If this scheduler sleeps, wakes it; otherwise wakes an idle
    /// scheduler, if there is one that may take the request (rule 3 of ARCHITECTURE.md).
    pub(crate) fn enqueue(&self, request: WorkRequest) -> Result<(), (EnqueueError, WorkRequest)> {
        let here = here();
        self.enqueue_by(Caller::of(here.as_ref()), here.as_ref(), request)
    }

    /// Queues a poll of a future, for a waker, which may be called by any code: a worker that runs
    /// without the baton does not wait for it, because the worker may hold a lock. Returns the
    /// request if it was refused. If a worker awaits the future, a poll is refused only where that
    /// worker's own requests would be.
    pub(crate) fn enqueue_poll(
        &self,
        request: WorkRequest,
        awaited: bool,
    ) -> Result<(), WorkRequest> {
        let here = here_with_baton();
        let by = if awaited { Caller::Request } else { Caller::of(here.as_ref()) };
        self.enqueue_by(by, here.as_ref(), request).map_err(|(_, request)| request)
    }

    /// Queues a request in the own lane, for a caller that runs on this scheduler and has just made
    /// the request: no user or scope has made it urgent, and other schedulers may take it. `parent`
    /// is the current worker. Returns the request if the caller must use `enqueue_here` instead.
    ///
    /// Without peers it calls nothing, and so saves no registers.
    #[inline(never)]
    pub(crate) fn enqueue_new(
        &self,
        request: WorkRequest,
        parent: WorkerId,
    ) -> Result<(), WorkRequest> {
        if self.is_in_routine() {
            return Err(request);
        }
        crate::os::threads::point("enqueue");
        self.queue.push_new(request, parent)?;
        // The caller holds this scheduler's baton, so this scheduler is awake.
        if self.peers.has_others() {
            self.tell_of_new_request(false);
        }
        Ok(())
    }

    /// Does the same as `enqueue` for a caller that runs on this scheduler.
    #[cold]
    #[inline(never)]
    pub(crate) fn enqueue_here(
        &self,
        here: &Here,
        request: WorkRequest,
    ) -> Result<(), (EnqueueError, WorkRequest)> {
        let by = if here.is_in_routine() { Caller::Routine } else { Caller::Request };
        self.enqueue_by(by, Some(here), request)
    }

    fn enqueue_by(
        &self,
        by: Caller,
        here: Option<&Here>,
        request: WorkRequest,
    ) -> Result<(), (EnqueueError, WorkRequest)> {
        crate::os::threads::point("enqueue");
        let bound = request.state().bound;
        let here = here.filter(|here| here.is(self));
        let queued = match here {
            Some(_) => {
                // A completion routine runs on a worker that has nothing to do with it.
                let worker = || self.current_waiter().worker.load(Ordering::Relaxed);
                let parent = if by == Caller::Request { worker() } else { NO_WORKER };
                self.queue.push_own(request, by, parent)
            }
            None => self.queue.push(request, by),
        };
        if let Err(refused) = queued {
            self.counters.requests_refused.fetch_add(1, Ordering::Relaxed);
            return Err(refused);
        }
        if !self.peers.has_others() && here.is_some() {
            // The caller holds this scheduler's baton, so this scheduler is awake; it has no peers.
            return Ok(());
        }
        if here.is_some() && self.looking.load(Ordering::Relaxed) {
            // The caller is a completion routine, in the middle of a turn that has not chosen the
            // next worker yet. If the turn chooses this request, no peer need be woken for it;
            // `choose` notifies a peer if more requests are queued.
            self.must_notify(PeersUnnotified::Own);
            return Ok(());
        }
        self.tell_of_new_request(bound);
        Ok(())
    }

    /// Wakes this scheduler if it sleeps, or an idle peer that may take the request which was just
    /// pushed. No peer may take it if it is `bound`.
    fn tell_of_new_request(&self, bound: bool) {
        // One fence, in `wake`, stands between the push and three loads: of the flag of this
        // scheduler, of its bit in the work mask, and of the idle mask (os/asleep).
        let woken = self.inbox.wake();
        if self.options.steal && !bound {
            // A peer that is about to sleep may take the request before the woken scheduler runs.
            if woken {
                self.peers.post(self.index)
            } else {
                self.peers.offer_after_inbox(self.index)
            }
        }
    }
}

impl Caller {
    /// Returns what the calling code is, which has found where it runs.
    #[inline]
    fn of(here: Option<&Here>) -> Caller {
        match here {
            Some(here) if here.is_in_routine() => Caller::Routine,
            Some(_) => Caller::Request,
            None if away().is_some() => Caller::Request,
            None => Caller::Plain,
        }
    }
}
