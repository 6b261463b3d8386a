//! The arms of a select that receive from a channel, or send into one.
//!
//! An arm has a slot, as a single wait has. A value stays only in the slot of the arm whose ticket
//! was claimed: every other peer's claim fails, and that peer takes its value back (see `slot.rs`).
//!
//! Named invariant **Held**: see `slot.rs`. The slot lies in the box of its [`Arm`], so it stays
//! where it is. The arm removes its ticket, at the latest when it is dropped.

#![allow(unsafe_code)]

use std::cell::Cell;

use super::oneshot::OneReceiver;
use super::slot::{Slot, Slots};
use super::{Channel, Receiver, RecvError, SendError, Sender, State, TryRecvError, TrySendError};
use crate::wait::{Arm, Source, Ticket, Waitable};

impl<'a, T> Waitable<'a> for &'a Receiver<T> {
    type Output = Result<T, RecvError>;

    fn arm(self) -> Arm<'a, Self::Output> {
        Arm::new(Receiving {
            receiver: self,
            place: Place::new(&self.channel, State::receivers, None),
        })
    }
}

impl<'a, T> Waitable<'a> for &'a OneReceiver<T> {
    type Output = Result<T, RecvError>;

    fn arm(self) -> Arm<'a, Self::Output> {
        self.0.arm()
    }
}

impl<T> Sender<T> {
    /// Returns the arm of a [`Select`](crate::sync::Select) that sends `value`. If another arm is
    /// chosen, or the wait fails, the value is dropped with the select.
    ///
    /// ```
    /// use std::time::Duration;
    /// use ums::sync::{Select, channel::bounded};
    /// let (tx, rx) = bounded(1);
    /// let send = |n| {
    ///     Select::new()
    ///         .on(tx.sending(n), |sent| sent.is_ok())
    ///         .on(Duration::from_millis(1), |()| false)
    ///         .wait()
    /// };
    /// assert_eq!((send(1)?, send(2)?), (true, false));
    /// assert_eq!(rx.recv(), Ok(1));
    /// # Ok::<(), ums::WaitError>(())
    /// ```
    pub fn sending(&self, value: T) -> Arm<'_, Result<(), SendError<T>>> {
        Arm::new(Sending {
            sender: self,
            place: Place::new(&self.channel, State::senders, Some(value)),
        })
    }
}

/// A place in one of a channel's lists: a slot, and the ticket while it is there.
struct Place<'a, T> {
    channel: &'a Channel<T>,
    list: fn(&mut State<T>) -> &mut Slots<T>,
    slot: Slot<T>,
    queued: Cell<Option<Ticket>>,
}

impl<'a, T> Place<'a, T> {
    fn new(
        channel: &'a Channel<T>,
        list: fn(&mut State<T>) -> &mut Slots<T>,
        value: Option<T>,
    ) -> Place<'a, T> {
        Place { channel, list, slot: Slot::new(value), queued: Cell::new(None) }
    }

    /// Queues the ticket unless the channel is `ready`. Returns whether it did.
    fn queue(&self, ticket: Ticket, ready: fn(&State<T>, Ticket) -> bool) -> bool {
        let mut state = self.channel.lock();
        let waits = !ready(&state, ticket);
        if waits {
            self.queued.set(Some(ticket));
            // SAFETY: Held: this place is in the box of its arm, so the slot does not move. When
            // the place is dropped, it removes the ticket.
            unsafe { (self.list)(&mut state).queue(ticket, &self.slot) };
        }
        waits
    }

    fn unqueue(&self) {
        if let Some(ticket) = self.queued.take() {
            (self.list)(&mut self.channel.lock()).remove(ticket);
        }
    }
}

impl<T> Drop for Place<'_, T> {
    fn drop(&mut self) {
        self.unqueue();
    }
}

struct Receiving<'a, T> {
    receiver: &'a Receiver<T>,
    place: Place<'a, T>,
}

impl<T> Source<Result<T, RecvError>> for Receiving<'_, T> {
    fn try_now(&mut self) -> Option<Result<T, RecvError>> {
        match self.receiver.try_recv() {
            Ok(value) => Some(Ok(value)),
            Err(TryRecvError::Disconnected) => Some(Err(RecvError::Disconnected)),
            Err(TryRecvError::Empty) => None,
        }
    }

    fn queue(&self, ticket: Ticket) -> bool {
        self.place.queue(ticket, State::has_something_for)
    }

    fn unqueue(&self, _: Ticket, _: bool) {
        self.place.unqueue();
    }

    /// Without a value, the last sender has gone.
    fn granted(&mut self) -> Option<Result<T, RecvError>> {
        Some(self.place.slot.take().ok_or(RecvError::Disconnected))
    }
}

struct Sending<'a, T> {
    sender: &'a Sender<T>,
    place: Place<'a, T>,
}

impl<T> Source<Result<(), SendError<T>>> for Sending<'_, T> {
    fn try_now(&mut self) -> Option<Result<(), SendError<T>>> {
        let value = self.place.slot.take().expect("the value is there until it is sent");
        match self.sender.try_send(value) {
            Ok(()) => Some(Ok(())),
            Err(TrySendError::Disconnected(value)) => Some(Err(SendError::Disconnected(value))),
            Err(TrySendError::Full(value)) => {
                self.place.slot.put(value);
                None
            }
        }
    }

    fn queue(&self, ticket: Ticket) -> bool {
        self.place.queue(ticket, State::has_room_for)
    }

    fn unqueue(&self, _: Ticket, _: bool) {
        self.place.unqueue();
    }

    /// With the value, the last receiver has gone.
    fn granted(&mut self) -> Option<Result<(), SendError<T>>> {
        Some(self.place.slot.take().map_or(Ok(()), |value| Err(SendError::Disconnected(value))))
    }
}
