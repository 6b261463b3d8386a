//! Which foreign locks a party says that it holds, in debug builds; see `sync/foreign.rs`.

use std::panic::Location;
use std::ptr::{from_ref, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// How many, and where the last one was taken. Only the party itself touches it.
pub(crate) struct ForeignLocks {
    count: AtomicU32,
    last: AtomicPtr<Location<'static>>,
}

impl ForeignLocks {
    pub(super) fn new() -> ForeignLocks {
        ForeignLocks { count: AtomicU32::new(0), last: AtomicPtr::new(null_mut()) }
    }

    /// It holds one more.
    pub(crate) fn hold(&self, at: &'static Location<'static>) {
        self.last.store(from_ref(at).cast_mut(), Ordering::Relaxed);
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// It holds one less.
    pub(crate) fn let_go(&self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }

    /// Where the last one was taken, if it holds any.
    #[allow(unsafe_code)]
    pub(crate) fn held(&self) -> Option<&'static Location<'static>> {
        let any = self.count.load(Ordering::Relaxed) > 0;
        // SAFETY: Type Stable of wait.rs, in a small way: locations are statics.
        let last = unsafe { self.last.load(Ordering::Relaxed).as_ref() };
        last.filter(|_| any)
    }
}
