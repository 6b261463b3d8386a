//! Spawned tasks: work requests without a user, with a result that can be waited for.
//!
//! A task is one allocation: the request's state, and a cell that holds first the closure, then
//! the result. Joining a task that no worker has begun promotes it in its work queue, so that
//! parents who wait for children can never use up all workers (G11).
//!
//! `task/scope.rs` has the tasks that may borrow.

mod scope;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::current::{self, park, ready};
use crate::os::clock::{self, NEVER};
use crate::record::reason::WaitReason;
use crate::record::wait_stats::Account;
use crate::scheduler::request::{
    Cancelled, Holds, Job, RequestId, RequestState, UserId, WorkRequest,
};
use crate::scheduler::{self, Scheduler, away, here};
use crate::wait::error::{EnqueueError, WaitError};
use crate::wait::{AsVictim, Outcome, Ticket, What};

pub use scope::{Scope, ScopedJoinHandle, scope};

/// Why a task has no result.
#[derive(Debug)]
pub enum TaskError {
    /// It panicked; this is what it panicked with.
    Panicked(Box<dyn Any + Send + 'static>),
    /// It was cancelled before it began, or its node shut down.
    Cancelled,
}

impl std::fmt::Display for TaskError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            TaskError::Panicked(payload) => {
                let text = payload.downcast_ref::<&str>().copied();
                let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
                write!(f, "the task panicked: {}", text.unwrap_or("(no text)"))
            }
            TaskError::Cancelled => f.write_str("the task was cancelled before it began"),
        }
    }
}

impl std::error::Error for TaskError {}

type TaskResult<T> = Result<T, TaskError>;

enum Stage<F, T> {
    Queued(F),
    Running,
    Done(TaskResult<T>),
    Taken,
}

struct Cell<F, T> {
    stage: Stage<F, T>,
    waiter: Option<Ticket>,
}

struct Task<F, T> {
    state: RequestState,
    cell: Mutex<Cell<F, T>>,
}

/// A task without its closure's type.
trait Joinable<T>: Job {
    fn take(&self) -> Option<TaskResult<T>>;
    fn wait(&self, ticket: Ticket) -> bool;
    fn forget_waiter(&self);
}

impl<F, T> Task<F, T>
where
    F: FnOnce() -> T + Send,
    T: Send,
{
    fn new(user: UserId, urgent: bool, f: F) -> Task<F, T> {
        let cell = Cell { stage: Stage::Queued(f), waiter: None };
        Task { state: RequestState::new(user, urgent), cell: Mutex::new(cell) }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Cell<F, T>> {
        self.cell.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// The result is there: whoever waits for it runs.
    fn end(&self, result: TaskResult<T>) {
        self.state.finish();
        let mut cell = self.lock();
        cell.stage = Stage::Done(result);
        let waiter = cell.waiter.take();
        drop(cell);
        waiter.and_then(|w| w.claim(Outcome::Granted)).into_iter().for_each(ready);
    }
}

impl<F, T> Job for Task<F, T>
where
    F: FnOnce() -> T + Send,
    T: Send,
{
    fn state(&self) -> &RequestState {
        &self.state
    }

    fn run(&self) {
        let stage = std::mem::replace(&mut self.lock().stage, Stage::Running);
        let Stage::Queued(f) = stage else { return };
        self.end(catch_unwind(AssertUnwindSafe(f)).map_err(TaskError::Panicked));
    }

    fn abandon(&self) {
        let stage = std::mem::replace(&mut self.lock().stage, Stage::Running);
        // The closure's destructor is the caller's code; what it does is not ours to pass on.
        scheduler::contain(|| drop(stage));
        self.end(Err(TaskError::Cancelled));
    }
}

impl<F, T> Joinable<T> for Task<F, T>
where
    F: FnOnce() -> T + Send,
    T: Send,
{
    fn take(&self) -> Option<TaskResult<T>> {
        let mut cell = self.lock();
        assert!(!matches!(cell.stage, Stage::Taken), "the task's result was taken already");
        if !matches!(cell.stage, Stage::Done(_)) {
            return None;
        }
        match std::mem::replace(&mut cell.stage, Stage::Taken) {
            Stage::Done(result) => Some(result),
            _ => None,
        }
    }

    fn wait(&self, ticket: Ticket) -> bool {
        let mut cell = self.lock();
        if matches!(cell.stage, Stage::Done(_) | Stage::Taken) {
            return false;
        }
        cell.waiter = Some(ticket);
        true
    }

    fn forget_waiter(&self) {
        self.lock().waiter = None;
    }
}

/// The right to wait for a task's result. Dropping it lets the task run on by itself.
pub struct JoinHandle<T> {
    task: Arc<dyn Joinable<T>>,
    home: Arc<Scheduler>,
}

impl<T> std::fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JoinHandle").field("request", &self.task.state().id).finish()
    }
}

impl<T> JoinHandle<T> {
    /// Waits for the task's end. Not ended early by cancellation: a result is not lost.
    ///
    /// # Errors
    /// [`TaskError`] when the task panicked or never ran.
    pub fn join(self) -> Result<T, TaskError> {
        let what = || What::new(WaitReason::JOIN).uncancellable();
        match self.join_as(what, NEVER, AsVictim::Never) {
            Ok(result) => result,
            Err(error) => {
                unreachable!("a join without deadline and deaf to cancels ended: {error}")
            }
        }
    }

    /// Waits for the task's end for at most this long. On error the handle is still good.
    ///
    /// # Errors
    /// [`WaitError`], also as a deadlock's victim; the inner result is as in [`JoinHandle::join`].
    ///
    /// # Panics
    /// When an earlier call has taken the result.
    pub fn join_for(&mut self, span: Duration) -> Result<Result<T, TaskError>, WaitError> {
        self.join_as(|| What::new(WaitReason::JOIN), clock::after(span), AsVictim::Fails)
    }

    fn join_as(
        &self,
        what: impl Fn() -> What,
        deadline: u64,
        as_victim: AsVictim,
    ) -> Result<TaskResult<T>, WaitError> {
        if let Some(result) = self.task.take() {
            return Ok(result);
        }
        let me = current::about_to_wait();
        self.promote();
        let asked = me.waiter().will_wait_for(self.task.state(), as_victim);
        let ticket = me.begin(what().on(self.task.state()));
        if self.task.wait(ticket) {
            let outcome = ticket.result(park(ticket, deadline));
            drop(asked);
            outcome.inspect_err(|_| self.task.forget_waiter())?;
        } else if !ticket.abandon() {
            // A cancellation may have claimed the wait before it was given up. The result is there
            // all the same, but its wake-up is on the way, and has to be taken.
            let _ = park(ticket, NEVER);
        }
        Ok(self.task.take().expect("a joined task has a result"))
    }

    /// A worker is about to wait for this task: let it not stand in the queue behind requests for
    /// which there may never be a worker.
    fn promote(&self) {
        let state = self.task.state();
        if (here().is_some() || away().is_some()) && state.is_queued() {
            state.make_urgent();
            self.home.peers.promote(&self.home, state);
        }
    }

    /// Whether the task has ended.
    pub fn is_finished(&self) -> bool {
        self.task.state().is_done()
    }

    /// Asks for the task's end: if no worker has begun it, it never runs; else its waits fail with
    /// [`WaitError::Cancelled`] and its checkpoints say so. It is never stopped by force.
    pub fn cancel(&self) {
        cancel(self.task.state(), &self.home);
    }

    /// A handle that can ask for the task's end while somebody else waits for it.
    ///
    /// ```
    /// let node = ums::Node::builder().schedulers(1).build()?;
    /// let task = node.spawn(|| ums::sleep(std::time::Duration::from_secs(600))).unwrap();
    /// let cancel = task.cancel_handle();
    /// std::thread::spawn(move || cancel.cancel());
    /// assert!(!matches!(task.join(), Ok(Ok(()))));
    /// # Ok::<(), ums::BuildError>(())
    /// ```
    pub fn cancel_handle(&self) -> CancelHandle
    where
        T: 'static,
    {
        CancelHandle(self.running())
    }

    /// The task without its result's type.
    pub(crate) fn running(&self) -> Running
    where
        T: 'static,
    {
        Running { request: self.task.clone(), home: self.home.clone() }
    }

    /// The number of its work request, as views show it.
    pub fn request_id(&self) -> RequestId {
        self.task.state().id
    }
}

/// The right to ask for a task's end. Dropping it changes nothing.
#[derive(Clone)]
pub struct CancelHandle(Running);

impl CancelHandle {
    /// As [`JoinHandle::cancel`]. False: the task has ended already.
    pub fn cancel(&self) -> bool {
        self.0.cancel()
    }

    /// Whether the task has ended.
    pub fn is_finished(&self) -> bool {
        self.0.is_done()
    }
}

impl std::fmt::Debug for CancelHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CancelHandle").field("request", &self.0.request.state().id).finish()
    }
}

/// A queued or running request, to be cancelled.
#[derive(Clone)]
pub(crate) struct Running {
    request: WorkRequest,
    home: Arc<Scheduler>,
}

impl Running {
    /// False: it has ended already.
    pub fn cancel(&self) -> bool {
        let alive = !self.is_done();
        cancel(self.request.state(), &self.home);
        alive
    }

    pub fn is_done(&self) -> bool {
        self.request.state().is_done()
    }
}

/// What belongs to a user and not to its home: found by number.
pub(crate) struct UserState {
    pub id: UserId,
    /// The number of its home.
    pub home: usize,
    /// What its requests came to.
    pub account: Arc<Account>,
    pub holds: Arc<Holds>,
    last: Mutex<Option<Running>>,
}

impl UserState {
    pub fn new(id: UserId, home: usize) -> UserState {
        let (account, holds, last) = (Arc::default(), Arc::default(), Mutex::new(None));
        UserState { id, home, account, holds, last }
    }

    pub fn hold(&self) {
        self.holds.hold();
    }

    /// False: it holds nothing.
    pub fn release(&self) -> bool {
        self.holds.release()
    }

    pub fn is_holding(&self) -> bool {
        self.holds.is_some()
    }

    /// Enqueues a request and, if it was taken, notes it as the last one: both under the lock, so
    /// that a cancellation finds either this one or the one before.
    fn enqueue(&self, running: Running) -> Result<(), EnqueueError> {
        let mut last = self.last.lock().unwrap_or_else(|e| e.into_inner());
        let taken = running.home.enqueue(running.request.clone());
        let before = if taken.is_ok() { last.replace(running) } else { Some(running) };
        drop(last);
        // With it its result or its closure may go, whose destructor is not ours.
        drop(before);
        taken.map_err(|(error, _)| error)
    }

    /// Cancels it. False: it has ended, or there was none.
    pub fn cancel(&self) -> bool {
        let last = self.last.lock().unwrap_or_else(|e| e.into_inner()).clone();
        last.is_some_and(|r| r.cancel())
    }

    /// The request that it enqueued last.
    pub fn last_request(&self) -> Option<RequestId> {
        let last = self.last.lock().unwrap_or_else(|e| e.into_inner());
        last.as_ref().map(|running| running.request.state().id)
    }

    pub fn is_busy(&self) -> bool {
        let last = self.last.lock().unwrap_or_else(|e| e.into_inner());
        last.as_ref().is_some_and(|r| !r.is_done())
    }
}

fn cancel(state: &RequestState, home: &Scheduler) {
    pass_on(state.cancel());
    if let Some(request) = home.queue.remove(state) {
        #[cfg(feature = "planted")]
        if crate::planted::is(crate::planted::Bug::LeakOnCancel) {
            return request.abandon();
        }
        home.load.fetch_sub(1, Ordering::Relaxed);
        request.abandon();
    }
}

/// Does what a cancellation found to do: runs the claimed waiter, asks for the end of its I/O.
pub(crate) fn pass_on(found: Cancelled) {
    found.claimed.into_iter().for_each(ready);
    if let Some((inbox, io)) = found.io {
        inbox.send(crate::scheduler::inbox::Letter::CancelIo(io));
    }
}

/// Makes a task and queues it on this scheduler.
pub(crate) fn spawn_on<F, T>(
    scheduler: &Arc<Scheduler>,
    user: UserId,
    urgent: bool,
    f: F,
) -> Result<JoinHandle<T>, EnqueueError>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    queue(scheduler.clone(), Task::new(user, urgent, f))
}

/// As [`spawn_on`], for a user, who knows of it before a worker can: another scheduler may begin
/// it before the enqueuer gets any further, and it must be possible to cancel it then.
pub(crate) fn spawn_for<F, T>(
    scheduler: &Arc<Scheduler>,
    user: &UserState,
    f: F,
) -> Result<JoinHandle<T>, EnqueueError>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    let mut task = Task::new(user.id, user.is_holding(), f);
    task.state.account = Some(user.account.clone());
    let task = Arc::new(task);
    let handle = JoinHandle { task, home: scheduler.clone() };
    user.enqueue(handle.running())?;
    Ok(handle)
}

/// As [`spawn_on`], without a user, and no other scheduler takes it.
pub(crate) fn spawn_bound<F, T>(
    scheduler: &Arc<Scheduler>,
    f: F,
) -> Result<JoinHandle<T>, EnqueueError>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    let mut task = Task::new(0, false, f);
    task.state.bound = true;
    queue(scheduler.clone(), task)
}

/// As [`spawn_bound`], for what must not be lost: a full queue takes it all the same. Err: the node
/// shuts down.
pub(crate) fn spawn_surely(
    scheduler: &Arc<Scheduler>,
    f: impl FnOnce() + Send + 'static,
) -> Result<(), EnqueueError> {
    let mut task = Task::new(0, false, f);
    task.state.bound = true;
    task.state.past_bound = true;
    queue(scheduler.clone(), task).map(drop)
}

fn queue<F, T>(home: Arc<Scheduler>, task: Task<F, T>) -> Result<JoinHandle<T>, EnqueueError>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    let task = Arc::new(task);
    home.enqueue(task.clone() as WorkRequest).map_err(|(error, _)| error)?;
    Ok(JoinHandle { task, home })
}

/// Queues a task on the scheduler that the caller runs on; an idle scheduler may take it from
/// there before it has begun (B5).
///
/// # Panics
/// On a plain thread (use [`Node::spawn`](crate::Node::spawn)), and when the work queue is full or
/// the node shuts down (use [`try_spawn`]).
///
/// ```
/// let node = ums::Node::builder().build()?;
/// let answer = node.run(|| {
///     let tasks: Vec<_> = (0..10).map(|i| ums::spawn(move || i * i)).collect();
///     tasks.into_iter().map(|t| t.join().unwrap()).sum::<i32>()
/// });
/// assert_eq!(answer, 285);
/// # Ok::<(), ums::BuildError>(())
/// ```
#[track_caller]
pub fn spawn<F, T>(f: F) -> JoinHandle<T>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    match try_spawn(f) {
        Ok(handle) => handle,
        Err(error) => panic!("the task was not taken: {error}"),
    }
}

/// As [`spawn`], for callers that handle a full queue.
///
/// # Errors
/// [`EnqueueError`].
///
/// # Panics
/// On a plain thread.
#[track_caller]
pub fn try_spawn<F, T>(f: F) -> Result<JoinHandle<T>, EnqueueError>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    let here = here().expect("spawn is called on a worker; on a plain thread use Node::spawn");
    queue(here.arc(), Task::new(current::user(), false, f))
}

#[cfg(test)]
mod tests;
