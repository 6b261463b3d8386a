//! Scopes: tasks that may borrow from the stack of the worker that opens the scope.
//!
//! A scope counts its tasks, and its end waits for the last of them. Only that wait keeps the
//! borrowed values alive, so it is never refused, given up or left by a panic. If the caller's work
//! request is cancelled, the tasks are cancelled, and the wait goes on. [`run_on`] is the same for
//! one task, whose caller does nothing but wait.
//!
//! This is the one place where a borrow lasts longer than the compiler can see. Named invariant
//! **Held**: everything that a task borrows is dropped before the task decrements the count, and
//! `scope` and `run_on` return, or unwind, only after the count is 0.

#![allow(unsafe_code)] // Named invariant "Held", stated above.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::cancel::CancelToken;
use super::local;
use super::{JoinError, JoinHandle, queue};
use crate::current::{self, park, ready};
use crate::os::clock::NEVER;
use crate::os::counted::AtomicUsize;
use crate::os::lock::Lock;
use crate::os::short_lock::ShortLock;
use crate::record::reason::WaitReason;
use crate::scheduler::request::{Family, NoResult, RequestState, TaskResult};
use crate::scheduler::{Frozen, Scheduler, here};
use crate::wait::error::EnqueueError;
use crate::wait::{Outcome, Ticket, Values, What};

/// A scope in which tasks may borrow from the caller's stack; see [`scope`].
pub struct Scope<'scope, 'env: 'scope> {
    scheduler: Arc<Scheduler>,
    open: Arc<ScopeCount>,
    scope: std::marker::PhantomData<&'scope mut &'scope ()>,
    env: std::marker::PhantomData<&'env mut &'env ()>,
}

struct ScopeCount {
    running: AtomicUsize,
    panicked: AtomicUsize,
    waiter: ShortLock<Option<Ticket>>,
    /// What all tasks of the scope have in common. They become urgent when the scope waits for
    /// them: a task that is still queued then does not wait for a free worker.
    family: Arc<Family>,
    /// Cancels the tasks.
    token: CancelToken,
}

impl ScopeCount {
    fn new() -> Arc<ScopeCount> {
        Arc::new(ScopeCount {
            running: AtomicUsize::new(0),
            panicked: AtomicUsize::new(0),
            waiter: ShortLock::new(None),
            family: Arc::new(Family::new(current::limit())),
            token: CancelToken::new(),
        })
    }

    fn one_less(&self) {
        // The count changes under the lock, because `begin_to_wait` reads it under this lock:
        // either `begin_to_wait` reads 0, or this thread finds its ticket.
        let mut waiter = self.waiter.lock();
        let last = self.running.fetch_sub(1, Ordering::AcqRel) == 1;
        let ticket = if last { waiter.take() } else { None };
        let claimed = ticket.and_then(|t| t.claim(Outcome::Granted));
        drop(waiter);
        claimed.into_iter().for_each(ready);
    }

    /// Makes the tasks urgent: called before the caller waits for them.
    fn hurry(&self, home: &Scheduler) {
        let urgent = self.family.urgent.swap(true, Ordering::Relaxed);
        if !urgent && self.running.load(Ordering::Relaxed) > 0 {
            home.peers.promote_all(home);
        }
    }

    /// Returns when all tasks of the scope have ended. The tasks borrow from the caller's frame, so
    /// this wait is never refused or given up, and no panic leaves it. A cancellation of the
    /// caller's request is passed on to the tasks. So is a panic of the scope's closure: what the
    /// tasks wait for may never come then.
    fn wait(&self, home: &Scheduler, panicked: bool) {
        let frozen = Frozen;
        if panicked {
            self.token.cancel();
        }
        self.hurry(home);
        while let Some(ticket) = self.begin_to_wait(!self.token.is_cancelled()) {
            if park(ticket, NEVER) == Outcome::Cancelled {
                self.token.cancel();
            }
        }
        std::mem::forget(frozen);
    }

    /// Begins the wait; returns `None` if all tasks have ended. If `cancellable`, a cancellation of
    /// the caller's request ends the wait. The end of the caller's time never does: the tasks of a
    /// scope have the same limit.
    fn begin_to_wait(&self, cancellable: bool) -> Option<Ticket> {
        let settled = current::before_short_lock();
        let mut waiter = self.waiter.lock();
        drop(settled);
        if self.running.load(Ordering::Acquire) > 0 {
            let what = What::new(WaitReason::JOIN).unlimited();
            let what = if cancellable { what } else { what.uncancellable() };
            // In the place of the ticket of an earlier wait, which has ended.
            *waiter = Some(current::must_wait().begin(what));
        } else {
            *waiter = None;
        }
        *waiter
    }
}

/// The place where a scoped task stores its result.
struct Slot<T>(Lock<Option<TaskResult<T>>>);

/// A handle to a task of a scope.
pub struct ScopedJoinHandle<'scope, T> {
    inner: JoinHandle<()>,
    slot: Arc<Slot<T>>,
    scope: Arc<ScopeCount>,
    lives: std::marker::PhantomData<&'scope ()>,
}

// Needed to unwrap the result of a `join`, because its error may contain the handle.
impl<T> std::fmt::Debug for ScopedJoinHandle<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ScopedJoinHandle").field("request", &self.inner.request_id()).finish()
    }
}

impl<T> ScopedJoinHandle<'_, T> {
    /// Waits for the task's end and returns its result.
    ///
    /// # Errors
    /// Like [`JoinHandle::join`].
    pub fn join(mut self) -> Result<T, JoinError<Self>> {
        match self.inner.join_within(NEVER) {
            Ok(ended) => ended?,
            Err(error) => return Err(JoinError::Wait(self, error)),
        }
        let result = self.slot.0.lock().take();
        let result = result.expect("a task that ran has stored its result");
        if result.is_err() {
            // The caller gets the panic here; the scope's end need not report it again.
            self.scope.panicked.fetch_sub(1, Ordering::Relaxed);
        }
        Ok(result?)
    }

    /// Returns whether the task has ended.
    pub fn is_finished(&self) -> bool {
        self.inner.is_finished()
    }
}

/// Runs tasks that may borrow what the caller owns, like [`std::thread::scope`]: all of them have
/// ended when it returns. [`task_group`](crate::task_group) is for tasks that may fail. A task sees
/// the [request-locals](crate::task::RequestLocal) that its spawner sees.
///
/// # Cancellation
/// If the work request that opened the scope is cancelled, its tasks are: at the latest when the
/// scope's end begins to wait for them, and at once if it waits already. The end of the scope still
/// waits until they have ended. [`Scope::cancel`] cancels them earlier. So does a panic of `f`, but
/// not an error that `f` returns, nor a panic of a task; those end a
/// [`task_group`](crate::task_group).
/// The time of [`with_timeout`](crate::with_timeout) around the scope is over for the tasks, too.
///
/// ```
/// use std::time::Duration;
///
/// let node = ums::Node::builder().build()?;
/// # let (begun, begins) = std::sync::mpsc::channel();
/// let task = node.spawn(move || {
///     # begun.send(()).unwrap();
///     ums::scope(|s| {
///         s.spawn(|| ums::sleep(Duration::from_secs(600)));
///         s.spawn(|| ums::sleep(Duration::from_secs(600)));
///     })
/// })?;
/// # begins.recv()?; // a task that has not begun would never run
/// task.cancel();
/// assert!(task.join().is_ok());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Panics
/// Panics on a plain thread. Panics if a task panicked and its handle was not joined. In debug
/// builds it also panics if the caller holds a foreign lock
/// ([`sync::foreign`](crate::sync::foreign)) before or after `f` is called; in the second case, the
/// tasks have ended first.
///
/// ```
/// let node = ums::Node::builder().build()?;
/// node.run(|| {
///     let mut numbers = vec![1, 2, 3];
///     let (left, right) = numbers.split_at_mut(1);
///     ums::scope(|s| {
///         s.spawn(|| left[0] = 10);
///         s.spawn(|| right[1] = 30);
///     });
///     assert_eq!(numbers, [10, 2, 30]);
/// });
/// # Ok::<(), ums::BuildError>(())
/// ```
#[track_caller]
pub fn scope<'env, F, R>(f: F) -> R
where
    F: for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> R,
{
    let here = here().expect("a scope of tasks is opened on a worker: use Node::run");
    here.may_switch();
    let scheduler = here.arc();
    drop(here);
    let scope = Scope {
        scheduler,
        open: ScopeCount::new(),
        scope: std::marker::PhantomData,
        env: std::marker::PhantomData,
    };
    let result = catch_unwind(AssertUnwindSafe(|| f(&scope)));
    scope.open.wait(&scope.scheduler, result.is_err());
    if result.is_ok() {
        // The end of the scope has waited even if a wait is refused, because `f` has taken a
        // foreign lock. The panic of that refusal comes now, when no task borrows any more.
        let _ = current::about_to_wait();
    }
    match result {
        Err(panic) => std::panic::resume_unwind(panic),
        Ok(_) if scope.open.panicked.load(Ordering::Relaxed) > 0 => {
            panic!("a task of the scope panicked and was not joined")
        }
        Ok(result) => result,
    }
}

impl<'scope, 'env> Scope<'scope, 'env> {
    /// Cancels all tasks of the scope, and those that are started from now on. A task that has not
    /// begun never runs.
    pub fn cancel(&self) {
        self.open.token.cancel();
    }

    /// Returns whether the tasks of the scope were cancelled by [`cancel`](Scope::cancel), by its
    /// token, or by the end of the scope.
    pub fn is_cancelled(&self) -> bool {
        self.open.token.is_cancelled()
    }

    /// Returns the token that cancels the tasks of the scope.
    pub fn cancel_token(&self) -> CancelToken {
        self.open.token.clone()
    }

    /// Called before the caller waits for tasks of the scope other than by joining them. The tasks
    /// become urgent, so that such callers cannot use up all workers.
    pub(super) fn hurry(&self) {
        self.open.hurry(&self.scheduler);
    }

    /// Called before the caller starts a task that it does not wait for yet. The task is like any
    /// other until the next call of `hurry`.
    pub(super) fn take_time(&self) {
        self.open.family.urgent.store(false, Ordering::Relaxed);
    }

    /// Starts a task that may borrow for `'scope`. It is queued on the scheduler of the scope. Like
    /// a task of [`spawn`](crate::spawn()), it may be taken by another scheduler until a worker has
    /// begun it.
    ///
    /// # Panics
    /// Panics if the work queue is full or the node shuts down (use [`Scope::try_spawn`]).
    #[track_caller]
    pub fn spawn<F, T>(&'scope self, f: F) -> ScopedJoinHandle<'scope, T>
    where
        F: FnOnce() -> T + Send + 'scope,
        T: Send + 'scope,
    {
        match spawn(self, f) {
            Ok(handle) => handle,
            Err(error) => {
                panic!("the scope's task was not accepted: {error} (`try_spawn` returns this)")
            }
        }
    }

    /// Like [`Scope::spawn`], for callers that handle a full queue.
    ///
    /// # Errors
    /// [`EnqueueError`] if the work queue is full or the node shuts down; `f` is dropped.
    ///
    /// ```
    /// let node = ums::Node::builder().schedulers(1).queue_limit(1).build()?;
    /// let refused = node.run(|| {
    ///     let words = vec!["one", "two"];
    ///     ums::scope(|s| {
    ///         let one = s.try_spawn(|| words[0]).unwrap(); // queued, as this task has not waited
    ///         let two = s.try_spawn(|| words[1]);
    ///         assert_eq!(one.join().unwrap(), "one");
    ///         two.err()
    ///     })
    /// });
    /// assert_eq!(refused, Some(ums::node::EnqueueError::QueueFull(1)));
    /// # Ok::<(), ums::BuildError>(())
    /// ```
    pub fn try_spawn<F, T>(&'scope self, f: F) -> Result<ScopedJoinHandle<'scope, T>, EnqueueError>
    where
        F: FnOnce() -> T + Send + 'scope,
        T: Send + 'scope,
    {
        spawn(self, f)
    }
}

/// Runs `f` as a task of this scheduler, waits until it has ended, and returns its result. `f` may
/// borrow from the caller. Neither a cancellation of the caller nor the end of its time ends the
/// wait, and neither is passed on to the task.
///
/// # Errors
/// [`EnqueueError`] if the task was not accepted, or why it has no result.
pub(crate) fn run_on<F, T>(home: &Scheduler, f: F) -> Result<Result<T, JoinError>, EnqueueError>
where
    F: FnOnce() -> T + Send,
    T: Send,
{
    let (slot, open) = (Arc::new(Lock::new(None)), ScopeCount::new());
    let alone = Alone { f: Some(f), out: slot.clone(), _tell: Tell::one_more(&open) };
    // Nothing leaves this frame before the task is gone.
    let frozen = Frozen;
    // SAFETY: Held: the count is waited for below.
    let task = unsafe { start(home, RequestState::new(current::user(), false), || alone.run()) };
    let ended = task.map(JoinHandle::join_uncancellable);
    // The count is 0 already, unless the task never ran and its closure is just being dropped.
    while let Some(ticket) = open.begin_to_wait(false) {
        park(ticket, NEVER);
    }
    std::mem::forget(frozen);
    let stored = slot.lock().take();
    ended.map(|ended| ended.map(|()| stored.expect("a task that ran has stored its result")))
}

/// What the task of [`run_on`] owns. The fields are dropped in this order, also after a panic:
/// everything that borrows is dropped before the count is decremented.
struct Alone<F, T> {
    f: Option<F>,
    out: Arc<Lock<Option<T>>>,
    _tell: Tell,
}

impl<F: FnOnce() -> T, T> Alone<F, T> {
    fn run(mut self) {
        let f = self.f.take().expect("a task is run once");
        let value = f();
        *self.out.lock() = Some(value);
    }
}

/// Decrements the scope's count of tasks when it is dropped.
struct Tell(Arc<ScopeCount>);

impl Tell {
    fn one_more(count: &Arc<ScopeCount>) -> Tell {
        count.running.fetch_add(1, Ordering::AcqRel);
        Tell(count.clone())
    }
}

impl Drop for Tell {
    fn drop(&mut self) {
        self.0.one_less();
    }
}

/// What a scoped task owns. The fields are dropped in this order: everything that borrows for
/// `'scope` is dropped before the count is decremented.
struct Body<F, T> {
    f: F,
    /// The request-locals that the spawning code sees.
    values: Values,
    out: Arc<Slot<T>>,
    tell: Tell,
}

impl<F: FnOnce() -> T, T> Body<F, T> {
    fn run(self) {
        let Body { f, values, out, tell } = self;
        let call = AssertUnwindSafe(|| local::seeing(values, f));
        let result = catch_unwind(call).map_err(NoResult::Panicked);
        if result.is_err() {
            tell.0.panicked.fetch_add(1, Ordering::Relaxed);
        }
        *out.0.lock() = Some(result);
        drop(out);
        drop(tell);
    }
}

fn spawn<'scope, F, T>(
    scope: &'scope Scope<'scope, '_>,
    f: F,
) -> Result<ScopedJoinHandle<'scope, T>, EnqueueError>
where
    F: FnOnce() -> T + Send + 'scope,
    T: Send + 'scope,
{
    let slot = Arc::new(Slot(Lock::new(None)));
    let values = local::visible();
    let body = Body { f, values, out: slot.clone(), tell: Tell::one_more(&scope.open) };
    let mut state = RequestState::new(current::user(), false);
    state.origin = Some(scope.open.family.clone());
    // SAFETY: Held: `scope` waits for the count.
    let inner = unsafe { start(&scope.scheduler, state, move || body.run()) }?;
    let scope = scope.open.clone();
    scope.token.add(inner.cancel_handle());
    Ok(ScopedJoinHandle { inner, slot, scope, lives: std::marker::PhantomData })
}

/// Queues a task that may borrow.
///
/// # Safety
/// Held: `call` owns a [`Tell`], which it drops after everything that borrows, whether it runs or
/// not, and what it borrows lives until the caller has seen that the count is 0.
unsafe fn start<'a>(
    home: &Scheduler,
    state: RequestState,
    call: impl FnOnce() + Send + 'a,
) -> Result<JoinHandle<()>, EnqueueError> {
    let call: Box<dyn FnOnce() + Send + 'a> = Box::new(call);
    // SAFETY: Held: the closure is gone when the count is 0, so it never outlives 'a.
    let call: Box<dyn FnOnce() + Send + 'static> = unsafe { std::mem::transmute(call) };
    queue(home, state, call)
}
