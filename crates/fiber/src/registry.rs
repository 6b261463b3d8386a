//! The list of all slabs of the process, which a signal handler can read.
//!
//! When a fiber overflows its stack, the fault handler has only the address of the fault, and must
//! find the stack whose guard has that address. It may take no lock and allocate no memory. A
//! thread-local with the current fiber would help, but would cost a store in every switch. So the
//! handler searches this list. The list only grows; the entry of a slab that has been unmapped is
//! used again.
//!
//! ```text
//! FIRST -> entry -> entry -> entry          appended under a lock, read without one
//!          seq even: the numbers belong together; odd: they are being changed
//! ```
//!
//! A reader skips an entry whose `seq` is odd or changes while the entry is read. That is correct,
//! because the entry of a slab does not change while one of its stacks is in use, so the skipped
//! entry is not the one that the reader searches for. This file has no unsafe code.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// How a slab divides its memory among its stacks, in bytes. Both sizes are whole pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    /// The size of the guard at the low end of each stack, with the signal stack inside it.
    pub(crate) guard: usize,
    /// The size of the part above the guard, with the header.
    pub(crate) usable: usize,
}

impl Geometry {
    /// Returns the distance from one stack to the next.
    pub(crate) fn stride(self) -> usize {
        self.guard + self.usable
    }
}

/// The memory of one stack, with its guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    /// Lowest address of the guard.
    pub(crate) guard_low: usize,
    /// Lowest usable address, where the guard ends.
    pub(crate) low: usize,
    /// One past the highest address.
    pub(crate) top: usize,
    /// The stack's number in its slab.
    pub(crate) index: usize,
}

/// An entry of the list: the address of a slab and its geometry. The entry is free if `count` is 0.
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

/// Returns the lock that makes the caller the only writer. The lock contains no data, so it may be
/// taken again after a panic of its holder.
fn alone() -> MutexGuard<'static, ()> {
    static WRITERS: Mutex<()> = Mutex::new(());
    WRITERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Adds a slab of `count` stacks that starts at `low`.
pub(crate) fn register(low: usize, count: usize, geometry: Geometry) -> &'static Entry {
    let _alone = alone();
    let mut place = &FIRST;
    let entry = loop {
        // There is no other writer, so an unset place stays unset until this call sets it.
        let entry = *place.get_or_init(|| Box::leak(Box::default()));
        if entry.count.load(SeqCst) == 0 {
            break entry;
        }
        place = &entry.next;
    };
    entry.write(low, count, geometry);
    entry
}

/// Removes a slab, so that another slab may use its entry.
pub(crate) fn unregister(entry: &'static Entry) {
    let _alone = alone();
    entry.write(0, 0, Geometry { guard: 0, usable: 0 });
}

/// Returns the stack whose memory, with its guard, contains `address`. Async-signal-safe.
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
        Some(Region { guard_low, low: guard_low + guard, top: guard_low + stride, index })
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
        let (second_low, top) = (low + 5 * PAGE, low + 10 * PAGE);
        let second = Region { guard_low: second_low, low: second_low + PAGE, top, index: 1 };
        assert_eq!(find(low + 5 * PAGE), Some(second));
        assert_eq!(find(low + 10 * PAGE - 1), Some(second));
        assert_eq!(find(low + 10 * PAGE).map(|third| third.guard_low), Some(low + 10 * PAGE));
        assert_eq!(find(low - 1), None);
        assert_eq!(find(low + 15 * PAGE), None);
        unregister(entry);
        assert_eq!(find(low + 5 * PAGE), None);
    }
}
