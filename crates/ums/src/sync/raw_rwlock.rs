//! The reader-writer lock without its data: several readers share it, or one writer has it alone.
//!
//! ```text
//! word = readers << 2 | WAITERS << 1 | WRITER
//!
//! readers | WAITERS | WRITER | meaning                     | share       | exclude
//! 0       | 0       | 0      | free                        | +1 reader   | -> WRITER
//! n       | 0       | 0      | n readers                   | +1 reader   | queue
//! 0       | 0       | 1      | a writer                    | queue       | queue
//! n or 0  | 1       | 0 or 1 | as above, others may wait   | queue       | queue
//! ```
//!
//! The protocol is that of the semaphore (`semaphore.rs`). While WAITERS is set, shares are taken
//! under the short lock only. Unlocking is one subtraction that also reads WAITERS. If the last
//! holder reads WAITERS when it unlocks, it takes the short lock and grants. The state `readers =
//! 0, WAITERS, no WRITER` lasts from that subtraction to the grant; a caller that arrives meanwhile
//! queues, and the grant finds it. A waiter that fails grants, too, because it may have been the
//! writer that kept readers waiting.
//!
//! For deadlock detection, a waiter waits for the writer. If it wants to write, it also waits for
//! the readers, if locks are traced (otherwise readers are only counted). If it wants to read, it
//! also waits for the writers before it in the queue.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::patience::Patience;
use super::queue::{Batch, ShortLock, WaitQueue};
use super::traced;
use crate::current;
use crate::os::atomic_ref::AtomicRef;
use crate::os::threads::operation;
use crate::record::reason::WaitReason;
use crate::wait::error::WaitError;
use crate::wait::{AsVictim, Outcome, Owned, Owner, Ticket, Waiter};

const WRITER: usize = 1;
const WAITERS: usize = 2;
const READER: usize = 4;

/// The share of a [`RawRwLock`] that a caller asks for or holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// The lock together with other readers.
    Shared,
    /// The lock alone, as a writer.
    Exclusive,
}

impl Share {
    /// Returns the bits that the share adds to the word.
    fn bits(self) -> usize {
        match self {
            Share::Shared => READER,
            Share::Exclusive => WRITER,
        }
    }

    /// Returns whether the share is compatible with the present holders.
    fn fits(self, word: usize) -> bool {
        match self {
            Share::Shared => word & WRITER == 0,
            Share::Exclusive => word & !WAITERS == 0,
        }
    }

    fn reason(self) -> WaitReason {
        match self {
            Share::Shared => WaitReason::RWLOCK_SHARED,
            Share::Exclusive => WaitReason::RWLOCK_EXCLUSIVE,
        }
    }
}

/// A reader-writer lock without data, first come first served, for code that builds a lock of its
/// own.
///
/// ```
/// use ums::sync::{RawRwLock, Share};
/// static LOCK: RawRwLock = RawRwLock::new();
/// assert!(LOCK.try_lock(Share::Shared) && LOCK.try_lock(Share::Shared));
/// assert!(!LOCK.try_lock(Share::Exclusive));
/// assert!(LOCK.release() && LOCK.release());
/// assert!(!LOCK.release(), "it is free");
/// ```
pub struct RawRwLock {
    /// See the table above.
    word: AtomicUsize,
    /// The waiter that writes. Other threads may read a value that is slightly out of date.
    writer: AtomicRef<Waiter>,
    queue: ShortLock<WaitQueue<Share>>,
}

impl Owned for RawRwLock {
    fn owners(&self, waiter: Ticket, tell: &mut dyn FnMut(Owner)) {
        let mut tell = |waiter| tell(Owner::Waiter(waiter));
        self.writer().into_iter().for_each(&mut tell);
        let queue = self.queue.lock();
        let Some((_, share)) = queue.iter().find(|(ticket, _)| *ticket == waiter) else { return };
        match share {
            Share::Exclusive if self.word.load(Ordering::Relaxed) >= READER => {
                traced::takers(self).into_iter().for_each(&mut tell);
            }
            Share::Exclusive => {}
            Share::Shared => {
                let before = queue.iter().take_while(|(ticket, _)| *ticket != waiter);
                let writers = before.filter(|(_, share)| *share == Share::Exclusive);
                writers.for_each(|(ticket, _)| tell(ticket.waiter));
            }
        }
    }
}

impl RawRwLock {
    /// Creates a free lock.
    pub const fn new() -> RawRwLock {
        RawRwLock {
            word: AtomicUsize::new(0),
            writer: AtomicRef::new(),
            queue: ShortLock::biased(WaitQueue::new()),
        }
    }

    /// Takes the share if it is available and there are no waiters. Never waits.
    #[inline]
    pub fn try_lock(&self, share: Share) -> bool {
        operation("rwlock: lock");
        let take = |word| (word & WAITERS == 0 && share.fits(word)).then(|| word + share.bits());
        let taken = self.word.fetch_update(Ordering::Acquire, Ordering::Relaxed, take).is_ok();
        if taken {
            self.note_taken(share);
        }
        taken
    }

    /// Takes the share; waits as long as necessary.
    ///
    /// # Panics
    /// Panics if the caller is the writer, because it would wait for itself, and if this wait is
    /// chosen to break a deadlock.
    #[inline]
    #[track_caller]
    pub(super) fn lock(&self, share: Share) {
        if !self.try_lock(share) {
            // A second panic would end the process.
            let how = if std::thread::panicking() { AsVictim::Never } else { AsVictim::Panics };
            if let Err(error) = self.lock_slow(share, Patience::Endless, how) {
                panic!("this lock can never be acquired: {error}");
            }
        }
    }

    /// Takes the share within this time; the wait can be cancelled.
    ///
    /// # Errors
    /// [`WaitError`] if the time passed, the work request was cancelled, or this wait was chosen to
    /// break a deadlock; the caller does not have the share then.
    pub fn lock_for(&self, share: Share, time: Duration) -> Result<(), WaitError> {
        self.lock_within(share, Patience::For(time))
    }

    /// Takes the share within the caller's limit.
    #[inline]
    pub(super) fn lock_within(&self, share: Share, patience: Patience) -> Result<(), WaitError> {
        if self.try_lock(share) { Ok(()) } else { self.lock_slow(share, patience, AsVictim::Fails) }
    }

    /// Releases the share, which the caller must hold.
    #[inline]
    pub(super) fn unlock(&self, share: Share) {
        operation("rwlock: unlock");
        traced::left(self);
        if share == Share::Exclusive {
            self.writer.store(None);
        }
        let left = self.word.fetch_sub(share.bits(), Ordering::Release) - share.bits();
        if left == WAITERS {
            self.grant_next();
        }
    }

    /// Releases what the caller has: the lock, if the caller is its writer; otherwise the share of
    /// one reader. Readers are only counted, so this may be another reader's share. Returns false,
    /// and changes nothing, if the lock is free or another caller is its writer.
    pub fn release(&self) -> bool {
        if self.is_mine() {
            self.unlock(Share::Exclusive);
            return true;
        }
        operation("rwlock: unlock");
        let one_less = |word| (word >= READER).then(|| word - READER);
        let before = self.word.fetch_update(Ordering::Release, Ordering::Relaxed, one_less);
        let Ok(before) = before else { return false };
        traced::left(self);
        if before - READER == WAITERS {
            self.grant_next();
        }
        true
    }

    /// Returns whether the caller is the writer.
    pub fn is_mine(&self) -> bool {
        self.writer().is_some_and(|writer| std::ptr::eq(writer, current::waiter()))
    }

    /// Returns whether the lock was held at some moment during the call.
    pub fn is_locked(&self) -> bool {
        operation("rwlock: is_locked");
        self.word.load(Ordering::Relaxed) & !WAITERS != 0
    }

    /// Turns the caller, which is the writer, into a reader, and lets in the readers at the head of
    /// the queue. Returns false, and changes nothing, if the caller is not the writer.
    pub fn downgrade(&self) -> bool {
        let is_mine = self.is_mine();
        if is_mine {
            self.turn_reader();
        }
        is_mine
    }

    /// Turns the writer into a reader. The writer may be another one than the caller, because a
    /// guard may have been moved.
    pub(super) fn turn_reader(&self) {
        operation("rwlock: downgrade");
        self.writer.store(None);
        let before = self.word.fetch_add(READER - WRITER, Ordering::Release);
        if before & WAITERS != 0 {
            self.grant_next();
        }
    }

    #[cold]
    #[track_caller]
    fn lock_slow(
        &self,
        share: Share,
        patience: Patience,
        as_victim: AsVictim,
    ) -> Result<(), WaitError> {
        operation("rwlock: is locked");
        let waiter = current::about_to_wait();
        let me = waiter.waiter();
        let mut queue = self.queue.lock();
        let is_mine = self.writer().is_some_and(|writer| std::ptr::eq(writer, me));
        assert!(
            !(is_mine && matches!(patience, Patience::Endless)),
            "this worker locks a reader-writer lock that it writes: it would wait for itself"
        );
        let take_or_announce = |word| match word {
            word if word & WAITERS == 0 && share.fits(word) => word + share.bits(),
            _ => word | WAITERS,
        };
        let step = |word| Some(take_or_announce(word));
        let before = self.word.fetch_update(Ordering::Acquire, Ordering::Relaxed, step);
        let before = before.expect("the step always has an answer");
        if take_or_announce(before) & WAITERS == 0 {
            self.note_taken(share);
            return Ok(());
        }
        let writer = self.writer();
        let (ticket, outcome) = me.in_wait_for(self, as_victim, || {
            let ticket = waiter.begin(patience.what(share.reason(), self).blocked_by(writer));
            queue.push(ticket, share);
            drop(queue);
            (ticket, current::park(ticket, patience.deadline()))
        });
        if outcome == Outcome::Granted {
            traced::taken(self, me);
        } else {
            self.queue.lock().remove(ticket);
            self.grant_next();
        }
        ticket.result(outcome)
    }

    /// Records that the caller has taken the share.
    #[inline]
    fn note_taken(&self, share: Share) {
        if share == Share::Exclusive {
            self.note_writer(current::waiter());
        }
        traced::taken_by_caller(self);
    }

    /// Lets in what fits from the head of the queue: one writer, or readers up to the next writer.
    #[cold]
    fn grant_next(&self) {
        let mut batch = Batch::new();
        let mut queue = self.queue.lock();
        while let Some(share) = queue.first() {
            // Acquire: what earlier holders wrote is visible to the waiters that are granted here.
            if !share.fits(self.word.load(Ordering::Acquire)) {
                break;
            }
            let Some(claimed) = queue.claim_first() else { continue };
            self.word.fetch_add(share.bits(), Ordering::Relaxed);
            if share == Share::Exclusive {
                self.note_writer(claimed.waiter);
            }
            batch.push(claimed);
        }
        if queue.is_empty() {
            self.word.fetch_and(!WAITERS, Ordering::Relaxed);
        }
        drop(queue);
        batch.ready();
    }

    fn note_writer(&self, waiter: &'static Waiter) {
        self.writer.store(Some(waiter));
    }

    fn writer(&self) -> Option<&'static Waiter> {
        self.writer.load()
    }

    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.queue.lock().len()
    }

    #[cfg(test)]
    pub(super) fn is_free(&self) -> bool {
        self.word.load(Ordering::Relaxed) == 0
    }
}

impl Default for RawRwLock {
    fn default() -> RawRwLock {
        RawRwLock::new()
    }
}

impl std::fmt::Debug for RawRwLock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let word = self.word.load(Ordering::Relaxed);
        match word & WRITER {
            0 => write!(f, "RawRwLock({} readers)", word / READER),
            _ => f.write_str("RawRwLock(a writer)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::testing::until;

    #[test]
    fn a_release_takes_back_one_share_and_lets_the_first_waiter_in() {
        let lock = RawRwLock::new();
        assert!(!lock.release());
        lock.lock(Share::Shared);
        lock.lock(Share::Shared);
        std::thread::scope(|s| {
            let lock = &lock;
            s.spawn(move || {
                lock.lock(Share::Exclusive);
                assert!(lock.is_mine() && lock.release() && !lock.is_mine());
            });
            until(|| lock.waiting() == 1);
            assert!(lock.release() && lock.is_locked(), "one reader is left");
            assert!(lock.release());
        });
        lock.lock(Share::Exclusive);
        std::thread::scope(|s| {
            let stranger = s.spawn(|| (lock.release(), lock.downgrade()));
            assert_eq!(stranger.join().unwrap(), (false, false), "it is another caller's");
        });
        assert!(lock.downgrade() && !lock.downgrade(), "a reader");
        assert!(lock.release() && !lock.is_locked());
    }

    #[test]
    fn a_reader_waits_for_the_writer_before_it_in_the_queue() {
        let lock = RawRwLock::new();
        lock.lock(Share::Shared);
        let (owners, writer) = std::thread::scope(|s| {
            for (before, share) in [Share::Exclusive, Share::Shared].into_iter().enumerate() {
                let lock = &lock;
                s.spawn(move || {
                    lock.lock(share);
                    lock.unlock(share);
                });
                until(|| lock.waiting() > before);
            }
            let queue = lock.queue.lock();
            let tickets: Vec<Ticket> = queue.iter().map(|(ticket, _)| *ticket).collect();
            drop(queue);
            let mut owners = Vec::new();
            lock.owners(tickets[1], &mut |owner| owners.push(owner));
            lock.unlock(Share::Shared);
            (owners, tickets[0].waiter)
        });
        assert!(owners == [Owner::Waiter(writer)]);
    }
}
