//! Why a value was not sent or received. Named as in std, with one variant for failed waits.

use crate::wait::error::WaitError;

/// All receivers are gone; contains the value.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the channel has no receiver any more")]
pub struct SendError<T>(pub T);

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

/// Why a value was not sent in time; contains the value.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SendTimeoutError<T> {
    /// The deadline passed, or the work request was cancelled.
    #[error("{1}")]
    Wait(T, WaitError),
    /// All receivers are gone.
    #[error("the channel has no receiver any more")]
    Disconnected(T),
}

/// There is no value and no sender any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the channel is empty and has no sender any more")]
pub struct RecvError;

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

/// Why no value was received in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecvTimeoutError {
    /// The deadline passed, or the work request was cancelled.
    #[error("{0}")]
    Wait(WaitError),
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
    SendError: SendError(_) => "SendError(..)";
    TrySendError: TrySendError::Full(_) => "Full(..)",
        TrySendError::Disconnected(_) => "Disconnected(..)";
    SendTimeoutError: SendTimeoutError::Wait(_, WaitError::TimedOut) => "Wait(.., TimedOut)",
        SendTimeoutError::Wait(_, WaitError::Cancelled) => "Wait(.., Cancelled)",
        SendTimeoutError::Wait(_, WaitError::Deadlock(_)) => "Wait(.., Deadlock)",
        SendTimeoutError::Disconnected(_) => "Disconnected(..)";
}
