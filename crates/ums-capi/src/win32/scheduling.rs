//! The UMS functions: completion lists, worker contexts, scheduling mode.
//!
//! The work is done by `ums::windows`; here are the C types, the checks of what C programs can get
//! wrong, and the error numbers. Nothing here that an entry point may call locks or allocates.
//!
//! `ExecuteUmsThread` does not return when it succeeds: the scheduler's stack is cut back to where
//! `EnterUmsSchedulingMode` calls the entry point. So between the two there must be no frame of
//! this crate that needs a destructor, and no `catch_unwind`.
//!
//! Named invariant **Live Pointer**: see `worker.rs`.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::os::fd::{BorrowedFd, RawFd};

use ums::windows::raw::{self, Context};
use ums::windows::{ExecuteError, ThreadKind};

use super::error::{
    BOOL, ERROR_BAD_LENGTH, ERROR_BUSY, ERROR_INTERNAL_ERROR, ERROR_INVALID_PARAMETER,
    ERROR_INVALID_THREAD_ID, ERROR_NOT_ENOUGH_MEMORY, ERROR_NOT_SUPPORTED, ERROR_RETRY,
    ERROR_TIMEOUT, FALSE, SetLastError, done, guarded,
};
use super::handle::{self, CURRENT_THREAD, HANDLE};
use super::object::INFINITE;
use super::pthread::this_thread;
use super::waitable::Object;
use super::worker::{CONTEXTS, LISTS, UMS_VERSION, context, list};

/// `UMS_SCHEDULER_STARTUP_INFO`.
#[repr(C)]
pub struct StartupInfo {
    version: u32,
    list: *mut c_void,
    entry: EntryPoint,
    parameter: *mut c_void,
}

/// `UmsSchedulerProc`.
pub type EntryPoint =
    Option<extern "C-unwind" fn(reason: u32, payload: usize, parameter: *mut c_void)>;

/// `UMS_SYSTEM_THREAD_INFORMATION`.
#[repr(C)]
pub struct ThreadInformation {
    version: u32,
    /// Bit 0: a scheduler. Bit 1: a worker.
    flags: u32,
}

const USER_CONTEXT: u32 = 1;
const PRIORITY: u32 = 2;
const AFFINITY: u32 = 3;
const TEB: u32 = 4;
const IS_SUSPENDED: u32 = 5;
const IS_TERMINATED: u32 = 6;
/// Exists only in this library.
const COUNTS: u32 = 0x100;

/// `UMS_THREAD_COUNTS`, with Windows' names.
#[repr(C)]
pub struct Counts {
    switches: u64,
    yields: u64,
    kernel_yields: u64,
    mixed_yields: u64,
}

/// Gives a pointer to the caller.
///
/// # Safety
/// C Caller: `out` is NULL or writable.
unsafe fn give(out: *mut *mut c_void, pointer: *const c_void) -> Result<(), u32> {
    if out.is_null() {
        return Err(ERROR_INVALID_PARAMETER);
    }
    // SAFETY: C Caller: `out` is writable.
    unsafe { *out = pointer.cast_mut() };
    Ok(())
}

/// Creates a completion list.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn CreateUmsCompletionList(out: *mut *mut c_void) -> BOOL {
    guarded(FALSE, || {
        if out.is_null() {
            return Err(ERROR_INVALID_PARAMETER);
        }
        let made = raw::list_new().map_err(|_| ERROR_NOT_ENOUGH_MEMORY)?;
        LISTS.add(made.addr());
        // SAFETY: C Caller: passed on.
        unsafe { give(out, made.cast()) }.map(|()| 1)
    })
}

/// Deletes a completion list. ERROR_BUSY: it still has workers, and is not deleted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn DeleteUmsCompletionList(pointer: *mut c_void) -> BOOL {
    guarded(FALSE, || {
        let found = list(pointer)?;
        // SAFETY: Live Pointer.
        if unsafe { raw::list_members(found) } > 0 {
            return Err(ERROR_BUSY);
        }
        if !LISTS.remove(pointer.addr()) {
            return Err(ERROR_INVALID_PARAMETER);
        }
        // SAFETY: Live Pointer: this call removed it, so the reference is released once.
        unsafe { raw::list_delete(found) };
        Ok(1)
    })
}

/// Returns the event of a completion list: automatic, signalled when the list stops being empty.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn GetUmsCompletionListEvent(
    pointer: *mut c_void,
    event: *mut HANDLE,
) -> BOOL {
    guarded(FALSE, || {
        // SAFETY: Live Pointer.
        let fd: RawFd = unsafe { raw::list_event_fd(list(pointer)?) };
        if event.is_null() {
            return Err(ERROR_INVALID_PARAMETER);
        }
        // SAFETY: Live Pointer: the descriptor is open as long as the list exists.
        let own = unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned();
        let made = handle::make(Object::List(own.map_err(|_| ERROR_NOT_ENOUGH_MEMORY)?))?;
        // SAFETY: C Caller: `event` is writable.
        unsafe { give(event, made) }.map(|()| 1)
    })
}

/// Takes all items of a completion list; waits for at most this long until there is one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn DequeueUmsCompletionListItems(
    pointer: *mut c_void,
    ms: u32,
    out: *mut *mut c_void,
) -> BOOL {
    let dequeue = || {
        // SAFETY: C Caller: passed on.
        unsafe { give(out, std::ptr::null()) }?;
        let limit = (ms != INFINITE).then_some(ms);
        // SAFETY: Live Pointer.
        let first = unsafe { raw::list_dequeue(list(pointer)?, limit) };
        if first.is_null() {
            return Err(ERROR_TIMEOUT);
        }
        // SAFETY: C Caller: passed on.
        unsafe { give(out, first.cast()) }
    };
    done(dequeue())
}

/// Unlinks the context from the chain it was dequeued in, and returns the next one. So a second
/// call on the same context returns NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn GetNextUmsListItem(pointer: *mut c_void) -> *mut c_void {
    // SAFETY: Live Pointer.
    let next = context(pointer).map(|found| unsafe { raw::next_item(found) });
    super::error::given(std::ptr::null_mut(), next.map(|next| next.cast_mut().cast()))
}

/// Creates a worker context, without a worker yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn CreateUmsThreadContext(out: *mut *mut c_void) -> BOOL {
    guarded(FALSE, || {
        if out.is_null() {
            return Err(ERROR_INVALID_PARAMETER);
        }
        let made = raw::context_new();
        CONTEXTS.add(made.addr());
        // SAFETY: C Caller: passed on.
        unsafe { give(out, made.cast()) }.map(|()| 1)
    })
}

/// Deletes a context whose worker has terminated or never existed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn DeleteUmsThreadContext(pointer: *mut c_void) -> BOOL {
    guarded(FALSE, || {
        let found = context(pointer)?;
        // Out of the registry first: once deleted, the memory may become another context's.
        if !CONTEXTS.remove(pointer.addr()) {
            return Err(ERROR_INVALID_PARAMETER);
        }
        // SAFETY: Live Pointer: this call removed it; a refusal leaves it alive.
        let deleted = unsafe { raw::context_delete(found) };
        deleted.map(|()| 1).map_err(|_| {
            CONTEXTS.add(pointer.addr());
            ERROR_INVALID_PARAMETER
        })
    })
}

/// Makes the calling thread a scheduler until its entry point returns.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn EnterUmsSchedulingMode(info: *const StartupInfo) -> BOOL {
    // No catch_unwind around it, and nothing here needs a destructor.
    if info.is_null() {
        return done(Err(ERROR_INVALID_PARAMETER));
    }
    // SAFETY: C Caller: a structure.
    let StartupInfo { version, list: pointer, entry, parameter } = unsafe { info.read_unaligned() };
    // The list is checked only: the entry point decides which list it takes from.
    let (Some(entry), Ok(_)) = (entry, list(pointer)) else {
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
pub unsafe extern "C-unwind" fn ExecuteUmsThread(pointer: *mut c_void) -> BOOL {
    let Ok(found) = context(pointer) else {
        SetLastError(ERROR_INVALID_PARAMETER);
        return FALSE;
    };
    // SAFETY: Live Pointer; nothing between this and `enter` needs a destructor.
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

/// Gives the processor back to the scheduler, with a value for its entry point.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn UmsThreadYield(parameter: *mut c_void) -> BOOL {
    done(raw::thread_yield(parameter.addr()).map_err(|_| ERROR_INVALID_PARAMETER))
}

/// Returns the context of the calling worker or scheduler; NULL on a plain thread.
#[unsafe(no_mangle)]
pub extern "C" fn GetCurrentUmsThread() -> *mut c_void {
    raw::current().cast_mut().cast()
}

/// Returns a worker's context, or the caller's own.
fn context_or_own(pointer: *mut c_void) -> Result<*const Context, u32> {
    let own = raw::current();
    if !own.is_null() && own.addr() == pointer.addr() { Ok(own) } else { context(pointer) }
}

/// # Safety
/// Live Pointer: a context that was found.
unsafe fn counts(context: *const Context) -> Counts {
    // SAFETY: Live Pointer, by the contract.
    let told = unsafe { raw::counts(context) };
    Counts {
        switches: told.executed,
        yields: told.yields,
        kernel_yields: told.kernel_yields,
        mixed_yields: told.mixed_yields,
    }
}

/// Queries a worker. The length must be exactly that of the answer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn QueryUmsThreadInformation(
    pointer: *mut c_void,
    class: u32,
    buffer: *mut c_void,
    length: u32,
    returned: *mut u32,
) -> BOOL {
    let query = || {
        if !returned.is_null() {
            // SAFETY: C Caller: writable.
            unsafe { *returned = 0 };
        }
        let found = context_or_own(pointer)?;
        let size = match class {
            USER_CONTEXT | TEB => size_of::<usize>(),
            IS_SUSPENDED | IS_TERMINATED => 1,
            COUNTS => size_of::<Counts>(),
            PRIORITY | AFFINITY => return Err(ERROR_NOT_SUPPORTED),
            _ => return Err(ERROR_INVALID_PARAMETER),
        };
        if length as usize != size {
            return Err(ERROR_BAD_LENGTH);
        }
        if buffer.is_null() {
            return Err(ERROR_INVALID_PARAMETER);
        }
        // SAFETY: Live Pointer, and C Caller: as many bytes as the length says can be written.
        unsafe {
            match class {
                USER_CONTEXT => buffer.cast::<usize>().write_unaligned(raw::user_context(found)),
                TEB => buffer.cast::<*mut c_void>().write_unaligned(raw::teb(found)),
                COUNTS => buffer.cast::<Counts>().write_unaligned(counts(found)),
                IS_SUSPENDED => buffer.cast::<u8>().write(raw::is_suspended(found).into()),
                _ => buffer.cast::<u8>().write(raw::is_terminated(found).into()),
            }
            if !returned.is_null() {
                *returned = length;
            }
        }
        Ok(())
    };
    done(query())
}

/// Sets a worker's user context, the only thing that can be set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn SetUmsThreadInformation(
    pointer: *mut c_void,
    class: u32,
    buffer: *const c_void,
    length: u32,
) -> BOOL {
    let set = || {
        let found = context_or_own(pointer)?;
        match class {
            USER_CONTEXT if length as usize != size_of::<usize>() => Err(ERROR_BAD_LENGTH),
            USER_CONTEXT if buffer.is_null() => Err(ERROR_INVALID_PARAMETER),
            USER_CONTEXT => {
                // SAFETY: Live Pointer, and C Caller: as many bytes as the length says.
                unsafe { raw::set_user_context(found, buffer.cast::<usize>().read_unaligned()) };
                Ok(())
            }
            PRIORITY | AFFINITY | TEB | IS_SUSPENDED | IS_TERMINATED | COUNTS => {
                Err(ERROR_NOT_SUPPORTED)
            }
            _ => Err(ERROR_INVALID_PARAMETER),
        }
    };
    done(set())
}

/// Stores whether a thread is a scheduler, a worker, or neither. For debuggers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn GetUmsSystemThreadInformation(
    thread: HANDLE,
    information: *mut ThreadInformation,
) -> BOOL {
    let ask = || {
        // SAFETY: C Caller: NULL, or a structure.
        let information = unsafe { information.as_mut() }.ok_or(ERROR_INVALID_PARAMETER)?;
        if information.version != UMS_VERSION {
            return Err(ERROR_INVALID_PARAMETER);
        }
        let id =
            if thread == CURRENT_THREAD { this_thread() } else { handle::thread(thread)?.id() };
        information.flags = match ums::windows::thread_kind(id) {
            ThreadKind::Plain => 0,
            ThreadKind::Scheduler => 1,
            ThreadKind::Worker => 2,
        };
        Ok(())
    };
    done(ask())
}
