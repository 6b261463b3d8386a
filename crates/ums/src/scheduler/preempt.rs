//! Going preemptive: a worker leaves its scheduler to run external code, and rejoins it afterwards.
//!
//! External code may block, or run long without yielding, so it must not keep the scheduler's
//! baton.
//!
//! A *thread* worker does this, step by step, while its scheduler does what the right column says:
//!
//! ```text
//!   worker                              scheduler
//!   takes a place under the cap
//!   looks, chooses the next worker      (worker still holds the baton)
//!   state := Preemptive, gives baton -> next runnable, or one that starts a queued request, or an
//!                                       idle or waiting one to host the idle loop, or the standby
//!   runs the closure as a plain thread  runs others
//!   pushes itself through the inbox ---> sees it in a turn, puts it on the runnable list
//!   waits on its event                  chooses it, gives it the baton
//!   continues its request
//! ```
//!
//! A *fiber* cannot leave its thread, because its scheduler's other fibers run there. So its
//! closure is sent to a hidden scheduler with thread workers (such a closure is an *errand*), and
//! the fiber waits for it. There each errand goes preemptive in turn, so errands run side by side.
//!
//! Named invariant **Frozen Stack**: the data that an errand points at is on the stack of the
//! waiting caller. The caller runs again only after the errand has ended its wait.

#![allow(unsafe_code)] // Named invariants of the module's header.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use fiber::StackRange;

use super::{Core, Frozen, Scheduler, away, here, here_from_outside, set_here};
use crate::os::clock::{self, NEVER};
use crate::os::counted::AtomicU64;
use crate::os::entry::Inside;
use crate::os::planted::{self, Bug};
use crate::os::threads::point;
use crate::record::counters::{Counters, add, max, set};
use crate::record::event_ring::RingEvent;
use crate::record::reason::WaitReason;
use crate::record::spans::CarriedSpans;
use crate::scheduler::lists::worker_list::{STANDBY, State};
use crate::scheduler::lists::{NO_WORKER, WorkerId};
use crate::scheduler::request::{RequestState, make};
use crate::wait::error::NeedsThread;
use crate::wait::{Claimed, Outcome, Ticket, Values, Waiter, What, are_used, thread_waiter};
use crate::watch::mask_here;

/// Runs external code without delaying the scheduler; see `ums::go_preemptive`.
pub(crate) fn go_preemptive<F, R>(reason: WaitReason, f: F) -> R
where
    F: FnOnce() -> R + Send,
    R: Send,
{
    // A plain thread has no scheduler to leave. A preemptive worker has left its scheduler already,
    // and is not counted again (B29).
    let Some(scheduler) = here() else { return f() };
    scheduler.may_switch();
    let result = match scheduler.options.kind.is_thread() {
        true => scheduler.leave(reason, Way::Turn, f),
        false => scheduler.move_outside(reason, f),
    };
    result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Called in a signal handler at an arbitrary place, because the calling worker was seen in a page
/// fault. The worker leaves its scheduler, as it would by a guard. Returns false if it cannot
/// leave.
pub(super) fn step_out() -> bool {
    let here = here_from_outside().filter(|scheduler| scheduler.may_leave_undeclared());
    let Some(scheduler) = here else { return false };
    add(&scheduler.counters.undeclared_faults, 1);
    let scheduler = scheduler.arc();
    let left = scheduler.go_out(WaitReason::PREEMPTIVE_EXTERNAL, Way::Standby);
    LEFT.set(Some((scheduler, left)));
    true
}

thread_local! {
    /// The signals that the calling worker has blocked outside signal handlers.
    static MASK: Cell<u64> = const { Cell::new(0) };
}

/// Prepares a worker's thread for leaving in the middle of a call. `mask` is its signal mask
/// outside signal handlers. Also initialises the thread-local that a signal handler would otherwise
/// be the first to touch.
pub(super) fn prepare_here(mask: u64) {
    MASK.set(mask);
    LEFT.set(None);
}

/// Runs an interposed call that will block. If the calling code is a request's own, the worker goes
/// preemptive, as for a declared call. Inside the library, and during a panic, the call just runs.
pub(super) fn undeclared(call: &mut dyn FnMut()) {
    run_outside(call, Way::Call, |counters| &counters.undeclared_calls);
}

/// Runs a call that was seen to block, as [`undeclared`] runs one that will block. The caller is a
/// signal handler, which has interrupted the worker at an arbitrary place.
pub(super) fn seen_blocked(call: &mut dyn FnMut()) {
    run_outside(call, Way::Standby, |counters| &counters.undeclared_blocks);
}

fn run_outside(call: &mut dyn FnMut(), way: Way, counter: fn(&Counters) -> &AtomicU64) {
    match here_from_outside().filter(|scheduler| scheduler.may_leave_undeclared()) {
        Some(scheduler) => {
            add(counter(&scheduler.counters), 1);
            // The call does not panic, because it is a function of the C library.
            drop(scheduler.leave(WaitReason::PREEMPTIVE_EXTERNAL, way, call));
        }
        None => call(),
    }
}

/// How a worker leaves its scheduler.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// The worker does a turn, and its absence is counted as a wait.
    Turn,
    /// The worker leaves as with `Turn`, but at an arbitrary place, because the worker did not
    /// declare the call.
    Call,
    /// The worker leaves as with `Turn`, for the errand of a fiber. The fiber's wait is counted
    /// already.
    Errand,
    /// The worker leaves in a signal handler. The standby does the turn, because a turn runs
    /// completion routines and may create workers. The worker asks for no preemptive place, as a
    /// thread that blocks undeclared asks for none.
    Standby,
}

/// Runs external code while the worker stays in its scheduler, because the code is known to be
/// short. If it took longer than a quantum, counts the call.
pub(crate) fn short_call<R>(f: impl FnOnce() -> R) -> R {
    if here().is_none() {
        return f();
    }
    let began = clock::now();
    let result = f();
    if clock::now() - began > crate::os::limits::QUANTUM_NS
        && let Some(scheduler) = here()
    {
        add(&scheduler.counters.short_overruns, 1);
    }
    result
}

/// What a preemptive worker needs to rejoin its scheduler.
struct Left {
    reason: WaitReason,
    way: Way,
    waiter: &'static Waiter,
    /// Whether the worker was in its request's own code when it left.
    within: bool,
    watched: Option<&'static crate::watch::Watched>,
}

thread_local! {
    /// The scheduler that the calling worker has left by a guard, with the values that the worker
    /// needs to rejoin it.
    static LEFT: Cell<Option<(Arc<Scheduler>, Left)>> = const { Cell::new(None) };
    /// How many times the calling worker has left by a guard.
    static TIMES: Cell<u64> = const { Cell::new(0) };
}

/// A guard: the worker is preemptive while it is alive; see `ums::worker::couple`.
#[derive(Debug)]
#[must_use = "dropping it brings the worker back to its scheduler"]
pub struct Coupled {
    /// The number of the preemptive section that dropping this guard ends; 0 for none. The section
    /// may have ended before, with its request.
    time: u64,
    here: std::marker::PhantomData<*const ()>,
}

impl Drop for Coupled {
    fn drop(&mut self) {
        // A wait that was begun outside the scheduler must end there, so the worker does not rejoin
        // in the middle of one.
        if self.time != 0 && self.time == TIMES.get() && thread_waiter().is_quiet() {
            come_back();
        }
    }
}

/// Leaves the scheduler until the guard is dropped.
pub(crate) fn couple(reason: WaitReason) -> Result<Coupled, NeedsThread> {
    let coupled = |time| Ok(Coupled { time, here: std::marker::PhantomData });
    let Some(scheduler) = here() else { return coupled(0) };
    scheduler.may_switch();
    if !scheduler.options.kind.is_thread() {
        return Err(NeedsThread("coupling"));
    }
    // The thread-local is initialised before the worker leaves, because its initialisation may need
    // the scheduler.
    LEFT.set(None);
    let scheduler = scheduler.arc();
    let left = scheduler.go_out(reason, Way::Turn);
    LEFT.set(Some((scheduler, left)));
    TIMES.set(TIMES.get() + 1);
    coupled(TIMES.get())
}

/// Rejoins the scheduler, if the calling worker has left it by a guard. Besides the guard's drop,
/// the end of a request calls this, because the request may have forgotten its guard.
pub(super) fn come_back() {
    let _inside = Inside::enter();
    // A guard that is stored in another thread-local may be dropped after `LEFT` is destroyed. Its
    // request has ended by then, and so has its preemptive section.
    if let Ok(Some((scheduler, left))) = LEFT.try_with(Cell::take) {
        scheduler.come_back(&left);
    }
}

impl Scheduler {
    /// Returns whether the calling code, which has entered from outside, is the code of the current
    /// worker's request.
    pub(super) fn is_the_requests_own(&self) -> bool {
        let busy = self.busy.load(Ordering::Relaxed);
        !busy && !std::thread::panicking() && {
            let waiter = self.current_waiter();
            self.is_calm(waiter)
        }
    }

    /// Returns whether the current worker may leave in the middle of a call. It must not leave from
    /// a signal handler of the application, because the handler may have interrupted anything, such
    /// as the allocator, and a turn may need that. For a worker with its own context there are two
    /// more reasons: the handler's frames may be on the host's alternate signal stack, which the
    /// next handler uses, and the host would keep the handler's signal mask.
    pub(super) fn may_leave_undeclared(&self) -> bool {
        self.is_the_requests_own()
            && self.current_waiter().record.view.stack().is_none_or(StackRange::is_here)
            && mask_here() == MASK.get()
    }

    fn leave<R>(
        &self,
        reason: WaitReason,
        way: Way,
        f: impl FnOnce() -> R,
    ) -> std::thread::Result<R> {
        let left = self.go_out(reason, way);
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f));
        self.come_back(&left);
        result
    }

    /// Gives the current worker's baton away. When this returns, the worker is outside its
    /// scheduler.
    ///
    /// # Panics
    /// Panics if the worker has begun to wait, because the end of that wait would make it run in
    /// its scheduler, too.
    fn go_out(&self, reason: WaitReason, way: Way) -> Left {
        let waiter = self.current_waiter();
        let within = waiter.record.view.in_request_code.swap(false, Ordering::Relaxed);
        assert!(waiter.is_quiet(), "a worker that has begun to wait cannot leave its scheduler");
        if way != Way::Standby {
            self.take_preemptive_place();
        }
        // From here until the worker has rejoined, blocks are not detected.
        let watched = crate::watch::thread::me();
        watched.inspect(|me| me.enter_library());
        let began = clock::ticks();
        add(&self.waits.row(reason).begun, u64::from(way != Way::Errand));
        if way != Way::Standby {
            // It runs completion routines of other requests.
            let _paused = waiter.record.spans.paused();
            self.look();
        }
        let (waiter, next) = self.with(|core| {
            let me = core.current;
            core.workers.shift(me, State::Running, State::Preemptive, began);
            core.record_at(RingEvent::Leave, me, reason.index() as u32, began);
            core.end_turn(self, clock::ticks(), 0);
            self.count_preemptive(core);
            let next = match way {
                Way::Standby => STANDBY,
                _ => self.choose(core).unwrap_or_else(|| self.next_host(core)),
            };
            self.publish(core);
            (core.workers.get(me).waiter, next)
        });
        waiter.reason.store(reason.index() as u16, Ordering::Relaxed);
        waiter.began.store(began, Ordering::Relaxed);
        add(&self.counters.context_switches, 1);
        add(&self.counters.leave_switches, 1);
        self.options.kind.leave(self, next);
        set_here(None);
        super::AWAY.set(Some(waiter));
        point("leave: outside");
        Left { reason, way, waiter, within, watched }
    }

    /// Brings a worker that has left back to its scheduler. It has the baton when this returns,
    /// unless it was allowed to run without the baton (`kinds/contexts/lent.rs`).
    fn come_back(&self, left: &Left) {
        let &Left { reason, way, waiter, within, watched } = left;
        point("leave: back");
        super::AWAY.set(None);
        // The time from here until the worker runs is signal wait (G8).
        let signalled = clock::ticks();
        waiter.signalled.store(signalled, Ordering::Relaxed);
        waiter.record.spans.pause();
        if planted::is(Bug::TwoBatons) {
            set_here(Some(self));
            return self.give_preemptive_place();
        }
        let lendable = within && matches!(way, Way::Call | Way::Standby);
        if !self.options.kind.rejoin(self, waiter, lendable) {
            waiter.record.spans.go_on();
            return waiter.record.view.in_request_code.store(within, Ordering::Relaxed);
        }
        set_here(Some(self));
        waiter.record.spans.go_on();
        watched.inspect(|me| me.word.leave());
        if way != Way::Errand {
            self.end_preemptive(waiter, reason);
        } else {
            self.give_preemptive_place();
        }
        waiter.record.view.in_request_code.store(within, Ordering::Relaxed);
    }

    /// Counts one more preemptive worker.
    pub(super) fn count_preemptive(&self, core: &mut Core) {
        core.preemptive += 1;
        set(&self.counters.preemptive, core.preemptive);
        add(&self.counters.preemptive_switches, 1);
        max(&self.counters.preemptive_max, core.preemptive as u64);
    }

    /// Notes that the current worker is no longer preemptive, and has the baton again.
    pub(super) fn end_preemptive(&self, waiter: &Waiter, reason: WaitReason) {
        let (now, signalled) = (clock::ticks(), waiter.signalled.load(Ordering::Relaxed));
        let total = now.saturating_sub(waiter.began.load(Ordering::Relaxed));
        let signal = now.saturating_sub(signalled);
        self.waits.row(reason).ended(total, signal);
        waiter.record.view.waits.ended(reason, total, signal);
        self.give_preemptive_place();
    }

    /// Returns the worker that hosts the idle loop when none can run: an idle worker, else one that
    /// waits, else the standby.
    fn next_host(&self, core: &mut Core) -> WorkerId {
        match core.workers.idle.tail {
            NO_WORKER => core.workers.waiters().next().unwrap_or(STANDBY),
            idle => idle,
        }
    }

    fn take_preemptive_place(&self) {
        let waiter = self.current_waiter();
        let ticket = self.with(|core| {
            if core.preemptive + core.preemptive_granted < self.options.preemptive_max {
                return None;
            }
            let what = What::new(WaitReason::PREEMPTIVE_CAP).uncancellable();
            let ticket = waiter.begin(what);
            core.preemptive_waiters.push_back(ticket);
            Some(ticket)
        });
        if let Some(ticket) = ticket {
            self.park(ticket, NEVER);
            self.with(|core| core.preemptive_granted -= 1);
        }
    }

    fn give_preemptive_place(&self) {
        self.with(|core| {
            core.preemptive -= 1;
            set(&self.counters.preemptive, core.preemptive);
            // Workers that block undeclared take places without asking, so the limit may be
            // exceeded.
            let room = core.preemptive + core.preemptive_granted < self.options.preemptive_max;
            let next = if room { core.preemptive_waiters.pop_front() } else { None };
            if let Some(claimed) = next.and_then(|t: Ticket| t.claim(Outcome::Granted)) {
                // The place belongs to this waiter from now on. A worker that asks before the
                // waiter runs must not get it.
                core.preemptive_granted += 1;
                core.wake(claimed.kept(), clock::ticks());
            }
        });
    }

    /// Runs `f` on the hidden scheduler for external code, and waits until it has ended.
    fn move_outside<F, R>(&self, reason: WaitReason, f: F) -> std::thread::Result<R>
    where
        F: FnOnce() -> R + Send,
        R: Send,
    {
        add(&self.counters.preemptive_switches, 1);
        let mut f = Some(f);
        let around = Around::current(self);
        if let Some(outside) = self.outside.get().and_then(|outside| outside.upgrade()) {
            // Counted as the fiber's wait. That the errand goes preemptive is not counted again
            // (B29).
            let result = run_on(&outside, reason, || {
                let f = f.take().expect("an errand is run once");
                match here() {
                    Some(hidden) => hidden.leave(reason, Way::Errand, || around.call(f)),
                    None => Ok(around.call(f)),
                }
            });
            if f.is_none() {
                return result.and_then(|result| result);
            }
        }
        // The errand was not accepted, because the node is shutting down. `f` may be clean-up code,
        // so it runs here.
        let f = f.take().expect("it has not been run");
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(f))
    }
}

/// What is around the code that sends an errand, and so around the errand's own code.
struct Around {
    /// The values of request-locals.
    values: Values,
    spans: CarriedSpans,
}

impl Around {
    fn current(scheduler: &Scheduler) -> Around {
        let waiter = scheduler.current_waiter();
        let values = if are_used() { waiter.values() } else { Values::default() };
        Around { values, spans: waiter.record.spans.carried() }
    }

    /// Calls `f`, on the worker that carries out the errand.
    fn call<R>(self, f: impl FnOnce() -> R) -> R {
        let Around { values, spans } = self;
        spans.around(|| match away() {
            Some(me) if !values.is_empty() => me.within(values, f),
            _ => f(),
        })
    }
}

/// Runs `f` as a request of another scheduler and waits until it has ended. The caller's stack
/// stays as it is meanwhile, so `f` may borrow from it. Returns an error if `f` panicked or was not
/// accepted.
pub(crate) fn run_on<F, R>(to: &Scheduler, reason: WaitReason, f: F) -> std::thread::Result<R>
where
    F: FnOnce() -> R + Send,
    R: Send,
{
    let (f, result) = (Cell::new(Some(f)), Cell::new(None));
    let call = || {
        let f = f.take().expect("an errand is run once");
        result.set(Some(std::panic::catch_unwind(std::panic::AssertUnwindSafe(f))));
    };
    run_errand(to, reason, &call);
    result.take().unwrap_or_else(|| Err(Box::new("the node shut down before this could run")))
}

fn run_errand(to: &Scheduler, reason: WaitReason, call: &dyn Fn()) {
    let inside = Inside::enter();
    let waiter = here().map_or_else(thread_waiter, |scheduler| scheduler.waiting_waiter());
    let ticket = waiter.begin(What::new(reason).on(to).uncancellable());
    let frozen = Frozen;
    // SAFETY: Frozen Stack: `call` borrows from the caller's stack, which stays as it is until the
    // park below returns. The park is uncancellable and has no deadline, and only the drop of the
    // `Errand` ends it, after its last use of `call`.
    let call = unsafe { std::mem::transmute::<*const dyn Fn(), *const (dyn Fn() + 'static)>(call) };
    let user = waiter.record.view.user.load(Ordering::Relaxed);
    let errand = Errand { call: Call(call), ticket };
    let (request, _) = make(RequestState::new(user, true), move || errand.run());
    if let Err((_, request)) = to.enqueue(request) {
        // The caller does not park, so it must not be woken.
        let abandoned = ticket.abandon();
        debug_assert!(abandoned, "no other thread knows this wait");
        drop(request);
    } else {
        match here() {
            Some(scheduler) => scheduler.park(ticket, NEVER),
            None => ticket.park_thread(NEVER),
        };
    }
    std::mem::forget(frozen);
    drop(inside);
}

/// A closure that a work request runs for a caller that waits in another scheduler. Dropping it,
/// before or after it has run, ends the caller's wait.
struct Errand {
    call: Call,
    ticket: Ticket,
}

struct Call(*const dyn Fn());

// SAFETY: Frozen Stack: the closure contains an `F: Send` and a place for an `R: Send`. One thread
// at a time uses it: the errand's until the wait ends, the caller's afterwards.
unsafe impl Send for Call {}

impl Errand {
    fn run(self) {
        // The code of the errand can see whether the request that sent it was cancelled.
        let me = here().map(|scheduler| scheduler.current_waiter());
        me.inspect(|me| me.origin.store(Some(self.ticket.waiter)));
        // SAFETY: Frozen Stack: the wait has not ended, so the closure is alive.
        unsafe { (*self.call.0)() };
        me.inspect(|me| me.origin.store(None));
    }
}

impl Drop for Errand {
    fn drop(&mut self) {
        let claimed: Option<Claimed> = self.ticket.claim(Outcome::Granted);
        claimed.into_iter().for_each(super::ready);
    }
}
