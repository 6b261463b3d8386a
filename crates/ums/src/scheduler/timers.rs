//! Timers of a scheduler: sets them, checks without a system call whether any is due, and handles
//! those that have expired.

use super::{Core, Scheduler, Timed};
use crate::os::clock;
use crate::os::limits;
use crate::os::planted::{self, Bug};
use crate::record::counters::set;
use crate::scheduler::lists::io_list::CompletionRoutine;
use crate::scheduler::lists::timer_list::{TimerId, TimerList};
use crate::wait::Outcome;

/// The memory of so many sleepers is fetched ahead, while those before them are woken.
const AHEAD: usize = 8;

impl Core {
    /// Returns whether no timer is due. `now` is as for [`Scheduler::quiet`].
    #[inline]
    pub(super) fn timers_are_quiet(&mut self, now: u64) -> bool {
        self.timers.is_empty()
            || clock::ticks_or(now) < self.timers_sleep_until
            || !self.timers_need_a_look()
    }

    /// Reads the clock and returns whether a timer is due. If none is, notes until when the clock
    /// need not be read again.
    #[cold]
    pub(super) fn timers_need_a_look(&mut self) -> bool {
        let (ticks, now) = (clock::ticks(), clock::now());
        let due = self.timers.due(now);
        if !due {
            let left = self.timers.bound() - now;
            self.timers_sleep_until = ticks.saturating_add(clock::ticks_within(left));
        }
        due
    }

    /// Sets a timer.
    #[inline]
    pub(crate) fn set_timer(&mut self, deadline: u64, timed: Timed) -> TimerId {
        if deadline < self.timers.bound() {
            self.timers_sleep_until = 0;
        }
        self.timers.insert(deadline, timed)
    }

    /// Sets a timer that calls a routine, as the completion of an I/O request does. The routine's
    /// argument has no meaning. If the scheduler ends before the deadline, the routine is called
    /// then.
    pub(crate) fn call_at(&mut self, deadline: u64, routine: CompletionRoutine) -> TimerId {
        let at = self.timed_routines.vacant_key();
        let timer = self.set_timer(deadline, Timed::Call(at as u32));
        self.timed_routines.insert((timer, routine));
        timer
    }

    /// Takes a timer of [`call_at`](Core::call_at) off the list, if it has not expired. The caller
    /// drops its routine, after the borrow of the lists.
    pub(crate) fn do_not_call(&mut self, timer: TimerId) -> Option<CompletionRoutine> {
        match self.timers.cancel(timer)? {
            Timed::Call(at) => Some(self.timed_routines.remove(at as usize).1),
            Timed::Wait(_) | Timed::Io(_) => unreachable!("the timer was set to call a routine"),
        }
    }

    /// Takes all timers that call routines off the list, because the scheduler ends, and queues
    /// their routines. Returns whether there were any.
    pub(super) fn call_all_now(&mut self) -> bool {
        for (timer, routine) in self.timed_routines.drain() {
            self.timers.cancel(timer);
            self.routines.push_back((routine, 0));
        }
        !self.routines.is_empty()
    }

    /// Takes expired timers off the list. Workers whose wait has timed out become runnable; I/O
    /// requests are cancelled; routines are queued, to be run when the lists are not borrowed.
    pub(super) fn expire(&mut self, scheduler: &Scheduler) {
        if self.timers.is_empty() {
            return;
        }
        let now = clock::now();
        let now = now + u64::from(planted::is(Bug::TimerOffByOne));
        set(&scheduler.counters.last_timer_look, now as usize);
        if !self.timers.due(now) {
            return;
        }
        let mut expired = Vec::new();
        self.timers.expire(now, |t| expired.push(t));
        let ticks = clock::ticks();
        for (n, timed) in expired.iter().enumerate() {
            if let Some(Timed::Wait(ahead)) = expired.get(n + AHEAD) {
                ahead.prefetch();
            }
            if let Some(Timed::Wait(ahead)) = expired.get(n + AHEAD / 2) {
                self.workers.prefetch(ahead.worker());
            }
            match *timed {
                Timed::Wait(ticket) => {
                    if let Some(claimed) = ticket.claim(Outcome::TimedOut) {
                        self.wake(claimed.kept(), ticks);
                    }
                }
                Timed::Io(token) => self.cancel_io(token),
                Timed::Call(at) => {
                    let (_, routine) = self.timed_routines.remove(at as usize);
                    self.routines.push_back((routine, 0));
                }
            }
        }
    }
}

/// Returns for how long an idle scheduler with these timers sleeps at least, although one is due
/// sooner. It is 0 unless there are at least a thousand, of which many are due soon. Otherwise the
/// scheduler would sleep and wake up for each of them, which costs more than all else that it does
/// for a timer.
pub(super) fn slack<T: Copy>(timers: &TimerList<T>) -> u64 {
    let thousands = if timers.is_crowded() { timers.len() as u64 / 1000 } else { 0 };
    thousands.saturating_mul(limits::TIMER_SLACK_NS).min(limits::TIMER_SLACK_MAX_NS)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::Node;
    use crate::scheduler::here;

    /// Returns the slack of so many timers, the first half of which are due at intervals of this
    /// many nanoseconds, and the others much later.
    fn slack_of(timers: u64, interval: u64) -> u64 {
        let mut list = TimerList::new(0);
        for n in 0..timers {
            list.insert(n * interval + if n < timers / 2 { 0 } else { 1 << 40 }, ());
        }
        slack(&list)
    }

    #[test]
    fn only_many_timers_of_which_many_are_due_soon_have_slack_and_never_more_than_the_most() {
        let close = [0, 1, 999, 1000, 10_000].map(|timers| slack_of(timers, 10_000));
        assert_eq!(close, [0, 0, 0, 10_000, 100_000]);
        let most = limits::TIMER_SLACK_MAX_NS;
        assert_eq!([50_000, 51_000].map(|timers| slack_of(timers, 10_000)), [most; 2]);
        assert_eq!([1000, 50_000].map(|timers| slack_of(timers, 100_000)), [0; 2]);
    }

    #[test]
    fn one_timer_that_is_due_soon_has_no_slack_among_many_that_are_due_later() {
        const SLOT: u64 = 1 << 14;
        for slot in 0..64 {
            let now = slot * SLOT;
            let mut list = TimerList::new(now);
            (0..50_000).for_each(|n| _ = list.insert((1 << 40) + n, ()));
            list.insert(now + SLOT, ());
            assert_eq!(slack(&list), 0, "{slot}");
        }
    }

    #[test]
    fn a_turn_does_not_read_the_clock_long_before_the_next_timer_may_be_due() {
        const HOUR: u64 = 3_600_000_000_000;
        let node = Node::builder().schedulers(1).take_over_blocked(false).build().unwrap();
        node.run(|| {
            // The rate of the ticks is known when the process has run for a moment.
            while clock::ticks_within(HOUR) == 0 {
                std::hint::spin_loop();
            }
            let here = here().expect("it runs on a worker");
            let (is_quiet, until, routine) = here.with(|core| {
                let timer = core.call_at(clock::now() + HOUR, Box::new(|_| ()));
                (core.timers_are_quiet(0), core.timers_sleep_until, core.do_not_call(timer))
            });
            drop(here);
            assert!(is_quiet && routine.is_some(), "it is not due");
            let left = clock::ticks_to_ns(until.saturating_sub(clock::ticks()));
            assert!(left > HOUR / 2, "in {left} ns the clock is read again");
        });
    }
}
