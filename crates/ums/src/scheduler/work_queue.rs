//! The work queue: one scheduler's requests that have no worker yet.
//!
//! The queue is first in, first out, and behind a short lock. The baton does not protect it: any
//! thread may queue a request, and an idle scheduler can take requests from another whose worker
//! does not yield (rule 3). Requests of users that hold a resource have a lane of their own, which
//! is served first (rule 7). The number of requests can be read without the lock, so an empty queue
//! costs a turn one load.
//!
//! A *lane* is a row of *places*, numbered in the order in which they are filled. Each request
//! stores the number of its place, so it is found without a search, however long the lane is. If a
//! request is taken from the middle of a lane, its place stays empty, and serving skips it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::os::planted::{self, Bug};
use crate::os::short_lock::{ShortGuard, ShortLock};
use crate::scheduler::request::{RequestState, WorkRequest};
use crate::wait::error::EnqueueError;

/// Requests without a worker, of one scheduler.
pub(crate) struct WorkQueue {
    lanes: ShortLock<Lanes>,
    len: AtomicUsize,
    urgent: AtomicUsize,
    /// The number of accepted requests, less those that left the queue by any way but `take`: the
    /// queue's part of its scheduler's load. Written under the lock.
    accepted: AtomicUsize,
    /// The time at which the first request of each lane was queued, copied for `fronts`.
    since: [AtomicU64; 2],
    bound: usize,
}

/// The value in `since` that says that the lane is empty.
const EMPTY: u64 = u64::MAX;

#[derive(Default)]
struct Lanes {
    urgent: Lane,
    fresh: Lane,
    /// The queue refuses requests of callers that come before this one in [`Caller`].
    open_to: Caller,
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

/// Requests in the order in which they were queued. The first place is never empty.
struct Lane {
    places: VecDeque<Option<WorkRequest>>,
    /// The number of the first place.
    first: u64,
    len: usize,
    /// The time at which the first request was queued; `EMPTY` if there is none.
    since: u64,
}

impl Default for Lane {
    fn default() -> Lane {
        Lane { places: VecDeque::new(), first: 0, len: 0, since: EMPTY }
    }
}

/// How many empty places a lane may keep, beyond one for each request in it.
const PLACES_KEPT: usize = 64;

impl Lane {
    fn len(&self) -> usize {
        self.len
    }

    fn front(&self) -> Option<&WorkRequest> {
        self.places.front()?.as_ref()
    }

    fn iter(&self) -> impl Iterator<Item = &WorkRequest> {
        self.places.iter().flatten()
    }

    fn push_back(&mut self, request: WorkRequest) {
        let place = self.first + self.places.len() as u64;
        request.state().place.store(place, Ordering::Relaxed);
        if self.len == 0 {
            self.since = request.state().enqueued;
        }
        self.places.push_back(Some(request));
        self.len += 1;
    }

    fn pop_front(&mut self) -> Option<WorkRequest> {
        self.take(0)
    }

    /// Takes this request, if it is in this lane. It may be in another lane or queue, or in none.
    fn take_out(&mut self, request: &RequestState) -> Option<WorkRequest> {
        // Places are written under the lock of the queue that the request is in; the caller holds
        // the lock of this queue. If the request is in another queue, the number is a place there,
        // and the request found under it here, if any, has another id.
        let place = request.place.load(Ordering::Relaxed).checked_sub(self.first)? as usize;
        let found = self.places.get(place)?.as_ref()?;
        if found.state().id == request.id { self.take(place) } else { None }
    }

    /// Takes the first request for which `so` returns true.
    fn take_first(&mut self, so: impl Fn(&RequestState) -> bool) -> Option<WorkRequest> {
        let is = |r: &Option<WorkRequest>| r.as_ref().is_some_and(|r| so(r.state()));
        self.places.iter().position(is).and_then(|place| self.take(place))
    }

    fn take(&mut self, place: usize) -> Option<WorkRequest> {
        let request = self.places.get_mut(place)?.take()?;
        self.len -= 1;
        while let Some(None) = self.places.front() {
            self.places.pop_front();
            self.first += 1;
        }
        if self.places.len() > 2 * self.len + PLACES_KEPT {
            // A request stays at the front while others leave behind it: remove the empty places.
            let all: Vec<_> = self.drain().collect();
            all.into_iter().for_each(|request| self.push_back(request));
        }
        if place == 0 {
            self.since = self.front().map_or(EMPTY, |first| first.state().enqueued);
        }
        Some(request)
    }

    fn drain(&mut self) -> impl Iterator<Item = WorkRequest> {
        self.first += self.places.len() as u64;
        (self.len, self.since) = (0, EMPTY);
        std::mem::take(&mut self.places).into_iter().flatten()
    }
}

impl WorkQueue {
    /// Makes an empty queue for at most `bound` requests. Urgent requests are accepted beyond that.
    pub fn new(bound: usize) -> WorkQueue {
        WorkQueue {
            lanes: ShortLock::default(),
            len: AtomicUsize::new(0),
            urgent: AtomicUsize::new(0),
            accepted: AtomicUsize::new(0),
            since: [const { AtomicU64::new(EMPTY) }; 2],
            bound,
        }
    }

    /// Queues a request at the end of its lane. If the request is accepted, it is counted before
    /// another thread can take it; a refused request is not counted. So the load never contains a
    /// request that was not accepted, and a shutdown can rely on it.
    pub fn push(
        &self,
        request: WorkRequest,
        by: Caller,
    ) -> Result<(), (EnqueueError, WorkRequest)> {
        let mut lanes = self.lock();
        if by < lanes.open_to {
            return Err((EnqueueError::ShuttingDown, request));
        }
        let queued = lanes.urgent.len() + lanes.fresh.len();
        let urgent = request.state().is_urgent();
        if !urgent && queued >= self.bound && !request.state().past_bound {
            return Err((EnqueueError::QueueFull(queued), request));
        }
        self.count(1);
        let lane = if urgent { &mut lanes.urgent } else { &mut lanes.fresh };
        lane.push_back(request);
        self.publish(&lanes);
        Ok(())
    }

    /// Takes the first request of the urgent lane if `urgent` is true, or else of the other lane.
    pub fn take(&self, urgent: bool) -> Option<WorkRequest> {
        let mut lanes = self.lock();
        let Lanes { urgent: holders, fresh, .. } = &mut *lanes;
        let next = if urgent { holders } else { fresh }.pop_front();
        self.publish(&lanes);
        next
    }

    /// Takes a request for another scheduler: the first that is not bound to this one, and an
    /// urgent one if there is any. Calls `moved` before the request leaves this queue's count.
    pub fn take_for_another(&self, moved: impl FnOnce()) -> Option<WorkRequest> {
        let mut lanes = self.lock();
        let Lanes { urgent, fresh, .. } = &mut *lanes;
        let found = [urgent, fresh].into_iter().find_map(|lane| lane.take_first(|r| !r.bound))?;
        moved();
        self.count(usize::MAX);
        self.publish(&lanes);
        Some(found)
    }

    /// Returns when the first request of each lane was enqueued: of the urgent lane, and of the
    /// other. A request that was promoted is in the urgent lane. Read without the lock, so the
    /// answer may be stale, and is only a hint.
    #[inline]
    pub fn fronts(&self) -> [Option<u64>; 2] {
        let since = |lane: usize| self.since[lane].load(Ordering::Relaxed);
        [0, 1].map(|lane| Some(since(lane)).filter(|since| *since != EMPTY))
    }

    /// Takes this request, which will not run, out of the queue, wherever in the queue it is.
    pub fn remove(&self, request: &RequestState) -> Option<WorkRequest> {
        let mut lanes = self.lock();
        let Lanes { urgent, fresh, .. } = &mut *lanes;
        let found = [fresh, urgent].into_iter().find_map(|lane| lane.take_out(request))?;
        if !planted::is(Bug::LeakOnCancel) {
            self.count(usize::MAX);
        }
        self.publish(&lanes);
        Some(found)
    }

    /// Queues a request that was taken from another queue. The bound does not apply, because the
    /// request has been accepted once.
    pub fn adopt(&self, request: WorkRequest) -> Result<(), WorkRequest> {
        let mut lanes = self.lock();
        if lanes.open_to == Caller::None {
            return Err(request);
        }
        let Lanes { urgent, fresh, .. } = &mut *lanes;
        let lane = if request.state().is_urgent() { urgent } else { fresh };
        lane.push_back(request);
        self.publish(&lanes);
        Ok(())
    }

    /// Moves a queued request to the urgent lane, because a worker waits for its end. Returns false
    /// if the request is not in this queue, or is in the urgent lane already.
    ///
    /// The caller has made the request urgent *before*. So if another scheduler is moving it from
    /// this queue to its own, and this call comes too early to find it there, that scheduler sees
    /// the change when it queues the request.
    pub fn promote(&self, request: &RequestState) -> bool {
        let mut lanes = self.lock();
        let Some(found) = lanes.fresh.take_out(request) else { return false };
        lanes.urgent.push_back(found);
        self.publish(&lanes);
        true
    }

    /// Moves all queued requests that became urgent to the urgent lane. Returns true if there were
    /// any.
    pub fn promote_all(&self) -> bool {
        if self.len() == 0 {
            return false;
        }
        let mut lanes = self.lock();
        let before = lanes.urgent.len();
        let all: Vec<_> = lanes.fresh.drain().collect();
        for request in all {
            let lane =
                if request.state().is_urgent() { &mut lanes.urgent } else { &mut lanes.fresh };
            lane.push_back(request);
        }
        self.publish(&lanes);
        lanes.urgent.len() > before
    }

    /// Refuses requests of the callers before `first` in [`Caller`] from now on.
    pub fn open_to(&self, first: Caller) {
        self.lock().open_to = first;
    }

    /// Refuses all requests from now on, and returns those that are queued: they will not run.
    pub fn close(&self) -> Vec<WorkRequest> {
        let mut lanes = self.lock();
        lanes.open_to = Caller::None;
        let Lanes { urgent, fresh, .. } = &mut *lanes;
        let left: Vec<_> = urgent.drain().chain(fresh.drain()).collect();
        self.count(left.len().wrapping_neg());
        self.publish(&lanes);
        left
    }

    /// Returns how many requests were accepted, less those that left by any way but `take`.
    #[inline]
    pub fn accepted(&self) -> usize {
        self.accepted.load(Ordering::Acquire)
    }

    /// Adds to the count of accepted requests. The caller has the lock.
    fn count(&self, by: usize) {
        let now = self.accepted.load(Ordering::Relaxed).wrapping_add(by);
        // Release: a reader that finds a request gone from here sees where it was counted before.
        self.accepted.store(now, Ordering::Release);
    }

    /// Returns how many requests are queued.
    #[inline]
    pub fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// Returns how many requests are in the urgent lane.
    #[inline]
    pub fn urgent(&self) -> usize {
        self.urgent.load(Ordering::Relaxed)
    }

    /// Calls `look` for each queued request. For views. `look` must be short, because threads that
    /// queue requests wait meanwhile.
    pub fn each(&self, mut look: impl FnMut(&WorkRequest)) {
        let lanes = self.lock();
        lanes.urgent.iter().chain(lanes.fresh.iter()).for_each(&mut look);
    }

    fn lock(&self) -> ShortGuard<'_, Lanes> {
        self.lanes.lock()
    }

    fn publish(&self, lanes: &Lanes) {
        self.len.store(lanes.urgent.len() + lanes.fresh.len(), Ordering::Relaxed);
        self.urgent.store(lanes.urgent.len(), Ordering::Relaxed);
        self.since[0].store(lanes.urgent.since, Ordering::Relaxed);
        self.since[1].store(lanes.fresh.since, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::request::{RequestRef, RequestState, make};

    fn request(user: u64, urgent: bool) -> WorkRequest {
        make(RequestState::new(user, urgent), || ()).0
    }

    /// A request, and a reference that stays when it is queued.
    fn known(user: u64) -> (WorkRequest, RequestRef) {
        let (request, result) = make(RequestState::new(user, false), || ());
        (request, result.request())
    }

    fn users(queue: &WorkQueue) -> Vec<u64> {
        std::iter::from_fn(|| queue.take(true).or_else(|| queue.take(false)))
            .map(|r| r.state().user)
            .collect()
    }

    #[test]
    fn the_times_of_the_first_requests_are_right_after_every_change() {
        let queue = WorkQueue::new(1000);
        let mut seed = 1u64;
        let mut all: Vec<RequestRef> = Vec::new();
        for step in 0..3000u64 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(step);
            let old = (!all.is_empty()).then(|| all[(seed >> 20) as usize % all.len()].clone());
            match (seed >> 60) % 6 {
                0..=2 => {
                    // The clock may stand still: then two requests have the same time.
                    let mut state = RequestState::new(step, seed >> 40 & 7 == 0);
                    state.enqueued = step;
                    let (new, result) = make(state, || ());
                    all.push(result.request());
                    let _ = queue.push(new, Caller::Request);
                }
                3 => drop(queue.take(seed >> 30 & 1 == 0)),
                4 => drop(old.and_then(|old| queue.remove(old.state()))),
                _ => drop(old.map(|old| queue.promote(old.state()))),
            }
            let lanes = queue.lock();
            let first = |lane: &Lane| lane.front().map(|request| request.state().enqueued);
            let firsts = [first(&lanes.urgent), first(&lanes.fresh)];
            drop(lanes);
            assert_eq!(queue.fronts(), firsts, "after step {step}");
        }
    }

    #[test]
    fn requests_are_served_first_in_first_out_u29() {
        let queue = WorkQueue::new(10);
        (1..=4).for_each(|u| assert!(queue.push(request(u, false), Caller::Request).is_ok()));
        assert_eq!(users(&queue), [1, 2, 3, 4]);
    }

    #[test]
    fn requests_of_holders_are_served_first_and_past_the_bound_b12() {
        let queue = WorkQueue::new(2);
        (1..=2).for_each(|u| assert!(queue.push(request(u, false), Caller::Request).is_ok()));
        assert!(queue.push(request(9, true), Caller::Request).is_ok());
        assert_eq!(queue.urgent(), 1);
        assert_eq!(users(&queue), [9, 1, 2]);
    }

    #[test]
    fn a_full_queue_says_how_full_it_is_g2_b19() {
        let queue = WorkQueue::new(1);
        assert!(queue.push(request(1, false), Caller::Request).is_ok());
        let refused =
            queue.push(request(2, false), Caller::Request).err().map(|(e, r)| (e, r.state().user));
        assert_eq!(refused, Some((EnqueueError::QueueFull(1), 2)));
        assert_eq!(queue.close().len(), 1);
        let closed = queue.push(request(3, true), Caller::Request).err().map(|(e, _)| e);
        assert_eq!(closed, Some(EnqueueError::ShuttingDown));
    }

    #[test]
    fn an_awaited_request_is_promoted_g11() {
        let queue = WorkQueue::new(10);
        let (new, awaited) = known(2);
        assert!(queue.push(request(1, false), Caller::Request).is_ok());
        assert!(queue.push(new, Caller::Request).is_ok());
        assert!(queue.promote(awaited.state()));
        assert!(!queue.promote(awaited.state()));
        assert!(queue.fronts()[0].is_some(), "it may have a reserve worker");
        assert_eq!(users(&queue), [2, 1]);
    }

    #[test]
    fn a_request_that_leaves_from_the_middle_keeps_the_order_of_the_others_u29() {
        let queue = WorkQueue::new(10);
        let push = |queue: &WorkQueue, user| {
            let (new, state) = known(user);
            assert!(queue.push(new, Caller::Request).is_ok());
            state
        };
        let all: Vec<_> = (0..6).map(|user| push(&queue, user)).collect();
        assert!(queue.remove(all[2].state()).is_some());
        assert!(queue.remove(all[2].state()).is_none());
        assert!(queue.remove(all[0].state()).is_some());
        assert_eq!(queue.len(), 4);
        assert_eq!(queue.take(false).map(|r| r.state().user), Some(1));
        // The first place of `queue` is that of request 3 now. A request of another queue that has
        // a place number that exists in `queue`, too, is not found there.
        let other = WorkQueue::new(10);
        (0..4).for_each(|user| drop(push(&other, user)));
        let stranger = push(&other, 9);
        assert!(queue.remove(stranger.state()).is_none());
        assert!(queue.promote(all[4].state()));
        assert_eq!(users(&queue), [4, 3, 5]);
        assert!(queue.remove(all[5].state()).is_none());
    }

    #[test]
    fn a_request_that_stays_at_the_front_keeps_no_empty_places_behind_it_g2() {
        let queue = WorkQueue::new(10);
        assert!(queue.push(request(1, false), Caller::Request).is_ok());
        for user in 2..10_000 {
            let (new, leaves) = known(user);
            assert!(queue.push(new, Caller::Request).is_ok());
            assert!(queue.remove(leaves.state()).is_some());
        }
        let (new, last) = known(10_000);
        assert!(queue.push(new, Caller::Request).is_ok());
        assert!(queue.lock().fresh.places.len() <= PLACES_KEPT + 3);
        assert!(queue.promote(last.state()), "it is found in its new place");
        assert_eq!(users(&queue), [10_000, 1]);
    }
}
