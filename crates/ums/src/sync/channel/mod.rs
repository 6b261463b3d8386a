//! Channels: values from many senders to many receivers, each to one of them, in order.
//!
//! ```text
//!   senders -> [senders that wait for room] -> [buffer, up to its bound] -> receivers
//!                                              [receivers that wait for a value]
//! ```
//!
//! At most one of the two lists has waiters in it. A value sent while a receiver waits goes
//! straight to that receiver (see `slot.rs`), and the room that a receiver makes goes to the first
//! waiting sender's value, so a later caller can take neither. A rendezvous channel is one whose
//! bound is 0.
//!
//! A channel ends from both sides: when the last sender is gone, receivers get the remaining values
//! and then [`RecvError::Disconnected`]; when the last receiver is gone, the remaining values are
//! dropped, and senders get theirs back. [`Receiver::close`] ends sending, and keeps the values.
//!
//! Two other channels give the same value to many receivers: [`watch`] the newest, [`broadcast`]
//! all of them. [`oneshot`] is for one value, and code that is written with `async` has
//! [`recv_async`](Receiver::recv_async) and [`send_async`](Sender::send_async).
//!
//! A message between two workers that alternate costs each of them one short lock (a lock held for
//! a few instructions). A value's destructor never runs under it.

mod arms;
mod awaiting;
mod broadcast;
mod errors;
mod futures;
mod oneshot;
mod slot;
mod watch;

use std::collections::VecDeque;
use std::fmt;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

pub use broadcast::{BroadcastError, BroadcastReceiver, BroadcastSender, broadcast};
pub use errors::{RecvError, SendError, TryRecvError, TrySendError};
pub use futures::{RecvFuture, SendFuture};
pub use oneshot::{OneReceiver, OneSender, oneshot};
pub use watch::{WatchReceiver, WatchSender, watch};

use self::awaiting::{Awaiting, RowOf};
use self::slot::{Slot, SlotWait, Slots};
use super::patience::Patience;
use super::queue::{Batch, ShortGuard, ShortLock};
use crate::current::{self, Operation};
use crate::os::threads::operation;
use crate::record::reason::WaitReason;
use crate::wait::{Claimed, Outcome, Ticket};

/// Creates a channel without a buffer: `send` waits until a receiver has taken the value.
pub fn rendezvous<T>() -> (Sender<T>, Receiver<T>) {
    bounded(0)
}

/// Creates a channel that holds up to `bound` values; `send` waits for room. With 0 it is a
/// [`rendezvous`] channel.
///
/// ```
/// let (tx, rx) = ums::sync::channel::bounded(1);
/// std::thread::scope(|s| {
///     s.spawn(move || (0..3).for_each(|n| tx.send(n).unwrap()));
///     assert_eq!(rx.iter().collect::<Vec<_>>(), [0, 1, 2]);
/// });
/// ```
pub fn bounded<T>(bound: usize) -> (Sender<T>, Receiver<T>) {
    let channel = Arc::new(Channel {
        senders: AtomicUsize::new(1),
        receivers: AtomicUsize::new(1),
        buffers: bound > 0,
        awaiting: Awaiting::new(),
        state: ShortLock::biased(State {
            buffer: VecDeque::new(),
            bound,
            no_senders: false,
            no_receivers: false,
            senders: Slots::new(),
            receivers: Slots::new(),
        }),
    });
    (Sender { channel: channel.clone() }, Receiver { channel })
}

/// Creates a channel that holds any number of values; `send` never waits.
pub fn unbounded<T>() -> (Sender<T>, Receiver<T>) {
    bounded(usize::MAX)
}

/// The side that sends. Clones send into the same channel.
pub struct Sender<T> {
    channel: Arc<Channel<T>>,
}

/// The side that receives. Clones receive from the same channel; each value goes to one of them.
pub struct Receiver<T> {
    channel: Arc<Channel<T>>,
}

/// The first cache line has the lock and the list of receivers, which is all that is needed to hand
/// a value to a receiver that waits.
#[repr(C, align(64))]
struct Channel<T> {
    state: ShortLock<State<T>>,
    senders: AtomicUsize,
    receivers: AtomicUsize,
    /// Whether the channel's bound is not 0.
    buffers: bool,
    /// The futures that wait in the channel.
    awaiting: Awaiting,
}

impl<T> Channel<T> {
    #[inline]
    fn lock(&self) -> ShortGuard<'_, State<T>> {
        let _settled = current::before_short_lock();
        self.state.lock()
    }

    /// Wakes a future after a value was sent: there is a value, or the room for it was not used
    /// because a waiting receiver has got it. A future may have been woken for that room.
    #[inline]
    fn tell_after_put(&self, handed_over: bool) {
        self.awaiting.tell(if handed_over { RowOf::Senders } else { RowOf::Receivers });
    }

    /// Wakes a future after a value was taken: there is room, or a waiting sender's value has moved
    /// into the buffer.
    #[inline]
    fn tell_after_take(&self, moved: bool) {
        self.awaiting.tell(if moved { RowOf::Receivers } else { RowOf::Senders });
    }

    /// Describes a wait in this channel.
    #[inline(always)]
    fn wait(&self, reason: WaitReason, patience: Patience) -> SlotWait<'_, State<T>> {
        SlotWait { home: &self.state, reason, patience }
    }
}

/// The channel, behind its short lock. A receiver waits only while the buffer is empty and no
/// sender waits; a sender waits only while the buffer is full and no receiver waits.
#[repr(C)]
struct State<T> {
    /// There will be no further value, because no sender is left or the channel was closed.
    no_senders: bool,
    /// No value is accepted, because no receiver is left or the channel was closed.
    no_receivers: bool,
    receivers: Slots<T>,
    bound: usize,
    senders: Slots<T>,
    buffer: VecDeque<T>,
}

impl<T> State<T> {
    /// Sends a value without waiting; the returned receiver must be made ready.
    #[inline]
    fn put(&mut self, value: T) -> Result<Option<Claimed>, TrySendError<T>> {
        if self.no_receivers {
            return Err(TrySendError::Disconnected(value));
        }
        match self.receivers.put(value) {
            Ok(receiver) => Ok(Some(receiver)),
            Err(value) if self.buffer.len() < self.bound => {
                self.buffer.push_back(value);
                Ok(None)
            }
            Err(value) => Err(TrySendError::Full(value)),
        }
    }

    /// Returns whether [`take`](State::take) would return `Empty`.
    #[inline]
    fn has_nothing(&self) -> bool {
        self.buffer.is_empty() && self.senders.is_empty() && !self.no_senders
    }

    /// Takes the oldest value. A returned sender must be made ready: its value was taken, or has
    /// moved into the buffer.
    #[inline(never)]
    fn take(&mut self) -> Result<(T, Option<Claimed>), TryRecvError> {
        if let Some(value) = self.buffer.pop_front() {
            let sender = self.senders.take().map(|(next, sender)| {
                self.buffer.push_back(next);
                sender
            });
            return Ok((value, sender));
        }
        match self.senders.take() {
            Some((value, sender)) => Ok((value, Some(sender))),
            None if self.no_senders => Err(TryRecvError::Disconnected),
            None => Err(TryRecvError::Empty),
        }
    }

    /// Returns whether [`take`](State::take) may return something other than `Empty`, for the
    /// caller with this ticket, which does not send to itself. A sender that is about to give up
    /// counts, although `take` may then find it gone.
    fn has_something_for(&self, ticket: Ticket) -> bool {
        !self.buffer.is_empty() || self.senders.has_other_than(ticket) || self.no_senders
    }

    /// Returns whether [`put`](State::put) may return something other than `Full`, in the same way.
    fn has_room_for(&self, ticket: Ticket) -> bool {
        let receives = self.receivers.has_other_than(ticket);
        self.buffer.len() < self.bound || receives || self.no_receivers
    }

    fn senders(&mut self) -> &mut Slots<T> {
        &mut self.senders
    }

    fn receivers(&mut self) -> &mut Slots<T> {
        &mut self.receivers
    }
}

impl<T> Sender<T> {
    /// Sends a value; waits for room as long as necessary.
    ///
    /// # Errors
    /// [`SendError`] with the value if all receivers are gone or the work request was cancelled.
    #[inline]
    pub fn send(&self, value: T) -> Result<(), SendError<T>> {
        self.send_within(value, Patience::Cancellable)
    }

    /// Sends a value without waiting.
    ///
    /// # Errors
    /// [`TrySendError`] with the value if the buffer is full or all receivers are gone.
    pub fn try_send(&self, value: T) -> Result<(), TrySendError<T>> {
        operation("channel: try_send");
        let me = Operation::begin();
        let peer = me.locked(&self.channel.state, |state| state.put(value))?;
        let handed_over = peer.is_some();
        me.ready_if(peer);
        drop(me);
        self.channel.tell_after_put(handed_over);
        Ok(())
    }

    /// Sends a value within this time.
    ///
    /// # Errors
    /// [`SendError`] with the value if all receivers are gone, the time passed, or the work request
    /// was cancelled.
    pub fn send_for(&self, value: T, time: Duration) -> Result<(), SendError<T>> {
        self.send_within(value, Patience::For(time))
    }

    /// Sends a value before this moment.
    ///
    /// # Errors
    /// Like [`send_for`](Sender::send_for).
    pub fn send_until(&self, value: T, deadline: Instant) -> Result<(), SendError<T>> {
        self.send_within(value, Patience::Until(deadline))
    }

    /// Returns how many values were in the buffer at some moment during the call.
    pub fn len(&self) -> usize {
        operation("channel: len");
        self.channel.lock().buffer.len()
    }

    /// Returns whether the buffer was empty at some moment during the call.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline(always)]
    fn send_within(&self, value: T, patience: Patience) -> Result<(), SendError<T>> {
        operation("channel: send");
        // Declared first, so dropped last. If the wait is refused by a panic, the value, whose
        // destructor may use the channel, is dropped after the lock is released and the operation
        // has ended.
        let mut slot = Slot::new(None);
        let me = Operation::begin();
        let put = |state: &mut State<T>, slot: &mut Slot<T>| match state.put(value) {
            Err(TrySendError::Full(value)) => {
                slot.put(value);
                None
            }
            done => Some(done),
        };
        let wait = self.channel.wait(WaitReason::CHANNEL_SEND, patience);
        let outcome = match slot::wait_unless(&me, wait, State::senders, &mut slot, put) {
            Err(outcome) => outcome,
            Ok(Ok(peer)) => {
                let handed_over = peer.is_some();
                me.ready_if(peer);
                drop(me);
                self.channel.tell_after_put(handed_over);
                return Ok(());
            }
            Ok(Err(TrySendError::Disconnected(value) | TrySendError::Full(value))) => {
                return Err(SendError::Disconnected(value));
            }
        };
        match (outcome, slot.take()) {
            (Outcome::Granted, None) => Ok(()),
            (Outcome::Granted, Some(value)) => Err(SendError::Disconnected(value)),
            (failed, Some(value)) => match failed.ok() {
                Ok(()) => Ok(()),
                Err(e) => Err(SendError::Wait(value, e)),
            },
            (_, None) => unreachable!("a value is taken only from a sender that is granted"),
        }
    }
}

impl<T> Receiver<T> {
    /// Receives a value; waits as long as necessary.
    ///
    /// # Errors
    /// [`RecvError`] if the channel is empty and all senders are gone, or the work request was
    /// cancelled.
    #[inline]
    pub fn recv(&self) -> Result<T, RecvError> {
        self.recv_within(Patience::Cancellable)
    }

    /// Receives a value without waiting.
    ///
    /// # Errors
    /// [`TryRecvError`] if there is no value now.
    pub fn try_recv(&self) -> Result<T, TryRecvError> {
        operation("channel: try_recv");
        let me = Operation::begin();
        let (value, peer) = me.locked(&self.channel.state, State::take)?;
        let moved = peer.is_some();
        me.ready_if(peer);
        drop(me);
        self.channel.tell_after_take(moved);
        Ok(value)
    }

    /// Receives a value within this time.
    ///
    /// # Errors
    /// [`RecvError`] if the channel is empty and all senders are gone, the time passed, or the work
    /// request was cancelled.
    pub fn recv_for(&self, time: Duration) -> Result<T, RecvError> {
        self.recv_within(Patience::For(time))
    }

    /// Receives a value before this moment.
    ///
    /// # Errors
    /// Like [`recv_for`](Receiver::recv_for).
    pub fn recv_until(&self, deadline: Instant) -> Result<T, RecvError> {
        self.recv_within(Patience::Until(deadline))
    }

    /// Closes the channel for senders: each further send fails as if there were no receiver, and so
    /// do the sends that wait for room. The values in the buffer can still be received; then
    /// receivers get [`RecvError::Disconnected`].
    ///
    /// ```
    /// use ums::sync::channel::{RecvError, bounded};
    /// let (tx, rx) = bounded(2);
    /// tx.send(1).unwrap();
    /// rx.close();
    /// assert!(tx.send(2).is_err());
    /// assert_eq!((rx.recv(), rx.recv()), (Ok(1), Err(RecvError::Disconnected)));
    /// ```
    pub fn close(&self) {
        operation("channel: close");
        let mut state = self.channel.lock();
        state.no_senders = true;
        state.no_receivers = true;
        let (receivers, senders) = (state.receivers.end_all(), state.senders.end_all());
        drop(state);
        receivers.ready();
        senders.ready();
        self.channel.awaiting.tell_all();
    }

    /// Iterates over the values as they come, until no sender is left, the work request is
    /// cancelled, or the time of [`with_timeout`](crate::with_timeout) is over. It does not say
    /// which; [`recv`](Receiver::recv) does.
    pub fn iter(&self) -> impl Iterator<Item = T> {
        std::iter::from_fn(|| self.recv().ok())
    }

    /// Iterates over the values that are in the channel now, without waiting.
    pub fn try_iter(&self) -> impl Iterator<Item = T> {
        std::iter::from_fn(|| self.try_recv().ok())
    }

    /// Returns how many values were in the buffer at some moment during the call.
    pub fn len(&self) -> usize {
        operation("channel: len");
        self.channel.lock().buffer.len()
    }

    /// Returns whether the buffer was empty at some moment during the call.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline(always)]
    fn recv_within(&self, patience: Patience) -> Result<T, RecvError> {
        operation("channel: recv");
        // Declared first, as in `send_within`.
        let mut slot = Slot::new(None);
        let me = Operation::begin();
        let take = |state: &mut State<T>, _: &mut Slot<T>| {
            // Mostly so before a wait. The rest is too large to be inlined.
            if state.has_nothing() {
                return None;
            }
            match state.take() {
                Err(TryRecvError::Empty) => None,
                done => Some(done),
            }
        };
        let wait = self.channel.wait(WaitReason::CHANNEL_RECEIVE, patience);
        let outcome = match slot::wait_unless(&me, wait, State::receivers, &mut slot, take) {
            Err(outcome) => outcome,
            Ok(Ok((value, peer))) => {
                let moved = peer.is_some();
                me.ready_if(peer);
                drop(me);
                self.channel.tell_after_take(moved);
                return Ok(value);
            }
            Ok(Err(_)) => return Err(RecvError::Disconnected),
        };
        match (outcome, slot.take()) {
            (Outcome::Granted, value) => value.ok_or(RecvError::Disconnected),
            (failed, _) => Err(failed.ok().map_or_else(RecvError::Wait, |()| {
                unreachable!("a wait that is not granted has failed")
            })),
        }
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Sender<T> {
        self.channel.senders.fetch_add(1, Ordering::Relaxed);
        Sender { channel: self.channel.clone() }
    }
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Receiver<T> {
        self.channel.receivers.fetch_add(1, Ordering::Relaxed);
        Receiver { channel: self.channel.clone() }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        operation("channel: drop");
        if self.channel.senders.fetch_sub(1, Ordering::AcqRel) == 1 {
            let mut state = self.channel.lock();
            state.no_senders = true;
            let batch = state.receivers.end_all();
            drop(state);
            batch.ready();
            self.channel.awaiting.tell_all();
        }
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        operation("channel: drop");
        if self.channel.receivers.fetch_sub(1, Ordering::AcqRel) == 1 {
            let mut state = self.channel.lock();
            state.no_receivers = true;
            let unread = mem::take(&mut state.buffer);
            let batch: Batch = state.senders.end_all();
            drop(state);
            batch.ready();
            self.channel.awaiting.tell_all();
            // The values' destructors are the application's code and must not run under the short
            // lock.
            drop(unread);
        }
    }
}

/// The values as they come, until no sender is left or the work request is cancelled.
pub struct IntoIter<T>(Receiver<T>);

impl<T> Iterator for IntoIter<T> {
    type Item = T;
    fn next(&mut self) -> Option<T> {
        self.0.recv().ok()
    }
}

impl<T> IntoIterator for Receiver<T> {
    type Item = T;
    type IntoIter = IntoIter<T>;
    fn into_iter(self) -> IntoIter<T> {
        IntoIter(self)
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for IntoIter<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IntoIter").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
