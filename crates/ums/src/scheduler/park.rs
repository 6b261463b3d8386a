//! Park: a worker waits, and does the scheduler's work until another worker runs.

use std::sync::atomic::Ordering;

use super::switch::SwitchEvent;
use super::way_out::{Leave, WayOut};
use super::{Core, PeersUnnotified, Scheduler, Timed, set_here};
use crate::os::clock::{self, NEVER};
use crate::os::threads::point;
use crate::record::counters::{add, set};
use crate::record::event_ring::RingEvent;
use crate::record::reason::WaitReason;
use crate::record::report;
use crate::record::wait_stats::{RequestWaits, WaitCounters};
use crate::scheduler::lists::WorkerId;
use crate::scheduler::lists::timer_list::TimerId;
use crate::scheduler::lists::worker_list::{STANDBY, State};
use crate::wait::{Outcome, Ticket, Waiter};

/// How long a destructor on a fiber may wait during a panic before the wait is taken for a
/// deadlock.
const UNWINDING_WAIT_MAX_NS: u64 = 10_000_000_000;

/// The quick path publishes the lengths of the lists once in so many turns.
const PUBLISH_EVERY: u64 = 16;

/// Marks a stack frame that others use until the wait in it ends: the kernel uses its buffers, or
/// another scheduler runs its closure. Such a frame cannot be unwound. A panic below it is possible
/// only if a driver's system call fails. Then this value is dropped and ends the process, before
/// anything is written into freed memory. A caller that returns normally forgets the value.
pub(crate) struct Frozen;

impl Drop for Frozen {
    #[cold]
    fn drop(&mut self) {
        crate::os::sim::fail(
            "a scheduler panicked while others used the frame of a worker that waits",
        );
        report::say(format_args!(
            "a scheduler panicked while others used the frame of a worker that waits: aborting"
        ));
        std::process::abort();
    }
}

impl Scheduler {
    /// Returns the waiter of the current worker.
    #[inline]
    pub(crate) fn current_waiter(&self) -> &'static Waiter {
        // Only the baton's holder stores it, and the caller is that holder.
        self.current_waiter.load().unwrap_or(self.standby)
    }

    /// Returns the waiter of the current worker, which is about to wait, and panics if it must not
    /// wait. This is checked before a ticket exists, because otherwise a resource would keep the
    /// ticket of a waiter that never parks. It is checked outside `with`, so that the panic leaves
    /// the lists in order.
    #[inline]
    pub(crate) fn waiting_waiter(&self) -> &'static Waiter {
        self.may_switch();
        self.current_waiter()
    }

    /// Parks the current worker until its wait ends.
    ///
    /// All but the switch is in functions that return before it, or are called after it: see
    /// `leave_by`.
    #[inline(always)]
    pub(crate) fn park(&self, ticket: Ticket, deadline: u64) -> Outcome {
        self.park_since(ticket, deadline, 0)
    }

    /// Does the same for a caller that has just read the clock: the wait began at `began`, in
    /// ticks. `began` is 0 if the caller has not read it.
    #[inline(always)]
    pub(crate) fn park_since(&self, ticket: Ticket, deadline: u64, began: u64) -> Outcome {
        let deadline = ticket.deadline(deadline);
        let timer = if deadline == NEVER { None } else { Some(self.time_wait(ticket, deadline)) };
        if let Some(way_out) = self.begin_park(ticket, began) {
            self.until_runs(way_out, ticket.waiter);
        }
        if let Some(timer) = timer {
            self.untime(timer);
        }
        self.end_park(ticket);
        ticket.take_outcome().expect("a worker runs again only after its wait was claimed")
    }

    /// Sets the timer of a wait that is about to be parked.
    #[inline(never)]
    fn time_wait(&self, ticket: Ticket, deadline: u64) -> TimerId {
        self.with(|core| core.set_timer(deadline, Timed::Wait(ticket)))
    }

    /// Begins to park the current worker. Returns how it leaves its stack, or None if its wait has
    /// ended. `began` is as for `park_since`.
    #[inline(never)]
    fn begin_park(&self, ticket: Ticket, began: u64) -> Option<WayOut> {
        let waiter = ticket.waiter;
        let began = clock::ticks_or(began);
        waiter.began.store(began, Ordering::Relaxed);
        let reason = WaitReason::from_index(waiter.reason.load(Ordering::Relaxed) as usize);
        let row = self.waits.row(reason);
        add(&row.begun, 1);
        if ticket.sees_cancel()
            && let Some(mine) = ticket.claim(Outcome::Cancelled)
        {
            mine.kept();
            return None;
        }
        if !self.options.kind.is_thread() && std::thread::panicking() {
            self.wait_while_unwinding(began);
            return None;
        }
        add(&self.counters.turns, 1);
        waiter.record.spans.pause();
        Some(self.waiting_turn(waiter, reason, row, began))
    }

    /// Counts the wait of the current worker, which runs again or has not parked.
    #[inline(never)]
    fn end_park(&self, ticket: Ticket) {
        let waiter = ticket.waiter;
        let now = self.with(|core| core.turn_at);
        // The turn began before a wait that was cancelled at once, which so lasted no time.
        let total = now.saturating_sub(waiter.began.load(Ordering::Relaxed));
        let signal = now.saturating_sub(waiter.signalled.load(Ordering::Relaxed));
        let reason = WaitReason::from_index(waiter.reason.load(Ordering::Relaxed) as usize);
        let waits = &waiter.record.view.waits;
        match clock::known_rate().filter(|_| waits.is_first(reason)) {
            Some(rate) => {
                self.waits.row(reason).ended_at_rate(total, signal, rate);
                waits.first_ended(total, signal);
            }
            None => self.count_wait(waits, reason, total, signal),
        }
    }

    /// Counts a wait whose reason is not the first one of the request, or before the rate of the
    /// ticks is known.
    #[inline(never)]
    fn count_wait(&self, waits: &RequestWaits, reason: WaitReason, total: u64, signal: u64) {
        self.waits.row(reason).ended(total, signal);
        waits.ended(reason, total, signal);
    }

    /// The current worker begins to wait, and takes a turn.
    ///
    /// There is a quick path for two cases in which nothing has happened. In the first, all
    /// runnable workers are such whose wait has ended, as when two workers wake each other: the
    /// first of them gets the baton. It is the worker that the whole turn would choose, because
    /// choosing it passes over nothing. In the second, the worker waits for a request that it has
    /// taken from the work queue: that request starts.
    #[inline(always)]
    fn waiting_turn(
        &self,
        waiter: &'static Waiter,
        reason: WaitReason,
        row: &WaitCounters,
        began: u64,
    ) -> WayOut {
        point("turn");
        self.check();
        let quickly = self.with(|core| {
            let me = core.check_waits(waiter);
            core.end_turn(self, began, 0);
            let wait = (RingEvent::Wait, me, reason.index() as u32);
            let next = if core.awaited.is_some() {
                core.workers.wait(me, began);
                let Some((next, request)) = self.start_awaited_at_once(core, began) else {
                    core.record_all([wait], began);
                    return None;
                };
                let start = (RingEvent::Start, next, request);
                core.record_all([wait, start, (RingEvent::Switch, next, 0)], began);
                next
            } else {
                let next = if self.only_workers_are_ready(core, began) {
                    core.workers.wait_for_next(me, began)
                } else {
                    core.workers.wait(me, began);
                    None
                };
                let next = next.filter(|next| self.options.kind.can_resume(core, *next));
                let Some(next) = next else {
                    core.record_all([wait], began);
                    return None;
                };
                core.record_all([wait, (RingEvent::Switch, next, 0)], began);
                next
            };
            add(&row.switches, 1);
            self.publish_at_times(core);
            Some(core.hand_over(self, next, SwitchEvent::None))
        });
        match quickly {
            Some(handed) => handed.by_event(),
            None => self.rest_of_turn(began),
        }
    }

    /// Publishes the lengths of the lists after a quick turn, because the next one may be late: a
    /// worker may compute for long. The number of requests on the I/O list changes rarely, so it is
    /// compared first. The number of timers is published once in [`PUBLISH_EVERY`] turns.
    #[inline]
    pub(super) fn publish_at_times(&self, core: &Core) {
        set(&self.counters.waiting, core.workers.waiting());
        set(&self.counters.runnable, core.workers.runnable());
        set(&self.counters.idle, core.workers.idle.len as usize);
        let shown = self.counters.pending_io.load(Ordering::Relaxed);
        let rest = shown == core.io.outstanding() as u64;
        if !rest || self.publishes_all() {
            self.publish(core);
        }
    }

    /// Returns whether this turn is one of those that publish all lengths.
    #[inline]
    pub(super) fn publishes_all(&self) -> bool {
        self.counters.turns.load(Ordering::Relaxed).is_multiple_of(PUBLISH_EVERY)
    }

    /// Returns whether a turn that begins now has nothing to do but to choose a worker from the
    /// runnable list, by preference. Costs only loads.
    #[inline]
    fn only_workers_are_ready(&self, core: &mut Core, now: u64) -> bool {
        // The look at the driver comes last, because the driver counts looks.
        core.workers.yielded.is_empty()
            && self.queue.is_empty()
            && !core.fairness.goes_by_age()
            && self.peers_unnotified.get() == PeersUnnotified::Nothing
            && self.quiet(core, now)
    }

    /// Does the scheduler's work on the current worker, which is not Running any more, until a
    /// worker is chosen. If the current worker is chosen itself, this returns without a switch.
    /// Otherwise the worker hands the baton on, and this returns when it is Running again, or
    /// Retired.
    #[inline(always)]
    pub(super) fn until_chosen(&self, waiter: &'static Waiter) {
        add(&self.counters.turns, 1);
        waiter.record.spans.pause();
        let way_out = self.turn();
        self.until_runs(way_out, waiter);
    }

    /// The rest of `until_chosen`, after the first turn. A worker that gets the baton in another
    /// state than Running hosts the idle loop; any worker may do that.
    #[inline(always)]
    pub(super) fn until_runs(&self, first: WayOut, waiter: &'static Waiter) {
        let mut way_out = first;
        loop {
            match way_out.get() {
                Leave::Stay => self.stay(false, waiter),
                Leave::Nowhere => self.stay(true, waiter),
                Leave::Fiber(me, next) => self.switch_fiber(me, next),
                Leave::Context(from, to) => self.switch_context(from, to),
            }
            // The state was written by the thread that chose or retired this worker, before it
            // handed over the baton or set this worker's event.
            if waiter.is(State::Running) || self.ends(waiter) {
                waiter.record.spans.go_on();
                return;
            }
            way_out = self.turn();
        }
    }

    /// The caller does not leave its stack. If no worker can run, it hosts the idle loop.
    #[cold]
    #[inline(never)]
    fn stay(&self, nowhere: bool, waiter: &Waiter) {
        if nowhere {
            self.idle(waiter.worker.load(Ordering::Relaxed));
        }
    }

    /// Returns whether this worker, which is the caller, is to end. Then its thread is on no
    /// scheduler any more.
    #[cold]
    fn ends(&self, waiter: &Waiter) -> bool {
        let retired = waiter.is(State::Retired);
        if retired && self.options.kind.is_thread() {
            // A retired thread has no baton, and subscribers of spans may use channels.
            set_here(None);
        }
        retired
    }

    /// Rule 11: a destructor waits on a fiber during a panic. The panic count belongs to the host
    /// thread, so no other fiber may run on it. This fiber keeps the thread, and handles I/O,
    /// timers and the inbox until its own wait has ended.
    #[cold]
    fn wait_while_unwinding(&self, began: u64) {
        let me = self.with(|core| {
            let waiter = self.current_waiter();
            let reason = waiter.reason.load(Ordering::Relaxed);
            core.begin_wait(self, waiter, WaitReason::from_index(reason.into()), began);
            core.current
        });
        let give_up = clock::now() + UNWINDING_WAIT_MAX_NS;
        loop {
            let now = self.look();
            self.tell_peers();
            let mine = self.with(|core| {
                let mine = core.workers.get(me).state == State::Runnable;
                if mine {
                    let now = core.begin_turn(self, now);
                    core.workers.shift(me, State::Runnable, State::Running, now);
                }
                mine
            });
            if mine {
                return;
            }
            if clock::now() > give_up {
                report::say(format_args!(
                    "a fiber worker of scheduler '{}' has waited 10 s in a destructor during \
                     a panic, and nothing else can run on its thread meanwhile: aborting",
                    self.name()
                ));
                std::process::abort();
            }
            self.sleep_at_most(1_000_000);
        }
    }
}

impl Core {
    /// Returns the current worker, whose waiter this is, and which may wait.
    #[inline(always)]
    fn check_waits(&self, waiter: &Waiter) -> WorkerId {
        let me = self.current;
        debug_assert_eq!(waiter.worker.load(Ordering::Relaxed), me, "a worker parks itself");
        assert_ne!(me, STANDBY, "the standby never waits");
        me
    }

    /// The current worker, whose turn ends now, begins to wait. `at` is the time, in ticks.
    fn begin_wait(&mut self, scheduler: &Scheduler, waiter: &Waiter, reason: WaitReason, at: u64) {
        let me = self.check_waits(waiter);
        self.workers.wait(me, at);
        self.record_at(RingEvent::Wait, me, reason.index() as u32, at);
        self.end_turn(scheduler, at, 0);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::Ordering;

    use crate::Node;
    use crate::scheduler::here;

    /// Each task gets a new worker, because all others wait.
    fn nest(depth: u64) {
        let here = here().expect("a task runs on a worker");
        let shown = here.counters.workers.load(Ordering::Relaxed);
        assert_eq!(shown, here.with(|core| core.workers.count() as u64), "at depth {depth}");
        drop(here);
        if depth > 0 {
            crate::spawn(move || nest(depth - 1)).join().unwrap();
        }
    }

    #[test]
    fn a_new_worker_is_counted_for_views_before_its_first_request_begins() {
        let node = Node::builder().schedulers(1).take_over_blocked(false).build().unwrap();
        node.run(|| nest(10));
    }
}
