//! Enqueue: a request is put in a scheduler's work queue, and a scheduler that sleeps is woken for
//! it.

use std::sync::atomic::Ordering;

use super::{PeersUnnotified, Scheduler, away, here};
use crate::scheduler::request::WorkRequest;
use crate::scheduler::work_queue::Caller;

impl Scheduler {
    /// Queues a request here, and wakes a scheduler for it if necessary (rule 3).
    pub(crate) fn enqueue(
        &self,
        request: WorkRequest,
    ) -> Result<(), (crate::wait::error::EnqueueError, WorkRequest)> {
        crate::os::threads::point("enqueue");
        let bound = request.state().bound;
        let here = here();
        let by = match &here {
            Some(here) if here.is_in_routine() => Caller::Routine,
            Some(_) => Caller::Request,
            None if away().is_some() => Caller::Request,
            None => Caller::Plain,
        };
        if let Err(refused) = self.queue.push(request, by, &self.load) {
            self.counters.requests_refused.fetch_add(1, Ordering::Relaxed);
            return Err(refused);
        }
        let here = here.filter(|here| here.is(self));
        if !self.peers.has_others() && here.is_some() {
            // The caller holds this scheduler's baton, so it is awake; and it has no peers.
            return Ok(());
        }
        if here.is_some() && self.looking.load(Ordering::Relaxed) {
            // The caller is a completion routine, in a turn that chooses the next worker after it
            // has looked at everything. One request will run here then, and its peers need not be
            // woken for it; `choose` tells them of the others.
            self.must_notify(PeersUnnotified::Own);
            return Ok(());
        }
        // The fence in `wake` stands between our push and both looks: at `asleep` (against the idle
        // protocol in scheduler/inbox) and at the idle mask (against the same order in idle.rs).
        if !self.inbox.wake() && self.options.steal && !bound {
            self.peers.wake_one(self.index);
        }
        Ok(())
    }
}
