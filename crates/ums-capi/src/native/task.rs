//! Tasks: C functions that a worker runs, and waiting for their results.
//!
//! A task pointer becomes invalid with the call that takes the task's result, or with
//! `ums_task_detach`. While one caller waits for a task, others may query it and cancel it. A
//! second call that would wait for it returns -EBUSY.

use std::ffi::c_int;

use ums::JoinHandle;
use ums::lock::Lock;
use ums::task::{CancelHandle, JoinError};

use super::fault::{Fault, answer, guard};
use super::object::{self, ConstHandle, Handle, objects};
use super::options::span;
use crate::caller::{Argument, Out};

/// No time limit.
pub const UMS_FOREVER: u64 = u64::MAX;

/// A function that a worker runs. It must return: neither exceptions nor longjmp, pthread_exit or
/// thread cancellation may leave it.
pub type ums_function = Option<extern "C-unwind" fn(arg: Argument) -> Argument>;

/// A callback with its argument.
pub(super) struct Call {
    function: extern "C-unwind" fn(Argument) -> Argument,
    arg: Argument,
}

impl Call {
    pub(super) fn new(function: ums_function, arg: Argument) -> Result<Call, Fault> {
        let function = function.ok_or_else(|| Fault::null("the function"))?;
        Ok(Call { function, arg })
    }

    /// Calls the function.
    pub(super) fn run(self) -> Argument {
        (self.function)(self.arg)
    }
}

/// A queued, running or ended task.
pub struct ums_task {
    _opaque: [u8; 0],
}

objects! {
    ums_task = b"ums task": Task;
}

/// What a task pointer refers to.
pub struct Task {
    /// `None` while a caller waits for the task.
    handle: Lock<Option<JoinHandle<Argument>>>,
    cancel: CancelHandle,
    request: u64,
}

impl Task {
    /// Takes the handle, for a caller that is about to wait for the task.
    pub(super) fn take(&self) -> Result<JoinHandle<Argument>, Fault> {
        let busy = || Fault::new(libc::EBUSY, "another caller waits for this task already");
        self.handle.lock().take().ok_or_else(busy)
    }

    /// Puts the handle back after a wait that has not ended the task.
    pub(super) fn put_back(&self, handle: JoinHandle<Argument>) {
        *self.handle.lock() = Some(handle);
    }
}

/// Stores a pointer to the task in `out`. If `out` is NULL, detaches the task.
pub(super) fn give(handle: JoinHandle<Argument>, mut out: Out<'_, Handle<ums_task>>) {
    if out.is_null() {
        return;
    }
    let (cancel, request) = (handle.cancel_handle(), handle.request_id());
    out.put(object::make(Task { handle: Lock::new(Some(handle)), cancel, request }));
}

/// Queues a task on the scheduler of the calling worker. `task` may be NULL: then it runs
/// detached. On a plain thread: -EPERM (use ums_node_spawn). -EAGAIN: the work queue is full.
#[unsafe(no_mangle)]
pub extern "C" fn ums_spawn(
    function: ums_function,
    arg: Argument,
    task: Out<'_, Handle<ums_task>>,
) -> c_int {
    guard(|| {
        let call = Call::new(function, arg)?;
        if !ums::worker::is_worker() {
            let text = "ums_spawn is called on a worker; on a plain thread use ums_node_spawn";
            return Err(Fault::new(libc::EPERM, text));
        }
        let handle = ums::task::try_spawn(move || call.run())?;
        give(handle, task);
        Ok(0)
    })
}

/// Waits for the task's end, for at most this long (UMS_FOREVER: no limit), and returns its result;
/// `result` may be NULL. Then the task pointer is freed. It stays valid only on -ETIMEDOUT, on
/// -ECANCELED (the caller's own work request was cancelled while it waited with a limit), on
/// -EDEADLK (this wait was ended to resolve a deadlock) and on -EBUSY (another caller waits for
/// it). -ENODATA: the task was cancelled before it began.
#[unsafe(no_mangle)]
pub extern "C" fn ums_task_join(
    task: Handle<ums_task>,
    timeout_ns: u64,
    mut result: Out<'_, Argument>,
) -> c_int {
    guard(|| {
        let task = object::get(task)?;
        ums::worker::assert_may_wait();
        let mut handle = task.take()?;
        let joined = if timeout_ns == UMS_FOREVER {
            handle.join_uncancellable()
        } else {
            let joined = handle.join_for(span(timeout_ns));
            if let Err(JoinError::Wait((), error)) = joined {
                task.put_back(handle);
                return Err(error.into());
            }
            joined
        };
        object::retire(&task);
        result.put(joined?);
        Ok(0)
    })
}

/// Detaches the task; the pointer is freed. -EBUSY: a caller waits for it.
#[unsafe(no_mangle)]
pub extern "C" fn ums_task_detach(task: Handle<ums_task>) -> c_int {
    guard(|| object::free(task, |task| task.handle.lock().is_some()).map(|()| 0))
}

/// Cancels the task. If no worker has begun it, it never runs. Otherwise its waits and its calls of
/// ums_checkpoint fail with -ECANCELED. It is never stopped by force.
#[unsafe(no_mangle)]
pub extern "C" fn ums_task_cancel(task: Handle<ums_task>) -> c_int {
    guard(|| {
        object::get(task)?.cancel.cancel();
        Ok(0)
    })
}

/// Returns true if the task has ended; false also for a bad pointer.
#[unsafe(no_mangle)]
pub extern "C" fn ums_task_is_finished(task: ConstHandle<ums_task>) -> bool {
    answer(false, || Ok(object::get(task)?.cancel.is_finished()))
}

/// Returns the number of its work request, as statistics show it; 0 for a bad pointer.
#[unsafe(no_mangle)]
pub extern "C" fn ums_task_request_id(task: ConstHandle<ums_task>) -> u64 {
    answer(0, || Ok(object::get(task)?.request))
}
