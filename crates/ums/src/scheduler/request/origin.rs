//! Where a request comes from: a scope, a user, or neither.

use std::sync::atomic::Ordering;

use crate::os::clock::NEVER;
use crate::os::counted::AtomicBool;
use crate::wait::Waiter;

/// A number, unique among the requests of this process. Later requests do not always have larger
/// numbers.
pub type RequestId = u64;

/// A user's number; 0 for none.
pub type UserId = u64;

/// The scope or the user whose request it is.
pub(crate) trait Origin: Send + Sync {
    /// Returns whether all its requests are urgent.
    fn is_urgent(&self) -> bool {
        false
    }

    /// Returns the limit of its requests' waits, in nanoseconds of the clock; [`NEVER`] if there is
    /// none.
    fn limit(&self) -> u64 {
        NEVER
    }

    /// Called when a request is about to end: adds what the runner has counted for it to the sums,
    /// and drops what it keeps of the request. A request that never runs has no runner.
    fn ends(&self, _request: RequestId, _runner: Option<&Waiter>) {}
}

/// What all tasks of a scope have in common.
pub(crate) struct Family {
    /// If it is true, all of them are urgent.
    pub urgent: AtomicBool,
    limit: u64,
}

impl Family {
    /// Makes what tasks have in common, none of which is urgent. The limit is that of
    /// [`Origin::limit`].
    pub fn new(limit: u64) -> Family {
        Family { urgent: AtomicBool::new(false), limit }
    }
}

impl Origin for Family {
    fn is_urgent(&self) -> bool {
        self.urgent.load(Ordering::Relaxed)
    }

    fn limit(&self) -> u64 {
        self.limit
    }
}
