//! A set of pointers: the worker contexts, or the completion lists, that are alive.
//!
//! Programs hold bare pointers to these objects. Before a pointer is followed it is looked up here,
//! so that a call with a deleted or invalid pointer fails with an error. The lookup takes no lock
//! and allocates nothing, because entry points use it constantly.
//!
//! ```text
//!   place: 0 empty, a search ends here | 1 deleted, a search continues | else a live pointer
//! ```
//!
//! The table has a fixed size. If no place within a few probes is free, a new pointer is not
//! stored, and from then on every pointer that is not found counts as valid. If the memory of a
//! deleted object is used for a new object, a stale pointer counts as valid; that mistake is not
//! found.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

const PLACES: usize = 1 << 16;
const PROBES: usize = 256;
const EMPTY: usize = 0;
const DELETED: usize = 1;

/// A set of pointers.
pub struct Registry {
    places: [AtomicUsize; PLACES],
    overflowed: AtomicBool,
}

impl Registry {
    /// Returns an empty set.
    pub const fn new() -> Registry {
        Registry {
            places: [const { AtomicUsize::new(EMPTY) }; PLACES],
            overflowed: AtomicBool::new(false),
        }
    }

    fn places(&self, pointer: usize) -> impl Iterator<Item = &AtomicUsize> {
        // The addresses of allocations differ in their middle bits. Multiplying by a large odd
        // factor moves these bits to the top.
        let hash = pointer.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48;
        (0..PROBES).map(move |probe| &self.places[(hash + probe) % PLACES])
    }

    /// Adds a pointer. No other thread may add or remove the same pointer at the same time.
    pub fn add(&self, pointer: usize) {
        for place in self.places(pointer) {
            let mut seen = place.load(Ordering::Relaxed);
            while matches!(seen, EMPTY | DELETED) {
                match place.compare_exchange(seen, pointer, Ordering::AcqRel, Ordering::Relaxed) {
                    Ok(_) => return,
                    Err(now) => seen = now,
                }
            }
        }
        self.overflowed.store(true, Ordering::Release);
    }

    /// Returns true if the pointer counts as valid.
    pub fn has(&self, pointer: usize) -> bool {
        if matches!(pointer, EMPTY | DELETED) {
            return false;
        }
        for place in self.places(pointer) {
            match place.load(Ordering::Acquire) {
                EMPTY => break,
                found if found == pointer => return true,
                _ => {}
            }
        }
        self.overflowed.load(Ordering::Acquire)
    }

    /// Removes a pointer. Returns false if it was not in the set.
    pub fn remove(&self, pointer: usize) -> bool {
        if matches!(pointer, EMPTY | DELETED) {
            return false;
        }
        for place in self.places(pointer) {
            match place.load(Ordering::Acquire) {
                EMPTY => break,
                found if found == pointer => {
                    // If two threads remove the same pointer, only one succeeds.
                    let swapped = place.compare_exchange(
                        pointer,
                        DELETED,
                        Ordering::AcqRel,
                        Ordering::Relaxed,
                    );
                    return swapped.is_ok();
                }
                _ => {}
            }
        }
        self.overflowed.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removed_pointer_is_not_found_and_is_removed_once() {
        static SET: Registry = Registry::new();
        for pointer in (0x1000..0x200_000).step_by(64) {
            assert!(!SET.has(pointer));
            SET.add(pointer);
            assert!(SET.has(pointer) && !SET.has(pointer + 8));
        }
        for pointer in (0x1000..0x200_000).step_by(64) {
            assert!(SET.remove(pointer));
            assert!(!SET.has(pointer) && !SET.remove(pointer));
        }
        assert!(!SET.has(0) && !SET.has(1));
    }

    #[test]
    fn a_full_table_takes_unknown_pointers_as_valid() {
        static SET: Registry = Registry::new();
        (1..=PLACES + PROBES).for_each(|n| SET.add(n * 64));
        assert!(SET.has(0xdead_0000));
    }
}
