//! Peers that do not read: for each a worker waits, with the frames of its request on its stack. So
//! their number can be bounded, and the other workers stay for new connections and for the requests
//! of peers that read.
//!
//! If one more peer stops reading than may, the one that has been waited for longest loses its
//! connection. A peer that reads, if slowly, is waited for anew for each part of its answer, so it
//! is seldom the first.
//!
//! The servers of a node share its workers, so they share one [`SlowReaders`]; those on a hidden
//! scheduler share that scheduler's.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::os::lock::Lock;

/// A peer for which a worker may wait.
pub(crate) trait SlowReader: Send + Sync {
    /// Returns whether the peer has read enough that a write would not wait now.
    fn has_room(&self) -> bool;

    /// Ends its connection, because a worker is needed; the wait then ends. It must not wait.
    fn end_for_others(&self);
}

/// The peers that the workers of one group of schedulers wait for.
#[derive(Default)]
pub(crate) struct SlowReaders {
    waiting: Lock<Queue>,
}

/// The peers, the longest wait first, each with the number of its wait.
#[derive(Default)]
struct Queue {
    next: u64,
    readers: VecDeque<(u64, Arc<dyn SlowReader>)>,
}

impl SlowReaders {
    /// Records that a worker waits for this peer to read, until the result is dropped. If `max`
    /// peers are waited for already, it ends the connection of the one that has been waited for
    /// longest.
    ///
    /// That is decided while the lock is held, which the end of a wait takes, too: so the peer is
    /// still waited for. If it has just read, its worker is about to go on, and the next peer is
    /// looked at.
    pub fn wait_for(&self, reader: Arc<dyn SlowReader>, max: usize) -> SlowWait<'_> {
        let mut waiting = self.waiting.lock();
        let Queue { next, readers } = &mut *waiting;
        if readers.len() >= max
            && let Some(first) = readers.iter().position(|(_, reader)| !reader.has_room())
            && let Some((_, slow)) = readers.remove(first)
        {
            slow.end_for_others();
        }
        *next += 1;
        readers.push_back((*next, reader));
        SlowWait { readers: self, number: *next }
    }
}

/// A wait for a peer to read.
pub(crate) struct SlowWait<'a> {
    readers: &'a SlowReaders,
    number: u64,
}

impl Drop for SlowWait<'_> {
    fn drop(&mut self) {
        let mut waiting = self.readers.waiting.lock();
        let found = waiting.readers.binary_search_by_key(&self.number, |(number, _)| *number);
        // The peer may be dropped here for the last time, which must not happen under the lock.
        let ended = found.ok().and_then(|at| waiting.readers.remove(at));
        drop(waiting);
        drop(ended);
    }
}

/// The slow readers of a node: those of its visible schedulers, and those of each hidden scheduler
/// by its name.
#[derive(Default)]
pub(crate) struct SlowReadersOf {
    visible: Arc<SlowReaders>,
    hidden: Lock<HashMap<String, Arc<SlowReaders>>>,
}

impl SlowReadersOf {
    /// Returns those of the hidden scheduler with this name; of the visible schedulers for `None`.
    pub fn on(&self, hidden: Option<&str>) -> Arc<SlowReaders> {
        match hidden {
            None => self.visible.clone(),
            Some(name) => self.hidden.lock().entry(name.to_owned()).or_default().clone(),
        }
    }
}

/// Returns how many peers may be waited for if each scheduler has this many workers, and this many
/// are reserved: at least one, and without a limit if none is reserved.
pub(crate) fn slow_readers_max(workers: usize, reserved: usize) -> usize {
    if reserved == 0 { usize::MAX } else { workers.saturating_sub(reserved).max(1) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[derive(Default)]
    struct Reader {
        has_room: AtomicBool,
        has_ended: AtomicBool,
    }

    impl SlowReader for Reader {
        fn has_room(&self) -> bool {
            self.has_room.load(Ordering::Relaxed)
        }

        fn end_for_others(&self) {
            self.has_ended.store(true, Ordering::Relaxed);
        }
    }

    fn ended(readers: &[Arc<Reader>; 4]) -> [bool; 4] {
        readers.each_ref().map(|reader| reader.has_ended.load(Ordering::Relaxed))
    }

    #[test]
    fn workers_stay_and_the_longest_wait_ends_first() {
        for (workers, reserved, max) in [(1, 2, 1), (2, 2, 1), (8, 2, 6), (256, 32, 224)] {
            assert_eq!(slow_readers_max(workers, reserved), max);
        }
        assert_eq!(slow_readers_max(8, 0), usize::MAX);
        let slow = SlowReaders::default();
        let readers: [Arc<Reader>; 4] = Default::default();
        let first = slow.wait_for(readers[0].clone(), 2);
        let second = slow.wait_for(readers[1].clone(), 2);
        assert_eq!(ended(&readers), [false; 4]);
        let third = slow.wait_for(readers[2].clone(), 2);
        assert_eq!(ended(&readers), [true, false, false, false]);
        drop((first, second));
        let _fourth = slow.wait_for(readers[3].clone(), 2);
        assert_eq!(ended(&readers), [true, false, false, false], "the first two have gone");
        drop(third);
    }

    #[test]
    fn a_peer_that_has_just_read_keeps_its_connection() {
        let slow = SlowReaders::default();
        let readers: [Arc<Reader>; 4] = Default::default();
        let _waits = readers.each_ref().map(|reader| {
            if Arc::ptr_eq(reader, &readers[2]) {
                // Its worker has not continued yet.
                readers[0].has_room.store(true, Ordering::Relaxed);
            }
            slow.wait_for(reader.clone(), 2)
        });
        assert_eq!(ended(&readers), [false, true, true, false]);
    }

    #[test]
    fn each_hidden_scheduler_has_its_own() {
        let all = SlowReadersOf::default();
        assert!(Arc::ptr_eq(&all.on(None), &all.on(None)));
        assert!(Arc::ptr_eq(&all.on(Some("a")), &all.on(Some("a"))));
        assert!(!Arc::ptr_eq(&all.on(Some("a")), &all.on(Some("b"))));
        assert!(!Arc::ptr_eq(&all.on(Some("a")), &all.on(None)));
    }
}
