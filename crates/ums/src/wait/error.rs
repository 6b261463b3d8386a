//! Errors: what the environment may do to a caller. A caller's own mistake is a panic with a
//! sentence, at the place of the mistake.

use std::io;

use crate::wait::deadlock::DeadlockId;

/// Why a wait ended without what was waited for.
///
/// As an [`std::io::Error`] its kind is `TimedOut`, or `ConnectionAborted` for the other two;
/// [`WaitError::of`] gets it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WaitError {
    /// The deadline passed first.
    #[error("the wait timed out")]
    TimedOut,
    /// The work request was cancelled, or its node is shutting down. Each further wait of the
    /// request fails, too: see [`sync`](crate::sync#cancellation).
    #[error("the work request was cancelled while it waited")]
    Cancelled,
    /// The wait was one of several that waited for each other, and was chosen to end so that the
    /// others can continue. The number leads to the others ([`DeadlockId::details`]), and the text
    /// of the error names them.
    #[error("the wait was chosen as the victim of {0}")]
    Deadlock(DeadlockId),
}

impl WaitError {
    /// Returns the error of a wait that this error of an I/O call contains; `None` if it is an
    /// error of the system.
    pub fn of(error: &io::Error) -> Option<WaitError> {
        error.get_ref()?.downcast_ref().copied()
    }

    /// Returns the original's return code: DEADLOCK 3, PREMATURE_WAKEUP 4, TIMEOUT 258.
    pub fn code(self) -> u32 {
        match self {
            WaitError::Deadlock(_) => 3,
            WaitError::Cancelled => 4,
            WaitError::TimedOut => 258,
        }
    }
}

impl From<WaitError> for io::Error {
    fn from(e: WaitError) -> io::Error {
        let kind = match e {
            WaitError::TimedOut => io::ErrorKind::TimedOut,
            // Not `Interrupted`: std's read_to_end and friends would retry that without end.
            WaitError::Cancelled | WaitError::Deadlock(_) => io::ErrorKind::ConnectionAborted,
        };
        io::Error::new(kind, e)
    }
}

/// Why a work request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnqueueError {
    /// The work queue is at its bound: the caller should tell its client to come later.
    #[error("the work queue is full ({0} requests are waiting for a worker)")]
    QueueFull(usize),
    /// It waited for a worker longer than `Builder::queue_timeout` allows.
    #[error("the request waited too long for a worker")]
    WaitedTooLong,
    /// The node takes no more work.
    #[error("the node is shutting down")]
    ShuttingDown,
}

/// A component that needs a thread of its own was called on a fiber worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} needs a thread of its own: call it through go_preemptive, or use thread workers")]
pub struct NeedsThread(pub &'static str);

/// Why a node could not be built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// An option has a value that makes no sense; the text says which and what would.
    #[error("{0}")]
    Option(String),
    /// The operating system refused something; the text says what was being done.
    #[error("{what}: {source}")]
    Os {
        /// What was being done.
        what: &'static str,
        /// The system's answer.
        source: io::Error,
    },
}
