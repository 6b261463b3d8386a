//! Which foreign locks a waiter says that it holds, in debug builds; see `sync/foreign.rs`.

use std::panic::Location;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::os::atomic_ref::AtomicRef;

/// How many it holds, and where it took the last one. Only the waiter itself touches this.
///
/// They are counted for one request: a lock that is kept or forgotten does not count in a later
/// request.
pub(crate) struct ForeignLocks {
    /// Grows when a request ends with such a lock.
    request: AtomicU32,
    count: AtomicU32,
    last: AtomicRef<Location<'static>>,
}

impl ForeignLocks {
    pub(super) fn new() -> ForeignLocks {
        let (request, count) = (AtomicU32::new(0), AtomicU32::new(0));
        ForeignLocks { request, count, last: AtomicRef::new() }
    }

    /// Counts one more. Returns the number of the request, for [`ForeignLocks::release`].
    pub(crate) fn hold(&self, at: &'static Location<'static>) -> u32 {
        self.last.store(Some(at), Ordering::Relaxed);
        self.count.fetch_add(1, Ordering::Relaxed);
        self.request.load(Ordering::Relaxed)
    }

    /// Counts one less, if it was taken in this request.
    pub(crate) fn release(&self, request: u32) {
        if request == self.request.load(Ordering::Relaxed) {
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Ends the request.
    pub(crate) fn end_request(&self) {
        if self.count.load(Ordering::Relaxed) > 0 {
            self.count.store(0, Ordering::Relaxed);
            self.request.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns where it took the last one, if it holds any.
    pub(crate) fn held(&self) -> Option<&'static Location<'static>> {
        let any = self.count.load(Ordering::Relaxed) > 0;
        self.last.load(Ordering::Relaxed).filter(|_| any)
    }
}
