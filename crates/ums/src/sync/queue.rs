//! The wait queue: the tickets that wait for one resource, first come first (U53).
//!
//! Nouns. A *wait queue* holds tickets, each with what its owner wants (`D`: a number of permits,
//! shared or exclusive, nothing). It lives behind its resource's *short lock* (`os/short_lock.rs`).
//! A *batch* is what a release claimed: it is made ready after the short lock is let go.
//!
//! A ticket in the queue may be *stale*: its wait has failed and its waiter is on its way to take
//! it out. Stale tickets are harmless, for their claim fails, and every function here passes over
//! them.
//!
//! What it does not do: it never makes anybody run. Claims are returned (Return).

use std::collections::VecDeque;

use crate::current;
pub(super) use crate::os::short_lock::{ShortGuard, ShortLock};
use crate::wait::{Claimed, Outcome, Ticket};

/// Tickets in the order in which they came.
pub(super) struct WaitQueue<D = ()> {
    waiters: VecDeque<(Ticket, D)>,
}

impl<D: Copy> WaitQueue<D> {
    pub(super) const fn new() -> WaitQueue<D> {
        WaitQueue { waiters: VecDeque::new() }
    }

    /// Queues behind everybody.
    pub(super) fn push(&mut self, ticket: Ticket, wants: D) {
        self.waiters.push_back((ticket, wants));
    }

    /// The first ticket, stale or not, leaves the queue.
    pub(super) fn pop(&mut self) -> Option<(Ticket, D)> {
        #[cfg(feature = "planted")]
        if crate::planted::is(crate::planted::Bug::WrongFifo) {
            return self.waiters.pop_back();
        }
        self.waiters.pop_front()
    }

    /// What the first who still waits wants.
    pub(super) fn first(&mut self) -> Option<D> {
        while let Some(&(ticket, wants)) = self.waiters.front() {
            if ticket.is_waiting() {
                return Some(wants);
            }
            self.waiters.pop_front();
        }
        None
    }

    /// Claims the first; None when there is none or it has just failed.
    pub(super) fn claim_first(&mut self) -> Option<Claimed> {
        self.pop().and_then(|(ticket, _)| ticket.claim(Outcome::Granted))
    }

    /// Claims the first who still waits.
    pub(super) fn grant_one(&mut self) -> Option<Claimed> {
        while let Some((ticket, _)) = self.pop() {
            if let Some(claimed) = ticket.claim(Outcome::Granted) {
                return Some(claimed);
            }
        }
        None
    }

    /// Claims all who still wait.
    pub(super) fn grant_all(&mut self) -> Batch {
        let mut batch = Batch::new();
        while let Some(claimed) = self.grant_one() {
            batch.push(claimed);
        }
        batch
    }

    /// Takes a failed ticket out; false when it was passed over and dropped already. Tickets that
    /// fail by their deadline are mostly old ones, so the search starts at the front.
    pub(super) fn remove(&mut self, ticket: Ticket) -> bool {
        let at = self.waiters.iter().position(|(t, _)| *t == ticket);
        at.is_some_and(|at| self.waiters.remove(at).is_some())
    }

    /// All tickets, the first first, stale or not.
    pub(super) fn iter(&self) -> impl Iterator<Item = &(Ticket, D)> {
        self.waiters.iter()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.waiters.len()
    }
}

/// Claimed waiters to be made ready, oldest first. One costs no allocation.
#[must_use = "claimed waiters sleep for ever unless they are made ready"]
pub(super) struct Batch {
    first: Option<Claimed>,
    rest: Vec<Claimed>,
}

impl Batch {
    pub(super) const fn new() -> Batch {
        Batch { first: None, rest: Vec::new() }
    }

    pub(super) fn push(&mut self, claimed: Claimed) {
        if self.first.is_none() {
            self.first = Some(claimed);
        } else {
            self.rest.push(claimed);
        }
    }

    /// Makes them run. The short lock must have been let go.
    pub(super) fn ready(self) {
        self.first.into_iter().chain(self.rest).for_each(current::ready);
    }
}
