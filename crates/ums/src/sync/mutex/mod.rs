//! The mutex: data that one waiter at a time may touch.
//!
//! Like std's mutex, without poisoning. An uncontended lock and unlock cost one compare-and-swap
//! each; a contended unlock hands the mutex over to the first waiter (see `raw_mutex.rs`).
//!
//! Named invariant. **Own Thread**: the data is reached through a guard, or through `&mut` or by
//! value; a guard exists only while its waiter owns the raw mutex.

#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::patience::Patience;
use super::raw_mutex::RawMutex;
use crate::os::threads::uninterrupted;
use crate::record::reason::WaitReason;
use crate::wait::error::WaitError;

/// Mutual exclusion around a value, first come first served.
///
/// The owner may wait, yield and do I/O while it holds the mutex; other workers then wait, and
/// views show the owner as their blocker.
///
/// ```
/// let total = ums::sync::Mutex::new(0);
/// std::thread::scope(|s| {
///     for _ in 0..4 {
///         s.spawn(|| *total.lock() += 1);
///     }
/// });
/// assert_eq!(total.into_inner(), 4);
/// ```
#[derive(Default)]
pub struct Mutex<T: ?Sized> {
    raw: RawMutex,
    data: UnsafeCell<T>,
}

// SAFETY: Own Thread: the value is only ever moved, or borrowed by one waiter at a time, so what
// crosses threads is the value itself, which needs `T: Send` and no more.
unsafe impl<T: ?Sized + Send> Send for Mutex<T> {}
// SAFETY: Own Thread: as above; `&Mutex` gives `&mut T` to one waiter at a time.
unsafe impl<T: ?Sized + Send> Sync for Mutex<T> {}

/// The right to touch a mutex's data; dropping it unlocks.
///
/// It is not `Send`: it stays with the worker that locked the mutex.
#[must_use = "the mutex is unlocked when the guard is dropped"]
pub struct MutexGuard<'a, T: ?Sized> {
    mutex: &'a Mutex<T>,
    stays: PhantomData<*const ()>,
}

// SAFETY: Own Thread: `&MutexGuard` gives `&T`, which may be shared if `T: Sync`.
unsafe impl<T: ?Sized + Sync> Sync for MutexGuard<'_, T> {}

/// A [`MutexGuard`] that keeps its mutex alive, and borrows nothing: it can be a field of what the
/// caller keeps.
///
/// It is not `Send`: it stays with the worker that locked the mutex.
#[must_use = "the mutex is unlocked when the guard is dropped"]
pub struct OwnedMutexGuard<T: ?Sized> {
    mutex: Arc<Mutex<T>>,
    stays: PhantomData<*const ()>,
}

// SAFETY: Own Thread: `&OwnedMutexGuard` gives `&T`, which may be shared if `T: Sync`. It gives no
// `Arc`, so what the guard keeps alive is dropped where the guard is.
unsafe impl<T: ?Sized + Sync> Sync for OwnedMutexGuard<T> {}

impl<T> Mutex<T> {
    /// Creates an unlocked mutex around `value`.
    pub const fn new(value: T) -> Mutex<T> {
        Mutex { raw: RawMutex::new(), data: UnsafeCell::new(value) }
    }

    /// Consumes the mutex and returns its value.
    pub fn into_inner(self) -> T {
        self.data.into_inner()
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Locks the mutex; waits as long as necessary and ignores cancellation.
    ///
    /// # Panics
    /// Panics if the caller holds this mutex already, because it would wait for itself, and if this
    /// wait is chosen to break a deadlock in which no wait can return an error ([`Mutex::lock_for`]
    /// returns one).
    #[inline]
    #[track_caller]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.raw.lock_or_panic(WaitReason::MUTEX);
        self.guard()
    }

    /// Locks the mutex without waiting; returns `None` if it is locked.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.raw.try_lock().then(|| self.guard())
    }

    /// Locks the mutex within this time. With [`Duration::MAX`] it waits as long as necessary, and
    /// returns an error where [`Mutex::lock`] would panic.
    ///
    /// # Errors
    /// [`WaitError`] if the time passed, the work request was cancelled, or this wait was chosen to
    /// break a deadlock.
    pub fn lock_for(&self, time: Duration) -> Result<MutexGuard<'_, T>, WaitError> {
        self.lock_within(Patience::For(time))
    }

    /// Locks the mutex before this moment.
    ///
    /// # Errors
    /// [`WaitError`] if the moment came, the work request was cancelled, or this wait was chosen to
    /// break a deadlock.
    pub fn lock_until(&self, deadline: Instant) -> Result<MutexGuard<'_, T>, WaitError> {
        self.lock_within(Patience::Until(deadline))
    }

    /// Locks the mutex as [`Mutex::lock`] does. The guard keeps the mutex alive.
    ///
    /// # Panics
    /// Where [`Mutex::lock`] does.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use ums::sync::{Mutex, OwnedMutexGuard};
    ///
    /// struct Transaction {
    ///     table: OwnedMutexGuard<Vec<u32>>,
    /// }
    ///
    /// let table = Arc::new(Mutex::new(Vec::new()));
    /// let mut transaction = Transaction { table: table.lock_owned() };
    /// transaction.table.push(1);
    /// assert!(table.try_lock().is_none());
    /// drop(transaction);
    /// assert_eq!(*table.lock(), [1]);
    /// ```
    #[track_caller]
    pub fn lock_owned(self: &Arc<Self>) -> OwnedMutexGuard<T> {
        self.raw.lock_or_panic(WaitReason::MUTEX);
        self.owned_guard()
    }

    /// Locks the mutex as [`Mutex::try_lock`] does. The guard keeps the mutex alive.
    pub fn try_lock_owned(self: &Arc<Self>) -> Option<OwnedMutexGuard<T>> {
        self.raw.try_lock().then(|| self.owned_guard())
    }

    /// Locks the mutex as [`Mutex::lock_for`] does. The guard keeps the mutex alive.
    ///
    /// # Errors
    /// Those of [`Mutex::lock_for`].
    pub fn lock_owned_for(
        self: &Arc<Self>,
        time: Duration,
    ) -> Result<OwnedMutexGuard<T>, WaitError> {
        let locked = self.raw.lock_within(WaitReason::MUTEX, Patience::For(time));
        locked.map(|()| self.owned_guard())
    }

    /// Returns the value without locking: `&mut self` excludes other borrows.
    pub fn get_mut(&mut self) -> &mut T {
        self.data.get_mut()
    }

    /// Returns whether the mutex was locked at some moment during the call.
    pub fn is_locked(&self) -> bool {
        self.raw.is_locked()
    }

    fn lock_within(&self, patience: Patience) -> Result<MutexGuard<'_, T>, WaitError> {
        self.raw.lock_within(WaitReason::MUTEX, patience).map(|()| self.guard())
    }

    /// Makes a guard; the caller owns the raw mutex.
    #[inline]
    fn guard(&self) -> MutexGuard<'_, T> {
        MutexGuard { mutex: self, stays: PhantomData }
    }

    /// Makes a guard; the caller owns the raw mutex.
    fn owned_guard(self: &Arc<Self>) -> OwnedMutexGuard<T> {
        OwnedMutexGuard { mutex: Arc::clone(self), stays: PhantomData }
    }

    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.raw.waiting()
    }
}

impl<T: ?Sized> MutexGuard<'_, T> {
    /// Returns the lock itself, for the condition variable, which unlocks it while it waits.
    pub(super) fn raw(&self) -> &RawMutex {
        &self.mutex.raw
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: Own Thread: this guard's waiter owns the mutex.
        unsafe { &*self.mutex.data.get() }
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: Own Thread: as above, and `&mut self` makes this the only borrow.
        unsafe { &mut *self.mutex.data.get() }
    }
}

impl<T: ?Sized> Drop for MutexGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.mutex.raw.unlock();
    }
}

impl<T: ?Sized> Deref for OwnedMutexGuard<T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: Own Thread: this guard's waiter owns the mutex.
        unsafe { &*self.mutex.data.get() }
    }
}

impl<T: ?Sized> DerefMut for OwnedMutexGuard<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: Own Thread: as above, and `&mut self` makes this the only borrow.
        unsafe { &mut *self.mutex.data.get() }
    }
}

impl<T: ?Sized> Drop for OwnedMutexGuard<T> {
    fn drop(&mut self) {
        self.mutex.raw.unlock();
    }
}

impl Default for RawMutex {
    fn default() -> RawMutex {
        RawMutex::new()
    }
}

impl<T> From<T> for Mutex<T> {
    fn from(value: T) -> Mutex<T> {
        Mutex::new(value)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The caller may hold the lock of an output stream.
        uninterrupted(|| {
            let mut out = f.debug_struct("Mutex");
            match self.try_lock() {
                Some(data) => out.field("data", &&*data),
                None => out.field("data", &format_args!("<locked>")),
            };
            out.finish()
        })
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for OwnedMutexGuard<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: ?Sized + fmt::Display> fmt::Display for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(test)]
mod tests;
