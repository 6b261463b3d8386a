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
//!   gives the lock back                      gets it; W is next: left alone,
//!                                            as one that is preemptive
//!   asks for its scheduler: through the door
//! ```
//!
//! A *loose* worker has no scheduler: it is like one that is preemptive. The first question for one ([`super::here`]) ends that, and so does
//! the end of its request. Not in a signal handler of the application's, which would go on with another thread's mask and stack for signals;
//! and not an interposed call: it is made where it is, for whoever makes it may hold the lock.
//!
//! A worker is lent only in what is its request's own, for the machine's code around that needs the baton. One that is interrupted inside the
//! library (`os/entry.rs`) does not leave, so it has the baton.
//!
//! Invariants: **One Place** and **Saved First** of crate `context`, by that protocol. **Type Stable**: a context is in its worker's party, and so never
//! freed; the watchdog may look at one that is used again.

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicPtr, Ordering};

use context::Context;
use fiber::StackRange;

use super::own::{self, Mine};
use super::watched::REASON;
use super::{AWAY, Core, Shared, set_here};
use crate::lists::WorkerId;
use crate::ring::RingEvent;
use crate::wait::{LAST_MADE, Party};
use crate::watch::mask_here;
use crate::worker::State;

impl Shared {
    /// As [`Shared::decouple`], of a worker that has left in the middle of anything. False: it was lent the right to run on, and has no baton.
    /// `within`: what it was in the middle of is its request's own.
    pub(super) fn decouple_lendable(
        &self,
        mine: *const Context,
        party: &'static Party,
        within: bool,
    ) -> bool {
        if within && self.detection.carriers.get().is_some() {
            party.lending.come_home();
        }
        self.decouple(mine, party);
        !runs_on(mine, party)
    }

    /// The parties of this scheduler, without a lock: somebody who stands still may hold any.
    fn parties(&self) -> impl Iterator<Item = &'static Party> {
        let here = self.door.address();
        let at = |link: &AtomicPtr<Party>| {
            // SAFETY: Type Stable: null, or a party.
            unsafe { link.load(Ordering::Acquire).as_ref() }
        };
        let all = std::iter::successors(at(&LAST_MADE), move |party| at(&party.made_before));
        all.filter(move |party| party.home.load(Ordering::Relaxed) == here)
    }

    /// Those that could be lent.
    fn at_home(&self) -> impl Iterator<Item = &'static Party> {
        self.parties().filter(|party| party.lending.waits(|| is_saved(party)))
    }

    /// Whether this futex is one on which the machine waits for a worker that will surely come: a new one, or one that was lent.
    #[cold]
    pub(super) fn is_own_event(&self, futex: u64) -> bool {
        let mut all = self.parties();
        all.any(|party| [&party.event, &party.lending.back].iter().any(|e| e.address() == futex))
    }

    /// For the watchdog: the scheduler waits for a lock. Those who are home run on.
    #[cold]
    pub(super) fn lend_own(&self) {
        if self.at_home().next().is_none() {
            return;
        }
        // Before one can run.
        self.counters.workers_lent.fetch_add(1, Ordering::Relaxed);
        for party in self.at_home().filter(|party| party.lending.lend(|| is_saved(party))) {
            // SAFETY: One Place: saved, and this has won it from whoever would choose it.
            unsafe { party.context.release() };
        }
    }
}

fn is_saved(party: &Party) -> bool {
    party.context.is_saved()
}

impl Core {
    /// Whether a worker that was chosen, and is Running by its state, is here to be continued: not if it runs on elsewhere. Then it is away again.
    #[inline]
    pub(super) fn is_here(&mut self, id: WorkerId) -> bool {
        let party = self.workers.get(id).party;
        !party.lending.is_lendable() || self.claim(id, party)
    }

    #[cold]
    fn claim(&mut self, id: WorkerId, party: &Party) -> bool {
        let here = party.lending.choose();
        if !here {
            self.record(RingEvent::Leave, id, REASON.index() as u32);
            self.workers.shift(id, State::Running, State::Preemptive, self.turn_at);
        }
        here
    }
}

/// The calling worker, which had come in, runs again: whether because it was lent. Then it is on its own kernel thread.
fn runs_on(mine: *const Context, party: &'static Party) -> bool {
    let lent = party.lending.is_lent();
    if lent {
        // SAFETY: Type Stable.
        unsafe { (*mine).stay() };
        AWAY.set(Some(party));
    }
    lent
}

/// Whether the calling worker is loose.
pub(super) fn is_lent() -> bool {
    own::mine().is_some_and(|mine| mine.party.lending.is_lent())
}

/// If the calling code is that of a loose worker, and in no signal handler, it has the baton when this returns.
#[cold]
pub(super) fn settle() {
    let Some(Mine { party, .. }) = own::mine() else { return };
    let in_handler = || {
        !party.view.stack().is_none_or(StackRange::is_here) || mask_here() != party.context.mask()
    };
    if party.lending.is_lent() && !in_handler() {
        come_in();
    }
}

/// The calling worker's request has ended: it has the baton when this returns.
pub(super) fn end(party: &Party) {
    party.lending.within.store(false, Ordering::Relaxed);
    if party.lending.is_lent() {
        come_in();
    }
}

#[cold]
fn come_in() {
    let Some(Mine { shared, context, party }) = own::mine() else { return };
    // SAFETY: Baton: the scheduler outlives its workers' threads, each of which has an owner of it.
    let shared = unsafe { &*shared };
    let within = party.lending.within.swap(false, Ordering::Relaxed);
    loop {
        AWAY.set(None);
        if party.lending.come_back() {
            // SAFETY: One Place: loose, so it runs on its own kernel thread. Saved First: whoever chooses it waits until it is saved.
            unsafe { (*context).come_in(&party.lending.back.post()) };
        } else {
            shared.decouple(context, party);
        }
        if !runs_on(context, party) {
            break;
        }
    }
    set_here(Some(shared));
    shared.come_home(party, REASON);
    party.lending.within.store(within, Ordering::Relaxed);
}
