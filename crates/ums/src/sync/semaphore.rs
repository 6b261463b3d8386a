//! The semaphore: a number of permits, and a queue for them.
//!
//! ```text
//! word = permits << 1 | WAITERS
//!
//! WAITERS | meaning               | acquire(n)                    | add(n)
//! 0       | no waiters            | enough: -n, else set, queue   | +n
//! 1       | there may be waiters  | queue                         | +n, then grant
//! ```
//!
//! *Grant* means, under the short lock: while the first waiter asks for no more permits than are
//! left, claim the waiter; then subtract what was granted, and, if the queue is empty, clear
//! WAITERS. While WAITERS is set, permits are taken under the short lock only, so during a grant
//! their number can only grow.
//!
//! No permit stays free while the first waiter could have it. All accesses are to one word, so they
//! have one order. A waiter sets WAITERS and sees the permits in the same swap (S); an adder adds
//! permits and sees WAITERS in the same swap (A). If A comes before S, the waiter has seen the
//! permits. If S comes before A, the adder sees WAITERS and takes the short lock, after the waiter
//! has queued under it. A waiter that fails grants, too, because it may have asked for many permits
//! and kept waiters that ask for fewer waiting behind it.

use std::fmt;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::patience::Patience;
use super::queue::{Batch, ShortLock, WaitQueue};
use crate::current::{self, Operation};
use crate::os::threads::operation;
use crate::record::reason::WaitReason;
use crate::wait::error::WaitError;
use crate::wait::{Arm, Outcome, Source, Ticket, Waitable};

const WAITERS: usize = 1;
const ONE: usize = 2;

/// Permits that waiters take and give back, first come first served.
///
/// A large acquisition is not overtaken by later, smaller ones, so it does not starve.
///
/// ```
/// let seats = ums::sync::Semaphore::new(2);
/// let one = seats.acquire()?;
/// let two = seats.acquire()?;
/// assert!(seats.try_acquire().is_none());
/// drop(one);
/// assert_eq!(seats.available(), 1);
/// two.forget();
/// assert_eq!(seats.available(), 1);
/// # Ok::<(), ums::WaitError>(())
/// ```
pub struct Semaphore {
    /// See the table above.
    word: AtomicUsize,
    queue: ShortLock<WaitQueue<usize>>,
}

/// Permits taken from a semaphore; dropping it gives them back.
///
/// Unlike the guard of a mutex, a permit may be dropped by another worker or thread than the one
/// that acquired it.
#[derive(Debug)]
#[must_use = "the permits are given back when this is dropped"]
pub struct Permit<'a> {
    semaphore: &'a Semaphore,
    permits: usize,
}

impl Semaphore {
    /// The largest number of permits.
    pub const MAX: usize = usize::MAX >> 1;

    /// Creates a semaphore with this many permits.
    ///
    /// # Panics
    /// Panics if that is more than [`Semaphore::MAX`].
    pub const fn new(permits: usize) -> Semaphore {
        assert!(permits <= Semaphore::MAX, "a semaphore holds at most usize::MAX / 2 permits");
        Semaphore {
            // Bounded: it is at most `MAX`.
            word: AtomicUsize::new(permits * ONE),
            queue: ShortLock::biased(WaitQueue::new()),
        }
    }

    /// Takes one permit; waits as long as necessary.
    ///
    /// # Errors
    /// [`WaitError::Cancelled`] if the work request was cancelled.
    pub fn acquire(&self) -> Result<Permit<'_>, WaitError> {
        self.acquire_many(1)
    }

    /// Takes one permit without waiting; returns `None` if none is free or others wait.
    pub fn try_acquire(&self) -> Option<Permit<'_>> {
        self.try_acquire_many(1)
    }

    /// Takes one permit within this time.
    ///
    /// # Errors
    /// [`WaitError`] if the time passed or the work request was cancelled.
    pub fn acquire_for(&self, time: Duration) -> Result<Permit<'_>, WaitError> {
        self.acquire_within(1, Patience::For(time))
    }

    /// Takes one permit before this moment.
    ///
    /// # Errors
    /// [`WaitError`] if the moment came or the work request was cancelled.
    pub fn acquire_until(&self, deadline: Instant) -> Result<Permit<'_>, WaitError> {
        self.acquire_within(1, Patience::Until(deadline))
    }

    /// Takes `n` permits together; waits as long as necessary.
    ///
    /// # Errors
    /// [`WaitError::Cancelled`] if the work request was cancelled.
    pub fn acquire_many(&self, n: usize) -> Result<Permit<'_>, WaitError> {
        self.acquire_within(n, Patience::Cancellable)
    }

    /// Takes `n` permits together without waiting; returns `None` if fewer are free or others wait.
    pub fn try_acquire_many(&self, n: usize) -> Option<Permit<'_>> {
        operation("semaphore: try_acquire");
        // Not `then_some`, which would make a permit even if none was taken; its drop would add
        // permits.
        self.take(n).then(|| Permit { semaphore: self, permits: n })
    }

    /// Takes `n` permits together within this time.
    ///
    /// # Errors
    /// [`WaitError`] if the time passed or the work request was cancelled.
    pub fn acquire_many_for(&self, n: usize, time: Duration) -> Result<Permit<'_>, WaitError> {
        self.acquire_within(n, Patience::For(time))
    }

    /// Takes `n` permits together before this moment.
    ///
    /// # Errors
    /// [`WaitError`] if the moment came or the work request was cancelled.
    pub fn acquire_many_until(&self, n: usize, by: Instant) -> Result<Permit<'_>, WaitError> {
        self.acquire_within(n, Patience::Until(by))
    }

    /// Adds permits; waiting acquisitions get them first.
    ///
    /// # Panics
    /// Panics if there would be more than [`Semaphore::MAX`].
    #[track_caller]
    pub fn add_permits(&self, n: usize) {
        operation("semaphore: release");
        let add = |word: usize| {
            let permits = (word / ONE).checked_add(n).filter(|p| *p <= Semaphore::MAX);
            permits.map(|permits| (permits * ONE) | (word & WAITERS))
        };
        let before = self.word.fetch_update(Ordering::Release, Ordering::Relaxed, add);
        let before = before.expect("a semaphore holds at most usize::MAX / 2 permits");
        if before & WAITERS != 0 {
            self.grant_next();
        }
    }

    /// Returns how many permits were free at some moment during the call.
    pub fn available(&self) -> usize {
        operation("semaphore: available");
        self.available_now()
    }

    fn available_now(&self) -> usize {
        self.word.load(Ordering::Relaxed) / ONE
    }

    fn acquire_within(&self, n: usize, patience: Patience) -> Result<Permit<'_>, WaitError> {
        operation("semaphore: acquire");
        if !self.take(n) {
            self.acquire_slow(n, patience)?;
        }
        Ok(Permit { semaphore: self, permits: n })
    }

    /// Takes `n` permits if there are as many and no waiters.
    #[inline]
    fn take(&self, n: usize) -> bool {
        let fits = |word| has_free(word, n).then(|| word - n * ONE);
        self.word.fetch_update(Ordering::Acquire, Ordering::Relaxed, fits).is_ok()
    }

    #[inline(never)]
    fn acquire_slow(&self, n: usize, patience: Patience) -> Result<(), WaitError> {
        operation("semaphore: has too few");
        let caller = Operation::begin();
        let me = current::waiting_on(caller.scheduler());
        let take_or_announce =
            |word| if has_free(word, n) { word - n * ONE } else { word | WAITERS };
        let step = |word| Some(take_or_announce(word));
        let begun = caller.locked(&self.queue, |queue| {
            let before = self.word.fetch_update(Ordering::Acquire, Ordering::Relaxed, step);
            let before = before.expect("the step always has an answer");
            if take_or_announce(before) & WAITERS == 0 {
                return None;
            }
            let ticket = me.begin(patience.what(WaitReason::SEMAPHORE, self));
            queue.push(ticket, n);
            Some(ticket)
        });
        let Some(ticket) = begun else { return Ok(()) };
        let outcome = caller.park(ticket, patience.deadline());
        if outcome != Outcome::Granted {
            self.queue.lock().remove(ticket);
            self.grant_next();
        }
        outcome.ok()
    }

    #[inline(never)]
    fn grant_next(&self) {
        let mut batch = Batch::new();
        let mut queue = self.queue.lock();
        // What is subtracted at the end, in one step: until then WAITERS is set, so no other caller
        // takes permits.
        let mut spent = 0;
        while let Some(n) = queue.first() {
            // Acquire: what the adder wrote before it added is visible to the waiter that is
            // granted.
            if (self.word.load(Ordering::Acquire) - spent) / ONE < n {
                break;
            }
            if let Some(claimed) = queue.claim_first() {
                spent += n * ONE;
                batch.push(claimed);
            }
        }
        // WAITERS is changed under the short lock only.
        if queue.is_empty() {
            spent += self.word.load(Ordering::Relaxed) & WAITERS;
        }
        if spent > 0 {
            self.word.fetch_sub(spent, Ordering::Relaxed);
        }
        drop(queue);
        batch.ready();
    }

    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.queue.lock().len()
    }
}

impl Semaphore {
    /// Takes one permit that does not borrow the semaphore, so that it can move into a task; waits
    /// as long as necessary.
    ///
    /// # Errors
    /// [`WaitError::Cancelled`] if the work request was cancelled.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use ums::sync::Semaphore;
    /// let node = ums::Node::builder().schedulers(1).build()?;
    /// let slots = Arc::new(Semaphore::new(4));
    /// let theirs = slots.clone();
    /// node.run(move || {
    ///     let tasks: Vec<_> = (0..16)
    ///         .map(|n| {
    ///             // At most four of these tasks exist at a time.
    ///             let slot = theirs.acquire_owned().unwrap();
    ///             ums::spawn(move || {
    ///                 let _slot = slot;
    ///                 n * n
    ///             })
    ///         })
    ///         .collect();
    ///     assert_eq!(tasks.into_iter().map(|t| t.join().unwrap()).sum::<i32>(), 1240);
    /// });
    /// assert_eq!(slots.available(), 4);
    /// # Ok::<(), ums::BuildError>(())
    /// ```
    pub fn acquire_owned(self: &Arc<Self>) -> Result<OwnedPermit, WaitError> {
        self.acquire().map(|permit| self.owned(permit))
    }

    /// Takes one such permit without waiting; returns `None` if none is free or others wait.
    pub fn try_acquire_owned(self: &Arc<Self>) -> Option<OwnedPermit> {
        self.try_acquire().map(|permit| self.owned(permit))
    }

    fn owned(self: &Arc<Self>, permit: Permit<'_>) -> OwnedPermit {
        permit.forget();
        OwnedPermit { semaphore: self.clone() }
    }
}

/// A permit that does not borrow its semaphore; dropping it gives it back.
#[derive(Debug)]
#[must_use = "the permit is given back when this is dropped"]
pub struct OwnedPermit {
    semaphore: Arc<Semaphore>,
}

impl Drop for OwnedPermit {
    fn drop(&mut self) {
        self.semaphore.add_permits(1);
    }
}

/// Returns whether `n` permits can be taken, with this word.
#[inline]
fn has_free(word: usize, n: usize) -> bool {
    word & WAITERS == 0 && word / ONE >= n
}

impl<'a> Waitable<'a> for &'a Semaphore {
    type Output = Permit<'a>;

    fn arm(self) -> Arm<'a, Permit<'a>> {
        Arm::new(self)
    }
}

impl<'a> Source<Permit<'a>> for &'a Semaphore {
    fn try_now(&mut self) -> Option<Permit<'a>> {
        self.try_acquire()
    }

    fn queue(&self, ticket: Ticket) -> bool {
        let _settled = current::before_short_lock();
        let mut queue = self.queue.lock();
        // As in `acquire_slow`, but takes nothing: another arm may be chosen.
        let announce = |word| (!has_free(word, 1)).then_some(word | WAITERS);
        let waits = self.word.fetch_update(Ordering::Acquire, Ordering::Relaxed, announce).is_ok();
        if waits {
            queue.push(ticket, 1);
        }
        waits
    }

    fn unqueue(&self, ticket: Ticket, granted: bool) {
        if !granted && self.queue.lock().remove(ticket) {
            self.grant_next();
        }
    }

    fn granted(&mut self) -> Option<Permit<'a>> {
        Some(Permit { semaphore: self, permits: 1 })
    }
}

impl Permit<'_> {
    /// Returns the number of permits.
    pub fn permits(&self) -> usize {
        self.permits
    }

    /// Removes the permits from the semaphore for good; [`Semaphore::add_permits`] can add new
    /// ones.
    pub fn forget(self) {
        mem::forget(self);
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        self.semaphore.add_permits(self.permits);
    }
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Semaphore").field("available", &self.available_now()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::testing::{Dice, SHORT, until};
    use std::sync::Mutex;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn permits_go_out_in_the_order_of_coming_and_a_large_wish_is_not_passed() {
        let (s, order) = (Semaphore::new(0), Mutex::new(Vec::new()));
        std::thread::scope(|scope| {
            for (at, n) in [3, 1, 2].into_iter().enumerate() {
                let (s, order) = (&s, &order);
                scope.spawn(move || {
                    s.acquire_many(n).unwrap().forget();
                    order.lock().unwrap().push(n);
                });
                until(|| s.waiting() == at + 1);
            }
            s.add_permits(2);
            assert_eq!((s.waiting(), s.available()), (3, 2), "the first wants three");
            assert!(s.try_acquire().is_none(), "a waiter is not overtaken");
            s.add_permits(1);
            assert_eq!((s.waiting(), s.available()), (2, 0));
            until(|| order.lock().unwrap().len() == 1);
            s.add_permits(1);
            until(|| order.lock().unwrap().len() == 2);
            s.add_permits(2);
        });
        assert_eq!(order.into_inner().unwrap(), [3, 1, 2]);
        assert_eq!(s.available(), 0);
    }

    #[test]
    fn one_release_may_serve_several_u54() {
        let s = Semaphore::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| s.acquire().unwrap().forget());
            }
            until(|| s.waiting() == 4);
            s.add_permits(5);
        });
        assert_eq!(s.available(), 1);
        assert!(s.try_acquire().is_some(), "there are no waiters any more");
    }

    #[test]
    fn permits_that_come_before_the_caller_has_queued_are_taken_at_once() {
        let s = Semaphore::new(0);
        assert!(!s.take(2));
        s.add_permits(3);
        // The rest of an acquisition that has found too few.
        assert_eq!(s.acquire_slow(2, Patience::Until(Instant::now())), Ok(()));
        assert_eq!(s.available(), 1);
        assert!(s.try_acquire().is_some(), "there are no waiters");
    }

    #[test]
    fn a_large_wish_that_fails_lets_those_behind_it_in() {
        let (s, failed) = (Semaphore::new(2), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let large = s.acquire_many_for(5, SHORT * 20);
                assert_eq!(large.err(), Some(WaitError::TimedOut));
                failed.store(true, Ordering::Relaxed);
            });
            // On a busy computer it may have failed already.
            until(|| s.waiting() == 1 || failed.load(Ordering::Relaxed));
            // This waits behind the large acquisition, although two permits are free.
            s.acquire_many(2).unwrap().forget();
            assert!(failed.load(Ordering::Relaxed) || s.waiting() == 0);
        });
        assert_eq!(s.available(), 0);
        assert_eq!(s.acquire_until(Instant::now()).err(), Some(WaitError::TimedOut));
    }

    #[test]
    fn nothing_is_granted_beyond_the_permits_and_none_is_lost() {
        const PERMITS: usize = 5;
        let (s, out) = (Semaphore::new(PERMITS), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for seed in 1..=4 {
                let (s, out) = (&s, &out);
                scope.spawn(move || {
                    let mut dice = Dice(seed);
                    for _ in 0..3_000 {
                        let n = dice.roll(PERMITS as u64) as usize + 1;
                        let time = Duration::from_nanos(dice.roll(60_000));
                        let permit = match dice.roll(3) {
                            0 => s.try_acquire_many(n),
                            1 => s.acquire_many_for(n, time).ok(),
                            _ => s.acquire_many(n).ok(),
                        };
                        if let Some(permit) = permit {
                            let now = out.fetch_add(n, Ordering::SeqCst) + n;
                            assert!(now <= PERMITS);
                            out.fetch_sub(n, Ordering::SeqCst);
                            drop(permit);
                        }
                    }
                });
            }
        });
        assert_eq!((s.available(), s.waiting()), (PERMITS, 0));
        assert_eq!(s.word.load(Ordering::Relaxed) & WAITERS, 0);
    }

    #[test]
    #[should_panic(expected = "at most")]
    fn too_many_permits_are_refused() {
        Semaphore::new(Semaphore::MAX).add_permits(1);
    }
}
