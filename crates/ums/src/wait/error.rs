//! What the world may do to a caller, as values. What the caller may do wrong is a panic with a
//! sentence, at the place where it happens.

use std::io;

use crate::wait::deadlock::DeadlockId;

/// Why a wait ended without what was waited for (B23).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WaitError {
    /// The deadline passed first.
    #[error("the deadline passed before the wait ended")]
    TimedOut,
    /// The work request was cancelled, or its node is shutting down.
    #[error("the work request was cancelled while it waited")]
    Cancelled,
    /// The wait was one of several that waited for each other, and was chosen to end so that the
    /// others can go on. The number leads to who they were ([`DeadlockId::details`]), and the text
    /// of the error names them.
    #[error("the wait was chosen as the victim of {0}")]
    Deadlock(DeadlockId),
}

impl WaitError {
    /// The original's return code: DEADLOCK 3, PREMATURE_WAKEUP 4, TIMEOUT 258 (B23).
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
            // Not `Interrupted`: std's read_to_end and friends would retry that for ever.
            WaitError::Cancelled | WaitError::Deadlock(_) => io::ErrorKind::ConnectionAborted,
        };
        io::Error::new(kind, e)
    }
}

/// Why a work request was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnqueueError {
    /// The work queue is at its bound (G2, B19): the caller should tell its client to come later.
    #[error("the work queue is full ({0} requests are waiting for a worker)")]
    QueueFull(usize),
    /// It waited for a worker longer than `Builder::queue_timeout` allows (B19).
    #[error("the request waited too long for a worker")]
    WaitedTooLong,
    /// The node takes no more work.
    #[error("the node is shutting down")]
    ShuttingDown,
}

/// A component that needs a thread of its own was called on a fiber worker (U88).
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
