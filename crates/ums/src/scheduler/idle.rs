//! The idle loop: sleeps until something happens, in one system call.
//!
//! A worker that finds nothing to run sleeps in the I/O driver's wait, with the next timer as the
//! timeout. Two protocols ensure that nothing is missed before the sleep begins: that of os/asleep
//! for pushes onto the inbox, and that of scheduler/peers (S1 to S4) for requests in the work
//! queues. Both require an announcement and then another look; both announcements are made here,
//! before the last look.

use std::sync::atomic::Ordering;

use super::{Core, ExecutionContext, PeersUnnotified, Scheduler, WorkerKind};
use crate::os::clock;
use crate::os::planted::{self, Bug};
use crate::os::threads::point;
use crate::record::counters::add;
use crate::record::event_ring::RingEvent;
use crate::scheduler::lists::worker_list::{STANDBY, State};
use crate::scheduler::lists::{NOBODY, WorkerId};

/// The longest sleep while threads that were told to end have not ended: they do not announce that
/// they have ended.
const JOIN_AGAIN_AFTER_NS: u64 = 10_000_000;

impl Scheduler {
    /// Called when nothing can run. Ends a worker, steals a request, or sleeps once. The caller
    /// then looks for work again.
    #[cold]
    pub(super) fn idle(&self, me: WorkerId) {
        point("idle");
        if self.stop.load(Ordering::Acquire) && me != STANDBY && self.quiescent() {
            // The standby takes the scheduler down. It retires this worker where it is parked.
            return self.switch_to(STANDBY);
        }
        if self.trim(me) {
            return;
        }
        let ending = self.join_the_ended();
        if let Some(end) = self.with(|core| core.awake_until(self))
            && self.spin(end)
        {
            return;
        }
        let announced = self.takes_requests();
        if announced {
            self.peers.announce_idle(self.index);
        }
        self.inbox.announce_sleep();
        point("idle: announced");
        if self.may_sleep(announced) {
            point("idle: looked");
            add(&self.counters.idle_switches, 1);
            let since = clock::ticks();
            self.counters.asleep_since.store(since, Ordering::Relaxed);
            self.with(|core| {
                core.record(RingEvent::Sleep, me, 0);
                let timeout = core.sleep_for(self);
                let again = ending.then_some(JOIN_AGAIN_AFTER_NS);
                let timeout = timeout.into_iter().chain(again).min();
                core.driver.wait(timeout, &mut core.done);
                core.turn_at = clock::ticks();
                core.record(RingEvent::Awake, me, 0);
                self.counters.asleep_since.store(0, Ordering::Relaxed);
                add(&self.counters.idle_ticks, core.turn_at.saturating_sub(since));
            });
        }
        // Withdraws both announcements. If another thread has withdrawn one before, it did so
        // because of something to do, perhaps a request that this scheduler will not get to. Then
        // the peers must be notified (scheduler/peers).
        if self.inbox.awake() {
            self.must_notify(PeersUnnotified::Own);
        }
        if announced && self.peers.busy(self.index) {
            self.must_notify(PeersUnnotified::Any);
        }
        super::alarm::stir();
        self.stir_place();
    }

    /// Looks for work several times before sleeping. Other threads of this processor may run in
    /// between, because one of them may be about to send what a worker waits for. Returns true if
    /// there is something to do.
    #[cold]
    fn spin(&self, end: u64) -> bool {
        while clock::now() < end {
            let news = self.with(|core| {
                core.driver.wait(Some(0), &mut core.done);
                core.turn_at = clock::ticks();
                !self.quiet(core) || (self.queue.len() > 0 && self.can_start(core))
            });
            if news {
                return true;
            }
            crate::os::threads::yield_now();
        }
        self.with(|core| core.holder_due = 0);
        false
    }

    /// Returns whether this scheduler would take a request from a peer: only if it could start it.
    fn takes_requests(&self) -> bool {
        self.options.steal
            && self.online.load(Ordering::Relaxed)
            && self.with(|core| self.can_start(core))
    }

    /// The last look before sleeping (S3). The inbox, and the idle mask if this scheduler takes
    /// requests, say already that it sleeps. Returns false if there is something to do.
    fn may_sleep(&self, announced: bool) -> bool {
        if planted::is(Bug::OneSidedWakeCheck) {
            return !self.stop_now();
        }
        if !self.inbox.is_empty() || self.stop_now() {
            return false;
        }
        let startable = self.queue.len() > 0 && self.with(|core| self.can_start(core));
        if startable || self.takes_requests() != announced {
            return false;
        }
        if announced {
            return !self.steal();
        }
        // This scheduler is offline or has no free worker: an idle peer may take what is queued.
        self.tell_peers();
        true
    }

    /// Takes an unstarted request from another scheduler. Returns false if there is none. The
    /// caller has announced that this scheduler is idle, so this is also the look that must follow
    /// the announcement.
    fn steal(&self) -> bool {
        let Some(request) = self.peers.steal(self) else {
            self.peers_unnotified.set(PeersUnnotified::Nothing);
            return false;
        };
        // There may be more requests, and this scheduler takes none before it has run this one.
        self.must_notify(PeersUnnotified::Any);
        self.record(RingEvent::Steal, STANDBY, request.state().id as u32);
        if let Err(request) = self.queue.adopt(request) {
            // The node is shutting down: the request will not run anywhere.
            self.count_ended();
            self.in_a_turn(move || request.abandon().into_iter().for_each(super::ready));
        }
        true
    }

    fn stop_now(&self) -> bool {
        self.stop.load(Ordering::Acquire) && self.quiescent()
    }

    /// Returns whether every worker is idle (none runs, waits, or is preemptive) and no request is
    /// queued.
    pub(super) fn quiescent(&self) -> bool {
        self.with(|core| core.workers.idle.len as usize == core.workers.count())
            && self.queue.len() == 0
    }

    /// Sleeps on the driver for at most this many nanoseconds.
    pub(super) fn sleep_at_most(&self, ns: u64) {
        self.inbox.announce_sleep();
        if self.inbox.is_empty() {
            self.with(|core| {
                let timeout = core.sleep_for(self).map_or(ns, |t| t.min(ns));
                core.driver.wait(Some(timeout), &mut core.done);
                core.turn_at = clock::ticks();
            });
        }
        if self.inbox.awake() {
            self.must_notify(PeersUnnotified::Own);
        }
        super::alarm::stir();
    }

    /// Ends the worker that has been idle longest, if it has been idle too long and enough workers
    /// remain. Returns true if it did; the caller looks for work again, because this took time.
    fn trim(&self, me: WorkerId) -> bool {
        let victim = self.with(|core| {
            let oldest = core.oldest_idle(me)?;
            (core.trim_in(self, oldest) == 0).then_some(oldest)
        });
        let Some(victim) = victim else { return false };
        self.retire(victim);
        true
    }

    /// Ends an idle worker. A fiber is resumed once more to run to its end.
    pub(super) fn retire(&self, victim: WorkerId) {
        let kind = self.options.kind;
        let counted = !planted::is(Bug::CounterDrift);
        add(&self.counters.workers_retired, u64::from(counted));
        self.with(|core| core.workers.shift(victim, State::Idle, State::Retired, 0));
        self.roster.lock().remove(&victim);
        if kind == WorkerKind::Fiber {
            return self.switch_to(victim);
        }
        // Its thread sees Retired, gives its waiter back and ends without touching the core.
        let (waiter, execution) = self.with(|core| core.workers.remove(victim));
        let handle = match execution {
            ExecutionContext::Thread(handle) => {
                waiter.event.set();
                handle
            }
            ExecutionContext::Own(own) => Some(own.end()),
            ExecutionContext::Fiber(..) => None,
        };
        self.graves.lock().extend(handle);
    }
}

impl Core {
    /// Returns the worker that has been idle longest, except the host of the idle loop.
    fn oldest_idle(&mut self, me: WorkerId) -> Option<WorkerId> {
        let head = self.workers.idle.head;
        let oldest = if head == me && head != NOBODY { self.workers.get(head).next } else { head };
        (oldest != NOBODY).then_some(oldest)
    }

    /// Returns the nanoseconds until this idle worker may be trimmed; `u64::MAX` for never.
    fn trim_in(&mut self, scheduler: &Scheduler, id: WorkerId) -> u64 {
        let worker = self.workers.get(id);
        let idle_for = clock::ticks_to_ns(clock::ticks().saturating_sub(worker.since));
        if self.workers.count() > scheduler.options.limit.hard {
            return crate::os::limits::TRIM_RESERVE_AFTER_NS.saturating_sub(idle_for);
        }
        if self.workers.count() > scheduler.options.limit.soft {
            let after =
                crate::os::limits::TRIM_BEYOND_SOFT_AFTER_NS.min(scheduler.options.trim_after_ns);
            return after.saturating_sub(idle_for);
        }
        if self.workers.count() <= scheduler.options.workers_floor {
            return u64::MAX;
        }
        scheduler.options.trim_after_ns.saturating_sub(idle_for)
    }

    /// Returns until when to look for work before sleeping, or None for not at all. The time is as
    /// configured, or ends when the next request of a user that holds a lock is due, because others
    /// wait for that lock. This pays where a client answers sooner than a sleeping thread wakes up.
    fn awake_until(&self, scheduler: &Scheduler) -> Option<u64> {
        let spin = scheduler.options.idle_spin_ns;
        let asked = if spin > 0 { clock::now().saturating_add(spin) } else { 0 };
        Some(self.holder_due.max(asked)).filter(|end| *end > 0)
    }

    /// Called when the next read of a user that holds what others wait for is pending. Its next
    /// request is expected within this many nanoseconds.
    pub(crate) fn expect_holder(&mut self, within: u64) {
        self.holder_due = clock::now().saturating_add(within);
    }

    /// Returns how many nanoseconds to sleep: until the next timer, the next trim, the next attempt
    /// to create a worker, or the next look at the limits. Returns None for no timeout.
    fn sleep_for(&mut self, scheduler: &Scheduler) -> Option<u64> {
        let now = clock::now();
        let timer = self.timers.next_expiry().map_or(u64::MAX, |t| t.saturating_sub(now));
        let me = self.current;
        let trim = self.oldest_idle(me).map_or(u64::MAX, |id| self.trim_in(scheduler, id));
        let create = match std::mem::take(&mut self.create_again) {
            0 => u64::MAX,
            // The pause has ended since the last look, when it kept queued requests from starting.
            // So if requests are queued, this must not sleep.
            at if at <= now => [u64::MAX, 0][usize::from(scheduler.queue.len() > 0)],
            at => {
                self.create_again = at;
                at - now
            }
        };
        let still = scheduler.look_again_in(self, now);
        let least = timer.min(trim.max(1)).min(create).min(still);
        (least != u64::MAX).then_some(least)
    }
}
