//! A lock whose holder may panic: std's mutex without its poison.
//!
//! The rule for the code under a [`Lock`]: a panic there leaves what the lock guards in a state
//! that the next holder can use, as each step is complete in itself (a push, a removal, a store).
//! So a panicked holder is no reason for later callers to panic too. Where a state needs several
//! steps, the code that could panic between them, such as a closure of the application, runs before
//! or after the lock is held.
//!
//! std's own `nonpoison::Mutex` is not stable. [`Lock`] has its verbs, and its guard is std's.
//! `parking_lot` has no poison either, but would be a dependency, with a thread-local for each
//! thread that waits; std's lock waits in the kernel by address and knows no thread.
//!
//! What guards the waiters of a resource is a *short lock* (`short_lock.rs`) instead.

use std::sync::{MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

/// A mutex that has no poison; see the module about what may run under it.
#[derive(Debug, Default)]
pub struct Lock<T: ?Sized>(std::sync::Mutex<T>);

impl<T> Lock<T> {
    /// Makes a free lock.
    pub const fn new(value: T) -> Lock<T> {
        Lock(std::sync::Mutex::new(value))
    }
}

impl<T: ?Sized> Lock<T> {
    /// Locks. Blocks the thread until the lock is free.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks if the lock is free.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

/// A condition variable for one [`Lock`].
#[derive(Debug, Default)]
pub struct Condvar(std::sync::Condvar);

impl Condvar {
    /// Makes one without waiters.
    pub const fn new() -> Condvar {
        Condvar(std::sync::Condvar::new())
    }

    /// Wakes one waiter.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all waiters.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }

    /// Releases the lock, waits to be notified, and locks again. May return without cause.
    #[cfg(feature = "sim")]
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.0.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }

    /// Does the same for at most this time. Returns true if the time has passed.
    pub fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        at_most: Duration,
    ) -> (MutexGuard<'a, T>, bool) {
        let (guard, time) =
            self.0.wait_timeout(guard, at_most).unwrap_or_else(PoisonError::into_inner);
        (guard, time.timed_out())
    }

    /// Waits for at most this time while the condition holds.
    pub fn wait_timeout_while<T>(
        &self,
        guard: MutexGuard<'_, T>,
        at_most: Duration,
        condition: impl FnMut(&mut T) -> bool,
    ) {
        drop(self.0.wait_timeout_while(guard, at_most, condition));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_under_a_lock_does_not_end_later_callers() {
        static LOCK: Lock<u32> = Lock::new(0);
        let panics = std::thread::spawn(|| {
            let mut held = LOCK.lock();
            *held += 1;
            panic!("under the lock");
        });
        assert!(panics.join().is_err());
        assert_eq!(*LOCK.lock(), 1);
        let held = LOCK.try_lock().expect("it is free");
        let condvar = Condvar::new();
        let (held, timed_out) = condvar.wait_timeout(held, Duration::from_millis(1));
        assert!(timed_out || *held == 1, "a wait may return without cause");
        assert!(LOCK.try_lock().is_none(), "the wait has locked again");
    }
}
