//! Task groups: tasks that may borrow and may fail, of which the first failure ends all.
//!
//! ```text
//!   spawn --> running tasks, up to a limit --> ended --> next, in the order in which they end
//!                                                |
//!                              an error, a panic: cancels the others
//! ```
//!
//! A group is a [`scope`], so it ends when all its tasks have ended. Each task that was accepted
//! sends one report of its end, through a channel: also a task that never ran, by the destructor of
//! its closure. So the group's count of running tasks is right whatever happens to them.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use super::cancel::CancelToken;
use super::scope::{Scope, scope};
use crate::current::bounds::{shield, without_limit};
use crate::current::is_cancelled;
use crate::os::lock::Lock;
use crate::os::panics::contain;
use crate::sync::channel::{Receiver, RecvError, Sender, unbounded};
use crate::wait::error::{EnqueueError, WaitError};
use crate::wait::{Arm, Source, Ticket, Waitable};

/// The first panic of a group's tasks that the group's closure has not met.
type FirstPanic = Arc<Lock<Option<Box<dyn Any + Send>>>>;

/// A group of tasks, as the closure of [`task_group`] sees it. Only this closure spawns tasks in
/// it; a task may open a group of its own.
pub struct TaskGroup<'scope, 'env: 'scope, T, E> {
    scope: &'scope Scope<'scope, 'env>,
    sender: Sender<Ended<T, E>>,
    receiver: Receiver<Ended<T, E>>,
    /// Ends that were received while `spawn` waited.
    received: RefCell<VecDeque<Ended<T, E>>>,
    panic: FirstPanic,
    /// How many tasks have not reported their end, as far as is received.
    running: Cell<usize>,
    max_running: Cell<usize>,
    /// How many of the reports to come are of tasks that were not accepted.
    refused: Cell<usize>,
    /// Why tasks never ran, if `next` has not said so.
    left_out: Cell<Option<WaitError>>,
    /// Whether the group's closure has cancelled it.
    given_up: Cell<bool>,
}

/// How a task has ended.
enum Ended<T, E> {
    With(Result<T, E>),
    /// The group has the panic.
    Panicked,
    NeverRan,
}

/// Reports the end of a task, at the latest when it is dropped.
struct Report<T, E> {
    to: Option<Sender<Ended<T, E>>>,
}

impl<T, E> Report<T, E> {
    fn send(&mut self, ended: Ended<T, E>) {
        // If the receiver is gone, the group's closure has ended and looks at no result.
        if let Some(to) = self.to.take() {
            let _ = to.send(ended);
        }
    }
}

impl<T, E> Drop for Report<T, E> {
    fn drop(&mut self) {
        self.send(Ended::NeverRan);
    }
}

/// Runs tasks that may borrow what the caller owns and may fail. All of them have ended when it
/// returns. `f` gets the group, spawns tasks in it, and takes their results as they come.
///
/// * **The first error ends the group.** A task that returns an error, or panics, cancels the other
///   tasks: their waits fail, and those that have not begun never run. So does an error or panic of
///   `f` itself.
/// * **Cancellation.** If the caller's work request is cancelled, so is the group. If tasks never
///   ran because of it, the group's result is the error [`WaitError::Cancelled`].
///   [`TaskGroup::cancel`] cancels the tasks and leaves the result to `f`.
/// * **A time limit** for the group is [`with_timeout`](crate::with_timeout) around the call. Then
///   the tasks' waits fail with [`WaitError::TimedOut`].
///
/// ```
/// use std::time::Duration;
///
/// let node = ums::Node::builder().build()?;
/// let total = node.run(|| {
///     let words = ["one", "two", "three"];
///     ums::with_timeout(Duration::from_secs(10), || {
///         ums::task_group(|group| {
///             group.max_running(2); // at most two run at the same time
///             for word in &words {
///                 group.spawn(move || Ok(word.len()));
///             }
///             let mut total = 0;
///             while let Some(len) = group.next()? {
///                 total += len;
///             }
///             Ok::<_, ums::WaitError>(total)
///         })
///     })
/// });
/// assert_eq!(total, Ok(11));
/// # Ok::<(), ums::BuildError>(())
/// ```
///
/// # Errors
/// The error of `f`. If `f` returns `Ok`, the first error of a task that `f` has not got from
/// [`TaskGroup::next`], unless `f` has called [`TaskGroup::cancel`].
///
/// # Panics
/// Passes on the first panic of a task, and a panic of `f`, after all tasks have ended. Panics on a
/// plain thread, and as [`scope`](fn@crate::scope) does.
#[track_caller]
pub fn task_group<'env, T, E, R, F>(f: F) -> Result<R, E>
where
    T: Send,
    E: Send + From<WaitError>,
    F: for<'scope> FnOnce(&TaskGroup<'scope, 'env, T, E>) -> Result<R, E>,
{
    let panic = FirstPanic::default();
    let first = panic.clone();
    let result = scope(|scope| {
        let group = TaskGroup::new(scope, first);
        let result = f(&group).and_then(|result| group.drain().map(|()| result));
        if result.is_err() {
            scope.cancel();
        }
        result
    });
    let panic = panic.lock().take();
    match panic {
        Some(panic) => resume_unwind(panic),
        None => result,
    }
}

impl<'scope, 'env, T, E> TaskGroup<'scope, 'env, T, E>
where
    T: Send,
    E: Send + From<WaitError>,
{
    fn new(scope: &'scope Scope<'scope, 'env>, panic: FirstPanic) -> Self {
        let (sender, receiver) = unbounded();
        TaskGroup {
            scope,
            sender,
            receiver,
            received: RefCell::default(),
            panic,
            running: Cell::new(0),
            max_running: Cell::new(usize::MAX),
            refused: Cell::new(0),
            left_out: Cell::new(None),
            given_up: Cell::new(false),
        }
    }

    /// Sets how many tasks of the group run at the same time at most: [`spawn`](TaskGroup::spawn)
    /// waits for room. Without this call there is no limit.
    ///
    /// # Panics
    /// Panics if `tasks` is 0.
    #[track_caller]
    pub fn max_running(&self, tasks: usize) {
        assert!(tasks > 0, "a group must be allowed to run at least one task");
        self.max_running.set(tasks);
    }

    /// Starts a task; waits first if the group is at its limit. In a group that was cancelled, or
    /// whose task has failed, `f` is dropped, and [`next`](TaskGroup::next) reports that.
    ///
    /// # Panics
    /// Panics if the work queue is full or the node shuts down (use
    /// [`try_spawn`](TaskGroup::try_spawn)).
    #[track_caller]
    pub fn spawn<F>(&self, f: F)
    where
        F: FnOnce() -> Result<T, E> + Send + 'scope,
        T: 'scope,
        E: 'scope,
    {
        if let Err(error) = self.try_spawn(f) {
            panic!("the group's task was not accepted: {error} (`try_spawn` returns this)");
        }
    }

    /// Like [`spawn`](TaskGroup::spawn), for callers that handle a full queue.
    ///
    /// # Errors
    /// [`EnqueueError`] if the work queue is full or the node shuts down; `f` is dropped.
    pub fn try_spawn<F>(&self, f: F) -> Result<(), EnqueueError>
    where
        F: FnOnce() -> Result<T, E> + Send + 'scope,
        T: 'scope,
        E: 'scope,
    {
        if is_cancelled() {
            self.scope.cancel();
        }
        while self.running.get() >= self.max_running.get() && !self.is_cancelled() {
            self.note(self.receive());
        }
        if self.is_cancelled() {
            self.left_out.set(Some(WaitError::Cancelled));
            return Ok(());
        }
        self.scope.take_time();
        let mut report = Report { to: Some(self.sender.clone()) };
        let (token, first) = (self.cancel_token(), self.panic.clone());
        let accepted = self.scope.try_spawn(move || {
            let ended = match catch_unwind(AssertUnwindSafe(f)) {
                Ok(result) => Ended::With(result),
                Err(panic) => {
                    keep_first(&first, panic);
                    Ended::Panicked
                }
            };
            let failed = !matches!(ended, Ended::With(Ok(_)));
            // Before the others report that they were cancelled.
            report.send(ended);
            if failed {
                token.cancel();
            }
        });
        self.running.set(self.running.get() + 1);
        if accepted.is_err() {
            self.refused.set(self.refused.get() + 1);
        }
        accepted.map(drop)
    }

    /// Waits for the next task that ends, and returns its result; `None` if all tasks have ended
    /// and their results were taken.
    ///
    /// If the caller's work request is cancelled, this cancels the group and returns what its tasks
    /// make of that.
    ///
    /// # Errors
    /// The error of a task. After the last result, once: [`WaitError::Cancelled`] if tasks never
    /// ran because the group was cancelled, [`WaitError::TimedOut`] if they waited too long for a
    /// worker.
    ///
    /// # Panics
    /// Passes on the panic of a task.
    pub fn next(&self) -> Result<Option<T>, E> {
        loop {
            if let Some(next) = self.next_of_ended() {
                return next;
            }
            self.note(self.receive());
        }
    }

    /// Returns the next result, if it needs no further report of a task's end.
    fn next_of_ended(&self) -> Option<Result<Option<T>, E>> {
        loop {
            let received = self.received.borrow_mut().pop_front();
            match received {
                None if self.running.get() > 0 => return None,
                None => {
                    let left_out = self.left_out.take();
                    return Some(left_out.map_or(Ok(None), |why| Err(why.into())));
                }
                Some(Ended::With(result)) => return Some(result.map(Some)),
                Some(Ended::Panicked) => {
                    let panic = self.panic.lock().take();
                    // Another panic was the first, and was passed on.
                    if let Some(panic) = panic {
                        resume_unwind(panic);
                    }
                }
                Some(Ended::NeverRan) if self.refused.get() > 0 => {
                    self.refused.set(self.refused.get() - 1);
                }
                // If the group is not cancelled, the task has waited too long for a worker.
                Some(Ended::NeverRan) if self.is_cancelled() => {
                    self.left_out.set(Some(WaitError::Cancelled));
                }
                Some(Ended::NeverRan) => self.left_out.set(Some(WaitError::TimedOut)),
            }
        }
    }

    /// Notes a report of a task's end.
    fn note(&self, ended: Ended<T, E>) {
        self.running.set(self.running.get() - 1);
        self.received.borrow_mut().push_back(ended);
    }

    /// Cancels the tasks of the group, and those that are spawned from now on. If the closure of
    /// the group then returns `Ok`, so does the group: errors of tasks that it has not taken are
    /// dropped. A cancellation by [`cancel_token`](TaskGroup::cancel_token) drops no error.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let node = ums::Node::builder().build()?;
    /// let first = node.run(|| {
    ///     ums::task_group(|group| {
    ///         for seconds in [0, 600] {
    ///             let wait = move || ums::sleep(Duration::from_secs(seconds));
    ///             group.spawn(move || wait().map(|()| seconds));
    ///         }
    ///         let first = group.next()?;
    ///         group.cancel();
    ///         Ok::<_, ums::WaitError>(first)
    ///     })
    /// });
    /// assert_eq!(first, Ok(Some(0)));
    /// # Ok::<(), ums::BuildError>(())
    /// ```
    pub fn cancel(&self) {
        self.given_up.set(true);
        self.scope.cancel();
    }

    /// Returns whether the group was cancelled, or a task of it has failed.
    pub fn is_cancelled(&self) -> bool {
        self.scope.is_cancelled()
    }

    /// Returns the token that cancels the group's tasks.
    pub fn cancel_token(&self) -> CancelToken {
        self.scope.cancel_token()
    }

    /// Waits for the report of a task's end.
    fn receive(&self) -> Ended<T, E> {
        self.scope.hurry();
        let received = self.receiver.recv().or_else(|error| match error {
            // Each wait of the tasks fails now: they are cancelled, or have the same time limit.
            RecvError::Wait(why) => {
                if why == WaitError::Cancelled {
                    self.scope.cancel();
                }
                self.receive_despite(why)
            }
            RecvError::Disconnected => Err(error),
        });
        received.expect("the group has a sender, and nothing ends a shielded wait")
    }

    /// Waits for the report of a task's end although a wait has failed for this reason. A
    /// cancellation that follows a time limit still reaches the tasks.
    fn receive_despite(&self, why: WaitError) -> Result<Ended<T, E>, RecvError> {
        if why == WaitError::Cancelled {
            return shield(|| self.receiver.recv());
        }
        let received = without_limit(|| self.receiver.recv());
        received.or_else(|error| match error {
            RecvError::Wait(why) => {
                self.scope.cancel();
                self.receive_despite(why)
            }
            RecvError::Disconnected => Err(error),
        })
    }

    /// Takes the results that the group's closure has left. Fails with the first error among them.
    fn drain(&self) -> Result<(), E> {
        while !self.given_up.get() && self.next()?.is_some() {}
        Ok(())
    }
}

/// The next result of a group, as [`TaskGroup::next`] returns it. A cancellation of the caller ends
/// the select and not yet the group.
///
/// ```
/// use std::time::Duration;
/// use ums::sync::Select;
///
/// let node = ums::Node::builder().build()?;
/// let first = node.run(|| {
///     ums::task_group(|group| {
///         group.spawn(|| ums::sleep(Duration::from_secs(600)).map(|()| "late"));
///         group.spawn(|| Ok::<_, ums::WaitError>("first"));
///         let first = Select::new()
///             .on(group, |next| next)
///             .on(Duration::from_secs(60), |()| Ok(None))
///             .wait()?;
///         group.cancel();
///         first
///     })
/// });
/// assert_eq!(first, Ok(Some("first")));
/// # Ok::<(), ums::BuildError>(())
/// ```
impl<'a, T, E> Waitable<'a> for &'a TaskGroup<'_, '_, T, E>
where
    T: Send,
    E: Send + From<WaitError>,
{
    type Output = Result<Option<T>, E>;

    fn arm(self) -> Arm<'a, Self::Output> {
        Arm::new(Next { group: self, report: self.receiver.arm() })
    }
}

/// Waits for the next result of a group.
struct Next<'a, 'scope, 'env, T, E> {
    group: &'a TaskGroup<'scope, 'env, T, E>,
    /// The arm that receives the report of a task's end.
    report: Arm<'a, Result<Ended<T, E>, RecvError>>,
}

impl<T, E> Next<'_, '_, '_, T, E>
where
    T: Send,
    E: Send + From<WaitError>,
{
    fn note(&self, report: Result<Ended<T, E>, RecvError>) {
        self.group.note(report.expect("the group has a sender"));
    }
}

impl<T, E> Source<Result<Option<T>, E>> for Next<'_, '_, '_, T, E>
where
    T: Send,
    E: Send + From<WaitError>,
{
    fn try_now(&mut self) -> Option<Result<Option<T>, E>> {
        loop {
            if let Some(next) = self.group.next_of_ended() {
                return Some(next);
            }
            let report = self.report.source_mut().try_now()?;
            self.note(report);
        }
    }

    /// It may be that no other worker is free for the tasks.
    fn about_to_wait(&self) {
        self.group.scope.hurry();
    }

    fn queue(&self, ticket: Ticket) -> bool {
        self.report.source().queue(ticket)
    }

    fn unqueue(&self, ticket: Ticket, granted: bool) {
        self.report.source().unqueue(ticket, granted);
    }

    fn granted(&mut self) -> Option<Result<Option<T>, E>> {
        let report = self.report.source_mut().granted()?;
        self.note(report);
        self.try_now()
    }
}

/// Keeps the first panic. Drops a later one outside the lock, because its destructor is the
/// application's code.
fn keep_first(first: &FirstPanic, panic: Box<dyn Any + Send>) {
    let mut kept = first.lock();
    if kept.is_none() {
        *kept = Some(panic);
        return;
    }
    drop(kept);
    contain(|| drop(panic));
}

impl<T, E> std::fmt::Debug for TaskGroup<'_, '_, T, E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TaskGroup").field("running", &self.running.get()).finish_non_exhaustive()
    }
}
