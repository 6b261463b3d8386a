//! Owners: how a thread that looks for deadlocks asks a resource which waiters or users hold it.
//!
//! A waiter stores its blocker when it begins to wait. But the owner of a lock changes while others
//! wait for it, and the search for deadlocks needs the present owner, which only the lock itself
//! has. So a wait for a resource with owners carries a *question*: a reference to the resource,
//! and what happens to the wait as a victim. The question is in the frame of the function that
//! waits, which borrows the resource, so both exist as long as the wait lasts. The *looker*, which
//! is the thread that asks, *holds* the waiter in its wait while it asks:
//!
//! ```text
//!   looker                              waiter
//!   L1 asked = true (an exchange)       W1 the wait is claimed (a swap of the waiter's word)
//!   L2 has the wait not ended yet?      W2 takes the outcome
//!   L3 if so, ask the resource          W3 while asked: wait
//!   L4 asked = false                    W4 returns; the resource may end
//! ```
//!
//! L1, L2, W1 and W3 are sequentially consistent, so they have one order. If L2 finds that the wait
//! has not ended, W1 comes after L2, and therefore W3 comes after L1. So W3 sees `asked = true` or,
//! if the looker has finished, L4. Unless a looker asks, this costs a wait one load, W3.
//!
//! One looker asks at a time: if L1 finds `asked` set, another looker has set it, and the looker
//! tries again or gives up.
//!
//! A question is asked only between L2 and L4 (in `Ticket::hold`). During that time the waiter is
//! in its wait or waits at W3, so the resource that it borrows is alive.
//!
//! A panic in the function that waits may leave the wait unended, without W1. Then the waiter
//! clears its pointer to the question before W3, and L2 loads that pointer; both are sequentially
//! consistent, too. If the looker finds the pointer, the clearing comes after L2, as W1 does above.
//!
//! What this file does not do: it follows no chain of owners, and does not decide whether there is
//! a deadlock.

use std::ptr::{from_ref, null_mut};
use std::sync::atomic::Ordering;

use super::waiter::{AsVictim, Owned, Question, STATE_BITS, STATE_MASK, Ticket, WAITING, Waiter};
use crate::os::{atomic, clock};

impl Waiter {
    /// Calls `wait`, which begins a wait for `resource` and parks the waiter, which must be the
    /// caller's own. During that wait, other threads can ask the resource for its owners. The wait
    /// has ended when `wait` returns.
    #[inline]
    pub(crate) fn in_wait_for<T>(
        &'static self,
        resource: &impl Owned,
        as_victim: AsVictim,
        wait: impl FnOnce() -> T,
    ) -> T {
        if self.inbox().is_none() {
            // A worker stores this time when it parks.
            self.began.store(clock::ticks(), Ordering::Relaxed);
        }
        let question = Question { resource, as_victim };
        // The store that begins the wait publishes the question and this pointer.
        self.question.store(from_ref(&question).cast_mut().cast(), Ordering::Relaxed);
        let on_panic = Withdraw(self);
        let result = wait();
        std::mem::forget(on_panic);
        self.no_longer_asked();
        self.question.store(null_mut(), Ordering::Relaxed);
        result
    }

    /// Returns the waiter's present wait, if that is for a resource that can be asked for its
    /// owners.
    pub(crate) fn askable_wait(&'static self) -> Option<Ticket> {
        let word = self.word.load(Ordering::Acquire);
        let waits =
            word & STATE_MASK == WAITING && !self.question.load(Ordering::Relaxed).is_null();
        waits.then_some(Ticket { waiter: self, number: word >> STATE_BITS })
    }
}

impl Waiter {
    /// W3: returns when no looker asks the question.
    #[inline]
    fn no_longer_asked(&self) {
        atomic::no_overtaking();
        while self.record.view.asked.load(Ordering::SeqCst) {
            // A looker is asking the resource at this moment, which takes a few instructions.
            atomic::let_others_run();
        }
    }
}

/// Takes the question back when the function that waits panics.
struct Withdraw<'a>(&'a Waiter);

impl Drop for Withdraw<'_> {
    #[cold]
    fn drop(&mut self) {
        // Before W3, because the wait may not have been claimed.
        self.0.question.store(null_mut(), Ordering::SeqCst);
        self.0.no_longer_asked();
    }
}

impl Ticket {
    /// Returns the number of this wait among those of its waiter.
    pub(crate) fn number(self) -> u64 {
        self.number
    }

    /// Returns what happens to this wait if it is chosen as a deadlock's victim. Returns `None` if
    /// the wait has ended or carries no question.
    pub(crate) fn as_victim(self) -> Option<AsVictim> {
        self.hold(|question| question.as_victim)
    }
}
