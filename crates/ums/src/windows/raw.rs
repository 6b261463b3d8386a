//! The interface for C: pointers instead of handles, and an entry point that does not return.
//!
//! `ums-capi` adds the Windows names and errors. Every pointer to a [`Context`] or [`ContextList`]
//! that a function takes must come from a function of this file, and the object must not have been
//! deleted. The page of each function says what else it requires.
//!
//! Named invariants. **No Drops**: see `snap.rs`. **Contract**: the caller meets the requirements
//! that the function's page states, as above.

#![allow(unsafe_code)]
#![allow(clippy::missing_safety_doc)] // The header of this file has it for all functions.

use std::cell::Cell;
use std::ffi::c_void;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::context::{self, ThreadKind, WorkerCounts};
pub use super::context::{Context, ContextList, Routine};
use super::error::{EnterError, ExecuteError, NotAWorker};
use super::executor::News;
use super::primary::{Primary, here, take_within};
use super::{boot, list, mode, own, snap};

/// An entry point. Its arguments are reason, payload and parameter.
pub type Proc = extern "C-unwind" fn(u32, usize, *mut c_void);

/// The error of deleting a context whose thread has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alive;

/// Creates a list.
///
/// # Errors
/// The system's error, if it has no file descriptor left for the list's event.
pub fn list_new() -> io::Result<*const ContextList> {
    Ok(Arc::into_raw(Arc::new(ContextList::new()?)))
}

/// Deletes the caller's pointer. The list itself exists until its last member has ended and was
/// taken out.
pub unsafe fn list_delete(list: *const ContextList) {
    // SAFETY: Contract.
    drop(unsafe { Arc::from_raw(list) });
}

/// Returns how many contexts were created with this list and have not been taken out after their
/// end.
pub unsafe fn list_members(list: *const ContextList) -> usize {
    // SAFETY: Contract.
    unsafe { (*list).members.load(Ordering::Relaxed) }
}

/// Returns the list's eventfd. It is readable while it is signalled; reading eight bytes resets it.
pub unsafe fn list_event_fd(list: *const ContextList) -> RawFd {
    // SAFETY: Contract.
    unsafe { (*list).event().as_raw_fd() }
}

/// Takes all contexts of the list. If there are none, waits for one for at most this many
/// milliseconds. Returns null if the time has passed.
pub unsafe fn list_dequeue(list: *const ContextList, timeout_ms: Option<u32>) -> *const Context {
    // SAFETY: Contract.
    let list = unsafe { &*list };
    take_within(list, timeout_ms.map(|ms| u64::from(ms) * 1_000_000))
}

/// Unlinks a context from the chain that it heads, and returns the next.
pub unsafe fn next_item(context: *const Context) -> *const Context {
    // SAFETY: Contract.
    list::next(unsafe { &*context })
}

/// Creates a context without a thread.
pub fn context_new() -> *const Context {
    Arc::into_raw(Context::new())
}

/// Deletes a context whose thread has ended or never existed. If the context is still on its list,
/// it is removed there by the next take.
///
/// # Errors
/// [`Alive`] if it has a thread, or is in a chain that was taken from its list. Nothing is deleted
/// then.
pub unsafe fn context_delete(context: *const Context) -> Result<(), Alive> {
    // SAFETY: Contract.
    let it = unsafe { &*context };
    let linked = it.link.linked.load(Ordering::Acquire);
    if !it.is_over() || linked && it.link.taken.load(Ordering::Acquire) {
        return Err(Alive);
    }
    if linked {
        it.link.deleted.store(true, Ordering::Release);
    } else {
        // SAFETY: Contract: the caller's hold keeps it alive.
        unsafe { it.release_system_hold() };
    }
    // SAFETY: Contract: the caller's hold.
    drop(unsafe { Arc::from_raw(context) });
    Ok(())
}

/// Creates the thread of a context and queues the context to this list. Returns the kernel thread
/// id. The worker has its own context if [`own_contexts_asked_for`] says so.
///
/// # Errors
/// `AlreadyExists` if it has a thread; `InvalidInput` if the environment names no kind of worker;
/// otherwise the error of creating the thread or of watching it.
pub unsafe fn context_start(
    context: *const Context,
    list: *const ContextList,
    stack: usize,
    routine: Routine,
    arg: *mut c_void,
) -> io::Result<u32> {
    let own = own::by_default()?.unwrap_or(false);
    // SAFETY: Contract.
    unsafe { context_start_as(own, context, list, stack, routine, arg) }
}

/// As [`context_start`]; if `own`, the worker has its own context.
///
/// # Errors
/// As [`context_start`]; `Unsupported` if the worker cannot have its own context here.
pub unsafe fn context_start_as(
    own: bool,
    context: *const Context,
    list: *const ContextList,
    stack: usize,
    routine: Routine,
    arg: *mut c_void,
) -> io::Result<u32> {
    // SAFETY: Contract: this takes one more hold on each, for the length of this call.
    let (context, list) = unsafe {
        Arc::increment_strong_count(context);
        Arc::increment_strong_count(list);
        (Arc::from_raw(context), Arc::from_raw(list))
    };
    boot::start(&context, &list, own, stack, routine, arg)?;
    Ok(context.tid.load(Ordering::Relaxed))
}

/// Returns what the environment or [`own_contexts_by_default`] says of new workers: whether they
/// have their own context. `None` if neither says so.
///
/// # Errors
/// `InvalidInput` if `UMS_WINDOWS_WORKERS` in the environment is neither `thread` nor `context`.
pub fn own_contexts_asked_for() -> io::Result<Option<bool>> {
    own::by_default()
}

/// Sets whether workers have their own context by default. The environment is not consulted then.
pub fn own_contexts_by_default(yes: bool) {
    own::set_default(yes);
}

/// Prepares the end of the calling thread, for example by `pthread_exit`: a worker in user mode
/// first moves to its own kernel thread. Does nothing on any other thread.
pub fn before_exit() {
    own::leave_for_good();
}

/// Returns the kernel thread id of the calling worker's own kernel thread, wherever the worker
/// runs. Returns `None` on any other thread.
pub fn own_thread_id() -> Option<u32> {
    context::current().map(|context| context.tid.load(Ordering::Relaxed))
}

/// Returns how often it was executed, and how often it has yielded in each way.
pub unsafe fn counts(context: *const Context) -> WorkerCounts {
    // SAFETY: Contract.
    unsafe { (*context).counted() }
}

/// Returns the value that the application has stored in a context.
pub unsafe fn user_context(context: *const Context) -> usize {
    // SAFETY: Contract.
    unsafe { (*context).user.load(Ordering::Acquire) }
}

/// Stores a value in a context; the application chooses it.
pub unsafe fn set_user_context(context: *const Context, value: usize) {
    // SAFETY: Contract.
    unsafe { (*context).user.store(value, Ordering::Release) };
}

/// Returns true if it is suspended.
pub unsafe fn is_suspended(context: *const Context) -> bool {
    // SAFETY: Contract.
    unsafe { (*context).is_suspended() }
}

/// Returns true if its thread has ended.
pub unsafe fn is_terminated(context: *const Context) -> bool {
    // SAFETY: Contract.
    unsafe { (*context).is_terminated() }
}

/// Returns the C library's handle of its thread; null before it has a thread.
pub unsafe fn teb(context: *const Context) -> *mut c_void {
    // SAFETY: Contract.
    unsafe { (*context).teb.load(Ordering::Relaxed) as *mut c_void }
}

/// Returns the role of its thread.
pub unsafe fn kind(context: *const Context) -> ThreadKind {
    // SAFETY: Contract.
    unsafe { (*context).kind() }
}

/// Increments the worker's count of suspensions, and stops the worker if it runs. Returns the
/// previous count.
pub unsafe fn suspend(context: *const Context) -> u32 {
    // SAFETY: Contract.
    unsafe { (*context).suspend() }
}

/// Decrements the worker's count of suspensions. Returns the previous count.
pub unsafe fn resume(context: *const Context) -> u32 {
    // SAFETY: Contract.
    unsafe { (*context).resume() }
}

/// Locks the context, or unlocks it: while it is locked, executing it fails with `Locked`.
pub unsafe fn lock(context: *const Context, hold: bool) {
    // SAFETY: Contract.
    let locks = unsafe { &(*context).locks };
    match hold {
        true => locks.fetch_add(1, Ordering::SeqCst),
        false => locks.fetch_sub(1, Ordering::SeqCst),
    };
}

/// Returns the context of the calling worker or scheduler; null on any other thread.
pub fn current() -> *const Context {
    match context::current() {
        Some(context) => ptr::from_ref(context),
        None => here().map_or(ptr::null(), |primary| Arc::as_ptr(&primary.context)),
    }
}

/// Yields to the scheduler.
///
/// # Errors
/// [`NotAWorker`] if the calling thread is not a worker.
pub fn thread_yield(param: usize) -> Result<(), NotAWorker> {
    mode::thread_yield(param)
}

/// The arguments of an entry point, and the frame to which its stack is cut off when it executes a
/// worker.
struct Call {
    frame: snap::StackPointer,
    proc: Proc,
    reason: u32,
    payload: usize,
    param: *mut c_void,
    /// The worker that the entry point has executed.
    claimed: *const Context,
}

thread_local! {
    static CALL: Cell<*mut Call> = const { Cell::new(ptr::null_mut()) };
}

unsafe extern "C-unwind" fn call_proc(call: *mut c_void) {
    // SAFETY: No Drops: copies plain values of a structure in the frame of `enter`.
    let (proc, reason, payload, param) = unsafe {
        let call = call.cast::<Call>();
        ((*call).proc, (*call).reason, (*call).payload, (*call).param)
    };
    proc(reason, payload, param);
}

/// Enters scheduling mode. Calls the entry point with reason 0, and after each worker that it
/// executes again with 1 (blocked) or 2 (yield). Returns when the entry point returns.
///
/// # Errors
/// [`EnterError`], if the thread is a worker or scheduler already, or if blocks cannot be detected
/// here.
///
/// # Safety
/// `param` is a value that the entry point accepts.
pub unsafe fn enter(proc: Proc, param: *mut c_void) -> Result<(), EnterError> {
    let entered = Primary::enter()?;
    let mut call = Call {
        frame: snap::StackPointer::new(),
        proc,
        reason: 0,
        payload: 0,
        param,
        claimed: ptr::null(),
    };
    let at = &raw mut call;
    CALL.set(at);
    // SAFETY: No Drops: `call_proc` owns nothing, and the contract of `execute` requires the same
    // of the C code between the two calls.
    while unsafe { snap::call(&raw mut (*at).frame, call_proc, at.cast()) } == 1 {
        // SAFETY: Contract: `execute` has claimed the worker, so it is alive. After the run it is
        // used only if it has yielded, and then it is still alive.
        let worker = unsafe { &*(*at).claimed };
        let ended = entered.primary.run(worker);
        let (reason, payload, param) = match ended.news {
            News::BlockedInCall => (1, 1, 0),
            News::BlockedInTrap => (1, 0, 0),
            News::Yielded => (2, ptr::from_ref(worker) as usize, ended.param),
        };
        // SAFETY: No Drops: this function's own structure, which no other code uses at this time.
        unsafe {
            (*at).reason = reason;
            (*at).payload = payload;
            (*at).param = param as *mut c_void;
        }
    }
    CALL.set(ptr::null_mut());
    Ok(())
}

/// Executes a worker. Returns only if that fails. On success the stack is cut off down to the frame
/// of [`enter`].
///
/// # Safety
/// `context` is null, or a pointer from a function of this file. No frame between [`enter`] and
/// this call has anything that needs to be dropped.
pub unsafe fn execute(context: *const Context) -> ExecuteError {
    let Some(primary) = here() else { return ExecuteError::NotAScheduler };
    let call = CALL.get();
    if call.is_null() {
        return ExecuteError::NotAScheduler;
    }
    if context.is_null() {
        return ExecuteError::NotAWorker;
    }
    // SAFETY: Contract.
    if let Err(error) = unsafe { (*context).claim(primary.place().cpu) } {
        return error;
    }
    // SAFETY: No Drops: the caller guarantees it for its frames, and this function has nothing to
    // drop.
    unsafe {
        (*call).claimed = context;
        snap::back(&raw const (*call).frame)
    }
}
