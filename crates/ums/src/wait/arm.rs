//! An arm: one of several things that a caller waits for at once.
//!
//! ```text
//!   Select --one ticket for each arm--> channels, events, tasks, sockets
//!          <--one of them claims the wait: the arm is in the waiter's state--
//! ```
//!
//! A [`Source`] is what an arm waits for, as the select sees it. All tickets of the arms name the
//! same wait, so only one claim succeeds. The claim says which arm it was for, so the select knows
//! which source has granted something. Each source is asked to remove its ticket before its arm is
//! dropped.
//!
//! It does not wait itself: `sync/select` does.

use super::waiter::Ticket;
use crate::os::clock::NEVER;

/// Something that a [`Select`](crate::sync::Select) can wait for, beside others.
///
/// | what | is ready when | result |
/// |---|---|---|
/// | `&Receiver`, `&OneReceiver` | there is a value | the value; `Disconnected` without a sender |
/// | `&mut WatchReceiver` | there is a new value | as `changed`, which never fails by a wait here |
/// | `&mut BroadcastReceiver` | there is a value | as `recv`, which never fails by a wait here |
/// | [`Sender::sending`] | there is room | `Disconnected` with the value, without a receiver |
/// | `&Event` | it is set | |
/// | `&Latch` | it is open | |
/// | `&Semaphore` | there is a permit | the permit |
/// | `Duration` | it is over; it begins when the arm is added | |
/// | `Instant` | it has come | |
/// | `&mut Interval` | its next tick has come | as [`tick`](crate::task::Interval::tick) |
/// | `&CancelToken` | it is cancelled | |
/// | `&mut JoinHandle` | the task has ended | its result |
/// | `&TaskGroup` | a task of the group has ended | as [`next`](crate::task::TaskGroup::next) |
/// | [`polled`](crate::future::polled) | the future is ready | its output |
/// | `&TcpListener`, `&UnixListener` | there is a connection | what `accept` returns |
/// | `readable` of a socket, pipe, [`Watch`] | there is input | an error, if there is one |
/// | `writable` of a socket, pipe, `Watch` | there is room | an error, if there is one |
/// | [`Child::ended`] | the process has ended | an error, if there is one |
/// | [`Signals::arrived`] | a signal has come | an error, if there is one |
///
/// [`Sender::sending`]: crate::sync::channel::Sender::sending
/// [`Watch`]: crate::io::Watch
/// [`Child::ended`]: crate::process::Child::ended
/// [`Signals::arrived`]: crate::process::Signals::arrived
///
/// Implement it for a type of your own by that of one of its parts:
///
/// ```
/// use ums::sync::channel::{Receiver, RecvError, unbounded};
/// use ums::sync::{Arm, Select, Waitable};
///
/// struct Orders(Receiver<u32>);
///
/// impl<'a> Waitable<'a> for &'a Orders {
///     type Output = Result<u32, RecvError>;
///     fn arm(self) -> Arm<'a, Self::Output> {
///         (&self.0).arm()
///     }
/// }
///
/// let (tx, rx) = unbounded();
/// tx.send(3).unwrap();
/// assert_eq!(Select::new().on(&Orders(rx), |order| order.unwrap()).wait(), Ok(3));
/// ```
pub trait Waitable<'a> {
    /// What the closure of the arm gets.
    type Output;

    /// Makes the arm.
    fn arm(self) -> Arm<'a, Self::Output>;
}

/// One of the things that a [`Select`](crate::sync::Select) waits for.
#[must_use = "an arm does nothing outside a select"]
pub struct Arm<'a, T>(Box<dyn Source<T> + 'a>);

impl<'a, T> Arm<'a, T> {
    pub(crate) fn new(source: impl Source<T> + 'a) -> Arm<'a, T> {
        Arm(Box::new(source))
    }

    pub(crate) fn source(&self) -> &(dyn Source<T> + 'a) {
        &*self.0
    }

    pub(crate) fn source_mut(&mut self) -> &mut (dyn Source<T> + 'a) {
        &mut *self.0
    }
}

impl<'a, T> Waitable<'a> for Arm<'a, T> {
    type Output = T;

    fn arm(self) -> Arm<'a, T> {
        self
    }
}

impl<T> std::fmt::Debug for Arm<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Arm").finish_non_exhaustive()
    }
}

/// What an arm waits for.
pub(crate) trait Source<T> {
    /// Takes it, if that needs no wait.
    fn try_now(&mut self) -> Option<T>;

    /// Returns when it is ready by itself, in nanoseconds of the clock.
    fn deadline(&self) -> u64 {
        NEVER
    }

    /// Called before a wait begins, for what must not be done between its beginning and parking.
    fn about_to_wait(&self) {}

    /// Gives the ticket to what will claim it. Returns false, without keeping the ticket, if the
    /// source may be ready now. Neither waits nor runs code of the application.
    fn queue(&self, ticket: Ticket) -> bool;

    /// Removes the ticket, if it is still there. `granted` says that the wait was ended by this
    /// ticket.
    fn unqueue(&self, ticket: Ticket, granted: bool);

    /// Returns what was granted. Called after `unqueue`, if the wait was ended by its ticket.
    /// Returns `None` if the source must be tried again.
    fn granted(&mut self) -> Option<T>;
}
