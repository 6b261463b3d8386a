//! Task groups: tasks that end together, and of which the first failure cancels the others.
//!
//! A group has the handles of its tasks, of which it forgets those that have ended when their
//! number has doubled. It cannot be freed before all of them have ended, so a task may use what
//! the code that frees the group owns.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ums::lock::Lock;
use ums::task::{CancelToken, JoinError};
use ums::{JoinHandle, Node, WaitError};

use super::fault::{Fault, guard};
use super::node::{is_forever, ums_node};
use super::object::{self, Handle, discard, give, objects};
use super::options::span;
use crate::caller::{Argument, Out};

/// The list of tasks is searched for ended ones when it has at least so many.
const FEW: usize = 16;

/// A function that a task of a group runs. A negative result is a failure. It must return, as an
/// ums_function must.
pub type ums_group_function = Option<extern "C-unwind" fn(arg: Argument) -> c_int>;

/// Tasks that end together.
pub struct ums_group {
    _opaque: [u8; 0],
}

objects! {
    ums_group = b"ums grup": Group;
}

ums::task::request_local! {
    /// The number of the group that the calling task belongs to.
    static MEMBER_OF: u64;
}

/// The object behind a group pointer.
pub struct Group {
    node: Node,
    number: u64,
    token: CancelToken,
    /// The first failure; 0 if there was none.
    failure: Arc<AtomicI32>,
    tasks: Lock<Members>,
    is_waited_for: AtomicBool,
}

#[derive(Default)]
struct Members {
    all: VecDeque<JoinHandle<()>>,
    /// At how many tasks the list is searched next for ended ones.
    search_at: usize,
}

/// Says that a caller waits for the group, until this is dropped.
struct Waiting<'a>(&'a AtomicBool);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Group {
    fn new(node: Node) -> Group {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Group {
            node,
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            token: CancelToken::new(),
            failure: Arc::default(),
            tasks: Lock::default(),
            is_waited_for: AtomicBool::new(false),
        }
    }

    fn spawn(&self, run: impl FnOnce() -> c_int + Send + 'static) -> Result<(), Fault> {
        if self.token.is_cancelled() {
            let text = "the group was cancelled, or one of its tasks has failed";
            return Err(Fault::new(libc::ECANCELED, text));
        }
        let (token, failure, number) = (self.token.clone(), self.failure.clone(), self.number);
        let task = self.node.spawn(move || {
            let result = MEMBER_OF.scope(number, run);
            if result < 0 {
                note(&failure, result);
                token.cancel();
            }
        })?;
        self.token.add(task.cancel_handle());
        let ended = {
            let mut tasks = self.tasks.lock();
            let ended = tasks.take_ended();
            tasks.all.push_back(task);
            ended
        };
        ended.into_iter().for_each(|mut task| self.end(task.join_for(Duration::ZERO)));
        Ok(())
    }

    /// Notes how a task has ended that did not say it itself.
    fn end(&self, joined: Result<(), JoinError>) {
        match joined {
            Err(JoinError::NeverRan) if self.token.is_cancelled() => {
                note(&self.failure, -libc::ECANCELED);
            }
            Err(JoinError::NeverRan) => note(&self.failure, -libc::ENODATA),
            Err(JoinError::Panicked(_)) => note(&self.failure, -libc::ENOTRECOVERABLE),
            Ok(()) | Err(JoinError::Wait(..)) => {}
        }
    }

    /// Waits until all tasks have ended.
    fn wait(&self, timeout_ns: u64) -> Result<(), Fault> {
        if MEMBER_OF.get() == Some(self.number) {
            return Err(Fault::new(libc::EDEADLK, "a task of the group would wait for itself"));
        }
        ums::worker::assert_may_wait();
        if self.is_waited_for.swap(true, Ordering::Acquire) {
            return Err(Fault::new(libc::EBUSY, "another caller waits for this group already"));
        }
        let _waiting = Waiting(&self.is_waited_for);
        let end = Instant::now().checked_add(span(timeout_ns));
        while let Some(mut task) = self.first() {
            let until = |end: Instant| end.saturating_duration_since(Instant::now());
            let mut joined = task.join_for(end.map_or(Duration::MAX, until));
            if matches!(joined, Err(JoinError::Wait((), WaitError::Cancelled))) {
                self.token.cancel();
                // Only this wait keeps alive what the tasks use.
                if is_forever(timeout_ns) {
                    joined = ums::shield(|| task.join_for(Duration::MAX));
                }
            }
            if let Err(JoinError::Wait((), error)) = joined {
                self.tasks.lock().all.push_front(task);
                return Err(error.into());
            }
            self.end(joined);
        }
        Ok(())
    }

    fn first(&self) -> Option<JoinHandle<()>> {
        self.tasks.lock().all.pop_front()
    }

    fn has_ended(&self) -> bool {
        self.tasks.lock().all.iter().all(JoinHandle::is_finished)
    }
}

impl Members {
    /// Takes the tasks that have ended from the list, if it has become long.
    fn take_ended(&mut self) -> Vec<JoinHandle<()>> {
        if self.all.len() < self.search_at.max(FEW) {
            return Vec::new();
        }
        let all = std::mem::take(&mut self.all).into_iter();
        let (ended, rest): (Vec<_>, Vec<_>) = all.partition(JoinHandle::is_finished);
        self.search_at = 2 * rest.len();
        self.all = rest.into();
        ended
    }
}

/// Keeps a failure, if it is the first.
fn note(failure: &AtomicI32, code: c_int) {
    let _ = failure.compare_exchange(0, code, Ordering::Relaxed, Ordering::Relaxed);
}

/// Creates a group without tasks, whose tasks will run on this node. NULL: the node of the calling
/// worker; on a plain thread: -EPERM.
#[unsafe(no_mangle)]
pub extern "C" fn ums_group_new(
    node: Handle<ums_node>,
    group: Out<'_, Handle<ums_group>>,
) -> c_int {
    guard(|| {
        let node = if node.is_null() {
            let text = "the caller is on no node: pass the node of the group";
            Node::current().ok_or_else(|| Fault::new(libc::EPERM, text))?
        } else {
            object::get(node)?.node.clone()
        };
        give(group, Group::new(node))
    })
}

/// Frees a group. NULL is allowed. -EBUSY: a task of it has not ended; see ums_group_wait.
#[unsafe(no_mangle)]
pub extern "C" fn ums_group_free(group: Handle<ums_group>) -> c_int {
    discard(group, Group::has_ended)
}

/// Queues a task of the group. If the function returns a negative number, the group's other tasks
/// are cancelled. -ECANCELED: the group was cancelled, or a task of it has failed. -EAGAIN: the
/// work queue is full. -ESHUTDOWN: the node accepts no more work.
#[unsafe(no_mangle)]
pub extern "C" fn ums_group_spawn(
    group: Handle<ums_group>,
    function: ums_group_function,
    arg: Argument,
) -> c_int {
    guard(|| {
        let function = function.ok_or_else(|| Fault::null("the function"))?;
        object::get(group)?.spawn(move || function(arg))?;
        Ok(0)
    })
}

/// Waits until all tasks of the group have ended, for at most this long. Then stores the first
/// failure of a task in `failure`, which may be NULL: 0 if none has failed, -ECANCELED or -ENODATA
/// if a task never ran. If the caller's work request is cancelled, so are the tasks; with
/// UMS_FOREVER the wait then goes on until they have ended, otherwise it returns -ECANCELED.
/// -EBUSY: another caller waits for the group. -EDEADLK: the caller is a task of the group.
#[unsafe(no_mangle)]
pub extern "C" fn ums_group_wait(
    group: Handle<ums_group>,
    timeout_ns: u64,
    mut failure: Out<'_, c_int>,
) -> c_int {
    guard(|| {
        let group = object::get(group)?;
        group.wait(timeout_ns)?;
        failure.put(group.failure.load(Ordering::Relaxed));
        Ok(0)
    })
}

/// Cancels the tasks of the group, as ums_task_cancel does. No further task can be spawned in it.
#[unsafe(no_mangle)]
pub extern "C" fn ums_group_cancel(group: Handle<ums_group>) -> c_int {
    guard(|| {
        object::get(group)?.token.cancel();
        Ok(0)
    })
}
