//! The same machine for C: pointers instead of handles, and an entry point that does not return.
//!
//! `ums-capi` puts the Windows names and errors on top. Every pointer to a [`Context`] or [`List`]
//! that a function takes is one that a function here gave and that has not been deleted; each says
//! what else it needs.
//!
//! Named invariants. **No Drops**: see `snap.rs`. **Given Pointer**: the caller's contract, as
//! above.

#![allow(unsafe_code)]
#![allow(clippy::missing_safety_doc)] // The header has it, once for all.

use std::cell::Cell;
use std::ffi::c_void;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

pub use super::boot::Routine;
pub use super::context::Context;
pub use super::list::List;
use super::primary::{News, Primary, here};
use super::{
    EnterError, ExecuteError, NotAWorker, ThreadKind, WorkerCounts, boot, list, own, snap,
};

/// An entry point: reason, payload, parameter.
pub type Proc = extern "C-unwind" fn(u32, usize, *mut c_void);

/// The context has a thread that has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alive;

/// A new list.
///
/// # Errors
/// No descriptor.
pub fn list_new() -> io::Result<*const List> {
    Ok(Arc::into_raw(Arc::new(List::new()?)))
}

/// Gives the pointer up. The list itself lives on until its last member has gone.
pub unsafe fn list_delete(list: *const List) {
    // SAFETY: Given Pointer.
    drop(unsafe { Arc::from_raw(list) });
}

/// How many contexts were created with this list, and their end not taken out of it.
pub unsafe fn list_members(list: *const List) -> usize {
    // SAFETY: Given Pointer.
    unsafe { (*list).members.load(Ordering::Relaxed) }
}

/// The list's eventfd: readable while signalled; reading eight bytes resets it.
pub unsafe fn list_event_fd(list: *const List) -> RawFd {
    // SAFETY: Given Pointer.
    unsafe { (*list).event().as_raw_fd() }
}

/// Takes everything out of the list, waiting for at most so many milliseconds. Null: the time is
/// over.
pub unsafe fn list_dequeue(list: *const List, timeout_ms: Option<u32>) -> *const Context {
    // SAFETY: Given Pointer.
    let list = unsafe { &*list };
    super::take_within(list, timeout_ms.map(|ms| u64::from(ms) * 1_000_000))
}

/// Unlinks a context from the chain that it heads, and gives the next.
pub unsafe fn next_item(context: *const Context) -> *const Context {
    // SAFETY: Given Pointer.
    list::next(unsafe { &*context })
}

/// A context without a thread.
pub fn context_new() -> *const Context {
    Arc::into_raw(Context::new())
}

/// Deletes a context that has no thread any more. One that is still on its list may be deleted: it
/// will not be seen there.
///
/// # Errors
/// It has a thread, or stands in a chain that was taken from its list; nothing is deleted.
pub unsafe fn context_delete(context: *const Context) -> Result<(), Alive> {
    // SAFETY: Given Pointer.
    let it = unsafe { &*context };
    let linked = it.linked.load(Ordering::Acquire);
    if !it.is_over() || linked && it.taken.load(Ordering::Acquire) {
        return Err(Alive);
    }
    if linked {
        it.deleted.store(true, Ordering::Release);
    } else {
        // SAFETY: Given Pointer: held by the caller still.
        unsafe { it.release_system_hold() };
    }
    // SAFETY: Given Pointer: the caller's hold.
    drop(unsafe { Arc::from_raw(context) });
    Ok(())
}

/// Creates the thread of a context, queued to this list. Gives the kernel's number of it.
///
/// # Errors
/// `AlreadyExists` if it has one; what creating a thread and watching it may say otherwise.
pub unsafe fn context_start(
    context: *const Context,
    list: *const List,
    stack: usize,
    routine: Routine,
    arg: *mut c_void,
) -> io::Result<u32> {
    // SAFETY: Given Pointer.
    unsafe { context_start_as(own::by_default(), context, list, stack, routine, arg) }
}

/// As [`context_start`], and says whether the worker has its own context.
///
/// # Errors
/// As [`context_start`]; `Unsupported` if it cannot have that here.
pub unsafe fn context_start_as(
    own: bool,
    context: *const Context,
    list: *const List,
    stack: usize,
    routine: Routine,
    arg: *mut c_void,
) -> io::Result<u32> {
    // SAFETY: Given Pointer: one more hold of each, for the length of this call.
    let (context, list) = unsafe {
        Arc::increment_strong_count(context);
        Arc::increment_strong_count(list);
        (Arc::from_raw(context), Arc::from_raw(list))
    };
    boot::start(&context, &list, own, stack, routine, arg)?;
    Ok(context.tid.load(Ordering::Relaxed))
}

/// Decides, instead of the environment, whether workers of whom nobody says it have their own
/// context.
pub fn own_contexts_by_default(yes: bool) {
    own::set_default(yes);
}

/// The calling thread is about to end, by `pthread_exit` perhaps: a worker in user mode leaves its
/// scheduler's kernel thread first. Nothing, on any other thread.
pub fn before_exit() {
    own::leave_for_good();
}

/// The kernel's number of the calling worker's own kernel thread, wherever it runs; None on any
/// other thread.
pub fn own_thread_id() -> Option<u32> {
    boot::current().map(|context| context.tid.load(Ordering::Relaxed))
}

/// How often it was executed, and has yielded in which way.
pub unsafe fn counts(context: *const Context) -> WorkerCounts {
    // SAFETY: Given Pointer.
    unsafe { (*context).counted() }
}

/// What the application keeps in a context.
pub unsafe fn user_context(context: *const Context) -> usize {
    // SAFETY: Given Pointer.
    unsafe { (*context).user.load(Ordering::Acquire) }
}

/// Keeps something in a context.
pub unsafe fn set_user_context(context: *const Context, value: usize) {
    // SAFETY: Given Pointer.
    unsafe { (*context).user.store(value, Ordering::Release) };
}

/// Whether it is suspended.
pub unsafe fn is_suspended(context: *const Context) -> bool {
    // SAFETY: Given Pointer.
    unsafe { (*context).is_suspended() }
}

/// Whether its thread has ended.
pub unsafe fn is_terminated(context: *const Context) -> bool {
    // SAFETY: Given Pointer.
    unsafe { (*context).is_terminated() }
}

/// What the C library knows its thread by; null before it has one.
pub unsafe fn teb(context: *const Context) -> *mut c_void {
    // SAFETY: Given Pointer.
    unsafe { (*context).teb.load(Ordering::Relaxed) as *mut c_void }
}

/// What it is a context of.
pub unsafe fn kind(context: *const Context) -> ThreadKind {
    // SAFETY: Given Pointer.
    unsafe { (*context).kind() }
}

/// Suspends it once more; gives how often it was before.
pub unsafe fn suspend(context: *const Context) -> u32 {
    // SAFETY: Given Pointer.
    unsafe { (*context).suspend() }
}

/// Resumes it once; gives how often it was suspended before.
pub unsafe fn resume(context: *const Context) -> u32 {
    // SAFETY: Given Pointer.
    unsafe { (*context).resume() }
}

/// Holds it still, or no longer: while somebody does, executing it gives `Locked`.
pub unsafe fn lock(context: *const Context, hold: bool) {
    // SAFETY: Given Pointer.
    let locks = unsafe { &(*context).locks };
    match hold {
        true => locks.fetch_add(1, Ordering::SeqCst),
        false => locks.fetch_sub(1, Ordering::SeqCst),
    };
}

/// The context of the calling worker or scheduler; null on any other thread.
pub fn current() -> *const Context {
    match boot::current() {
        Some(context) => ptr::from_ref(context),
        None => here().map_or(ptr::null(), |primary| Arc::as_ptr(&primary.context)),
    }
}

/// Yields to the scheduler.
///
/// # Errors
/// The calling thread is no worker.
pub fn thread_yield(param: usize) -> Result<(), NotAWorker> {
    super::thread_yield(param)
}

/// What an entry point is called with, and where it goes when it executes somebody.
struct Call {
    frame: snap::Frame,
    proc: Proc,
    reason: u32,
    payload: usize,
    param: *mut c_void,
    /// Whom it has executed.
    claimed: *const Context,
}

thread_local! {
    static CALL: Cell<*mut Call> = const { Cell::new(ptr::null_mut()) };
}

unsafe extern "C-unwind" fn call_proc(call: *mut c_void) {
    // SAFETY: No Drops: copies of plain values, of a structure in the frame of `enter`.
    let (proc, reason, payload, param) = unsafe {
        let call = call.cast::<Call>();
        ((*call).proc, (*call).reason, (*call).payload, (*call).param)
    };
    proc(reason, payload, param);
}

/// Enters scheduling mode: calls the entry point with reason 0, and again with 1 (blocked) or 2
/// (yield) after each worker that it executes. Returns when it returns.
///
/// # Errors
/// The thread is a worker or scheduler already; or there can be no block watch.
///
/// # Safety
/// `param` is what the entry point expects.
pub unsafe fn enter(proc: Proc, param: *mut c_void) -> Result<(), EnterError> {
    let entered = Primary::enter()?;
    let mut call = Call {
        frame: snap::Frame::new(),
        proc,
        reason: 0,
        payload: 0,
        param,
        claimed: ptr::null(),
    };
    let at = &raw mut call;
    CALL.set(at);
    // SAFETY: No Drops: `call_proc` owns nothing, and what C does between is its promise.
    while unsafe { snap::call(&raw mut (*at).frame, call_proc, at.cast()) } == 1 {
        // SAFETY: Given Pointer: `execute` claimed it, so it is alive.
        let heard = entered.primary.run(unsafe { &*(*at).claimed });
        let (reason, payload, param) = match heard.news {
            News::BlockedInCall => (1, 1, 0),
            News::BlockedInTrap => (1, 0, 0),
            News::Yielded => (2, heard.who as usize, heard.param),
        };
        // SAFETY: No Drops: our own structure, which nobody else uses now.
        unsafe {
            (*at).reason = reason;
            (*at).payload = payload;
            (*at).param = param as *mut c_void;
        }
    }
    CALL.set(ptr::null_mut());
    Ok(())
}

/// Executes a worker: returns only when that fails. On success the stack is snapped back to
/// [`enter`].
///
/// # Safety
/// Null, or a given pointer. Between [`enter`] and here stands nothing that needs to be dropped.
pub unsafe fn execute(context: *const Context) -> ExecuteError {
    let Some(primary) = here() else { return ExecuteError::NotAScheduler };
    let call = CALL.get();
    if call.is_null() {
        return ExecuteError::NotAScheduler;
    }
    if context.is_null() {
        return ExecuteError::NotAWorker;
    }
    // SAFETY: Given Pointer.
    if let Err(error) = unsafe { (*context).claim(primary.place().cpu) } {
        return error;
    }
    // SAFETY: No Drops: promised by the caller, and true of this function.
    unsafe {
        (*call).claimed = context;
        snap::back(&raw const (*call).frame)
    }
}
