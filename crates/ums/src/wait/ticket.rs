//! The transitions of a wait: begin, claim, cancel, abandon, and taking the outcome.

use std::sync::atomic::Ordering;

use super::deadlock::DeadlockId;
use super::error::WaitError;
use super::outcome::Outcome;
use super::waiter::{
    ARM_MASK, CANCELLABLE, Inbox, QUIET, STATE_BITS, STATE_MASK, Ticket, WAITING, Waiter, What,
};
use crate::os::linux::barrier;
use crate::os::linux::plain::prefetch_to_write;

/// Proof that the caller has ended a wait, and must now make the waiter run (One Outcome).
#[must_use = "a claimed waiter never wakes up unless it is made ready"]
pub(crate) struct Claimed {
    pub(crate) waiter: &'static Waiter,
}

impl Waiter {
    /// Starts a wait. Only the waiter itself calls this. Next it parks, or abandons the wait.
    #[inline]
    pub(crate) fn begin(&'static self, what: What) -> Ticket {
        let word = self.word.load(Ordering::Relaxed);
        debug_assert_eq!(word & STATE_MASK, QUIET, "a waiter waits for one thing at a time");
        // The next wait, arm 0.
        let number = (word >> STATE_BITS | ARM_MASK) + 1;
        self.note(what);
        self.word.store(number << STATE_BITS | WAITING, Ordering::Release);
        // Pairs with the barrier in `cancel`: either this waiter sees, in `sees_cancel`, the flag
        // that `cancel` sets, or `cancel` sees this wait. If that barrier takes effect before the
        // store above, the flag was set before, and the load after this fence finds it; if after
        // the store, `cancel` finds the wait.
        barrier::light();
        Ticket { waiter: self, number }
    }

    /// Marks the waiter as cancelled, and ends its present wait if that wait is cancellable.
    pub(crate) fn cancel(&'static self) -> Option<Claimed> {
        self.cancelled.store(true, Ordering::SeqCst);
        barrier::on_all_threads();
        let word = self.word.load(Ordering::SeqCst);
        // The bounds are those of this wait, or the wait has ended and the claim fails.
        let hears = self.waits_as(CANCELLABLE) && !self.is_shielded();
        let waiting = word & STATE_MASK == WAITING && hears;
        let ticket = Ticket { waiter: self, number: word >> STATE_BITS };
        waiting.then(|| ticket.claim(Outcome::Cancelled)).flatten()
    }
}

impl Ticket {
    /// Lets the processor get the cache line that a claim writes. No effect otherwise.
    #[inline(always)]
    pub(crate) fn prefetch(self) {
        prefetch_to_write(self.waiter);
    }

    /// Notes where the thread that ends this wait puts or takes a value. A scheduler to which
    /// another one sends the waiter gets that memory early; no effect otherwise.
    #[inline(always)]
    pub(crate) fn expects<T>(self, at: &T) {
        self.waiter.record.view.expects.store(std::ptr::from_ref(at).addr(), Ordering::Relaxed);
    }

    /// Returns the inbox of the worker that waits; none for a plain thread.
    #[inline(always)]
    pub(crate) fn inbox(self) -> Option<&'static Inbox> {
        self.waiter.inbox()
    }

    /// Returns the number of the worker that waits.
    #[inline(always)]
    pub(crate) fn worker(self) -> u32 {
        self.waiter.worker.load(Ordering::Relaxed)
    }

    /// Ends the wait with this outcome. Returns `None` if it has ended already.
    #[inline]
    pub(crate) fn claim(self, outcome: Outcome) -> Option<Claimed> {
        let to = self.number << STATE_BITS | outcome as u64;
        let word = &self.waiter.word;
        let swap = word.compare_exchange(self.waiting(), to, Ordering::SeqCst, Ordering::Relaxed);
        // `then_some` would construct a `Claimed` even if the exchange failed, and drop it.
        swap.ok().map(|_| Claimed { waiter: self.waiter })
    }

    /// Returns whether the wait has not ended yet.
    #[inline]
    pub(crate) fn is_waiting(self) -> bool {
        self.waiter.word.load(Ordering::Acquire) == self.waiting()
    }

    /// Returns the state of a waiter that is in this wait.
    #[inline]
    pub(super) fn waiting(self) -> u64 {
        (self.number & !ARM_MASK) << STATE_BITS | WAITING
    }

    /// Returns the ticket of one arm of this wait. A claim of it ends the whole wait.
    pub(crate) fn arm(self, arm: u8) -> Ticket {
        Ticket { number: self.number & !ARM_MASK | u64::from(arm), ..self }
    }

    /// Returns the arm whose ticket ended this wait. Only the waiter itself calls this, after
    /// `take_outcome`.
    pub(crate) fn claimed_arm(self) -> u8 {
        let word = self.waiter.word.load(Ordering::Relaxed);
        (word >> STATE_BITS & ARM_MASK) as u8
    }

    /// Returns whether the wait is cancellable and its work request was cancelled.
    #[inline]
    pub(crate) fn sees_cancel(self) -> bool {
        let waiter = self.waiter;
        waiter.cancelled.load(Ordering::SeqCst)
            && waiter.waits_as(CANCELLABLE)
            && !waiter.is_shielded()
    }

    /// Takes the outcome of the wait, after which the waiter is in no wait. Returns `None` if the
    /// wait has not ended.
    #[inline]
    pub(crate) fn take_outcome(self) -> Option<Outcome> {
        let word = self.waiter.word.load(Ordering::Acquire);
        debug_assert_eq!(
            word >> STATE_BITS | ARM_MASK,
            self.number | ARM_MASK,
            "only the waiter itself takes it"
        );
        let outcome = Outcome::from_state(word & STATE_MASK)?;
        self.waiter.word.store(word & !STATE_MASK | QUIET, Ordering::Relaxed);
        Some(outcome)
    }

    /// Converts the outcome of this wait, which has ended, to the result that the waiting function
    /// returns.
    #[inline]
    pub(crate) fn result(self, outcome: Outcome) -> Result<(), WaitError> {
        match outcome {
            // First, so that it is one comparison.
            Outcome::Granted => Ok(()),
            Outcome::Deadlock => Err(WaitError::Deadlock(DeadlockId::from_number(
                self.waiter.deadlock.load(Ordering::Relaxed).into(),
            ))),
            other => other.ok(),
        }
    }

    /// Gives up a wait that was begun and has not been parked. Returns false if another thread has
    /// claimed it meanwhile; then the waiter must park to take the outcome.
    pub(crate) fn abandon(self) -> bool {
        let to = self.number << STATE_BITS | QUIET;
        let word = &self.waiter.word;
        word.compare_exchange(self.waiting(), to, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }
}

impl Claimed {
    /// Wakes the waiter, which is a plain thread.
    pub(crate) fn set_event(self) {
        self.waiter.event.set();
        std::mem::forget(self);
    }

    /// Returns the waiter without waking it. The caller itself makes the waiter run, because the
    /// caller is that waiter, or holds the baton of its scheduler.
    #[inline]
    pub(crate) fn kept(self) -> &'static Waiter {
        let waiter = self.waiter;
        std::mem::forget(self);
        waiter
    }
}

impl Drop for Claimed {
    fn drop(&mut self) {
        debug_assert!(
            std::thread::panicking(),
            "a claimed wait was dropped: its waiter would never wake up"
        );
    }
}
