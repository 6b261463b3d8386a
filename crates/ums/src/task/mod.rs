//! Tasks: spawned closures that run on workers, with a result that can be waited for.
//!
//! Each task, spawned or scoped, is a work request of its own: it waits for a worker, keeps that
//! worker until it has ended, and can be cancelled.
//!
//! * [`spawn`] starts a task that may outlive its parent. Its handle waits for it and cancels it.
//! * [`scope`](fn@scope) and [`task_group`] start tasks that end before the call returns, may
//!   borrow from the caller, and are cancelled with it.
//! * [`request_local!`] declares a value that the code of a task finds without being passed it;
//!   [`with_locals`] passes it on to a spawned task.
//!
//! Joining a task that has not begun moves the task ahead of other queued requests. If no worker is
//! free for it, it gets one beyond the limit. So parents that wait for children cannot use up all
//! workers. Only a join, the end of a scope, and a group's wait for its tasks have this effect. A
//! parent that first waits for something else, such as input, keeps its worker, while a child that
//! has not begun may have to wait for one: see
//! [`Builder::max_workers`](crate::Builder::max_workers).

// A task is one block of memory (scheduler/request): the request's state, its closure, and later
// its result. Tasks that may borrow are in `scope.rs`.

mod cancel;
mod group;
mod interval;
mod local;
mod scope;
mod user_state;

use std::any::Any;
use std::cell::RefCell;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::current::bounds::keeps_worker;
use crate::current::{self, park};
use crate::os::atomic;
use crate::os::clock::{self, NEVER};
use crate::os::panics::text_of;
use crate::os::threads::operation;
use crate::record::reason::WaitReason;
use crate::scheduler::request::{
    NoResult, RequestId, RequestState, ResultOf, TaskResult, UserId, WorkRequest, make, make_by,
};
use crate::scheduler::{Here, Scheduler, away, here};
use crate::wait::error::{EnqueueError, WaitError};
use crate::wait::{Arm, AsVictim, Source, Ticket, Waitable, What};

pub(crate) use cancel::pass_on;
pub use cancel::{CancelHandle, CancelToken};
pub use group::{TaskGroup, task_group};
pub use interval::Interval;
#[doc(inline)]
pub use local::request_local;
pub use local::{Locals, RequestLocal, with_locals};
pub(crate) use scope::run_on;
pub use scope::{Scope, ScopedJoinHandle, scope};
pub(crate) use user_state::UserState;

/// Why a join returned no result. `H` is the handle, which a join that consumed it gives back.
///
/// ```
/// use ums::task::JoinError;
/// fn join_or_cancel<T>(task: ums::JoinHandle<T>) -> Option<T> {
///     match task.join() {
///         Ok(value) => Some(value),
///         Err(JoinError::Panicked(panic)) => std::panic::resume_unwind(panic),
///         Err(JoinError::NeverRan) => None,
///         // The caller was cancelled, not the task, which still runs.
///         Err(JoinError::Wait(task, _)) => {
///             task.cancel();
///             None
///         }
///     }
/// }
/// ```
pub enum JoinError<H = ()> {
    /// The task panicked; contains the panic's payload.
    Panicked(Box<dyn Any + Send + 'static>),
    /// The task never ran: it was cancelled before it began, it waited too long for a worker, or
    /// its node shut down.
    NeverRan,
    /// The caller's wait ended before the task did; contains the handle.
    Wait(H, WaitError),
}

impl<H> std::fmt::Display for JoinError<H> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            JoinError::Panicked(payload) => {
                write!(f, "the task panicked: {}", text_of(&**payload).unwrap_or("(no text)"))
            }
            JoinError::NeverRan => {
                f.write_str("the task never ran: it was cancelled, or given up, before it began")
            }
            JoinError::Wait(_, error) => write!(f, "the task has not ended yet: {error}"),
        }
    }
}

/// Shows the text of the panic.
impl<H> std::fmt::Debug for JoinError<H> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            JoinError::Panicked(payload) => {
                let text = text_of(&**payload).unwrap_or("(no text)");
                f.debug_tuple("Panicked").field(&text).finish()
            }
            JoinError::NeverRan => f.write_str("NeverRan"),
            JoinError::Wait(_, error) => f.debug_tuple("Wait").field(error).finish(),
        }
    }
}

impl<H> std::error::Error for JoinError<H> {}

impl<H> From<NoResult> for JoinError<H> {
    fn from(why: NoResult) -> JoinError<H> {
        match why {
            NoResult::Panicked(payload) => JoinError::Panicked(payload),
            NoResult::NeverRan => JoinError::NeverRan,
        }
    }
}

/// A handle to wait for a task's result. If it is dropped, the task continues without it.
///
/// ```
/// use std::time::Duration;
/// use ums::task::JoinError;
/// let node = ums::Node::builder().schedulers(1).build()?;
/// let mut slow = node.spawn(|| ums::sleep(Duration::from_secs(3600)))?;
/// let early = slow.join_for(Duration::from_millis(1));
/// assert!(matches!(early, Err(JoinError::Wait((), ums::WaitError::TimedOut))));
/// slow.cancel();
/// assert!(slow.join().map_or(true, |slept| slept == Err(ums::WaitError::Cancelled)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct JoinHandle<T> {
    result: ResultOf<T>,
    /// The serial number of the scheduler on which it was queued.
    home: u64,
}

impl<T> std::fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JoinHandle").field("request", &self.result.state().id).finish()
    }
}

impl<T> JoinHandle<T> {
    /// Waits for the task's end and returns its result.
    ///
    /// # Errors
    /// [`JoinError`] if the task panicked or never ran. [`JoinError::Wait`] with this handle if the
    /// caller's own work request was cancelled, or this wait was chosen to break a deadlock; the
    /// task continues then.
    #[inline]
    pub fn join(mut self) -> Result<T, JoinError<JoinHandle<T>>> {
        operation("task: join");
        match self.result.take() {
            Some(result) => Ok(result?),
            None => self.join_slowly(),
        }
    }

    #[inline(never)]
    fn join_slowly(mut self) -> Result<T, JoinError<JoinHandle<T>>> {
        match self.join_unended(|| What::new(WaitReason::JOIN), NEVER, AsVictim::Fails) {
            Ok(ended) => Ok(ended?),
            Err(error) => Err(JoinError::Wait(self, error)),
        }
    }

    /// Waits for the task's end for at most this long. After [`JoinError::Wait`] the handle can
    /// still be used.
    ///
    /// # Errors
    /// [`JoinError`] if the task panicked or never ran. [`JoinError::Wait`] if the time passed, the
    /// caller's own work request was cancelled, or this wait was chosen to break a deadlock.
    ///
    /// # Panics
    /// Panics if an earlier call has taken the result.
    pub fn join_for(&mut self, span: Duration) -> Result<T, JoinError> {
        match self.join_within(clock::after(span)) {
            Ok(ended) => Ok(ended?),
            Err(error) => Err(JoinError::Wait((), error)),
        }
    }

    fn join_within(&mut self, deadline: u64) -> Result<TaskResult<T>, WaitError> {
        self.join_as(|| What::new(WaitReason::JOIN), deadline, AsVictim::Fails)
    }

    /// Waits for the task's end even if the caller's own work request is cancelled: for a caller
    /// that cancels its tasks after it was cancelled itself, and must not return before they have
    /// ended. The monitor never ends this wait to break a deadlock.
    ///
    /// # Errors
    /// [`JoinError`] if the task panicked or never ran; never [`JoinError::Wait`].
    pub fn join_uncancellable(mut self) -> Result<T, JoinError> {
        let what = || What::new(WaitReason::JOIN).uncancellable();
        match self.join_as(what, NEVER, AsVictim::Never) {
            Ok(ended) => Ok(ended?),
            Err(error) => {
                unreachable!("a join without deadline and cancellation ended: {error}")
            }
        }
    }

    fn join_as(
        &mut self,
        what: impl Fn() -> What,
        deadline: u64,
        as_victim: AsVictim,
    ) -> Result<TaskResult<T>, WaitError> {
        operation("task: join");
        match self.result.take() {
            Some(result) => Ok(result),
            None => self.join_unended(what, deadline, as_victim),
        }
    }

    /// Waits for a task that has not ended yet, as far as the caller has seen.
    fn join_unended(
        &mut self,
        what: impl Fn() -> What,
        deadline: u64,
        as_victim: AsVictim,
    ) -> Result<TaskResult<T>, WaitError> {
        self.result.withdraw_waker();
        let me = current::about_to_wait();
        let taken = self.promote(me.here());
        let join = self.result.begin_to_join();
        me.waiter().in_wait_for(&join.seen(), as_victim, || {
            // A task that was taken must stay with this worker's scheduler: the worker keeps the
            // baton until it has parked, and from the end of the wait until it has forgotten it.
            let (ticket, here) = me.begin_here(what().on(join.state()));
            if join.wait(ticket, taken) {
                let outcome = match &here {
                    Some(here) => here.park(ticket, deadline),
                    None => ticket.park_thread(deadline),
                };
                let ended = ticket.result(outcome);
                if ended.is_err() {
                    join.forget();
                    here.iter().for_each(|here| here.await_no_more());
                }
                return ended;
            }
            drop(here);
            if !ticket.abandon() {
                // The task has ended, but a cancellation claimed the wait before it could be
                // abandoned. That claim's wake-up is still to come, and must be consumed here.
                let _ = park(ticket, NEVER);
            }
            Ok(())
        })?;
        Ok(self.result.take().expect("a joined task has a result"))
    }

    /// Called when a worker is about to wait for this task. Moves the task ahead of other queued
    /// requests, because these might get all free workers and then wait, too. Returns true if the
    /// task was taken from its queue, to be started by the worker's own scheduler.
    fn promote(&self, here: Option<&Here>) -> bool {
        let state = self.result.state();
        if !state.is_queued() {
            return false;
        }
        match here {
            Some(here) => {
                state.make_urgent();
                // Usually it waits in the caller's own queue; and the caller is awake.
                let taken = here.will_await(state);
                if !taken && !here.queue.promote(state) {
                    self.promote_elsewhere();
                }
                return taken;
            }
            None if away().is_some() => {
                state.make_urgent();
                self.promote_elsewhere();
            }
            None => {}
        }
        false
    }

    /// Called by the thread that has queued the task. A canceller may have found the task before,
    /// and then not in its queue. One of the two removes it: `cancel` marks the task and then looks
    /// into the queue, this looks at the mark after the task is in the queue, and both fence in
    /// between.
    fn remove_if_cancelled(&self) {
        atomic::fence(Ordering::SeqCst);
        if self.result.state().is_cancelled() {
            self.cancel();
        }
    }

    /// Makes the task urgent, if no worker has begun it: for a caller that is about to wait for it
    /// other than by a join.
    #[doc(hidden)] // For the crates beside this one.
    pub fn hurry(&self) {
        if self.result.state().is_queued() {
            self.result.state().make_urgent();
            self.promote_elsewhere();
        }
    }

    #[cold]
    fn promote_elsewhere(&self) {
        if let Some(home) = Scheduler::with_serial(self.home) {
            home.peers.promote(&home, self.result.state());
        }
    }

    /// Returns whether the task has ended.
    pub fn is_finished(&self) -> bool {
        operation("task: is_finished");
        self.result.state().is_done()
    }

    /// Asks the task to end. If no worker has begun it, it never runs; otherwise its waits and
    /// checkpoints fail with [`WaitError::Cancelled`]. A task is never stopped by force. The tasks
    /// of its [`scope`](fn@scope)s and [`task_group`]s are cancelled with it; those that it has
    /// started with [`spawn`] are not.
    pub fn cancel(&self) {
        cancel::cancel(self.result.state(), self.home);
    }

    /// Returns a handle that can cancel the task while the join handle is used elsewhere.
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
        CancelHandle::new(self.result.request(), self.home)
    }

    /// Returns the number of the task's work request, as views show it.
    pub fn request_id(&self) -> RequestId {
        self.result.state().id
    }
}

/// A join handle is a future, too, which is ready when the task has ended. So code of another
/// runtime can await a task.
///
/// ```
/// let node = ums::Node::builder().schedulers(1).build()?;
/// let task = node.spawn(|| 42)?;
/// let runtime = tokio::runtime::Builder::new_current_thread().build()?;
/// assert_eq!(runtime.block_on(task).unwrap(), 42);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
impl<T> Future for JoinHandle<T> {
    type Output = Result<T, JoinError>;

    /// # Panics
    /// Panics if the result was taken before.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if keeps_worker() {
            self.hurry();
        }
        self.result.poll(context).map(|ended| Ok(ended?))
    }
}

impl<'a, T> Waitable<'a> for &'a mut JoinHandle<T> {
    type Output = Result<T, JoinError>;

    /// # Panics
    /// The select panics if the result was taken before.
    fn arm(self) -> Arm<'a, Self::Output> {
        self.result.withdraw_waker();
        Arm::new(Joining(RefCell::new(self)))
    }
}

/// Waits for the end of a task.
struct Joining<'a, T>(RefCell<&'a mut JoinHandle<T>>);

impl<T> Source<Result<T, JoinError>> for Joining<'_, T> {
    fn try_now(&mut self) -> Option<Result<T, JoinError>> {
        let ended = self.0.get_mut().result.take()?;
        Some(ended.map_err(JoinError::from))
    }

    /// It may be that no other worker is free for the task.
    fn about_to_wait(&self) {
        if here().is_some() || away().is_some() {
            self.0.borrow().hurry();
        }
    }

    fn queue(&self, ticket: Ticket) -> bool {
        self.0.borrow_mut().result.begin_to_join().wait(ticket, false)
    }

    fn unqueue(&self, _: Ticket, granted: bool) {
        if !granted {
            self.0.borrow_mut().result.begin_to_join().forget();
        }
    }

    fn granted(&mut self) -> Option<Result<T, JoinError>> {
        self.try_now()
    }
}

/// Creates a task and queues it on this scheduler.
pub(crate) fn spawn_on<F, T>(
    scheduler: &Scheduler,
    user: UserId,
    f: F,
) -> Result<JoinHandle<T>, EnqueueError>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    queue(scheduler, RequestState::new(user, false), f)
}

/// Like [`spawn_on`], for a user, whose last request the task becomes.
pub(crate) fn spawn_for<F, T>(
    scheduler: &Scheduler,
    user: &Arc<UserState>,
    starts_cancelled: bool,
    f: F,
) -> Result<JoinHandle<T>, EnqueueError>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    let mut state = RequestState::new(user.id, user.holds.is_some());
    state.origin = Some(user.clone());
    state.starts_cancelled = starts_cancelled;
    let (request, result) = make(state, f);
    let handle = JoinHandle { result, home: scheduler.serial };
    let before = user.note_last(handle.cancel_handle());
    scheduler.enqueue(request).map_err(|(error, _)| {
        user.note_refused(handle.result.state(), before);
        error
    })?;
    if !starts_cancelled {
        handle.remove_if_cancelled();
    }
    Ok(handle)
}

/// Like [`spawn_on`], without a user; no other scheduler may take the task.
pub(crate) fn spawn_bound<F, T>(scheduler: &Scheduler, f: F) -> Result<JoinHandle<T>, EnqueueError>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    let mut state = RequestState::new(0, false);
    state.bound = true;
    queue(scheduler, state, f)
}

/// Like [`spawn_bound`], but a full queue accepts the task, too. For tasks that must not be lost.
/// Fails only if the node shuts down.
pub(crate) fn spawn_even_if_full(
    scheduler: &Scheduler,
    f: impl FnOnce() + Send + 'static,
) -> Result<(), EnqueueError> {
    let mut state = RequestState::new(0, false);
    state.bound = true;
    state.past_bound = true;
    queue(scheduler, state, f).map(drop)
}

fn queue<F, T>(home: &Scheduler, state: RequestState, f: F) -> Result<JoinHandle<T>, EnqueueError>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    let (request, result) = make(state, f);
    home.enqueue(request).map_err(|(error, _)| error)?;
    Ok(JoinHandle { result, home: home.serial })
}

/// Makes a poll of a future, which the caller queues with [`Scheduler::enqueue_poll`]. A full queue
/// accepts it, too.
pub(crate) fn make_poll(
    home: &Scheduler,
    user: UserId,
    urgent: bool,
    poll: impl FnOnce() + Send + 'static,
) -> (WorkRequest, JoinHandle<()>) {
    let mut state = RequestState::new(user, urgent);
    state.past_bound = true;
    let (request, result) = make(state, poll);
    (request, JoinHandle { result, home: home.serial })
}

/// Starts a task: queues it on the scheduler that the caller runs on. Until a worker has begun the
/// task, an idle scheduler may take it, unless the node's [`Placement`](crate::node::Placement) is
/// `Classic` or `AlwaysPreferred`. So one task that starts many, such as an accept loop, occupies
/// all schedulers. A task that has begun stays on its scheduler. `f` must be `Send + 'static`; for
/// tasks that borrow, use [`scope`].
///
/// # Panics
/// Panics on a plain thread (use [`Node::spawn`](crate::Node::spawn)), and if the work queue is
/// full or the node shuts down (use [`try_spawn`]).
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
        Err(error) => panic!("the task was not accepted: {error} (`try_spawn` returns this)"),
    }
}

/// Like [`spawn`], for callers that handle a full queue.
///
/// # Errors
/// [`EnqueueError`] if the work queue is full or the node shuts down.
///
/// # Panics
/// Panics on a plain thread.
#[track_caller]
pub fn try_spawn<F, T>(f: F) -> Result<JoinHandle<T>, EnqueueError>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    let here = here().expect("spawn is called on a worker; on a plain thread use Node::spawn");
    let me = here.current_waiter();
    let user = me.record.view.user.load(Ordering::Relaxed);
    let (request, result) = make_by(Some(here.inside()), || RequestState::new(user, false), f);
    if let Err(request) = here.enqueue_new(request, me.worker.load(Ordering::Relaxed)) {
        here.enqueue_here(&here, request).map_err(|(error, _)| error)?;
    }
    Ok(JoinHandle { result, home: here.serial })
}

#[cfg(test)]
mod tests;
