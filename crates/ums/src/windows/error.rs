//! The errors of claiming a worker, entering scheduling mode, yielding, and waiting for a list.

use std::error::Error;
use std::{fmt, io};

/// Why a worker cannot be executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ExecuteError {
    /// The worker's context is locked, or it is still on a completion list. Try again later.
    Locked,
    /// The worker is running already, or blocked in the kernel. If it is blocked, it will appear on
    /// its completion list.
    Running,
    /// The worker is suspended. If it was not running when it was suspended, resuming it does not
    /// put it on the completion list again.
    Suspended,
    /// The worker's thread has ended.
    Terminated,
    /// The context has no thread, or belongs to a scheduler.
    NotAWorker,
    /// The calling thread is not in scheduling mode.
    NotAScheduler,
    /// The worker's affinity excludes the processor of this scheduler.
    Affinity,
}

impl fmt::Display for ExecuteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ExecuteError::Locked => "the worker's context is locked; try again",
            ExecuteError::Running => "the worker is running, or blocked in the kernel",
            ExecuteError::Suspended => "the worker is suspended",
            ExecuteError::Terminated => "the worker has terminated",
            ExecuteError::NotAWorker => "the context is not that of a worker",
            ExecuteError::NotAScheduler => "the calling thread is not in scheduling mode",
            ExecuteError::Affinity => "the worker must not run on the scheduler's processor",
        })
    }
}

impl Error for ExecuteError {}

/// Why a thread cannot enter scheduling mode.
#[derive(Debug)]
#[non_exhaustive]
pub enum EnterError {
    /// The thread is a worker of this model or of a [`Node`](crate::Node) (even one that has gone
    /// preemptive), or is in scheduling mode already.
    AlreadyUms,
    /// The system offers no way to detect that a worker blocks.
    Watch(io::Error),
}

impl fmt::Display for EnterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EnterError::AlreadyUms => f.write_str(
                "the thread is a worker or in scheduling mode already: enter scheduling mode on a \
                 thread of its own",
            ),
            EnterError::Watch(error) => write!(f, "block watch cannot be started: {error}"),
        }
    }
}

impl Error for EnterError {}

impl From<io::Error> for EnterError {
    fn from(error: io::Error) -> EnterError {
        EnterError::Watch(error)
    }
}

/// The error of a call that only a worker may make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAWorker;

impl fmt::Display for NotAWorker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the calling thread is not a worker")
    }
}

impl Error for NotAWorker {}

/// The error of a wait for a completion list: no worker appeared within the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimedOut;

impl fmt::Display for TimedOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("nothing came on the completion list within the time")
    }
}

impl Error for TimedOut {}
