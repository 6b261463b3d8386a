//! The mutex without its data: its owner and its waiters.
//!
//! ```text
//! word             | meaning                     | lock             | unlock
//! null             | free                        | -> me            | (no owner)      
//! owner            | owned, no waiters           | -> owner+WAITERS | -> null
//! owner + WAITERS  | owned, others may wait      | queue            | short lock, hand over
//! null + WAITERS   | never                       |                  |
//! ```
//!
//! The word names the owner, so a waiter can name its blocker, and a caller that would wait
//! for itself gets a panic that says so. The transitions in the first two rows are one
//! compare-and-swap and touch nothing else. `WAITERS` is set and cleared under the short lock only,
//! and while it is set the word changes only under the short lock.
//!
//! No wake-up is lost: a waiter sets WAITERS with a compare-and-swap on the value that shows an
//! owner, so from then on the owner's swap to null fails and the owner takes the short lock, where
//! it finds the ticket, which was queued before the short lock was released. A failed waiter leaves
//! WAITERS as it is; the next unlock finds the queue empty and frees the mutex.

use std::time::Duration;

use super::patience::Patience;
use super::queue::{ShortLock, WaitQueue};
use super::traced;
use crate::current::{self, Operation};
use crate::os::atomic_ref::{AtomicMarkedRef, MarkedRef};
use crate::os::threads::operation;
use crate::record::reason::WaitReason;
use crate::wait::error::WaitError;
use crate::wait::{AsVictim, Outcome, Owned, Owner, Ticket, Waiter};

/// The owner's waiter; the mark is WAITERS.
type Word = MarkedRef<Waiter>;

/// A mutex without data, first come first served, for code that builds a lock of its own.
///
/// ```
/// static LOCK: ums::sync::RawMutex = ums::sync::RawMutex::new();
/// LOCK.lock(ums::WaitReason::MUTEX);
/// assert!(LOCK.is_mine());
/// LOCK.unlock();
/// ```
pub struct RawMutex {
    /// See the table above.
    word: AtomicMarkedRef<Waiter>,
    queue: ShortLock<WaitQueue>,
}

impl Owned for RawMutex {
    fn owners(&self, _waiter: Ticket, tell: &mut dyn FnMut(Owner)) {
        let owner = self.word.load().get();
        owner.map(Owner::Waiter).into_iter().for_each(tell);
    }
}

impl RawMutex {
    /// Creates an unlocked mutex.
    pub const fn new() -> RawMutex {
        RawMutex { word: AtomicMarkedRef::new(), queue: ShortLock::biased(WaitQueue::new()) }
    }

    /// Locks the mutex if it is free, and returns whether it did. Never waits.
    #[inline]
    pub fn try_lock(&self) -> bool {
        operation("mutex: try_lock");
        self.try_lock_now()
    }

    /// Locks the mutex; waits as long as necessary and ignores cancellation. The monitor never ends
    /// this wait to break a deadlock, because a panic may be unable to pass through the caller.
    ///
    /// # Panics
    /// Panics if the caller owns the mutex already, because it would wait for itself.
    #[inline]
    #[track_caller]
    pub fn lock(&self, reason: WaitReason) {
        operation("mutex: lock");
        let endless = Patience::Endless;
        while !self.try_lock_now() && self.lock_slow(reason, endless, AsVictim::Never).is_err() {}
    }

    /// Like [`RawMutex::lock`], for functions that return no error and may panic.
    ///
    /// # Panics
    /// Panics if the caller owns the mutex already, and, with the cycle, if this wait is chosen to
    /// break a deadlock.
    #[inline(always)]
    #[track_caller]
    pub(super) fn lock_or_panic(&self, reason: WaitReason) {
        operation("mutex: lock");
        if !self.try_lock_now() {
            // A second panic would end the process.
            let how = if std::thread::panicking() { AsVictim::Never } else { AsVictim::Panics };
            if let Err(error) = self.lock_slow(reason, Patience::Endless, how) {
                panic!("this lock can never be acquired: {error}");
            }
        }
    }

    /// Locks the mutex within this time; the wait can be cancelled.
    ///
    /// # Errors
    /// [`WaitError`] if the time passed, the work request was cancelled, or this wait was chosen to
    /// break a deadlock; the caller does not own the mutex then.
    pub fn lock_for(&self, reason: WaitReason, time: Duration) -> Result<(), WaitError> {
        self.lock_within(reason, Patience::For(time))
    }

    /// Locks the mutex within the caller's limit.
    #[inline]
    pub(super) fn lock_within(&self, reason: WaitReason, p: Patience) -> Result<(), WaitError> {
        operation("mutex: lock");
        if self.try_lock_now() {
            return Ok(());
        }
        self.lock_slow(reason, p, AsVictim::Fails)
    }

    /// Unlocks the mutex, which the caller must own: hands it to the first waiter, or frees it.
    #[inline]
    pub fn unlock(&self) {
        operation("mutex: unlock");
        traced::left(self);
        let word = self.word.load();
        let free = || self.word.compare_exchange(word, Word::NULL);
        if word.is_marked() || free().is_err() {
            self.unlock_slow();
        }
    }

    /// Returns whether the mutex was locked at some moment during the call.
    pub fn is_locked(&self) -> bool {
        operation("mutex: is_locked");
        !self.word.load().is_null()
    }

    /// Returns whether the caller owns the mutex.
    pub fn is_mine(&self) -> bool {
        self.word.load().get().is_some_and(|o| std::ptr::eq(o, current::waiter()))
    }

    #[inline]
    fn try_lock_now(&self) -> bool {
        // The load spares a caller that will wait the locked instruction, and looking for itself.
        if !self.word.load().is_null() {
            return false;
        }
        let me = current::waiter();
        let locked = self.word.compare_exchange(Word::NULL, Word::of(me)).is_ok();
        if locked {
            traced::taken(self, me);
        }
        locked
    }

    #[inline(never)]
    #[track_caller]
    fn lock_slow(
        &self,
        reason: WaitReason,
        patience: Patience,
        as_victim: AsVictim,
    ) -> Result<(), WaitError> {
        operation("mutex: is locked");
        let caller = Operation::begin();
        let me = caller.waiter();
        let is_mine = self.word.load().get().is_some_and(|o| std::ptr::eq(o, me));
        if is_mine && matches!(patience, Patience::Endless) {
            // The program's panic hook runs outside the library.
            drop(caller);
            panic!("this worker locks a mutex that it holds already: it would wait for itself");
        }
        let me = current::waiting_on(caller.scheduler());
        let waited = me.in_wait_for(self, as_victim, || {
            let ticket = caller.locked(&self.queue, |queue| {
                let holder = self.take_or_announce(me)?.get();
                let ticket = me.begin(patience.what(reason, self).blocked_by(holder));
                queue.push(ticket, ());
                Some(ticket)
            })?;
            Some((ticket, caller.park(ticket, patience.deadline())))
        });
        let Some((ticket, outcome)) = waited else {
            traced::taken(self, me);
            return Ok(());
        };
        match outcome {
            Outcome::Granted => traced::taken(self, me),
            _ => drop(self.queue.lock().remove(ticket)),
        }
        ticket.result(outcome)
    }

    /// Called under the short lock. Returns `None` if the mutex was free and is now the caller's.
    /// Otherwise returns the word, whose owner must now take the short lock when it unlocks.
    fn take_or_announce(&self, me: &'static Waiter) -> Option<Word> {
        let mut word = self.word.load();
        while !word.is_marked() {
            let free = word.is_null();
            let to = if free { Word::of(me) } else { word.marked() };
            match self.word.compare_exchange(word, to) {
                Ok(()) if free => return None,
                Ok(()) => return Some(to),
                Err(now) => word = now,
            }
        }
        Some(word)
    }

    #[inline(never)]
    fn unlock_slow(&self) {
        let caller = Operation::begin_release();
        let next = caller.locked(&self.queue, |queue| {
            let next = queue.grant_one();
            let word = match &next {
                Some(claimed) if queue.is_empty() => Word::of(claimed.waiter),
                Some(claimed) => Word::of(claimed.waiter).marked(),
                None => Word::NULL,
            };
            self.word.store(word);
            next
        });
        caller.ready_if(next);
    }

    /// Returns how many tickets are queued.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.queue.lock().len()
    }
}

impl std::fmt::Debug for RawMutex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if !self.word.load().is_null() { "RawMutex(locked)" } else { "RawMutex(free)" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::testing::{SHORT, until};

    #[test]
    fn the_word_takes_each_row_of_its_table() {
        let m = RawMutex::new();
        let word = || m.word.load();
        assert!(word().is_null());
        assert!(m.try_lock());
        assert!(std::ptr::eq(word().get().unwrap(), current::waiter()));
        assert!(!m.try_lock());
        std::thread::scope(|s| {
            s.spawn(|| {
                m.lock(WaitReason::MUTEX);
                assert!(std::ptr::eq(word().get().unwrap(), current::waiter()));
                assert!(!word().is_marked(), "no ticket is left in the queue");
                m.unlock();
            });
            until(|| m.waiting() == 1);
            assert!(word().is_marked());
            m.unlock();
        });
        assert!(word().is_null());
    }

    #[test]
    fn a_traced_mutex_that_was_handed_over_names_the_waiter_that_has_it() {
        // For the other tests of this process, too: a lock that is traced works as the others do.
        traced::turn_on();
        let m = RawMutex::new();
        m.lock(WaitReason::MUTEX);
        std::thread::scope(|s| {
            s.spawn(|| {
                m.lock(WaitReason::MUTEX);
                let takers = traced::takers(&m);
                assert!(matches!(takers[..], [taker] if std::ptr::eq(taker, current::waiter())));
                m.unlock();
                assert!(traced::takers(&m).is_empty());
            });
            until(|| m.waiting() == 1);
            m.unlock();
        });
    }

    #[test]
    fn a_failed_waiter_leaves_a_mutex_that_can_be_unlocked() {
        let m = RawMutex::new();
        m.lock(WaitReason::MUTEX);
        std::thread::scope(|s| {
            let wait = || m.lock_within(WaitReason::MUTEX, Patience::For(SHORT));
            assert_eq!(s.spawn(wait).join().unwrap(), Err(WaitError::TimedOut));
        });
        assert_eq!(m.waiting(), 0);
        m.unlock();
        assert!(!m.is_locked());
    }

    #[test]
    fn a_waiter_names_its_blocker_b22() {
        let m = RawMutex::new();
        m.lock(WaitReason::MUTEX);
        let me = std::ptr::from_ref(current::waiter());
        std::thread::scope(|s| {
            let (tell, told) = std::sync::mpsc::channel();
            let m = &m;
            s.spawn(move || {
                tell.send(current::waiter()).unwrap();
                m.lock(WaitReason::MUTEX);
                m.unlock();
            });
            let waiter = told.recv().unwrap();
            until(|| m.waiting() == 1);
            assert!(waiter.blocker().is_some_and(|blocker| std::ptr::eq(blocker, me)));
            let resource = waiter.record.view.resource.load(std::sync::atomic::Ordering::Relaxed);
            assert_eq!(resource, std::ptr::from_ref(m).addr() as u64);
            m.unlock();
        });
    }
}
