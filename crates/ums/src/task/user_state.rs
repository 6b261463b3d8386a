//! The state of a user, except what its home scheduler keeps: its last request, and the sums over
//! all that have ended.
//!
//! ```text
//!   UserState --last--> request --user_state--> UserState
//! ```
//!
//! The references form a circle, which the end of the request breaks: each request ends, also one
//! that never runs. So the memory of a request is free as soon as it has ended, and a user that is
//! idle keeps nothing of its requests but numbers.

use std::sync::Arc;

use super::CancelHandle;
use crate::os::lock::Lock;
use crate::record::wait_stats::{Account, RequestWaits};
use crate::scheduler::request::{Holds, RequestId, RequestUser, UserId};

/// The state of a user.
pub(crate) struct UserState {
    pub id: UserId,
    /// The number of its home scheduler.
    pub home: usize,
    /// The waits and times of all its requests, added up.
    pub account: Account,
    pub holds: Arc<Holds>,
    last: Lock<LatestRequest>,
}

/// The request that a user has enqueued last.
#[derive(Default)]
pub(super) struct LatestRequest {
    /// Its number; 0 if there is none.
    id: RequestId,
    /// `None` if it has ended.
    handle: Option<CancelHandle>,
}

impl UserState {
    pub fn new(id: UserId, home: usize) -> UserState {
        let (account, holds, last) = (Account::default(), Arc::default(), Lock::default());
        UserState { id, home, account, holds, last }
    }

    /// Records the user's last request, which is about to be queued. From now on a cancellation
    /// finds this request. Returns the one before.
    pub(super) fn note_last(&self, handle: CancelHandle) -> LatestRequest {
        let new = LatestRequest { id: handle.request_id(), handle: Some(handle) };
        std::mem::replace(&mut *self.last.lock(), new)
    }

    /// Records again the request that was the last one before this one, which was not accepted.
    /// Does nothing if there is a later one.
    #[cold]
    pub(super) fn note_refused(&self, refused: RequestId, mut before: LatestRequest) {
        let mut last = self.last.lock();
        if last.id == refused {
            std::mem::swap(&mut *last, &mut before);
            // If it ends after this question, `forget` finds it.
            if last.handle.as_ref().is_some_and(CancelHandle::is_finished) {
                before.handle = last.handle.take();
            }
        }
        drop(last);
        // The last reference drops a result, whose destructor is the application's code.
        drop(before);
    }

    /// Cancels the last request. Returns false if it has ended or there was none.
    pub fn cancel(&self) -> bool {
        let last = self.last.lock().handle.clone();
        last.is_some_and(|last| last.cancel())
    }

    /// Returns the number of the request enqueued last.
    pub fn last_request(&self) -> Option<RequestId> {
        Some(self.last.lock().id).filter(|id| *id != 0)
    }

    pub fn is_busy(&self) -> bool {
        let last = self.last.lock();
        last.handle.as_ref().is_some_and(|last| !last.is_finished())
    }
}

impl RequestUser for UserState {
    fn settle(&self, queued: u64, elapsed: u64, waits: &RequestWaits) {
        self.account.settle(queued, elapsed, waits);
    }

    fn forget(&self, request: RequestId) {
        let mut last = self.last.lock();
        let ended = if last.id == request { last.handle.take() } else { None };
        drop(last);
        drop(ended);
    }
}
