//! Enqueueing: puts a request in a scheduler's work queue, and wakes a scheduler that sleeps, so
//! that the request is noticed.

use std::sync::atomic::Ordering;

use super::{Here, PeersUnnotified, Scheduler, away, here};
use crate::scheduler::lists::NO_WORKER;
use crate::scheduler::request::WorkRequest;
use crate::scheduler::work_queue::Caller;
use crate::wait::error::EnqueueError;

impl Scheduler {
    /// Queues a request here. If this scheduler sleeps, wakes it; otherwise wakes an idle
    /// scheduler, if there is one that may take the request (rule 3 of ARCHITECTURE.md).
    pub(crate) fn enqueue(&self, request: WorkRequest) -> Result<(), (EnqueueError, WorkRequest)> {
        self.enqueue_from(here().as_ref(), request)
    }

    /// Does the same for a caller that has found where it runs.
    #[inline]
    pub(crate) fn enqueue_from(
        &self,
        here: Option<&Here>,
        request: WorkRequest,
    ) -> Result<(), (EnqueueError, WorkRequest)> {
        crate::os::threads::point("enqueue");
        let bound = request.state().bound;
        let by = match here {
            Some(here) if here.is_in_routine() => Caller::Routine,
            Some(_) => Caller::Request,
            None if away().is_some() => Caller::Request,
            None => Caller::Plain,
        };
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
        // One fence, in `wake`, stands between the push above and three loads: of the flag of this
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
        Ok(())
    }
}
