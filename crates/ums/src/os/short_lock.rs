//! A short lock: a lock that is held for a few instructions, never during a switch to another
//! worker, and never while application code runs.
//!
//! A worker that holds a short lock counts as inside the library (`entry`), whatever code took the
//! lock, because other workers of the same scheduler need the lock next. So it neither loses its
//! baton nor is stopped meanwhile. For a thread that is no worker this costs one read of a
//! thread-local.
//!
//! A short lock is a [`Lock`] with statistics: how often a caller found it taken, and how long the
//! caller waited. A thread that finds it taken first spins, each round longer than the one before.
//! Then it yields the processor a few times, because the holder may have lost its processor. Then
//! it is *stuck on a short lock*: it sleeps in the kernel, and so its whole scheduler stands still.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{MutexGuard, OnceLock};

use super::entry::Inside;
use super::lock::Lock;

/// Rounds of spinning. Each is twice as long as the one before.
const ROUNDS: u32 = 8;
/// How often the thread yields the processor after that.
const BACKOFFS: u32 = 16;

/// The counts of all short locks of the process together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShortLockCounts {
    /// How often a caller found a short lock taken.
    pub collisions: u64,
    /// How many turns of the spin loop callers waited.
    pub spins: u64,
    /// How often callers yielded the processor while they waited.
    pub backoffs: u64,
    /// How often a caller had to sleep.
    pub stuck_on_short_lock: u64,
}

static COLLISIONS: AtomicU64 = AtomicU64::new(0);
static SPINS: AtomicU64 = AtomicU64::new(0);
static PAUSES: AtomicU64 = AtomicU64::new(0);
static SICK: AtomicU64 = AtomicU64::new(0);
static MARK: OnceLock<fn(bool)> = OnceLock::new();

/// Reads the counts.
pub fn counts() -> ShortLockCounts {
    let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    ShortLockCounts {
        collisions: of(&COLLISIONS),
        spins: of(&SPINS),
        backoffs: of(&PAUSES),
        stuck_on_short_lock: of(&SICK),
    }
}

/// Sets the function that a thread calls with true when it becomes stuck on a short lock, and with
/// false when it has got the lock. The function must not take a short lock.
pub fn call_when_stuck(mark: fn(bool)) {
    let _ = MARK.set(mark);
}

/// A lock that is held for a few instructions.
#[derive(Debug, Default)]
pub struct ShortLock<S>(Lock<S>);

/// A short lock that is held, and the state that it guards.
pub struct ShortGuard<'a, S> {
    home: &'a ShortLock<S>,
    state: MutexGuard<'a, S>,
    /// Dropped after the lock has been released.
    #[allow(dead_code)] // Held for its drop.
    inside: Option<Inside>,
}

impl<S> ShortLock<S> {
    /// Makes a lock that is free.
    pub const fn new(state: S) -> ShortLock<S> {
        ShortLock(Lock::new(state))
    }

    /// Locks. A holder that panics leaves the guarded state usable (see [`Lock`]).
    #[inline]
    pub fn lock(&self) -> ShortGuard<'_, S> {
        let inside = Inside::enter();
        let state = self.try_now().unwrap_or_else(|| self.lock_slow());
        ShortGuard { home: self, state, inside }
    }

    /// Locks if the lock is free.
    pub fn try_lock(&self) -> Option<ShortGuard<'_, S>> {
        let inside = Inside::enter();
        let state = self.try_now()?;
        Some(ShortGuard { home: self, state, inside })
    }

    #[inline]
    fn try_now(&self) -> Option<MutexGuard<'_, S>> {
        self.0.try_lock()
    }

    #[cold]
    fn lock_slow(&self) -> MutexGuard<'_, S> {
        COLLISIONS.fetch_add(1, Ordering::Relaxed);
        for round in 0..ROUNDS {
            (0..1 << round).for_each(|_| std::hint::spin_loop());
            SPINS.fetch_add(1 << round, Ordering::Relaxed);
            if let Some(state) = self.try_now() {
                return state;
            }
        }
        for _ in 0..BACKOFFS {
            PAUSES.fetch_add(1, Ordering::Relaxed);
            std::thread::yield_now();
            if let Some(state) = self.try_now() {
                return state;
            }
        }
        SICK.fetch_add(1, Ordering::Relaxed);
        let mark =
            |stuck_on_short_lock| MARK.get().into_iter().for_each(|mark| mark(stuck_on_short_lock));
        mark(true);
        let state = self.0.lock();
        mark(false);
        state
    }
}

impl<'a, S> ShortGuard<'a, S> {
    /// Returns the lock that this guard holds.
    pub fn home(&self) -> &'a ShortLock<S> {
        self.home
    }
}

impl<S> Deref for ShortGuard<'_, S> {
    type Target = S;
    fn deref(&self) -> &S {
        &self.state
    }
}

impl<S> DerefMut for ShortGuard<'_, S> {
    fn deref_mut(&mut self) -> &mut S {
        &mut self.state
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_wait_for_a_short_lock_is_marked_and_counted_b48() {
        let lock = ShortLock::new(0);
        let before = counts();
        let held = lock.lock();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| *lock.lock() += 1);
            while counts().stuck_on_short_lock == before.stuck_on_short_lock {
                std::thread::yield_now();
            }
            let now = counts();
            assert!(now.collisions > before.collisions);
            assert!(now.spins >= before.spins + (1 << ROUNDS) - 1);
            assert!(now.backoffs >= before.backoffs + u64::from(BACKOFFS));
            drop(held);
            waiter.join().unwrap();
        });
        assert_eq!(*lock.lock(), 1);
    }
}
