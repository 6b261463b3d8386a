//! Scopes: tasks that may borrow from the stack of the worker that opens the scope.
//!
//! A scope counts its tasks, and its end waits for the last of them. Only that wait keeps the
//! borrowed values alive, so it is never refused, cancelled or left by a panic.
//!
//! This is the one place where a borrow lasts longer than the compiler can see. Named invariant
//! **Held**: everything that borrows for `'scope` is dropped before the task decrements the
//! scope's count, and `scope` returns, or unwinds, only after the count is 0.

#![allow(unsafe_code)] // Named invariant "Held", stated above.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{JoinError, JoinHandle, queue};
use crate::current::{self, park, ready};
use crate::os::clock::NEVER;
use crate::os::counted::{AtomicBool, AtomicUsize};
use crate::os::lock::Lock;
use crate::os::short_lock::ShortLock;
use crate::record::reason::WaitReason;
use crate::scheduler::request::{NoResult, RequestState, TaskResult};
use crate::scheduler::{Frozen, Scheduler, here};
use crate::wait::error::EnqueueError;
use crate::wait::{Outcome, Ticket, What};

/// A scope in which tasks may borrow from the caller's stack; see [`scope`].
pub struct Scope<'scope, 'env: 'scope> {
    scheduler: Arc<Scheduler>,
    open: Arc<ScopeCount>,
    scope: std::marker::PhantomData<&'scope mut &'scope ()>,
    env: std::marker::PhantomData<&'env mut &'env ()>,
}

#[derive(Default)]
struct ScopeCount {
    running: AtomicUsize,
    panicked: AtomicUsize,
    waiter: ShortLock<Option<Ticket>>,
    /// True once the end of the scope waits for its tasks. They are urgent then: a task that is
    /// still queued does not wait for a free worker.
    urgent: Arc<AtomicBool>,
}

impl ScopeCount {
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

    /// Returns when all tasks of the scope have ended. The tasks borrow from the caller's frame, so
    /// this wait is never refused or cancelled, and no panic leaves it.
    fn wait(&self, home: &Scheduler) {
        let frozen = Frozen;
        self.urgent.store(true, Ordering::Relaxed);
        if self.running.load(Ordering::Relaxed) > 0 {
            home.peers.promote_all(home);
        }
        while let Some(ticket) = self.begin_to_wait() {
            park(ticket, NEVER);
        }
        std::mem::forget(frozen);
    }

    /// Begins the wait; returns `None` if all tasks have ended.
    fn begin_to_wait(&self) -> Option<Ticket> {
        let settled = current::before_short_lock();
        let mut waiter = self.waiter.lock();
        drop(settled);
        if self.running.load(Ordering::Acquire) > 0 {
            let what = What::new(WaitReason::JOIN).uncancellable();
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
/// ended when it returns.
///
/// # Cancellation
/// Each task of a scope is a work request of its own. Cancelling the request that opened the scope
/// does not cancel them, and the end of the scope still waits for them; only
/// [`Node::shutdown`](crate::Node::shutdown) cancels them, too. To end a scope early, end what its
/// tasks wait for: close the channel, shut the stream down, or give their waits a time limit. In
/// this example, a request whose wait is cancelled ends the read of its task:
///
/// ```
/// use std::io::Read;
/// use std::net::Shutdown;
/// use ums::net::UnixStream;
///
/// let node = ums::Node::builder().build()?;
/// let (mine, theirs) = UnixStream::pair()?;
/// # let (begun, begins) = std::sync::mpsc::channel();
/// let task = node.spawn(move || {
///     # begun.send(()).unwrap();
///     ums::scope(|s| {
///         let read = s.spawn(|| (&mine).read(&mut [0; 16])); // nothing arrives
///         if let Err(ums::task::JoinError::Wait(read, _)) = read.join() {
///             mine.shutdown(Shutdown::Both).unwrap();
///             drop(read); // the scope waits for it
///         }
///     })
/// })?;
/// # begins.recv()?; // a task that has not begun would never run
/// task.cancel();
/// assert!(task.join().is_ok());
/// # drop(theirs);
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
        open: Arc::default(),
        scope: std::marker::PhantomData,
        env: std::marker::PhantomData,
    };
    let result = catch_unwind(AssertUnwindSafe(|| f(&scope)));
    scope.open.wait(&scope.scheduler);
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
            Err(error) => panic!("the scope's task was not accepted: {error}"),
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

/// Decrements the scope's count of tasks when it is dropped.
struct Tell(Arc<ScopeCount>);

impl Drop for Tell {
    fn drop(&mut self) {
        self.0.one_less();
    }
}

/// What a scoped task owns. The fields are dropped in this order: everything that borrows for
/// `'scope` is dropped before the count is decremented.
struct Body<F, T> {
    f: F,
    out: Arc<Slot<T>>,
    tell: Tell,
}

impl<F: FnOnce() -> T, T> Body<F, T> {
    fn run(self) {
        let Body { f, out, tell } = self;
        let result = catch_unwind(AssertUnwindSafe(f)).map_err(NoResult::Panicked);
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
    scope.open.running.fetch_add(1, Ordering::AcqRel);
    let body = Body { f, out: slot.clone(), tell: Tell(scope.open.clone()) };
    let call: Box<dyn FnOnce() + Send + 'scope> = Box::new(move || body.run());
    // SAFETY: Held: the closure is gone before the count is decremented, whether it runs or is
    // dropped without running. `scope` returns only after that, so the closure never outlives
    // 'scope.
    let call: Box<dyn FnOnce() + Send + 'static> = unsafe { std::mem::transmute(call) };
    let mut state = RequestState::new(current::user(), false);
    state.with_scope = Some(scope.open.urgent.clone());
    let inner = queue(&scope.scheduler, state, call)?;
    let scope = scope.open.clone();
    Ok(ScopedJoinHandle { inner, slot, scope, lives: std::marker::PhantomData })
}
