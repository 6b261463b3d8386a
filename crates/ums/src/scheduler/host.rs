//! Host: how workers are created, what each of them runs, and the standby.
//!
//! A worker's life is one loop: carry out a request, become idle, do the scheduler's work until
//! there is another request (`finish` has the short cuts). The *standby* holds the baton at the
//! start and whenever no worker can host the idle loop. For thread workers the standby is a thread
//! of its own; for the other kinds it is the *root* of their host. The standby carries out no
//! requests and is not counted as a worker.

use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::finish::EndedRequest;
use super::state::of_this_thread;
use super::switch::SwitchEvent;
use super::wake::ready_at;
use super::{Core, ExecutionContext, Scheduler, SchedulerOptions, set_here};
use crate::os::entry::{self, outside};
use crate::os::linux::open;
use crate::os::panics::contain;
use crate::os::threads::{self, Promise, ThreadHandle};
use crate::os::{self, clock};
use crate::record::counters::{add, set};
use crate::record::report::{self, WarningKind};
use crate::scheduler::Peers;
use crate::scheduler::lists::WorkerId;
use crate::scheduler::lists::siblings::EndedSibling;
use crate::scheduler::lists::worker_list::{STANDBY, State};
use crate::scheduler::request::{CarriedRequest, WorkRequest};
use crate::wait::Waiter;

/// How long to wait before the next attempt after a worker could not be created.
const CREATE_AGAIN_AFTER_NS: u64 = 100_000_000;

/// Starts a scheduler on a thread of its own, which becomes the standby. Returns both.
pub(crate) fn start(
    index: usize,
    options: SchedulerOptions,
    peers: Arc<Peers>,
) -> std::io::Result<(Arc<Scheduler>, ThreadHandle)> {
    let (tell, told) = Promise::new();
    let name = format!("ums-{}", options.name);
    let thread = threads::spawn(std::thread::Builder::new(), name, move || {
        let kind = options.kind;
        // The driver is opened here, because a ring belongs to one thread (rule 1 of
        // ARCHITECTURE.md).
        let scheduler = match open::open(options.io, kind.driver_threads(&options)) {
            Ok(driver) => Scheduler::new(index, options, peers, driver),
            Err(error) => return tell.keep(Err(error)),
        };
        scheduler.pin_and_set_nice();
        entry::enter_by(Some(&scheduler.standby.record.become_thread().entry));
        os::linux::sample::this_thread_is_on(fiber::StackRange::of_this_thread());
        let tell = Cell::new(Some(tell));
        let begun = || tell.take().into_iter().for_each(|tell| tell.keep(Ok(scheduler.clone())));
        let hosted = kind.host(&scheduler, begun);
        entry::enter_by(None);
        if let (Err(error), Some(tell)) = (hosted, tell.take()) {
            tell.keep(Err(error));
        }
    })?;
    let ended = || Err(std::io::Error::other("the scheduler's thread ended at its start"));
    let scheduler = told.wait().unwrap_or_else(ended)?;
    Ok((scheduler, thread))
}

/// Aborts the process with a message if `main` panics outside every request. The panicking thread
/// holds the baton, and no other thread could ever take it, so the scheduler would hang.
pub(super) fn or_abort(main: impl FnOnce()) {
    if let Err(panic) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(main)) {
        os::sim::fail(&os::sim::text_of(&*panic));
        report::say(format_args!("a scheduler panicked outside every request: aborting"));
        std::process::abort();
    }
}

impl Scheduler {
    /// Makes the calling code the standby: runs `main`, which returns when the scheduler has ended.
    pub(super) fn run_standby(self: &Arc<Self>, begun: impl FnOnce(), main: impl FnOnce()) {
        set_here(Some(self));
        self.make_ready();
        begun();
        or_abort(main);
        set_here(None);
    }

    /// The root loop of a host. `resume` runs the current worker, and returns false if the standby
    /// is current.
    pub(super) fn root(&self, resume: impl Fn(&Scheduler) -> bool) {
        fiber::install_overflow_handler();
        loop {
            if !resume(self) && !self.stand_by_once() {
                return self.take_down();
            }
        }
    }

    /// One step of the standby: does the scheduler's work, then makes a worker current, or sleeps
    /// once if there is nothing to run. Returns false when the scheduler must end.
    pub(super) fn stand_by_once(&self) -> bool {
        let now = self.look();
        let chosen = self.with(|core| {
            core.begin_turn(self, now);
            let next = self.choose(core);
            self.publish(core);
            next.inspect(|next| core.hand_to(self, *next, SwitchEvent::At(core.turn_at)))
        });
        if chosen.is_none() {
            if self.stop.load(Ordering::Acquire) && self.quiescent() {
                return false;
            }
            self.idle(STANDBY);
        }
        true
    }

    /// Creates the workers that are ready from the start.
    fn make_ready(self: &Arc<Self>) {
        for _ in 0..self.options.workers_ready {
            self.with(|core| {
                if let Some(id) = self.create_worker(core, false) {
                    core.workers.shift(id, State::New, State::Idle, clock::ticks());
                }
            });
        }
    }

    /// Creates a worker, in state New. Returns None if that failed; the failure is counted, and
    /// there is a pause before the next attempt.
    pub(super) fn create_worker(&self, core: &mut Core, reserve: bool) -> Option<WorkerId> {
        let id = core.workers.next_id();
        let waiter = Waiter::take(Some(self.inbox), id);
        let execution = match self.options.kind.create(self, core, id, waiter) {
            Ok(execution) => execution,
            Err(error) => {
                self.could_not_create(core, waiter, &error);
                return None;
            }
        };
        let added = core.workers.add(waiter, execution, clock::ticks());
        debug_assert_eq!(added, id);
        set(&self.counters.workers, core.workers.count());
        core.create_again = 0;
        self.made_one(core, reserve);
        add(&self.counters.workers_created, 1);
        add(&self.counters.reserve_workers, u64::from(reserve));
        self.roster.lock().insert(id, waiter);
        Some(id)
    }

    /// Takes a retired worker out of the table.
    pub(super) fn remove_worker(
        &self,
        core: &mut Core,
        id: WorkerId,
    ) -> (&'static Waiter, ExecutionContext) {
        let removed = core.workers.remove(id);
        self.removed_one(core);
        set(&self.counters.workers, core.workers.count());
        removed
    }

    #[cold]
    #[inline(never)]
    fn could_not_create(&self, core: &mut Core, waiter: &'static Waiter, error: &io::Error) {
        waiter.give_back();
        if core.create_again == 0 {
            let name = self.name();
            let text = format_args!("scheduler '{name}' could not create a worker: {error}");
            self.warn(WarningKind::NoWorker, text);
        }
        core.create_again = clock::now() + CREATE_AGAIN_AFTER_NS;
        add(&self.counters.failed_to_create_worker, 1);
    }

    /// The first step of a worker's own thread: pins the thread, and publishes its number and its
    /// stack.
    pub(super) fn arrive(&self, waiter: &'static Waiter) {
        self.pin_and_set_nice();
        waiter.record.view.thread.store(os::thread_number(), Ordering::Relaxed);
        entry::enter_by(Some(&waiter.record.become_thread().entry));
        super::WORKER.set(Some(waiter));
        let stack = fiber::StackRange::of_this_thread();
        stack.into_iter().for_each(|stack| waiter.record.view.stack_is(stack));
        os::linux::sample::this_thread_is_on(stack);
    }

    /// Runs the main loop of a worker on its own thread, once the worker has the baton. Does
    /// nothing if the worker was retired before.
    pub(super) fn live(self: &Arc<Self>, id: WorkerId, waiter: &'static Waiter) {
        if !waiter.is(State::Retired) {
            set_here(Some(self));
            or_abort(|| self.worker_main(id, waiter));
            set_here(None);
        }
    }

    /// The main loop of a worker of any kind. Returns when the worker was retired.
    pub(super) fn worker_main(&self, me: WorkerId, waiter: &'static Waiter) {
        let kind = if self.options.kind.is_thread() { "worker" } else { "fiber worker" };
        waiter.record.spans.begin_worker(kind, || self.worker_name(me).to_string());
        if !waiter.is(State::Running) && !waiter.is(State::Retired) {
            self.until_chosen(waiter);
        }
        let mut next = None;
        while !waiter.is(State::Retired) {
            // The turn began when the request was given to the worker.
            let (request, began) = next.take().unwrap_or_else(|| {
                let given = |core: &mut Core| (core.workers.get(me).request.take(), core.turn_at);
                let (request, began) = self.with(given);
                (request.expect("a worker is chosen with a request"), began)
            });
            let ended = self.carry_out(request, waiter, began);
            let now = ended.ended.now;
            match self.finish(me, waiter, ended) {
                Ok(request) => next = Some((request, now)),
                Err(way_out) => self.until_runs(way_out, waiter),
            }
        }
        waiter.record.spans.end_worker();
    }

    /// Carries out one work request, from start to end. `began` is the time at which the worker got
    /// the request, in ticks. The caller makes the joiner ready.
    #[inline]
    fn carry_out(&self, request: WorkRequest, waiter: &'static Waiter, began: u64) -> EndedRequest {
        let (mut joiner, mut has_ended) = (None, false);
        let code = request.code();
        let position = request.state().position.load(Ordering::Relaxed);
        let starts = !self.waited_too_long(&request) && request.state().start(waiter, began);
        let mut left = if starts {
            waiter.record.spans.begin_request(request.state().id, request.state().user);
            let mut request = CarriedRequest::new(request);
            // A job catches panics of its request itself; this is for a panic of the job's own
            // code. A request ends at once, also if its worker has lost the baton meanwhile.
            let fine = self.run_request_code(waiter, || (has_ended, joiner) = request.run(waiter));
            add(&self.counters.panics, u64::from(!fine));
            has_ended |= !fine;
            request.left()
        } else {
            let mut request = CarriedRequest::new(request);
            // It drops the closure, and may call the waker of a future.
            let fine = self.run_request_code(waiter, || (has_ended, joiner) = request.give_up());
            has_ended |= !fine;
            request.left()
        };
        // Here the worker has the baton again.
        if let Some(request) = &mut left
            && !has_ended
        {
            joiner = request.end();
        }
        if starts {
            waiter.record.spans.end_request();
        }
        let mut now = clock::ticks();
        if let Some(request) = left.and_then(WorkRequest::drop_unless_last) {
            joiner.take().into_iter().for_each(|joiner| ready_at(joiner, now));
            self.run_request_code(waiter, || drop(request));
            now = clock::ticks();
        }
        #[cfg(debug_assertions)]
        waiter.foreign.end_request();
        // In this order, for a shutdown that adds up loads (`Node::end`).
        add(&self.counters.requests_done, 1);
        self.count_ended();
        add(&waiter.record.view.requests_done, 1);
        EndedRequest { joiner, ended: EndedSibling { position, code, began, now } }
    }

    /// Runs code of a request, or a destructor of something that a request owned. Returns false if
    /// the code has panicked. The worker has the baton when this returns, also if the code has left
    /// the scheduler by a guard and forgotten the guard.
    fn run_request_code(&self, waiter: &'static Waiter, code: impl FnOnce()) -> bool {
        let fine = outside(|| {
            contain(|| {
                waiter.record.view.in_request_code.store(true, Ordering::Relaxed);
                code();
            })
        });
        if of_this_thread().is_none() {
            super::preempt::come_back();
        }
        waiter.record.spans.end_code();
        waiter.record.view.in_request_code.store(false, Ordering::Relaxed);
        self.options.kind.end_request(waiter);
        fine
    }

    /// Returns whether the request has been queued so long that its client has surely given up.
    /// Urgent requests are exempt (rule 7 of ARCHITECTURE.md), and those that must not be lost.
    fn waited_too_long(&self, request: &WorkRequest) -> bool {
        let limit = self.options.queue_timeout_ns;
        if limit == u64::MAX || request.state().past_bound || request.state().is_urgent() {
            return false;
        }
        let waited = clock::ticks().saturating_sub(request.state().enqueued);
        let late = clock::ticks_to_ns(waited) > limit;
        add(&self.counters.queue_timeouts, u64::from(late));
        late
    }

    /// Pins the calling thread and sets its nice value, as every thread of the scheduler does.
    pub(super) fn pin_and_set_nice(&self) {
        if let Some(cpu) = self.options.pin
            && let Err(error) = os::linux::affinity::pin_to(cpu)
        {
            let name = self.name();
            let text = format_args!("scheduler '{name}' could not be pinned to CPU {cpu}: {error}");
            self.warn(WarningKind::Setup, text);
        }
        let nice = self.options.nice;
        if nice != 0
            && let Err(error) = os::linux::affinity::set_nice(nice)
        {
            let name = self.name();
            let text =
                format_args!("scheduler '{name}' could not be given nice value {nice}: {error}");
            self.warn(WarningKind::Setup, text);
        }
    }
}
