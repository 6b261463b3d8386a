//! The condition variable: a wait, with a mutex unlocked meanwhile, that ends with a notification.
//!
//! A waiter queues its ticket here before it unlocks the mutex, so a notification that comes after
//! the unlock finds it: nothing is lost between the two. Once notified, the waiter queues for the
//! mutex like any other caller. Moving it straight from this queue to the mutex's was considered
//! and left out: on a cooperative scheduler the notifier has mostly unlocked before the waiter runs
//! at all, so the move would save nothing, and it would let a notifier access a mutex that it has
//! not borrowed.
//!
//! A select waits in this queue, too, for a channel that tells its receivers by a condition
//! variable (`watch`, `broadcast`): its arm queues the ticket while it holds the mutex.
//!
//! A notification goes to a waiter that still waits, never to one whose deadline has passed. There
//! are no spurious wake-ups, but the condition may have changed back before the mutex is locked
//! again: use the `_while` forms.

use std::fmt;
use std::time::{Duration, Instant};

use super::mutex::{Mutex, MutexGuard};
use super::patience::Patience;
use super::queue::{ShortLock, WaitQueue};
use super::raw_mutex::RawMutex;
use crate::current;
use crate::os::threads::operation;
use crate::record::reason::WaitReason;
use crate::wait::error::WaitError;
use crate::wait::{Outcome, Ticket};

/// A condition variable for [`Mutex`](super::Mutex) guards, which it takes by `&mut`.
///
/// There are no spurious wake-ups, but the condition may have changed back before the mutex is
/// locked again: use [`wait_while`](Condvar::wait_while).
///
/// ```
/// use ums::sync::{Condvar, Mutex};
/// let (ready, changed) = (Mutex::new(false), Condvar::new());
/// std::thread::scope(|s| {
///     s.spawn(|| {
///         *ready.lock() = true;
///         changed.notify_one();
///     });
///     changed.wait_while(&mut ready.lock(), |ready| !*ready)
/// })?;
/// # Ok::<(), ums::WaitError>(())
/// ```
pub struct Condvar {
    queue: ShortLock<WaitQueue>,
}

impl Condvar {
    /// Creates a condition variable without waiters.
    pub const fn new() -> Condvar {
        Condvar { queue: ShortLock::biased(WaitQueue::new()) }
    }

    /// Unlocks the mutex, waits to be notified and locks the mutex again.
    ///
    /// # Errors
    /// [`WaitError::Cancelled`] if the work request was cancelled; the mutex is locked again then,
    /// too.
    pub fn wait<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>) -> Result<(), WaitError> {
        self.wait_within(guard, Patience::Cancellable)
    }

    /// Waits while the condition holds.
    ///
    /// # Errors
    /// Like [`wait`](Condvar::wait), but only if the condition still holds.
    pub fn wait_while<T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        condition: impl FnMut(&mut T) -> bool,
    ) -> Result<(), WaitError> {
        self.wait_while_within(guard, Patience::Cancellable, condition)
    }

    /// Like [`wait`](Condvar::wait), for at most this time.
    ///
    /// # Errors
    /// [`WaitError`] if the time passed or the work request was cancelled; the mutex is locked
    /// again in either case.
    pub fn wait_for<T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        time: Duration,
    ) -> Result<(), WaitError> {
        self.wait_within(guard, Patience::For(time))
    }

    /// Like [`wait`](Condvar::wait), until this moment at the latest.
    ///
    /// # Errors
    /// Like [`wait_for`](Condvar::wait_for).
    pub fn wait_until<T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        deadline: Instant,
    ) -> Result<(), WaitError> {
        self.wait_within(guard, Patience::Until(deadline))
    }

    /// Waits while the condition holds, for at most this time in all.
    ///
    /// # Errors
    /// Like [`wait_for`](Condvar::wait_for), but only if the condition still holds.
    pub fn wait_while_for<T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        time: Duration,
        condition: impl FnMut(&mut T) -> bool,
    ) -> Result<(), WaitError> {
        self.wait_while_within(guard, Patience::For(time).fixed(), condition)
    }

    /// Wakes the first waiter.
    pub fn notify_one(&self) {
        operation("condvar: notify_one");
        let granted = self.queue.lock().grant_one();
        granted.into_iter().for_each(current::ready);
    }

    /// Wakes all present waiters, in the order in which they came.
    pub fn notify_all(&self) {
        operation("condvar: notify_all");
        let granted = self.queue.lock().grant_all();
        granted.ready();
    }

    pub(super) fn wait_while_within<T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        patience: Patience,
        mut condition: impl FnMut(&mut T) -> bool,
    ) -> Result<(), WaitError> {
        while condition(guard) {
            if let Err(e) = self.wait_within(guard, patience) {
                return if condition(guard) { Err(e) } else { Ok(()) };
            }
        }
        Ok(())
    }

    fn wait_within<T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        patience: Patience,
    ) -> Result<(), WaitError> {
        operation("condvar: wait");
        let settled = current::before_short_lock();
        let mut queue = self.queue.lock();
        drop(settled);
        let ticket = current::begin(patience.what(WaitReason::CONDVAR, self));
        queue.push(ticket, ());
        drop(queue);
        guard.raw().unlock();
        let relock = Relock(guard.raw());
        let outcome = current::park(ticket, patience.deadline());
        if outcome != Outcome::Granted {
            self.queue.lock().remove(ticket);
        }
        drop(relock);
        outcome.ok()
    }

    /// Queues the ticket of an arm if the arm `waits` as the mutex's value is now, and returns
    /// whether it does. The mutex is held meanwhile, so a notification that comes after a change of
    /// the value finds the ticket. Where another caller holds the mutex, this returns false: the
    /// select then tries the arm again, which waits for the mutex.
    pub(super) fn queue_if<T>(
        &self,
        mutex: &Mutex<T>,
        ticket: Ticket,
        waits: impl FnOnce(&T) -> bool,
    ) -> bool {
        let Some(value) = mutex.try_lock() else { return false };
        let waits = waits(&value);
        if waits {
            let _settled = current::before_short_lock();
            self.queue.lock().push(ticket, ());
        }
        waits
    }

    /// Removes the ticket of an arm, unless a notification has taken it.
    pub(super) fn unqueue(&self, ticket: Ticket, granted: bool) {
        if !granted {
            self.queue.lock().remove(ticket);
        }
    }

    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.queue.lock().len()
    }
}

/// Locks the mutex when dropped, so that the guard's owner holds it again however the wait ends.
struct Relock<'a>(&'a RawMutex);

impl Drop for Relock<'_> {
    fn drop(&mut self) {
        self.0.lock(WaitReason::MUTEX);
    }
}

impl Default for Condvar {
    fn default() -> Condvar {
        Condvar::new()
    }
}

impl fmt::Debug for Condvar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Condvar").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::Mutex;
    use crate::sync::testing::{Dice, SHORT, until};

    #[test]
    fn notify_one_wakes_the_first_and_only_it() {
        let (m, cv) = (Mutex::new(Vec::new()), Condvar::new());
        std::thread::scope(|s| {
            for i in 0..3 {
                let (m, cv) = (&m, &cv);
                s.spawn(move || {
                    let mut order = m.lock();
                    cv.wait(&mut order).unwrap();
                    order.push(i);
                });
                until(|| cv.waiting() == i + 1);
            }
            for i in 0..3 {
                cv.notify_one();
                until(|| m.lock().len() == i + 1);
                assert_eq!(cv.waiting(), 2 - i);
            }
        });
        assert_eq!(m.into_inner(), [0, 1, 2]);
    }

    #[test]
    fn notify_all_wakes_all_and_later_ones_wait() {
        let (m, cv) = (Mutex::new(0), Condvar::new());
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| cv.wait_while(&mut m.lock(), |n| *n == 0).unwrap());
            }
            until(|| cv.waiting() == 4);
            *m.lock() = 1;
            cv.notify_all();
        });
        let mut guard = m.lock();
        assert_eq!(cv.wait_for(&mut guard, SHORT), Err(WaitError::TimedOut));
        assert_eq!(*guard, 1, "the mutex is locked again");
        assert!(m.try_lock().is_none());
        let past = Instant::now();
        assert_eq!(cv.wait_until(&mut guard, past), Err(WaitError::TimedOut));
        assert_eq!(cv.wait_while_for(&mut guard, SHORT, |_| true), Err(WaitError::TimedOut));
        assert_eq!(cv.wait_while_for(&mut guard, SHORT, |_| false), Ok(()));
    }

    #[test]
    fn notifications_race_with_deadlines_and_no_item_is_lost() {
        const ITEMS: usize = 3_000;
        let (m, cv) = (Mutex::new(0_usize), Condvar::new());
        let taken = Mutex::new(0);
        std::thread::scope(|s| {
            for seed in 1..=3 {
                let (m, cv, taken) = (&m, &cv, &taken);
                s.spawn(move || {
                    let mut dice = Dice(seed);
                    while *taken.lock() < ITEMS {
                        let time = Duration::from_nanos(dice.roll(50_000));
                        let mut items = m.lock();
                        let _ = cv.wait_while_for(&mut items, time, |items| *items == 0);
                        if *items > 0 {
                            *items -= 1;
                            *taken.lock() += 1;
                        }
                    }
                });
            }
            for _ in 0..ITEMS {
                *m.lock() += 1;
                cv.notify_one();
            }
        });
        assert_eq!((m.into_inner(), taken.into_inner()), (0, ITEMS));
        assert_eq!(cv.waiting(), 0);
    }
}
