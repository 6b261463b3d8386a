//! Host: how workers come to be, what each of them runs, and who stands by.
//!
//! A worker's life is one loop: carry out a request, become idle, do the scheduler's work until
//! there is another. The *standby* holds the baton at the start and whenever no worker can host the
//! idle loop: for fiber workers it is the host thread's own stack (the root, which resumes fibers),
//! for thread workers a thread of its own that is parked nearly always. It carries out no requests
//! and is in no count. Where workers have their own contexts and undeclared blocks are detected,
//! the root is a context too, and tied to no kernel thread (`carrier.rs`).

#![allow(unsafe_code)] // Named invariants of the module's header.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use context::Host;
use fiber::{Fiber, Resume};

use super::{Core, Options, Scheduler, Seat, WorkerKind, contain, set_here};
use crate::os::entry::{self, outside};
use crate::os::linux::open::{self, Owner};
use crate::os::threads::{self, JoinHandle, Promise};
use crate::os::{self, clock};
use crate::record::counters::add;
use crate::record::event_ring::RingEvent;
use crate::record::report::{self, Kind};
use crate::scheduler::Peers;
use crate::scheduler::lists::WorkerId;
use crate::scheduler::lists::worker_list::{STANDBY, State};
use crate::scheduler::request::WorkRequest;
use crate::wait::Waiter;
use crate::watch::calls;

/// How long to wait after a worker could not be created (B17).
const CREATE_AGAIN_AFTER_NS: u64 = 100_000_000;

/// Starts a scheduler on a thread of its own, which stands by; gives both.
pub(crate) fn start(
    index: usize,
    options: Options,
    peers: Arc<Peers>,
) -> std::io::Result<(Arc<Scheduler>, JoinHandle)> {
    crate::scheduler::debugger::be_found();
    let (tell, told) = Promise::new();
    let name = format!("ums-{}", options.name);
    let thread = threads::spawn(std::thread::Builder::new(), name, move || {
        // The driver is opened here, because a ring belongs to one thread (rule 1).
        let carried = Scheduler::is_to_be_carried(&options);
        let owner = match options.kind {
            _ if carried => Owner::ManyThreads,
            WorkerKind::Fiber | WorkerKind::OwnContext => Owner::OneThread,
            WorkerKind::Thread => Owner::ManyThreads,
        };
        let scheduler = match open::open(options.io, owner) {
            Ok(driver) => Scheduler::new(index, options, peers, driver),
            Err(error) => return tell.keep(Err(error)),
        };
        let root = match scheduler.host_here(carried) {
            Ok(root) => root,
            Err(error) => return tell.keep(Err(error)),
        };
        scheduler.settle_here();
        entry::enter_by(Some(&scheduler.standby.entry));
        let watching = scheduler.open_place().and_then(|()| scheduler.watch_for_blocked());
        if let Err(error) = watching {
            return tell.keep(Err(error));
        }
        os::linux::sample::this_thread_is_on(fiber::StackRange::of_this_thread());
        if carried {
            return scheduler.be_carried(tell, || or_abort(|| scheduler.root()));
        }
        set_here(Some(&scheduler));
        scheduler.make_ready();
        tell.keep(Ok(scheduler.clone()));
        or_abort(|| match scheduler.options.kind {
            WorkerKind::Fiber | WorkerKind::OwnContext => scheduler.root(),
            WorkerKind::Thread => scheduler.thread_standby(),
        });
        set_here(None);
        entry::enter_by(None);
        drop(root);
    })?;
    let ended = || Err(std::io::Error::other("the scheduler's thread ended at its start"));
    let scheduler = told.wait().unwrap_or_else(ended)?;
    Ok((scheduler, thread))
}

/// Whoever panics outside every request holds the baton, and nobody could ever take it: better a
/// sentence and an end than a scheduler that hangs.
fn or_abort(main: impl FnOnce()) {
    if let Err(_panic) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(main)) {
        #[cfg(feature = "sim")]
        os::sim::fail(&os::sim::text_of(&*_panic));
        report::last_words(format_args!("a scheduler panicked outside every request: aborting"));
        std::process::abort();
    }
}

impl Scheduler {
    /// Makes the calling thread a host, where workers have their own contexts. What it gives
    /// outlives them all.
    fn host_here(&self, carried: bool) -> std::io::Result<Option<Host>> {
        if self.options.kind != WorkerKind::OwnContext {
            return Ok(None);
        }
        self.host_mask.store(crate::watch::mask_here(), Ordering::Relaxed);
        if carried {
            // Its carriers are hosts; they inherit the mask.
            return Ok(None);
        }
        let host = Host::here().map_err(std::io::Error::other)?;
        // SAFETY: Baton: nobody else has seen this scheduler yet.
        unsafe { (*self.core.get()).root = host.root() };
        Ok(Some(host))
    }

    /// The root loop of a host thread, or of a carried scheduler.
    fn root(self: &Arc<Self>) {
        fiber::install_overflow_handler();
        // Each carrier has its own.
        let carried = self.detection.carriers.get().is_some();
        let _alternate_stack = (!carried).then(fiber::prepare_host_thread);
        loop {
            if !self.resume_current() && !self.stand_by_once() {
                return self.take_down();
            }
        }
    }

    /// Resumes the current worker, if one is current. A fiber that came to its end is
    /// taken out, and its stack goes back to the pool.
    #[inline]
    pub(super) fn resume_current(&self) -> bool {
        if self.options.kind == WorkerKind::OwnContext {
            let any = self.with(|core| core.current != STANDBY);
            if any {
                self.pass_from_root();
                if self.detection.carriers.get().is_some() {
                    self.see_to_the_blocked();
                }
            }
            return any;
        }
        let fiber = self.with(|core| core.fiber);
        if fiber.is_null() {
            return false;
        }
        // SAFETY: Home: this is the host thread's root, the only place that resumes, and the
        // pointer comes from the seat of a living worker. No borrow of the core is alive.
        if unsafe { (*fiber).resume() } == Resume::Finished {
            self.bury_current();
        }
        true
    }

    #[cold]
    fn bury_current(&self) {
        let (waiter, seat) = self.with(|core| {
            let id = core.current;
            core.current = STANDBY;
            core.fiber = std::ptr::null_mut();
            core.workers.remove(id)
        });
        waiter.give_back();
        let Seat::Fiber(fiber, _) = seat else { return };
        // SAFETY: Home: it has finished and its worker is gone, so this is the only pointer to
        // what `create_worker` boxed.
        let stack = unsafe { Box::from_raw(fiber) }.into_stack();
        self.with(|core| core.stacks.as_mut().map(|pool| pool.give(stack)));
    }

    /// The thread that stands by for thread workers.
    fn thread_standby(self: &Arc<Self>) {
        loop {
            while self.with(|core| core.current) == STANDBY {
                if !self.stand_by_once() {
                    return self.take_down();
                }
                let next = self.with(|core| core.current);
                if next != STANDBY {
                    let theirs = self.with(|core| core.workers.get(next).waiter);
                    self.held_by(theirs);
                    self.stir_place();
                    theirs.event.set();
                    break;
                }
            }
            self.standby.event.wait();
            self.see_to_the_blocked();
        }
    }

    /// The standby does the scheduler's work until a worker is current, or there is nothing to do
    /// but sleep once. False: the scheduler shall end.
    fn stand_by_once(&self) -> bool {
        self.look();
        let chosen = self.with(|core| {
            let next = self.choose(core);
            self.publish(core);
            next.inspect(|next| core.hand_to(*next))
        });
        if chosen.is_none() {
            if self.stop.load(Ordering::Acquire) && self.quiescent() {
                return false;
            }
            self.idle(STANDBY);
        }
        true
    }

    /// Creates the workers that shall be ready from the start (B18).
    pub(super) fn make_ready(self: &Arc<Self>) {
        for _ in 0..self.options.workers_ready {
            self.with(|core| {
                if let Some(id) = self.create_worker(core, false) {
                    core.workers.shift(id, State::New, State::Idle, clock::ticks());
                }
            });
        }
    }

    /// Creates a worker, in state New. None: it could not be had; counted, and not tried again
    /// for a moment (B17).
    pub(super) fn create_worker(&self, core: &mut Core, reserve: bool) -> Option<WorkerId> {
        let id = core.workers.next_id();
        let waiter = Waiter::take(self.inbox.address(), id);
        let name = format!("ums-{}/{id}", self.name());
        let seat = match self.options.kind {
            WorkerKind::Fiber => self.fiber_seat(core, id, waiter, &name),
            WorkerKind::OwnContext => self.own_seat(id, waiter, name),
            WorkerKind::Thread => self.thread_seat(id, waiter, name),
        };
        let seat = match seat {
            Ok(seat) => seat,
            Err(error) => {
                waiter.give_back();
                if core.create_again == 0 {
                    self.warn(
                        Kind::NoWorker,
                        format_args!(
                            "scheduler '{}' could not create a worker: {error}",
                            self.name()
                        ),
                    );
                }
                core.create_again = clock::now() + CREATE_AGAIN_AFTER_NS;
                add(&self.counters.failed_to_create_worker, 1);
                return None;
            }
        };
        let added = core.workers.add(waiter, seat, clock::ticks());
        debug_assert_eq!(added, id);
        core.create_again = 0;
        self.made_one(core);
        add(&self.counters.workers_created, 1);
        add(&self.counters.reserve_workers, u64::from(reserve));
        self.roster.lock().insert(id, waiter);
        Some(id)
    }

    fn fiber_seat(
        &self,
        core: &mut Core,
        id: WorkerId,
        waiter: &'static Waiter,
        name: &str,
    ) -> std::io::Result<Seat> {
        let pool = core.stacks.as_mut().expect("a fiber scheduler has stacks");
        let stack = pool.take().map_err(std::io::Error::other)?;
        waiter.view.stack_is(stack.range());
        #[cfg(feature = "planted")]
        if crate::planted::is(crate::planted::Bug::StackReusedTooEarly) {
            // SAFETY: Home: broken on purpose; whoever builds with this feature asks for it.
            pool.give(unsafe { std::ptr::read(&stack) });
        }
        let fiber = Fiber::new(stack, name, move |suspender| {
            let scheduler = super::here().expect("a fiber is resumed by its host thread");
            scheduler.with(|core| {
                if let Some(Seat::Fiber(_, way_out)) = &mut core.workers.get(id).seat {
                    *way_out = Some(suspender);
                }
            });
            or_abort(|| scheduler.worker_main(id, waiter));
        });
        let fiber = Box::new(fiber);
        waiter.view.saved_at.store(fiber.saved_at().unwrap_or(0), Ordering::Relaxed);
        Ok(Seat::Fiber(Box::into_raw(fiber), None))
    }

    /// The first thing that a worker's own thread does: goes where its scheduler is, and says where
    /// it is.
    pub(super) fn arrive(&self, waiter: &'static Waiter) {
        self.settle_here();
        waiter.view.thread.store(os::thread_number(), Ordering::Relaxed);
        entry::enter_by(Some(&waiter.entry));
        super::WORKER.set(Some(waiter));
        let stack = fiber::StackRange::of_this_thread();
        stack.into_iter().for_each(|stack| waiter.view.stack_is(stack));
        os::linux::sample::this_thread_is_on(stack);
    }

    /// A worker's life on its own thread, once it has the baton; nothing if it was retired before.
    pub(super) fn live(self: &Arc<Self>, id: WorkerId, waiter: &'static Waiter) {
        if !waiter.is(State::Retired) {
            set_here(Some(self));
            or_abort(|| self.worker_main(id, waiter));
            set_here(None);
        }
    }

    fn thread_seat(
        &self,
        id: WorkerId,
        waiter: &'static Waiter,
        name: String,
    ) -> std::io::Result<Seat> {
        let scheduler = self.arc();
        let builder = std::thread::Builder::new().stack_size(self.options.stack_size);
        let thread = threads::spawn(builder, name, move || {
            scheduler.arrive(waiter);
            let watched = scheduler.watch_worker(waiter);
            if let Some(watched) = &watched {
                super::preempt::prepare_thread();
                calls::detect_here(super::preempt::OF_THREADS);
                watched.begin();
            }
            // Not until somebody chooses us may we touch anything: we do not have the baton.
            waiter.event.wait();
            watched.as_ref().inspect(|watched| watched.enter());
            scheduler.live(id, waiter);
            watched.as_ref().inspect(|watched| watched.end());
            entry::enter_by(None);
            waiter.give_back();
        })?;
        Ok(Seat::Thread(Some(thread)))
    }

    /// What every worker runs, thread or fiber. Returns when the worker was retired.
    fn worker_main(&self, me: WorkerId, waiter: &'static Waiter) {
        let kind = match self.options.kind {
            WorkerKind::Fiber => "fiber worker",
            _ => "worker",
        };
        waiter.spans.begin_worker(kind, || format!("ums-{}/{me}", self.name()));
        if !waiter.is(State::Running) && !waiter.is(State::Retired) {
            self.until_chosen(me, waiter);
        }
        while !waiter.is(State::Retired) {
            let request = self.with(|core| core.workers.get(me).request.take());
            self.carry_out(request.expect("a worker is chosen with a request"), waiter);
            self.with(|core| {
                let now = clock::ticks();
                core.end_turn(self, now, 0);
                core.workers.shift(me, State::Running, State::Idle, now);
                core.record(RingEvent::Finish, me, 0);
            });
            self.until_chosen(me, waiter);
        }
        waiter.spans.end_worker();
    }

    /// One work request, from start to end (U32).
    fn carry_out(&self, request: WorkRequest, waiter: &'static Waiter) {
        // Set when it was given to this worker.
        let now = self.with(|core| core.turn_at);
        if !self.waited_too_long(&request) && request.state().start(waiter, now) {
            waiter.spans.begin_request(request.state().id, request.state().user);
            // Jobs keep their own panics; this is for what a job itself gets wrong.
            let fine = outside(|| {
                contain(|| {
                    waiter.lending.within.store(true, Ordering::Relaxed);
                    request.run();
                })
            });
            super::preempt::come_back();
            super::lent::end(waiter);
            add(&self.counters.panics, u64::from(!fine));
            waiter.spans.end_request();
            request.state().finish();
        } else {
            request.abandon();
        }
        outside(|| {
            contain(|| {
                waiter.lending.within.store(true, Ordering::Relaxed);
                drop(request);
            })
        });
        // What the request owned may have left by a guard, too, and forgotten it.
        super::preempt::come_back();
        super::lent::end(waiter);
        #[cfg(debug_assertions)]
        waiter.foreign.end_request();
        // In this order, for a shutdown that adds up loads (`Node::end`).
        add(&self.counters.requests_done, 1);
        self.load.fetch_sub(1, Ordering::Release);
        add(&waiter.view.requests_done, 1);
    }

    /// Whether the client of this request has surely given up (B19). Those of holders are exempt.
    fn waited_too_long(&self, request: &WorkRequest) -> bool {
        let limit = self.options.queue_timeout_ns;
        if limit == u64::MAX || request.state().is_urgent() {
            return false;
        }
        let waited = clock::ticks().saturating_sub(request.state().enqueued);
        let late = clock::ticks_to_ns(waited) > limit;
        add(&self.counters.queue_timeouts, u64::from(late));
        late
    }

    /// Every thread of a scheduler runs where the scheduler is pinned, and stands back for others
    /// as it was told to.
    pub(super) fn settle_here(&self) {
        if let Some(cpu) = self.options.pin
            && let Err(error) = os::linux::cpus::pin_to(cpu)
        {
            let name = self.name();
            let text = format_args!("scheduler '{name}' could not be pinned to CPU {cpu}: {error}");
            self.warn(Kind::Setup, text);
        }
        let nice = self.options.nice;
        if nice != 0
            && let Err(error) = os::linux::cpus::stand_back(nice)
        {
            let name = self.name();
            let text =
                format_args!("scheduler '{name}' could not be given nice value {nice}: {error}");
            self.warn(Kind::Setup, text);
        }
    }
}
