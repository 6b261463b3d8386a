//! The futures of a channel: receiving and sending for code that is written with `async`.
//! `awaiting` has the wakers of those that are pending.

use std::pin::Pin;
use std::task::{Context, Poll};

use super::awaiting::{InRow, RowOf};
use super::{Channel, Receiver, RecvError, SendError, Sender, TryRecvError, TrySendError};

impl<T> Channel<T> {
    fn entry(&self, side: RowOf) -> InRow<'_> {
        assert!(
            self.buffers,
            "a future cannot wait in a channel without a buffer: make it with `bounded(1)`"
        );
        self.awaiting.entry(side)
    }
}

/// The future of [`Receiver::recv_async`].
#[must_use = "a future does nothing unless it is awaited"]
pub struct RecvFuture<'a, T> {
    receiver: &'a Receiver<T>,
    entry: InRow<'a>,
}

/// The future of [`Sender::send_async`].
#[must_use = "a future does nothing unless it is awaited"]
pub struct SendFuture<'a, T> {
    sender: &'a Sender<T>,
    value: Option<T>,
    entry: InRow<'a>,
}

/// The value moves to the channel, and nothing refers to it where it is.
impl<T> Unpin for SendFuture<'_, T> {}

impl<T> Receiver<T> {
    /// Receives a value in code that is written with `async`, on this library's workers or another
    /// runtime's: without blocking the caller. Nothing is lost if the future is dropped. Receivers
    /// that wait in [`recv`](Receiver::recv) come first.
    ///
    /// # Errors
    /// [`RecvError::Disconnected`] if the channel is empty and all senders are gone.
    ///
    /// # Panics
    /// Panics if the channel has no buffer ([`rendezvous`](super::rendezvous)).
    ///
    /// ```
    /// let (tx, rx) = ums::sync::channel::bounded(4);
    /// let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    /// let node = ums::Node::builder().build()?;
    /// let task = node.spawn(move || (0..10).for_each(|n| tx.send(n).unwrap()))?;
    /// let sum = runtime.block_on(async {
    ///     let mut sum = 0;
    ///     while let Ok(n) = rx.recv_async().await {
    ///         sum += n;
    ///     }
    ///     sum
    /// });
    /// assert_eq!(sum, 45);
    /// # task.join().unwrap();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn recv_async(&self) -> RecvFuture<'_, T> {
        RecvFuture { receiver: self, entry: self.channel.entry(RowOf::Receivers) }
    }
}

impl<T> Sender<T> {
    /// Sends a value in code that is written with `async`, as
    /// [`recv_async`](Receiver::recv_async) receives. If the future is dropped before it is ready,
    /// the value is dropped with it.
    ///
    /// # Errors
    /// [`SendError::Disconnected`] with the value if all receivers are gone.
    ///
    /// # Panics
    /// Panics if the channel has no buffer ([`rendezvous`](super::rendezvous)).
    pub fn send_async(&self, value: T) -> SendFuture<'_, T> {
        SendFuture { sender: self, value: Some(value), entry: self.channel.entry(RowOf::Senders) }
    }
}

impl<T> Future for RecvFuture<'_, T> {
    type Output = Result<T, RecvError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let RecvFuture { receiver, entry } = &mut *self;
        entry.poll(context, || match receiver.try_recv() {
            Ok(value) => Some(Ok(value)),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Err(RecvError::Disconnected)),
        })
    }
}

impl<T> Future for SendFuture<'_, T> {
    type Output = Result<(), SendError<T>>;

    /// # Panics
    /// Panics if it was ready before.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let SendFuture { sender, value, entry } = &mut *self;
        entry.poll(context, || {
            let unsent = value.take().expect("the value was sent already");
            match sender.try_send(unsent) {
                Ok(()) => Some(Ok(())),
                Err(TrySendError::Disconnected(unsent)) => {
                    Some(Err(SendError::Disconnected(unsent)))
                }
                Err(TrySendError::Full(unsent)) => {
                    *value = Some(unsent);
                    None
                }
            }
        })
    }
}
