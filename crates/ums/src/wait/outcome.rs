//! How a wait ended.

use super::deadlock::DeadlockId;
use super::error::WaitError;

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The waiter got what it waited for.
    Granted = 2,
    /// The deadline passed.
    TimedOut = 3,
    /// The work request was cancelled.
    Cancelled = 4,
    /// The wait was the victim of a deadlock.
    Deadlock = 5,
}

impl Outcome {
    pub(super) fn from_state(state: u64) -> Option<Outcome> {
        match state {
            2 => Some(Outcome::Granted),
            3 => Some(Outcome::TimedOut),
            4 => Some(Outcome::Cancelled),
            5 => Some(Outcome::Deadlock),
            _ => None,
        }
    }

    /// Returns the result for the caller of the wait: `Granted` is success, every other outcome an
    /// error. For the number of a deadlock, use [`Ticket::result`](super::Ticket::result).
    pub(crate) fn ok(self) -> Result<(), WaitError> {
        match self {
            Outcome::Granted => Ok(()),
            Outcome::TimedOut => Err(WaitError::TimedOut),
            Outcome::Cancelled => Err(WaitError::Cancelled),
            Outcome::Deadlock => Err(WaitError::Deadlock(DeadlockId::from_number(0))),
        }
    }
}
