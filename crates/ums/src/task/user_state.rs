//! The state of a user, except what its home scheduler keeps: its last request, and the sums over
//! all that have ended.
//!
//! ```text
//!   UserState --last--> request --origin--> UserState
//! ```
//!
//! The references form a circle, which the end of the request breaks; each request ends, also one
//! that never runs. So a user that is idle keeps nothing of its requests but numbers, and the
//! memory of a request is free when it has ended and its result was taken.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::CancelHandle;
use crate::os::clock;
use crate::os::lock::Lock;
use crate::os::threads::{operation, uninterrupted};
use crate::record::wait_stats::Account;
use crate::scheduler::request::{Holds, Origin, RequestId, RequestState, UserId};
use crate::wait::Waiter;

/// The state of a user.
pub(crate) struct UserState {
    pub id: UserId,
    /// The number of its home scheduler.
    pub home: usize,
    pub holds: Arc<Holds>,
    requests: Lock<Requests>,
}

#[derive(Default)]
struct Requests {
    /// The waits and times of those that have ended, added up.
    ended: Account,
    last: LatestRequest,
}

/// The request that a user has enqueued last.
#[derive(Default)]
pub(super) struct LatestRequest {
    /// Its number; 0 if there is none.
    id: RequestId,
    /// `None` if it has ended, or is about to end.
    handle: Option<CancelHandle>,
}

impl UserState {
    pub fn new(id: UserId, home: usize) -> UserState {
        UserState { id, home, holds: Arc::default(), requests: Lock::default() }
    }

    /// Records the user's last request, which is about to be queued. From now on a cancellation
    /// finds this request. Returns the one before.
    pub(super) fn note_last(&self, handle: CancelHandle) -> LatestRequest {
        let new = LatestRequest { id: handle.request_id(), handle: Some(handle) };
        std::mem::replace(&mut self.requests.lock().last, new)
    }

    /// Records again the request that was the last one before this one, which was not accepted.
    /// Does nothing if there is a later one.
    #[cold]
    pub(super) fn note_refused(&self, refused: &RequestState, mut before: LatestRequest) {
        let mut requests = self.requests.lock();
        let last = &mut requests.last;
        let mut was_meant = false;
        if last.id == refused.id {
            std::mem::swap(last, &mut before);
            // A request that has not told yet that it ends is found when it does.
            if last.handle.as_ref().is_some_and(CancelHandle::is_ending) {
                before.handle = last.handle.take();
            }
            was_meant = refused.is_cancelled();
        }
        drop(requests);
        // The last reference drops a result, whose destructor is the application's code.
        drop(before);
        if was_meant {
            // The user's last request was to be cancelled, and this one has not become it.
            self.cancel();
        }
    }

    /// Cancels the last request. Returns false if it has ended or there was none.
    pub fn cancel(&self) -> bool {
        operation("user: cancel");
        let requests = self.requests.lock();
        let Some(last) = requests.last.handle.clone() else { return false };
        let alive = !last.is_finished();
        // Under the lock, so that `note_refused` sees the mark, or this finds the request before.
        // In a simulated world, another thread that wants the lock would block with the token.
        let found = uninterrupted(|| last.mark());
        drop(requests);
        last.after_mark(found);
        alive
    }

    /// Returns the number of the request enqueued last.
    pub fn last_request(&self) -> Option<RequestId> {
        Some(self.requests.lock().last.id).filter(|id| *id != 0)
    }

    /// Returns whether the last request is queued or running.
    pub fn is_busy(&self) -> bool {
        let requests = self.requests.lock();
        requests.last.handle.as_ref().is_some_and(|last| !last.is_finished())
    }

    /// Returns the waits and times of its requests that have ended, added up.
    pub fn account(&self) -> Account {
        self.requests.lock().ended.clone()
    }

    /// Sets all these sums to zero.
    pub fn reset_account(&self) {
        self.requests.lock().ended = Account::default();
    }
}

impl Origin for UserState {
    fn ends(&self, request: RequestId, runner: Option<&Waiter>) {
        let mut requests = self.requests.lock();
        if let Some(waiter) = runner {
            let view = &waiter.record.view;
            let elapsed = clock::ticks().saturating_sub(view.started.load(Ordering::Relaxed));
            let queued = view.queued.load(Ordering::Relaxed);
            requests.ended.settle(queued, elapsed, &view.waits);
        }
        let is_last = requests.last.id == request;
        let last = if is_last { requests.last.handle.take() } else { None };
        drop(requests);
        drop(last);
    }
}
