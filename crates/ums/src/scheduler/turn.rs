//! The turn: what happens between two workers, in the context of the one that yields (U48, U50).
//!
//! Order (G3): completed I/O and its routines, expired timers, the door, then the choice between
//! the runnable list and the work queue (lists/fairness.rs). It runs on the yielder's own stack and returns a value;
//! it does not switch. When nothing has happened it costs a few loads and no system call (U2).

use std::sync::atomic::{Ordering, fence};

use super::switch::{Handed, WayOut};
use super::{Core, Shared, Timed, Untold, WorkerKind, contain};
use crate::counters::{add, max, set};
use crate::door::Letter;
use crate::lists::fairness::{Line, Ready};
use crate::lists::io_list::{Completed, Completion, IoResult, Routine};
use crate::lists::timer_list::TimerId;
use crate::lists::{NOBODY, WorkerId};
use crate::os::clock;
use crate::os::threads::point;
use crate::reason::WaitReason;
use crate::request::{Cancelled, RequestId, cancel_party};
use crate::ring::RingEvent;
use crate::wait::Outcome;
use crate::worker::{Rotated, STANDBY, State};

/// Completion routines that run inside one another.
const NESTED_MAX: u32 = 8;

impl Shared {
    /// Brings in what has happened: I/O, timers, door.
    pub(super) fn look(&self) {
        point("look");
        let routines = self.with(|core| {
            core.reap(self);
            !core.routines.is_empty()
        });
        if routines {
            self.run_routines();
        }
        self.with(|core| {
            core.expire(self);
            core.come_in(self);
        });
    }

    /// Whether a look would find anything: loads only, and a reading of the processor's counter
    /// when timers are set.
    #[inline]
    pub(super) fn quiet(&self, core: &mut Core) -> bool {
        self.door.is_empty()
            && core.done.is_empty()
            && core.routines.is_empty()
            && core.driver_is_quiet()
            && core.timers_are_quiet()
    }

    #[cold]
    fn run_routines(&self) {
        self.looking.store(true, Ordering::Relaxed);
        while let Some((routine, result)) = self.with(|core| core.routines.pop_front()) {
            self.run_routine(routine, result);
        }
        self.looking.store(false, Ordering::Relaxed);
    }

    /// The peers have to be told of these requests, of which only this scheduler knows.
    pub(super) fn owe(&self, untold: Untold) {
        self.untold.set(self.untold.get().max(untold));
    }

    /// Tells an idle peer of the requests that wait, if that is owed: this scheduler goes on with something else.
    #[inline]
    pub(super) fn tell_peers(&self) {
        if self.untold.get() != Untold::Nothing {
            self.pay_by_telling();
        }
    }

    /// The peer that is told owes a look at all work queues from then on, and tells the next one if there is more than
    /// it takes. If no bit is set, each scheduler that sets one later sees the requests that are seen here (S3 in
    /// peers.rs).
    #[cold]
    fn pay_by_telling(&self) {
        let any = self.untold.replace(Untold::Nothing) == Untold::Any;
        let waits = || self.queue.len() > 0 || (any && self.peers.others_have_work(self.index));
        if self.options.steal && waits() {
            // Between the pushes and the look at the idle mask (E2 in peers.rs).
            fence(Ordering::SeqCst);
            self.peers.wake_one(self.index);
        }
    }

    /// Runs a completion routine, outside any borrow: it may enqueue and submit. It must not wait.
    pub(crate) fn run_routine(&self, routine: Routine, result: IoResult) {
        add(&self.counters.routines, 1);
        self.in_a_turn(move || routine(result));
    }

    /// Runs the routine of a request that has completed at once (U66); false: it was put aside for the next look,
    /// for so many run inside one another already that a chain of them could use up the stack.
    pub(crate) fn run_or_put_aside(&self, routine: Routine, result: IoResult) -> bool {
        let now = self.routines_running() < NESTED_MAX;
        if now {
            self.run_routine(routine, result);
        } else {
            self.with(|core| core.routines.push_back((routine, result)));
        }
        now
    }

    /// Runs code that is not ours in the middle of a turn, when the current worker may be one that
    /// waits: it must not wait too (rule 9).
    pub(super) fn in_a_turn(&self, call: impl FnOnce()) {
        // One that submits what completes at once has the next one run inside it (U66).
        let outer = self.in_routine.load(Ordering::Relaxed);
        self.in_routine.store(outer + 1, Ordering::Relaxed);
        add(&self.counters.panics, u64::from(!contain(call)));
        self.in_routine.store(outer, Ordering::Relaxed);
    }

    /// Chooses who is next and makes it Running: a worker, or one that starts a queued request
    /// (lists/fairness.rs has the rule). None: nobody can run, and a caller that does not go idle
    /// then, where all work queues are looked at, tells the peers.
    pub(super) fn choose(&self, core: &mut Core) -> Option<WorkerId> {
        let next = self.next(core);
        if next.is_some() {
            self.tell_peers();
        }
        next
    }

    #[inline]
    fn next(&self, core: &mut Core) -> Option<WorkerId> {
        loop {
            let (signalled, yielded) = (core.workers.signalled, core.workers.yielded);
            if self.queue.len() > 0
                || core.fairness.goes_by_age()
                || !(signalled.is_empty() || yielded.is_empty())
            {
                return self.next_of_several(core);
            }
            // Workers of one list: the first passes over nothing.
            let id = if signalled.is_empty() { yielded.head } else { signalled.head };
            if id == NOBODY {
                return None;
            }
            core.workers.shift(id, State::Runnable, State::Running, 0);
            if core.is_here(id) {
                return Some(id);
            }
        }
    }

    /// The next one where several lines may have something.
    #[cold]
    fn next_of_several(&self, core: &mut Core) -> Option<WorkerId> {
        // A request for which there is no worker is not ready: it is passed over by nothing.
        let [mut urgent, mut queued] = [None; 2];
        if self.queue.len() > 0 {
            let [for_urgent, for_others] = self.lanes_that_can_start(core);
            [urgent, queued] = self.queue.fronts();
            urgent = urgent.filter(|_| for_urgent);
            queued = queued.filter(|_| for_others);
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
                    let Some(id) = self.start_queued(core, is_urgent) else {
                        *if is_urgent { &mut urgent } else { &mut queued } = None;
                        continue;
                    };
                    id
                }
                Line::Signalled | Line::Yielded => {
                    let id = if line == Line::Signalled { ahead.head } else { behind.head };
                    core.workers.shift(id, State::Runnable, State::Running, 0);
                    if !core.is_here(id) {
                        continue;
                    }
                    id
                }
            };
            core.fairness.chosen(line, &ready, core.workers.runnable() + self.queue.len());
            max(&self.counters.passed_over_max, core.fairness.longest.into());
            return Some(id);
        }
    }

    /// Gives the first request of a lane to a worker. None: there is no worker to be had, or the
    /// request has gone.
    fn start_queued(&self, core: &mut Core, urgent: bool) -> Option<WorkerId> {
        let id = self.worker_for(core, urgent)?;
        let Some(request) = self.queue.take(urgent) else {
            // Another scheduler was faster. A worker just made stays, and is idle.
            if core.workers.get(id).state == State::New {
                core.workers.shift(id, State::New, State::Idle, clock::ticks());
            }
            return None;
        };
        let now = core.begin_turn(self);
        let waited = now.saturating_sub(request.state().enqueued);
        let row = self.waits.row(WaitReason::THREADPOOL);
        add(&row.begun, 1);
        row.ended(waited, 0);
        let from = core.workers.get(id).state;
        core.workers.shift(id, from, State::Running, now);
        core.record(RingEvent::Start, id, request.state().id as u32);
        core.workers.get(id).request = Some(request);
        Some(id)
    }

    /// A worker for a queued request: the current one if it is idle (no switch), else the last
    /// that became idle, else a new one within the limit (U27, U28), else, for a holder's request,
    /// one beyond it. Workers beyond the limit serve holders only, and are trimmed when idle.
    fn worker_for(&self, core: &mut Core, urgent: bool) -> Option<WorkerId> {
        if core.idle_for_all(self) > 0 || (urgent && core.workers.idle.len > 0) {
            let current = core.current;
            let idle = current != STANDBY && core.workers.get(current).state == State::Idle;
            return Some(if idle { current } else { core.workers.idle.tail });
        }
        let limit = self.has_room(core);
        (core.may_create() && (limit || urgent)).then(|| self.create_worker(core, !limit)).flatten()
    }

    /// Whether a queued request could start now. Exactly when `worker_for` would try: the idle
    /// loop relies on that.
    pub(super) fn can_start(&self, core: &mut Core) -> bool {
        let [for_urgent, for_others] = self.lanes_that_can_start(core);
        for_others || (for_urgent && self.queue.urgent() > 0)
    }

    /// Whether there is a worker for the first request of each lane: of the urgent ones, and of the
    /// others. At the limit of workers there may be one for an urgent request alone.
    fn lanes_that_can_start(&self, core: &mut Core) -> [bool; 2] {
        let limit = self.has_room(core);
        let may_create = core.may_create();
        let for_others = core.idle_for_all(self) > 0 || (may_create && limit);
        [for_others || core.workers.idle.len > 0 || may_create, for_others]
    }

    /// A yield in the middle of a request (U47): the others get a turn, or nobody does.
    #[inline(always)]
    pub(crate) fn yield_now(&self) {
        #[cfg(feature = "spans")]
        let party = self.current_party();
        #[cfg(feature = "spans")]
        party.spans.pause();
        let way_out = self.yielding_turn();
        self.leave_by(way_out);
        #[cfg(feature = "spans")]
        party.spans.go_on();
    }

    #[inline(never)]
    fn yielding_turn(&self) -> WayOut {
        if self.options.kind == WorkerKind::Fiber && std::thread::panicking() {
            // A destructor yields during a panic. The panic count is the host thread's: another
            // fiber would take itself for panicking (rule 11). Nobody else gets a turn.
            return WayOut::Stay;
        }
        self.may_switch();
        point("yield");
        let quickly = self.with(|core| {
            add(&self.counters.yields, 1);
            if self.queue.len() > 0 || !self.quiet(core) {
                return None;
            }
            match core.workers.rotate(core.current) {
                Rotated::To(next) => Some(core.hand_over(self, next)),
                // One that yields and finds nobody else selects itself: a yield, not a switch (A.2).
                Rotated::Alone => Some(Handed::Left(WayOut::Stay)),
                Rotated::Not => None,
            }
        });
        match quickly {
            Some(handed) => handed.by_event(),
            None => self.yield_after_a_look(),
        }
    }

    #[cold]
    fn yield_after_a_look(&self) -> WayOut {
        self.with(|core| core.end_turn(self, clock::ticks(), 1));
        self.look();
        let handed = self.with(|core| {
            core.begin_turn(self);
            let Some(next) = self.choose(core) else {
                self.tell_peers();
                return Handed::Left(WayOut::Stay);
            };
            // Not read again: a request that starts now was queued until then.
            core.workers.shift(core.current, State::Running, State::Runnable, core.turn_at);
            self.publish(core);
            core.hand_over(self, next)
        });
        handed.by_event()
    }
}

impl Core {
    /// A worker is about to have its turn: reads the clock.
    #[inline]
    pub(super) fn begin_turn(&mut self, shared: &Shared) -> u64 {
        self.turn_at = clock::ticks();
        self.turn_yields = shared.counters.yields.load(Ordering::Relaxed);
        self.turn_at
    }

    /// The current worker's turn is over, which ended by so many yields (B13). Not counted where
    /// others had turns since the clock was last read: a yield among workers that yield does not.
    #[inline]
    pub(super) fn end_turn(&mut self, shared: &Shared, now: u64, yields: u64) {
        let count = shared.counters.yields.load(Ordering::Relaxed);
        if count == self.turn_yields + yields {
            max(&shared.counters.longest_turn, now.saturating_sub(self.turn_at));
        }
        (self.turn_at, self.turn_yields) = (now, count);
    }

    #[inline]
    fn driver_is_quiet(&mut self) -> bool {
        self.io.outstanding() == 0 || !self.driver.ready()
    }

    #[inline]
    fn timers_are_quiet(&mut self) -> bool {
        self.timers.is_empty()
            || clock::ticks() < self.timers_sleep_until
            || !self.timers_need_a_look()
    }

    /// Reads the clock, and notes until when that need not be done again.
    #[cold]
    fn timers_need_a_look(&mut self) -> bool {
        let (ticks, now) = (clock::ticks(), clock::now());
        let due = self.timers.due(now);
        if !due {
            let left = self.timers.bound() - now;
            self.timers_sleep_until = ticks.saturating_add(clock::ticks_within(left));
        }
        due
    }

    /// Sets a timer.
    #[inline]
    pub(crate) fn set_timer(&mut self, deadline: u64, timed: Timed) -> TimerId {
        if deadline < self.timers.bound() {
            self.timers_sleep_until = 0;
        }
        self.timers.insert(deadline, timed)
    }

    /// Whether creating a worker has not just failed.
    pub(super) fn may_create(&self) -> bool {
        self.create_again == 0 || clock::now() >= self.create_again
    }

    /// Idle workers within the limit.
    fn idle_for_all(&self, shared: &Shared) -> usize {
        let beyond = self.workers.count().saturating_sub(shared.options.workers_max);
        (self.workers.idle.len as usize).saturating_sub(beyond)
    }

    /// Completed I/O leaves the list; waiting workers become runnable, routines are put aside.
    fn reap(&mut self, shared: &Shared) {
        if !self.driver_is_quiet() {
            self.driver.reap(&mut self.done);
        }
        let mut done = std::mem::take(&mut self.done);
        #[cfg(feature = "planted")]
        if crate::planted::is(crate::planted::Bug::LostCompletion) {
            done.truncate(1);
        }
        add(&shared.counters.io_completions, done.len() as u64);
        for d in done.drain(..) {
            self.completed(d.token, d.result);
        }
        self.done = done;
    }

    /// One request has completed.
    pub(super) fn completed(&mut self, token: u64, result: i32) {
        self.board.wipe(token);
        self.record(RingEvent::Complete, self.current, token as u32);
        match self.io.complete(token, result) {
            Some(Completed::Wake(ticket)) => {
                if let Some(claimed) = ticket.claim(Outcome::Granted) {
                    self.wake(claimed.kept());
                }
            }
            Some(Completed::Call(routine, result)) => self.routines.push_back((routine, result)),
            None => {}
        }
    }

    /// A worker of this scheduler whose wait was ended becomes runnable.
    pub(super) fn wake(&mut self, party: &'static crate::wait::Party) {
        let now = clock::ticks();
        party.signalled.store(now, Ordering::Relaxed);
        party.spans.woken();
        let worker = party.worker.load(Ordering::Relaxed);
        self.record(RingEvent::Wake, worker, self.number);
        self.workers.wake(worker, now);
    }

    /// Expired timers leave the list; their workers become runnable (U69).
    fn expire(&mut self, shared: &Shared) {
        if self.timers.is_empty() {
            return;
        }
        let now = clock::now();
        #[cfg(feature = "planted")]
        let now = now + u64::from(crate::planted::is(crate::planted::Bug::TimerOffByOne));
        set(&shared.counters.last_timer_look, now as usize);
        if !self.timers.due(now) {
            return;
        }
        let mut expired = Vec::new();
        self.timers.expire(now, |t| expired.push(t));
        for timed in expired {
            match timed {
                Timed::Wait(ticket) => {
                    if let Some(claimed) = ticket.claim(Outcome::TimedOut) {
                        self.wake(claimed.kept());
                    }
                }
                Timed::Io(token) => self.cancel_io(token),
            }
        }
    }

    /// Asks for the cancellation of an I/O request; its completion still comes, once.
    pub(crate) fn cancel_io(&mut self, token: u64) {
        if self.io.is_outstanding(token) {
            self.driver.cancel(token);
        }
    }

    /// Everything that came through the door: workers whose wait was ended elsewhere, workers
    /// coming home, letters (G5, G6, G8).
    fn come_in(&mut self, shared: &Shared) {
        if shared.door.is_empty() {
            return;
        }
        let now = clock::ticks();
        shared.door.take_all(|party| {
            // Whoever pushed has noted the time of the signal.
            let worker = party.worker.load(Ordering::Relaxed);
            let home = party.is(State::Preemptive);
            let event = if home { RingEvent::Home } else { RingEvent::Arrive };
            self.record(event, worker, 0);
            self.workers.wake(worker, now);
        });
        for letter in shared.door.letters() {
            match letter {
                Letter::CancelIo(token) => self.cancel_io(token),
                Letter::CancelRequest { worker, request } => self.cancel_request(worker, request),
                Letter::LookAgain => {}
            }
        }
    }

    /// Cancels the request of a worker, if it still carries it out: requests begin and end under
    /// the baton, which the caller holds.
    fn cancel_request(&mut self, worker: WorkerId, request: RequestId) {
        let Some(party) = self.workers.find(worker) else { return };
        if party.view.request.load(Ordering::Relaxed) != request {
            return;
        }
        let Cancelled { claimed, io } = cancel_party(party);
        if let Some(claimed) = claimed {
            self.wake(claimed.kept());
        }
        if let Some((_, token)) = io {
            self.cancel_io(token);
        }
    }

    /// Puts a request on the I/O list and gives it to the driver. Some: it completed at once,
    /// never was pending, and is off the list again (U66).
    ///
    /// # Safety
    /// Frozen Buffer: what `op` points at stays valid and untouched until the completion.
    pub(crate) unsafe fn submit(
        &mut self,
        op: crate::os::driver::Op,
        completion: Completion,
    ) -> Submission {
        let token = self.io.insert(completion);
        // SAFETY: Frozen Buffer: passed on to the caller.
        match unsafe { self.driver.submit(token, op) } {
            crate::os::driver::Submitted::Pending => {
                self.board.put(token, &op, clock::ticks());
                self.record(RingEvent::Submit, self.current, op.fd() as u32);
                Submission::Pending(token)
            }
            crate::os::driver::Submitted::Done(result) => match self.io.complete(token, result) {
                Some(Completed::Call(routine, result)) => Submission::Call(token, routine, result),
                _ => Submission::Done(self.io.take_result(token)),
            },
        }
    }
}

/// What became of a submitted request.
pub(crate) enum Submission {
    /// It is on the I/O list under this token.
    Pending(u64),
    /// It has completed; nobody needs to wait.
    Done(i32),
    /// The one under this token has completed; the submitter runs its routine now.
    Call(u64, crate::lists::io_list::Routine, i32),
}
