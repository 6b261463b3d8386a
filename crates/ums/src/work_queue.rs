//! The work queue: requests that have no worker yet (G1).
//!
//! It lies outside the baton, behind a short lock: many producers, many takers, first in first out
//! (U29), so that an idle scheduler can take requests from one whose worker does not yield (B5,
//! rule 3). Requests of users that hold a resource have a lane of their own that is served first
//! (B12, rule 7). The length can be read without the lock; nothing queued costs one load.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::error::EnqueueError;
use crate::request::WorkRequest;

/// Requests without a worker, of one scheduler.
pub(crate) struct WorkQueue {
    lanes: Mutex<Lanes>,
    len: AtomicUsize,
    urgent: AtomicUsize,
    /// Requests ever queued: tells an idle loop whether there is news.
    pushed: AtomicUsize,
    bound: usize,
}

#[derive(Default)]
struct Lanes {
    urgent: VecDeque<WorkRequest>,
    fresh: VecDeque<WorkRequest>,
    closed: bool,
}

impl WorkQueue {
    /// An empty queue that takes at most `bound` requests; urgent ones are always taken.
    pub fn new(bound: usize) -> WorkQueue {
        WorkQueue {
            lanes: Mutex::default(),
            len: AtomicUsize::new(0),
            urgent: AtomicUsize::new(0),
            pushed: AtomicUsize::new(0),
            bound,
        }
    }

    /// Queues a request at the end of its lane.
    pub fn push(&self, request: WorkRequest) -> Result<(), (EnqueueError, WorkRequest)> {
        let mut lanes = self.lock();
        if lanes.closed {
            return Err((EnqueueError::ShuttingDown, request));
        }
        let queued = lanes.urgent.len() + lanes.fresh.len();
        if request.state().is_urgent() {
            lanes.urgent.push_back(request);
        } else if queued >= self.bound {
            return Err((EnqueueError::QueueFull(queued), request));
        } else {
            lanes.fresh.push_back(request);
        }
        self.publish(&lanes);
        self.pushed.store(self.pushed.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        Ok(())
    }

    /// Takes the next request: an urgent one if there is one, else (unless only urgent ones are
    /// wanted) the one that has waited longest.
    pub fn take(&self, urgent_only: bool) -> Option<WorkRequest> {
        let mut lanes = self.lock();
        let next = lanes.urgent.pop_front();
        let next = if urgent_only { next } else { next.or_else(|| lanes.fresh.pop_front()) };
        self.publish(&lanes);
        next
    }

    /// Takes a request for another scheduler: the one that has waited longest of those that may go.
    pub fn take_for_another(&self) -> Option<WorkRequest> {
        let mut lanes = self.lock();
        let Lanes { urgent, fresh, .. } = &mut *lanes;
        let found = [urgent, fresh].into_iter().find_map(|lane| {
            let at = lane.iter().position(|r| !r.state().bound)?;
            lane.remove(at)
        });
        self.publish(&lanes);
        found
    }

    /// When the request that `take` would give was enqueued, and whether it is urgent.
    pub fn front(&self) -> Option<(u64, bool)> {
        let lanes = self.lock();
        let front = lanes.urgent.front().or_else(|| lanes.fresh.front())?;
        // The lane says it, not the request: one that was promoted is in the urgent lane.
        Some((front.state().enqueued, !lanes.urgent.is_empty()))
    }

    /// Takes this request out, wherever it stands.
    pub fn remove(&self, id: crate::request::RequestId) -> Option<WorkRequest> {
        let mut lanes = self.lock();
        let Lanes { urgent, fresh, .. } = &mut *lanes;
        let found = [fresh, urgent].into_iter().find_map(|lane| {
            let at = lane.iter().position(|r| r.state().id == id)?;
            lane.remove(at)
        });
        self.publish(&lanes);
        found
    }

    /// Queues what was taken from another queue, past the bound: it has been accepted once.
    pub fn adopt(&self, request: WorkRequest) -> Result<(), WorkRequest> {
        let mut lanes = self.lock();
        if lanes.closed {
            return Err(request);
        }
        let Lanes { urgent, fresh, .. } = &mut *lanes;
        let lane = if request.state().is_urgent() { urgent } else { fresh };
        lane.push_back(request);
        self.publish(&lanes);
        self.pushed.store(self.pushed.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        Ok(())
    }

    /// Moves a waiting request that became urgent to the urgent lane, because a worker waits for
    /// its end. False: it is not here (any more).
    ///
    /// The caller has made it urgent *before*. So if another scheduler has it in hand, on the way
    /// from this queue to its own, it will see that when it puts it down, after us.
    pub fn promote(&self, id: crate::request::RequestId) -> bool {
        let mut lanes = self.lock();
        let is_it = |r: &WorkRequest| r.state().id == id;
        // Parents join the child they spawned first, or last.
        let first = lanes.fresh.front().is_some_and(is_it).then_some(0);
        let found = first.or_else(|| lanes.fresh.iter().rposition(is_it));
        let request = found.and_then(|at| lanes.fresh.remove(at));
        let promoted = request.is_some();
        lanes.urgent.extend(request);
        self.publish(&lanes);
        promoted
    }

    /// As [`WorkQueue::promote`], for all that became urgent together.
    pub fn promote_all(&self) -> bool {
        if self.len() == 0 {
            return false;
        }
        let mut lanes = self.lock();
        let (urgent, fresh): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut lanes.fresh).into_iter().partition(|r| r.state().is_urgent());
        let promoted = !urgent.is_empty();
        lanes.fresh = fresh;
        lanes.urgent.extend(urgent);
        self.publish(&lanes);
        promoted
    }

    /// Refuses new requests from now on and gives back those that wait.
    pub fn close(&self) -> Vec<WorkRequest> {
        let mut lanes = self.lock();
        lanes.closed = true;
        let Lanes { urgent, fresh, .. } = &mut *lanes;
        let left = urgent.drain(..).chain(fresh.drain(..)).collect();
        self.publish(&lanes);
        left
    }

    /// How many requests wait.
    #[inline]
    pub fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// How many requests were ever queued here (it may wrap).
    pub fn pushed(&self) -> usize {
        self.pushed.load(Ordering::Relaxed)
    }

    /// How many of them are urgent.
    #[inline]
    pub fn urgent(&self) -> usize {
        self.urgent.load(Ordering::Relaxed)
    }

    /// Looks at each waiting request, for views. Keep it short: producers wait.
    pub fn each(&self, mut look: impl FnMut(&WorkRequest)) {
        let lanes = self.lock();
        lanes.urgent.iter().chain(&lanes.fresh).for_each(&mut look);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Lanes> {
        self.lanes.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn publish(&self, lanes: &Lanes) {
        self.len.store(lanes.urgent.len() + lanes.fresh.len(), Ordering::Relaxed);
        self.urgent.store(lanes.urgent.len(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{Job, RequestState};
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
        std::iter::from_fn(|| queue.take(false)).map(|r| r.state().user).collect()
    }

    #[test]
    fn requests_are_served_first_in_first_out_u29() {
        let queue = WorkQueue::new(10);
        (1..=4).for_each(|u| assert!(queue.push(request(u, false)).is_ok()));
        assert_eq!(users(&queue), [1, 2, 3, 4]);
    }

    #[test]
    fn requests_of_holders_are_served_first_and_past_the_bound_b12() {
        let queue = WorkQueue::new(2);
        (1..=2).for_each(|u| assert!(queue.push(request(u, false)).is_ok()));
        assert!(queue.push(request(9, true)).is_ok());
        assert_eq!(queue.urgent(), 1);
        assert_eq!(users(&queue), [9, 1, 2]);
    }

    #[test]
    fn a_full_queue_says_how_full_it_is_g2_b19() {
        let queue = WorkQueue::new(1);
        assert!(queue.push(request(1, false)).is_ok());
        let refused = queue.push(request(2, false)).err().map(|(e, r)| (e, r.state().user));
        assert_eq!(refused, Some((EnqueueError::QueueFull(1), 2)));
        assert_eq!(queue.close().len(), 1);
        let closed = queue.push(request(3, true)).err().map(|(e, _)| e);
        assert_eq!(closed, Some(EnqueueError::ShuttingDown));
    }

    #[test]
    fn an_awaited_request_is_promoted_g11() {
        let queue = WorkQueue::new(10);
        let awaited = request(2, false);
        let id = awaited.state().id;
        assert!(queue.push(request(1, false)).is_ok());
        assert!(queue.push(awaited).is_ok());
        assert!(queue.promote(id));
        assert!(!queue.promote(id));
        assert!(queue.front().is_some_and(|(_, urgent)| urgent), "it may have a reserve worker");
        assert_eq!(users(&queue), [2, 1]);
    }
}
