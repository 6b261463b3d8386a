//! Lent workers: with their own context, home from a block that nobody declared, and let run on because the machine waits for a lock.
//!
//! Such a worker was in the middle of anything when it blocked, and may hold a lock that the machine wants itself: the allocator's, or that of a
//! completion routine. While the machine waits for it nobody is chosen. The watchdog sees that, and lends those who are home the right to run
//! on (`watch/lending.rs` has the protocol).
//!
//! ```text
//!   worker W                                 machine                          watchdog
//!   home: saved, through the door            in a turn: waits for a lock
//!                                                                             the same wait, some looks
//!   on its own kernel thread, loose  <------------------------------------    lends it
//!   gives the lock back                      gets it; chooses W: waits
//!   asks for its scheduler: saved again      continues W
//! ```
//!
//! A *loose* worker has no scheduler: it is like one that is preemptive. The first question for one ([`super::here`]) ends that, and so does
//! the end of its request. Not in a signal handler of the application's, which would go on with another thread's mask and stack for signals.
//! Who computes or blocks while it is loose and chosen holds up its scheduler, as with the baton.
//!
//! Only inside its request is a worker lent: the machine's own code around that needs the baton. One that was interrupted inside the
//! library, between the question for its scheduler and the use of that, is as a thread that is lent there: see docs/worker-kinds.md.
//!
//! Invariants: **One Place** and **Saved First** of crate `context`, by that protocol.

#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::Ordering;

use context::Context;
use fiber::StackRange;

use super::own::{self, Mine};
use super::watched::REASON;
use super::{AWAY, Core, Seat, Shared, set_here};
use crate::lists::WorkerId;
use crate::wait::Party;
use crate::watch::mask_here;

impl Shared {
    /// As [`Shared::decouple`], of a worker that has left in the middle of anything. False: it was lent the right to run on, and has no baton.
    pub(super) fn decouple_lendable(&self, mine: *const Context, party: &'static Party) -> bool {
        let is_watched = self.detection.carriers.get().is_some();
        if is_watched && party.lending.within.load(Ordering::Relaxed) {
            party.lending.come_home();
        }
        self.decouple(mine, party);
        let lent = party.lending.is_lent();
        if lent {
            // SAFETY: Baton: its own context, which is there as long as its thread.
            unsafe { (*mine).stay() };
            AWAY.set(Some(party));
        }
        !lent
    }

    /// For the watchdog: the scheduler waits for a lock. Those who are home run on.
    pub(super) fn lend_own(&self) {
        // Whoever holds this lock may be the one that waits.
        let Some(roster) = self.roster.try_lock() else { return };
        if !roster.values().any(|party| party.lending.waits(|| is_saved(party))) {
            return;
        }
        // Before one can run.
        self.counters.workers_lent.fetch_add(1, Ordering::Relaxed);
        for party in roster.values().filter(|party| party.lending.lend(|| is_saved(party))) {
            // SAFETY: One Place: saved, and this has won it from whoever would choose it, who waits now. It is there: `is_saved`.
            unsafe { (*party.context.load(Ordering::Relaxed)).release() };
        }
    }
}

impl Core {
    /// This worker has come home, and may be lent from now on.
    #[cold]
    pub(super) fn may_be_lent(&mut self, id: WorkerId) {
        let seat = &mut self.workers.get(id).seat;
        *seat = match seat.take() {
            Some(Seat::Own(own)) => Some(Seat::Lendable(own)),
            other => other,
        };
    }

    /// This worker is to be continued, and may have been lent: waits until it is saved then.
    #[cold]
    pub(super) fn claim(&mut self, id: WorkerId) -> *const Context {
        let worker = self.workers.get(id);
        let Some(Seat::Lendable(own)) = worker.seat.take() else {
            unreachable!("only a worker that may be lent is claimed")
        };
        worker.party.lending.choose();
        let context = Arc::as_ptr(&own.context);
        worker.seat = Some(Seat::Own(own));
        context
    }
}

/// Of a worker that is home. Its scheduler's roster is locked, so it is not retired meanwhile.
fn is_saved(party: &Party) -> bool {
    // SAFETY: Baton: only of one that is home, whose thread lives as long as it is in the roster.
    unsafe { (*party.context.load(Ordering::Relaxed)).is_saved() }
}

/// Whether the calling worker is loose.
pub(super) fn is_lent() -> bool {
    own::mine().is_some_and(|mine| mine.party.lending.is_lent())
}

/// If the calling code is that of a loose worker, and in no signal handler, it has the baton when this returns.
#[cold]
pub(super) fn settle() {
    let Some(Mine { context, party, .. }) = own::mine() else { return };
    // SAFETY: Baton: its own context, which is there as long as its thread.
    let mask = unsafe { (*context).mask() };
    let in_handler = || !party.view.stack().is_none_or(StackRange::is_here) || mask_here() != mask;
    if party.lending.is_lent() && !in_handler() {
        come_in();
    }
}

/// The calling worker's request has ended: it has the baton when this returns.
pub(super) fn end(party: &Party) {
    if party.lending.is_lent() {
        come_in();
    }
}

#[cold]
fn come_in() {
    let Some(Mine { shared, context, party }) = own::mine() else { return };
    AWAY.set(None);
    party.lending.come_back();
    // SAFETY: One Place: loose, so it runs on its own kernel thread. Saved First: whoever has chosen it waits until it is saved.
    unsafe { (*context).come_in(&party.lending.back.post()) };
    // SAFETY: Baton: the scheduler outlives its workers' threads, each of which has an owner of it.
    let shared = unsafe { &*shared };
    set_here(Some(shared));
    shared.come_home(party, REASON);
}
