//! The event ring: the last events of a scheduler, for traces and for a report after a crash.
//!
//! ```text
//!   record -> [ at | what ] [ at | what ] ... 1024 places, the oldest is overwritten
//!                              ^ head
//! ```
//!
//! The baton's holder writes with plain stores, so a record costs a few stores, and a read of the
//! processor's time counter if the writer has not read it anyway. A reader copies all records, and
//! then drops those that the writer may have overwritten during the copy. For a scheduler without a
//! ring, an event costs one test of a null pointer.
//!
//! *Times of yields.* To read the time counter takes as long as half a switch. So among workers
//! that only yield, and whose turns are short (about a microsecond on average), the counter is read
//! for one of 16 switches. The other 15 get the time of the last record and their number since
//! then, and [`EventRing::read`] gives them times at equal distances between the records before and
//! after them. So the order of all events is exact, and so is the time of every event except such a
//! switch, whose time is exact to the length of 16 turns. If turns take longer on average, the
//! counter is read for every switch.
//!
//! One long turn among short ones: if the monitor sees it, the counter is read for the switch that
//! ends it, and the switches before it get the time of the last record, so the turn is shown as
//! that of its worker. If it ends before the monitor looks, it may be shown as that of one of the
//! 15 workers after it.
//!
//! Rings live in a pool that never frees them, so a signal handler can read the rings in use
//! without a lock ([`in_use`]).

use std::sync::atomic::{Ordering, fence};

use crate::os::clock;
use crate::os::counted::{AtomicU32, AtomicU64};
use crate::os::pool::{Member, Pool, Pooled};

/// How many records a ring holds.
pub const RING_RECORDS: usize = 1024;

/// A kind of event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[repr(u8)]
pub enum RingEvent {
    /// The worker got the baton. If it got the baton because of a yield, and turns take less than
    /// about a microsecond, the time is exact to the length of 16 turns.
    Switch = 1,
    /// The worker began to wait; the detail is the reason's number.
    Wait,
    /// The worker's wait was ended by code that ran on the ring's scheduler; the detail is the
    /// number of the scheduler that the worker belongs to, which may be another one.
    Wake,
    /// The worker arrived through the inbox, because its wait was ended on another thread.
    Arrive,
    /// The worker went preemptive; the detail is the reason's number.
    Leave,
    /// The worker has rejoined its scheduler.
    Home,
    /// The worker submitted I/O; the detail is the descriptor.
    Submit,
    /// I/O completed; the detail is the low part of its token.
    Complete,
    /// The worker was given a request; the detail is the low part of its number.
    Start,
    /// The worker has ended its request.
    Finish,
    /// A request was taken from another scheduler's work queue; the detail is the low part of its
    /// number.
    Steal,
    /// The scheduler went to sleep.
    Sleep,
    /// The scheduler woke up.
    Awake,
}

impl RingEvent {
    /// All kinds of events.
    pub const ALL: [RingEvent; 13] = [
        RingEvent::Switch,
        RingEvent::Wait,
        RingEvent::Wake,
        RingEvent::Arrive,
        RingEvent::Leave,
        RingEvent::Home,
        RingEvent::Submit,
        RingEvent::Complete,
        RingEvent::Start,
        RingEvent::Finish,
        RingEvent::Steal,
        RingEvent::Sleep,
        RingEvent::Awake,
    ];

    /// Returns its name, as views and traces show it.
    pub fn name(self) -> &'static str {
        match self {
            RingEvent::Switch => "SWITCH",
            RingEvent::Wait => "WAIT",
            RingEvent::Wake => "WAKE",
            RingEvent::Arrive => "ARRIVE",
            RingEvent::Leave => "LEAVE",
            RingEvent::Home => "HOME",
            RingEvent::Submit => "SUBMIT",
            RingEvent::Complete => "COMPLETE",
            RingEvent::Start => "START",
            RingEvent::Finish => "FINISH",
            RingEvent::Steal => "STEAL",
            RingEvent::Sleep => "SLEEP",
            RingEvent::Awake => "AWAKE",
        }
    }
}

/// The number of bits of a worker's number in a record.
const WORKER_BITS: u32 = 24;

/// How many switches in a row are recorded without reading the clock, if turns are short.
const UNREAD_MAX: u32 = 15;

/// The average length of a turn, in ticks of the clock, from which on the clock is read for every
/// switch: some hundred times as long as a record without a reading takes.
const LONG_TURN: u64 = 2048;

/// The last events of one scheduler, in cache lines that no other scheduler writes.
#[repr(align(128))]
pub(crate) struct EventRing {
    /// The number of records written since the ring was taken.
    head: AtomicU64,
    /// The time of the last record.
    last: AtomicU64,
    /// How many switches have been recorded since the clock was last read.
    unread: AtomicU32,
    /// How many may be recorded before the clock is read again.
    unread_max: AtomicU32,
    places: Box<[Place; RING_RECORDS]>,
    /// The scheduler's number.
    scheduler: AtomicU32,
    member: Member<EventRing>,
}

static RINGS: Pool<EventRing> = Pool::new();

impl Pooled for EventRing {
    fn member(&self) -> &Member<EventRing> {
        &self.member
    }
}

/// Returns all rings in use, with their schedulers' numbers. Async-signal-safe.
pub(crate) fn in_use() -> impl Iterator<Item = (u32, &'static EventRing)> {
    RINGS.in_use().map(|ring| (ring.scheduler.load(Ordering::Relaxed), ring))
}

struct Place {
    at: AtomicU64,
    /// The event in the top byte, the worker's number below it, then the detail. A switch has no
    /// detail: instead the record says how many switches were recorded since the time `at`.
    what: AtomicU64,
}

/// One record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Recorded {
    /// The number of records written before this one.
    pub number: u64,
    /// The time, in ticks of the clock.
    pub at: u64,
    /// Not 0 if the time is only known to be `at` or later: how many switches were recorded since
    /// then. [`EventRing::read`] estimates such a time if a later one is known.
    pub unread: u32,
    pub event: RingEvent,
    pub worker: u32,
    pub detail: u32,
}

impl EventRing {
    fn new(member: Member<EventRing>) -> EventRing {
        let place = || Place { at: AtomicU64::new(0), what: AtomicU64::new(0) };
        let places: Box<[Place]> = (0..RING_RECORDS).map(|_| place()).collect();
        EventRing {
            head: AtomicU64::new(0),
            last: AtomicU64::new(0),
            unread: AtomicU32::new(0),
            unread_max: AtomicU32::new(0),
            places: places.try_into().ok().expect("as many were made"),
            scheduler: AtomicU32::new(0),
            member,
        }
    }

    /// Takes an empty ring from the pool, for the scheduler with this number.
    pub fn take(scheduler: u32) -> &'static EventRing {
        RINGS.take(EventRing::new, |ring| {
            ring.head.store(0, Ordering::Relaxed);
            ring.last.store(0, Ordering::Relaxed);
            ring.unread.store(0, Ordering::Relaxed);
            ring.unread_max.store(0, Ordering::Relaxed);
            ring.scheduler.store(scheduler, Ordering::Relaxed);
        })
    }

    /// Returns the ring to the pool, because its scheduler has ended.
    pub fn give_back(&'static self) {
        RINGS.give_back(self);
    }

    /// Records an event that happens now. Only the baton's holder calls this.
    #[inline]
    pub fn record(&self, event: RingEvent, worker: u32, detail: u32) {
        self.put(event, worker, detail, clock::ticks());
    }

    /// Records an event of a moment ago: `at` is when the caller has read the clock. The times of a
    /// ring never decrease, so the event gets the time of the one before it, if that is later.
    #[inline]
    pub fn record_at(&self, event: RingEvent, worker: u32, detail: u32, at: u64) {
        self.put(event, worker, detail, at);
    }

    /// Records several events of the same moment, in this order, each with its worker and detail.
    #[inline]
    pub fn record_all<const N: usize>(&self, events: [(RingEvent, u32, u32); N], at: u64) {
        let at = self.take_time(at);
        let mut head = self.head.load(Ordering::Relaxed);
        for (event, worker, detail) in events {
            head = self.write_after(head, event, worker, detail, at);
        }
    }

    /// Records a switch to a worker, by the yield of another one. Reads the clock now and then.
    #[inline(always)]
    pub fn record_yield(&self, worker: u32) {
        self.record_yield_by(clock::ticks, worker);
    }

    #[inline(always)]
    fn record_yield_by(&self, clock: impl FnOnce() -> u64, worker: u32) {
        let unread = self.unread.load(Ordering::Relaxed) + 1;
        if unread > self.unread_max.load(Ordering::Relaxed) {
            return self.record_read_yield(clock(), worker);
        }
        self.unread.store(unread, Ordering::Relaxed);
        self.write(RingEvent::Switch, worker, unread, self.last.load(Ordering::Relaxed));
    }

    #[cold]
    fn record_read_yield(&self, now: u64, worker: u32) {
        self.judge_turns(now, self.unread.load(Ordering::Relaxed) + 1);
        self.put(RingEvent::Switch, worker, 0, now);
    }

    /// Decides, from the time that this many turns have taken, whether the clock is read for each
    /// of the next switches.
    #[inline]
    fn judge_turns(&self, now: u64, turns: u32) {
        let took = now.saturating_sub(self.last.load(Ordering::Relaxed));
        let are_long = took > LONG_TURN * u64::from(turns);
        self.unread_max.store(if are_long { 0 } else { UNREAD_MAX }, Ordering::Relaxed);
    }

    /// Makes the next switch, also by a yield, read the clock, because the present turn is long.
    /// Any thread may call this. If the baton's holder decides otherwise at the same moment, this
    /// has no effect.
    pub fn read_next_switch(&self) {
        self.unread_max.store(0, Ordering::Relaxed);
    }

    /// Writes a record with a time of its own. The times of a ring never decrease, so the record
    /// gets the time of the one before it, if that is later.
    #[inline]
    fn put(&self, event: RingEvent, worker: u32, detail: u32, at: u64) {
        let at = self.take_time(at);
        self.write(event, worker, detail, at);
    }

    /// Notes that records with a time of their own follow, and returns that time: `at`, or that of
    /// the record before, if it is later.
    #[inline]
    fn take_time(&self, at: u64) -> u64 {
        let at = at.max(self.last.load(Ordering::Relaxed));
        let unread = self.unread.load(Ordering::Relaxed);
        if unread > 0 {
            // Also at other events: they may come so often that the clock is never read for a
            // switch.
            self.judge_turns(at, unread + 1);
            self.unread.store(0, Ordering::Relaxed);
        }
        self.last.store(at, Ordering::Relaxed);
        at
    }

    #[inline(always)]
    fn write(&self, event: RingEvent, worker: u32, detail: u32, at: u64) {
        self.write_after(self.head.load(Ordering::Relaxed), event, worker, detail, at);
    }

    /// Writes a record after this head, and returns the next head.
    #[inline(always)]
    fn write_after(&self, head: u64, event: RingEvent, worker: u32, detail: u32, at: u64) -> u64 {
        // A reader that sees one of the stores below sees this head, too.
        fence(Ordering::Release);
        let place = &self.places[head as usize % RING_RECORDS];
        let worker = worker & ((1 << WORKER_BITS) - 1);
        let what = (event as u64) << 56 | u64::from(worker) << 32 | u64::from(detail);
        place.at.store(at, Ordering::Relaxed);
        place.what.store(what, Ordering::Relaxed);
        self.head.store(head + 1, Ordering::Release);
        head + 1
    }

    /// Returns the records, the oldest first, in order of time.
    pub fn read(&self) -> Vec<Recorded> {
        let head = self.head.load(Ordering::Acquire);
        let first = head.saturating_sub(RING_RECORDS as u64);
        let copies: Vec<_> = (first..head).map(|number| self.look(number)).collect();
        fence(Ordering::Acquire);
        // The writer may be writing the record after the head. The record in whose place that one
        // is written is dropped, too.
        let now = self.head.load(Ordering::Relaxed) + 1;
        let kept = now.saturating_sub(RING_RECORDS as u64);
        let kept = copies.into_iter().flatten().filter(|record| record.number >= kept);
        let mut records: Vec<_> = kept.collect();
        spread(&mut records);
        records
    }

    /// Returns the last `count` records one at a time, the oldest first. Async-signal-safe. If the
    /// scheduler runs meanwhile, a newer record may have overwritten the expected one.
    pub fn last(&self, count: u64) -> impl Iterator<Item = Recorded> + '_ {
        let head = self.head.load(Ordering::Acquire);
        (head.saturating_sub(count)..head).filter_map(|number| self.look(number))
    }

    fn look(&self, number: u64) -> Option<Recorded> {
        let place = &self.places[number as usize % RING_RECORDS];
        let at = place.at.load(Ordering::Relaxed);
        let what = place.what.load(Ordering::Relaxed);
        let event = RingEvent::ALL.get(((what >> 56) as usize).checked_sub(1)?)?;
        let worker = (what >> 32) as u32 & ((1 << WORKER_BITS) - 1);
        let (unread, detail) = match event {
            RingEvent::Switch => (what as u32, 0),
            _ => (0, what as u32),
        };
        Some(Recorded { number, at, unread, event: *event, worker, detail })
    }
}

/// Gives switches that were recorded without reading the clock times at equal distances between the
/// record before and the record after them. Those at the end keep the time of the record before. So
/// do those after which a turn was long: most probably it was that of the last of them.
fn spread(records: &mut [Recorded]) {
    // The time of the record after the switches, and how many distances they divide.
    let (mut after, mut parts) = (None, 0);
    for record in records.iter_mut().rev() {
        if record.unread == 0 {
            (after, parts) = (Some(record.at), 0);
            continue;
        }
        parts = u64::from(record.unread + 1).max(parts);
        let span = after.map_or(0, |after| after.saturating_sub(record.at));
        if span > LONG_TURN * parts {
            continue;
        }
        record.at += (u128::from(span) * u128::from(record.unread) / u128::from(parts)) as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_keeps_the_last_records_in_order_b43() {
        let ring = EventRing::take(0);
        assert_eq!(ring.read(), []);
        ring.record(RingEvent::Wait, 7, 9);
        let all = ring.read();
        assert_eq!(
            (all.len(), all[0].event, all[0].worker, all[0].detail),
            (1, RingEvent::Wait, 7, 9)
        );
        for n in 0..3000u32 {
            ring.record(RingEvent::ALL[1 + n as usize % 12], n, u32::MAX - n);
        }
        let all = ring.read();
        // The oldest record is dropped, because the writer could be overwriting it.
        assert_eq!(all.len(), RING_RECORDS - 1);
        for (record, n) in all.iter().zip(3000 - all.len() as u32..) {
            assert_eq!((record.worker, record.detail), (n, u32::MAX - n));
            assert_eq!(record.event, RingEvent::ALL[1 + n as usize % 12]);
        }
        assert!(all.is_sorted_by_key(|record| record.at));
    }

    #[test]
    fn switches_without_a_reading_get_times_between_those_of_their_neighbours_b43() {
        let ring = EventRing::take(0);
        ring.record_at(RingEvent::Wait, 1, 0, 1000);
        ring.unread_max.store(UNREAD_MAX, Ordering::Relaxed);
        let by_yield = |worker| ring.record_yield_by(|| panic!("the clock is read"), worker);
        (2..5).for_each(by_yield);
        let seen = |of: &EventRing| of.read().iter().map(|r| (r.worker, r.at)).collect::<Vec<_>>();
        // No later time is known yet.
        assert_eq!(seen(ring), [(1, 1000), (2, 1000), (3, 1000), (4, 1000)]);
        ring.record_at(RingEvent::Sleep, 4, 0, 1400);
        by_yield(5);
        let expected = [(1, 1000), (2, 1100), (3, 1200), (4, 1300), (4, 1400), (5, 1400)];
        assert_eq!(seen(ring), expected);
        assert!(ring.read().iter().all(|record| record.detail == 0), "a switch has no detail");
    }

    #[test]
    fn the_clock_is_read_for_each_yield_if_turns_are_long_and_for_some_if_they_are_short_b43() {
        let ring = EventRing::take(0);
        let mut now = 1 << 40;
        let mut yields = |count: u32, turn: u64| -> Vec<u32> {
            for _ in 0..count {
                now += turn;
                ring.record_yield_by(|| now, 1);
            }
            ring.last(count.into()).map(|record| record.unread).collect()
        };
        assert_eq!(yields(3, LONG_TURN + 1), [0; 3]);
        assert_eq!(yields(48, LONG_TURN), (0..48).map(|n| n % 16).collect::<Vec<_>>());
        // One reading is needed to find out that turns have become long.
        assert_eq!(yields(16, 2 * LONG_TURN)[0], 0);
        assert_eq!(yields(3, 2 * LONG_TURN), [0; 3]);
    }

    #[test]
    fn turns_between_other_events_are_found_to_be_long_too_b43() {
        let ring = EventRing::take(0);
        ring.record_at(RingEvent::Wait, 1, 0, 1000);
        ring.unread_max.store(UNREAD_MAX, Ordering::Relaxed);
        let mut now = 1000;
        for turn in 0..6 {
            now += 2 * LONG_TURN;
            ring.record_yield_by(|| now, 2);
            now += 2 * LONG_TURN;
            ring.record_at(RingEvent::Wake, 3, 0, now);
            let read = ring.last(2).all(|record| record.unread == 0);
            assert_eq!(read, turn > 0, "from the second turn on, each switch has a reading");
        }
    }

    #[test]
    fn a_long_turn_that_the_monitor_has_seen_is_that_of_its_worker_b43() {
        let ring = EventRing::take(0);
        ring.record_at(RingEvent::Wait, 1, 0, 1000);
        ring.unread_max.store(UNREAD_MAX, Ordering::Relaxed);
        let long = 1000 + 1_000_000 * LONG_TURN;
        let yields = |worker| ring.record_yield_by(|| long, worker);
        // Worker 4 computes for long.
        (2..5).for_each(yields);
        ring.read_next_switch();
        (5..7).for_each(yields);
        let all = ring.read();
        let at: Vec<_> = all.iter().map(|record| (record.worker, record.at)).collect();
        assert_eq!(at, [(1, 1000), (2, 1000), (3, 1000), (4, 1000), (5, long), (6, long)]);
    }

    #[test]
    fn a_clock_that_goes_back_changes_no_order_b43() {
        let ring = EventRing::take(0);
        ring.record_at(RingEvent::Wait, 1, 0, 1000);
        ring.record_yield_by(|| 10, 2);
        ring.record_at(RingEvent::Wake, 3, 0, 20);
        assert!(ring.read().iter().all(|record| record.at == 1000));
    }

    #[test]
    fn events_of_one_moment_are_recorded_in_their_order_b43() {
        let ring = EventRing::take(0);
        ring.record_at(RingEvent::Wait, 1, 5, 1000);
        ring.record_yield_by(|| 2000, 2);
        let finish = (RingEvent::Finish, 2, 0);
        ring.record_all([(RingEvent::Wake, 1, 9), finish, (RingEvent::Switch, 1, 0)], 3000);
        ring.record_all([(RingEvent::Leave, 1, 3)], 10);
        let seen = ring.read().into_iter().map(|r| (r.number, r.at, r.event, r.worker, r.detail));
        let all = [
            (0, 1000, RingEvent::Wait, 1, 5),
            (1, 2000, RingEvent::Switch, 2, 0),
            (2, 3000, RingEvent::Wake, 1, 9),
            (3, 3000, RingEvent::Finish, 2, 0),
            (4, 3000, RingEvent::Switch, 1, 0),
            (5, 3000, RingEvent::Leave, 1, 3),
        ];
        assert!(seen.eq(all));
    }

    #[test]
    fn a_reader_never_sees_half_a_record_b43() {
        let (ring, stop) = (EventRing::take(0), std::sync::atomic::AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut n = 0u32;
                while !stop.load(Ordering::Relaxed) {
                    ring.record_at(RingEvent::Wait, n & 0xFF_FFFF, n, n.into());
                    n += 1;
                }
            });
            for _ in 0..2000 {
                // The time and the rest are two words.
                for record in ring.read() {
                    assert_eq!(record.number, record.at);
                    assert_eq!(record.number, record.detail.into());
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}
