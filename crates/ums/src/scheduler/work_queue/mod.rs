//! The work queue: one scheduler's requests that have no worker yet.
//!
//! The queue is first in, first out. It has four lanes:
//!
//! | lane | requests | access |
//! |---|---|---|
//! | own | queued by workers of this scheduler | without a lock (`ring`) |
//! | stale | from the own lane, where younger ones need their slots | the lock |
//! | fresh | queued by others | the lock |
//! | urgent | of users that hold a resource, and those that a worker waits for | the lock |
//!
//! The urgent lane is served first (rule 7 of ARCHITECTURE.md). Of the other three, the lane whose
//! first request was queued earlier is served first, so together they are one row. A request of the
//! stale lane was queued before all of the own lane. Joined children leave the own lane from its
//! young end, so old requests may stay there while a thousand younger ones pass. Any thread may
//! queue a request, and an idle scheduler can take requests from another whose worker does not
//! yield (rule 3), from each lane. The number of requests can be read without the lock, so an empty
//! queue costs a turn a few loads.
//!
//! A request that is bound to its scheduler is never in the own lane, because peers take what is
//! there.

mod lane;
mod ring;

use std::sync::atomic::Ordering;

pub(crate) use self::lane::RequestMark;
use self::lane::{EMPTY, Lane, Seen};
pub(crate) use self::ring::Queued;
use self::ring::{IN_RING, Ring};
use crate::os::atomic;
use crate::os::counted::{AtomicU8, AtomicU64, AtomicUsize};
use crate::os::planted::{self, Bug};
use crate::os::short_lock::{ShortGuard, ShortLock};
use crate::scheduler::lists::WorkerId;
use crate::scheduler::lists::fairness::{LaneSearch, Search};
use crate::scheduler::request::{RequestState, WorkRequest};
use crate::wait::error::EnqueueError;

/// Requests without a worker, of one scheduler.
pub(crate) struct WorkQueue {
    own: Ring,
    lanes: ShortLock<Lanes>,
    /// How many requests are in the shared lanes; part of the protocol of scheduler/peers.
    shared: atomic::AtomicUsize,
    /// How many of them are in the urgent lane.
    urgent: AtomicUsize,
    /// How many requests the shared lanes have accepted. Written under the lock.
    accepted: AtomicUsize,
    /// How many accepted requests have left the queue by any way but `take`.
    left: AtomicUsize,
    /// The time at which the first urgent request was queued, and the first of the other shared
    /// lanes, copied for `fronts`.
    since: [AtomicU64; 2],
    /// The queue refuses requests of callers that come before this one in [`Caller`].
    open_to: AtomicU8,
    bound: usize,
}

/// Where `WorkQueue::first_that` has found a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum QueuePlace {
    Stale(u64),
    Own(u64),
    Fresh,
}

#[derive(Default)]
struct Lanes {
    urgent: Lane,
    stale: Lane,
    fresh: Lane,
}

/// The kind of caller that queues a request. A node that shuts down refuses requests of one kind
/// after the other, in this order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Caller {
    /// A plain thread.
    #[default]
    Plain,
    /// A completion routine.
    Routine,
    /// A request that is being carried out, and therefore is part of its scheduler's load.
    Request,
    /// No caller: the queue is closed.
    None,
}

/// What only the holder of the scheduler's baton calls.
impl WorkQueue {
    /// Queues a request of a caller that holds the baton; otherwise like [`WorkQueue::push`]. The
    /// caller is this worker; a completion routine passes `NO_WORKER`.
    #[inline]
    pub fn push_own(
        &self,
        request: WorkRequest,
        by: Caller,
        parent: WorkerId,
    ) -> Result<(), (EnqueueError, WorkRequest)> {
        if !self.is_for_own(&request, by) {
            return self.push(request, by);
        }
        self.own.open();
        let full = |request| self.push_after_making_room(request, by, parent);
        self.own.push(request, parent).or_else(full)
    }

    /// Queues a request of this worker in the own lane, which is neither bound nor urgent. Returns
    /// it if it is refused, and if there is no room: then the caller calls `push_own`.
    #[inline]
    pub fn push_new(&self, request: WorkRequest, parent: WorkerId) -> Result<(), WorkRequest> {
        debug_assert!(!request.state().bound && !request.state().is_urgent());
        if self.has_room(Caller::Request) { self.own.push(request, parent) } else { Err(request) }
    }

    /// Returns whether a request goes to the own lane.
    #[inline]
    fn is_for_own(&self, request: &WorkRequest, by: Caller) -> bool {
        let state = request.state();
        let shared = state.bound || state.is_urgent();
        !shared && self.has_room(by)
    }

    #[inline]
    fn has_room(&self, by: Caller) -> bool {
        !self.refuses(by) && self.len() < self.bound
    }

    /// Moves the request that is in the way of the next one to the stale lane, and queues the next.
    #[cold]
    fn push_after_making_room(
        &self,
        request: WorkRequest,
        by: Caller,
        parent: WorkerId,
    ) -> Result<(), (EnqueueError, WorkRequest)> {
        let mut lanes = self.lock();
        // As in `promote`.
        self.shared.store(lanes.len() + 1, Ordering::Release);
        self.own.take_next_slot().into_iter().for_each(|old| lanes.stale.push_back(old));
        self.publish(&lanes);
        drop(lanes);
        self.own.push(request, parent).or_else(|request| self.push(request, by))
    }

    /// Takes the first request of the urgent lane if `urgent` is true, or else the one of the other
    /// lanes that was queued first.
    #[inline]
    pub fn take(&self, urgent: bool) -> Option<WorkRequest> {
        if !urgent && self.own.front().is_some_and(|own| own <= self.since_of(1)) {
            // If another thread has taken that request, the next one may be younger than the first
            // of the other lane, which then is passed over by one.
            return self.own.take();
        }
        self.take_shared(urgent)
    }

    fn take_shared(&self, urgent: bool) -> Option<WorkRequest> {
        let mut lanes = self.lock();
        let next = if urgent { &mut lanes.urgent } else { lanes.older() }.pop_front();
        self.publish(&lanes);
        next
    }

    /// Returns when the first request was queued: of the urgent lane, and of the others. A
    /// request that was promoted is in the urgent lane. The answer may be stale, and is only a
    /// hint.
    #[inline]
    pub fn fronts(&self) -> [Option<u64>; 2] {
        self.earlier(self.own.front())
    }

    /// Takes the first request of the own lane, if no request of another lane goes before it.
    /// Returns None also if another thread has just taken that request.
    #[inline]
    pub fn take_first_own(&self) -> Option<WorkRequest> {
        if self.urgent() > 0 { None } else { self.own.take_until(self.since_of(1)) }
    }

    /// Finds the request that was queued first, of those that are not urgent and that *go*: when it
    /// was queued, in ticks, and where it is. A request of the shared fresh lane goes. `goes` is
    /// asked for the others, with the request's mark and the time at which it was queued; of a row
    /// of requests of one mark, only for the first. The search begins where `search` has stopped,
    /// and goes on as long as that allows.
    #[cold]
    pub fn first_that(
        &self,
        search: &mut Search,
        goes: impl Fn(RequestMark, u64) -> bool,
    ) -> Option<(u64, QueuePlace)> {
        let mut found = None;
        if !search.ended {
            let [stale, own] = &mut search.lanes;
            let next_stale = |at, last| self.lock().stale.next_unlike(at, last);
            let next_own = |at, last| self.own.next_unlike(at, last);
            let first_stale = first_in(stale, &next_stale, &goes);
            // All of the stale lane was queued before all of the own lane.
            found = match first_stale {
                Some(seen) => Some((seen.enqueued, QueuePlace::Stale(seen.position))),
                None => first_in(own, &next_own, &goes)
                    .map(|seen| (seen.enqueued, QueuePlace::Own(seen.position))),
            };
            search.ended = found.is_none() && search.lanes.iter().all(LaneSearch::may_look);
        }
        let fresh =
            Some((self.lock().fresh.since, QueuePlace::Fresh)).filter(|fresh| fresh.0 != EMPTY);
        found.into_iter().chain(fresh).min_by_key(|found| found.0)
    }

    /// Takes the request that `first_that` has found. If another thread has just taken it, returns
    /// None, or the next one of the fresh lane.
    #[cold]
    pub fn take_at(&self, place: QueuePlace) -> Option<WorkRequest> {
        if let QueuePlace::Own(position) = place {
            return self.own.take_at(position);
        }
        let mut lanes = self.lock();
        let taken = match place {
            QueuePlace::Stale(position) => lanes.stale.take_at(position),
            _ => lanes.fresh.pop_front(),
        };
        self.publish(&lanes);
        taken
    }

    /// Takes this request, if it is in the own lane.
    #[inline]
    pub fn take_own(&self, request: &RequestState) -> Option<WorkRequest> {
        self.own.take_own(request)
    }

    /// Returns whether this is a position in an own lane.
    #[inline]
    pub fn is_own(position: u64) -> bool {
        position & IN_RING != 0
    }

    /// Takes the request that was queued in the own lane right after the one at this position, if
    /// this worker has queued it, it is still there, and it has this code.
    #[inline]
    pub fn take_child_after(
        &self,
        position: u64,
        parent: WorkerId,
        code: usize,
    ) -> Option<WorkRequest> {
        self.own.take_child_after(position, parent, code)
    }

    /// Returns whether `take_child_after` would find a request.
    #[inline]
    pub fn has_child_after(&self, position: u64, parent: WorkerId, code: usize) -> bool {
        self.own.has_child_after(position, parent, code)
    }

    /// Returns whether a request that is not urgent was queued before this one, which was taken
    /// from the own lane by `take_own` or `take_child_after`.
    #[inline]
    pub fn has_older(&self, request: &RequestState) -> bool {
        self.since_of(1) <= request.enqueued || self.own.has_older(request)
    }

    /// Queues a request that `take_own` has taken again, in the urgent lane. It has been accepted
    /// once, so a closed queue takes it, too.
    #[cold]
    pub fn queue_again(&self, request: WorkRequest) {
        let mut lanes = self.lock();
        lanes.urgent.push_back(request);
        self.publish(&lanes);
    }
}

/// What any thread may call.
impl WorkQueue {
    /// Makes an empty queue for at most `bound` requests. Urgent requests are accepted beyond that.
    pub fn new(bound: usize) -> WorkQueue {
        WorkQueue {
            own: Ring::new(),
            lanes: ShortLock::default(),
            shared: atomic::AtomicUsize::new(0),
            urgent: AtomicUsize::new(0),
            accepted: AtomicUsize::new(0),
            left: AtomicUsize::new(0),
            since: [const { AtomicU64::new(EMPTY) }; 2],
            open_to: AtomicU8::new(Caller::Plain as u8),
            bound,
        }
    }

    /// Queues a request at the end of a shared lane. If the request is accepted, it is counted
    /// before another thread can take it; a refused request is not counted. So the load never
    /// contains a request that was not accepted, and a shutdown can rely on it.
    pub fn push(
        &self,
        request: WorkRequest,
        by: Caller,
    ) -> Result<(), (EnqueueError, WorkRequest)> {
        let mut lanes = self.lock();
        if self.refuses(by) {
            return Err((EnqueueError::ShuttingDown, request));
        }
        let queued = self.own.len() + lanes.len();
        let urgent = request.state().is_urgent();
        if !urgent && queued >= self.bound && !request.state().past_bound {
            return Err((EnqueueError::QueueFull(queued), request));
        }
        // Release: a thread that finds the request sees that it is counted.
        let accepted = self.accepted.load(Ordering::Relaxed).wrapping_add(1);
        self.accepted.store(accepted, Ordering::Release);
        lanes.lane(urgent).push_back(request);
        self.publish(&lanes);
        Ok(())
    }

    /// Returns whether a request of this caller is refused, because the node shuts down.
    #[inline]
    fn refuses(&self, by: Caller) -> bool {
        (by as u8) < self.open_to.load(Ordering::Relaxed)
    }

    /// Takes a request for another scheduler: the first that is not bound to this one, and an
    /// urgent one if there is any. Calls `moved` before the request leaves this queue's count.
    pub fn take_for_another(&self, moved: impl Fn()) -> Option<WorkRequest> {
        let urgent = if self.urgent() > 0 { self.take_unbound(&moved) } else { None };
        let shared = || if self.shared() > 0 { self.take_unbound(&moved) } else { None };
        let own = || self.own.take_for_another(|| self.count_left(1, &moved));
        let shared_first = || self.own.front_seen().is_none_or(|own| self.since_of(1) < own);
        urgent
            .or_else(|| if shared_first() { shared().or_else(own) } else { own().or_else(shared) })
    }

    fn take_unbound(&self, moved: impl Fn()) -> Option<WorkRequest> {
        let mut lanes = self.lock();
        let Lanes { urgent, stale, fresh } = &mut *lanes;
        let all = [urgent, stale, fresh];
        let found = all.into_iter().find_map(|lane| lane.take_first(|r| !r.bound))?;
        self.count_left(1, moved);
        self.publish(&lanes);
        Some(found)
    }

    /// Returns when the first request was queued, as `fronts` does.
    pub fn fronts_seen(&self) -> [Option<u64>; 2] {
        self.earlier(self.own.front_seen())
    }

    #[inline]
    fn earlier(&self, own: Option<u64>) -> [Option<u64>; 2] {
        let seen = |since: u64| Some(since).filter(|since| *since != EMPTY);
        let other = self.since_of(1).min(own.unwrap_or(EMPTY));
        [seen(self.since_of(0)), seen(other)]
    }

    #[inline]
    fn since_of(&self, lane: usize) -> u64 {
        self.since[lane].load(Ordering::Relaxed)
    }

    /// Takes this request, which will not run, out of the queue, wherever in the queue it is.
    pub fn remove(&self, request: &RequestState) -> Option<WorkRequest> {
        let found = self.own.take_this(request).or_else(|| {
            let mut lanes = self.lock();
            let Lanes { urgent, stale, fresh } = &mut *lanes;
            let all = [fresh, stale, urgent];
            let found = all.into_iter().find_map(|lane| lane.take_out(request));
            self.publish(&lanes);
            found
        })?;
        if !planted::is(Bug::LeakOnCancel) {
            self.count_left(1, || ());
        }
        Some(found)
    }

    /// Queues a request that was taken from another queue. The bound does not apply, because the
    /// request has been accepted once.
    pub fn adopt(&self, request: WorkRequest) -> Result<(), WorkRequest> {
        let mut lanes = self.lock();
        if self.refuses(Caller::Request) {
            return Err(request);
        }
        lanes.push_back(request);
        self.publish(&lanes);
        Ok(())
    }

    /// Moves a queued request to the urgent lane, because a worker waits for its end. Returns false
    /// if the request is not in this queue, or is in the urgent lane already.
    ///
    /// The caller has made the request urgent *before*. So if another scheduler is moving it from
    /// this queue to its own, and this call comes too early to find it there, that scheduler sees
    /// the change when it queues the request (`RequestState::moves_to`), or the caller promotes the
    /// request in that scheduler's queue, too. Then `adopt` takes the lock of that queue after the
    /// call has released it.
    pub fn promote(&self, request: &RequestState) -> bool {
        let mut lanes = self.lock();
        // The number of requests must not be too small meanwhile (scheduler/peers, S3).
        self.shared.store(lanes.len() + 1, Ordering::Release);
        let own = self.own.take_this(request);
        let found = own.or_else(|| lanes.fresh.take_out(request));
        let found = found.or_else(|| lanes.stale.take_out(request));
        let is_here = found.is_some();
        found.into_iter().for_each(|request| lanes.urgent.push_back(request));
        self.publish(&lanes);
        is_here
    }

    /// Moves all queued requests that became urgent to the urgent lane, and the others to the fresh
    /// one. Returns true if any became urgent.
    pub fn promote_all(&self) -> bool {
        // The lock is taken for an empty queue, too: this scheduler may have taken a request from
        // another queue, and then sees under the lock that it is urgent (see `promote`).
        let mut lanes = self.lock();
        let (before, here) = (lanes.urgent.len(), lanes.len());
        // As in `promote`.
        let mut all =
            self.own.drain(|taken| self.shared.store(here + taken + 1, Ordering::Release));
        all.extend(lanes.fresh.drain());
        all.extend(lanes.stale.drain());
        // Each of the three was in order.
        all.sort_by_key(|request| request.state().enqueued);
        all.into_iter().for_each(|request| lanes.push_back(request));
        self.publish(&lanes);
        lanes.urgent.len() > before
    }

    /// Refuses requests of the callers before `first` in [`Caller`] from now on. A request that the
    /// baton's holder queues at this moment may still be accepted. It runs, and is counted.
    pub fn open_to(&self, first: Caller) {
        let _alone = self.lock();
        self.open_to.store(first as u8, Ordering::Relaxed);
    }

    /// Refuses all requests from now on, and returns those that are queued: they will not run.
    pub fn close(&self) -> Vec<WorkRequest> {
        let mut lanes = self.lock();
        self.open_to.store(Caller::None as u8, Ordering::Relaxed);
        let Lanes { urgent, stale, fresh } = &mut *lanes;
        let mut left: Vec<_> = urgent.drain().chain(stale.drain()).chain(fresh.drain()).collect();
        left.extend(self.own.drain(|_| ()));
        self.count_left(left.len(), || ());
        self.publish(&lanes);
        left
    }

    /// Returns how many requests were accepted, less those that left by any way but `take`.
    #[inline]
    pub fn accepted(&self) -> usize {
        // First those that have left. Acquire: a caller that finds a request gone from here sees
        // where else it was counted before.
        let left = self.left.load(Ordering::Acquire);
        let accepted = self.accepted.load(Ordering::Acquire).wrapping_add(self.own.queued());
        accepted.wrapping_sub(left)
    }

    /// Counts requests that have left the queue and were not taken. They are in another
    /// scheduler's load once `moved` has returned.
    fn count_left(&self, requests: usize, moved: impl Fn()) {
        moved();
        self.left.fetch_add(requests, Ordering::Release);
    }

    /// Returns how many requests are queued.
    #[inline]
    pub fn len(&self) -> usize {
        self.own.len() + self.shared()
    }

    /// Returns whether no request is queued.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.any() == 0
    }

    /// Returns 0 if no request is queued. Every yield asks, and tests this and the answers of
    /// others at once.
    #[inline]
    pub fn any(&self) -> usize {
        self.own.len() | self.shared()
    }

    #[inline]
    fn shared(&self) -> usize {
        self.shared.load(Ordering::Relaxed)
    }

    /// Returns how many requests are in the urgent lane.
    #[inline]
    pub fn urgent(&self) -> usize {
        self.urgent.load(Ordering::Relaxed)
    }

    /// Calls `look` for each queued request. For views. `look` must be short, because threads that
    /// queue requests wait meanwhile.
    pub fn each(&self, mut look: impl FnMut(Queued)) {
        let lanes = self.lock();
        let shared = [&lanes.urgent, &lanes.stale, &lanes.fresh].into_iter().flat_map(Lane::iter);
        shared.map(WorkRequest::state).map(Queued::of).for_each(&mut look);
        self.own.each(look);
    }

    fn lock(&self) -> ShortGuard<'_, Lanes> {
        self.lanes.lock()
    }

    fn publish(&self, lanes: &Lanes) {
        self.shared.store(lanes.len(), Ordering::Relaxed);
        self.urgent.store(lanes.urgent.len(), Ordering::Relaxed);
        self.since[0].store(lanes.urgent.since, Ordering::Relaxed);
        let other = lanes.fresh.since.min(lanes.stale.since);
        self.since[1].store(other, Ordering::Relaxed);
    }
}

/// Returns the first request of a lane that goes, and moves the search behind those that do not.
/// `next` returns the first request from a position on, without those in a row from there that have
/// a mark.
fn first_in(
    search: &mut LaneSearch,
    next: &dyn Fn(u64, Option<RequestMark>) -> Option<Seen>,
    goes: &dyn Fn(RequestMark, u64) -> bool,
) -> Option<Seen> {
    let mut last = None;
    while search.may_look() {
        let seen = next(search.at, last)?;
        if goes(seen.mark, seen.enqueued) {
            search.at = seen.position;
            return Some(seen);
        }
        (search.at, last) = (seen.position + 1, Some(seen.mark));
        search.looks += 1;
    }
    None
}

impl Lanes {
    fn len(&self) -> usize {
        self.urgent.len() + self.stale.len() + self.fresh.len()
    }

    /// Returns the stale lane or the fresh one: that whose first request was queued earlier.
    fn older(&mut self) -> &mut Lane {
        if self.stale.since < self.fresh.since { &mut self.stale } else { &mut self.fresh }
    }

    fn lane(&mut self, urgent: bool) -> &mut Lane {
        if urgent { &mut self.urgent } else { &mut self.fresh }
    }

    fn push_back(&mut self, request: WorkRequest) {
        let urgent = request.state().is_urgent();
        self.lane(urgent).push_back(request);
    }
}

#[cfg(all(test, loom))]
mod loom;
#[cfg(all(test, not(loom)))]
mod tests;
