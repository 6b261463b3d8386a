//! The foreign locks (locks of std, of another crate or of C) that a waiter has declared that it
//! holds. Debug builds only; see `sync/foreign.rs`.

use std::panic::Location;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::os::atomic_ref::AtomicRef;

/// The number of declared foreign locks that a waiter holds, and where it took the last one. Only
/// the waiter itself uses this.
///
/// The count is for one request: a lock that is still held, or was forgotten, when a request ends
/// does not count in the next request.
pub(crate) struct ForeignLocks {
    /// The number of requests that ended while such a lock was held.
    request: AtomicU32,
    count: AtomicU32,
    last: AtomicRef<Location<'static>>,
}

impl ForeignLocks {
    pub(super) fn new() -> ForeignLocks {
        let (request, count) = (AtomicU32::new(0), AtomicU32::new(0));
        ForeignLocks { request, count, last: AtomicRef::new() }
    }

    /// Counts one more lock. Returns a number for [`ForeignLocks::release`] that identifies the
    /// request.
    pub(crate) fn hold(&self, at: &'static Location<'static>) -> u32 {
        self.last.store(Some(at));
        self.count.fetch_add(1, Ordering::Relaxed);
        self.request.load(Ordering::Relaxed)
    }

    /// Counts one lock less, if it was taken in the present request.
    pub(crate) fn release(&self, request: u32) {
        if request == self.request.load(Ordering::Relaxed) {
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Ends the request: no lock counts from now on.
    pub(crate) fn end_request(&self) {
        if self.count.load(Ordering::Relaxed) > 0 {
            self.count.store(0, Ordering::Relaxed);
            self.request.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns where the waiter took its last lock, if it holds any.
    pub(crate) fn held(&self) -> Option<&'static Location<'static>> {
        let any = self.count.load(Ordering::Relaxed) > 0;
        self.last.load().filter(|_| any)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_counts_until_it_is_released_or_its_request_ends() {
        let (locks, here) = (ForeignLocks::new(), Location::caller());
        let numbers = [locks.hold(here), locks.hold(here)];
        locks.release(numbers[0]);
        assert_eq!(locks.held(), Some(here), "one is left");
        locks.release(numbers[1]);
        assert_eq!(locks.held(), None);
        let forgotten = locks.hold(here);
        locks.end_request();
        assert_eq!(locks.held(), None);
        let next = locks.hold(here);
        locks.release(forgotten);
        assert_eq!(locks.held(), Some(here), "the lock of an earlier request does not count");
        locks.release(next);
        assert_eq!(locks.held(), None);
    }
}
