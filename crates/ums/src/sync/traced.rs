//! Traced locks: which waiter has taken which lock, and where, if the program asks for it.
//!
//! A mutex stores its owner, and a reader-writer lock its writer, at no extra cost. The place where
//! a lock was taken, and the readers of a lock, are recorded only if tracing has been turned on,
//! because that costs a backtrace and a table entry for each lock taken (a few microseconds). While
//! tracing is off, taking and releasing a lock costs a load of a flag that never changes.
//!
//! Tracing is never turned off again. Otherwise the release of a lock might not be recorded, and
//! its waiter would be named as its holder forever.
//!
//! Deadlocks are found in `monitor/deadlock.rs`, from these records.

use std::collections::BTreeMap;
use std::ptr::from_ref;
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::os::lock::Lock;
use crate::record::frame::callers_of;
use crate::wait::Waiter;

static ON: AtomicBool = AtomicBool::new(false);

/// The most frames that are kept of one backtrace.
const FRAMES_MAX: usize = 32;
const SHARDS: usize = 16;

/// A record that a waiter has taken a lock `times` times.
struct Note {
    waiter: &'static Waiter,
    times: usize,
    /// Return addresses of the first time, the innermost first.
    addresses: Vec<usize>,
}

/// Records by the addresses of lock and waiter.
type Notes = BTreeMap<(usize, usize), Note>;

static NOTES: [Lock<Notes>; SHARDS] = [const { Lock::new(BTreeMap::new()) }; SHARDS];

fn shard(lock: usize) -> MutexGuard<'static, Notes> {
    NOTES[(lock >> 4) % SHARDS].lock()
}

fn key(lock: usize, waiter: &'static Waiter) -> (usize, usize) {
    (lock, from_ref(waiter).addr())
}

/// Turns tracing on, for the rest of the process.
pub(crate) fn turn_on() {
    ON.store(true, Ordering::Relaxed);
}

/// Records that the waiter has taken this lock.
#[inline]
pub(super) fn taken<L>(lock: &L, waiter: &'static Waiter) {
    if ON.load(Ordering::Relaxed) {
        note(from_ref(lock).addr(), waiter);
    }
}

/// Records that the caller has taken this lock.
#[inline]
pub(super) fn taken_by_caller<L>(lock: &L) {
    if ON.load(Ordering::Relaxed) {
        note(from_ref(lock).addr(), crate::current::waiter());
    }
}

/// Records that the caller has released this lock.
#[inline]
pub(super) fn left<L>(lock: &L) {
    if ON.load(Ordering::Relaxed) {
        forget(from_ref(lock).addr(), crate::current::waiter());
    }
}

#[cold]
#[inline(never)]
fn note(lock: usize, waiter: &'static Waiter) {
    let addresses = callers_of(note as *const (), FRAMES_MAX);
    let mut notes = shard(lock);
    let entry = notes.entry(key(lock, waiter));
    entry.or_insert(Note { waiter, times: 0, addresses }).times += 1;
}

#[cold]
fn forget(lock: usize, waiter: &'static Waiter) {
    let mut notes = shard(lock);
    let Some(note) = notes.get_mut(&key(lock, waiter)) else { return };
    note.times -= 1;
    if note.times == 0 {
        notes.remove(&key(lock, waiter));
    }
}

/// Returns the waiters that are recorded as holders of the lock.
pub(super) fn takers<L>(lock: &L) -> Vec<&'static Waiter> {
    let lock = from_ref(lock).addr();
    let notes = shard(lock);
    notes.range((lock, 0)..=(lock, usize::MAX)).map(|(_, note)| note.waiter).collect()
}

/// Returns where this waiter took the lock at this address, as return addresses; empty if that was
/// not traced.
pub(crate) fn taken_at(lock: usize, waiter: &'static Waiter) -> Vec<usize> {
    shard(lock).get(&key(lock, waiter)).map(|note| note.addresses.clone()).unwrap_or_default()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::current::waiter;

    #[test]
    fn a_holder_is_recorded_until_it_has_released_the_lock_as_often_as_it_took_it() {
        let [one, two] = &[0_u64; 2];
        let [at, beside] = [one, two].map(|lock| from_ref(lock).addr());
        let (me, other) = (waiter(), std::thread::spawn(waiter).join().unwrap());
        let holders = |lock: &u64| {
            let takers = takers(lock);
            [me, other].map(|waiter| takers.iter().any(|taker| std::ptr::eq(*taker, waiter)))
        };
        for (lock, waiter) in [(at, me), (at, me), (at, other), (beside, other)] {
            note(lock, waiter);
        }
        assert_eq!([holders(one), holders(two)], [[true, true], [false, true]]);
        assert!(!taken_at(at, me).is_empty() && taken_at(beside, me).is_empty());
        forget(at, me);
        assert_eq!(holders(one), [true, true], "it has taken the lock once more");
        forget(at, me);
        assert_eq!([holders(one), holders(two)], [[false, true], [false, true]]);
        [at, beside].into_iter().for_each(|lock| forget(lock, other));
        assert_eq!([holders(one), holders(two)], [[false; 2]; 2]);
    }
}
