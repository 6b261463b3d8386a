//! Switch: passes the baton to another worker. The only place that depends on a worker's kind.
//!
//! * *Fiber*: the fiber stores which fiber is next and suspends itself; the root loop of the host
//!   thread resumes the next one. Two stack switches, no system call. Fibers are also created and
//!   freed here.
//! * *Thread*: the thread sets the next worker's event and waits on its own.
//! * *Own context*: the processor's registers change to those of the next worker; one switch, no
//!   system call. See `contexts`.
//!
//! Named invariants. **Home**: a fiber is resumed only by its scheduler's host thread. **Baton**:
//! setting the next worker's event gives the baton away; see `scheduler/mod.rs`.

#![allow(unsafe_code)] // Named invariants of the module's header.

use std::sync::atomic::Ordering;

use fiber::{Fiber, Resume, Suspender};

use super::contexts::Pass;
use super::{Core, ExecutionContext, Scheduler, WorkerKind};
use crate::os::planted::{self, Bug};
use crate::record::counters::add;
use crate::record::event_ring::RingEvent;
use crate::scheduler::lists::WorkerId;
use crate::scheduler::lists::worker_list::STANDBY;
use crate::wait::Waiter;

impl Scheduler {
    /// Hands the baton to `to` and parks the current worker; returns when it has the baton again,
    /// or when it was retired. The current worker's state has been set by the caller.
    #[inline]
    pub(super) fn switch_to(&self, to: WorkerId) {
        add(&self.counters.other_switches, 1);
        let handed = self.with(|core| core.hand_over(self, to));
        self.leave_by(handed.by_event());
    }

    /// The second half of a switch: parks the worker that has handed the baton on.
    ///
    /// This function is always inlined, and so is every function between it and the caller of a
    /// yield or a wait. The reason is the processor's return-address predictor: after the stack
    /// switch it contains the return addresses of another fiber, so each return from a function
    /// that was called before the switch is mispredicted. Functions that return before the switch
    /// may be calls.
    #[inline(always)]
    pub(super) fn leave_by(&self, way_out: WayOut) {
        match way_out {
            WayOut::Stay | WayOut::Nowhere => {}
            // SAFETY: Home: this worker was current until now, so this is its own stack.
            WayOut::Suspend(suspender) => unsafe { suspender.suspend() },
            // SAFETY: Baton: the first half of this switch has set `pass`, and no other worker has
            // had the baton since. One Place (contexts): the worker that was current until now is
            // the running context.
            WayOut::Pass(pass) => unsafe { (*pass).switch() },
        }
    }

    /// Resumes the current worker; returns false if no fiber is current. A fiber that has ended is
    /// removed, and its stack returns to the pool.
    #[inline]
    pub(super) fn resume_current(&self) -> bool {
        if self.options.kind == WorkerKind::OwnContext {
            return self.resume_context();
        }
        let fiber = self.with(|core| core.fiber);
        if fiber.is_null() {
            return false;
        }
        // SAFETY: Home: this is the host thread's root, the only place that resumes, and the
        // pointer comes from the execution context of a living worker. No borrow of the core is
        // alive.
        if unsafe { (*fiber).resume() } == Resume::Finished {
            self.bury_current();
        }
        true
    }

    #[cold]
    fn bury_current(&self) {
        let (waiter, execution) = self.with(|core| {
            let id = core.current;
            core.current = STANDBY;
            core.fiber = std::ptr::null_mut();
            core.workers.remove(id)
        });
        waiter.give_back();
        let ExecutionContext::Fiber(fiber, _) = execution else { return };
        // SAFETY: Home: the fiber has finished and its worker is removed, so this is the only
        // pointer to what `make_fiber` boxed.
        let stack = unsafe { Box::from_raw(fiber) }.into_stack();
        self.with(|core| core.stacks.as_mut().map(|pool| pool.give(stack)));
    }

    /// Hands the baton to `to` without parking: for a thread that leaves the scheduler or ends.
    pub(super) fn give_to(&self, to: WorkerId) {
        debug_assert_eq!(self.options.kind, WorkerKind::Thread);
        add(&self.counters.context_switches, 1);
        add(&self.counters.leave_switches, 1);
        let theirs = self.with(|core| {
            core.hand_to(to);
            core.workers.get(to).waiter
        });
        self.held_by(theirs);
        theirs.event.set();
    }
}

/// How the worker that was current leaves its stack. Two words, so that it is returned in
/// registers.
pub(super) enum WayOut {
    /// It does not leave: it was chosen itself, or has the baton again; or the caller is the root
    /// loop of the host thread, which resumes the current fiber next.
    Stay,
    /// No worker can run: the caller hosts the idle loop.
    Nowhere,
    /// A fiber suspends itself.
    Suspend(Suspender),
    /// A worker with its own context switches to the next one.
    Pass(*const Pass),
}

/// The state of a switch after its first half. The switch is completed when no borrow of the lists
/// is alive. The functions that make and consume a value are inlined together: passed through
/// memory, the value would cost as much as the rest of a yield.
#[must_use]
pub(super) enum Handed {
    /// The baton has been handed on; only the worker's way out is left to do.
    Left(WayOut),
    /// Both workers are threads: the first waiter's thread sets the event of the second, then waits
    /// on its own.
    Thread(&'static Waiter, &'static Waiter),
}

impl Handed {
    /// If both workers are threads, hands the baton over now. Returns the way out.
    #[inline(always)]
    pub(super) fn by_event(self) -> WayOut {
        match self {
            Handed::Left(way_out) => way_out,
            Handed::Thread(mine, theirs) => {
                hand(mine, theirs);
                WayOut::Stay
            }
        }
    }
}

#[inline(never)]
fn hand(mine: &'static Waiter, theirs: &'static Waiter) {
    let pass = || {
        theirs.event.set();
        crate::os::threads::point("hand");
        // The baton is gone: from here on, this thread may touch only its own event.
        mine.event.wait();
    };
    match mine.record.watched() {
        None => pass(),
        // A parked thread is not in an undeclared block.
        Some(me) => me.apart(pass),
    }
}

impl Core {
    /// The first half of a switch: `to` is current from now on. The caller completes the switch
    /// with the returned value.
    #[inline(always)]
    pub(super) fn hand_over(&mut self, scheduler: &Scheduler, to: WorkerId) -> Handed {
        add(&scheduler.counters.context_switches, 1);
        let me = self.current;
        match scheduler.options.kind {
            WorkerKind::Fiber => {
                self.hand_to(to);
                Handed::Left(self.way_out_of(me).map_or(WayOut::Stay, WayOut::Suspend))
            }
            WorkerKind::OwnContext => Handed::Left(self.pass_to(to)),
            WorkerKind::Thread => {
                let mine = self.workers.get(me).waiter;
                self.hand_to(to);
                let theirs = self.workers.get(to).waiter;
                scheduler.held_by(theirs);
                Handed::Thread(mine, theirs)
            }
        }
    }

    /// Makes a fiber that runs `main` when it is first resumed. `main` gets the [`Suspender`] by
    /// which the fiber suspends itself.
    pub(super) fn make_fiber(
        &mut self,
        waiter: &'static Waiter,
        name: &str,
        main: impl FnOnce(Suspender) + 'static,
    ) -> std::io::Result<ExecutionContext> {
        let pool = self.stacks.as_mut().expect("a fiber scheduler has stacks");
        let stack = pool.take().map_err(std::io::Error::other)?;
        waiter.record.view.stack_is(stack.range());
        if planted::is(Bug::StackReusedTooEarly) {
            // SAFETY: Home: broken on purpose, in a build with planted bugs.
            pool.give(unsafe { std::ptr::read(&stack) });
        }
        let fiber = Box::new(Fiber::new(stack, name, main));
        waiter.record.view.saved_at.store(fiber.saved_at().unwrap_or(0), Ordering::Relaxed);
        Ok(ExecutionContext::Fiber(Box::into_raw(fiber), None))
    }

    #[inline]
    fn way_out_of(&mut self, id: WorkerId) -> Option<Suspender> {
        match self.workers.get(id).execution {
            Some(ExecutionContext::Fiber(_, suspender)) => suspender,
            _ => None,
        }
    }

    #[inline]
    pub(super) fn hand_to(&mut self, to: WorkerId) {
        self.current = to;
        self.quantum_began = 0;
        self.record(RingEvent::Switch, to, 0);
        let worker = self.workers.get(to);
        add(&worker.waiter.record.view.switches, 1);
        self.fiber = match worker.execution {
            Some(ExecutionContext::Fiber(fiber, _)) => fiber,
            _ => std::ptr::null_mut(),
        };
    }
}
