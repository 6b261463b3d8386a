//! Errors: what may go wrong without a mistake of the caller, such as a timeout. A mistake of the
//! caller panics with a message, at the place of the mistake.

use std::error::Error;
use std::{fmt, io};

use crate::record::reason::WaitReason;
use crate::wait::deadlock::DeadlockId;

/// Why a wait ended without what it was for.
///
/// Converted into an [`std::io::Error`], `TimedOut` has the kind `TimedOut`, and the other two
/// `ConnectionAborted`. [`WaitError::of`] converts it back.
///
/// The text of the error of an I/O call whose time is over says what the call waited for, by the
/// name of the [`WaitReason`](crate::WaitReason): `the wait for NETWORK_READ timed out`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitError {
    /// The deadline passed first.
    TimedOut,
    /// The work request was cancelled, or its node is shutting down. Each further wait of the
    /// request fails, too: see [`sync`](crate::sync#cancellation).
    Cancelled,
    /// Several waits waited for each other, and this wait was chosen to fail so that the others can
    /// continue. [`DeadlockId::details`] returns the whole deadlock, and the text of the error
    /// describes it.
    Deadlock(DeadlockId),
}

impl fmt::Display for WaitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WaitError::TimedOut => f.write_str("the wait timed out"),
            WaitError::Cancelled => f.write_str("the work request was cancelled while it waited"),
            WaitError::Deadlock(id) => write!(f, "the wait was chosen as the victim of {id}"),
        }
    }
}

impl Error for WaitError {}

impl WaitError {
    /// Returns the wait error that this error is or contains: an error of an I/O call, or of a
    /// channel, or one of the application that has such a source. Returns `None` if no wait failed.
    ///
    /// ```
    /// use std::{io, time::Duration};
    /// use ums::WaitError;
    ///
    /// let (_tx, rx) = ums::sync::channel::bounded::<u8>(1);
    /// let receive = || -> io::Result<u8> { Ok(rx.recv_for(Duration::from_millis(1))?) };
    /// let error = receive().unwrap_err();
    /// assert_eq!(WaitError::of(&error), Some(WaitError::TimedOut));
    /// ```
    pub fn of(error: &(dyn Error + 'static)) -> Option<WaitError> {
        let mut error = error;
        loop {
            if let Some(wait) = error.downcast_ref::<WaitError>() {
                return Some(*wait);
            }
            // The error inside an `io::Error` is not its source.
            let inside = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
            error = match inside {
                Some(inside) => inside,
                None => error.source()?,
            };
        }
    }

    /// Returns this error as that of an I/O call, or of a channel, that waits for this reason.
    #[cold]
    pub(crate) fn during(self, reason: WaitReason) -> io::Error {
        match self {
            WaitError::TimedOut => io::Error::new(io::ErrorKind::TimedOut, TimedOut(reason)),
            WaitError::Cancelled | WaitError::Deadlock(_) => self.into(),
        }
    }

    /// Returns the return code of the original for this error: DEADLOCK 3, PREMATURE_WAKEUP 4,
    /// TIMEOUT 258.
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
            // The kind is not `Interrupted`, because std's `read_to_end` and similar functions
            // retry on that without end.
            WaitError::Cancelled | WaitError::Deadlock(_) => io::ErrorKind::ConnectionAborted,
        };
        io::Error::new(kind, e)
    }
}

/// The inside of an [`io::Error`] that a time limit has caused, with what was waited for. It is
/// apart from [`WaitError`], whose values programs compare. The error is its source.
#[derive(Debug)]
struct TimedOut(WaitReason);

impl fmt::Display for TimedOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the wait for {} timed out", self.0.name())
    }
}

impl Error for TimedOut {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&WaitError::TimedOut)
    }
}

/// Why a work request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EnqueueError {
    /// The work queue is at its bound. The caller should ask its client to try again later.
    QueueFull(usize),
    /// The request waited for a worker longer than `Builder::queue_timeout` allows.
    WaitedTooLong,
    /// The node accepts no more work.
    ShuttingDown,
}

impl fmt::Display for EnqueueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EnqueueError::QueueFull(waiting) => {
                write!(f, "the work queue is full ({waiting} requests are waiting for a worker)")
            }
            EnqueueError::WaitedTooLong => f.write_str("the request waited too long for a worker"),
            EnqueueError::ShuttingDown => f.write_str("the node is shutting down"),
        }
    }
}

impl Error for EnqueueError {}

/// A component that needs a thread of its own was called on a fiber worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeedsThread(pub &'static str);

impl fmt::Display for NeedsThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} needs a thread of its own: call it through go_preemptive, or use thread workers",
            self.0
        )
    }
}

impl Error for NeedsThread {}

/// Why a node could not be built.
#[derive(Debug)]
pub enum BuildError {
    /// An option has a value that makes no sense. The text names the option and the values that do.
    Option(String),
    /// The operating system refused something. The text says what the node was doing.
    Os {
        /// What the node was doing.
        what: &'static str,
        /// The system's answer.
        source: io::Error,
    },
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BuildError::Option(text) => f.write_str(text),
            BuildError::Os { what, source } => write!(f, "{what}: {source}"),
        }
    }
}

impl Error for BuildError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            BuildError::Option(_) => None,
            BuildError::Os { source, .. } => Some(source),
        }
    }
}
