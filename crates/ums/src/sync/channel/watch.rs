//! The watch: one value that is replaced, and many receivers that want the newest.
//!
//! Each version of the value has a number. A receiver notes the number of the version that it has
//! seen, and waits for a larger one. It may miss versions in between, but never the last one.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::RecvError;
use crate::sync::condvar::Condvar;
use crate::sync::mutex::Mutex;
use crate::sync::patience::Patience;
use crate::wait::{Arm, Source, Ticket, Waitable};

/// Creates a watch with its first value, which the receiver has not seen.
///
/// ```
/// let (tx, mut rx) = ums::sync::channel::watch("starting");
/// assert_eq!(rx.get(), "starting");
/// std::thread::scope(|s| {
///     s.spawn(move || tx.send("ready"));
///     rx.changed()?;
///     assert_eq!(rx.get(), "ready");
///     assert!(rx.changed().is_err(), "the sender has gone");
///     Ok::<(), ums::sync::channel::RecvError>(())
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn watch<T>(value: T) -> (WatchSender<T>, WatchReceiver<T>) {
    let state = State { value, version: 1, sender_gone: false };
    let watched = Arc::new(Watched { state: Mutex::new(state), changed: Condvar::new() });
    (WatchSender { watched: watched.clone() }, WatchReceiver { watched, seen: 0 })
}

struct Watched<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

struct State<T> {
    value: T,
    version: u64,
    sender_gone: bool,
}

impl<T> State<T> {
    /// Returns whether a receiver that has seen this version need not wait.
    fn has_news_after(&self, seen: u64) -> bool {
        self.version != seen || self.sender_gone
    }

    /// Notes that a receiver has seen the newest version, if it had not.
    fn see(&self, seen: &mut u64) -> Result<(), RecvError> {
        if self.version == *seen {
            return Err(RecvError::Disconnected);
        }
        *seen = self.version;
        Ok(())
    }
}

/// Replaces the value of a [`watch`]. There is one; to use it in several tasks, put it in an `Arc`.
pub struct WatchSender<T> {
    watched: Arc<Watched<T>>,
}

/// Sees the newest value of a [`watch`]. A clone has seen what the original has seen.
pub struct WatchReceiver<T> {
    watched: Arc<Watched<T>>,
    /// The version that was seen last; 0 for none.
    seen: u64,
}

impl<T> WatchSender<T> {
    /// Replaces the value, and wakes the receivers that wait. Returns the value before.
    pub fn send(&self, value: T) -> T {
        self.modify(|before| std::mem::replace(before, value))
    }

    /// Changes the value, and wakes the receivers that wait. `change` must not use this watch,
    /// which is locked meanwhile. If it panics, the receivers see what it has made of the value.
    pub fn modify<R>(&self, change: impl FnOnce(&mut T) -> R) -> R {
        let mut state = self.watched.state.lock();
        state.version += 1;
        let result = {
            // Notified while the lock is held: whatever the closure does, the receivers are told.
            let _told = Told(&self.watched.changed);
            change(&mut state.value)
        };
        drop(state);
        result
    }

    /// Creates a receiver, which has not seen the present value.
    pub fn subscribe(&self) -> WatchReceiver<T> {
        WatchReceiver { watched: self.watched.clone(), seen: 0 }
    }
}

struct Told<'a>(&'a Condvar);

impl Drop for Told<'_> {
    fn drop(&mut self) {
        self.0.notify_all();
    }
}

impl<T> Drop for WatchSender<T> {
    fn drop(&mut self) {
        self.watched.state.lock().sender_gone = true;
        self.watched.changed.notify_all();
    }
}

impl<T> WatchReceiver<T> {
    /// Waits until there is a value that this receiver has not seen. It counts as seen afterwards.
    ///
    /// # Errors
    /// [`RecvError::Disconnected`] if the newest value was seen and the sender has gone;
    /// [`RecvError::Wait`] if the work request was cancelled.
    pub fn changed(&mut self) -> Result<(), RecvError> {
        self.changed_within(Patience::Cancellable)
    }

    /// Like [`changed`](WatchReceiver::changed), for at most this time.
    ///
    /// # Errors
    /// As [`changed`](WatchReceiver::changed); [`RecvError::Wait`] also if the time passed.
    pub fn changed_for(&mut self, time: Duration) -> Result<(), RecvError> {
        self.changed_within(Patience::For(time))
    }

    /// Like [`changed`](WatchReceiver::changed), until this moment at the latest.
    ///
    /// # Errors
    /// Like [`changed_for`](WatchReceiver::changed_for).
    pub fn changed_until(&mut self, deadline: Instant) -> Result<(), RecvError> {
        self.changed_within(Patience::Until(deadline))
    }

    fn changed_within(&mut self, patience: Patience) -> Result<(), RecvError> {
        let Watched { state, changed } = &*self.watched;
        let mut state = state.lock();
        let seen = self.seen;
        let unchanged = |state: &mut State<T>| !state.has_news_after(seen);
        let waited = changed.wait_while_within(&mut state, patience.fixed(), unchanged);
        waited.map_err(RecvError::Wait)?;
        state.see(&mut self.seen)
    }

    /// Returns whether there is a value that this receiver has not seen.
    pub fn has_changed(&self) -> bool {
        self.watched.state.lock().version != self.seen
    }

    /// Calls `look` with the newest value, which then counts as seen. `look` must not use this
    /// watch, which is locked meanwhile.
    pub fn with<R>(&mut self, look: impl FnOnce(&T) -> R) -> R {
        let state = self.watched.state.lock();
        self.seen = state.version;
        look(&state.value)
    }

    /// Returns the newest value, which then counts as seen.
    pub fn get(&mut self) -> T
    where
        T: Clone,
    {
        self.with(T::clone)
    }
}

/// The arm of a [`Select`](crate::sync::Select) that does as [`changed`](WatchReceiver::changed).
///
/// ```
/// use std::time::Duration;
/// use ums::sync::{Select, channel::watch};
/// let (tx, mut rx) = watch("starting");
/// rx.get();
/// tx.send("ready");
/// let changed = Select::new()
///     .on(&mut rx, |changed| changed.is_ok())
///     .on(Duration::from_secs(10), |()| false)
///     .wait()?;
/// assert_eq!((changed, rx.get()), (true, "ready"));
/// # Ok::<(), ums::WaitError>(())
/// ```
impl<'a, T> Waitable<'a> for &'a mut WatchReceiver<T> {
    type Output = Result<(), RecvError>;

    fn arm(self) -> Arm<'a, Self::Output> {
        Arm::new(self)
    }
}

impl<T> Source<Result<(), RecvError>> for &mut WatchReceiver<T> {
    fn try_now(&mut self) -> Option<Result<(), RecvError>> {
        let state = self.watched.state.lock();
        state.has_news_after(self.seen).then(|| state.see(&mut self.seen))
    }

    fn queue(&self, ticket: Ticket) -> bool {
        let Watched { state, changed } = &*self.watched;
        changed.queue_if(state, ticket, |state| !state.has_news_after(self.seen))
    }

    fn unqueue(&self, ticket: Ticket, granted: bool) {
        self.watched.changed.unqueue(ticket, granted);
    }

    fn granted(&mut self) -> Option<Result<(), RecvError>> {
        self.try_now()
    }
}

impl<T> Clone for WatchReceiver<T> {
    fn clone(&self) -> WatchReceiver<T> {
        WatchReceiver { watched: self.watched.clone(), seen: self.seen }
    }
}

impl<T> fmt::Debug for WatchSender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WatchSender").finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for WatchReceiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WatchReceiver").finish_non_exhaustive()
    }
}
