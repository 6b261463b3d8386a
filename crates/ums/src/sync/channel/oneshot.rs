//! The oneshot: a channel for one value. Each side is used up by its one act.

use std::time::{Duration, Instant};

use super::{Receiver, RecvError, RecvTimeoutError, SendError, Sender, TryRecvError, bounded};

/// A channel for one value.
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
pub struct OneReceiver<T>(Receiver<T>);

impl<T> OneSender<T> {
    /// Sends. Never waits: there is room for the one value.
    ///
    /// # Errors
    /// The receiver is gone; the value comes back.
    pub fn send(self, value: T) -> Result<(), SendError<T>> {
        self.0.send(value)
    }
}

impl<T> OneReceiver<T> {
    /// Receives; waits as long as it takes, deaf to cancellation.
    ///
    /// # Errors
    /// The sender is gone and sent nothing.
    pub fn recv(self) -> Result<T, RecvError> {
        self.0.recv()
    }

    /// Receives if the value is there. Once it was received, the sender counts as gone.
    ///
    /// # Errors
    /// It is not there yet, or will never be.
    pub fn try_recv(&self) -> Result<T, TryRecvError> {
        self.0.try_recv()
    }

    /// Receives within this time.
    ///
    /// # Errors
    /// The sender is gone and sent nothing, the time passed, or the work request was cancelled.
    pub fn recv_for(&self, time: Duration) -> Result<T, RecvTimeoutError> {
        self.0.recv_for(time)
    }

    /// Receives before this moment.
    ///
    /// # Errors
    /// As [`recv_for`](OneReceiver::recv_for).
    pub fn recv_until(&self, deadline: Instant) -> Result<T, RecvTimeoutError> {
        self.0.recv_until(deadline)
    }
}
