//! The reader-writer lock: data that many may read, or one may write.
//!
//! First come, first served, in groups: a writer that leaves lets in the readers at the head of the
//! queue up to the next writer (U54), or one writer; the last reader that leaves lets in the writer
//! at the head. A reader that comes while a writer waits queues behind it, so neither side starves.
//! The price is std's too: who reads while it reads already may wait for a writer that waits for
//! it. The protocol is in `raw_rwlock.rs`.
//!
//! Named invariant. **Owner Only**: the data is reached through a guard, or through `&mut` or by
//! value; a write guard exists only while its waiter has the raw lock alone, a read guard only
//! while it is counted among the readers.

#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::fmt;
use std::marker::PhantomData;
use std::mem;
use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

use super::patience::Patience;
use super::raw_rwlock::{RawRwLock, Share};
use crate::wait::error::WaitError;

/// A value that many may read or one may write, first come first served.
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

// SAFETY: Owner Only: the lock owns its value; moving it moves the value.
unsafe impl<T: ?Sized + Send> Send for RwLock<T> {}
// SAFETY: Owner Only: `&RwLock` lends `&T` to many (`Sync`) or `&mut T` to one (`Send`).
unsafe impl<T: ?Sized + Send + Sync> Sync for RwLock<T> {}

/// The right to read; dropping it gives the share back. It stays with its worker.
#[must_use = "the share is given back when the guard is dropped"]
pub struct RwLockReadGuard<'a, T: ?Sized> {
    lock: &'a RwLock<T>,
    stays: PhantomData<*const ()>,
}

/// The right to read and write; dropping it unlocks. It stays with its worker.
#[must_use = "the lock is unlocked when the guard is dropped"]
pub struct RwLockWriteGuard<'a, T: ?Sized> {
    lock: &'a RwLock<T>,
    stays: PhantomData<*const ()>,
}

// SAFETY: Owner Only: a borrowed guard lends `&T`, which may be shared if `T: Sync`.
unsafe impl<T: ?Sized + Sync> Sync for RwLockReadGuard<'_, T> {}
// SAFETY: Owner Only: as above.
unsafe impl<T: ?Sized + Sync> Sync for RwLockWriteGuard<'_, T> {}

impl<T> RwLock<T> {
    /// An unlocked lock around `value`.
    pub const fn new(value: T) -> RwLock<T> {
        RwLock { raw: RawRwLock::new(), data: UnsafeCell::new(value) }
    }

    /// Takes the value out.
    pub fn into_inner(self) -> T {
        self.data.into_inner()
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Locks for reading; waits as long as it takes, deaf to cancellation.
    ///
    /// # Panics
    /// When the caller writes it already: it would wait for itself. And when it is chosen as the
    /// victim of a deadlock in which no wait has a way to fail.
    #[inline]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.raw.lock(Share::Shared);
        self.read_guard()
    }

    /// Locks for reading if that takes no waiting.
    #[inline]
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        self.raw.try_lock(Share::Shared).then(|| self.read_guard())
    }

    /// Locks for reading within this time.
    ///
    /// # Errors
    /// The time passed, the work request was cancelled, or the wait is a deadlock's victim.
    pub fn read_for(&self, time: Duration) -> Result<RwLockReadGuard<'_, T>, WaitError> {
        self.raw.lock_within(Share::Shared, Patience::For(time)).map(|()| self.read_guard())
    }

    /// Locks for reading before this moment.
    ///
    /// # Errors
    /// The moment came, the work request was cancelled, or the wait is a deadlock's victim.
    pub fn read_until(&self, deadline: Instant) -> Result<RwLockReadGuard<'_, T>, WaitError> {
        self.raw.lock_within(Share::Shared, Patience::Until(deadline)).map(|()| self.read_guard())
    }

    /// Locks for writing; waits as long as it takes, deaf to cancellation.
    ///
    /// # Panics
    /// When the caller writes it already: it would wait for itself. And when it is chosen as the
    /// victim of a deadlock in which no wait has a way to fail.
    #[inline]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.raw.lock(Share::Exclusive);
        self.write_guard()
    }

    /// Locks for writing if that takes no waiting.
    #[inline]
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        self.raw.try_lock(Share::Exclusive).then(|| self.write_guard())
    }

    /// Locks for writing within this time.
    ///
    /// # Errors
    /// The time passed, the work request was cancelled, or the wait is a deadlock's victim.
    pub fn write_for(&self, time: Duration) -> Result<RwLockWriteGuard<'_, T>, WaitError> {
        self.raw.lock_within(Share::Exclusive, Patience::For(time)).map(|()| self.write_guard())
    }

    /// Locks for writing before this moment.
    ///
    /// # Errors
    /// The moment came, the work request was cancelled, or the wait is a deadlock's victim.
    pub fn write_until(&self, by: Instant) -> Result<RwLockWriteGuard<'_, T>, WaitError> {
        self.raw.lock_within(Share::Exclusive, Patience::Until(by)).map(|()| self.write_guard())
    }

    /// The value, without locking: `&mut self` shows that nobody else is there.
    pub fn get_mut(&mut self) -> &mut T {
        self.data.get_mut()
    }

    /// The caller has a share.
    #[inline]
    fn read_guard(&self) -> RwLockReadGuard<'_, T> {
        RwLockReadGuard { lock: self, stays: PhantomData }
    }

    /// The caller has it alone.
    #[inline]
    fn write_guard(&self) -> RwLockWriteGuard<'_, T> {
        RwLockWriteGuard { lock: self, stays: PhantomData }
    }
}

impl<'a, T: ?Sized> RwLockWriteGuard<'a, T> {
    /// Goes on as a reader, with no writer in between; readers at the head of the queue join in.
    pub fn downgrade(guard: Self) -> RwLockReadGuard<'a, T> {
        let lock = guard.lock;
        mem::forget(guard);
        lock.raw.downgrade();
        lock.read_guard()
    }
}

impl<T: ?Sized> Deref for RwLockReadGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: Owner Only: this guard is counted, so nobody has `&mut`.
        unsafe { &*self.lock.data.get() }
    }
}

impl<T: ?Sized> Deref for RwLockWriteGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: Owner Only: this guard's waiter has the lock alone.
        unsafe { &*self.lock.data.get() }
    }
}

impl<T: ?Sized> DerefMut for RwLockWriteGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: Owner Only: as above, and `&mut self` makes this the only borrow.
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
        let mut out = f.debug_struct("RwLock");
        match self.try_read() {
            Some(data) => out.field("data", &&*data),
            None => out.field("data", &format_args!("<locked>")),
        };
        out.finish()
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

#[cfg(test)]
mod tests;
