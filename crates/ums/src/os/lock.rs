//! A lock that ignores panics of its holder: std's mutex without poisoning.
//!
//! Code that runs while it holds a [`Lock`] obeys this rule: a panic leaves the guarded state
//! usable for the next holder, because each step (a push, a removal, a store) is complete in
//! itself. So later callers need not panic after a holder panicked. If a change needs several
//! steps, code that could panic between them, such as a closure of the application, runs before the
//! lock is taken or after it is released.
//!
//! std's own `nonpoison::Mutex` is not stable. [`Lock`] has the same methods, and its guard is
//! std's. `parking_lot` has no poisoning either, but it would be a dependency, and it keeps a
//! thread-local for each thread that waits; std's lock waits on a futex and keeps no data for a
//! thread.
//!
//! The waiters of a resource are guarded by a *short lock* (`short_lock.rs`) instead.

use std::sync::{MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

/// A mutex without poisoning. The top of this file says what may run while it is held.
#[derive(Debug, Default)]
pub struct Lock<T: ?Sized>(std::sync::Mutex<T>);

impl<T> Lock<T> {
    /// Makes a lock that is free.
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
pub struct LockCondvar(std::sync::Condvar);

impl LockCondvar {
    /// Makes a condition variable without waiters.
    pub const fn new() -> LockCondvar {
        LockCondvar(std::sync::Condvar::new())
    }

    /// Wakes one waiter.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all waiters.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }

    /// Releases the lock, waits for a notification, and locks again. It may return without a
    /// notification.
    #[cfg(feature = "sim")]
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.0.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }

    /// Releases the lock, waits for a notification for at most this long, and locks again. The
    /// returned flag is true if the time has passed. The wait may end without a notification.
    pub fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        at_most: Duration,
    ) -> (MutexGuard<'a, T>, bool) {
        let (guard, time) =
            self.0.wait_timeout(guard, at_most).unwrap_or_else(PoisonError::into_inner);
        (guard, time.timed_out())
    }

    /// Waits at most this long, as long as the condition is true.
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
        let condvar = LockCondvar::new();
        let (held, timed_out) = condvar.wait_timeout(held, Duration::from_millis(1));
        assert!(timed_out || *held == 1, "a wait may return without cause");
        assert!(LOCK.try_lock().is_none(), "the wait has locked again");
    }
}
