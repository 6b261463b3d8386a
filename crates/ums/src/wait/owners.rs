//! Owners: what holds the resource of a wait, asked of the resource itself during the wait.
//!
//! A waiter notes its blocker when it begins to wait, but the owner of a lock changes while others
//! wait. The search for deadlocks has to know the present owner, which only the lock can tell. So a
//! wait for a resource with owners carries a *question*: how to ask the resource. A waiter borrows
//! what it waits for, so the resource exists as long as the wait lasts. The *looker*, the thread
//! that asks, *holds* the waiter in its wait for as long as it asks:
//!
//! ```text
//!   looker                              waiter
//!   L1 held = true                      (the wait is claimed: W1, a swap of the word)
//!   L2 has the wait not ended yet?      W2 takes the outcome
//!   L3 if so, ask the resource          W3 while held: wait
//!   L4 held = false                     W4 returns; the resource may end
//! ```
//!
//! L1, L2, W1 and W3 are sequentially consistent. If L2 finds that the wait has not ended, W1 comes
//! after L2 in their one order, so W3 comes after L1 and sees it (or L4, when the looker is done).
//! All that this costs a wait is the load of W3, unless it is looked at.
//!
//! A question is put only between L2 and L4 (`Ticket::hold`); then the waiter is in its wait, or
//! waits at W3, and what it borrows is alive.
//!
//! What this file does not do: it follows no chain and judges nothing.

use std::ptr::{from_ref, null_mut};
use std::sync::atomic::Ordering;

use super::waiter::{
    AsVictim, Owned, Question, STATE_BITS, STATE_MASK, Ticket, WAITING, Waiter, ask,
};
use crate::os::atomic;

/// As long as this lives, the caller's next wait can be asked. It is dropped after the wait.
#[must_use = "it is asked only while this lives"]
pub(crate) struct Askable<'a> {
    waiter: &'static Waiter,
    borrowed: std::marker::PhantomData<&'a ()>,
}

impl Waiter {
    /// Announces that the next wait of this waiter, which is the caller's, is for this resource.
    /// The returned value is dropped after the wait, while the resource is still borrowed.
    #[inline]
    pub(crate) fn will_wait_for<'a, R: Owned>(
        &'static self,
        resource: &'a R,
        as_victim: AsVictim,
    ) -> Askable<'a> {
        if self.inbox().is_none() {
            // A worker notes it when it parks.
            self.began.store(crate::os::clock::ticks(), Ordering::Relaxed);
        }
        // Published by the store that begins the wait.
        self.asking.resource.store(from_ref(resource).cast_mut().cast(), Ordering::Relaxed);
        self.asking.as_victim.store(as_victim as u32, Ordering::Relaxed);
        let question: &'static Question = const { &Question { ask: ask::<R> } };
        self.asking.question.store(from_ref(question).cast_mut(), Ordering::Relaxed);
        Askable { waiter: self, borrowed: std::marker::PhantomData }
    }

    /// Returns its present wait, if that is for a resource that can be asked.
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
            // A looker asks at this moment, which takes a few instructions.
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

    /// Returns what happens to it as a victim, or None if the wait has ended or cannot be asked.
    pub(crate) fn as_victim(self) -> Option<AsVictim> {
        self.hold(|_, _| match self.waiter.asking.as_victim.load(Ordering::Relaxed) {
            n if n == AsVictim::Fails as u32 => AsVictim::Fails,
            n if n == AsVictim::Panics as u32 => AsVictim::Panics,
            _ => AsVictim::Never,
        })
    }
}
