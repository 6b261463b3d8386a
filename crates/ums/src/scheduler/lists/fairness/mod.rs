//! Fairness: chooses what runs next, among everything that is ready.
//!
//! What is ready is in one of four lines, each first in, first out: queued requests of users that
//! hold a resource, workers whose wait has ended (by a signal, I/O or a timer), workers that
//! yielded, and the other queued requests. The rule:
//!
//! 1. The first line goes before the second, and the second before the other two. Of those two, the
//!    line whose first thing has been ready longer goes first.
//! 2. [`Fairness`] counts the choices that leave something older behind. When it has counted K of
//!    them, a *period* begins in which choices go by age alone: as many choices as there are things
//!    ready, but at most K. It ends before that with the first choice of something that was not
//!    ready when it began. Then it counts from 0 again.
//! 3. A worker that waits for a queued request of its own scheduler starts it at once, and goes on
//!    at once when the request ends. Each of the two is a *choice of a join*. It goes before all
//!    lines except the first. The joiner goes before workers whose wait has ended only if the join
//!    is quick: less than [`WHOLE`] * [`TICKS`] ticks have passed since the last choice of a join
//!    that was counted. A choice of a join that leaves something older behind counts by that time:
//!    [`TICKS`] ticks are one part, [`WHOLE`] parts are a choice, and it counts as one part at
//!    least and as a choice at most. There are no choices of joins while things go by age. A joiner
//!    for which there is none is in the second line like any worker whose wait has ended.
//! 4. If a worker has waited for a request that was quick, and will probably wait for those of the
//!    same code that it has queued right after it, these follow at once, for a short time
//!    (lists/siblings); then the worker goes on at once. Each of these is a choice of a join. It
//!    goes before all lines except the first, and before other workers whose wait has ended only if
//!    the join is quick.
//! 5. A choice that is counted, and is none of a join, counts as one more for each [`LONG`] ticks
//!    of the turn that followed the last such choice.
//! 6. In a period, a queued request is not ready if it is *left to its parent*, the worker that has
//!    queued it: that worker waits for an earlier request of the same kind, which goes on
//!    (scheduler/parents). If nothing else is ready, none is left. Once in [`PERIODS`] periods, the
//!    oldest request is ready all the same.
//!
//! Rules 3 and 6 have a reason. A program that divides its work into a tree of tasks makes millions
//! of joins, each of less than a microsecond. If each counted as a whole choice, a period would
//! come every few hundred microseconds. If a period began all queued tasks of the tree, each of
//! them would wait for its own tasks on a stack of its own, and each further period would add more
//! such stacks. The caches would not hold those in use, and a request that has nothing to do with
//! the tree would be behind thousands of older tasks.
//!
//! **Bound.** Let w become ready when R others are. At most R + K others are chosen before w if R <
//! K, and at most 2R + K in any case, whatever becomes ready meanwhile. Choices that leave a thing
//! behind are counted here as rules 2 to 4 count them; the one that makes a period begin counts as
//! what was left. Proof: while w is ready, each choice of a younger thing is counted, because w is
//! left behind. So at most K choices are counted between two periods. In a period nothing younger
//! than w is chosen. The period reaches w, or it ends after K choices of things older than w, of
//! which there are R; or w was not ready yet when its first turn began, and the next period takes
//! its place. So at most R / K periods end before w is reached, and the younger things chosen are
//! at most K * (R / K + 1), rounded down: K if R < K, and never more than R + K.
//!
//! A request that a worker has queued is ready in this sense only when a period finds it. Usually
//! the next one does. A search passes over [`LOOKS`] rows of requests that are left to their
//! parents in a period, and one over which it has passed is found by the next search; so with n
//! such rows it takes n / [`LOOKS`] periods, or twice as many. A request that is left has no bound
//! of its own. Either the one for which its parent waits ends, and the parent runs; or that does
//! not go on any more, and a search finds the request; or it goes on for long. Then one of those
//! that are left begins in [`PERIODS`] periods, the oldest first.
//!
//! **In time.** While w is ready, each choice of a younger thing is counted. So by rule 5, the
//! turns of K such choices last at most K * [`LONG`] ticks together, and the last of them goes
//! on to its end: for K = 1000 that is 0.09 seconds at 3 GHz. Without that rule a thousand choices
//! would last seconds, if each is of a worker that keeps the scheduler for milliseconds. The turns
//! of older things, which have their time all the same, count nothing. If such a thing is chosen
//! between two that are counted, the turn of the first is not known any more, so at most R turns
//! are added. The bound does not hold for slow joins, nor for turns that end by a yield before
//! which others have yielded, whose length is not known either.
//!
//! Choices of joins that count in parts are more in number, but they are short: a part lasts less
//! than 2 * [`TICKS`] ticks. So K = 1000 choices counted in parts last at most 33 million ticks,
//! which are 11 milliseconds at 3 GHz. In a simulated world, and on other processors than x86-64,
//! a tick is a nanosecond.
//!
//! The proof assumes that no two times are the same, which is true of the processor's counter. In a
//! simulated world two times may be the same; then each counts as older than the other, so that
//! many events at one instant are counted, too. This file does not use what workers or requests
//! are.

/// The parts of a whole choice.
const WHOLE: u32 = 64;

/// The ticks since the last choice of a join that was counted, for which one counts as a part.
const TICKS: u64 = 256;

/// The ticks of a turn that count as one more choice. Turns of usual servers are shorter.
const LONG: u64 = 1 << 18;

/// A line of things that are ready, in the order of preference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Line {
    /// Requests of users that hold a resource (rule 7 of ARCHITECTURE.md).
    Urgent,
    /// Workers whose wait has ended.
    Signalled,
    /// Workers that yielded.
    Yielded,
    /// Other queued requests.
    Queued,
}

/// Since when the first thing of each line has been ready, in ticks; None for an empty line.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ready {
    pub urgent: Option<u64>,
    pub signalled: Option<u64>,
    pub yielded: Option<u64>,
    pub queued: Option<u64>,
}

impl Ready {
    fn since(&self, line: Line) -> Option<u64> {
        match line {
            Line::Urgent => self.urgent,
            Line::Signalled => self.signalled,
            Line::Yielded => self.yielded,
            Line::Queued => self.queued,
        }
    }

    /// Returns the line whose first thing has been ready longest. The least preferred line wins a
    /// tie.
    fn oldest(&self, lines: &[Line]) -> Option<Line> {
        let first = |line: &Line| self.since(*line).map(|since| (since, *line));
        let first = lines.iter().filter_map(first);
        first.min_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1))).map(|(_, line)| line)
    }
}

const ALL: [Line; 4] = [Line::Urgent, Line::Signalled, Line::Yielded, Line::Queued];

/// In one of so many periods, the oldest request begins even if it is left to its parent.
const PERIODS: u32 = 8;

/// How many requests that are left to their parents, or rows of such requests, a period passes over
/// at most in each lane. Each takes some 100 ns, and more if many places between them are empty.
const LOOKS: u32 = 256;

/// How far periods have looked for queued requests that are not left to their parents, from the
/// oldest on. A period goes on where the last one has stopped. Once the search has reached the end,
/// the next period begins with the oldest again.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Search {
    /// The search in the stale lane of the work queue, and in the own one.
    pub lanes: [LaneSearch; 2],
    /// Whether it has reached the end.
    pub ended: bool,
    /// How many periods there were since a request was last begun that might be left to its parent.
    periods: u32,
}

/// The same for a lane.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LaneSearch {
    /// The position at which the search goes on.
    pub at: u64,
    /// How many looks of this period were in vain.
    pub looks: u32,
}

impl LaneSearch {
    /// Returns whether this period may look at one more request.
    pub fn may_look(&self) -> bool {
        self.looks < LOOKS
    }
}

impl Search {
    /// Returns whether the oldest request is next, even if it is left to its parent.
    pub fn takes_any(&self) -> bool {
        self.periods >= PERIODS
    }

    /// Notes that a request begins that was found.
    pub fn begins(&mut self) {
        if self.takes_any() {
            self.periods = 0;
        }
    }

    /// Begins a period.
    pub fn next_period(&mut self) {
        self.periods = self.periods.saturating_add(1);
        if std::mem::take(&mut self.ended) {
            self.lanes = Default::default();
        }
        self.lanes.iter_mut().for_each(|lane| lane.looks = 0);
    }
}

/// The rule and its counters.
pub(crate) struct Fairness {
    /// K. If it is 0, every choice goes by age.
    max: u32,
    /// Choices that left something older behind, since the last period by age, in parts.
    passed: u32,
    /// The time of the last choice of a join that was counted, in ticks.
    joined: u64,
    /// When the last choice was counted that was none of a join, in ticks.
    counted: u64,
    /// When the last turn began whose length is known, and when it ended, in ticks.
    pub turn: (u64, u64),
    /// How many of the next choices go by age.
    by_age: u32,
    /// When the last period that goes by age began, in ticks.
    period_began: u64,
    /// How far the present period has looked for queued requests.
    pub search: Search,
    /// The most that `passed` ever was.
    most: u32,
}

impl Fairness {
    /// Makes a rule by which at most `max` choices pass over something older before age alone
    /// decides.
    pub fn new(max: u32) -> Fairness {
        let max = max.min(u32::MAX / WHOLE - 1);
        Fairness {
            max,
            passed: 0,
            joined: 0,
            counted: 0,
            turn: (0, 0),
            by_age: 0,
            period_began: 0,
            search: Search::default(),
            most: 0,
        }
    }

    /// Returns whether age alone decides now.
    #[inline]
    pub fn goes_by_age(&self) -> bool {
        self.by_age > 0
    }

    /// Returns whether the preferred lines go first now.
    #[inline]
    pub fn prefers(&self) -> bool {
        self.max > 0 && !self.goes_by_age()
    }

    /// Returns the line whose first thing is next, or None if nothing is ready.
    pub fn choose(&self, ready: &Ready) -> Option<Line> {
        if self.max == 0 || self.goes_by_age() {
            return ready.oldest(&ALL);
        }
        let others = || ready.oldest(&[Line::Yielded, Line::Queued]);
        let preferred = [Line::Urgent, Line::Signalled];
        preferred.into_iter().find(|line| ready.since(*line).is_some()).or_else(others)
    }

    /// Counts a choice at the time `now`, in ticks: the first thing of this line was chosen, and
    /// `left` things are still ready.
    pub fn chosen(&mut self, now: u64, line: Line, ready: &Ready, left: usize) {
        if self.goes_by_age() {
            // Nothing is left that was ready when the period began.
            let over = ready.since(line) > Some(self.period_began);
            self.by_age = if over { 0 } else { self.by_age - 1 };
            return;
        }
        let passes = |other: &Line| *other != line && ready.since(*other) <= ready.since(line);
        if self.max == 0 || !ALL.iter().any(|o| ready.since(*o).is_some() && passes(o)) {
            return;
        }
        self.passes_over(now, left);
    }

    /// Counts a choice at the time `now`, in ticks, that left something older behind, and was not
    /// made by age. `left` things are still ready.
    #[inline]
    pub fn passes_over(&mut self, now: u64, left: usize) {
        let (began, ended) = self.turn;
        let before = std::mem::replace(&mut self.counted, now);
        let took = if began == before { ended.saturating_sub(began) } else { 0 };
        // Bounded by `max`.
        let more = (took / LONG).min(self.max.into()) as u32;
        self.count(now, WHOLE + more * WHOLE, || left);
    }

    /// Counts a choice of a join at the time `now`, in ticks, that left something older behind.
    /// `left` returns how many things are still ready. Returns whether `longest` may have changed.
    #[inline]
    pub fn join_passes_over(&mut self, now: u64, left: impl FnOnce() -> usize) -> bool {
        let parts = self.parts(now);
        self.joined = now;
        self.count(now, parts, left)
    }

    /// Returns how many choices, as whole ones, have left something older behind at most between
    /// two periods that go by age.
    #[inline]
    pub fn longest(&self) -> u32 {
        (self.most / WHOLE).min(self.max)
    }

    /// Returns whether a choice of a join at the time `now`, in ticks, is of a quick join.
    #[inline]
    pub fn is_quick(&self, now: u64) -> bool {
        self.parts(now) < WHOLE
    }

    #[inline]
    fn parts(&self, now: u64) -> u32 {
        (now.saturating_sub(self.joined) / TICKS).clamp(1, WHOLE.into()) as u32
    }

    /// Counts a choice in parts. Returns whether `passed` is more than it ever was.
    #[inline]
    fn count(&mut self, now: u64, parts: u32, left: impl FnOnce() -> usize) -> bool {
        self.passed = self.passed.saturating_add(parts);
        let most = self.passed > self.most;
        if most {
            self.most = self.passed;
        }
        if self.passed >= self.max * WHOLE {
            self.passed = 0;
            self.period_began = now;
            self.search.next_period();
            self.by_age = u32::try_from(left()).unwrap_or(u32::MAX).min(self.max);
        }
        most
    }

    /// Returns what is wrong with the counts, if anything.
    pub fn check(&self) -> Result<(), String> {
        let passed = self.passed < self.max.max(1) * WHOLE;
        let fine = passed && self.longest() <= self.max && self.by_age <= self.max;
        let text = || format!("{} of {} choices were passed over", self.longest(), self.max);
        if fine { Ok(()) } else { Err(text()) }
    }
}

#[cfg(test)]
mod tests;
