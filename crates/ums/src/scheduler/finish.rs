//! Finish: what a worker does that has ended its request.
//!
//! In general it becomes idle, and takes a turn. In three cases it is known without a whole turn
//! what runs next, provided that nothing else has happened meanwhile:
//!
//! * *The joiner.* The end of the request has ended a wait of a worker of this scheduler. There is
//!   no urgent request; and there is no other worker whose wait has ended, or the join is quick.
//!   Then that worker goes first (rule 3 of lists/fairness), so it gets the baton. It does not
//!   become Runnable in between.
//! * *The next sibling.* The joiner waits for its children in order, so it would soon wait for the
//!   next of them (rule 4). The worker goes on with that request.
//! * *The next request.* No worker is ready that goes before the first request of the own lane. A
//!   turn would give that request to the worker that runs already, so the worker goes on with it.
//!
//! A worker that goes on with a request does not become idle in between: it stays Running (the
//! worker list's picture shows the states). All cases count and record what the whole turn counts
//! and records.

use std::sync::atomic::Ordering;

use super::switch::SwitchEvent;
use super::wake::ready_at;
use super::way_out::WayOut;
use super::{Core, PeersUnnotified, Scheduler};
use crate::os::threads::point;
use crate::record::counters::add;
use crate::record::event_ring::RingEvent;
use crate::scheduler::lists::WorkerId;
use crate::scheduler::lists::siblings::EndedSibling;
use crate::scheduler::lists::worker_list::State;
use crate::scheduler::request::{RequestState, WorkRequest};
use crate::scheduler::work_queue::WorkQueue;
use crate::wait::{Claimed, Waiter};

/// A request that a worker has ended.
pub(super) struct EndedRequest {
    /// The claimed wait for its end.
    pub joiner: Option<Claimed>,
    pub ended: EndedSibling,
}

/// What runs next.
enum Next {
    /// The worker that has ended its request begins this one.
    Request(WorkRequest),
    /// This worker, which is Running already.
    Worker(WorkerId),
}

impl Scheduler {
    /// Ends the turn of worker `me`, which has ended a request. Makes the joiner, which has waited
    /// for that end, ready. Returns the request that the worker begins next, or how the worker
    /// leaves its stack.
    #[inline]
    pub(super) fn finish(
        &self,
        me: WorkerId,
        waiter: &'static Waiter,
        request: EndedRequest,
    ) -> Result<WorkRequest, WayOut> {
        let EndedRequest { joiner, ended } = request;
        add(&self.counters.turns, 1);
        // A collector of spans may run code of its own, so it does that before the choice.
        waiter.record.spans.pause();
        if let Some(joiner) = joiner
            && let Some(way_out) = self.finish_for(joiner, me, &ended)
        {
            return Err(way_out);
        }
        self.finish_beside_others(me, waiter, ended.position, ended.now)
    }

    /// Hands the baton to the joiner, if that goes first, and returns how the worker leaves its
    /// stack. Otherwise makes the joiner ready, and returns None.
    #[inline(never)]
    fn finish_for(&self, joiner: Claimed, me: WorkerId, ended: &EndedSibling) -> Option<WayOut> {
        let now = ended.now;
        let chosen = self.with(|core| {
            let parked = joiner.waiter.is_parked_at(self.inbox);
            let goes = parked && !self.sibling_goes(core, &joiner, ended);
            goes.then(|| self.choose_joiner(core, me, joiner.waiter, now)).flatten()
        });
        let Some(id) = chosen else {
            ready_at(joiner, now);
            return None;
        };
        joiner.kept();
        point("turn");
        self.check();
        Some(self.with(|core| core.hand_over(self, id, SwitchEvent::None)).by_event())
    }

    /// Ends the turn of a worker that has ended a request, for which no joiner goes first.
    // Inlined into the worker's loop, its only caller: as a call, it took 40 instructions more.
    #[inline(always)]
    fn finish_beside_others(
        &self,
        me: WorkerId,
        waiter: &'static Waiter,
        position: u64,
        now: u64,
    ) -> Result<WorkRequest, WayOut> {
        let next = self.with(|core| {
            let row = core.siblings.row_of(position);
            let in_row = row.and_then(|row| self.next_in_row(core, me, row, position, now));
            let is_sibling = in_row.is_some();
            let next = in_row.or_else(|| self.next_request(core, now).map(Next::Request))?;
            if let Next::Request(request) = &next {
                self.go_on_with(core, me, request.state(), now);
                // The worker stays Running, so in a row the lists change only when a worker becomes
                // ready, as the parent has before the first sibling.
                let shown = self.counters.runnable.load(Ordering::Relaxed);
                let same = shown == core.workers.runnable() as u64;
                if !(is_sibling && same) || self.publishes_all() {
                    self.publish_at_times(core);
                }
            }
            Some(next)
        });
        let Some(next) = next else {
            self.with(|core| core.end_request(self, me, now));
            return Err(self.turn());
        };
        point("turn");
        self.check();
        match next {
            Next::Request(request) => {
                waiter.record.spans.go_on();
                Ok(request)
            }
            Next::Worker(id) => {
                let event = SwitchEvent::At(now);
                Err(self.with(|core| core.hand_over(self, id, event)).by_event())
            }
        }
    }

    /// Called when a request has ended for which this joiner has waited, a parked worker of this
    /// scheduler. Returns whether the joiner waits for its children in order, and the next of them,
    /// if it is still there, goes before it.
    #[inline]
    fn sibling_goes(&self, core: &mut Core, joiner: &Claimed, ended: &EndedSibling) -> bool {
        let parent = joiner.waiter.worker.load(Ordering::Relaxed);
        let request = joiner.waiter.record.view.request.load(Ordering::Relaxed);
        let mut ended = *ended;
        if !WorkQueue::is_own(ended.position) {
            ended.position = 0;
        }
        let goes = core.siblings.joined((parent, request), &ended, core.turn_at)
            && self.queue.has_child_after(ended.position, parent, core.siblings.code())
            && self.row_goes_first(core, 0, ended.now);
        if goes {
            core.siblings.row_begins(ended.now);
        }
        goes
    }

    /// Returns whether a row of siblings goes before everything else, beside this many workers of
    /// the row whose wait has ended.
    #[inline]
    fn row_goes_first(&self, core: &mut Core, parents: u32, now: u64) -> bool {
        (core.workers.signalled.len == parents || core.fairness.is_quick(now))
            && self.queue.urgent() == 0
            && core.fairness.prefers()
            && self.nothing_has_happened(core, now)
    }

    /// Called when the last sibling of a row has ended, whose position is given. Takes the next
    /// sibling for worker `me`, or else chooses the parent. Returns None if something goes before
    /// both, or if the parent runs without the baton already; it is Preemptive then.
    #[inline(always)]
    fn next_in_row(
        &self,
        core: &mut Core,
        me: WorkerId,
        (parent, since): (WorkerId, u64),
        position: u64,
        now: u64,
    ) -> Option<Next> {
        if !core.workers.is_signalled(parent, since) || !self.row_goes_first(core, 1, now) {
            return None;
        }
        if core.siblings.has_time(now)
            && let Some(request) =
                self.queue.take_child_after(position, parent, core.siblings.code())
        {
            core.siblings.next_begins();
            // As if the parent waited for it already.
            request.state().make_urgent();
            let state = request.state();
            // If only the parent is ready, none has been ready for longer than its request.
            let has_others = core.workers.runnable() > 1;
            if self.passes_over_requests(state) || (has_others && core.has_worker_older_than(state))
            {
                self.count_passed_by_join(core, now);
            }
            return Some(Next::Request(request));
        }
        self.parent_goes_on(core, me, parent, now)
    }

    /// Chooses the parent of a row of siblings that has ended.
    #[inline(never)]
    fn parent_goes_on(
        &self,
        core: &mut Core,
        me: WorkerId,
        parent: WorkerId,
        now: u64,
    ) -> Option<Next> {
        core.workers.shift(parent, State::Runnable, State::Running, 0);
        if !self.options.kind.can_resume(core, parent) {
            return None;
        }
        core.end_request(self, me, now);
        self.count_join(core, now);
        Some(Next::Worker(parent))
    }

    /// Chooses the joiner, a parked worker of this scheduler: it is Running, and the current worker
    /// is Idle; the switch is recorded. Returns None, and has changed nothing, if a turn might
    /// choose something else.
    #[inline]
    fn choose_joiner(
        &self,
        core: &mut Core,
        me: WorkerId,
        joiner: &Waiter,
        now: u64,
    ) -> Option<WorkerId> {
        let goes_first = (core.workers.signalled.is_empty() || core.fairness.is_quick(now))
            && self.queue.urgent() == 0
            && core.fairness.prefers()
            && self.nothing_has_happened(core, now);
        if !goes_first {
            return None;
        }
        let id = joiner.worker.load(Ordering::Relaxed);
        joiner.signalled.store(now, Ordering::Relaxed);
        joiner.record.spans.woken();
        core.workers.resume(id);
        core.workers.finish(me, now);
        let wake = (RingEvent::Wake, id, core.number);
        let finish = (RingEvent::Finish, me, 0);
        core.record_all([wake, finish, (RingEvent::Switch, id, 0)], now);
        core.end_turn(self, now, 0);
        self.count_join(core, now);
        Some(id)
    }

    /// Counts that a worker has ended its request, and that the joiner goes on.
    #[inline(always)]
    fn count_join(&self, core: &mut Core, now: u64) {
        // All that is ready has been so for longer than the joiner, or it counts as if it had.
        let queued = !self.queue.is_empty() && self.can_start_others(core);
        if queued || core.workers.runnable() > 0 {
            self.count_passed_by_join(core, now);
        }
        add(&self.counters.end_switches, 1);
        self.publish_at_times(core);
    }

    /// Takes the first request of the own lane for the current worker. Returns None if a turn might
    /// choose something else; then nothing has changed, except perhaps where the next search of the
    /// lane begins.
    #[inline]
    fn next_request(&self, core: &mut Core, now: u64) -> Option<WorkRequest> {
        // If there are workers beyond the limit, this may be one that takes urgent requests only.
        if self.queue.is_empty()
            || core.workers.runnable() > 0
            || core.fairness.goes_by_age()
            || core.reserve_workers(self) > core.workers.idle.len as usize
            || !self.nothing_has_happened(core, now)
        {
            return None;
        }
        self.queue.take_first_own()
    }

    /// Worker `me`, which has ended its request, begins this one at once.
    #[inline]
    fn go_on_with(&self, core: &mut Core, me: WorkerId, request: &RequestState, now: u64) {
        core.end_turn(self, now, 0);
        self.count_queued(request, now);
        core.workers.go_on(me, now);
        let start = (RingEvent::Start, me, request.id as u32);
        // The last one is no switch, but the trace shows that the worker runs again.
        core.record_all([(RingEvent::Finish, me, 0), start, (RingEvent::Switch, me, 0)], now);
    }

    /// Returns whether a turn that begins now has nothing to do but to choose. Makes no system
    /// call.
    #[inline]
    fn nothing_has_happened(&self, core: &mut Core, now: u64) -> bool {
        // The look at the driver comes last, because the driver counts looks.
        core.awaited.is_none()
            && self.peers_unnotified.get() == PeersUnnotified::Nothing
            && self.quiet(core, now)
    }
}

impl Core {
    /// Worker `me` has ended its request, and becomes idle.
    #[inline]
    fn end_request(&mut self, scheduler: &Scheduler, me: WorkerId, now: u64) {
        self.end_turn(scheduler, now, 0);
        self.workers.finish(me, now);
        self.record_at(RingEvent::Finish, me, 0, now);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::Ordering;
    use std::sync::mpsc::channel;

    use crate::Node;
    use crate::os::clock;
    use crate::record::reason::WaitReason;
    use crate::scheduler::here;
    use crate::sync::Event;

    #[test]
    fn by_age_a_worker_that_was_ready_first_goes_before_the_next_request() {
        let node = Node::builder().schedulers(1).take_over_blocked(false).build().unwrap();
        let gate = Arc::new(Event::manual(false));
        let (tell, told) = channel();
        let (waits, goes_on) = (gate.clone(), tell.clone());
        let work = move || {
            waits.wait().unwrap();
            goes_on.send("the worker").unwrap();
        };
        let waiter = node.spawn_on(0, work).unwrap();
        // It begins after the other one has begun to wait, and ends with both ready.
        let ends = move || {
            gate.set();
            drop(crate::spawn(move || tell.send("the request").unwrap()));
            let here = here().expect("it runs on a worker");
            here.with(|core| {
                while core.fairness.prefers() {
                    core.fairness.passes_over(clock::ticks(), 2);
                }
            });
        };
        drop(node.spawn_on(0, ends).unwrap());
        let order = [told.recv().unwrap(), told.recv().unwrap()];
        assert_eq!(order, ["the worker", "the request"]);
        waiter.join().unwrap();
    }

    #[test]
    fn what_a_worker_goes_on_with_is_known_without_a_turn_if_only_requests_are_ready() {
        let node = Node::builder().schedulers(1).take_over_blocked(false).build().unwrap();
        node.run(|| {
            let queued = crate::spawn(|| ());
            let here = here().expect("it runs on a worker");
            let next = here.with(|core| here.next_request(core, clock::ticks()));
            let Some(request) = next else { panic!("it takes a turn") };
            assert_eq!(request.state().id, queued.request_id());
            here.queue.queue_again(request);
            drop(here);
            queued.join().unwrap();
        });
    }

    /// Spawns five tasks, and joins them in order. Returns how often the caller has waited.
    fn join_in_order() -> u64 {
        let begun = || {
            let here = here().expect("it runs on a worker");
            here.waits.row(WaitReason::JOIN).begun.load(Ordering::Relaxed)
        };
        let before = begun();
        let all: Vec<_> = (0..5).map(|_| crate::spawn(|| ())).collect();
        all.into_iter().for_each(|task| task.join().unwrap());
        begun() - before
    }

    #[test]
    fn a_later_parent_waits_for_the_first_of_its_siblings_only() {
        let node = Node::builder().schedulers(1).take_over_blocked(false).build().unwrap();
        node.run(|| {
            join_in_order();
            // A task is no quick one if its thread begins late.
            let waits = (0..200).map(|_| crate::spawn(join_in_order).join().unwrap());
            assert_eq!(waits.min(), Some(1));
        });
    }

    #[test]
    fn a_row_of_siblings_goes_before_another_ready_worker_only_while_joins_are_quick() {
        let node = Node::builder().schedulers(1).take_over_blocked(false).build().unwrap();
        let gate = Arc::new(Event::manual(false));
        let waits = gate.clone();
        let waiter = node.spawn_on(0, move || waits.wait().unwrap()).unwrap();
        // It begins after the other one has begun to wait.
        let looks = node.spawn_on(0, move || {
            gate.set();
            let here = here().expect("it runs on a worker");
            here.with(|core| {
                // No join was counted yet.
                let now = clock::ticks();
                assert!(here.row_goes_first(core, 1, now), "the ready one is the row's");
                assert!(!here.row_goes_first(core, 0, now), "it is another one");
                core.fairness.join_passes_over(now, || 1);
                assert!(here.row_goes_first(core, 0, now));
            });
        });
        looks.unwrap().join().unwrap();
        waiter.join().unwrap();
    }
}
