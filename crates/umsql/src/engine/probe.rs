//! A probe: a short run of a statement whose only purpose is to learn the types of its result.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

/// How many calls of the progress handler a probe may take.
const PROBE_LOOKS: i64 = 20;

/// Whether the connection's current statement is a probe. A probe is stopped early, and functions
/// with side effects do nothing in it.
#[derive(Debug, Clone)]
pub(crate) struct Probe {
    looks_left: Arc<AtomicI64>,
}

impl Default for Probe {
    fn default() -> Probe {
        Probe { looks_left: Arc::new(AtomicI64::new(i64::MAX)) }
    }
}

impl Probe {
    pub(crate) fn is_on(&self) -> bool {
        self.looks_left.load(Ordering::Relaxed) != i64::MAX
    }

    /// Runs `f` as a probe.
    pub(super) fn during<R>(&self, f: impl FnOnce() -> R) -> R {
        self.looks_left.store(PROBE_LOOKS, Ordering::Relaxed);
        let result = f();
        self.looks_left.store(i64::MAX, Ordering::Relaxed);
        result
    }

    pub(super) fn used_up(&self) -> bool {
        self.is_on() && self.looks_left.fetch_sub(1, Ordering::Relaxed) <= 0
    }
}
