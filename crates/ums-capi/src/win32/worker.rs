//! UMS workers and completion lists: which of them are alive, and what can be done with one.
//!
//! Unsafe code, because programs hold bare pointers to them. A pointer is followed only after
//! `Registry` has found it, and a program does not delete what it uses at the same time.
//!
//! `ExecuteUmsThread` does not return when it succeeds: the scheduler's stack is cut back to where
//! `EnterUmsSchedulingMode` calls the entry point. So between the two there must be no frame of
//! this crate that needs a destructor, and no `catch_unwind`.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::marker::PhantomData;
use std::os::fd::{BorrowedFd, OwnedFd};

use ums::windows::raw::{self, Context, List};
use ums::windows::{ExecuteError, WorkerCounts};

use super::error::{
    BOOL, ERROR_BUSY, ERROR_INTERNAL_ERROR, ERROR_INVALID_PARAMETER, ERROR_INVALID_THREAD_ID,
    ERROR_NOT_ENOUGH_MEMORY, ERROR_NOT_SUPPORTED, ERROR_RETRY, FALSE, SetLastError, done,
};
use super::registry::Registry;

/// The version of the structures.
pub const UMS_VERSION: u32 = 0x0100;

/// The contexts that are alive.
static CONTEXTS: Registry = Registry::new();
/// The completion lists that are alive.
static LISTS: Registry = Registry::new();

/// A program's pointer to a worker context, alive or not.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct ContextPointer(*const Context);

/// A program's pointer to a completion list, alive or not.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct ListPointer(*const List);

/// The context and the list that a worker is created with.
pub(super) struct Worker {
    pub context: ContextPointer,
    pub list: ListPointer,
}

/// A worker context that is alive for the time of the call.
#[derive(Clone, Copy)]
pub(super) struct Found<'a>(*const Context, PhantomData<&'a Context>);

/// A completion list that is alive for the time of the call.
#[derive(Clone, Copy)]
pub(super) struct FoundList<'a>(*const List, PhantomData<&'a List>);

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

    /// Returns the context, if it is alive.
    pub(super) fn find<'a>(self) -> Result<Found<'a>, u32> {
        let alive = CONTEXTS.has(self.0.addr());
        if alive { Ok(Found(self.0, PhantomData)) } else { Err(ERROR_INVALID_PARAMETER) }
    }

    /// Returns a worker's context, or the caller's own.
    pub(super) fn find_or_own<'a>(self) -> Result<Found<'a>, u32> {
        let own = raw::current();
        let is_own = !own.is_null() && own.addr() == self.0.addr();
        if is_own { Ok(Found(own, PhantomData)) } else { self.find() }
    }

    /// Deletes the context, unless its worker runs.
    pub(super) fn delete(self) -> Result<(), u32> {
        let Found(found, _) = self.find()?;
        // Out of the registry first: once deleted, the memory may become another context's.
        if !CONTEXTS.remove(found.addr()) {
            return Err(ERROR_INVALID_PARAMETER);
        }
        // SAFETY: Handed Over: this call removed it; a refusal leaves it alive.
        unsafe { raw::context_delete(found) }.map_err(|_| {
            CONTEXTS.add(found.addr());
            ERROR_INVALID_PARAMETER
        })
    }
}

impl Found<'_> {
    /// Unlinks it from the chain it was dequeued in, and returns the next one.
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

    /// Returns the list, if it is alive.
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
        // SAFETY: Handed Over: this call removed it, so the reference is released once.
        unsafe { raw::list_delete(found) };
        Ok(())
    }
}

impl FoundList<'_> {
    /// Returns a descriptor of its own for the list's event.
    pub(super) fn event(self) -> std::io::Result<OwnedFd> {
        // SAFETY: Held: the list, and with it the descriptor, is there for the time of the call.
        unsafe { BorrowedFd::borrow_raw(raw::list_event_fd(self.0)) }.try_clone_to_owned()
    }

    /// Takes all items; waits for at most this long until there is one. NULL: the time is over.
    pub(super) fn dequeue(self, limit: Option<u32>) -> ContextPointer {
        // SAFETY: Held: it is alive for the time of the call.
        ContextPointer(unsafe { raw::list_dequeue(self.0, limit) })
    }
}

/// Starts a worker's thread, which waits to be executed. Returns the address of its context, and
/// its kernel thread id. If `own` is set it has its own context.
///
/// # Safety
/// `begin` may be called with the argument, once, on the new thread.
pub(super) unsafe fn start(
    worker: &Worker,
    own: bool,
    stack: usize,
    begin: extern "C-unwind" fn(*mut c_void) -> *mut c_void,
    argument: *mut c_void,
) -> Result<(usize, u32), u32> {
    let (context, list) = (worker.context.find()?.0, worker.list.find()?.0);
    // SAFETY: Held: both are alive for the time of the call. Contract: the function accepts its
    // argument.
    let started = unsafe {
        match own {
            true => raw::context_start_as(true, context, list, stack, begin, argument),
            false => raw::context_start(context, list, stack, begin, argument),
        }
    };
    let id = started.map_err(|error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => ERROR_INVALID_PARAMETER,
        std::io::ErrorKind::Unsupported | std::io::ErrorKind::PermissionDenied => {
            ERROR_NOT_SUPPORTED
        }
        _ => ERROR_NOT_ENOUGH_MEMORY,
    })?;
    Ok((context.expose_provenance(), id))
}

fn at<'a>(address: usize) -> Option<Found<'a>> {
    ContextPointer(std::ptr::with_exposed_provenance(address)).find().ok()
}

/// Suspends a worker, given by the address of its context (0 for a thread that is no worker).
/// Returns how often it had been suspended.
pub(super) fn suspend(address: usize) -> Option<u32> {
    // SAFETY: Held: it is alive for the time of the call.
    at(address).map(|found| unsafe { raw::suspend(found.0) })
}

/// Resumes a suspended worker. Returns how often it had been suspended.
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
    // No catch_unwind around it, and nothing here needs a destructor.
    if info.is_null() {
        return done(Err(ERROR_INVALID_PARAMETER));
    }
    // SAFETY: C Caller: a structure.
    let StartupInfo { version, list, entry, parameter } = unsafe { info.read_unaligned() };
    // The list is checked only: the entry point decides which list it takes from.
    let (Some(entry), Ok(_)) = (entry, list.find()) else {
        return done(Err(ERROR_INVALID_PARAMETER));
    };
    if version != UMS_VERSION {
        return done(Err(ERROR_INVALID_PARAMETER));
    }
    // SAFETY: C Caller: the entry point may be called with this parameter.
    let entered = unsafe { raw::enter(entry, parameter) };
    // The caller is a scheduler or worker already, or there is no block watch on this system.
    done(entered.map_err(|_| ERROR_NOT_SUPPORTED))
}

/// Runs a worker. Returns only if that is not possible; the last error says why.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ExecuteUmsThread(pointer: ContextPointer) -> BOOL {
    let Ok(Found(found, _)) = pointer.find() else {
        SetLastError(ERROR_INVALID_PARAMETER);
        return FALSE;
    };
    // SAFETY: No Drops: nothing between this and `enter` needs a destructor. Held: it is alive.
    let failed = unsafe { raw::execute(found) };
    SetLastError(match failed {
        ExecuteError::Locked => ERROR_RETRY,
        ExecuteError::Running => ERROR_INTERNAL_ERROR,
        ExecuteError::Suspended | ExecuteError::Terminated => ERROR_INVALID_THREAD_ID,
        // A plain thread, or a worker.
        ExecuteError::NotAScheduler => ERROR_NOT_SUPPORTED,
        _ => ERROR_INVALID_PARAMETER,
    });
    FALSE
}
