//! Switch: passes the baton to another worker. The worker's kind (`kinds`) makes the first half,
//! and says by which way the worker leaves its stack:
//!
//! * *Thread*: the thread sets the next worker's event and waits on its own.
//! * *Fiber*: the fiber passes to the next one.
//! * *Own context*: the processor's registers change to those of the next worker; one switch, no
//!   system call.
//!
//! Named invariant **Baton**: setting the next worker's event gives the baton away; see
//! `scheduler/mod.rs`.

use super::way_out::{Leave, WayOut};
use super::{Core, Scheduler};
use crate::record::counters::add;
use crate::record::event_ring::RingEvent;
use crate::scheduler::lists::WorkerId;
use crate::wait::Waiter;

impl Scheduler {
    /// Hands the baton to `to` and parks the current worker; returns when it has the baton again,
    /// or when it was retired. The current worker's state has been set by the caller.
    #[inline]
    pub(super) fn switch_to(&self, to: WorkerId) {
        add(&self.counters.other_switches, 1);
        let handed = self.with(|core| core.hand_over(self, to, SwitchEvent::Now));
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
        match way_out.get() {
            Leave::Stay | Leave::Nowhere => {}
            Leave::Fiber(me, next) => self.switch_fiber(me, next),
            Leave::Context(from, to) => self.switch_context(from, to),
        }
    }
}

/// Whether the event ring records a switch, and at which time.
#[derive(Clone, Copy)]
pub(super) enum SwitchEvent {
    /// There is no ring, or the caller has recorded the switch.
    None,
    /// The time is read for the record.
    Now,
    /// A worker has yielded among workers that only yield. The time is read now and then.
    Yield,
    /// The clock was read at this time, in ticks.
    At(u64),
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
                WayOut::STAY
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
    pub(super) fn hand_over(
        &mut self,
        scheduler: &Scheduler,
        to: WorkerId,
        event: SwitchEvent,
    ) -> Handed {
        add(&scheduler.counters.context_switches, 1);
        scheduler.options.kind.hand_over(scheduler, self, to, event)
    }

    /// Makes `to` the current worker.
    #[inline]
    pub(super) fn hand_to(&mut self, scheduler: &Scheduler, to: WorkerId, event: SwitchEvent) {
        self.switches_to(to, event);
        self.workers.get(to).waiter.is_current(scheduler);
    }

    /// The first half of [`hand_to`](Core::hand_to): records the switch.
    #[inline(always)]
    pub(super) fn switches_to(&mut self, to: WorkerId, event: SwitchEvent) {
        self.current = to;
        self.quantum_began = 0;
        match event {
            SwitchEvent::None => {}
            SwitchEvent::Now => self.record(RingEvent::Switch, to, 0),
            SwitchEvent::Yield => {
                if let Some(ring) = self.ring {
                    ring.record_yield(to);
                }
            }
            SwitchEvent::At(at) => self.record_at(RingEvent::Switch, to, 0, at),
        }
    }
}

impl Waiter {
    /// The second half of [`Core::hand_to`], for the waiter of the worker that is current now.
    #[inline(always)]
    pub(super) fn is_current(&'static self, scheduler: &Scheduler) {
        scheduler.current_waiter.store(Some(self));
        add(&self.record.view.switches, 1);
    }
}
