//! The reader-writer lock: data that several workers may read at once, or one may write.
//!
//! First come, first served, in groups: a writer that unlocks lets in the readers at the head of
//! the queue up to the next writer, or one writer; the last reader that unlocks lets in the
//! writer at the head. A reader that arrives while a writer waits queues behind it, so neither side
//! starves. As with std's lock, a worker that takes a second read lock may therefore wait for a
//! writer that waits for its first one. The protocol is in `raw_rwlock.rs`.
//!
//! Named invariant. **Own Thread**: the data is reached through a guard, or through `&mut` or by
//! value; a write guard exists only while its waiter has the raw lock alone, a read guard only
//! while it is counted among the readers.

#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::fmt;
use std::marker::PhantomData;
use std::mem;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::patience::Patience;
use super::raw_rwlock::{RawRwLock, Share};
use crate::os::threads::uninterrupted;
use crate::wait::error::WaitError;

/// A value that several workers may read or one may write, first come first served.
///
/// ```
/// let config = ums::sync::RwLock::new(vec!["a"]);
/// {
///     let (one, two) = (config.read(), config.read());
///     assert_eq!(one.len() + two.len(), 2);
///     assert!(config.try_write().is_none());
/// }
/// config.write().push("b");
/// assert_eq!(*config.read(), ["a", "b"]);
/// ```
pub struct RwLock<T: ?Sized> {
    raw: RawRwLock,
    data: UnsafeCell<T>,
}

// SAFETY: Own Thread: the lock owns its value; moving it moves the value.
unsafe impl<T: ?Sized + Send> Send for RwLock<T> {}
// SAFETY: Own Thread: `&RwLock` lends `&T` to many (`Sync`) or `&mut T` to one (`Send`).
unsafe impl<T: ?Sized + Send + Sync> Sync for RwLock<T> {}

/// The right to read; dropping it unlocks. It is not `Send`: it stays with its worker.
#[must_use = "the lock is unlocked when the guard is dropped"]
pub struct RwLockReadGuard<'a, T: ?Sized> {
    lock: &'a RwLock<T>,
    stays: PhantomData<*const ()>,
}

/// The right to read and write; dropping it unlocks. It is not `Send`: it stays with its worker.
#[must_use = "the lock is unlocked when the guard is dropped"]
pub struct RwLockWriteGuard<'a, T: ?Sized> {
    lock: &'a RwLock<T>,
    stays: PhantomData<*const ()>,
}

/// A [`RwLockReadGuard`] that keeps its lock alive, and borrows nothing. It is not `Send`.
#[must_use = "the lock is unlocked when the guard is dropped"]
pub struct OwnedRwLockReadGuard<T: ?Sized> {
    lock: Arc<RwLock<T>>,
    stays: PhantomData<*const ()>,
}

/// A [`RwLockWriteGuard`] that keeps its lock alive, and borrows nothing. It is not `Send`.
#[must_use = "the lock is unlocked when the guard is dropped"]
pub struct OwnedRwLockWriteGuard<T: ?Sized> {
    lock: Arc<RwLock<T>>,
    stays: PhantomData<*const ()>,
}

// SAFETY: Own Thread: `&OwnedRwLockReadGuard` gives `&T`, which may be shared if `T: Sync`. It
// gives no `Arc`, so what the guard keeps alive is dropped where the guard is.
unsafe impl<T: ?Sized + Sync> Sync for OwnedRwLockReadGuard<T> {}
// SAFETY: Own Thread: as above.
unsafe impl<T: ?Sized + Sync> Sync for OwnedRwLockWriteGuard<T> {}

// SAFETY: Own Thread: a borrowed guard lends `&T`, which may be shared if `T: Sync`.
unsafe impl<T: ?Sized + Sync> Sync for RwLockReadGuard<'_, T> {}
// SAFETY: Own Thread: as above.
unsafe impl<T: ?Sized + Sync> Sync for RwLockWriteGuard<'_, T> {}

impl<T> RwLock<T> {
    /// Creates an unlocked lock around `value`.
    pub const fn new(value: T) -> RwLock<T> {
        RwLock { raw: RawRwLock::new(), data: UnsafeCell::new(value) }
    }

    /// Consumes the lock and returns its value.
    pub fn into_inner(self) -> T {
        self.data.into_inner()
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Locks for reading; waits as long as necessary and ignores cancellation.
    ///
    /// # Panics
    /// Panics if the caller holds the write lock already, because it would wait for itself, and if
    /// this wait is chosen to break a deadlock in which no wait can return an error.
    #[inline]
    #[track_caller]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.raw.lock(Share::Shared);
        self.read_guard()
    }

    /// Locks for reading without waiting; returns `None` if a writer holds the lock or waits for
    /// it.
    #[inline]
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        self.raw.try_lock(Share::Shared).then(|| self.read_guard())
    }

    /// Locks for reading within this time.
    ///
    /// # Errors
    /// [`WaitError`] if the time passed, the work request was cancelled, or this wait was chosen to
    /// break a deadlock.
    pub fn read_for(&self, time: Duration) -> Result<RwLockReadGuard<'_, T>, WaitError> {
        self.raw.lock_within(Share::Shared, Patience::For(time)).map(|()| self.read_guard())
    }

    /// Locks for reading before this moment.
    ///
    /// # Errors
    /// [`WaitError`] if the moment came, the work request was cancelled, or this wait was chosen to
    /// break a deadlock.
    pub fn read_until(&self, deadline: Instant) -> Result<RwLockReadGuard<'_, T>, WaitError> {
        self.raw.lock_within(Share::Shared, Patience::Until(deadline)).map(|()| self.read_guard())
    }

    /// Locks for writing; waits as long as necessary and ignores cancellation.
    ///
    /// # Panics
    /// Panics if the caller holds the write lock already, because it would wait for itself, and if
    /// this wait is chosen to break a deadlock in which no wait can return an error.
    #[inline]
    #[track_caller]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.raw.lock(Share::Exclusive);
        self.write_guard()
    }

    /// Locks for writing without waiting; returns `None` if the lock is held.
    #[inline]
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        self.raw.try_lock(Share::Exclusive).then(|| self.write_guard())
    }

    /// Locks for writing within this time.
    ///
    /// # Errors
    /// [`WaitError`] if the time passed, the work request was cancelled, or this wait was chosen to
    /// break a deadlock.
    pub fn write_for(&self, time: Duration) -> Result<RwLockWriteGuard<'_, T>, WaitError> {
        self.raw.lock_within(Share::Exclusive, Patience::For(time)).map(|()| self.write_guard())
    }

    /// Locks for writing before this moment.
    ///
    /// # Errors
    /// [`WaitError`] if the moment came, the work request was cancelled, or this wait was chosen to
    /// break a deadlock.
    pub fn write_until(&self, by: Instant) -> Result<RwLockWriteGuard<'_, T>, WaitError> {
        self.raw.lock_within(Share::Exclusive, Patience::Until(by)).map(|()| self.write_guard())
    }

    /// Locks for reading as [`RwLock::read`] does. The guard keeps the lock alive.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use ums::sync::RwLock;
    ///
    /// let config = Arc::new(RwLock::new(vec!["a"]));
    /// let seen = config.read_owned(); // it can be a field of what the caller keeps
    /// drop(config);
    /// assert_eq!(*seen, ["a"]);
    /// ```
    ///
    /// # Panics
    /// Where [`RwLock::read`] does.
    #[track_caller]
    pub fn read_owned(self: &Arc<Self>) -> OwnedRwLockReadGuard<T> {
        self.raw.lock(Share::Shared);
        self.owned_read_guard()
    }

    /// Locks for reading as [`RwLock::read_for`] does. The guard keeps the lock alive.
    ///
    /// # Errors
    /// Those of [`RwLock::read_for`].
    pub fn read_owned_for(
        self: &Arc<Self>,
        time: Duration,
    ) -> Result<OwnedRwLockReadGuard<T>, WaitError> {
        let locked = self.raw.lock_within(Share::Shared, Patience::For(time));
        locked.map(|()| self.owned_read_guard())
    }

    /// Locks for writing as [`RwLock::write`] does. The guard keeps the lock alive.
    ///
    /// # Panics
    /// Where [`RwLock::write`] does.
    #[track_caller]
    pub fn write_owned(self: &Arc<Self>) -> OwnedRwLockWriteGuard<T> {
        self.raw.lock(Share::Exclusive);
        self.owned_write_guard()
    }

    /// Locks for writing as [`RwLock::write_for`] does. The guard keeps the lock alive.
    ///
    /// # Errors
    /// Those of [`RwLock::write_for`].
    pub fn write_owned_for(
        self: &Arc<Self>,
        time: Duration,
    ) -> Result<OwnedRwLockWriteGuard<T>, WaitError> {
        let locked = self.raw.lock_within(Share::Exclusive, Patience::For(time));
        locked.map(|()| self.owned_write_guard())
    }

    /// Returns the value without locking: `&mut self` excludes other borrows.
    pub fn get_mut(&mut self) -> &mut T {
        self.data.get_mut()
    }

    /// Makes a read guard; the caller holds a share.
    #[inline]
    fn read_guard(&self) -> RwLockReadGuard<'_, T> {
        RwLockReadGuard { lock: self, stays: PhantomData }
    }

    /// Makes a write guard; the caller holds the lock alone.
    #[inline]
    fn write_guard(&self) -> RwLockWriteGuard<'_, T> {
        RwLockWriteGuard { lock: self, stays: PhantomData }
    }

    /// Makes a read guard; the caller holds a share.
    fn owned_read_guard(self: &Arc<Self>) -> OwnedRwLockReadGuard<T> {
        OwnedRwLockReadGuard { lock: Arc::clone(self), stays: PhantomData }
    }

    /// Makes a write guard; the caller holds the lock alone.
    fn owned_write_guard(self: &Arc<Self>) -> OwnedRwLockWriteGuard<T> {
        OwnedRwLockWriteGuard { lock: Arc::clone(self), stays: PhantomData }
    }
}

impl<'a, T: ?Sized> RwLockWriteGuard<'a, T> {
    /// Turns a write lock into a read lock, with no writer in between, and lets in the readers at
    /// the head of the queue.
    pub fn downgrade(guard: Self) -> RwLockReadGuard<'a, T> {
        let lock = guard.lock;
        mem::forget(guard);
        lock.raw.turn_reader();
        lock.read_guard()
    }
}

impl<T: ?Sized> Deref for RwLockReadGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: Own Thread: this guard is counted, so there is no `&mut`.
        unsafe { &*self.lock.data.get() }
    }
}

impl<T: ?Sized> Deref for RwLockWriteGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: Own Thread: this guard's waiter has the lock alone.
        unsafe { &*self.lock.data.get() }
    }
}

impl<T: ?Sized> DerefMut for RwLockWriteGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: Own Thread: as above, and `&mut self` makes this the only borrow.
        unsafe { &mut *self.lock.data.get() }
    }
}

impl<T: ?Sized> Drop for RwLockReadGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.lock.raw.unlock(Share::Shared);
    }
}

impl<T: ?Sized> Drop for RwLockWriteGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.lock.raw.unlock(Share::Exclusive);
    }
}

impl<T: ?Sized> Deref for OwnedRwLockReadGuard<T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: Own Thread: this guard is counted, so there is no `&mut`.
        unsafe { &*self.lock.data.get() }
    }
}

impl<T: ?Sized> Deref for OwnedRwLockWriteGuard<T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: Own Thread: this guard's waiter has the lock alone.
        unsafe { &*self.lock.data.get() }
    }
}

impl<T: ?Sized> DerefMut for OwnedRwLockWriteGuard<T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: Own Thread: as above, and `&mut self` makes this the only borrow.
        unsafe { &mut *self.lock.data.get() }
    }
}

impl<T: ?Sized> Drop for OwnedRwLockReadGuard<T> {
    fn drop(&mut self) {
        self.lock.raw.unlock(Share::Shared);
    }
}

impl<T: ?Sized> Drop for OwnedRwLockWriteGuard<T> {
    fn drop(&mut self) {
        self.lock.raw.unlock(Share::Exclusive);
    }
}

impl<T: Default> Default for RwLock<T> {
    fn default() -> RwLock<T> {
        RwLock::new(T::default())
    }
}

impl<T> From<T> for RwLock<T> {
    fn from(value: T) -> RwLock<T> {
        RwLock::new(value)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for RwLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The caller may hold the lock of an output stream.
        uninterrupted(|| {
            let mut out = f.debug_struct("RwLock");
            match self.try_read() {
                Some(data) => out.field("data", &&*data),
                None => out.field("data", &format_args!("<locked>")),
            };
            out.finish()
        })
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for RwLockReadGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for RwLockWriteGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for OwnedRwLockReadGuard<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for OwnedRwLockWriteGuard<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(test)]
mod tests;
