//! Lent workers: workers with their own context that have returned from an undeclared block, and
//! are allowed to run without the baton because the scheduler needs a lock that they may hold.
//!
//! Such a worker was interrupted at an arbitrary place when it blocked. So it may hold a lock that
//! the scheduler's own code needs, such as the allocator's or one that a completion routine takes.
//! While the scheduler waits for that lock it chooses no worker, so the lock would never be
//! released. The watchdog notices that the scheduler waits, and *lends* the right to run to the
//! workers that have returned and wait to be chosen (`watch/lending.rs` has the protocol).
//!
//! ```text
//!   worker W                                 scheduler                         watchdog
//!   returns: saved, pushed onto the inbox    in a turn: waits for a lock
//!                                                                              sees the same wait
//!                                                                              several times
//!   on its own kernel thread, lent   <------------------------------------    lends it
//!   releases the lock                        gets it; W is next: passed over,
//!                                            like a preemptive worker
//!   asks for its scheduler: through the inbox
//! ```
//!
//! A *lent* worker has no scheduler, like a preemptive one. Its first entry into the library
//! (`scheduler::here`) ends the lending, and so does the end of its request. An entry from a signal
//! handler of the application does not end the lending, because the handler would continue with the
//! signal mask and the alternate stack of another thread. An interposed call does not end it
//! either: the call is made in place, because its caller may hold the lock.
//!
//! A worker is lent only in its request's own code, because the library's code around that needs
//! the baton. A worker that is interrupted inside the library (`os/entry`) does not leave its
//! scheduler, so it has the baton.
//!
//! Invariants: **One Place** of crate `context`, by the protocol of `watch/lending.rs`. **Type
//! Stable**: a context is in its worker's waiter, and so never freed; the watchdog may look at a
//! context that is in use again.

#![allow(unsafe_code)]

use std::sync::atomic::Ordering;

use fiber::StackRange;

use super::mine::{self, Mine};
use crate::record::event_ring::RingEvent;
use crate::scheduler::blocks::REASON;
use crate::scheduler::lists::WorkerId;
use crate::scheduler::lists::worker_list::State;
use crate::scheduler::state::AWAY;
use crate::scheduler::{Core, Scheduler, set_here};
use crate::wait::{WAITERS, Waiter};
use crate::watch::mask_here;

impl Scheduler {
    /// Like [`Scheduler::decouple`]. Returns false if the worker was lent the right to run, and so
    /// has no baton. `lendable` says whether that is allowed: the worker has left at an arbitrary
    /// place of its request's own code.
    pub(super) fn decouple_lendable(&self, waiter: &'static Waiter, lendable: bool) -> bool {
        if lendable && self.hosting.has_carriers() {
            waiter.record.own().lending.rejoin();
        }
        self.decouple(waiter);
        !runs_on(waiter)
    }

    /// Returns the waiters of this scheduler. Takes no lock, because a blocked thread may hold any.
    fn waiters(&self) -> impl Iterator<Item = &'static Waiter> {
        let here = self.inbox;
        WAITERS
            .every()
            .filter(move |waiter| waiter.inbox().is_some_and(|at| std::ptr::eq(at, here)))
    }

    /// Returns the waiters of the workers that could be lent the right to run.
    fn returned(&self) -> impl Iterator<Item = &'static Waiter> {
        self.waiters().filter(|waiter| {
            let thread = waiter.record.thread();
            thread.is_some_and(|own| own.lending.waits(|| own.context.is_saved()))
        })
    }

    /// Returns whether the scheduler waits on this futex for a worker that will surely arrive: a
    /// new worker, or a lent one that has asked for its scheduler.
    #[cold]
    pub(super) fn is_own_event(&self, futex: u64) -> bool {
        let mut all = self.waiters();
        all.any(|waiter| {
            let back = waiter.record.thread().map(|own| &own.lending.back);
            [Some(&waiter.event), back].into_iter().flatten().any(|e| e.address() == futex)
        })
    }

    /// Called by the watchdog when the scheduler waits for a lock: lends the right to run to the
    /// workers that have returned.
    #[cold]
    pub(super) fn lend_own(&self) {
        if self.returned().next().is_none() {
            return;
        }
        // Counted before the first of them can run.
        self.counters.workers_lent.fetch_add(1, Ordering::Relaxed);
        let all = self.returned().map(|waiter| waiter.record.own());
        for own in all.filter(|own| own.lending.lend(|| own.context.is_saved())) {
            // SAFETY: One Place: the context is saved, and `lend` has won the worker against the
            // thread that would choose it.
            unsafe { own.context.release() };
        }
    }
}

impl Core {
    /// Returns whether a worker that was chosen, and whose state is Running, can be resumed here.
    /// If it runs without the baton it cannot, and becomes Preemptive again.
    #[inline]
    pub(super) fn can_resume_here(&mut self, id: WorkerId) -> bool {
        let waiter = self.workers.get(id).waiter;
        !waiter.record.own().lending.is_lendable() || self.claim(id, waiter)
    }

    #[cold]
    fn claim(&mut self, id: WorkerId, waiter: &Waiter) -> bool {
        let here = waiter.record.own().lending.choose();
        if !here {
            self.record(RingEvent::Leave, id, REASON.index() as u32);
            self.workers.shift(id, State::Running, State::Preemptive, self.turn_at);
        }
        here
    }
}

/// Called by a worker that has rejoined, when it runs again. Returns whether it was lent; then it
/// is on its own kernel thread.
fn runs_on(waiter: &'static Waiter) -> bool {
    let lent = waiter.record.is_lent();
    if lent {
        waiter.record.own().context.restore_mask();
        AWAY.set(Some(waiter));
    }
    lent
}

/// Returns whether the calling worker runs without the baton.
pub(super) fn is_lent() -> bool {
    mine::mine().is_some_and(|mine| mine.waiter.record.is_lent())
}

/// If the calling code is that of a lent worker, and not a signal handler, the worker has the baton
/// when this returns.
#[cold]
pub(super) fn settle() {
    let Some(Mine { waiter, .. }) = mine::mine() else { return };
    let in_handler = || {
        !waiter.record.view.stack().is_none_or(StackRange::is_here)
            || mask_here() != waiter.record.own().context.mask()
    };
    if waiter.record.is_lent() && !in_handler() {
        rejoin();
    }
}

/// Called at the end of a worker's request. The worker has the baton when this returns.
pub(super) fn end_request(waiter: &Waiter) {
    if waiter.record.is_lent() {
        rejoin();
    }
}

#[cold]
fn rejoin() {
    let Some(Mine { scheduler, waiter }) = mine::mine() else { return };
    // SAFETY: Baton: the scheduler outlives its workers' threads: each has an `Arc` of it.
    let scheduler = unsafe { &*scheduler };
    let within = waiter.record.view.in_request_code.swap(false, Ordering::Relaxed);
    loop {
        AWAY.set(None);
        let own = waiter.record.own();
        if own.lending.ask_for_scheduler() {
            // SAFETY: One Place: the worker is lent, so it runs on its own kernel thread. The
            // thread that chooses it waits until it is saved.
            unsafe { own.context.decouple(&own.lending.back.post()) };
        } else {
            scheduler.decouple(waiter);
        }
        if !runs_on(waiter) {
            break;
        }
    }
    set_here(Some(scheduler));
    scheduler.end_preemptive(waiter, REASON);
    waiter.record.view.in_request_code.store(within, Ordering::Relaxed);
}
