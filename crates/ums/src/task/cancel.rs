//! Cancelling tasks: the handle of one task, and the token of many.
//!
//! ```text
//!   CancelToken --cancel()--> its tasks, by their CancelHandles
//!        |                    its child tokens, with their tasks
//!        +--- is_cancelled(), wait(): for code that is no task of it
//! ```
//!
//! A token lists the tasks that were added to it. A child keeps its parent; the parent only knows
//! its children. When the last clone of a child is dropped, the child's tasks move to the parent.
//!
//! * *The list is short.* `add` takes ended tasks out when the list has doubled since the last
//!   time.
//! * *No task is missed.* `cancel` sets the event first, and then takes the list. `add` first puts
//!   the task on the list, and then looks at the event. So either `cancel` finds the task, or `add`
//!   finds the event set and cancels the task itself. Both may happen, which does no harm. The same
//!   holds for child tokens.
//! * *Destructors of the application* run outside the lock, and their panics are contained. A
//!   handle may be the last reference to the result of a task.

use std::mem;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::current::ready;
use crate::os::atomic;
use crate::os::lock::Lock;
use crate::os::panics::contain;
use crate::os::threads::{operation, uninterrupted};
use crate::scheduler::Scheduler;
use crate::scheduler::request::{Cancelled, RequestId, RequestRef, RequestState};
use crate::sync::Event;
use crate::wait::error::WaitError;
use crate::wait::{Arm, Waitable};

/// A token's list of tasks is searched for ended ones when it has at least so many entries.
const FEW: usize = 16;

/// A handle that can cancel a task. Dropping it has no effect.
#[derive(Clone)]
pub struct CancelHandle {
    request: RequestRef,
    /// The serial number of the scheduler on which the task was queued.
    home: u64,
}

impl CancelHandle {
    pub(super) fn new(request: RequestRef, home: u64) -> CancelHandle {
        CancelHandle { request, home }
    }

    /// Cancels the task, like [`JoinHandle::cancel`](crate::JoinHandle::cancel). Returns false if
    /// the task has ended already.
    pub fn cancel(&self) -> bool {
        let alive = !self.is_finished();
        cancel(self.request.state(), self.home);
        alive
    }

    /// Does the first half of `cancel`, which takes few instructions: marks the task, and ends the
    /// wait that it is in. The caller then calls `after_mark`.
    pub(super) fn mark(&self) -> Cancelled {
        self.request.state().cancel()
    }

    /// Does the rest of `cancel`.
    pub(super) fn after_mark(&self, found: Cancelled) {
        after_mark(self.request.state(), self.home, found);
    }

    /// Returns whether the task has ended.
    pub fn is_finished(&self) -> bool {
        self.request.state().is_done()
    }

    /// Returns whether the task has told its user that it ends.
    pub(super) fn is_ending(&self) -> bool {
        self.request.state().is_ending()
    }

    pub(super) fn request_id(&self) -> RequestId {
        self.request.state().id
    }
}

impl std::fmt::Debug for CancelHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CancelHandle").field("request", &self.request_id()).finish()
    }
}

/// Cancels a request that was queued on the scheduler with this serial number.
pub(super) fn cancel(state: &RequestState, home: u64) {
    operation("task: cancel");
    after_mark(state, home, state.cancel());
}

/// The rest of a cancellation, which `found` this when it marked the request.
fn after_mark(state: &RequestState, home: u64, found: Cancelled) {
    pass_on(found);
    // Between the mark and the look into the queue: see `JoinHandle::remove_if_cancelled`.
    atomic::fence(Ordering::SeqCst);
    let is_dropped = state.is_queued() && !state.starts_cancelled;
    let home = if is_dropped { Scheduler::with_serial(home) } else { None };
    if let Some(request) = home.and_then(|home| home.queue.remove(state)) {
        request.abandon().into_iter().for_each(ready);
    }
}

/// Completes a cancellation: wakes the waiter whose wait it has ended, and asks for the
/// cancellation of the I/O request that it has found.
pub(crate) fn pass_on(found: Cancelled) {
    found.claimed.into_iter().for_each(ready);
    if let Some((inbox, io)) = found.io {
        inbox.send(crate::wait::Letter::CancelIo(io));
    }
}

/// Cancels any number of tasks at once, from any thread, and tells others that it has. Clones are
/// the same token. Dropping a token has no effect.
///
/// A [`scope`](fn@crate::scope) and a [`task_group`](crate::task_group) have a token of their own,
/// with their tasks. A token that was made with [`new`](CancelToken::new) has the tasks that
/// [`add`](CancelToken::add) was called for.
///
/// ```
/// use std::time::Duration;
/// use ums::task::CancelToken;
///
/// let node = ums::Node::builder().build()?;
/// let token = CancelToken::new();
/// let tasks: Vec<_> = (0..3)
///     .map(|_| {
///         let task = node.spawn(|| ums::sleep(Duration::from_secs(600))).unwrap();
///         token.add(task.cancel_handle());
///         task
///     })
///     .collect();
/// let stop = token.clone();
/// std::thread::spawn(move || stop.cancel());
/// token.wait()?;
/// assert!(tasks.into_iter().all(|task| !matches!(task.join(), Ok(Ok(())))));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct CancelToken(Arc<Shared>);

struct Shared {
    cancelled: Event,
    members: Lock<Members>,
    parent: Option<CancelToken>,
}

#[derive(Default)]
struct Members {
    tasks: Vec<CancelHandle>,
    children: Vec<Weak<Shared>>,
    /// At how many entries the list of tasks is searched next for ended ones.
    search_at: usize,
}

impl CancelToken {
    /// Makes a token without tasks.
    pub fn new() -> CancelToken {
        CancelToken::below(None)
    }

    fn below(parent: Option<CancelToken>) -> CancelToken {
        let members = Lock::new(Members::default());
        CancelToken(Arc::new(Shared { cancelled: Event::manual(false), members, parent }))
    }

    /// Makes a token that is cancelled with this one, and may be cancelled alone.
    ///
    /// ```
    /// let parent = ums::task::CancelToken::new();
    /// let (one, other) = (parent.child(), parent.child());
    /// one.cancel();
    /// assert!(!parent.is_cancelled() && !other.is_cancelled());
    /// parent.cancel();
    /// assert!(other.is_cancelled());
    /// ```
    pub fn child(&self) -> CancelToken {
        let child = CancelToken::below(Some(self.clone()));
        {
            let mut members = self.0.members.lock();
            members.children.retain(|child| child.strong_count() > 0);
            members.children.push(Arc::downgrade(&child.0));
        }
        if self.is_cancelled() {
            child.cancel();
        }
        child
    }

    /// Adds a task: it is cancelled when the token is, and at once if the token is cancelled
    /// already. Until some time after the task's end the token keeps its result, if that is not
    /// taken by a join.
    pub fn add(&self, task: CancelHandle) {
        if self.is_cancelled() {
            task.cancel();
            return drop_all([task]);
        }
        let ended = {
            let mut members = self.0.members.lock();
            let ended = if members.tasks.len() >= members.search_at.max(FEW) {
                let all = mem::take(&mut members.tasks);
                let (ended, tasks): (Vec<_>, _) = all.into_iter().partition(|t| t.is_finished());
                members.search_at = 2 * tasks.len();
                members.tasks = tasks;
                ended
            } else {
                Vec::new()
            };
            members.tasks.push(task.clone());
            ended
        };
        drop_all(ended);
        if self.is_cancelled() {
            task.cancel();
        }
        drop_all([task]);
    }

    /// Cancels the token: its tasks, its child tokens, and those that are added from now on.
    pub fn cancel(&self) {
        let mut tokens = vec![self.clone()];
        while let Some(CancelToken(token)) = tokens.pop() {
            token.cancelled.set();
            let Members { tasks, children, .. } = mem::take(&mut *token.members.lock());
            tasks.iter().for_each(|task| _ = task.cancel());
            drop_all(tasks);
            tokens.extend(children.iter().filter_map(Weak::upgrade).map(CancelToken));
        }
    }

    /// Returns whether the token was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.0.cancelled.is_set()
    }

    /// Waits until the token is cancelled.
    ///
    /// # Errors
    /// [`WaitError`] if the caller's own work request was cancelled.
    pub fn wait(&self) -> Result<(), WaitError> {
        self.0.cancelled.wait()
    }

    /// Waits until the token is cancelled, for at most this time.
    ///
    /// # Errors
    /// [`WaitError`] if the time passed or the caller's own work request was cancelled.
    pub fn wait_for(&self, time: Duration) -> Result<(), WaitError> {
        self.0.cancelled.wait_for(time)
    }
}

impl<'a> Waitable<'a> for &'a CancelToken {
    type Output = ();

    fn arm(self) -> Arm<'a, ()> {
        self.0.cancelled.arm()
    }
}

fn drop_all(tasks: impl IntoIterator<Item = CancelHandle>) {
    tasks.into_iter().for_each(|task| _ = contain(|| drop(task)));
}

impl Drop for Shared {
    fn drop(&mut self) {
        let Members { tasks, .. } = mem::take(&mut *self.members.lock());
        // There are no children: each would have kept this token.
        match &self.parent {
            Some(parent) => tasks.into_iter().for_each(|task| parent.add(task)),
            None => drop_all(tasks),
        }
    }
}

impl Default for CancelToken {
    fn default() -> CancelToken {
        CancelToken::new()
    }
}

impl std::fmt::Debug for CancelToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The caller may hold the lock of an output stream.
        let is_cancelled = uninterrupted(|| self.is_cancelled());
        f.debug_struct("CancelToken").field("is_cancelled", &is_cancelled).finish()
    }
}
