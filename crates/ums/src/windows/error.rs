//! The errors of claiming a worker, entering scheduling mode, yielding, and waiting for a list.

use std::io;

/// Why a worker cannot be executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum ExecuteError {
    /// The worker's context is locked, or it is still on a completion list. Try again later.
    #[error("the worker's context is locked; try again")]
    Locked,
    /// The worker is running already, or blocked in the kernel. If it is blocked, it will appear on
    /// its completion list.
    #[error("the worker is running, or blocked in the kernel")]
    Running,
    /// The worker is suspended. If it was not running when it was suspended, resuming it does not
    /// put it on the completion list again.
    #[error("the worker is suspended")]
    Suspended,
    /// The worker's thread has ended.
    #[error("the worker has terminated")]
    Terminated,
    /// The context has no thread, or belongs to a scheduler.
    #[error("the context is not that of a worker")]
    NotAWorker,
    /// The calling thread is not in scheduling mode.
    #[error("the calling thread is not in scheduling mode")]
    NotAScheduler,
    /// The worker's affinity excludes the processor of this scheduler.
    #[error("the worker must not run on the scheduler's processor")]
    Affinity,
}

/// Why a thread cannot enter scheduling mode.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EnterError {
    /// The thread is a worker of this model or of a [`Node`](crate::Node) (even one that has gone
    /// preemptive), or is in scheduling mode already.
    #[error(
        "the thread is a worker or in scheduling mode already: enter scheduling mode on a thread \
         of its own"
    )]
    AlreadyUms,
    /// The system offers no way to detect that a worker blocks.
    #[error("block watch cannot be started: {0}")]
    Watch(io::Error),
}

impl From<io::Error> for EnterError {
    fn from(error: io::Error) -> EnterError {
        EnterError::Watch(error)
    }
}

/// The error of a call that only a worker may make.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the calling thread is not a worker")]
pub struct NotAWorker;

/// The error of a wait for a completion list: no worker appeared within the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("nothing came on the completion list within the time")]
pub struct TimedOut;
