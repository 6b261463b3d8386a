//! UMS workers and completion lists: which of them are alive, and the operations on them.
//!
//! This file has unsafe code, because programs hold bare pointers to workers and lists. A pointer
//! is followed only after `Registry` has found it, and a program must not delete an object while
//! another call uses it.
//!
//! `ExecuteUmsThread` does not return when it succeeds: the scheduler's stack is cut back to the
//! point where `EnterUmsSchedulingMode` calls the entry point. So between the two there must be no
//! frame of this crate that needs a destructor, and no `catch_unwind`.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::marker::PhantomData;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Once;

use ums::windows::raw::{self, Context, ContextList};
use ums::windows::{EnterError, ExecuteError, WorkerCounts};

use super::error::{
    BOOL, ERROR_BUSY, ERROR_INTERNAL_ERROR, ERROR_INVALID_PARAMETER, ERROR_NOT_ENOUGH_MEMORY,
    ERROR_NOT_SUPPORTED, ERROR_RETRY, FALSE, SetLastError, done,
};
use super::registry::Registry;

/// The version of the structures, which the program states.
pub const UMS_VERSION: u32 = 0x0100;

/// The contexts that are alive.
static CONTEXTS: Registry = Registry::new();
/// The completion lists that are alive.
static LISTS: Registry = Registry::new();

/// A pointer to a worker context that a program passed. The context may have been deleted.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct ContextPointer(*const Context);

/// A pointer to a completion list that a program passed. The list may have been deleted.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct ListPointer(*const ContextList);

/// The context and the completion list with which a worker is created.
pub(super) struct Worker {
    pub context: ContextPointer,
    pub list: ListPointer,
}

/// A worker context that stays alive for the time of the call.
#[derive(Clone, Copy)]
pub(super) struct Found<'a>(*const Context, PhantomData<&'a Context>);

/// A completion list that stays alive for the time of the call.
#[derive(Clone, Copy)]
pub(super) struct FoundList<'a>(*const ContextList, PhantomData<&'a ContextList>);

impl ContextPointer {
    /// No context.
    pub const NULL: ContextPointer = ContextPointer(std::ptr::null());

    /// Creates a context, without a worker yet.
    pub(super) fn make() -> ContextPointer {
        let made = raw::context_new();
        CONTEXTS.add(made.addr());
        ContextPointer(made)
    }

    /// Returns the context of the calling worker or scheduler; NULL on a plain thread.
    pub(super) fn current() -> ContextPointer {
        ContextPointer(raw::current())
    }

    pub(super) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Returns the context if it is alive.
    pub(super) fn find<'a>(self) -> Result<Found<'a>, u32> {
        let alive = CONTEXTS.has(self.0.addr());
        if alive { Ok(Found(self.0, PhantomData)) } else { Err(ERROR_INVALID_PARAMETER) }
    }

    /// Returns the context of a worker, or the caller's own context.
    pub(super) fn find_or_own<'a>(self) -> Result<Found<'a>, u32> {
        let own = raw::current();
        let is_own = !own.is_null() && own.addr() == self.0.addr();
        if is_own { Ok(Found(own, PhantomData)) } else { self.find() }
    }

    /// Deletes the context. Fails if the context has a worker that has not terminated.
    pub(super) fn delete(self) -> Result<(), u32> {
        let Found(found, _) = self.find()?;
        // It is removed from the registry first, because after the deletion the memory may become
        // another context.
        if !CONTEXTS.remove(found.addr()) {
            return Err(ERROR_INVALID_PARAMETER);
        }
        // SAFETY: Handed Over: this call has removed it from the registry. If the deletion is
        // refused, the context stays alive.
        unsafe { raw::context_delete(found) }.map_err(|_| {
            CONTEXTS.add(found.addr());
            ERROR_INVALID_PARAMETER
        })
    }
}

impl Found<'_> {
    /// Unlinks the context from its chain of dequeued contexts, and returns the next context.
    pub(super) fn next_item(self) -> ContextPointer {
        // SAFETY: Held: it is alive for the time of the call.
        ContextPointer(unsafe { raw::next_item(self.0) })
    }

    pub(super) fn counts(self) -> WorkerCounts {
        // SAFETY: Held: it is alive for the time of the call.
        unsafe { raw::counts(self.0) }
    }

    pub(super) fn user_context(self) -> usize {
        // SAFETY: Held: it is alive for the time of the call.
        unsafe { raw::user_context(self.0) }
    }

    pub(super) fn set_user_context(self, value: usize) {
        // SAFETY: Held: it is alive for the time of the call.
        unsafe { raw::set_user_context(self.0, value) };
    }

    pub(super) fn teb(self) -> usize {
        // SAFETY: Held: it is alive for the time of the call.
        unsafe { raw::teb(self.0) }.expose_provenance()
    }

    pub(super) fn is_suspended(self) -> bool {
        // SAFETY: Held: it is alive for the time of the call.
        unsafe { raw::is_suspended(self.0) }
    }

    pub(super) fn is_terminated(self) -> bool {
        // SAFETY: Held: it is alive for the time of the call.
        unsafe { raw::is_terminated(self.0) }
    }
}

impl ListPointer {
    /// No list.
    pub const NULL: ListPointer = ListPointer(std::ptr::null());

    /// Creates a completion list.
    pub(super) fn make() -> Result<ListPointer, u32> {
        let made = raw::list_new().map_err(|_| ERROR_NOT_ENOUGH_MEMORY)?;
        LISTS.add(made.addr());
        Ok(ListPointer(made))
    }

    pub(super) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Returns the list if it is alive.
    pub(super) fn find<'a>(self) -> Result<FoundList<'a>, u32> {
        let alive = LISTS.has(self.0.addr());
        if alive { Ok(FoundList(self.0, PhantomData)) } else { Err(ERROR_INVALID_PARAMETER) }
    }

    /// Deletes the list, unless it has workers.
    pub(super) fn delete(self) -> Result<(), u32> {
        let FoundList(found, _) = self.find()?;
        // SAFETY: Held: it is alive for the time of the call.
        if unsafe { raw::list_members(found) } > 0 {
            return Err(ERROR_BUSY);
        }
        if !LISTS.remove(found.addr()) {
            return Err(ERROR_INVALID_PARAMETER);
        }
        // SAFETY: Handed Over: this call has removed the list from the registry, so the reference
        // is released once.
        unsafe { raw::list_delete(found) };
        Ok(())
    }
}

impl FoundList<'_> {
    /// Returns a new descriptor of the list's event.
    pub(super) fn event(self) -> std::io::Result<OwnedFd> {
        // SAFETY: Held: the list, and with it the descriptor, exists for the time of the call.
        unsafe { BorrowedFd::borrow_raw(raw::list_event_fd(self.0)) }.try_clone_to_owned()
    }

    /// Takes all items. If the list is empty, waits for at most this long. Returns NULL if the time
    /// is over.
    pub(super) fn dequeue(self, limit: Option<u32>) -> ContextPointer {
        // SAFETY: Held: it is alive for the time of the call.
        ContextPointer(unsafe { raw::list_dequeue(self.0, limit) })
    }
}

/// Starts a worker's thread, which waits to be executed. Returns the address of its context and the
/// kernel's number of the thread. If `own` is set, the worker has its own context.
///
/// # Safety
/// `begin` must be callable with the argument, once, on the new thread.
pub(super) unsafe fn start(
    worker: &Worker,
    own: bool,
    stack: usize,
    begin: extern "C-unwind" fn(*mut c_void) -> *mut c_void,
    argument: *mut c_void,
) -> Result<(usize, u32), u32> {
    let (context, list) = (worker.context.find()?.0, worker.list.find()?.0);
    let own = own || own_by_default()?;
    // SAFETY: Held: both are alive for the time of the call. Contract: the function accepts its
    // argument.
    let started = unsafe { raw::context_start_as(own, context, list, stack, begin, argument) };
    let id = started.map_err(|error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => ERROR_INVALID_PARAMETER,
        std::io::ErrorKind::InvalidInput => {
            say(&error);
            ERROR_INVALID_PARAMETER
        }
        std::io::ErrorKind::Unsupported | std::io::ErrorKind::PermissionDenied => {
            ERROR_NOT_SUPPORTED
        }
        _ => ERROR_NOT_ENOUGH_MEMORY,
    })?;
    Ok((context.expose_provenance(), id))
}

/// Returns whether a worker has its own context if the program does not ask for it: as
/// `UMS_WINDOWS_WORKERS=thread|context` in the environment says, or else if the system can do it.
///
/// Without the interposed functions, a worker that calls `pthread_exit` in user mode would end its
/// scheduler's kernel thread, so the default is a plain thread then.
fn own_by_default() -> Result<bool, u32> {
    match raw::own_contexts_asked_for() {
        Ok(Some(own)) => Ok(own),
        Ok(None) => {
            Ok(cfg!(feature = "interpose") && ums::probe::own_contexts_are_refused().is_none())
        }
        Err(error) => {
            say(&error);
            Err(ERROR_INVALID_PARAMETER)
        }
    }
}

/// Writes an error to stderr, because a C program sees only its number. Only the first one of the
/// process is written.
fn say(error: &dyn std::fmt::Display) {
    static SAID: Once = Once::new();
    SAID.call_once(|| super::system::write_to_stderr(&format!("ums: {error}\n")));
}

fn at<'a>(address: usize) -> Option<Found<'a>> {
    ContextPointer(std::ptr::with_exposed_provenance(address)).find().ok()
}

/// Suspends a worker, given by the address of its context (0 for a thread that is no worker).
/// Returns how many times it was suspended before.
pub(super) fn suspend(address: usize) -> Option<u32> {
    // SAFETY: Held: it is alive for the time of the call.
    at(address).map(|found| unsafe { raw::suspend(found.0) })
}

/// Resumes a suspended worker. Returns how many times it was suspended before.
pub(super) fn resume(address: usize) -> Option<u32> {
    // SAFETY: Held: it is alive for the time of the call.
    at(address).map(|found| unsafe { raw::resume(found.0) })
}

/// `UMS_SCHEDULER_STARTUP_INFO`.
#[repr(C)]
pub struct StartupInfo {
    version: u32,
    list: ListPointer,
    entry: EntryPoint,
    parameter: *mut c_void,
}

/// `UmsSchedulerProc`.
pub type EntryPoint =
    Option<extern "C-unwind" fn(reason: u32, payload: usize, parameter: *mut c_void)>;

/// Makes the calling thread a scheduler until its entry point returns.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn EnterUmsSchedulingMode(info: *const StartupInfo) -> BOOL {
    // There must be no `catch_unwind` around this function, and nothing in it may need a
    // destructor.
    if info.is_null() {
        return done(Err(ERROR_INVALID_PARAMETER));
    }
    // SAFETY: C Caller: it points to the structure.
    let StartupInfo { version, list, entry, parameter } = unsafe { info.read_unaligned() };
    // The list is only checked here. The entry point itself decides from which list it takes
    // workers.
    let (Some(entry), Ok(_)) = (entry, list.find()) else {
        return done(Err(ERROR_INVALID_PARAMETER));
    };
    if version != UMS_VERSION {
        return done(Err(ERROR_INVALID_PARAMETER));
    }
    // Before this thread is pinned.
    super::system::allowed();
    // SAFETY: C Caller: the entry point may be called with this parameter.
    let entered = unsafe { raw::enter(entry, parameter) };
    done(entered.map_err(|error| {
        if let EnterError::Watch(_) = error {
            say(&error);
        }
        ERROR_NOT_SUPPORTED
    }))
}

/// Executes a worker. Returns only if that fails; the last error says why.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ExecuteUmsThread(pointer: ContextPointer) -> BOOL {
    let Ok(Found(found, _)) = pointer.find() else {
        SetLastError(ERROR_INVALID_PARAMETER);
        return FALSE;
    };
    // SAFETY: No Drops: nothing between this call and `enter` needs a destructor. Held: the context
    // is alive.
    let failed = unsafe { raw::execute(found) };
    SetLastError(match failed {
        ExecuteError::Locked => ERROR_RETRY,
        ExecuteError::Running => ERROR_INTERNAL_ERROR,
        // The caller is a plain thread or a worker.
        ExecuteError::NotAScheduler => ERROR_NOT_SUPPORTED,
        // Also for a worker that is suspended or terminated: see docs/windows-c.md.
        _ => ERROR_INVALID_PARAMETER,
    });
    FALSE
}
