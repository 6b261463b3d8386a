//! A runtime of tokio beside the schedulers, for futures that need one.
//!
//! ```text
//!   worker --block_on(future)--> tokio's thread polls it
//!      parks                        |
//!      <------- the output ---------+
//! ```

use std::future::Future;
use std::io;
use std::panic::resume_unwind;

use tokio::runtime::{Builder, EnterGuard, Handle, Runtime};
use ums::WaitError;
use ums::future::block_on;
use ums::sync::{Foreign, foreign};

/// A runtime of tokio with a thread of its own. It runs futures that create tokio's sockets and
/// timers, such as those of reqwest and sqlx, while the worker that waits for them is parked.
///
/// The future runs on tokio's thread, so it must be `Send`, and it makes tokio's sockets and timers
/// itself: nothing of tokio's context comes to the worker. Dropping the runtime ends its futures,
/// without waiting for them.
///
/// ```
/// use std::time::Duration;
///
/// let tokio = ums_compat::Tokio::new()?;
/// let node = ums::Node::builder().schedulers(1).build()?;
/// let slept = node.run(move || {
///     tokio.block_on(async {
///         tokio::time::sleep(Duration::from_millis(1)).await; // needs tokio's runtime
///         "slept"
///     })
/// });
/// assert_eq!(slept, Ok("slept"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Tokio {
    /// `None` while it is being dropped.
    runtime: Option<Runtime>,
}

impl Tokio {
    /// Starts the runtime.
    ///
    /// # Errors
    /// The system's error, if there is no thread or descriptor for it.
    pub fn new() -> io::Result<Tokio> {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        Ok(Tokio { runtime: Some(runtime) })
    }

    /// Returns the runtime's handle, to spawn tasks that nothing waits for.
    pub fn handle(&self) -> &Handle {
        self.runtime.as_ref().expect("it is there until it is dropped").handle()
    }

    /// Enters the runtime's context, in which `tokio::spawn` and tokio's timers find the runtime.
    /// The context belongs to the thread, and so to all fibers of a scheduler: drop the guard
    /// before the worker waits or yields. In a debug build, a worker that waits or yields inside
    /// panics with the place of this call. [`Handle::enter`] has no such check.
    ///
    /// ```
    /// let tokio = ums_compat::Tokio::new()?;
    /// let node = ums::Node::builder().schedulers(1).build()?;
    /// let task = node.run(move || {
    ///     let inside = tokio.enter();
    ///     let task = tokio::spawn(async { 7 });
    ///     drop(inside);
    ///     ums::future::block_on(task)
    /// });
    /// assert_eq!(task.unwrap().unwrap(), 7);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn enter(&self) -> Foreign<EnterGuard<'_>> {
        foreign(self.handle().enter())
    }

    /// Runs a future on the runtime and waits for its output. If the wait fails, the runtime drops
    /// the future soon after, at an `await`.
    ///
    /// # Errors
    /// [`TokioError::Wait`] if the work request was cancelled or a time limit has passed;
    /// [`TokioError::Ended`] if the runtime was dropped meanwhile.
    ///
    /// # Panics
    /// Passes on a panic of the future. Panics in code that runs on a runtime of tokio, whose
    /// thread it would block, and where a guard of [`Handle::enter`] is held. On a fiber it may be
    /// that of another fiber, which must not hold it over a wait.
    pub fn block_on<F>(&self, future: F) -> Result<F::Output, TokioError>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        assert!(Handle::try_current().is_err(), "{INSIDE}");
        let task = self.handle().spawn(future);
        let aborts = AbortOnDrop(task.abort_handle());
        let ended = block_on(task).map_err(TokioError::Wait)?;
        drop(aborts);
        match ended {
            Ok(output) => Ok(output),
            Err(error) if error.is_panic() => resume_unwind(error.into_panic()),
            Err(_) => Err(TokioError::Ended),
        }
    }
}

const INSIDE: &str = "this code runs on a runtime of tokio: await the future instead. Or it is \
    inside a guard of Handle::enter, which no fiber must hold over a wait";

impl Drop for Tokio {
    fn drop(&mut self) {
        // Waiting for its thread would block the scheduler.
        self.runtime.take().into_iter().for_each(Runtime::shutdown_background);
    }
}

/// Ends a task of tokio when it is dropped, unless the task has ended.
struct AbortOnDrop(tokio::task::AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Why [`Tokio::block_on`] returned no output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokioError {
    /// The caller's wait failed.
    Wait(WaitError),
    /// The runtime was dropped.
    Ended,
}

impl std::fmt::Display for TokioError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            TokioError::Wait(error) => error.fmt(f),
            TokioError::Ended => f.write_str("tokio's runtime was dropped before the future ended"),
        }
    }
}

impl std::error::Error for TokioError {}
