//! Futures that need no stack while they are pending: each poll is a work request.
//!
//! ```text
//!   spawn_future -> queued -> a worker polls -> ready: the result
//!                     ^                      -> pending: no worker, no stack
//!                     +------ the waker ------------+
//! ```
//!
//! The state of such a task, its waker and its cancellation are those of the crate `async-task`.
//! This file decides where it is polled, and how urgently. One worker at a time polls a task, which
//! has at most one poll in a queue.
//!
//! *No join is stranded.* A worker that awaits the task may be the last free one. So the polls of a
//! task that a worker has awaited are urgent: they get a worker beyond the limit if there is no
//! other. [`Awaited`] makes sure that none is missed. The same holds for what the task itself
//! awaits: its polls say that they keep a worker waiting, and the first awaiter wakes the task, so
//! that it polls once more what it has polled before. (A future that polls its parts only when
//! their own wakers were called, such as `FuturesUnordered`, does not do so.)

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use async_task::{Builder, FallibleTask, Runnable};

use super::{block_on, block_on_for};
use crate::current::bounds::{blocking_on, keeps_worker};
use crate::os::atomic;
use crate::os::lock::Lock;
use crate::os::panics::contain;
use crate::scheduler::request::{UserId, WorkRequest};
use crate::scheduler::{Scheduler, here, here_with_baton};
use crate::task::{JoinError, JoinHandle, make_poll};
use crate::wait::error::WaitError;

/// Whether a worker has awaited the task.
///
/// A waker queues a poll, fences, and then reads the flag; an awaiter sets the flag, fences, and
/// then looks for the poll. So the waker sees that the task is awaited, or the awaiter finds the
/// poll in its queue: one of the two makes it urgent.
struct Awaited(atomic::AtomicBool);

impl Awaited {
    fn new() -> Awaited {
        Awaited(atomic::AtomicBool::new(false))
    }

    /// Reads the flag before a poll is queued. The answer may be too old.
    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Reads the flag after a poll was queued.
    fn is_set_after_queueing(&self) -> bool {
        atomic::fence(Ordering::SeqCst);
        self.0.load(Ordering::Relaxed)
    }

    /// Sets the flag. Returns true the first time; then the caller makes the queued poll urgent.
    fn set(&self) -> bool {
        if self.0.load(Ordering::Relaxed) {
            return false;
        }
        let first = !self.0.swap(true, Ordering::Relaxed);
        atomic::fence(Ordering::SeqCst);
        first
    }
}

/// What the wakers and the awaiters of a task share.
struct Shared {
    /// The serial number of the scheduler on which the polls are queued.
    home: u64,
    user: UserId,
    awaited: Awaited,
    /// The poll that was queued last.
    poll: Lock<Option<JoinHandle<()>>>,
}

impl Shared {
    fn hurry(&self) {
        self.with_poll(|poll| poll.iter().for_each(JoinHandle::hurry));
    }

    /// Calls `f` under the lock. What it returns is dropped after that.
    fn with_poll<R>(&self, f: impl FnOnce(&mut Option<JoinHandle<()>>) -> R) -> R {
        // A worker keeps the baton while it has the lock.
        let _inside = here_with_baton();
        f(&mut self.poll.lock())
    }
}

/// Called by a waker, on any thread: queues the next poll. If the node is shutting down, the future
/// is dropped here instead.
fn schedule(runnable: Runnable<Arc<Shared>>) {
    let shared = runnable.metadata().clone();
    let Some(home) = Scheduler::with_serial(shared.home) else {
        drop(runnable);
        return;
    };
    let awaited = shared.awaited.is_set();
    let (request, handle) = make_poll(&home, shared.user, awaited, move || _ = runnable.run());
    drop(shared.with_poll(|poll| poll.replace(handle)));
    let refused = home.enqueue_poll(request, awaited).err();
    if awaited || !shared.awaited.is_set_after_queueing() {
        refused.into_iter().for_each(give_up);
        return;
    }
    match refused {
        Some(request) => {
            request.state().make_urgent();
            home.enqueue_poll(request, true).err().into_iter().for_each(give_up);
        }
        None => shared.hurry(),
    }
}

/// Drops the future of a poll that the node has refused. No waiter joins a poll.
fn give_up(refused: WorkRequest) {
    drop(refused.abandon());
}

/// A value of the application whose destructor may panic, also where no panic may pass.
struct Contained<T>(Option<T>);

impl<T> Drop for Contained<T> {
    fn drop(&mut self) {
        contain(|| drop(self.0.take()));
    }
}

/// The future of a task.
struct Polls<F> {
    future: Contained<Pin<Box<F>>>,
    shared: Arc<Shared>,
}

type Polled<T> = Result<T, Box<dyn Any + Send>>;

impl<F: Future> Future for Polls<F> {
    type Output = Contained<Polled<F::Output>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Polls { future, shared } = &mut *self;
        let future = future.0.as_mut().expect("it is there until it is dropped").as_mut();
        let poll = || catch_unwind(AssertUnwindSafe(|| future.poll(context)));
        // Read while the task counts as running: an awaiter that sets the flag later, and then
        // wakes the task, makes it poll again.
        match if shared.awaited.is_set() { blocking_on(poll) } else { poll() } {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(output)) => Poll::Ready(Contained(Some(Ok(output)))),
            Err(panic) => Poll::Ready(Contained(Some(Err(panic)))),
        }
    }
}

/// Starts a task that polls a future to its end. While the future is pending, the task has neither
/// a worker nor a stack. Each poll is a work request of the caller's scheduler; until a worker has
/// begun it, another scheduler may take it. A future that waits in plain blocking code inside
/// `poll` keeps the worker of that poll meanwhile.
///
/// A node that shuts down does not wait for pending futures. If a plain thread wakes such a future
/// meanwhile, the future is dropped, unless a worker has awaited it.
///
/// # Panics
/// Panics on a plain thread and in preemptive code.
///
/// ```
/// let node = ums::Node::builder().schedulers(1).build()?;
/// let sum = node.run(|| {
///     let (to, from) = tokio::sync::oneshot::channel();
///     let task = ums::future::spawn_future(async move { from.await.unwrap() + 2 });
///     to.send(40).unwrap();
///     task.join().unwrap()
/// });
/// assert_eq!(sum, 42);
/// # Ok::<(), ums::BuildError>(())
/// ```
#[track_caller]
pub fn spawn_future<F>(future: F) -> FutureTask<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    let here = here().expect("a future is spawned on a worker: use Node::run");
    let user = here.current_waiter().record.view.user.load(Ordering::Relaxed);
    let (awaited, poll) = (Awaited::new(), Lock::default());
    let shared = Arc::new(Shared { home: here.serial, user, awaited, poll });
    drop(here);
    let future = Contained(Some(Box::pin(future)));
    let polls = Polls { future, shared: shared.clone() };
    let (runnable, task) = Builder::new().metadata(shared.clone()).spawn(|_| polls, schedule);
    let waker = Some(runnable.waker());
    runnable.schedule();
    FutureTask { task: Some(task.fallible()), waker, shared }
}

/// A handle to a task of [`spawn_future`]. If it is dropped, the task continues without it. It is a
/// future itself, so that other futures can await it, also those of other runtimes. A waker with
/// which it is polled must not panic: that would abort the process.
pub struct FutureTask<T> {
    task: Option<FallibleTask<Contained<Polled<T>>, Arc<Shared>>>,
    /// The task's own waker, until a worker awaits the task.
    waker: Option<Waker>,
    shared: Arc<Shared>,
}

impl<T> FutureTask<T> {
    /// Waits for the future's output.
    ///
    /// # Errors
    /// [`JoinError::Panicked`] if the future panicked; [`JoinError::NeverRan`] if it was dropped
    /// before it was ready, because the node shut down; [`JoinError::Wait`] with this handle if the
    /// caller's own wait failed.
    pub fn join(mut self) -> Result<T, JoinError<FutureTask<T>>> {
        match block_on(&mut self) {
            Ok(Ok(output)) => Ok(output),
            Ok(Err(JoinError::Panicked(panic))) => Err(JoinError::Panicked(panic)),
            Ok(Err(_)) => Err(JoinError::NeverRan),
            Err(error) => Err(JoinError::Wait(self, error)),
        }
    }

    /// Waits for the future's output for at most this long. After [`JoinError::Wait`] the handle
    /// can still be used.
    ///
    /// # Errors
    /// As [`join`](FutureTask::join); [`JoinError::Wait`] also if the time passed.
    ///
    /// # Panics
    /// Panics if the output was taken before.
    pub fn join_for(&mut self, time: Duration) -> Result<T, JoinError> {
        let joined: Result<_, WaitError> = block_on_for(time, &mut *self);
        joined.map_err(|error| JoinError::Wait((), error))?
    }

    /// Drops the future, as soon as it is not being polled, and does not wait for that.
    pub fn cancel(mut self) {
        drop(self.task.take());
    }

    /// Notes that the caller awaits the task. A plain thread or another such task keeps no worker
    /// meanwhile.
    fn is_awaited(&mut self) {
        if keeps_worker() && self.shared.awaited.set() {
            self.shared.hurry();
            self.waker.take().into_iter().for_each(Waker::wake);
        }
    }

    /// Returns whether the future is ready, or was dropped.
    pub fn is_finished(&self) -> bool {
        self.task.as_ref().is_none_or(FallibleTask::is_finished)
    }
}

impl<T> Future for FutureTask<T> {
    type Output = Result<T, JoinError>;

    /// # Panics
    /// Panics if the output was taken before.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.is_awaited();
        let task = self.task.as_mut().expect("the future's output was taken already");
        let Poll::Ready(ended) = Pin::new(task).poll(context) else { return Poll::Pending };
        self.task = None;
        Poll::Ready(match ended.and_then(|mut output| output.0.take()) {
            Some(polled) => polled.map_err(JoinError::Panicked),
            None => Err(JoinError::NeverRan),
        })
    }
}

impl<T> Drop for FutureTask<T> {
    fn drop(&mut self) {
        self.task.take().into_iter().for_each(FallibleTask::detach);
    }
}

impl<T> std::fmt::Debug for FutureTask<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FutureTask").field("is_finished", &self.is_finished()).finish()
    }
}

#[cfg(all(test, loom))]
mod loom {
    //! A model of [`Awaited`]: a waker that queues a poll, and an awaiter, in all interleavings.

    use super::Awaited;
    use ::loom::sync::Arc;
    use ::loom::sync::atomic::{AtomicBool, Ordering};
    use ::loom::thread;

    #[test]
    fn loom_of_a_waker_and_an_awaiter_one_sees_the_other() {
        ::loom::model(|| {
            let both = Arc::new((Awaited::new(), AtomicBool::new(false)));
            let theirs = both.clone();
            let waker = thread::spawn(move || {
                let (awaited, queued) = &*theirs;
                queued.store(true, Ordering::Relaxed);
                awaited.is_set_after_queueing()
            });
            let (awaited, queued) = &*both;
            let found = awaited.set() && queued.load(Ordering::Relaxed);
            assert!(waker.join().unwrap() || found, "a poll that is not urgent is awaited");
        });
    }
}
