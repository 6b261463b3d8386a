//! The wait queue: the tickets that wait for one resource, first come first.
//!
//! Terms. A *wait queue* contains tickets, each with what its waiter asks for (`D`: a number of
//! permits, shared or exclusive, nothing). It is guarded by its resource's *short lock*
//! (`os/short_lock.rs`). A *batch* contains the waiters that one release has claimed; they are made
//! ready after the short lock has been released.
//!
//! A ticket in the queue may be *stale*: its wait has failed and its waiter is about to remove it.
//! Stale tickets are harmless, because their claim fails, and every function here skips them.
//!
//! The queue itself makes no waiter run: it returns the claims (rule 15 of ARCHITECTURE.md).

use std::collections::VecDeque;

use crate::current;
use crate::os::planted::{self, Bug};
pub(super) use crate::os::short_lock::{ShortGuard, ShortLock};
use crate::wait::{Claimed, Outcome, Ticket};

/// Tickets in the order in which they came.
///
/// The first one is in the queue itself, beside the short lock and not in memory of its own: a
/// resource with one waiter allocates nothing, and a releaser on another processor fetches one
/// cache line less. If there is no first one, there are no others.
#[repr(C)]
pub(super) struct WaitQueue<D = ()> {
    first: Option<(Ticket, D)>,
    others: VecDeque<(Ticket, D)>,
}

impl<D: Copy> WaitQueue<D> {
    pub(super) const fn new() -> WaitQueue<D> {
        WaitQueue { first: None, others: VecDeque::new() }
    }

    /// Adds a ticket at the end of the queue.
    #[inline]
    pub(super) fn push(&mut self, ticket: Ticket, wants: D) {
        if self.first.is_none() {
            self.first = Some((ticket, wants));
        } else {
            self.others.push_back((ticket, wants));
        }
    }

    /// Removes and returns the first ticket, stale or not.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<(Ticket, D)> {
        if planted::is(Bug::WrongFifo)
            && let Some(last) = self.others.pop_back()
        {
            return Some(last);
        }
        let first = self.first.take();
        if !self.others.is_empty() {
            self.move_up();
        }
        first
    }

    /// Fills the first place, which was just emptied.
    #[inline(never)]
    fn move_up(&mut self) {
        self.first = self.others.pop_front();
    }

    /// Returns what the first ticket that still waits asks for.
    pub(super) fn first(&mut self) -> Option<D> {
        while let Some((ticket, wants)) = self.first {
            if ticket.is_waiting() {
                return Some(wants);
            }
            self.first = self.others.pop_front();
        }
        None
    }

    /// Claims the first ticket; returns `None` if there is none or its wait has just failed.
    pub(super) fn claim_first(&mut self) -> Option<Claimed> {
        self.pop().and_then(|(ticket, _)| ticket.claim(Outcome::Granted))
    }

    /// Claims the first ticket that still waits.
    pub(super) fn grant_one(&mut self) -> Option<Claimed> {
        while let Some((ticket, _)) = self.pop() {
            if let Some(claimed) = ticket.claim(Outcome::Granted) {
                return Some(claimed);
            }
        }
        None
    }

    /// Claims all tickets that still wait.
    pub(super) fn grant_all(&mut self) -> Batch {
        let mut batch = Batch::new();
        while let Some(claimed) = self.grant_one() {
            batch.push(claimed);
        }
        batch
    }

    /// Removes a failed ticket; returns false if it was skipped and dropped already. Tickets that
    /// fail by their deadline are mostly old ones, so the search starts at the front.
    pub(super) fn remove(&mut self, ticket: Ticket) -> bool {
        if self.first.is_some_and(|(first, _)| first == ticket) {
            self.first = self.others.pop_front();
            return true;
        }
        let at = self.others.iter().position(|(t, _)| *t == ticket);
        at.is_some_and(|at| self.others.remove(at).is_some())
    }

    /// Iterates over all tickets in order, stale or not.
    pub(super) fn iter(&self) -> impl Iterator<Item = &(Ticket, D)> {
        self.first.iter().chain(&self.others)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.iter().count()
    }
}

/// Claimed waiters to be made ready, oldest first. A single one needs no allocation.
#[must_use = "claimed waiters sleep forever unless they are made ready"]
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

    /// Makes the waiters ready. The caller must have released the short lock.
    pub(super) fn ready(self) {
        if let Some(first) = self.first {
            current::ready(first);
        }
        self.rest.into_iter().for_each(current::ready);
    }
}
