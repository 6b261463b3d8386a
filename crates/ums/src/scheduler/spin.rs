//! The governor: how long an idle scheduler polls for work before it sleeps.
//!
//! To wake a thread that sleeps on another processor costs a system call there, and here some
//! microseconds until the thread runs; on a virtual machine, some tens of microseconds. If the next
//! work comes sooner, polling costs less than sleeping. The governor learns whether it does, as the
//! governor `haltpoll` of Linux does for idle processors:
//!
//! ```text
//!   the last idle period took      the window, which is how long to poll
//!   at most 100 us                 doubles, from 10 us up to 50 us, if another thread ended it
//!   longer                         is halved; below 5 us it becomes 0
//! ```
//!
//! A period that I/O or a timer ended is no reason to poll, because no thread had to wake this
//! scheduler. (A write that completes at once would otherwise make the scheduler poll for the next
//! read.)
//!
//! An idle period ends when a worker runs again, however often the scheduler looked or slept in it.
//!
//! Polling is paid from a *budget*, which grows by 5 % of the time that passes, up to 250 us. Time
//! polled in vain is charged in full. If something was found, the time beyond 5 us is charged,
//! because to sleep and wake up would have cost about 5 us of this processor's time. Without a
//! budget the scheduler sleeps at once. So however wrong the window is, polling costs at most 5 %
//! of the processor's time more than sleeping at once would, and 300 us once. The budget is not for
//! polls of a fixed time (`Builder::idle_spin`), nor for those that expect the next request of a
//! user that holds a resource.
//!
//! The scheduler polls only if another scheduler of its node has run in the last millisecond:
//! otherwise it is unlikely that another processor will soon send it something. It also looks at a
//! few peers only, and not again within that millisecond, because each look fetches memory that a
//! peer writes.

use crate::os::clock;
use crate::os::limits::{
    SPIN_BUDGET_MAX_NS, SPIN_FREE_NS, SPIN_LEAST_NS, SPIN_MAX_NS, SPIN_PEER_RAN_NS,
    SPIN_PERIOD_MAX_NS, SPIN_SHARE,
};

/// The decision, as a function of durations in nanoseconds. It reads no clock.
#[derive(Debug)]
pub(super) struct Governor {
    /// How long to poll; 0 for not at all.
    window: u64,
    /// How much more may be charged; below zero if the last poll took longer than it was allowed.
    budget: i64,
}

impl Governor {
    const fn new() -> Governor {
        Governor { window: 0, budget: 0 }
    }

    /// Adds to the budget the share that it earns in this much time.
    fn earn(&mut self, elapsed: u64) {
        let earned = i64::try_from(elapsed / SPIN_SHARE).unwrap_or(i64::MAX);
        self.budget = self.budget.saturating_add(earned).min(SPIN_BUDGET_MAX_NS as i64);
    }

    /// Learns how long an idle period took, and whether another thread ended it.
    fn learn(&mut self, took: u64, sent: bool) {
        self.window = match self.window {
            window if took <= SPIN_PERIOD_MAX_NS && !sent => window,
            0 if took <= SPIN_PERIOD_MAX_NS => 2 * SPIN_LEAST_NS,
            window if took <= SPIN_PERIOD_MAX_NS => (2 * window).min(SPIN_MAX_NS),
            window if window / 2 < SPIN_LEAST_NS => 0,
            window => window / 2,
        };
    }

    /// Returns how long to poll; 0 for not at all.
    fn span(&self) -> u64 {
        let span = self.window.min(u64::try_from(self.budget).unwrap_or(0));
        if span < SPIN_LEAST_NS { 0 } else { span }
    }

    /// Charges for a poll of this length. Returns the time that was charged.
    fn charge(&mut self, took: u64, found: bool) -> u64 {
        let cost = if found { took.saturating_sub(SPIN_FREE_NS) } else { took };
        self.budget = self.budget.saturating_sub_unsigned(cost);
        cost
    }
}

/// If some rounds of a poll, between two readings of the clock, took longer than this, another
/// thread had the processor in between. The time beyond this was not polled.
const PREEMPTED_NS: u64 = 25_000;

/// A poll.
#[derive(Debug)]
pub(super) struct Poll {
    /// How many nanoseconds it took, without its last rounds.
    pub polled: u64,
    /// How long its last rounds took, in ticks.
    pub last: u64,
    /// Whether another thread had the processor in between.
    preempted: bool,
    /// Whether it is charged to the budget.
    pub charged: bool,
}

impl Poll {
    pub const fn new(charged: bool) -> Poll {
        Poll { polled: 0, last: 0, preempted: false, charged }
    }

    /// Adds the last rounds. Returns whether another thread had the processor in between;
    /// always false for a poll that is not charged.
    pub fn end_round(&mut self) -> bool {
        let most = if self.charged { PREEMPTED_NS } else { u64::MAX };
        let took = clock::ticks_to_ns(std::mem::replace(&mut self.last, 0));
        self.polled += took.min(most);
        self.preempted |= took > most;
        self.preempted
    }
}

/// The governor of one scheduler, with the times that it needs. All times are in ticks.
#[derive(Debug)]
pub(super) struct Spin {
    governor: Governor,
    /// The scheduler's count of turns when the present idle period began.
    turns: u64,
    /// When the present idle period began; 0 before the first one.
    began: u64,
    /// When the scheduler last stopped to poll or to sleep.
    pub left: u64,
    /// Whether another thread has sent something in the present idle period.
    pub sent: bool,
    /// The time until which the budget has been earned.
    earned: u64,
    /// When a peer was last known to run.
    peer_ran: u64,
    /// The peer to look at next.
    pub next_peer: usize,
    /// The last poll, if it has found something and was not counted yet: the worker that has got
    /// something runs first.
    pub uncounted: Option<Poll>,
}

impl Spin {
    pub const fn new() -> Spin {
        let governor = Governor::new();
        let (turns, began, left, earned, peer_ran) = (0, 0, 0, 0, 0);
        let (sent, next_peer, uncounted) = (false, 0, None);
        Spin { governor, turns, began, left, sent, earned, peer_ran, next_peer, uncounted }
    }

    /// Called when nothing can run, at this time and after so many turns. Returns how many
    /// nanoseconds to poll; 0 for not at all. `peer_ran` returns when one of a few peers last ran;
    /// it is called only if the answer depends on it.
    pub fn span(&mut self, now: u64, turns: u64, peer_ran: impl FnOnce(&mut usize) -> u64) -> u64 {
        let since = |then: u64| clock::ticks_to_ns(now.saturating_sub(then));
        if turns != self.turns {
            // A worker has waited or ended since, so it ran, so the period before was over.
            if self.began > 0 {
                let took = clock::ticks_to_ns(self.left.saturating_sub(self.began));
                self.governor.learn(took, self.sent);
            }
            (self.turns, self.began, self.left) = (turns, now, now);
            self.sent = false;
        }
        self.governor.earn(since(self.earned));
        self.earned = now;
        let span = self.governor.span();
        let is_recent = |then: u64| since(then) <= SPIN_PEER_RAN_NS;
        if span > 0 && !is_recent(self.peer_ran) {
            self.peer_ran = peer_ran(&mut self.next_peer);
        }
        if is_recent(self.peer_ran) { span } else { 0 }
    }

    /// Called when another thread has had the processor in the middle of a poll. It needs the
    /// processor more, so there is no poll until an idle period is short again.
    pub const fn give_up(&mut self) {
        self.governor.window = 0;
    }

    /// Charges for a poll of so many nanoseconds. Returns the time that was charged.
    pub fn charge(&mut self, took: u64, found: bool) -> u64 {
        self.governor.charge(took, found)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A governor that has earned its whole budget.
    fn rich() -> Governor {
        let mut governor = Governor::new();
        governor.earn(u64::MAX);
        governor
    }

    #[test]
    fn the_window_grows_while_idle_periods_are_short_and_is_given_up_when_they_are_long_b57() {
        let mut governor = rich();
        let spans = |governor: &mut Governor, took, times| -> Vec<u64> {
            (0..times)
                .map(|_| {
                    governor.learn(took, true);
                    governor.span()
                })
                .collect()
        };
        assert_eq!(governor.span(), 0, "it does not poll before it has learned anything");
        assert_eq!(spans(&mut governor, 1_000_000, 1), [0]);
        assert_eq!(spans(&mut governor, 100_000, 4), [10_000, 20_000, 40_000, 50_000]);
        assert_eq!(spans(&mut governor, 100_001, 5), [25_000, 12_500, 6_250, 0, 0]);
        assert_eq!(spans(&mut governor, 0, 2), [10_000, 20_000], "it comes back");
        governor.learn(0, false);
        assert_eq!(governor.span(), 20_000, "nothing was sent");
        governor.learn(100_001, false);
        assert_eq!(governor.span(), 10_000);
    }

    #[test]
    fn what_a_sleep_would_have_cost_is_free_if_something_was_found_b57() {
        let mut governor = rich();
        assert_eq!(governor.charge(5_000, true), 0);
        assert_eq!(governor.charge(7_000, true), 2_000);
        assert_eq!(governor.charge(7_000, false), 7_000);
        assert_eq!(governor.budget, 250_000 - 9_000);
    }

    #[test]
    fn without_a_budget_it_does_not_poll_b57() {
        let mut governor = Governor::new();
        governor.learn(0, true);
        assert_eq!(governor.span(), 0);
        governor.earn(99_980);
        assert_eq!(governor.span(), 0, "4,999 ns are too short to poll for");
        governor.earn(20);
        assert_eq!(governor.span(), 5_000);
    }

    #[test]
    fn it_polls_only_if_a_peer_has_run_in_the_last_millisecond_b57() {
        // Times from 0.1 s on. Ticks are compared only with ticks.
        let ms = |n: u64| 20 * clock::ticks_within(1_000_000).max(1_000_000) * n;
        let mut spin = Spin::new();
        assert_eq!(spin.span(ms(1), 1, |_| ms(1)), 0, "nothing was learned yet");
        (spin.left, spin.sent) = (spin.began, true);
        assert_eq!(spin.span(ms(2), 2, |_| ms(1)), 0, "the peer ran too long ago");
        (spin.left, spin.sent) = (spin.began, true);
        assert!(spin.span(ms(3), 3, |_| ms(3)) > 0);
        (spin.left, spin.sent) = (spin.began, true);
        let unasked = spin.span(ms(3), 4, |_| panic!("it is known that a peer ran"));
        assert!(unasked > 0);
        (spin.left, spin.sent) = (spin.began, true);
        assert_eq!(spin.span(ms(4), 5, |_| 0), 0);
    }

    #[test]
    fn a_peer_that_ran_exactly_a_millisecond_ago_counts_and_one_a_tick_before_does_not_b57() {
        // From then on the rate of the ticks does not change.
        while clock::known_rate().is_none() {
            clock::rate();
        }
        // The most ticks that are no more than the millisecond.
        let (mut most, mut more) = (0, 1 << 40);
        while more - most > 1 {
            let ticks = most + (more - most) / 2;
            let fits = clock::ticks_to_ns(ticks) <= SPIN_PEER_RAN_NS;
            *if fits { &mut most } else { &mut more } = ticks;
        }
        let span = |ago| {
            let mut spin = Spin { governor: rich(), ..Spin::new() };
            spin.governor.learn(0, true);
            let now = 1 << 50;
            spin.span(now, 0, |_| now - ago)
        };
        assert_eq!([span(most), span(more)], [2 * SPIN_LEAST_NS, 0]);
    }

    #[test]
    fn a_poll_that_loses_its_processor_is_the_last_until_an_idle_period_is_short_b57() {
        let now = 1 << 50;
        let mut spin = Spin { governor: rich(), ..Spin::new() };
        spin.governor.learn(0, true);
        assert!(spin.span(now, 0, |_| now) > 0);
        spin.give_up();
        assert_eq!(spin.span(now, 0, |_| now), 0);
        spin.governor.learn(0, true);
        assert!(spin.span(now, 0, |_| now) > 0);
    }

    #[test]
    fn looks_and_sleeps_of_one_idle_period_count_as_one_b57() {
        let mut spin = Spin::new();
        let long = 1 << 34; // Seconds, whatever a tick is.
        assert_eq!(spin.span(long, 1, |_| 0), 0);
        // It sleeps, is woken for nothing at once, sleeps again, and works after a long time.
        (spin.left, spin.sent) = (long + 1, true);
        assert_eq!(spin.span(long + 1, 1, |_| long), 0);
        (spin.left, spin.sent) = (2 * long, true);
        spin.span(2 * long, 2, |_| 2 * long);
        assert_eq!(spin.governor.window, 0, "the period was long: {spin:?}");
    }

    proptest! {
        /// Idle periods and work of any lengths, and polls that find something or not: what is
        /// charged never exceeds 5 % of the time, beyond the first budget and one poll.
        #[test]
        fn polling_costs_at_most_a_twentieth_of_the_time_b57(
            steps in prop::collection::vec((0u64..200_000, 0u64..200_000, 0u64..2_000), 1..400),
        ) {
            let mut governor = rich();
            let (mut time, mut charged, mut cost) = (0u64, 0u64, 0u64);
            for (work, idle, late) in steps {
                let span = governor.span();
                prop_assert!(span == 0 || (SPIN_LEAST_NS..=SPIN_MAX_NS).contains(&span));
                let found = idle <= span;
                // A poll may overshoot its end a little.
                let took = if span == 0 { 0 } else { idle.min(span) + late };
                let now = governor.charge(took, found);
                prop_assert!(now == took || (found && now + SPIN_FREE_NS >= took));
                charged += now;
                cost += took.saturating_sub(if found { SPIN_FREE_NS } else { 0 });
                governor.learn(idle, late % 8 > 0);
                governor.earn(work + idle);
                time += work + idle;
                let most = time / SPIN_SHARE + SPIN_BUDGET_MAX_NS + SPIN_MAX_NS + 2_000;
                prop_assert!(charged <= most, "{charged} ns of {time} ns");
            }
            prop_assert_eq!(charged, cost);
        }
    }
}
