//! Where every slab of the process is, readable from a signal handler.
//!
//! The fault handler knows one thing, the address that faulted, and must find the stack whose guard
//! that is without locks, without memory allocation and without a per-thread "current fiber" (which
//! would cost a store in every switch). So slabs are listed here: in a list that only grows, whose
//! entries are reused when a slab is unmapped.
//!
//! ```text
//! FIRST -> entry -> entry -> entry          appended under a lock, followed without one
//!          seq even: the numbers belong together; odd: they are being changed
//! ```
//!
//! A reader that meets an odd or changed `seq` skips the entry. That loses nothing: the entry of a
//! slab with a stack in use does not change, so it can't be the one that the reader
//! searches for. No unsafe code here; the list owns no memory but its own entries.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// How one slab divides its memory; all in bytes, all whole pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    /// The part of each stack that faults, at its low end.
    pub(crate) guard: usize,
    /// The part above it, header included.
    pub(crate) usable: usize,
}

impl Geometry {
    /// Returns the distance from one stack to the next.
    pub(crate) fn stride(self) -> usize {
        self.guard + self.usable
    }
}

/// The memory of one stack, found by an address inside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    /// Lowest address of the guard.
    pub(crate) guard_low: usize,
    /// Lowest usable address, where the guard ends.
    pub(crate) low: usize,
    /// One past the highest address.
    pub(crate) top: usize,
}

/// One slab's place, or a free place in the list when `count` is 0.
#[derive(Debug, Default)]
pub(crate) struct Entry {
    seq: AtomicUsize,
    low: AtomicUsize,
    count: AtomicUsize,
    guard: AtomicUsize,
    usable: AtomicUsize,
    next: OnceLock<&'static Entry>,
}

static FIRST: OnceLock<&'static Entry> = OnceLock::new();

/// Keeps other writers away. The lock guards no data: a panic under it leaves nothing half done.
fn alone() -> MutexGuard<'static, ()> {
    static WRITERS: Mutex<()> = Mutex::new(());
    WRITERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lists a slab of `count` stacks that starts at `low`.
pub(crate) fn register(low: usize, count: usize, geometry: Geometry) -> &'static Entry {
    let _alone = alone();
    let mut place = &FIRST;
    let entry = loop {
        // Writers are alone, so an unset place stays unset until this one sets it.
        let entry = *place.get_or_init(|| Box::leak(Box::default()));
        if entry.count.load(SeqCst) == 0 {
            break entry;
        }
        place = &entry.next;
    };
    entry.write(low, count, geometry);
    entry
}

/// Removes a slab; its entry is free for another.
pub(crate) fn unregister(entry: &'static Entry) {
    let _alone = alone();
    entry.write(0, 0, Geometry { guard: 0, usable: 0 });
}

/// Returns the stack whose memory, guard included, contains `address`. Async-signal-safe.
pub(crate) fn find(address: usize) -> Option<Region> {
    let mut place = &FIRST;
    while let Some(entry) = place.get() {
        if let Some(region) = entry.find(address) {
            return Some(region);
        }
        place = &entry.next;
    }
    None
}

impl Entry {
    fn write(&self, low: usize, count: usize, geometry: Geometry) {
        self.seq.fetch_add(1, SeqCst);
        self.low.store(low, SeqCst);
        self.count.store(count, SeqCst);
        self.guard.store(geometry.guard, SeqCst);
        self.usable.store(geometry.usable, SeqCst);
        self.seq.fetch_add(1, SeqCst);
    }

    fn find(&self, address: usize) -> Option<Region> {
        let seq = self.seq.load(SeqCst);
        let low = self.low.load(SeqCst);
        let count = self.count.load(SeqCst);
        let guard = self.guard.load(SeqCst);
        let usable = self.usable.load(SeqCst);
        if !seq.is_multiple_of(2) || self.seq.load(SeqCst) != seq || count == 0 {
            return None;
        }
        let stride = guard + usable;
        let index = address.checked_sub(low)? / stride;
        if index >= count {
            return None;
        }
        let guard_low = low + index * stride;
        Some(Region { guard_low, low: guard_low + guard, top: guard_low + stride })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 4096;
    const GEOMETRY: Geometry = Geometry { guard: PAGE, usable: 4 * PAGE };

    #[test]
    fn an_address_finds_its_own_stack_and_a_forgotten_slab_is_not_found() {
        // Addresses that no mapping can have, so that other tests' slabs do not interfere.
        let low = usize::MAX / 2;
        let entry = register(low, 3, GEOMETRY);
        let second =
            Region { guard_low: low + 5 * PAGE, low: low + 6 * PAGE, top: low + 10 * PAGE };
        assert_eq!(find(low + 5 * PAGE), Some(second));
        assert_eq!(find(low + 10 * PAGE - 1), Some(second));
        assert_eq!(find(low + 10 * PAGE).map(|third| third.guard_low), Some(low + 10 * PAGE));
        assert_eq!(find(low - 1), None);
        assert_eq!(find(low + 15 * PAGE), None);
        unregister(entry);
        assert_eq!(find(low + 5 * PAGE), None);
    }
}
