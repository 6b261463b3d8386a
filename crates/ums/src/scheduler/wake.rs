//! Wake: makes a worker whose wait has ended runnable, on this scheduler or through the inbox of
//! the worker's own scheduler.

use std::sync::atomic::Ordering;

use super::{Core, Scheduler, here};
use crate::os::clock;
use crate::record::event_ring::RingEvent;
use crate::record::reason::WaitReason;
use crate::scheduler::lists::WorkerId;
use crate::scheduler::lists::timer_list::TimerId;
use crate::scheduler::lists::worker_list::State;
use crate::scheduler::request::{Cancelled, RequestId, cancel_waiter};
use crate::wait::{Claimed, Inbox, Letter, Waiter};

/// Wakes the waiter of a wait that the caller has claimed. If the waiter is a worker of the
/// scheduler whose baton the caller holds, it becomes runnable. If it is a worker of another
/// scheduler, it is pushed onto that scheduler's inbox. So is the caller itself, if it has begun to
/// wait and not parked: it finds the wake-up when it parks. If the waiter is a plain thread, its
/// event is set. This function switches to no worker.
#[inline]
pub(crate) fn ready(claimed: Claimed) {
    ready_at(claimed, clock::ticks());
}

/// Does the same for a caller that has just read the clock.
#[inline]
pub(super) fn ready_at(claimed: Claimed, now: u64) {
    match claimed.waiter.inbox() {
        None => claimed.set_event(),
        Some(inbox) => wake_from(here().as_deref(), claimed.kept(), inbox, now),
    }
}

/// Does what [`ready`] does, for a caller that has found where it runs.
#[inline(never)]
pub(crate) fn ready_from(here: Option<&Scheduler>, claimed: Claimed) {
    match claimed.waiter.inbox() {
        None => claimed.set_event(),
        Some(inbox) => wake_from(here, claimed.kept(), inbox, clock::ticks()),
    }
}

#[inline]
fn wake_from(here: Option<&Scheduler>, waiter: &'static Waiter, inbox: &'static Inbox, now: u64) {
    match here {
        Some(scheduler) if std::ptr::eq(scheduler.inbox, inbox) && !waiter.is(State::Running) => {
            scheduler.with(|core| core.wake(waiter, now));
        }
        other => wake_elsewhere(other, waiter, inbox, now),
    }
}

/// Wakes a worker of another scheduler, or the caller itself. `here` is where the caller runs.
#[inline(never)]
fn wake_elsewhere(
    here: Option<&Scheduler>,
    waiter: &'static Waiter,
    inbox: &'static Inbox,
    now: u64,
) {
    inbox.prefetch();
    if let Some(scheduler) = here {
        let worker = waiter.worker.load(Ordering::Relaxed);
        let whose = inbox.number.load(Ordering::Relaxed);
        scheduler.with(|core| core.record_at(RingEvent::Wake, worker, whose, now));
    }
    waiter.signalled.store(now, Ordering::Relaxed);
    waiter.record.spans.woken();
    inbox.push(waiter);
}

impl Waiter {
    /// Returns whether this is a worker of the scheduler with this inbox, and has parked there. The
    /// caller has that scheduler's baton.
    #[inline]
    pub(super) fn is_parked_at(&self, inbox: &'static Inbox) -> bool {
        self.inbox().is_some_and(|home| std::ptr::eq(home, inbox))
            && self.is(State::Waiting)
            // One that may run without the baton must be claimed first (`Kind::can_resume`).
            && !self.record.thread().is_some_and(|thread| thread.lending.is_lendable())
    }
}

impl Core {
    /// Makes a worker of this scheduler, whose wait has ended, runnable.
    #[inline(always)]
    pub(super) fn wake(&mut self, waiter: &'static Waiter, now: u64) {
        waiter.signalled.store(now, Ordering::Relaxed);
        waiter.record.spans.woken();
        let worker = waiter.worker.load(Ordering::Relaxed);
        self.record_at(RingEvent::Wake, worker, self.number, now);
        self.workers.wake(worker, now);
    }

    /// Takes everything out of the inbox: workers whose wait another thread has ended, workers that
    /// rejoin the scheduler, and letters. Returns the time, in ticks, if there were only workers;
    /// otherwise 0.
    pub(super) fn take_inbox(&mut self, scheduler: &Scheduler) -> u64 {
        if scheduler.inbox.is_empty() {
            return 0;
        }
        let mut now = clock::ticks();
        scheduler.inbox.take_all(|waiter| {
            // The thread that pushed the waiter has stored the time of the signal.
            let worker = waiter.worker.load(Ordering::Relaxed);
            let home = waiter.is(State::Preemptive);
            let event = if home { RingEvent::Home } else { RingEvent::Arrive };
            self.record_at(event, worker, 0, now);
            self.workers.wake(worker, now);
        });
        for letter in scheduler.inbox.letters() {
            now = 0;
            match letter {
                Letter::CancelIo(token) => self.cancel_io(token),
                Letter::CancelRequest { worker, request } => self.cancel_request(worker, request),
                Letter::CancelAccepts => self.cancel_accepts(scheduler),
                // What the routine refers to was taken out of it before the letter was sent.
                Letter::DoNotCall(timer) => drop(self.do_not_call(TimerId::from_bits(timer))),
                Letter::LookAgain => {}
            }
        }
        now
    }

    /// Cancels the requests whose workers wait for a connection. A request that works for a
    /// connection is left alone: its worker does not wait for one, and that cannot change
    /// meanwhile, because the caller holds the baton.
    #[cold]
    fn cancel_accepts(&mut self, scheduler: &Scheduler) {
        for waiter in scheduler.left_over().into_iter().filter(|waiter| Scheduler::accepts(waiter))
        {
            let worker = waiter.worker.load(Ordering::Relaxed);
            self.cancel_request(worker, waiter.record.view.request.load(Ordering::Relaxed));
        }
    }

    /// Cancels the request of a worker, if the worker still carries it out: requests begin and end
    /// under the baton, which the caller holds.
    pub(super) fn cancel_request(&mut self, worker: WorkerId, request: RequestId) {
        let Some(waiter) = self.workers.find(worker) else { return };
        if waiter.record.view.request.load(Ordering::Relaxed) != request {
            return;
        }
        let Cancelled { claimed, io } = cancel_waiter(waiter);
        if let Some(claimed) = claimed {
            self.wake(claimed.kept(), clock::ticks());
        }
        if let Some((_, token)) = io {
            self.cancel_io(token);
        }
    }
}

impl Scheduler {
    /// Returns whether a worker waits for a connection, for a request.
    pub(crate) fn accepts(waiter: &'static Waiter) -> bool {
        let reason = waiter.reason.load(Ordering::Relaxed) as usize;
        waiter.is(State::Waiting)
            && reason == WaitReason::NETWORK_ACCEPT.index()
            && waiter.record.view.request.load(Ordering::Relaxed) != 0
    }
}
