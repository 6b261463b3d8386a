//! Choose: which worker runs next, or which queued request starts (lists/fairness has the rule).

use super::{Core, PeersUnnotified, Scheduler};
use crate::os::clock;
use crate::record::counters::{add, max};
use crate::record::event_ring::RingEvent;
use crate::record::reason::WaitReason;
use crate::scheduler::lists::fairness::{Line, Ready};
use crate::scheduler::lists::worker_list::{STANDBY, State};
use crate::scheduler::lists::{NO_WORKER, WorkerId};
use crate::scheduler::request::{RequestState, WorkRequest};
use crate::scheduler::work_queue::QueuePlace;

impl Scheduler {
    /// Chooses what runs next and makes it Running: a worker, or a worker that starts a queued
    /// request (scheduler/lists/fairness has the rule). Returns None if nothing can run. The caller
    /// then either goes idle, where it looks at all work queues, or calls `tell_peers`.
    pub(super) fn choose(&self, core: &mut Core) -> Option<WorkerId> {
        let next = self.next(core);
        if next.is_some() {
            self.tell_peers();
        }
        next
    }

    #[inline]
    fn next(&self, core: &mut Core) -> Option<WorkerId> {
        if let Some(awaited) = core.awaited.take()
            && let Some(id) = self.start_awaited(core, awaited)
        {
            return Some(id);
        }
        loop {
            let (signalled, yielded) = (core.workers.signalled, core.workers.yielded);
            let queued = self.queue.len();
            let one_lane = core.workers.runnable() == 0 && self.queue.urgent() == 0;
            if queued > 0
                && one_lane
                && !core.fairness.goes_by_age()
                && let Some(id) = self.start_queued(core, false, None)
            {
                // Only one lane has anything, so choosing its first request passes over nothing.
                return Some(id);
            }
            if queued > 0
                && !signalled.is_empty()
                && self.queue.urgent() == 0
                && core.fairness.prefers()
            {
                let id = signalled.head;
                let since = core.workers.get(id).since;
                core.workers.shift(id, State::Runnable, State::Running, 0);
                if !self.options.kind.can_resume(core, id) {
                    continue;
                }
                self.count_signalled(core, since);
                return Some(id);
            }
            if queued > 0
                || core.fairness.goes_by_age()
                || !(signalled.is_empty() || yielded.is_empty())
            {
                return self.next_of_several(core);
            }
            // Only one list has workers, so choosing its first one passes over nothing.
            let id = if signalled.is_empty() { yielded.head } else { signalled.head };
            if id == NO_WORKER {
                return None;
            }
            core.workers.shift(id, State::Runnable, State::Running, 0);
            if self.options.kind.can_resume(core, id) {
                return Some(id);
            }
        }
    }

    /// Chooses by the fairness rule, if more than one list of workers or lane of requests may have
    /// something ready.
    #[cold]
    fn next_of_several(&self, core: &mut Core) -> Option<WorkerId> {
        // A request for which there is no worker is not ready, and cannot be passed over.
        let [mut urgent, mut queued] = [None; 2];
        if !self.queue.is_empty() {
            let [for_urgent, for_others] = self.lanes_that_can_start(core);
            [urgent, queued] = self.queue.fronts();
            urgent = urgent.filter(|_| for_urgent);
            queued = queued.filter(|_| for_others);
        }
        let others = urgent.is_some() || core.workers.runnable() > 0;
        let mut place = None;
        if queued.is_some() && core.fairness.goes_by_age() {
            let found = self.first_by_age(core);
            if others || found.is_some() {
                (queued, place) = found.unzip();
            }
        }
        loop {
            let (ahead, behind) = (core.workers.signalled, core.workers.yielded);
            let signalled = core.workers.first_since(ahead);
            let yielded = core.workers.first_since(behind);
            let ready = Ready { urgent, signalled, yielded, queued };
            let line = core.fairness.choose(&ready)?;
            let id = match line {
                Line::Urgent | Line::Queued => {
                    let is_urgent = line == Line::Urgent;
                    let place = place.filter(|_| !is_urgent);
                    let Some(id) = self.start_queued(core, is_urgent, place) else {
                        *if is_urgent { &mut urgent } else { &mut queued } = None;
                        continue;
                    };
                    id
                }
                Line::Signalled | Line::Yielded => {
                    let id = if line == Line::Signalled { ahead.head } else { behind.head };
                    core.workers.shift(id, State::Runnable, State::Running, 0);
                    if !self.options.kind.can_resume(core, id) {
                        continue;
                    }
                    id
                }
            };
            self.count_choice(core, line, &ready);
            return Some(id);
        }
    }

    /// Called when the current worker is about to wait for this request. If the request is in the
    /// own lane of this scheduler's queue, takes it out; the turn by which the worker waits starts
    /// it, or moves it to the urgent lane. Returns false if it is not there, and if everything goes
    /// by age.
    #[inline]
    pub(crate) fn will_await(&self, request: &RequestState) -> bool {
        // A fiber that waits while it unwinds takes no turn.
        let usual = self.options.passed_max > 0 && !std::thread::panicking();
        let taken = if usual { self.queue.take_own(request) } else { None };
        let Some(taken) = taken else { return false };
        let before = self.with(|core| core.awaited.replace(taken));
        before.into_iter().for_each(|before| self.queue_again(before));
        true
    }

    /// Queues the request that `will_await` has taken again, if the wait has ended without a turn.
    #[cold]
    pub(crate) fn await_no_more(&self) {
        let awaited = self.with(|core| core.awaited.take());
        if let Some(awaited) = awaited {
            self.queue_again(awaited);
            self.tell_peers();
        }
    }

    /// Moves an awaited request to the urgent lane. A peer that has looked at the queue meanwhile
    /// has not seen it, and must be notified.
    #[cold]
    fn queue_again(&self, awaited: WorkRequest) {
        awaited.state().is_alone_no_more();
        self.queue.queue_again(awaited);
        if self.peers.has_others() {
            self.must_notify(PeersUnnotified::Own);
        }
    }

    /// Does what a turn would do for a worker that has begun to wait for the request that it has
    /// taken. Returns the worker that has the request, and the low part of the request's number;
    /// the caller records that it starts. Returns None if the turn has more to do than to give that
    /// request to an idle worker. Then the turn does it. `now` is the time in ticks.
    #[inline]
    pub(super) fn start_awaited_at_once(
        &self,
        core: &mut Core,
        now: u64,
    ) -> Option<(WorkerId, u32)> {
        let at_once = core.workers.idle.len > 0
            && self.queue.urgent() == 0
            && !core.fairness.goes_by_age()
            && self.peers_unnotified.get() == PeersUnnotified::Nothing
            && self.quiet(core, now);
        let awaited = if at_once { core.awaited.take()? } else { return None };
        let (id, now, state) = (core.workers.idle.tail, core.turn_at, awaited.state());
        let request = state.id as u32;
        let passes = (core.workers.runnable() > 0 || !self.queue.is_empty())
            && self.passes_over_older(core, state);
        self.count_queued(state, now);
        core.workers.start(id, awaited, now);
        if passes {
            self.count_passed_by_join(core, now);
        }
        Some((id, request))
    }

    /// Starts a request that a worker has begun to wait for, if the urgent lane is empty (rule 3 of
    /// lists/fairness). Returns None if it cannot go first, and is in the urgent lane now.
    #[inline]
    fn start_awaited(&self, core: &mut Core, awaited: WorkRequest) -> Option<WorkerId> {
        let first = self.queue.urgent() == 0 && !core.fairness.goes_by_age();
        let worker = if first { self.worker_for(core, true) } else { None };
        let Some(id) = worker else {
            self.queue_again(awaited);
            return None;
        };
        let passes = self.passes_over_older(core, awaited.state());
        let started = self.start_on(core, id, Some(awaited));
        if passes {
            self.count_passed_by_join(core, core.turn_at);
        }
        started
    }

    /// Returns whether something that is ready was so before this request was queued, which has
    /// been taken from the own lane.
    #[inline]
    pub(super) fn passes_over_older(&self, core: &mut Core, request: &RequestState) -> bool {
        self.passes_over_requests(request) || core.has_worker_older_than(request)
    }

    /// Does the same if no worker is ready but the one that has queued the request.
    #[inline]
    pub(super) fn passes_over_requests(&self, request: &RequestState) -> bool {
        !self.queue.is_empty() && self.queue.has_older(request)
    }

    /// Counts a choice that a join made at the time `now`, in ticks, and that left something older
    /// behind.
    #[inline]
    pub(super) fn count_passed_by_join(&self, core: &mut Core, now: u64) {
        let (workers, queue) = (&core.workers, &self.queue);
        if core.fairness.join_passes_over(now, || workers.runnable() + queue.len()) {
            max(&self.counters.passed_over_max, core.fairness.longest().into());
        }
    }

    /// Counts a choice that left something older behind, and was not made by age.
    #[inline]
    fn count_passed(&self, core: &mut Core) {
        let left = core.workers.runnable() + self.queue.len();
        core.fairness.passes_over(core.turn_at, left);
        max(&self.counters.passed_over_max, core.fairness.longest().into());
    }

    /// Counts the choice of the first worker whose wait has ended, ready since `since`, while the
    /// preferred lines go first and the urgent one is empty. Does what `count_choice` would do.
    #[inline]
    fn count_signalled(&self, core: &mut Core, since: u64) {
        let older = |first: Option<u64>| first.is_some_and(|first| first <= since);
        let passes = older(core.workers.first_since(core.workers.yielded))
            // A request for which there is no worker is not ready.
            || (older(self.queue.fronts()[1]) && self.can_start_others(core));
        if passes {
            self.count_passed(core);
        }
    }

    /// Returns whether there is a worker for a request that is not urgent.
    #[inline]
    pub(super) fn can_start_others(&self, core: &mut Core) -> bool {
        core.idle_for_all(self) > 0 || self.lanes_that_can_start(core)[1]
    }

    #[inline]
    fn count_choice(&self, core: &mut Core, line: Line, ready: &Ready) {
        let left = core.workers.runnable() + self.queue.len();
        core.fairness.chosen(core.turn_at, line, ready, left);
        max(&self.counters.passed_over_max, core.fairness.longest().into());
    }

    /// Gives the first request of a lane to a worker, or the one at this place. Returns None if
    /// there is no worker for it, or if another scheduler has taken the request.
    fn start_queued(
        &self,
        core: &mut Core,
        urgent: bool,
        place: Option<QueuePlace>,
    ) -> Option<WorkerId> {
        let id = self.worker_for(core, urgent)?;
        let request = self.take_queued(core, urgent, place);
        self.start_on(core, id, request)
    }

    #[inline]
    fn take_queued(
        &self,
        core: &mut Core,
        urgent: bool,
        place: Option<QueuePlace>,
    ) -> Option<WorkRequest> {
        let Some(place) = place else { return self.queue.take(urgent) };
        let request = self.queue.take_at(place)?;
        core.fairness.search.begins();
        Some(request)
    }

    /// Starts a request on this worker. Returns None if there is no request, because another
    /// scheduler was faster. If a worker was just created, it stays and is idle.
    #[inline]
    fn start_on(
        &self,
        core: &mut Core,
        id: WorkerId,
        request: Option<WorkRequest>,
    ) -> Option<WorkerId> {
        let Some(request) = request else {
            if core.workers.get(id).state == State::New {
                core.workers.shift(id, State::New, State::Idle, clock::ticks());
            }
            return None;
        };
        // Read when the present turn began, a moment ago.
        let now = core.turn_at;
        self.count_queued(request.state(), now);
        core.record_at(RingEvent::Start, id, request.state().id as u32, now);
        core.workers.start(id, request, now);
        Some(id)
    }

    /// Counts how long a request that starts now was queued.
    #[inline]
    pub(super) fn count_queued(&self, request: &RequestState, now: u64) {
        let row = self.waits.row(WaitReason::THREADPOOL);
        add(&row.begun, 1);
        row.ended(now.saturating_sub(request.enqueued), 0);
    }

    /// Finds a worker for a queued request. Tries, in this order: the current worker if it is idle
    /// (no switch is needed); the worker that became idle last; a new worker within the limit; and
    /// for an urgent request, a new worker beyond the limit. Workers beyond the limit carry out
    /// only urgent requests, and are ended after a while of being idle. If the limit is raised
    /// (limit.rs) while such a worker is idle, that one is taken in place of a new one.
    #[inline]
    fn worker_for(&self, core: &mut Core, urgent: bool) -> Option<WorkerId> {
        let idle = if urgent { core.workers.idle.len as usize } else { core.idle_for_all(self) };
        if idle > 0 || self.raises_one(core) {
            let current = core.current;
            let idle = current != STANDBY && core.workers.get(current).state == State::Idle;
            return Some(if idle { current } else { core.workers.idle.tail });
        }
        let limit = self.has_room(core);
        if !core.may_create() || !(limit || urgent) {
            return None;
        }
        self.create_worker(core, !limit)
    }

    /// Returns whether a queued request could start now. The answer is true exactly if `worker_for`
    /// would return or try to create a worker. Otherwise the idle loop would sleep beside a request
    /// that can start, or never sleep.
    pub(super) fn can_start(&self, core: &mut Core) -> bool {
        let [for_urgent, for_others] = self.lanes_that_can_start(core);
        for_others || (for_urgent && self.queue.urgent() > 0)
    }

    /// Returns, for the urgent lane and for the other lane, whether there is a worker for its first
    /// request. At the limit of workers there may be one for an urgent request only.
    fn lanes_that_can_start(&self, core: &mut Core) -> [bool; 2] {
        let limit = self.has_room(core);
        let may_create = core.may_create();
        let for_others = core.idle_for_all(self) > 0 || (may_create && limit);
        [for_others || core.workers.idle.len > 0 || may_create, for_others]
    }
}

impl Core {
    /// Returns whether a worker has been ready since before this request was queued.
    #[inline]
    pub(super) fn has_worker_older_than(&mut self, request: &RequestState) -> bool {
        let lists = [self.workers.signalled, self.workers.yielded];
        let mut first = lists.into_iter().filter_map(|list| self.workers.first_since(list));
        first.any(|since| since <= request.enqueued)
    }

    /// Returns false during the pause after a failed creation of a worker.
    pub(super) fn may_create(&self) -> bool {
        self.create_again == 0 || clock::now() >= self.create_again
    }

    /// Returns how many idle workers any request may use: those within the limit.
    #[inline]
    pub(super) fn idle_for_all(&self, scheduler: &Scheduler) -> usize {
        (self.workers.idle.len as usize).saturating_sub(self.reserve_workers(scheduler))
    }

    /// Returns how many workers are beyond the limit, and carry out only urgent requests.
    #[inline]
    pub(super) fn reserve_workers(&self, scheduler: &Scheduler) -> usize {
        let limit = scheduler.options.limit.soft + self.standstill.granted;
        self.workers.count().saturating_sub(limit)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    use crate::os::clock;
    use crate::scheduler::here;
    use crate::sync::Event;
    use crate::{Node, spawn, yield_now};

    fn node(workers: usize) -> Node {
        let builder = Node::builder().schedulers(1).max_workers(workers);
        builder.take_over_blocked(false).build().unwrap()
    }

    fn passed_over_here() -> u64 {
        here().expect("it runs on a worker").counters.passed_over_max.load(Ordering::Relaxed)
    }

    /// Ends a worker's wait beside a request that is queued before or after that. Returns how many
    /// choices have left something older behind.
    fn passed_over_beside_a_signal(queued_first: bool, workers: usize) -> u64 {
        node(workers).run(move || {
            let gate = Arc::new(Event::manual(false));
            let waits = gate.clone();
            let waiter = spawn(move || waits.wait().unwrap());
            // It begins to wait.
            yield_now();
            if !queued_first {
                gate.set();
            }
            let queued = spawn(|| ());
            gate.set();
            yield_now();
            assert!(waiter.is_finished() && queued.is_finished());
            passed_over_here()
        })
    }

    #[test]
    fn a_worker_whose_wait_has_ended_passes_over_an_older_request_that_could_start() {
        assert_eq!(passed_over_beside_a_signal(true, 40), 1);
        assert_eq!(passed_over_beside_a_signal(false, 40), 0, "the request is younger");
        assert_eq!(passed_over_beside_a_signal(true, 2), 0, "there is no worker for the request");
    }

    #[test]
    fn a_join_beside_which_nothing_is_ready_passes_over_nothing() {
        let passed = node(40).run(|| {
            (0..100).for_each(|_| spawn(|| ()).join().unwrap());
            passed_over_here()
        });
        assert_eq!(passed, 0);
    }

    #[test]
    fn no_worker_is_created_in_the_pause_after_a_failed_creation() {
        node(40).run(|| {
            let pause = |until| here().unwrap().with(|core| core.create_again = until);
            pause(clock::NEVER);
            let queued = spawn(|| ());
            yield_now();
            assert!(!queued.is_finished(), "there is no idle worker");
            pause(clock::now());
            yield_now();
            assert!(queued.is_finished());
        });
    }

    /// Otherwise the idle loop would not sleep during the pause after a failed creation.
    #[test]
    fn an_urgent_request_can_start_if_there_is_an_idle_worker_or_one_may_be_created() {
        let lanes_of = |workers| {
            node(workers).run(|| {
                let here = here().expect("it runs on a worker");
                [clock::NEVER, 0].map(|pause| {
                    here.with(|core| {
                        core.create_again = pause;
                        here.lanes_that_can_start(core)
                    })
                })
            })
        };
        assert_eq!(lanes_of(40), [[false; 2], [true; 2]]);
        assert_eq!(lanes_of(1), [[false; 2], [true, false]], "at the limit, an urgent one only");
    }
}
