//! The own lane of a work queue: the requests that a scheduler's own workers have queued.
//!
//! Most requests are queued and taken by workers of one scheduler, which need no lock for that. The
//! lane is a ring of slots. Only the holder of the scheduler's baton puts requests there, at the
//! *tail*, and it takes the oldest from the *head*. Any thread may take a request from any slot, by
//! one exchange: an idle peer that steals, a canceller, and a worker that promotes a request.
//!
//! ```text
//!               head                      tail
//!                |                         |
//!   ... [    ] [ r5 ] [    ] [ r7 ] [ r8 ] [    ] ...
//!                        ^
//!                 r6 was taken from the middle
//! ```
//!
//! *Positions* count on without end; the slot of position p is p modulo the number of slots. A
//! request stores its position, so it is found without a search.
//!
//! **The count is never too small**: a request is counted before it is put into its slot, and a
//! taken request is subtracted after its slot is free. So a thread that reads the count after a
//! fence, as the protocol of scheduler/peers demands, sees every request that was put before the
//! other thread's fence. The count may be too large for a moment; then a taker finds nothing.
//!
//! What this file does not do: it does not order the requests against those of the other lanes. If
//! its next slot is not free, the caller moves the request there to another lane.

use std::sync::OnceLock;
use std::sync::atomic::{self as plain, Ordering};

use super::lane::{RequestMark, Seen, next_unlike};
use crate::os::atomic::{AtomicU64, AtomicUsize};
use crate::scheduler::lists::{NO_WORKER, WorkerId};
use crate::scheduler::request::{RequestId, RequestSlot, RequestState, UserId, WorkRequest};

/// The number of slots. A power of two.
#[cfg(not(loom))]
const SLOTS: u64 = 1024;
#[cfg(loom)]
const SLOTS: u64 = 2;

/// The bit that says that a request's position is one in the own lane.
pub(super) const IN_RING: u64 = 1 << 63;

/// A slot, and copies of what others read of the request in it. They cannot read the request
/// itself, because it may be taken and end at any time.
struct Entry {
    slot: RequestSlot,
    id: AtomicU64,
    user: AtomicU64,
    enqueued: AtomicU64,
}

/// The slots, and the mark of the request in each. The marks are apart, because other threads read
/// slots only, two of which fill a cache line.
struct Entries {
    slots: Box<[Entry; SLOTS as usize]>,
    /// For the baton's holder only, so their lines are not counted among those that are shared.
    marks: Box<[plain::AtomicU64; SLOTS as usize]>,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Entry>() == 32);

/// What a view shows of a queued request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Queued {
    pub id: RequestId,
    pub user: UserId,
    pub urgent: bool,
    /// When it was queued, in ticks.
    pub enqueued: u64,
}

impl Queued {
    /// Returns what a view shows of the request with this state.
    pub fn of(state: &RequestState) -> Queued {
        let RequestState { id, user, enqueued, .. } = *state;
        Queued { id, user, urgent: state.is_urgent(), enqueued }
    }
}

#[inline]
fn index(position: u64) -> usize {
    (position & (SLOTS - 1)) as usize
}

/// The own lane.
pub(super) struct Ring {
    /// The slots, once a request was queued here.
    entries: OnceLock<Box<Entries>>,
    /// The position before which every slot is free. Written by the baton's holder only, as are
    /// the next two.
    head: AtomicU64,
    /// The position of the next request.
    tail: AtomicU64,
    /// How many requests the baton's holder has put here, less those that it has taken itself.
    untaken: AtomicUsize,
    /// How many requests were taken by other threads.
    taken: AtomicUsize,
    /// The position after the last request that another scheduler has taken: a hint.
    stolen: AtomicU64,
}

impl Ring {
    pub fn new() -> Ring {
        Ring {
            entries: OnceLock::new(),
            head: AtomicU64::new(0),
            tail: AtomicU64::new(0),
            untaken: AtomicUsize::new(0),
            taken: AtomicUsize::new(0),
            stolen: AtomicU64::new(0),
        }
    }

    #[cold]
    fn make() -> Box<Entries> {
        let zero = || AtomicU64::new(0);
        let entry =
            |_| Entry { slot: RequestSlot::new(), id: zero(), user: zero(), enqueued: zero() };
        let slots: Box<[Entry]> = (0..SLOTS).map(entry).collect();
        let unused = |_| plain::AtomicU64::new(RequestMark::of(NO_WORKER, 0).0);
        let marks: Box<[plain::AtomicU64]> = (0..SLOTS).map(unused).collect();
        let many = "as many were made";
        Box::new(Entries {
            slots: slots.try_into().ok().expect(many),
            marks: marks.try_into().expect(many),
        })
    }

    #[inline]
    fn entry(&self, position: u64) -> Option<&Entry> {
        Some(&self.entries.get()?.slots[index(position)])
    }

    /// Returns how many requests were ever queued here.
    #[inline]
    pub fn queued(&self) -> usize {
        self.tail.load(Ordering::Relaxed) as usize
    }

    /// Returns how many requests are here, or more.
    #[inline]
    pub fn len(&self) -> usize {
        // The takers are read first. Acquire: with them, that the requests that they took were put.
        let taken = self.taken.load(Ordering::Acquire);
        self.untaken.load(Ordering::Acquire) - taken
    }

    /// Returns the first position that may have a request. The head is behind if requests were
    /// taken from the middle only; no position before the last `SLOTS` has a request.
    #[inline]
    fn first(&self, tail: u64) -> u64 {
        self.head.load(Ordering::Relaxed).max(tail.saturating_sub(SLOTS)).min(tail)
    }

    #[inline]
    fn find(&self, first: u64, tail: u64) -> Option<(u64, u64)> {
        (first..tail).find_map(|position| {
            let entry = self.entry(position).filter(|entry| !entry.slot.is_free())?;
            Some((position, entry.enqueued.load(Ordering::Relaxed)))
        })
    }
}

/// What only the baton's holder calls.
impl Ring {
    /// Takes the request that is in the slot of the next one. It is the oldest here. The request
    /// then says which worker has queued it.
    pub fn take_next_slot(&self) -> Option<WorkRequest> {
        let entries = self.entries.get()?;
        let next = index(self.queued() as u64);
        let taken = entries.slots[next].slot.take();
        self.count_here(taken.is_some());
        if let Some(request) = &taken {
            let mark = RequestMark(entries.marks[next].load(Ordering::Relaxed));
            request.state().parent.store(mark.parent(), Ordering::Relaxed);
        }
        taken
    }

    /// Makes the slots, if there are none yet.
    pub fn open(&self) {
        self.entries.get_or_init(Ring::make);
    }

    /// Queues a request of this worker, or returns it if its slot is not free, or there is none.
    #[inline]
    pub fn push(&self, request: WorkRequest, parent: WorkerId) -> Result<(), WorkRequest> {
        let Some(entries) = self.entries.get() else { return Err(request) };
        let position = self.tail.load(Ordering::Relaxed);
        let entry = &entries.slots[index(position)];
        if !entry.slot.is_free() {
            return Err(request);
        }
        let state = request.state();
        state.position.store(IN_RING | position, Ordering::Relaxed);
        let mark = RequestMark::of(parent, request.code());
        entries.marks[index(position)].store(mark.0, Ordering::Relaxed);
        // Release, and in this order: for `Entry::read`.
        entry.user.store(state.user, Ordering::Release);
        entry.enqueued.store(state.enqueued, Ordering::Release);
        entry.id.store(state.id, Ordering::Release);
        self.tail.store(position + 1, Ordering::Release);
        let untaken = self.untaken.load(Ordering::Relaxed);
        self.untaken.store(untaken + 1, Ordering::Release);
        entry.slot.put(request);
        Ok(())
    }

    /// Takes the oldest request.
    #[inline]
    pub fn take(&self) -> Option<WorkRequest> {
        let tail = self.tail.load(Ordering::Relaxed);
        let mut position = self.first(tail);
        let mut taken = None;
        while position < tail && taken.is_none() {
            taken = self.entry(position).and_then(|entry| entry.slot.take());
            position += 1;
        }
        self.head.store(position, Ordering::Relaxed);
        self.count_here(taken.is_some());
        taken
    }

    /// Returns when the oldest request was queued.
    #[inline]
    pub fn front(&self) -> Option<u64> {
        let tail = self.tail.load(Ordering::Relaxed);
        let first = self.first(tail);
        let front = self.find(first, tail);
        self.head.store(front.map_or(tail, |(position, _)| position), Ordering::Relaxed);
        front.map(|(_, enqueued)| enqueued)
    }

    /// Returns the first request from this position on, without those in a row from there that have
    /// this mark.
    pub fn next_unlike(&self, from: u64, last: Option<RequestMark>) -> Option<Seen> {
        let entries = self.entries.get()?;
        let tail = self.tail.load(Ordering::Relaxed);
        let requests = (from.max(self.first(tail))..tail).filter_map(|position| {
            let entry = &entries.slots[index(position)];
            let enqueued = entry.enqueued.load(Ordering::Relaxed);
            let mark = RequestMark(entries.marks[index(position)].load(Ordering::Relaxed));
            (!entry.slot.is_free()).then_some(Seen { position, mark, enqueued })
        });
        next_unlike(requests, last)
    }

    /// Takes the request that has this position, if there is one.
    pub fn take_at(&self, position: u64) -> Option<WorkRequest> {
        let taken = self.entry(position)?.slot.take()?;
        self.taken_here(position);
        Some(taken)
    }

    /// Takes the oldest request, if it was queued at this time or before.
    #[inline]
    pub fn take_until(&self, time: u64) -> Option<WorkRequest> {
        let tail = self.tail.load(Ordering::Relaxed);
        let (position, enqueued) = self.find(self.first(tail), tail)?;
        if enqueued > time {
            return None;
        }
        let taken = self.entry(position)?.slot.take();
        self.head.store(position + 1, Ordering::Relaxed);
        self.count_here(taken.is_some());
        taken
    }

    /// Takes this request, if it is here.
    #[inline]
    pub fn take_own(&self, request: &RequestState) -> Option<WorkRequest> {
        let (position, entry) = self.entry_of(request)?;
        let taken = entry.slot.take_this(request)?;
        self.taken_here(position);
        Some(taken)
    }

    /// Takes the request that was queued right after the one that had this position here, if it is
    /// here, this worker has queued it, and it has this code.
    #[inline(always)]
    pub fn take_child_after(
        &self,
        position: u64,
        parent: WorkerId,
        code: usize,
    ) -> Option<WorkRequest> {
        let (position, entry) = self.child_after(position, parent, code)?;
        let taken = entry.slot.take()?;
        self.taken_here(position);
        Some(taken)
    }

    /// Returns whether `take_child_after` would find a request.
    #[inline]
    pub fn has_child_after(&self, position: u64, parent: WorkerId, code: usize) -> bool {
        self.child_after(position, parent, code).is_some_and(|(_, entry)| !entry.slot.is_free())
    }

    #[inline(always)]
    fn child_after(&self, position: u64, parent: WorkerId, code: usize) -> Option<(u64, &Entry)> {
        if position & IN_RING == 0 {
            return None;
        }
        let position = (position & !IN_RING) + 1;
        // Otherwise none was queued after it yet, or so many that the slot is that of another.
        let last = self.tail.load(Ordering::Relaxed).wrapping_sub(position);
        if !(1..=SLOTS).contains(&last) {
            return None;
        }
        let entries = self.entries.get()?;
        let found = entries.marks[index(position)].load(Ordering::Relaxed);
        (found == RequestMark::of(parent, code).0)
            .then(|| (position, &entries.slots[index(position)]))
    }

    /// Returns whether a request is here that was queued before this one, which `take_own` or
    /// `take_child_after` has taken. Of two that were queued at the same time, the one that was
    /// queued first is the older.
    #[inline(always)]
    pub fn has_older(&self, request: &RequestState) -> bool {
        let position = request.position.load(Ordering::Relaxed) & !IN_RING;
        // Mostly so: the request was the oldest here, so the next search begins behind it.
        self.head.load(Ordering::Relaxed) <= position && self.finds_older(position)
    }

    #[inline(never)]
    fn finds_older(&self, position: u64) -> bool {
        let first = self.first(self.tail.load(Ordering::Relaxed));
        if first > position {
            return false;
        }
        let older = self.find(first, position);
        // Otherwise each search would pass the same free slots again.
        self.head.store(older.map_or(position + 1, |(older, _)| older), Ordering::Relaxed);
        older.is_some()
    }

    /// Returns the position at which the next search begins.
    #[cfg(test)]
    pub fn begins_at(&self) -> u64 {
        self.head.load(Ordering::Relaxed)
    }

    /// The request at this position has been taken from wherever it was.
    #[inline]
    fn taken_here(&self, position: u64) {
        if self.head.load(Ordering::Relaxed) == position {
            self.head.store(position + 1, Ordering::Relaxed);
        }
        self.count_here(true);
    }

    #[inline]
    fn count_here(&self, taken: bool) {
        let now = self.untaken.load(Ordering::Relaxed) - usize::from(taken);
        self.untaken.store(now, Ordering::Release);
    }

    /// Returns the position that this request had here last, and the slot there.
    #[inline]
    fn entry_of(&self, request: &RequestState) -> Option<(u64, &Entry)> {
        let position = request.position.load(Ordering::Relaxed);
        let entry = self.entry(position & !IN_RING).filter(|_| position & IN_RING != 0)?;
        Some((position & !IN_RING, entry))
    }
}

/// What any thread may call.
impl Ring {
    /// Returns when the oldest request was queued.
    pub fn front_seen(&self) -> Option<u64> {
        let tail = self.tail.load(Ordering::Acquire);
        self.find(self.first(tail), tail).map(|(_, enqueued)| enqueued)
    }

    /// Takes this request, if it is here.
    pub fn take_this(&self, request: &RequestState) -> Option<WorkRequest> {
        let taken = self.entry_of(request)?.1.slot.take_this(request);
        self.count(taken.is_some());
        taken
    }

    /// Takes the oldest request for another scheduler. `moved` is called before the count changes.
    pub fn take_for_another(&self, moved: impl FnOnce()) -> Option<WorkRequest> {
        let tail = self.tail.load(Ordering::Acquire);
        let first = self.first(tail);
        // The owner moves the head only when it takes a request. Other takers begin where the last
        // of them ended, and look before that only if they find nothing after it.
        let begin = self.stolen.load(Ordering::Relaxed).clamp(first, tail);
        let (position, taken) = (begin..tail)
            .chain(first..begin)
            .find_map(|position| Some((position, self.entry(position)?.slot.take()?)))?;
        self.stolen.store(position + 1, Ordering::Relaxed);
        moved();
        self.count(true);
        Some(taken)
    }

    fn count(&self, taken: bool) {
        if taken {
            self.taken.fetch_add(1, Ordering::Release);
        }
    }

    /// Takes all requests that are here now, the oldest first. Before each it calls `before` with
    /// the number of those that it has taken.
    pub fn drain(&self, before: impl Fn(usize)) -> Vec<WorkRequest> {
        let tail = self.tail.load(Ordering::Acquire);
        let mut all = Vec::new();
        for entry in (self.first(tail)..tail).filter_map(|position| self.entry(position)) {
            if !entry.slot.is_free() {
                before(all.len());
                let taken = entry.slot.take();
                self.count(taken.is_some());
                all.extend(taken);
            }
        }
        all
    }

    /// Calls `look` for each request, the oldest first.
    pub fn each(&self, mut look: impl FnMut(Queued)) {
        let tail = self.tail.load(Ordering::Acquire);
        let entries = (self.first(tail)..tail).filter_map(|position| self.entry(position));
        entries.filter_map(Entry::read).for_each(&mut look);
    }
}

impl Entry {
    /// Returns what a view shows of the request here. Returns None if there is none, or if it was
    /// replaced meanwhile.
    fn read(&self) -> Option<Queued> {
        if self.slot.is_free() {
            return None;
        }
        let [id, user, enqueued] =
            [&self.id, &self.user, &self.enqueued].map(|field| field.load(Ordering::Acquire));
        // A request that replaces this one is written while the slot is free: first the other
        // fields, then the number, then the slot. So if a field was already that of the next
        // request, the slot is free now, or the number has changed.
        let same = !self.slot.is_free() && self.id.load(Ordering::Relaxed) == id;
        same.then_some(Queued { id, user, urgent: false, enqueued })
    }
}
