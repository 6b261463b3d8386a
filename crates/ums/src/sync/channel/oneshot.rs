//! The oneshot: a channel for one value. Sending consumes the sender. Receiving only borrows the
//! receiver, because the value would be lost if a failed wait consumed it.

use std::time::{Duration, Instant};

use super::{Receiver, RecvError, RecvFuture, SendError, Sender, TryRecvError, bounded};

/// Creates a channel for one value.
///
/// ```
/// let (tx, rx) = ums::sync::channel::oneshot();
/// std::thread::spawn(move || tx.send("answer").unwrap());
/// assert_eq!(rx.recv(), Ok("answer"));
/// ```
pub fn oneshot<T>() -> (OneSender<T>, OneReceiver<T>) {
    let (tx, rx) = bounded(1);
    (OneSender(tx), OneReceiver(rx))
}

/// Sends one value.
#[derive(Debug)]
pub struct OneSender<T>(Sender<T>);

/// Receives one value.
#[derive(Debug)]
pub struct OneReceiver<T>(pub(super) Receiver<T>);

impl<T> OneSender<T> {
    /// Sends the value. Never waits: there is room for the one value.
    ///
    /// # Errors
    /// [`SendError`] with the value if the receiver is gone.
    pub fn send(self, value: T) -> Result<(), SendError<T>> {
        self.0.send(value)
    }
}

impl<T> OneReceiver<T> {
    /// Receives the value; waits as long as necessary. After a successful call, further calls
    /// report that the sender is gone.
    ///
    /// # Errors
    /// [`RecvError`] if the sender is gone and sent nothing, or the work request was cancelled.
    pub fn recv(&self) -> Result<T, RecvError> {
        self.0.recv()
    }

    /// Receives the value if it has been sent; never waits.
    ///
    /// # Errors
    /// [`TryRecvError`] if the value has not been sent yet or will never be.
    pub fn try_recv(&self) -> Result<T, TryRecvError> {
        self.0.try_recv()
    }

    /// Receives the value within this time.
    ///
    /// # Errors
    /// [`RecvError`] if the sender is gone and sent nothing, the time passed, or the work request
    /// was cancelled.
    pub fn recv_for(&self, time: Duration) -> Result<T, RecvError> {
        self.0.recv_for(time)
    }

    /// Receives the value in code that is written with `async`: see
    /// [`Receiver::recv_async`](super::Receiver::recv_async).
    ///
    /// # Errors
    /// [`RecvError::Disconnected`] if the sender is gone and sent nothing.
    pub fn recv_async(&self) -> RecvFuture<'_, T> {
        self.0.recv_async()
    }

    /// Receives the value before this moment.
    ///
    /// # Errors
    /// Like [`recv_for`](OneReceiver::recv_for).
    pub fn recv_until(&self, deadline: Instant) -> Result<T, RecvError> {
        self.0.recv_until(deadline)
    }
}
