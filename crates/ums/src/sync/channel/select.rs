//! Select: receives from the first of several channels that has a value.
//!
//! The caller waits in the lists of several channels, with the same ticket and a slot for each
//! channel. The first peer to claim the ticket wins, and a value stays only in the winner's slot:
//! every other peer's claim fails, and that peer takes its value back (see `slot.rs`). The entries
//! are removed, each under the short lock of its channel, before the slots are dropped. Named
//! invariant **Held**: see `slot.rs`.
//!
//! A channel without senders counts as ready: its arm gets [`RecvError::Disconnected`].

#![allow(unsafe_code)]

use std::time::{Duration, Instant};

use super::slot::Slot;
use super::{Receiver, RecvError, TryRecvError};
use crate::current;
use crate::record::reason::WaitReason;
use crate::sync::patience::Patience;
use crate::wait::error::WaitError;
use crate::wait::{Outcome, Ticket};

/// Several receivers to wait for at once, each with a closure that gets its value.
///
/// If several have a value, the arm that was added first runs. A channel that always has a value
/// starves the arms after it, so add urgent channels first and busy ones last.
///
/// ```
/// use ums::sync::channel::{Select, unbounded};
/// let (_stop, stopped) = unbounded::<()>();
/// let (tx, numbers) = unbounded();
/// tx.send(7).unwrap();
/// let got = Select::new()
///     .recv(&stopped, |_| None)
///     .recv(&numbers, |n| n.ok())
///     .wait()?;
/// assert_eq!(got, Some(7));
/// # Ok::<(), ums::WaitError>(())
/// ```
#[must_use = "a select does nothing until one of its waits is called"]
pub struct Select<'a, R> {
    arms: Vec<Box<dyn Arm<R> + 'a>>,
}

impl<'a, R: 'a> Select<'a, R> {
    /// Creates a select without arms.
    pub fn new() -> Select<'a, R> {
        Select { arms: Vec::new() }
    }

    /// Adds a receiver; if this arm is chosen, `act` gets its value, or
    /// [`RecvError::Disconnected`] if no sender is left.
    pub fn recv<T: 'a>(
        mut self,
        receiver: &'a Receiver<T>,
        act: impl FnOnce(Result<T, RecvError>) -> R + 'a,
    ) -> Select<'a, R> {
        self.arms.push(Box::new(RecvArm { receiver, slot: Slot::new(None), act: Some(act) }));
        self
    }

    /// Runs the first arm that is ready now; returns `None` if none is.
    pub fn try_now(mut self) -> Option<R> {
        self.arms.iter_mut().find_map(|arm| arm.try_now())
    }

    /// Runs the first arm that is ready; waits as long as necessary.
    ///
    /// # Errors
    /// [`WaitError::Cancelled`] if the work request was cancelled; no arm has run then.
    ///
    /// # Panics
    /// Panics if there are no arms, because it would wait forever.
    pub fn wait(mut self) -> Result<R, WaitError> {
        assert!(!self.arms.is_empty(), "a select without arms would wait forever");
        self.wait_within(Patience::Cancellable)
    }

    /// Like [`wait`](Select::wait), for at most this time.
    ///
    /// # Errors
    /// [`WaitError`] if the time passed or the work request was cancelled.
    pub fn wait_for(mut self, time: Duration) -> Result<R, WaitError> {
        self.wait_within(Patience::For(time))
    }

    /// Like [`wait`](Select::wait), until this moment at the latest.
    ///
    /// # Errors
    /// [`WaitError`] if the moment came or the work request was cancelled.
    pub fn wait_until(mut self, deadline: Instant) -> Result<R, WaitError> {
        self.wait_within(Patience::Until(deadline))
    }

    fn wait_within(&mut self, patience: Patience) -> Result<R, WaitError> {
        let patience = patience.fixed();
        loop {
            if let Some(r) = self.arms.iter_mut().find_map(|arm| arm.try_now()) {
                return Ok(r);
            }
            let outcome = self.park(patience);
            if let Some(r) = self.arms.iter_mut().find_map(|arm| arm.take_slot()) {
                return Ok(r);
            }
            // Granted without a value: a channel has ended, or has become ready meanwhile.
            outcome.ok()?;
        }
    }

    /// Waits in all channels at the same time. `Granted` means that the arms must be tried again.
    fn park(&self, patience: Patience) -> Outcome {
        let ticket = current::begin(patience.what(WaitReason::CHANNEL_RECEIVE, &self.arms));
        let queued = Queued { arms: &self.arms, ticket };
        // If an arm is ready already, the wait is abandoned before it parks, unless a peer has
        // already granted an earlier arm. Then parking returns that outcome without waiting.
        // SAFETY: Held: `queued` removes the ticket from every arm before this returns, and the
        // arms, which own the slots, are borrowed for as long.
        let ready = self.arms.iter().any(|arm| unsafe { !arm.queue_unless_ready(ticket) });
        let abandoned = ready && ticket.abandon();
        let outcome =
            if abandoned { Outcome::Granted } else { current::park(ticket, patience.deadline()) };
        drop(queued);
        outcome
    }
}

impl<'a, R: 'a> Default for Select<'a, R> {
    fn default() -> Select<'a, R> {
        Select::new()
    }
}

/// The arms that may hold the ticket; it is removed from all of them when this is dropped.
struct Queued<'s, 'a, R> {
    arms: &'s [Box<dyn Arm<R> + 'a>],
    ticket: Ticket,
}

impl<R> Drop for Queued<'_, '_, R> {
    fn drop(&mut self) {
        self.arms.iter().for_each(|arm| arm.unqueue(self.ticket));
    }
}

/// One channel of a select, whatever its type.
trait Arm<R> {
    /// Takes a value, or the error that there will be none, and runs the closure with it.
    fn try_now(&mut self) -> Option<R>;
    /// Runs the closure with the value that a peer has put into this arm's slot, if there is one.
    fn take_slot(&mut self) -> Option<R>;
    /// Queues the ticket; returns false, without queueing it, if there is something to take now.
    ///
    /// # Safety
    /// Held: the ticket must be unqueued before the arm is dropped.
    unsafe fn queue_unless_ready(&self, ticket: Ticket) -> bool;
    /// Removes the ticket.
    fn unqueue(&self, ticket: Ticket);
}

struct RecvArm<'a, T, F> {
    receiver: &'a Receiver<T>,
    slot: Slot<T>,
    act: Option<F>,
}

impl<T, F> RecvArm<'_, T, F> {
    fn act<R>(&mut self, result: Result<T, RecvError>) -> R
    where
        F: FnOnce(Result<T, RecvError>) -> R,
    {
        self.act.take().expect("a select ends with its first arm")(result)
    }
}

impl<T, R, F: FnOnce(Result<T, RecvError>) -> R> Arm<R> for RecvArm<'_, T, F> {
    fn try_now(&mut self) -> Option<R> {
        match self.receiver.try_recv() {
            Ok(value) => Some(self.act(Ok(value))),
            Err(TryRecvError::Disconnected) => Some(self.act(Err(RecvError::Disconnected))),
            Err(TryRecvError::Empty) => None,
        }
    }

    fn take_slot(&mut self) -> Option<R> {
        self.slot.take().map(|value| self.act(Ok(value)))
    }

    unsafe fn queue_unless_ready(&self, ticket: Ticket) -> bool {
        let mut state = self.receiver.channel.lock();
        let ready = state.has_something();
        if !ready {
            // SAFETY: Held: the slot lives as long as the arm, and the caller promises that
            // the ticket is removed before the arm is dropped.
            unsafe { state.receivers.queue(ticket, &self.slot) };
        }
        !ready
    }

    fn unqueue(&self, ticket: Ticket) {
        self.receiver.channel.lock().receivers.remove(ticket);
    }
}

impl<R> std::fmt::Debug for Select<'_, R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Select").field("arms", &self.arms.len()).finish()
    }
}
