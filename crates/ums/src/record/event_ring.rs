//! The event ring: the last events of a scheduler, for traces and for a report after a crash.
//!
//! ```text
//!   record -> [ at | what ] [ at | what ] ... 1024 places, the oldest is overwritten
//!                              ^ head
//! ```
//!
//! The baton's holder writes with plain stores, so a record costs a read of the processor's time
//! counter and three stores. A reader copies all records, and then drops those that the writer may
//! have overwritten during the copy. For a scheduler without a ring, an event costs one test of a
//! null pointer.
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
    /// The worker got the baton.
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

/// The last events of one scheduler.
pub(crate) struct EventRing {
    /// The number of records written since the ring was taken.
    head: AtomicU64,
    /// The time of the last record.
    last: AtomicU64,
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
    /// The event in the top byte, the worker's number below it, then the detail.
    what: AtomicU64,
}

/// One record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Recorded {
    /// The number of records written before this one.
    pub number: u64,
    /// The time, in ticks of the clock.
    pub at: u64,
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
        self.put(event, worker, detail, at.max(self.last.load(Ordering::Relaxed)));
    }

    /// Writes a record whose time is not before that of the last one.
    #[inline]
    fn put(&self, event: RingEvent, worker: u32, detail: u32, at: u64) {
        let head = self.head.load(Ordering::Relaxed);
        // A reader that sees one of the stores below sees this head, too.
        fence(Ordering::Release);
        let place = &self.places[head as usize % RING_RECORDS];
        let worker = worker & ((1 << WORKER_BITS) - 1);
        let what = (event as u64) << 56 | u64::from(worker) << 32 | u64::from(detail);
        self.last.store(at, Ordering::Relaxed);
        place.at.store(at, Ordering::Relaxed);
        place.what.store(what, Ordering::Relaxed);
        self.head.store(head + 1, Ordering::Release);
    }

    /// Returns the records, the oldest first.
    pub fn read(&self) -> Vec<Recorded> {
        let head = self.head.load(Ordering::Acquire);
        let first = head.saturating_sub(RING_RECORDS as u64);
        let copies: Vec<_> = (first..head).map(|number| self.look(number)).collect();
        fence(Ordering::Acquire);
        // The writer may be writing the record after the head. The record in whose place that one
        // is written is dropped, too.
        let now = self.head.load(Ordering::Relaxed) + 1;
        let kept = now.saturating_sub(RING_RECORDS as u64);
        copies.into_iter().flatten().filter(|record| record.number >= kept).collect()
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
        Some(Recorded { number, at, event: *event, worker, detail: what as u32 })
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
            ring.record(RingEvent::ALL[n as usize % 13], n, u32::MAX - n);
        }
        let all = ring.read();
        // The oldest record is dropped, because the writer could be overwriting it.
        assert_eq!(all.len(), RING_RECORDS - 1);
        for (record, n) in all.iter().zip(3000 - all.len() as u32..) {
            assert_eq!((record.worker, record.detail), (n, u32::MAX - n));
            assert_eq!(record.event, RingEvent::ALL[n as usize % 13]);
        }
        assert!(all.is_sorted_by_key(|record| record.at));
    }

    #[test]
    fn a_reader_never_sees_half_a_record_b43() {
        let (ring, stop) = (EventRing::take(0), std::sync::atomic::AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut n = 0u32;
                while !stop.load(Ordering::Relaxed) {
                    ring.record(RingEvent::Switch, n & 0xFF_FFFF, n & 0xFF_FFFF);
                    n = n.wrapping_add(1);
                }
            });
            for _ in 0..2000 {
                for record in ring.read() {
                    assert_eq!(record.worker, record.detail);
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}
