//! The slot: passes a value straight from one worker to another that waits for it.
//!
//! A waiter that waits in a channel has a slot on its own stack: a sender's slot holds the value to
//! be taken, a receiver's is empty until a value is put there. So a hand-over needs no second check
//! by the waiter, and no space in the channel.
//!
//! ```text
//!   the peer, under the channel's short lock     the owner of the slot
//!   1 pops the entry                             begin, push the entry, unlock, park
//!   2 puts (takes) the value                     ...
//!   3 claims the ticket                          granted: step 2 happened before step 3, and the
//!     fails: undoes step 2, next entry             peer no longer uses the slot: look into it
//!                                                failed: take the short lock, so that no peer is
//!                                                  between 1 and 3; take the entry out; look
//! ```
//!
//! Named invariant. **Held**: a peer that finds an entry in the list under the short lock may use
//! the entry's slot until it claims the ticket or releases the short lock. This is so because an
//! owner leaves its slot only after its ticket was granted through *this* list, or after it has
//! removed the entry under the short lock; an owner that unwinds removes the entry, too.

#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::mem;
use std::ptr::NonNull;

use crate::current::{self, Operation};
use crate::record::reason::WaitReason;
use crate::scheduler::Scheduler;
use crate::sync::patience::Patience;
use crate::sync::queue::{Batch, ShortLock, WaitQueue};
use crate::wait::{Claimed, Inbox, Outcome, Ticket};

/// A place for one value, on the stack (or in the box) of a waiter.
pub(super) struct Slot<T>(UnsafeCell<Option<T>>);

struct SlotPtr<T>(NonNull<UnsafeCell<Option<T>>>);

impl<T> Clone for SlotPtr<T> {
    fn clone(&self) -> SlotPtr<T> {
        *self
    }
}

impl<T> Copy for SlotPtr<T> {}

// SAFETY: Held: the pointer is used under the short lock only, to move a `T` from one thread
// to another.
unsafe impl<T: Send> Send for SlotPtr<T> {}

impl<T> SlotPtr<T> {
    /// # Safety
    /// The caller has found the pointer in a list whose short lock it holds, and has not claimed
    /// its ticket.
    unsafe fn replace(self, value: Option<T>) -> Option<T> {
        // SAFETY: Held: the slot is there, and the short lock keeps others away from it.
        unsafe { mem::replace(&mut *self.0.as_ref().get(), value) }
    }
}

impl<T> Slot<T> {
    pub(super) fn new(value: Option<T>) -> Slot<T> {
        Slot(UnsafeCell::new(value))
    }

    /// Puts a value into the slot, before the wait.
    #[inline]
    pub(super) fn put(&mut self, value: T) {
        *self.0.get_mut() = Some(value);
    }

    /// Takes the slot's value, after the wait has ended.
    pub(super) fn take(&mut self) -> Option<T> {
        self.0.get_mut().take()
    }
}

/// The waiters with a slot, first come first served.
pub(super) struct Slots<T>(WaitQueue<(SlotPtr<T>, Option<&'static Inbox>)>);

impl<T> Slots<T> {
    pub(super) const fn new() -> Slots<T> {
        Slots(WaitQueue::new())
    }

    /// Adds `ticket` with `slot` at the end of the queue.
    ///
    /// # Safety
    /// Held: before the slot is dropped, also by unwinding, its owner removes the ticket
    /// under this list's short lock, or the ticket has been granted through this list.
    pub(super) unsafe fn queue(&mut self, ticket: Ticket, slot: &Slot<T>) {
        self.0.push(ticket, (SlotPtr(NonNull::from(&slot.0)), ticket.inbox()));
    }

    /// Removes a ticket, if it is still queued.
    pub(super) fn remove(&mut self, ticket: Ticket) {
        self.0.remove(ticket);
    }

    /// Hands `value` to the first ticket that still waits; returns it if there is none.
    pub(super) fn put(&mut self, mut value: T) -> Result<Claimed, T> {
        while let Some((ticket, (slot, inbox))) = self.0.pop() {
            // If the waiter runs on another processor, its line, that of its slot, and that of its
            // scheduler's inbox are fetched at the same time.
            ticket.prefetch();
            inbox.inspect(|inbox| inbox.prefetch());
            // SAFETY: Held: the slot was found in the list, `&mut self` is under the short lock,
            // and the ticket is claimed only below.
            let before = unsafe { slot.replace(Some(value)) };
            debug_assert!(before.is_none(), "a receiver's slot is empty while it waits");
            if let Some(claimed) = ticket.claim(Outcome::Granted) {
                return Ok(claimed);
            }
            // SAFETY: Held: the claim failed, so the owner must still take this short lock.
            value = unsafe { slot.replace(None) }.expect("no other code touches the slot");
        }
        Err(value)
    }

    /// Takes the value of the first ticket that still waits.
    pub(super) fn take(&mut self) -> Option<(T, Claimed)> {
        while let Some((ticket, (slot, inbox))) = self.0.pop() {
            ticket.prefetch();
            inbox.inspect(|inbox| inbox.prefetch());
            // SAFETY: Held: as in `put`.
            let value = unsafe { slot.replace(None) }.expect("a sender's slot is full");
            if let Some(claimed) = ticket.claim(Outcome::Granted) {
                return Some((value, claimed));
            }
            // SAFETY: Held: as in `put`.
            unsafe { slot.replace(Some(value)) };
        }
        None
    }

    /// Ends all waits and leaves each slot as it is.
    pub(super) fn end_all(&mut self) -> Batch {
        self.0.grant_all()
    }

    /// Returns whether there is no ticket.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether there is a ticket of another wait than this one's.
    pub(super) fn has_other_than(&self, ticket: Ticket) -> bool {
        self.0.iter().any(|(other, _)| other.arm(0) != ticket.arm(0))
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

/// Removes the entry of a single wait when it is dropped.
struct Entry<'a, S, F: Fn(&mut S) -> &mut Slots<T>, T> {
    home: &'a ShortLock<S>,
    list: F,
    ticket: Ticket,
}

impl<S, F: Fn(&mut S) -> &mut Slots<T>, T> Drop for Entry<'_, S, F, T> {
    fn drop(&mut self) {
        (self.list)(&mut self.home.lock()).remove(self.ticket);
    }
}

/// A wait in a channel, described before it begins.
pub(super) struct SlotWait<'a, S> {
    pub home: &'a ShortLock<S>,
    pub reason: WaitReason,
    pub patience: Patience,
}

/// Tries to do without a wait, under the short lock. If `attempt` returns None, waits in `list`
/// with this slot, and returns the outcome as the error.
///
/// Inlined, so that as few functions as possible return after the switch: see `leave_by` in
/// `scheduler/switch.rs`.
#[inline(always)]
pub(super) fn wait_unless<S, T, R>(
    me: &Operation,
    wait: SlotWait<'_, S>,
    list: impl Fn(&mut S) -> &mut Slots<T>,
    slot: &mut Slot<T>,
    attempt: impl FnOnce(&mut S, &mut Slot<T>) -> Option<R>,
) -> Result<R, Outcome> {
    let (home, patience) = (wait.home, wait.patience);
    // Without `me`, which then stays in registers.
    let beginning = Beginning { scheduler: me.scheduler(), wait, list: &list, slot, attempt };
    let begun = match me.locked_by_bias(home) {
        Some(mut state) => beginning.begin_unless(&mut state),
        None => me.locked_by_base(home, |state| beginning.begin_unless(state)),
    };
    let ticket = match begun {
        Ok(done) => return Ok(done),
        Err(ticket) => ticket,
    };
    let entry = Entry { home, list, ticket };
    let outcome = me.park(ticket, patience.deadline());
    if outcome == Outcome::Granted {
        mem::forget(entry);
    } else {
        drop(entry);
    }
    Err(outcome)
}

/// What `wait_unless` does under the short lock.
struct Beginning<'a, S, T, L, A> {
    scheduler: Option<&'a Scheduler>,
    wait: SlotWait<'a, S>,
    list: &'a L,
    slot: &'a mut Slot<T>,
    attempt: A,
}

impl<S, T, L: Fn(&mut S) -> &mut Slots<T>, A> Beginning<'_, S, T, L, A> {
    /// Always inlined: see [`ShortLock::by_bias`].
    #[inline(always)]
    fn begin_unless<R>(self, state: &mut S) -> Result<R, Ticket>
    where
        A: FnOnce(&mut S, &mut Slot<T>) -> Option<R>,
    {
        let Beginning { scheduler, wait, list, slot, attempt } = self;
        if let Some(done) = attempt(state, slot) {
            return Ok(done);
        }
        let what = wait.patience.what(wait.reason, wait.home);
        let ticket = current::waiting_on(scheduler).begin(what);
        // SAFETY: Held: the `Entry` of `wait_unless` removes the ticket before that function ends,
        // and the slot is borrowed as long. It is made next; only the release of the short lock,
        // which does not panic, comes before. It is forgotten only if this list, the only one with
        // the ticket, has granted it.
        unsafe { list(state).queue(ticket, slot) };
        ticket.expects(slot);
        Err(ticket)
    }
}
