//! The work queue: requests that have no worker yet.
//!
//! It lies outside the baton, behind a short lock: many producers, many takers, first in first out,
//! so that an idle scheduler can take requests from one whose worker does not yield (rule 3).
//! Requests of users that hold a resource have a lane of their own that is served first (rule 7).
//! The length can be read without the lock; nothing queued costs one load.
//!
//! A *lane* is a line of *places*, numbered as they are taken. A request knows its place, so it is
//! found there at once, however long the line is. A request that leaves from the middle leaves its
//! place empty, and the first that still stands is served next.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::os::short_lock::{ShortGuard, ShortLock};
use crate::scheduler::request::{RequestState, WorkRequest};
use crate::wait::error::EnqueueError;

/// Requests without a worker, of one scheduler.
pub(crate) struct WorkQueue {
    lanes: ShortLock<Lanes>,
    len: AtomicUsize,
    urgent: AtomicUsize,
    /// The time at which the first request of each lane was queued, for `fronts`.
    since: [AtomicU64; 2],
    bound: usize,
}

/// In `since`: the lane is empty.
const EMPTY: u64 = u64::MAX;

#[derive(Default)]
struct Lanes {
    urgent: Lane,
    fresh: Lane,
    /// Requests of callers before this one are refused.
    open_to: Caller,
}

/// The kind of caller that queues a request. A node that ends stops taking requests from one kind
/// after the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Caller {
    /// A plain thread.
    #[default]
    Plain,
    /// A completion routine.
    Routine,
    /// A request that is being carried out, and is part of its scheduler's load.
    Request,
    /// No caller: the queue is closed.
    None,
}

/// Requests in a line. The first place is never an empty one.
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

/// How many empty places are kept.
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

    /// Takes a request that has stood in some lane, if it stands in this one.
    fn take_out(&mut self, request: &RequestState) -> Option<WorkRequest> {
        // Places are written under the queue's lock, which the caller holds. The number may be from
        // another queue: then the request that stands there, if any, is another one.
        let place = request.place.load(Ordering::Relaxed).checked_sub(self.first)? as usize;
        let found = self.places.get(place)?.as_ref()?;
        if found.state().id == request.id { self.take(place) } else { None }
    }

    /// Takes the first request for which this is true.
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
            // A request that stays at the front while others leave behind it: close up.
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
    /// Makes an empty queue that takes at most `bound` requests; urgent ones are always taken.
    pub fn new(bound: usize) -> WorkQueue {
        WorkQueue {
            lanes: ShortLock::default(),
            len: AtomicUsize::new(0),
            urgent: AtomicUsize::new(0),
            since: [const { AtomicU64::new(EMPTY) }; 2],
            bound,
        }
    }

    /// Queues a request at the end of its lane, and counts it in `load`: before it can be taken,
    /// and only if it is not refused. So a load is never that of a request which was not accepted,
    /// and a shutdown can rely on it.
    pub fn push(
        &self,
        request: WorkRequest,
        by: Caller,
        load: &AtomicUsize,
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
        load.fetch_add(1, Ordering::Relaxed);
        let lane = if urgent { &mut lanes.urgent } else { &mut lanes.fresh };
        lane.push_back(request);
        self.publish(&lanes);
        Ok(())
    }

    /// Takes the request of a lane that has waited longest.
    pub fn take(&self, urgent: bool) -> Option<WorkRequest> {
        let mut lanes = self.lock();
        let Lanes { urgent: holders, fresh, .. } = &mut *lanes;
        let next = if urgent { holders } else { fresh }.pop_front();
        self.publish(&lanes);
        next
    }

    /// Takes a request for another scheduler: the one that has waited longest of those that may go.
    pub fn take_for_another(&self) -> Option<WorkRequest> {
        let mut lanes = self.lock();
        let Lanes { urgent, fresh, .. } = &mut *lanes;
        let found = [urgent, fresh].into_iter().find_map(|lane| lane.take_first(|r| !r.bound));
        self.publish(&lanes);
        found
    }

    /// Returns when the first request of each lane was enqueued: of the urgent ones, and of the
    /// others. The lane decides what is urgent, not the request: one that was promoted is in the
    /// urgent lane. Read without the lock, so the answer may be stale, and is only a hint.
    #[inline]
    pub fn fronts(&self) -> [Option<u64>; 2] {
        let since = |lane: usize| self.since[lane].load(Ordering::Relaxed);
        [0, 1].map(|lane| Some(since(lane)).filter(|since| *since != EMPTY))
    }

    /// Takes this request out, wherever it stands.
    pub fn remove(&self, request: &RequestState) -> Option<WorkRequest> {
        let mut lanes = self.lock();
        let Lanes { urgent, fresh, .. } = &mut *lanes;
        let found = [fresh, urgent].into_iter().find_map(|lane| lane.take_out(request));
        self.publish(&lanes);
        found
    }

    /// Queues what was taken from another queue, past the bound: it has been accepted once.
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

    /// Moves a waiting request that became urgent to the urgent lane, because a worker waits for
    /// its end. Returns false if it is not here (any more).
    ///
    /// The caller has made it urgent *before*. So if another scheduler is moving it from this queue
    /// to its own, that scheduler sees the change when it queues it, after us.
    pub fn promote(&self, request: &RequestState) -> bool {
        let mut lanes = self.lock();
        let Some(found) = lanes.fresh.take_out(request) else { return false };
        lanes.urgent.push_back(found);
        self.publish(&lanes);
        true
    }

    /// Does the same for all requests that became urgent together.
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

    /// From now on takes only requests of these callers and of those after them.
    pub fn open_to(&self, first: Caller) {
        self.lock().open_to = first;
    }

    /// Refuses new requests from now on, and returns those that wait.
    pub fn close(&self) -> Vec<WorkRequest> {
        let mut lanes = self.lock();
        lanes.open_to = Caller::None;
        let Lanes { urgent, fresh, .. } = &mut *lanes;
        let left = urgent.drain().chain(fresh.drain()).collect();
        self.publish(&lanes);
        left
    }

    /// Returns how many requests wait.
    #[inline]
    pub fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// Returns how many of them are urgent.
    #[inline]
    pub fn urgent(&self) -> usize {
        self.urgent.load(Ordering::Relaxed)
    }

    /// Calls `look` for each waiting request, for views. It must be short: producers wait.
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
    use crate::scheduler::request::{Job, RequestState};
    use std::sync::Arc;

    struct Nothing(RequestState);

    impl Job for Nothing {
        fn state(&self) -> &RequestState {
            &self.0
        }
        fn run(&self) {}
        fn abandon(&self) {}
    }

    fn request(user: u64, urgent: bool) -> WorkRequest {
        Arc::new(Nothing(RequestState::new(user, urgent)))
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
        let mut all: Vec<WorkRequest> = Vec::new();
        for step in 0..3000u64 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(step);
            let old = (!all.is_empty()).then(|| all[(seed >> 20) as usize % all.len()].clone());
            match (seed >> 60) % 6 {
                0..=2 => {
                    // The clock may stand still, and then the first and the next are alike.
                    let mut state = RequestState::new(step, seed >> 40 & 7 == 0);
                    state.enqueued = step;
                    let new: WorkRequest = Arc::new(Nothing(state));
                    all.push(new.clone());
                    let _ = queue.push(new, Caller::Request, &AtomicUsize::new(0));
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
        (1..=4).for_each(|u| {
            assert!(queue.push(request(u, false), Caller::Request, &AtomicUsize::new(0)).is_ok())
        });
        assert_eq!(users(&queue), [1, 2, 3, 4]);
    }

    #[test]
    fn requests_of_holders_are_served_first_and_past_the_bound_b12() {
        let queue = WorkQueue::new(2);
        (1..=2).for_each(|u| {
            assert!(queue.push(request(u, false), Caller::Request, &AtomicUsize::new(0)).is_ok())
        });
        assert!(queue.push(request(9, true), Caller::Request, &AtomicUsize::new(0)).is_ok());
        assert_eq!(queue.urgent(), 1);
        assert_eq!(users(&queue), [9, 1, 2]);
    }

    #[test]
    fn a_full_queue_says_how_full_it_is_g2_b19() {
        let queue = WorkQueue::new(1);
        assert!(queue.push(request(1, false), Caller::Request, &AtomicUsize::new(0)).is_ok());
        let refused = queue
            .push(request(2, false), Caller::Request, &AtomicUsize::new(0))
            .err()
            .map(|(e, r)| (e, r.state().user));
        assert_eq!(refused, Some((EnqueueError::QueueFull(1), 2)));
        assert_eq!(queue.close().len(), 1);
        let closed = queue
            .push(request(3, true), Caller::Request, &AtomicUsize::new(0))
            .err()
            .map(|(e, _)| e);
        assert_eq!(closed, Some(EnqueueError::ShuttingDown));
    }

    #[test]
    fn an_awaited_request_is_promoted_g11() {
        let queue = WorkQueue::new(10);
        let awaited = request(2, false);
        assert!(queue.push(request(1, false), Caller::Request, &AtomicUsize::new(0)).is_ok());
        assert!(queue.push(awaited.clone(), Caller::Request, &AtomicUsize::new(0)).is_ok());
        assert!(queue.promote(awaited.state()));
        assert!(!queue.promote(awaited.state()));
        assert!(queue.fronts()[0].is_some(), "it may have a reserve worker");
        assert_eq!(users(&queue), [2, 1]);
    }

    #[test]
    fn a_request_that_leaves_from_the_middle_keeps_the_order_of_the_others_u29() {
        let queue = WorkQueue::new(10);
        let all: Vec<_> = (0..6).map(|user| request(user, false)).collect();
        all.iter().for_each(|r| {
            assert!(queue.push(r.clone(), Caller::Request, &AtomicUsize::new(0)).is_ok())
        });
        assert!(queue.remove(all[2].state()).is_some());
        assert!(queue.remove(all[2].state()).is_none());
        assert!(queue.remove(all[0].state()).is_some());
        assert_eq!(queue.len(), 4);
        assert_eq!(queue.take(false).map(|r| r.state().user), Some(1));
        // The first place is that of 3 now; another queue's request that once had such a place is
        // no match.
        let other = WorkQueue::new(10);
        let stranger = request(9, false);
        (0..4).for_each(|user| {
            assert!(other.push(request(user, false), Caller::Request, &AtomicUsize::new(0)).is_ok())
        });
        assert!(other.push(stranger.clone(), Caller::Request, &AtomicUsize::new(0)).is_ok());
        assert!(queue.remove(stranger.state()).is_none());
        assert!(queue.promote(all[4].state()));
        assert_eq!(users(&queue), [4, 3, 5]);
        assert!(queue.remove(all[5].state()).is_none());
    }

    #[test]
    fn a_request_that_stays_at_the_front_keeps_no_empty_places_behind_it_g2() {
        let queue = WorkQueue::new(10);
        let first = request(1, false);
        assert!(queue.push(first.clone(), Caller::Request, &AtomicUsize::new(0)).is_ok());
        for user in 2..10_000 {
            let leaves = request(user, false);
            assert!(queue.push(leaves.clone(), Caller::Request, &AtomicUsize::new(0)).is_ok());
            assert!(queue.remove(leaves.state()).is_some());
        }
        let last = request(10_000, false);
        assert!(queue.push(last.clone(), Caller::Request, &AtomicUsize::new(0)).is_ok());
        assert!(queue.lock().fresh.places.len() <= PLACES_KEPT + 3);
        assert!(queue.promote(last.state()), "it is found in its new place");
        assert_eq!(users(&queue), [10_000, 1]);
    }
}
