//! Why a value was not sent or received. The names are those of std; failed waits have a variant of
//! their own.

use std::error::Error;
use std::{fmt, io};

use crate::record::reason::WaitReason;
use crate::wait::error::WaitError;

/// Why a value was not sent; contains the value.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum SendError<T> {
    /// The wait for room ended: the deadline passed, or the work request was cancelled.
    Wait(T, WaitError),
    /// All receivers are gone.
    Disconnected(T),
}

impl<T> fmt::Display for SendError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SendError::Wait(_, error) => write!(f, "the value was not sent: {error}"),
            SendError::Disconnected(_) => f.write_str("the channel has no receiver any more"),
        }
    }
}

impl<T> Error for SendError<T> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            SendError::Wait(_, error) => Some(error),
            SendError::Disconnected(_) => None,
        }
    }
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
            SendError::Wait(_, error) => error.during(WaitReason::CHANNEL_SEND),
            SendError::Disconnected(_) => {
                io::Error::new(io::ErrorKind::BrokenPipe, SendError::Disconnected(()).to_string())
            }
        }
    }
}

/// Why a value was not sent at once; contains the value.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum TrySendError<T> {
    /// The buffer is full now.
    Full(T),
    /// All receivers are gone.
    Disconnected(T),
}

impl<T> fmt::Display for TrySendError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TrySendError::Full(_) => "the channel is full",
            TrySendError::Disconnected(_) => "the channel has no receiver any more",
        })
    }
}

impl<T> Error for TrySendError<T> {}

/// Why no value was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecvError {
    /// The wait for a value ended: the deadline passed, or the work request was cancelled.
    Wait(WaitError),
    /// There is no value and no sender any more.
    Disconnected,
}

impl fmt::Display for RecvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RecvError::Wait(error) => write!(f, "no value was received: {error}"),
            RecvError::Disconnected => {
                f.write_str("the channel is empty and has no sender any more")
            }
        }
    }
}

impl Error for RecvError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            RecvError::Wait(error) => Some(error),
            RecvError::Disconnected => None,
        }
    }
}

/// For functions that return [`io::Result`]. Without a sender, the kind is `UnexpectedEof`.
impl From<RecvError> for io::Error {
    fn from(error: RecvError) -> io::Error {
        match error {
            RecvError::Wait(error) => error.during(WaitReason::CHANNEL_RECEIVE),
            RecvError::Disconnected => io::Error::new(io::ErrorKind::UnexpectedEof, error),
        }
    }
}

/// Why no value was received at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TryRecvError {
    /// There is no value now.
    Empty,
    /// There is no value and no sender any more.
    Disconnected,
}

impl fmt::Display for TryRecvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TryRecvError::Empty => "the channel is empty",
            TryRecvError::Disconnected => "the channel is empty and has no sender any more",
        })
    }
}

impl Error for TryRecvError {}

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
