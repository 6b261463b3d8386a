//! Wait statistics: how often, how long and for what workers waited. They are kept three times.
//!
//! * By scheduler and reason, in a [`WaitTable`]: written by the baton's holder with plain stores.
//! * By request, in [`RequestWaits`]: written with plain stores, too, by the worker that carries
//!   the request out; they are part of its waiter.
//! * By user, in an [`Account`]: the sums over the user's requests, added when a request ends.
//!
//! ```text
//!   a wait ends ----> row of its reason (scheduler)      one writer, no lock
//!               \---> place of its reason (request) --+
//!   the request ends                                  +--> the user's account: a lock
//! ```
//!
//! Times are in ticks of the clock until they are read. Each wait is also counted in a bucket by
//! its length in nanoseconds: bucket 0 is for waits below 1024 ns, each further bucket is twice as
//! wide, and the last has no upper end.
//!
//! A reset does not change the counts, because their writer may be counting at that moment. It
//! stores a copy of them, which readers subtract. Only the longest wait is set to zero. That is
//! safe, because the only value that the writer may store at the same time is the length of a wait
//! that has just ended.

use std::sync::atomic::Ordering;

use crate::os::atomic_ref::AtomicRef;
use crate::os::clock::{self, Rate};
use crate::os::counted::{AtomicU16, AtomicU64};
use crate::os::lock::Lock;
use crate::record::counters::{add, max};
use crate::record::reason::{REASONS_MAX, WaitReason};

/// How many buckets a histogram of waits has.
pub const WAIT_BUCKETS: usize = 28;

/// The first bucket holds waits shorter than two to this power, in nanoseconds.
const FIRST_BITS: u32 = 10;

/// Returns the bucket for a wait of this length, in nanoseconds.
#[inline]
fn bucket(ns: u64) -> usize {
    // Not 0, so that the logarithm is one instruction.
    let at_least_the_first = ns | ((1 << FIRST_BITS) - 1);
    ((at_least_the_first.ilog2() + 1 - FIRST_BITS) as usize).min(WAIT_BUCKETS - 1)
}

/// Returns the upper end of a bucket of a wait histogram, in nanoseconds: each wait in the bucket
/// was shorter. Returns `None` for the last bucket, which has no end.
pub fn wait_bucket_end(bucket: usize) -> Option<u64> {
    // Bounded: it is below the number of buckets.
    (bucket < WAIT_BUCKETS - 1).then(|| 1 << (FIRST_BITS as usize + bucket))
}

/// Wait statistics for one reason. Times are in ticks.
///
/// One cache line has all that a short wait changes.
#[derive(Default)]
#[repr(C, align(64))]
pub(crate) struct WaitCounters {
    pub begun: AtomicU64,
    count: AtomicU64,
    total: AtomicU64,
    max: AtomicU64,
    signal: AtomicU64,
    /// Waits during which another worker got the baton.
    pub switches: AtomicU64,
    buckets: [AtomicU64; WAIT_BUCKETS],
}

/// A snapshot of a [`WaitCounters`], or a sum of several.
#[derive(Clone, Copy, Default)]
pub(crate) struct WaitSum {
    pub begun: u64,
    pub count: u64,
    pub total: u64,
    pub max: u64,
    pub signal: u64,
    pub switches: u64,
    pub buckets: [u64; WAIT_BUCKETS],
}

impl WaitCounters {
    /// Counts a wait that has ended. Only the baton's holder calls this.
    #[inline]
    pub fn ended(&self, total: u64, signal: u64) {
        self.ended_in(bucket(clock::ticks_to_ns(total)), total, signal);
    }

    /// Does the same for a caller that has found the rate of the ticks.
    #[inline(always)]
    pub fn ended_at_rate(&self, total: u64, signal: u64, rate: Rate) {
        self.ended_in(bucket(rate.ns(total)), total, signal);
    }

    #[inline(always)]
    fn ended_in(&self, bucket: usize, total: u64, signal: u64) {
        add(&self.count, 1);
        add(&self.total, total);
        add(&self.signal, signal.min(total));
        max(&self.max, total);
        add(&self.buckets[bucket], 1);
    }

    fn read(&self) -> WaitSum {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        WaitSum {
            begun: of(&self.begun),
            count: of(&self.count),
            total: of(&self.total),
            max: of(&self.max),
            signal: of(&self.signal),
            switches: of(&self.switches),
            buckets: std::array::from_fn(|at| of(&self.buckets[at])),
        }
    }
}

impl WaitSum {
    /// Adds the snapshot of another scheduler.
    pub fn and(&mut self, other: &WaitSum) {
        self.combine(other, u64::wrapping_add);
        self.max = self.max.max(other.max);
    }

    /// Subtracts an earlier snapshot. The longest wait is not a sum, so it is not changed.
    fn since(&mut self, before: &WaitSum) {
        self.combine(before, u64::saturating_sub);
    }

    fn combine(&mut self, other: &WaitSum, how: impl Fn(u64, u64) -> u64) {
        for (mine, theirs) in [
            (&mut self.begun, other.begun),
            (&mut self.count, other.count),
            (&mut self.total, other.total),
            (&mut self.signal, other.signal),
            (&mut self.switches, other.switches),
        ] {
            *mine = how(*mine, theirs);
        }
        for (mine, theirs) in self.buckets.iter_mut().zip(other.buckets) {
            *mine = how(*mine, theirs);
        }
    }
}

/// Wait statistics of one scheduler, with a row for each reason.
pub(crate) struct WaitTable {
    rows: Box<[WaitCounters; REASONS_MAX]>,
    /// A copy of the rows at the last reset; empty before the first.
    before: Lock<Vec<WaitSum>>,
}

impl WaitTable {
    pub fn new() -> WaitTable {
        let rows: Box<[_]> = (0..REASONS_MAX).map(|_| WaitCounters::default()).collect();
        let rows = rows.try_into().ok().expect("as many were made");
        WaitTable { rows, before: Lock::default() }
    }

    #[inline]
    pub fn row(&self, reason: WaitReason) -> &WaitCounters {
        // The remainder, a mask, changes no reason: their numbers are below this.
        &self.rows[reason.index() % REASONS_MAX]
    }

    /// Returns the counts since the last reset.
    pub fn read(&self, reason: WaitReason) -> WaitSum {
        let mut sum = self.row(reason).read();
        let before = self.before.lock();
        if let Some(before) = before.get(reason.index()) {
            sum.since(before);
        }
        sum
    }

    /// Makes all later reads count from now on.
    pub fn reset(&self) {
        let mut before = self.before.lock();
        *before = self.rows.iter().map(WaitCounters::read).collect();
        self.rows.iter().for_each(|row| row.max.store(0, Ordering::Relaxed));
    }
}

/// How many reasons a request counts separately. All further reasons share the last place, as
/// `OTHER`.
const PLACES: usize = 6;
/// How many of these places each worker has. The memory for the others is allocated when a request
/// of the worker first needs it, and kept, because most requests wait for one or two reasons.
const PLACES_HERE: usize = 2;
const PLACES_MORE: usize = PLACES - PLACES_HERE;

/// In the place of the first reason: the request has not waited yet. It is no reason's number.
const NO_REASON: u16 = u16::MAX;

/// What one request has waited for. The only writer is the worker that carries the request out. In
/// the order of the fields, so that most waits touch the first line of memory only.
#[repr(C)]
pub(crate) struct RequestWaits {
    used: AtomicU16,
    reasons: [AtomicU16; PLACES_HERE],
    places: [Place; PLACES_HERE],
    /// Never freed, like the waiter that it belongs to.
    more: AtomicRef<MorePlaces>,
}

#[derive(Default)]
struct MorePlaces {
    reasons: [AtomicU16; PLACES_MORE],
    places: [Place; PLACES_MORE],
}

#[derive(Default)]
#[repr(C)]
struct Place {
    count: AtomicU64,
    total: AtomicU64,
    max: AtomicU64,
    signal: AtomicU64,
}

impl Place {
    fn add(&self, total: u64, signal: u64) {
        add(&self.count, 1);
        add(&self.total, total);
        add(&self.signal, signal.min(total));
        max(&self.max, total);
    }

    fn read(&self, reason: &AtomicU16) -> ReasonSum {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ReasonSum {
            reason: WaitReason::from_index(reason.load(Ordering::Relaxed).into()),
            count: of(&self.count),
            total: of(&self.total),
            max: of(&self.max),
            signal: of(&self.signal),
        }
    }
}

impl Default for RequestWaits {
    fn default() -> RequestWaits {
        RequestWaits {
            used: AtomicU16::new(0),
            reasons: [const { AtomicU16::new(NO_REASON) }; PLACES_HERE],
            places: Default::default(),
            more: AtomicRef::new(),
        }
    }
}

impl RequestWaits {
    /// Clears the counts, because a request begins.
    pub fn clear(&self) {
        self.used.store(0, Ordering::Relaxed);
        self.reasons[0].store(NO_REASON, Ordering::Relaxed);
    }

    /// Returns whether this is the first reason for which the request has waited.
    #[inline(always)]
    pub fn is_first(&self, reason: WaitReason) -> bool {
        self.reasons[0].load(Ordering::Relaxed) == reason.index() as u16
    }

    /// Counts a wait for the first reason.
    #[inline(always)]
    pub fn first_ended(&self, total: u64, signal: u64) {
        self.places[0].add(total, signal);
    }

    /// Counts a wait of the request that has ended.
    #[inline]
    pub fn ended(&self, reason: WaitReason, total: u64, signal: u64) {
        let used = self.used.load(Ordering::Relaxed) as usize;
        let number = reason.index() as u16;
        for (reason, place) in self.reasons.iter().zip(&self.places).take(used) {
            if reason.load(Ordering::Relaxed) == number {
                return place.add(total, signal);
            }
        }
        self.ended_elsewhere(used, number, total, signal);
    }

    #[cold]
    fn ended_elsewhere(&self, used: usize, number: u16, total: u64, signal: u64) {
        let mut places = (PLACES_HERE..used).map(|at| self.place(at));
        let known = places.find(|(reason, _)| reason.load(Ordering::Relaxed) == number);
        if let Some((_, place)) = known {
            return place.add(total, signal);
        }
        if used == PLACES {
            let (reason, place) = self.place(PLACES - 1);
            reason.store(WaitReason::OTHER.index() as u16, Ordering::Relaxed);
            return place.add(total, signal);
        }
        let (reason, place) = self.place(used);
        for counter in [&place.count, &place.total, &place.max, &place.signal] {
            counter.store(0, Ordering::Relaxed);
        }
        reason.store(number, Ordering::Relaxed);
        place.add(total, signal);
        self.used.store(used as u16 + 1, Ordering::Release);
    }

    /// Returns a place that is in use, or, to the writer, the next one.
    fn place(&self, at: usize) -> (&AtomicU16, &Place) {
        let Some(further) = at.checked_sub(PLACES_HERE) else {
            return (&self.reasons[at], &self.places[at]);
        };
        let more = self.more.load().unwrap_or_else(|| {
            let more: &MorePlaces = Box::leak(Box::default());
            self.more.store(Some(more));
            more
        });
        (&more.reasons[further], &more.places[further])
    }

    /// Returns the waits of the request so far, one item for each reason.
    pub fn read(&self) -> impl Iterator<Item = ReasonSum> + '_ {
        let used = self.used.load(Ordering::Acquire) as usize;
        (0..used).map(|at| self.place(at)).map(|(reason, place)| place.read(reason))
    }
}

/// Waits of one request or user for one reason. Times are in ticks.
#[derive(Clone, Copy)]
pub(crate) struct ReasonSum {
    pub reason: WaitReason,
    pub count: u64,
    pub total: u64,
    pub max: u64,
    pub signal: u64,
}

/// The sums over a user's requests that have ended. Times are in ticks.
#[derive(Clone, Default)]
pub(crate) struct Account {
    /// Requests that have ended.
    pub requests: u64,
    /// The sum of their times in the work queue.
    pub queued: u64,
    /// The longest of these times.
    pub queued_max: u64,
    /// The sum of their times with a worker.
    pub elapsed: u64,
    /// What they waited for.
    pub waits: Vec<ReasonSum>,
}

impl Account {
    /// Adds the times and waits of a request that has ended.
    pub fn settle(&mut self, queued: u64, elapsed: u64, waits: &RequestWaits) {
        self.requests += 1;
        self.queued = self.queued.saturating_add(queued);
        self.queued_max = self.queued_max.max(queued);
        self.elapsed = self.elapsed.saturating_add(elapsed);
        for new in waits.read() {
            match self.waits.iter_mut().find(|old| old.reason == new.reason) {
                Some(old) => {
                    old.count += new.count;
                    old.total += new.total;
                    old.signal += new.signal;
                    old.max = old.max.max(new.max);
                }
                None => {
                    // Most users wait for one or two reasons.
                    self.waits.reserve_exact(1);
                    self.waits.push(new);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bucket_is_twice_as_wide_as_the_one_before_b20() {
        assert_eq!(bucket(0), 0);
        for at in 0..WAIT_BUCKETS - 1 {
            let end = wait_bucket_end(at).expect("only the last bucket has no end");
            assert_eq!((bucket(end - 1), bucket(end)), (at, at + 1), "around {end} ns");
        }
        assert_eq!(wait_bucket_end(WAIT_BUCKETS - 1), None);
        assert_eq!(bucket(u64::MAX), WAIT_BUCKETS - 1);
    }

    #[test]
    fn a_reset_hides_what_was_counted_and_loses_nothing_that_follows_b20() {
        let table = WaitTable::new();
        let row = table.row(WaitReason::MUTEX);
        add(&row.begun, 3);
        row.ended(1 << 20, 7);
        table.reset();
        let sum = table.read(WaitReason::MUTEX);
        assert_eq!((sum.begun, sum.count, sum.total, sum.max, sum.signal), (0, 0, 0, 0, 0));
        assert_eq!(sum.buckets.iter().sum::<u64>(), 0);
        row.ended(100, 40);
        let sum = table.read(WaitReason::MUTEX);
        assert_eq!((sum.begun, sum.count, sum.total, sum.max, sum.signal), (0, 1, 100, 100, 40));
        assert_eq!(sum.buckets.iter().sum::<u64>(), 1);
    }

    #[test]
    fn a_request_keeps_its_first_reasons_apart_and_loses_none_b20() {
        let waits = RequestWaits::default();
        for round in 0..2 {
            for index in 0..PLACES + 3 {
                waits.ended(WaitReason::from_index(index), 10 + index as u64, 1);
            }
            let rows: Vec<_> = waits.read().collect();
            assert_eq!(rows.len(), PLACES);
            assert_eq!(rows[0].reason, WaitReason::from_index(0));
            assert_eq!(rows[0].count, round + 1);
            assert_eq!(rows[PLACES - 1].reason, WaitReason::OTHER);
            let all: u64 = rows.iter().map(|row| row.count).sum();
            assert_eq!(all, (round + 1) * (PLACES as u64 + 3));
        }
        waits.clear();
        assert_eq!(waits.read().count(), 0);
        assert!((0..PLACES).all(|index| !waits.is_first(WaitReason::from_index(index))));
        waits.ended(WaitReason::MUTEX, 1, 0);
        assert!(waits.is_first(WaitReason::MUTEX) && !waits.is_first(WaitReason::SLEEP));
    }

    #[test]
    fn an_account_adds_up_what_requests_leave_b20() {
        let (mut account, waits) = (Account::default(), RequestWaits::default());
        waits.ended(WaitReason::SLEEP, 100, 10);
        account.settle(5, 1000, &waits);
        waits.clear();
        waits.ended(WaitReason::MUTEX, 20, 20);
        waits.ended(WaitReason::SLEEP, 50, 1);
        account.settle(9, 500, &waits);
        let Account { requests, queued, queued_max, elapsed, waits } = account;
        assert_eq!((requests, queued, queued_max, elapsed), (2, 14, 9, 1500));
        let sleep = waits.iter().find(|w| w.reason == WaitReason::SLEEP).unwrap();
        assert_eq!((sleep.count, sleep.total, sleep.max, sleep.signal), (2, 150, 100, 11));
        assert_eq!(waits.len(), 2);
    }
}
