//! Task groups: tasks that end together, and of which the first failure cancels the others.
//!
//! A group has the handles of its tasks, of which it forgets those that have ended when their
//! number has doubled. It cannot be freed before all of them have ended, so a task may use what
//! the code that frees the group owns.
//!
//! ```text
//!   spawn --a seat, if there is a limit--> task --its end, if results are kept--> next
//! ```
//!
//! A task has its seat until it has ended, or will never run. Each task whose results are kept
//! sends one report, through a channel, at the latest when its closure is dropped.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ums::lock::Lock;
use ums::sync::channel::{Receiver, RecvError, Sender, unbounded};
use ums::sync::{OwnedPermit, Semaphore};
use ums::task::{CancelToken, JoinError};
use ums::{JoinHandle, Node, WaitError};

use super::fault::{Fault, guard};
use super::node::{is_forever, ums_node};
use super::object::{self, Handle, discard, give, objects};
use super::options::{record, span};
use crate::caller::{Argument, Out, Record};

/// The list of tasks is searched for ended ones when it has at least so many.
const FEW: usize = 16;

/// A function that a task of a group runs. A negative result is a failure. It must return, as an
/// ums_function must.
pub type ums_group_function = Option<extern "C-unwind" fn(arg: Argument) -> c_int>;

/// For ums_group_options: keeps what each task has returned, until ums_group_next takes it or the
/// group is freed.
pub const UMS_GROUP_RESULTS: u32 = 1;

/// The options of a group. Set `size` to sizeof(ums_group_options), and other fields to zero for
/// their defaults.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ums_group_options {
    /// sizeof(ums_group_options).
    pub size: usize,
    /// How many tasks of the group may be queued or run at the same time: ums_group_spawn waits
    /// until fewer are. 0: no limit.
    pub max_running: usize,
    /// 0 or UMS_GROUP_RESULTS.
    pub flags: u32,
}

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
    /// A permit for each task that may be queued or run; `None` without a limit.
    seats: Option<Arc<Semaphore>>,
    /// The ends of tasks that no caller has taken; `None` if results are not kept.
    ends: Option<Ends>,
    is_waited_for: AtomicBool,
}

#[derive(Default)]
struct Members {
    all: VecDeque<JoinHandle<()>>,
    /// At how many tasks the list is searched next for ended ones.
    search_at: usize,
    /// How many workers wait for the end of some task, without joining it.
    waiting: usize,
    /// Whether all tasks in the list have been made urgent.
    urgent: bool,
}

/// The ends of tasks, in the order in which they come.
struct Ends {
    to: Sender<Option<Ended>>,
    from: Receiver<Option<Ended>>,
    /// How many reports there will be in all that `next` has not received.
    left: AtomicUsize,
}

/// The argument of a task that has ended, and what its function has returned.
type Ended = (Argument, c_int);

/// Reports the end of a task once, at the latest when its last owner drops it. The caller that
/// spawns the task is one, so that it can say that the task was not accepted.
struct Report {
    to: Sender<Option<Ended>>,
    arg: Argument,
    token: CancelToken,
    has_begun: AtomicBool,
    is_sent: AtomicBool,
}

impl Report {
    /// Sends how the task has ended; `None` if it was not accepted.
    fn send(&self, ended: Option<Ended>) {
        if !self.is_sent.swap(true, Ordering::AcqRel) {
            // Without a receiver the group was freed.
            let _ = self.to.send(ended);
        }
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        let code = if *self.has_begun.get_mut() {
            libc::ENOTRECOVERABLE // it has panicked
        } else if self.token.is_cancelled() {
            libc::ECANCELED
        } else {
            libc::ENODATA
        };
        self.send(Some((self.arg, -code)));
    }
}

/// Says that a caller waits for the group, until this is dropped.
struct Waiting<'a>(&'a AtomicBool);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// Says that a worker waits for the end of some task, until this is dropped.
struct Urgent<'a>(&'a Lock<Members>);

impl Drop for Urgent<'_> {
    fn drop(&mut self) {
        self.0.lock().waiting -= 1;
    }
}

impl Group {
    fn new(node: Node, options: ums_group_options) -> Group {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let seats = options.max_running.min(Semaphore::MAX);
        let ends = || {
            let (to, from) = unbounded();
            Ends { to, from, left: AtomicUsize::new(0) }
        };
        Group {
            node,
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            token: CancelToken::new(),
            failure: Arc::default(),
            tasks: Lock::default(),
            seats: (seats > 0).then(|| Arc::new(Semaphore::new(seats))),
            ends: (options.flags & UMS_GROUP_RESULTS != 0).then(ends),
            is_waited_for: AtomicBool::new(false),
        }
    }

    fn spawn(
        &self,
        run: impl FnOnce(Argument) -> c_int + Send + 'static,
        arg: Argument,
    ) -> Result<(), Fault> {
        self.check_is_going_on()?;
        let seat = self.seat()?;
        let report = self.ends.as_ref().map(|ends| Arc::new(ends.report(arg, &self.token)));
        let (token, failure, number) = (self.token.clone(), self.failure.clone(), self.number);
        let theirs = report.clone();
        let spawned = self.node.spawn(move || {
            theirs.iter().for_each(|report| report.has_begun.store(true, Ordering::Release));
            let result = MEMBER_OF.scope(number, || run(arg));
            if result < 0 {
                note(&failure, result);
            }
            theirs.iter().for_each(|report| report.send(Some((arg, result))));
            if result < 0 {
                token.cancel();
            }
            // A caller that waits for it finds the group cancelled.
            drop(seat);
        });
        let task = match spawned {
            Ok(task) => task,
            Err(error) => {
                report.iter().for_each(|report| report.send(None));
                return Err(error.into());
            }
        };
        self.token.add(task.cancel_handle());
        let ended = self.tasks.lock().add(task);
        ended.into_iter().for_each(|mut task| self.end(task.join_for(Duration::ZERO)));
        Ok(())
    }

    fn check_is_going_on(&self) -> Result<(), Fault> {
        if self.token.is_cancelled() {
            let text = "the group was cancelled, or one of its tasks has failed";
            return Err(Fault::new(libc::ECANCELED, text));
        }
        Ok(())
    }

    /// Waits for the seat of a further task, if their number is limited.
    fn seat(&self) -> Result<Option<OwnedPermit>, Fault> {
        let Some(seats) = &self.seats else { return Ok(None) };
        let free = seats.try_acquire_owned();
        if free.is_some() {
            return Ok(free);
        }
        self.check_is_not_mine()?;
        let _urgent = self.hurry();
        let seat = seats.acquire_owned()?;
        self.check_is_going_on()?;
        Ok(Some(seat))
    }

    fn check_is_not_mine(&self) -> Result<(), Fault> {
        if MEMBER_OF.get() == Some(self.number) {
            return Err(Fault::new(libc::EDEADLK, "a task of the group would wait for itself"));
        }
        Ok(())
    }

    /// Makes the tasks urgent: workers that wait for their ends must not use up all workers.
    fn hurry(&self) -> Option<Urgent<'_>> {
        if !ums::worker::is_worker() {
            return None;
        }
        let mut tasks = self.tasks.lock();
        tasks.waiting += 1;
        if !tasks.urgent {
            tasks.urgent = true;
            tasks.all.iter().for_each(JoinHandle::hurry);
        }
        Some(Urgent(&self.tasks))
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

    fn begin_to_wait(&self) -> Result<Waiting<'_>, Fault> {
        self.check_is_not_mine()?;
        ums::worker::assert_may_wait();
        if self.is_waited_for.swap(true, Ordering::Acquire) {
            return Err(Fault::new(libc::EBUSY, "another caller waits for this group already"));
        }
        Ok(Waiting(&self.is_waited_for))
    }

    /// Waits for the next task that ends; returns `None` if all ends were taken.
    fn next(&self, timeout_ns: u64) -> Result<Option<Ended>, Fault> {
        let text = "the group keeps no results: create it with UMS_GROUP_RESULTS";
        let ends = self.ends.as_ref().ok_or_else(|| Fault::new(libc::EINVAL, text))?;
        let _waiting = self.begin_to_wait()?;
        let end = Instant::now().checked_add(span(timeout_ns));
        while ends.left.load(Ordering::Acquire) > 0 {
            let received = ends.from.try_recv().or_else(|_| {
                let _urgent = self.hurry();
                match ends.from.recv_for(left_until(end)) {
                    Err(RecvError::Wait(WaitError::Cancelled)) => {
                        self.token.cancel();
                        if is_forever(timeout_ns) {
                            return ums::shield(|| ends.from.recv());
                        }
                        Err(RecvError::Wait(WaitError::Cancelled))
                    }
                    received => received,
                }
            })?;
            ends.left.fetch_sub(1, Ordering::AcqRel);
            if received.is_some() {
                return Ok(received);
            }
        }
        self.join_all(timeout_ns, end)?;
        Ok(None)
    }

    /// Waits until all tasks have ended.
    fn wait(&self, timeout_ns: u64) -> Result<(), Fault> {
        let _waiting = self.begin_to_wait()?;
        self.join_all(timeout_ns, Instant::now().checked_add(span(timeout_ns)))
    }

    fn join_all(&self, timeout_ns: u64, end: Option<Instant>) -> Result<(), Fault> {
        while let Some(mut task) = self.first() {
            let mut joined = task.join_for(left_until(end));
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

/// Returns how much time is left; `None` is no limit.
fn left_until(end: Option<Instant>) -> Duration {
    end.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()))
}

impl Ends {
    fn report(&self, arg: Argument, token: &CancelToken) -> Report {
        self.left.fetch_add(1, Ordering::AcqRel);
        let (to, token) = (self.to.clone(), token.clone());
        Report { to, arg, token, has_begun: AtomicBool::default(), is_sent: AtomicBool::default() }
    }
}

impl Members {
    /// Adds a task. Returns tasks that have ended, and are not in the list any more.
    fn add(&mut self, task: JoinHandle<()>) -> Vec<JoinHandle<()>> {
        let ended = self.take_ended();
        if self.waiting > 0 {
            task.hurry();
        } else {
            self.urgent = false;
        }
        self.all.push_back(task);
        ended
    }

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
/// worker; on a plain thread: -EPERM. `options` may be NULL.
#[unsafe(no_mangle)]
pub extern "C" fn ums_group_new(
    node: Handle<ums_node>,
    options: Record<'_, ums_group_options>,
    group: Out<'_, Handle<ums_group>>,
) -> c_int {
    guard(|| {
        let options = record(&options, "ums_group_options")?;
        if options.flags & !UMS_GROUP_RESULTS != 0 {
            let text = format!("ums_group_options.flags cannot be {}", options.flags);
            return Err(Fault::new(libc::EINVAL, text));
        }
        let node = if node.is_null() {
            let text = "the caller is on no node: pass the node of the group";
            Node::current().ok_or_else(|| Fault::new(libc::EPERM, text))?
        } else {
            object::get(node)?.node.clone()
        };
        give(group, Group::new(node, options))
    })
}

/// Frees a group. NULL is allowed. -EBUSY: a task of it has not ended; see ums_group_wait.
#[unsafe(no_mangle)]
pub extern "C" fn ums_group_free(group: Handle<ums_group>) -> c_int {
    discard(group, Group::has_ended)
}

/// Queues a task of the group; waits first while `max_running` tasks of it are queued or run. If
/// the function returns a negative number, the group's other tasks are cancelled. -ECANCELED: the
/// group or the caller's work request was cancelled, or a task of the group has failed. -EDEADLK:
/// the caller is a task of the group, and would wait. -EAGAIN: the work queue is full. -ESHUTDOWN:
/// the node accepts no more work.
#[unsafe(no_mangle)]
pub extern "C" fn ums_group_spawn(
    group: Handle<ums_group>,
    function: ums_group_function,
    arg: Argument,
) -> c_int {
    guard(|| {
        let function = function.ok_or_else(|| Fault::null("the function"))?;
        object::get(group)?.spawn(move |arg| function(arg), arg)?;
        Ok(0)
    })
}

/// Waits for the next task of the group that ends, for at most this long, and returns 1: `arg` is
/// the argument with which it was spawned, and `result` what its function has returned, or
/// -ECANCELED or -ENODATA if it never ran; either may be NULL. Returns 0 if all tasks have ended
/// and were returned. The group must have UMS_GROUP_RESULTS, otherwise: -EINVAL. A cancellation of
/// the caller, -EBUSY and -EDEADLK are as for ums_group_wait.
#[unsafe(no_mangle)]
pub extern "C" fn ums_group_next(
    group: Handle<ums_group>,
    timeout_ns: u64,
    mut arg: Out<'_, Argument>,
    mut result: Out<'_, c_int>,
) -> c_int {
    guard(|| {
        let Some(ended) = object::get(group)?.next(timeout_ns)? else { return Ok(0) };
        arg.put(ended.0);
        result.put(ended.1);
        Ok(1)
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
