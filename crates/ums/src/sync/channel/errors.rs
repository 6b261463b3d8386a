//! Why a value was not sent or received. The names are those of std; failed waits have a variant of
//! their own.

use std::io;

use crate::wait::error::WaitError;

/// Why a value was not sent; contains the value.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SendError<T> {
    /// The wait for room ended: the deadline passed, or the work request was cancelled.
    #[error("the value was not sent: {1}")]
    Wait(T, #[source] WaitError),
    /// All receivers are gone.
    #[error("the channel has no receiver any more")]
    Disconnected(T),
}

impl<T> SendError<T> {
    /// Returns the value.
    pub fn into_inner(self) -> T {
        match self {
            SendError::Wait(value, _) | SendError::Disconnected(value) => value,
        }
    }
}

/// For functions that return [`io::Result`]. Without a receiver, the kind is `BrokenPipe`. The
/// value is dropped.
impl<T> From<SendError<T>> for io::Error {
    fn from(error: SendError<T>) -> io::Error {
        match error {
            SendError::Wait(_, error) => error.into(),
            SendError::Disconnected(_) => {
                io::Error::new(io::ErrorKind::BrokenPipe, SendError::Disconnected(()).to_string())
            }
        }
    }
}

/// Why a value was not sent at once; contains the value.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TrySendError<T> {
    /// The buffer is full now.
    #[error("the channel is full")]
    Full(T),
    /// All receivers are gone.
    #[error("the channel has no receiver any more")]
    Disconnected(T),
}

/// Why no value was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecvError {
    /// The wait for a value ended: the deadline passed, or the work request was cancelled.
    #[error("no value was received: {0}")]
    Wait(#[source] WaitError),
    /// There is no value and no sender any more.
    #[error("the channel is empty and has no sender any more")]
    Disconnected,
}

/// For functions that return [`io::Result`]. Without a sender, the kind is `UnexpectedEof`.
impl From<RecvError> for io::Error {
    fn from(error: RecvError) -> io::Error {
        match error {
            RecvError::Wait(error) => error.into(),
            RecvError::Disconnected => io::Error::new(io::ErrorKind::UnexpectedEof, error),
        }
    }
}

/// Why no value was received at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TryRecvError {
    /// There is no value now.
    #[error("the channel is empty")]
    Empty,
    /// There is no value and no sender any more.
    #[error("the channel is empty and has no sender any more")]
    Disconnected,
}

/// Implements `Debug` without the value, so that a result with any `T` can be unwrapped.
macro_rules! debug_without_value {
    ($($name:ident: $($pattern:pat => $text:literal),*;)*) => {
        $(impl<T> std::fmt::Debug for $name<T> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match self { $($pattern => f.write_str($text)),* }
            }
        })*
    };
}

debug_without_value! {
    TrySendError: TrySendError::Full(_) => "Full(..)",
        TrySendError::Disconnected(_) => "Disconnected(..)";
    SendError: SendError::Wait(_, WaitError::TimedOut) => "Wait(.., TimedOut)",
        SendError::Wait(_, WaitError::Cancelled) => "Wait(.., Cancelled)",
        SendError::Wait(_, WaitError::Deadlock(_)) => "Wait(.., Deadlock)",
        SendError::Disconnected(_) => "Disconnected(..)";
}
