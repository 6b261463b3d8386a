//! Owners: how a thread that looks for deadlocks asks a resource which waiters or users hold it.
//!
//! A waiter stores its blocker when it begins to wait. But the owner of a lock changes while others
//! wait for it, and the search for deadlocks needs the present owner, which only the lock itself
//! has. So a wait for a resource with owners carries a *question*: a function that asks the
//! resource for its owners, and a pointer to the resource. The waiter borrows the resource, so the
//! resource exists as long as the wait lasts. The *looker*, which is the thread that asks, *holds*
//! the waiter in its wait while it asks:
//!
//! ```text
//!   looker                              waiter
//!   L1 held = true                      W1 the wait is claimed (a swap of the waiter's word)
//!   L2 has the wait not ended yet?      W2 takes the outcome
//!   L3 if so, ask the resource          W3 while held: wait
//!   L4 held = false                     W4 returns; the resource may end
//! ```
//!
//! L1, L2, W1 and W3 are sequentially consistent, so they have one order. If L2 finds that the wait
//! has not ended, W1 comes after L2, and therefore W3 comes after L1. So W3 sees `held = true`, or,
//! if the looker has finished, L4. Unless a looker asks, this costs a wait one load, W3.
//!
//! A question is asked only between L2 and L4 (in `Ticket::hold`). During that time the waiter is
//! in its wait or waits at W3, so the resource that it borrows is alive.
//!
//! What this file does not do: it follows no chain of owners, and does not decide whether there is
//! a deadlock.

use std::ptr::{from_ref, null_mut};
use std::sync::atomic::Ordering;

use super::waiter::{
    AsVictim, Owned, Question, STATE_BITS, STATE_MASK, Ticket, WAITING, Waiter, ask,
};
use crate::os::atomic;

/// While this guard lives, other threads can ask which owners the caller's wait is for. The caller
/// drops it after the wait.
#[must_use = "it is asked only while this lives"]
pub(crate) struct Askable<'a> {
    waiter: &'static Waiter,
    borrowed: std::marker::PhantomData<&'a ()>,
}

impl Waiter {
    /// Announces that the next wait of this waiter, which must be the caller's own, is for
    /// `resource`. The caller drops the returned guard after the wait, while the resource is still
    /// borrowed.
    #[inline]
    pub(crate) fn will_wait_for<'a, R: Owned>(
        &'static self,
        resource: &'a R,
        as_victim: AsVictim,
    ) -> Askable<'a> {
        if self.inbox().is_none() {
            // A worker stores this time when it parks.
            self.began.store(crate::os::clock::ticks(), Ordering::Relaxed);
        }
        // The store that begins the wait publishes these three.
        self.asking.resource.store(from_ref(resource).cast_mut().cast(), Ordering::Relaxed);
        self.asking.as_victim.store(as_victim as u32, Ordering::Relaxed);
        let question: &'static Question = const { &Question { ask: ask::<R> } };
        self.asking.question.store(from_ref(question).cast_mut(), Ordering::Relaxed);
        Askable { waiter: self, borrowed: std::marker::PhantomData }
    }

    /// Returns the waiter's present wait, if that is for a resource that can be asked for its
    /// owners.
    pub(crate) fn askable_wait(&'static self) -> Option<Ticket> {
        let word = self.word.load(Ordering::Acquire);
        let waits =
            word & STATE_MASK == WAITING && !self.asking.question.load(Ordering::Relaxed).is_null();
        waits.then_some(Ticket { waiter: self, number: word >> STATE_BITS })
    }
}

impl Drop for Askable<'_> {
    #[inline]
    fn drop(&mut self) {
        let asking = &self.waiter.asking;
        atomic::no_overtaking();
        while asking.held.load(Ordering::SeqCst) {
            // A looker is asking the resource at this moment, which takes a few instructions.
            atomic::let_others_run();
        }
        asking.question.store(null_mut(), Ordering::Relaxed);
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
        self.hold(|_, _| match self.waiter.asking.as_victim.load(Ordering::Relaxed) {
            n if n == AsVictim::Fails as u32 => AsVictim::Fails,
            n if n == AsVictim::Panics as u32 => AsVictim::Panics,
            _ => AsVictim::Never,
        })
    }
}
