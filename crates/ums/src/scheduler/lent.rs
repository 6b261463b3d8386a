//! Lent workers: with their own context, home from a block that nobody declared, and let run on
//! because the machine waits for a lock.
//!
//! Such a worker was in the middle of anything when it blocked, and may hold a lock that the
//! machine wants itself: the allocator's, or that of a completion routine. While the machine waits
//! for it nobody is chosen. The watchdog sees that, and lends those who are home the right to run
//! on (`watch/lending.rs` has the protocol).
//!
//! ```text
//!   worker W                                 machine                          watchdog
//!   home: saved, through the inbox            in a turn: waits for a lock
//!                                                                             the same wait, some looks
//!   on its own kernel thread, loose  <------------------------------------    lends it
//!   gives the lock back                      gets it; W is next: left alone,
//!                                            as one that is preemptive
//!   asks for its scheduler: through the inbox
//! ```
//!
//! A *loose* worker has no scheduler: it is like one that is preemptive. The first question for one
//! ([`super::here`]) ends that, and so does the end of its request. Not in a signal handler of the
//! application's, which would go on with another thread's mask and stack for signals; and not an
//! interposed call: it is made where it is, for whoever makes it may hold the lock.
//!
//! A worker is lent only in what is its request's own, for the machine's code around that needs the
//! baton. One that is interrupted inside the library (`os/entry`) does not leave, so it has the
//! baton.
//!
//! Invariants: **One Place** and **Saved First** of crate `context`, by that protocol. **Type
//! Stable**: a context is in its worker's waiter, and so never freed; the watchdog may look at one
//! that is used again.

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicPtr, Ordering};

use context::Context;
use fiber::StackRange;

use super::mine::{self, Mine};
use super::watched::REASON;
use super::{AWAY, Core, Scheduler, set_here};
use crate::record::event_ring::RingEvent;
use crate::scheduler::lists::WorkerId;
use crate::scheduler::lists::worker_list::State;
use crate::wait::{LAST_MADE, Waiter};
use crate::watch::mask_here;

impl Scheduler {
    /// As [`Scheduler::decouple`], of a worker that has left in the middle of anything. False: it
    /// was lent the right to run on, and has no baton. `within`: what it was in the middle of is
    /// its request's own.
    pub(super) fn decouple_lendable(
        &self,
        mine: *const Context,
        waiter: &'static Waiter,
        within: bool,
    ) -> bool {
        if within && self.detection.carriers.get().is_some() {
            waiter.lending.rejoin();
        }
        self.decouple(mine, waiter);
        !runs_on(mine, waiter)
    }

    /// The waiters of this scheduler, without a lock: somebody who stands still may hold any.
    fn waiters(&self) -> impl Iterator<Item = &'static Waiter> {
        let here = self.inbox.address();
        let at = |link: &AtomicPtr<Waiter>| {
            // SAFETY: Type Stable: null, or a waiter.
            unsafe { link.load(Ordering::Acquire).as_ref() }
        };
        let all = std::iter::successors(at(&LAST_MADE), move |waiter| at(&waiter.made_before));
        all.filter(move |waiter| waiter.home.load(Ordering::Relaxed) == here)
    }

    /// Those that could be lent.
    fn at_home(&self) -> impl Iterator<Item = &'static Waiter> {
        self.waiters().filter(|waiter| waiter.lending.waits(|| is_saved(waiter)))
    }

    /// Whether this futex is one on which the machine waits for a worker that will surely come: a
    /// new one, or one that was lent.
    #[cold]
    pub(super) fn is_own_event(&self, futex: u64) -> bool {
        let mut all = self.waiters();
        all.any(|waiter| [&waiter.event, &waiter.lending.back].iter().any(|e| e.address() == futex))
    }

    /// For the watchdog: the scheduler waits for a lock. Those who are home run on.
    #[cold]
    pub(super) fn lend_own(&self) {
        if self.at_home().next().is_none() {
            return;
        }
        // Before one can run.
        self.counters.workers_lent.fetch_add(1, Ordering::Relaxed);
        for waiter in self.at_home().filter(|waiter| waiter.lending.lend(|| is_saved(waiter))) {
            // SAFETY: One Place: saved, and this has won it from whoever would choose it.
            unsafe { waiter.context.release() };
        }
    }
}

fn is_saved(waiter: &Waiter) -> bool {
    waiter.context.is_saved()
}

impl Core {
    /// Whether a worker that was chosen, and is Running by its state, is here to be continued: not
    /// if it runs on elsewhere. Then it is away again.
    #[inline]
    pub(super) fn is_here(&mut self, id: WorkerId) -> bool {
        let waiter = self.workers.get(id).waiter;
        !waiter.lending.is_lendable() || self.claim(id, waiter)
    }

    #[cold]
    fn claim(&mut self, id: WorkerId, waiter: &Waiter) -> bool {
        let here = waiter.lending.choose();
        if !here {
            self.record(RingEvent::Leave, id, REASON.index() as u32);
            self.workers.shift(id, State::Running, State::Preemptive, self.turn_at);
        }
        here
    }
}

/// The calling worker, which had come in, runs again: whether because it was lent. Then it is on
/// its own kernel thread.
fn runs_on(mine: *const Context, waiter: &'static Waiter) -> bool {
    let lent = waiter.lending.is_lent();
    if lent {
        // SAFETY: Type Stable.
        unsafe { (*mine).restore_mask() };
        AWAY.set(Some(waiter));
    }
    lent
}

/// Whether the calling worker is loose.
pub(super) fn is_lent() -> bool {
    mine::mine().is_some_and(|mine| mine.waiter.lending.is_lent())
}

/// If the calling code is that of a loose worker, and in no signal handler, it has the baton when
/// this returns.
#[cold]
pub(super) fn settle() {
    let Some(Mine { waiter, .. }) = mine::mine() else { return };
    let in_handler = || {
        !waiter.view.stack().is_none_or(StackRange::is_here) || mask_here() != waiter.context.mask()
    };
    if waiter.lending.is_lent() && !in_handler() {
        come_in();
    }
}

/// The calling worker's request has ended: it has the baton when this returns.
pub(super) fn end(waiter: &Waiter) {
    waiter.lending.within.store(false, Ordering::Relaxed);
    if waiter.lending.is_lent() {
        come_in();
    }
}

#[cold]
fn come_in() {
    let Some(Mine { scheduler, context, waiter }) = mine::mine() else { return };
    // SAFETY: Baton: the scheduler outlives its workers' threads, each of which has an owner of it.
    let scheduler = unsafe { &*scheduler };
    let within = waiter.lending.within.swap(false, Ordering::Relaxed);
    loop {
        AWAY.set(None);
        if waiter.lending.ask_for_scheduler() {
            // SAFETY: One Place: loose, so it runs on its own kernel thread. Saved First: whoever
            // chooses it waits until it is saved.
            unsafe { (*context).decouple(&waiter.lending.back.post()) };
        } else {
            scheduler.decouple(context, waiter);
        }
        if !runs_on(context, waiter) {
            break;
        }
    }
    set_here(Some(scheduler));
    scheduler.come_home(waiter, REASON);
    waiter.lending.within.store(within, Ordering::Relaxed);
}
