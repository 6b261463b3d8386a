//! The inbox: the only way into a scheduler from outside, apart from its work queue.
//!
//! Many threads push; the scheduler's current worker takes everything. Two things are pushed.
//! *Waiters* are workers of this scheduler whose wait was ended elsewhere, or that rejoin after
//! they were preemptive. *Letters* are all rarer messages. New work requests do not pass through
//! the inbox; they are put into the work queue.
//!
//! ```text
//!   any thread                     the baton holder, in its turn
//!   push(waiter) -> [stack] ------> take_all(), oldest first
//!   send(letter) -> [mail] ------> letters()
//! ```
//!
//! Pushing allocates nothing, because the link is a field of the waiter. One link is enough: only
//! the thread that claimed a waiter's wait may push the waiter (One Outcome), so it is in one inbox
//! at a time.
//!
//! The protocol for going to sleep (rule 4 of ARCHITECTURE.md) is in `os/asleep`: the scheduler
//! first announces that it sleeps, and then looks at stack, mail and work queue once more. So no
//! scheduler sleeps while something is pushed, and of several pushes to a sleeping scheduler only
//! the first makes a system call.
//!
//! Rule 16 of ARCHITECTURE.md: a scheduler is reached from outside only through its inbox or its
//! work queue. Invariant **Type Stable**: inboxes, like waiters, are never freed, only reused, so a
//! wake-up that comes late touches live memory.

use std::ptr::null_mut;
use std::sync::atomic::Ordering;

use super::waiter::{Inbox, Letter, Waiter};
use crate::os::asleep::Asleep;
use crate::os::atomic::{AtomicPtr, AtomicUsize};
use crate::os::driver::Waker;
use crate::os::linux::plain::prefetch_to_write;
use crate::os::planted::{self, Bug};
use crate::os::pool::{Member, Pool, Pooled};
use crate::os::short_lock::ShortLock;
use crate::os::threads::point;

static INBOXES: Pool<Inbox> = Pool::new();

impl Pooled for Inbox {
    fn member(&self) -> &Member<Inbox> {
        &self.member
    }
}

impl Inbox {
    /// Takes an inbox from the pool, for a scheduler that `waker` wakes.
    pub(crate) fn take(waker: Waker) -> &'static Inbox {
        let make = |member| Inbox {
            stack: AtomicPtr::new(null_mut()),
            asleep: Asleep::new(),
            mail: ShortLock::new(Vec::new()),
            mail_count: AtomicUsize::new(0),
            waker: ShortLock::new(None),
            number: std::sync::atomic::AtomicU32::new(0),
            member,
        };
        INBOXES.take(make, |inbox| *inbox.waker.lock() = Some(waker))
    }

    /// Returns the inbox to the pool, after its scheduler and all its workers have ended.
    pub(crate) fn give_back(&'static self) {
        debug_assert!(self.stack.load(Ordering::Relaxed).is_null(), "a worker is in the inbox");
        *self.waker.lock() = None;
        self.mail.lock().clear();
        self.mail_count.store(0, Ordering::Relaxed);
        self.asleep.withdraw();
        INBOXES.give_back(self);
    }

    /// Pushes a worker, and wakes the scheduler if it sleeps. The caller has claimed the worker's
    /// wait, or is the worker itself.
    pub(crate) fn push(&self, waiter: &'static Waiter) {
        self.link(waiter);
        point("inbox: pushed");
        if planted::is(Bug::DroppedWake) {
            return;
        }
        self.wake();
    }

    /// Lets the processor get the cache line that a push writes. No effect otherwise.
    #[inline(always)]
    pub(crate) fn prefetch(&self) {
        prefetch_to_write(&self.stack);
    }

    /// Returns a post that does the same for a worker with its own context. The context's switch
    /// sends the post after it has saved the worker's registers.
    #[cfg(not(loom))]
    pub(crate) fn post(&'static self, waiter: &'static Waiter) -> context::Post<'static> {
        // A worker that rejoins keeps its scheduler alive, and so its waker.
        let bell = self.waker.lock().as_ref().map_or(-1, Waker::fd);
        context::Post::list(&self.stack, waiter, &waiter.next, self.asleep.flag(), bell)
    }

    #[cfg(loom)]
    pub(crate) fn post(&'static self, _: &'static Waiter) -> context::Post<'static> {
        unreachable!("models have no contexts")
    }

    /// Sends a letter, and wakes the scheduler if it sleeps.
    pub(crate) fn send(&self, letter: Letter) {
        let mut mail = self.mail.lock();
        mail.push(letter);
        self.mail_count.store(mail.len(), Ordering::Release);
        drop(mail);
        self.wake();
    }

    /// Wakes the scheduler if it sleeps, and returns whether it slept. The caller has just put
    /// something where the scheduler looks before it sleeps.
    pub(crate) fn wake(&self) -> bool {
        let slept = self.asleep.wake();
        if slept {
            self.write_event();
        }
        slept
    }

    #[cold]
    fn write_event(&self) {
        if let Some(waker) = &*self.waker.lock() {
            waker.wake();
        }
    }

    /// Returns whether nothing has arrived. Costs two loads.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.any() == 0
    }

    /// Returns 0 if nothing has arrived. Every yield asks, and tests this and the answers of others
    /// at once.
    #[inline]
    pub(crate) fn any(&self) -> usize {
        self.stack.load(Ordering::Relaxed).addr() | self.mail_count.load(Ordering::Relaxed)
    }

    /// Returns whether no letter has arrived.
    #[inline]
    pub(crate) fn has_no_letters(&self) -> bool {
        self.mail_count.load(Ordering::Relaxed) == 0
    }

    /// Takes all letters, the oldest first.
    pub(crate) fn letters(&self) -> Vec<Letter> {
        if self.mail_count.load(Ordering::Acquire) == 0 {
            return Vec::new();
        }
        let mut mail = self.mail.lock();
        self.mail_count.store(0, Ordering::Relaxed);
        std::mem::take(&mut *mail)
    }

    /// Announces that the scheduler is about to sleep. Before it sleeps, the caller must look once
    /// more for work and messages.
    pub(crate) fn announce_sleep(&self) {
        self.asleep.announce();
    }

    /// Returns whether the inbox's scheduler sleeps. To other threads the answer may be stale.
    pub(crate) fn is_asleep(&self) -> bool {
        self.asleep.is_set()
    }

    /// Withdraws the announcement. Returns true if a pusher has woken this scheduler since the
    /// announcement; what that pusher stored before is visible from here on. After false, the next
    /// pusher finds the scheduler awake.
    pub(crate) fn awake(&self) -> bool {
        self.asleep.awake()
    }
}

#[cfg(all(test, loom))]
mod loom;
#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    fn inbox() -> &'static Inbox {
        Inbox::take(Waker::new().unwrap())
    }

    #[test]
    fn workers_are_taken_oldest_first_g5() {
        let inbox = inbox();
        let waiters: Vec<_> = (0..5).map(|i| Waiter::take(Some(inbox), i)).collect();
        waiters.iter().for_each(|p| inbox.push(p));
        let mut seen = Vec::new();
        inbox.take_all(|p| seen.push(p.worker.load(Ordering::Relaxed)));
        assert_eq!(seen, [0, 1, 2, 3, 4]);
        assert!(inbox.is_empty());
        inbox.send(Letter::LookAgain);
        assert!(!inbox.is_empty());
        assert_eq!(inbox.letters(), [Letter::LookAgain]);
        assert!(inbox.is_empty());
        waiters.into_iter().for_each(|p| p.give_back());
        inbox.give_back();
    }

    #[test]
    fn many_pushers_lose_nothing_g6() {
        const PUSHERS: u32 = 4;
        const EACH: u32 = 5_000;
        let (inbox, taken) = (inbox(), AtomicU64::new(0));
        std::thread::scope(|s| {
            for p in 0..PUSHERS {
                s.spawn(move || {
                    for i in 0..EACH {
                        inbox.push(Waiter::take(Some(inbox), p * EACH + i));
                    }
                });
            }
            let mut sum = 0;
            while sum < PUSHERS * EACH {
                inbox.take_all(|p| {
                    sum += 1;
                    taken.fetch_add(p.worker.load(Ordering::Relaxed).into(), Ordering::Relaxed);
                    p.give_back();
                });
            }
        });
        let n = u64::from(PUSHERS * EACH);
        assert_eq!(taken.into_inner(), n * (n - 1) / 2);
        inbox.give_back();
    }
}
