//! The shared memory of a write-ahead log: SQLite's index of the log, in memory of this process.
//!
//! SQLite normally maps this memory from a file, so that processes can share it. Here only one
//! process uses the database (see [`super::database`]), so it is plain memory that all members of
//! the database share. It consists of *regions* of equal size. It is freed when the last member has
//! unmapped it; the next member rebuilds it from the log.
//!
//! It never reads or writes a region itself. SQLite orders its accesses with barriers and with the
//! lock slots, and reads the header twice and compares.

use std::ffi::c_void;
use std::sync::atomic::AtomicU64;

use ums::lock::Lock;

/// The regions of one database.
#[derive(Debug, Default)]
pub(crate) struct Shm {
    state: Lock<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The words are atomic, because members change them through shared references. A region keeps
    /// its address when the list grows.
    regions: Vec<Box<[AtomicU64]>>,
    members: usize,
}

impl Shm {
    /// Adds a member that maps the memory.
    pub(crate) fn join(&self) {
        self.state.lock().members += 1;
    }

    /// Removes a member; the last one frees the memory.
    pub(crate) fn leave(&self) {
        let mut state = self.state.lock();
        state.members -= 1;
        if state.members == 0 {
            state.regions.clear();
        }
    }

    /// Returns the region with this number; `size` is in bytes. If the region does not exist and
    /// `extend` is set, creates it, filled with zeros. If it does not exist and `extend` is not
    /// set, returns null. The region is valid until the last member has left.
    pub(crate) fn region(&self, number: usize, size: usize, extend: bool) -> *mut c_void {
        let mut state = self.state.lock();
        while extend && state.regions.len() <= number {
            let words = std::iter::repeat_with(|| AtomicU64::new(0)).take(size.div_ceil(8));
            state.regions.push(words.collect());
        }
        state
            .regions
            .get(number)
            .map_or(std::ptr::null_mut(), |region| region.as_ptr().cast_mut().cast())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_stay_in_place_until_the_last_member_leaves() {
        let shm = Shm::default();
        shm.join();
        shm.join();
        assert!(shm.region(0, 1024, false).is_null());
        let first = shm.region(0, 1024, true);
        for number in 1..100 {
            assert!(!shm.region(number, 1024, true).is_null());
        }
        assert_eq!(shm.region(0, 1024, false), first);
        shm.leave();
        assert_eq!(shm.region(0, 1024, false), first);
        shm.leave();
        assert!(shm.region(0, 1024, false).is_null());
    }
}
