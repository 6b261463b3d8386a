//! The idle loop: polls for work for some microseconds if that pays, and then sleeps until
//! something happens, in one system call.
//!
//! A worker that finds nothing to run first polls (`spin`), if another scheduler of the node may be
//! about to send something. A scheduler that polls is awake to others: a push costs them no system
//! call, and none is needed, because the protocols below begin after the poll.
//!
//! Then it sleeps in the I/O driver's wait, with the next timer as the timeout, or with the end of
//! its pause if it leaves requests to its peers for the moment (scheduler/steal). Two protocols
//! ensure that nothing is missed before the sleep begins: that of os/asleep for pushes onto the
//! inbox, and that of scheduler/peers (S1 to S4) for requests in the work queues. Both require an
//! announcement and then another look; both announcements are made here, before the last look.

use std::sync::atomic::Ordering;

use super::spin::Poll;
use super::steal::Stolen;
use super::{Core, PeersUnnotified, Scheduler};
use crate::os::clock;
use crate::os::planted::{self, Bug};
use crate::os::threads::{self, point};
use crate::record::counters::add;
use crate::record::event_ring::RingEvent;
use crate::scheduler::lists::worker_list::{STANDBY, State};
use crate::scheduler::lists::{NO_WORKER, WorkerId};

/// The longest sleep while threads that were told to end have not ended: they do not announce that
/// they have ended.
const JOIN_AGAIN_AFTER_NS: u64 = 10_000_000;

/// For how long an adaptive poll only loads, before the scheduler is announced as idle and asks the
/// driver, each time.
const LOADS_NS: u64 = 5_000;
/// How many rounds of a poll pass between two looks at the clock, the timers and the driver.
const ROUNDS: u32 = 8;

/// How long a sleep may take.
#[derive(Clone, Copy)]
enum Sleep {
    UntilWoken,
    /// So many nanoseconds.
    AtMost(u64),
}

impl Sleep {
    const fn at_most(self) -> Option<u64> {
        match self {
            Sleep::UntilWoken => None,
            Sleep::AtMost(ns) => Some(ns),
        }
    }
}

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
        self.judge_steal();
        if self.trim(me) {
            return;
        }
        let ending = self.join_the_ended();
        let mut announced = false;
        if !self.spin(&mut announced) {
            announced |= self.takes_requests();
            self.sleep(me, announced, ending);
        } else if !announced && self.host_goes_on(me) {
            return;
        }
        // Withdraws both announcements. If another thread has withdrawn one before, it did so
        // because of something to do, perhaps a request that this scheduler will not get to. Then
        // the peers must be notified (scheduler/peers).
        if announced && self.peers.busy(self.index) {
            self.must_notify(PeersUnnotified::Any);
        }
    }

    /// Sleeps once, unless there is something to do. Withdraws the announcement at the inbox.
    #[cold]
    fn sleep(&self, me: WorkerId, announced: bool, ending: bool) {
        if announced {
            self.peers.announce_idle(self.index);
        }
        // Until here this scheduler was awake, even if it has polled, so a push has written no
        // event. From here on a push writes one (os/asleep); the last look finds everything that
        // was pushed before.
        self.inbox.announce_sleep();
        point("idle: announced");
        if let Some(sleep) = self.may_sleep(announced) {
            point("idle: looked");
            add(&self.counters.idle_switches, 1);
            let since = clock::ticks();
            self.counters.asleep_since.store(since, Ordering::Relaxed);
            self.with(|core| {
                core.record(RingEvent::Sleep, me, 0);
                let timeout = core.sleep_for(self);
                let again = ending.then_some(JOIN_AGAIN_AFTER_NS);
                let timeout = timeout.into_iter().chain(again).chain(sleep.at_most()).min();
                core.driver.wait(timeout, &mut core.done);
                core.turn_at = clock::ticks();
                core.spin.left = core.turn_at;
                core.record(RingEvent::Awake, me, 0);
                self.counters.asleep_since.store(0, Ordering::Relaxed);
                add(&self.counters.idle_ticks, core.turn_at.saturating_sub(since));
            });
        }
        if self.inbox.awake() {
            self.must_notify(PeersUnnotified::Own);
            self.with(|core| core.spin.sent = true);
        }
        super::alarm::stir();
        self.stir_place();
    }

    /// Polls for work before sleeping, if that pays or was asked for. Returns true if there is
    /// something to do. Sets `announced` if it has set this scheduler's bit in the idle mask.
    ///
    /// An adaptive poll first only loads: no system call, no lock. Later, and from the start of a
    /// poll that was asked for, the bit is set, so that busy peers pass their requests on.
    ///
    /// In a poll that was asked for, other threads of this processor may run in between, because
    /// one of them may be about to send the data that a worker waits for. An adaptive poll does not
    /// yield the processor: it is so short that others can wait, and a thread that has yielded gets
    /// the processor back later than one that has slept.
    #[cold]
    fn spin(&self, announced: &mut bool) -> bool {
        let (span, charged) = self.with(|core| {
            if let Some(poll) = core.spin.uncounted.take() {
                self.count_poll(core, poll, true);
            }
            core.spin_for(self)
        });
        if span == 0 {
            return false;
        }
        if self.has_news() || self.take_overdue() {
            self.with(|core| core.turn_at = clock::ticks());
            return true;
        }
        // A peer may wait for the effect of requests that were submitted in a batch.
        let mut found = self.with(|core| core.poll_driver(true)) || self.has_news();
        let loads = if charged { LOADS_NS } else { 0 };
        let (mut now, mut late_at) = (clock::ticks(), loads);
        let mut poll = Poll::new(charged);
        // The wait of the host is probably the next that ends, because it was the last that began.
        // Then its lines come together with that of the inbox.
        let host = self.current_waiter();
        while !found && poll.polled < span && !self.stop.load(Ordering::Relaxed) {
            found = (0..ROUNDS).any(|_| {
                threads::pause();
                host.prefetch();
                !self.inbox.is_empty() || (!self.queue.is_empty() && self.has_news())
            });
            let late = !found && poll.polled >= late_at;
            if late && !charged {
                threads::yield_now();
            }
            late_at = if late { poll.polled + loads } else { late_at };
            found = found
                || self.with(|core| core.poll_driver(late))
                || self.has_news()
                || ((late || *announced) && self.find_request(announced));
            let before = std::mem::replace(&mut now, clock::ticks());
            poll.last = now.saturating_sub(before);
            if !found && poll.end_round() {
                // Other threads need this processor, so this one sleeps.
                break;
            }
        }
        self.with(|core| {
            (core.turn_at, core.spin.left) = (now, now);
            core.spin.sent |= !self.inbox.is_empty() || !self.queue.is_empty();
            if found {
                core.spin.uncounted = Some(poll);
            } else {
                core.holder_due = 0;
                self.count_poll(core, poll, false);
            }
        });
        found
    }

    /// Counts a poll, and charges for it.
    fn count_poll(&self, core: &mut Core, mut poll: Poll, found: bool) {
        if poll.end_round() {
            core.spin.give_up();
        }
        add(&self.counters.idle_spins, 1);
        add(&self.counters.idle_spins_paid, found.into());
        add(&self.counters.idle_spin_ns, poll.polled);
        if poll.charged {
            add(&self.counters.idle_spin_charged_ns, core.spin.charge(poll.polled, found));
        }
    }

    /// Called after a poll, whose last reading of the clock is `turn_at`. If all that has happened
    /// is that the wait of the host has ended, does what the whole turn would do: the host, which
    /// is worker `me`, is Running. Otherwise changes nothing and returns false.
    #[cold]
    fn host_goes_on(&self, me: WorkerId) -> bool {
        let host = self.current_waiter();
        // The letters and requests that were sent before the wake-up are seen after this.
        let alone = self.inbox.has_only(host)
            && self.inbox.has_no_letters()
            && host.is_parked_at(self.inbox)
            && self.queue.is_empty()
            && self.peers_unnotified.get() == PeersUnnotified::Nothing;
        let goes_on = alone
            && self.with(|core| {
                let now = core.turn_at;
                // Only the host is ready, so choosing it passes over nothing.
                let first = core.workers.runnable() == 0
                    && core.awaited.is_none()
                    && !core.fairness.goes_by_age()
                    && (core.has_any() == 0 || core.nothing_is_due(now))
                    && self.inbox.take_only(host);
                if first {
                    let events = [(RingEvent::Arrive, me, 0), (RingEvent::Switch, me, 0)];
                    core.record_all(events, now);
                    core.workers.resume(me);
                    core.begin_turn(self, now);
                    self.publish_at_times(core);
                }
                first
            });
        if goes_on {
            self.check();
        }
        goes_on
    }

    /// Returns whether a turn would find something to do. Makes no system call.
    fn has_news(&self) -> bool {
        self.with(|core| !self.quiet(core, 0) || (!self.queue.is_empty() && self.can_start(core)))
    }

    /// The last look before sleeping (S3). The inbox, and the idle mask if this scheduler takes
    /// requests, say already that it sleeps. Returns None if there is something to do, and else how
    /// long the sleep may take.
    fn may_sleep(&self, announced: bool) -> Option<Sleep> {
        if planted::is(Bug::OneSidedWakeCheck) {
            return (!self.stop_now()).then_some(Sleep::UntilWoken);
        }
        if !self.inbox.is_empty() || self.stop_now() {
            return None;
        }
        let startable = !self.queue.is_empty() && self.with(|core| self.can_start(core));
        if startable || self.takes_requests() != announced {
            return None;
        }
        if announced {
            // An enqueuer that has taken the bit before this scheduler had announced its sleep has
            // written no event. No other enqueuer would find this scheduler, so it must not sleep.
            // (If the bit is taken later than this look, the taker finds the announcement at the
            // inbox: it takes the bit, fences and reads the flag; here the flag was set first.)
            return match self.steal() {
                Stolen::One => None,
                Stolen::None => self.peers.is_idle(self.index).then_some(Sleep::UntilWoken),
                Stolen::Later(ns) => {
                    // No peer is to wake this scheduler for a request before that. Another idle
                    // one may take what this one has seen.
                    self.peers.busy(self.index);
                    self.peers.wake_one(self.index);
                    Some(Sleep::AtMost(ns))
                }
            };
        }
        // This scheduler is offline or has no free worker: an idle peer may take the queued
        // requests.
        self.tell_peers();
        Some(Sleep::UntilWoken)
    }

    fn stop_now(&self) -> bool {
        self.stop.load(Ordering::Acquire) && self.quiescent()
    }

    /// Returns whether every worker is idle (none runs, waits, or is preemptive) and no request is
    /// queued.
    pub(super) fn quiescent(&self) -> bool {
        self.with(|core| core.workers.idle.len as usize == core.workers.count())
            && self.queue.is_empty()
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

    /// Ends an idle worker.
    pub(super) fn retire(&self, victim: WorkerId) {
        let counted = !planted::is(Bug::CounterDrift);
        add(&self.counters.workers_retired, u64::from(counted));
        self.with(|core| core.workers.shift(victim, State::Idle, State::Retired, 0));
        self.roster.lock().remove(victim);
        self.options.kind.retire(self, victim);
    }
}

impl Core {
    /// Returns the worker that has been idle longest, except the host of the idle loop.
    fn oldest_idle(&mut self, me: WorkerId) -> Option<WorkerId> {
        let head = self.workers.idle.head;
        let oldest =
            if head == me && head != NO_WORKER { self.workers.get(head).next } else { head };
        (oldest != NO_WORKER).then_some(oldest)
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

    /// Returns for how many nanoseconds to poll before sleeping, and whether the poll is charged to
    /// the budget. The time is as configured, or as long as polling pays (`spin`), or until the
    /// next request of a user that holds a lock is due, because others wait for that lock. This
    /// pays where a client answers sooner than a sleeping thread wakes up.
    fn spin_for(&mut self, scheduler: &Scheduler) -> (u64, bool) {
        if scheduler.stop.load(Ordering::Relaxed) {
            return (0, false);
        }
        let span = scheduler.options.idle_spin_ns.unwrap_or_else(|| {
            let turns = scheduler.counters.turns.load(Ordering::Relaxed);
            let peer_ran = |next: &mut usize| scheduler.peers.ran_last(scheduler.index, next);
            self.spin.span(clock::ticks(), turns, peer_ran)
        });
        let adaptive = scheduler.options.idle_spin_ns.is_none();
        if self.holder_due == 0 {
            return (span, adaptive);
        }
        let holder = self.holder_due.saturating_sub(clock::now());
        self.holder_due = if holder > 0 { self.holder_due } else { 0 };
        (span.max(holder), adaptive && holder == 0)
    }

    /// Looks for completed I/O, which `has_news` then finds. If nothing seems to have completed,
    /// and `must` is false, it only loads. Returns true if there is something.
    fn poll_driver(&mut self, must: bool) -> bool {
        if self.io.outstanding() > 0 && (must || self.driver.ready(0)) {
            self.driver.wait(Some(0), &mut self.done);
        }
        !self.done.is_empty()
    }

    /// Called when the next read is pending for a user that holds a lock that others wait for. The
    /// user's next request is expected within this many nanoseconds.
    pub(crate) fn expect_holder(&mut self, within: u64) {
        self.holder_due = clock::now().saturating_add(within);
    }

    /// Returns how many nanoseconds to sleep: until the next timer, the next trim, the next attempt
    /// to create a worker, or the next look at the limits. Returns None for no timeout.
    fn sleep_for(&mut self, scheduler: &Scheduler) -> Option<u64> {
        let now = clock::now();
        let timer = self.timers.next_expiry().map_or(u64::MAX, |t| t.saturating_sub(now));
        let timer = timer.max(super::timers::slack(&self.timers));
        let me = self.current;
        let trim = self.oldest_idle(me).map_or(u64::MAX, |id| self.trim_in(scheduler, id));
        let create = match std::mem::take(&mut self.create_again) {
            0 => u64::MAX,
            // The pause has ended since the last look, when it kept queued requests from starting.
            // So if requests are queued, this must not sleep.
            at if at <= now => [u64::MAX, 0][usize::from(!scheduler.queue.is_empty())],
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
