//! Finish: what a worker does that has ended its request.
//!
//! In general it becomes idle, and takes a turn. In two cases it is known without a whole turn what
//! runs next, provided that nothing else has happened meanwhile:
//!
//! * *The joiner.* The end of the request has ended a wait of a worker of this scheduler. There is
//!   no urgent request; and there is no other worker whose wait has ended, or the join is quick.
//!   Then that worker goes first (rule 3 of lists/fairness), so it gets the baton. It does not
//!   become Runnable in between.
//! * *The next request.* No worker is ready that goes before the first request of the own lane. A
//!   turn would give that request to the worker that runs already, so the worker goes on with it.
//!   It does not become idle in between.
//!
//! Both cases count and record what the whole turn counts and records. A worker that goes on with
//! the next request stays Running (the worker list's picture shows the states).

use std::sync::atomic::Ordering;

use super::switch::SwitchEvent;
use super::wake::ready_at;
use super::way_out::WayOut;
use super::{Core, PeersUnnotified, Scheduler};
use crate::os::threads::point;
use crate::record::counters::add;
use crate::record::event_ring::RingEvent;
use crate::scheduler::lists::WorkerId;
use crate::scheduler::request::WorkRequest;
use crate::wait::{Claimed, Waiter};

impl Scheduler {
    /// Ends the turn of worker `me`, which has ended its request at the time `now`, in ticks. Makes
    /// `joiner`, which has waited for that end, ready. Returns the request that the worker begins
    /// next, or how the worker leaves its stack.
    #[inline(never)]
    pub(super) fn finish(
        &self,
        me: WorkerId,
        waiter: &'static Waiter,
        joiner: Option<Claimed>,
        now: u64,
    ) -> Result<WorkRequest, WayOut> {
        add(&self.counters.turns, 1);
        if let Some(joiner) = joiner {
            // A collector of spans may run code of its own, so it does that before the joiner is
            // chosen.
            waiter.record.spans.pause();
            if let Some(id) = self.with(|core| self.choose_joiner(core, me, &joiner, now)) {
                joiner.kept();
                point("turn");
                self.check();
                let event = SwitchEvent::At(now);
                return Err(self.with(|core| core.hand_over(self, id, event)).by_event());
            }
            ready_at(joiner, now);
            waiter.record.spans.go_on();
        }
        if let Some(next) = self.with(|core| self.next_request(core, me, now)) {
            point("turn");
            self.check();
            return Ok(next);
        }
        self.with(|core| {
            core.end_turn(self, now, 0);
            core.workers.finish(me, now);
            core.record_at(RingEvent::Finish, me, 0, now);
        });
        waiter.record.spans.pause();
        Err(self.turn())
    }

    /// Chooses the worker whose wait the request's end has ended: it is Running, and the current
    /// worker is Idle. Returns None, and has changed nothing, if a turn might choose something
    /// else.
    #[inline]
    fn choose_joiner(
        &self,
        core: &mut Core,
        me: WorkerId,
        joiner: &Claimed,
        now: u64,
    ) -> Option<WorkerId> {
        let joiner = joiner.waiter;
        let goes_first = joiner.is_parked_at(self.inbox)
            && (core.workers.signalled.is_empty() || core.fairness.is_quick(now))
            && self.queue.urgent() == 0
            && core.fairness.prefers()
            && self.nothing_has_happened(core);
        if !goes_first {
            return None;
        }
        let id = joiner.worker.load(Ordering::Relaxed);
        joiner.signalled.store(now, Ordering::Relaxed);
        joiner.record.spans.woken();
        core.record_at(RingEvent::Wake, id, core.number, now);
        core.end_turn(self, now, 0);
        core.workers.finish(me, now);
        core.record_at(RingEvent::Finish, me, 0, now);
        core.workers.resume(id);
        // All that is ready has been so for longer than the joiner.
        let queued = !self.queue.is_empty() && self.can_start_others(core);
        if queued || core.workers.runnable() > 0 {
            self.count_passed_by_join(core, now);
        }
        add(&self.counters.end_switches, 1);
        self.publish_at_times(core);
        Some(id)
    }

    /// Takes the first request of the own lane for worker `me`. Returns None if a turn might choose
    /// something else; then nothing has changed, except perhaps where the next search of the lane
    /// begins.
    #[inline]
    fn next_request(&self, core: &mut Core, me: WorkerId, now: u64) -> Option<WorkRequest> {
        // If there are workers beyond the limit, this may be one that takes urgent requests only.
        let others_first = core.workers.runnable() > 0 && !core.fairness.goes_by_age();
        if self.queue.is_empty()
            || others_first
            || core.workers.count() > self.options.limit.hard
            || !self.nothing_has_happened(core)
        {
            return None;
        }
        let (signalled, yielded) = (core.workers.signalled, core.workers.yielded);
        let mut until = u64::MAX;
        if core.workers.runnable() > 0 {
            let first = |list| core.workers.first_since(list).unwrap_or(u64::MAX);
            until = [signalled, yielded].map(first).into_iter().fold(until, u64::min);
        }
        let request = self.queue.take_own_until(until)?;
        core.fairness.chosen_by_age();
        core.end_turn(self, now, 0);
        core.record_at(RingEvent::Finish, me, 0, now);
        self.count_start(core, me, request.state(), now);
        core.workers.go_on(me, now);
        // No switch, but the trace shows that it runs again.
        core.record_at(RingEvent::Switch, me, 0, now);
        self.publish_at_times(core);
        Some(request)
    }

    /// Returns whether a turn has nothing to do but to choose. Makes no system call.
    #[inline]
    fn nothing_has_happened(&self, core: &mut Core) -> bool {
        // The look at the driver comes last, because the driver counts looks.
        core.awaited.is_none()
            && self.peers_unnotified.get() == PeersUnnotified::Nothing
            && self.quiet(core)
    }
}
