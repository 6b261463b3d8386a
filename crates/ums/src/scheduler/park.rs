//! Park: a worker waits, and does the scheduler's work until another worker runs.

use std::sync::atomic::Ordering;

use super::switch::WayOut;
use super::{Scheduler, Timed};
use crate::os::clock::{self, NEVER};
use crate::record::event_ring::RingEvent;
use crate::record::reason::WaitReason;
use crate::record::report;
use crate::scheduler::lists::WorkerId;
use crate::scheduler::lists::worker_list::{STANDBY, State};
use crate::wait::{Outcome, Ticket, Waiter};

/// How long a destructor on a fiber may wait during a panic before the wait is taken for a
/// deadlock.
const UNWINDING_WAIT_MAX_NS: u64 = 10_000_000_000;

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
        report::last_words(format_args!(
            "a scheduler panicked while others used the frame of a worker that waits: aborting"
        ));
        std::process::abort();
    }
}

impl Scheduler {
    /// Returns the waiter of the current worker.
    #[inline]
    pub(crate) fn current_waiter(&self) -> &'static Waiter {
        self.with(|core| core.workers.get(core.current).waiter)
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
    pub(crate) fn park(&self, ticket: Ticket, deadline: u64) -> Outcome {
        let waiter = ticket.waiter;
        let began = clock::ticks();
        waiter.began.store(began, Ordering::Relaxed);
        let reason = WaitReason::from_index(waiter.reason.load(Ordering::Relaxed) as usize);
        let row = self.waits.row(reason);
        crate::record::counters::add(&row.begun, 1);
        if ticket.sees_cancel()
            && let Some(mine) = ticket.claim(Outcome::Cancelled)
        {
            mine.kept();
            row.ended(0, 0);
            waiter.record.view.waits.ended(reason, 0, 0);
        } else {
            self.park_on(ticket, deadline, began);
            let now = self.with(|core| core.turn_at);
            let signalled = waiter.signalled.load(Ordering::Relaxed);
            let (total, signal) = (now.saturating_sub(began), now.saturating_sub(signalled));
            row.ended(total, signal);
            waiter.record.view.waits.ended(reason, total, signal);
        }
        ticket.take_outcome().expect("a worker runs again only after its wait was claimed")
    }

    #[inline(always)]
    fn park_on(&self, ticket: Ticket, deadline: u64, began: u64) {
        let (me, timer) = self.with(|core| {
            let me = core.current;
            assert_ne!(me, STANDBY, "the standby never waits");
            let timer = (deadline != NEVER).then(|| core.set_timer(deadline, Timed::Wait(ticket)));
            core.workers.shift(me, State::Running, State::Waiting, began);
            let reason = ticket.waiter.reason.load(Ordering::Relaxed);
            core.record_at(RingEvent::Wait, me, reason.into(), began);
            core.end_turn(self, began, 0);
            (me, timer)
        });
        if !self.options.kind.is_thread() && std::thread::panicking() {
            self.wait_while_unwinding(me);
        } else {
            self.until_chosen(me, ticket.waiter);
        }
        if let Some(timer) = timer {
            self.with(|core| core.timers.cancel(timer));
        }
    }

    /// Does the scheduler's work on the current worker, which is not Running any more, until a
    /// worker is chosen. If the current worker is chosen itself, this returns without a switch.
    /// Otherwise the worker hands the baton on, and this returns when it is Running again, or
    /// Retired. A worker that gets the baton in another state hosts the idle loop; any worker may
    /// do that.
    #[inline(always)]
    pub(super) fn until_chosen(&self, me: WorkerId, waiter: &'static Waiter) {
        crate::record::counters::add(&self.counters.turns, 1);
        waiter.record.spans.pause();
        loop {
            match self.turn() {
                WayOut::Nowhere => self.idle(me),
                way_out => self.leave_by(way_out),
            }
            // The state was written by the thread that chose or retired this worker, before it
            // handed over the baton or set this worker's event.
            if waiter.is(State::Running) || waiter.is(State::Retired) {
                waiter.record.spans.go_on();
                return;
            }
        }
    }

    /// Rule 11: a destructor waits on a fiber during a panic. The panic count belongs to the host
    /// thread, so no other fiber may run on it. This fiber keeps the thread, and handles I/O,
    /// timers and the inbox until its own wait has ended.
    #[cold]
    fn wait_while_unwinding(&self, me: WorkerId) {
        let give_up = clock::now() + UNWINDING_WAIT_MAX_NS;
        loop {
            self.look();
            self.tell_peers();
            let mine = self.with(|core| {
                let mine = core.workers.get(me).state == State::Runnable;
                if mine {
                    let now = core.begin_turn(self);
                    core.workers.shift(me, State::Runnable, State::Running, now);
                }
                mine
            });
            if mine {
                return;
            }
            if clock::now() > give_up {
                report::last_words(format_args!(
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
