//! The UMS functions: completion lists, worker contexts, scheduling mode.
//!
//! `ums::windows` does the work. This file has the C types, checks for mistakes that C programs can
//! make, and the error numbers. No function here that an entry point may call locks or allocates.

use std::ffi::c_void;

use ums::windows::ThreadKind;
use ums::windows::raw;

use super::error::{
    BOOL, ERROR_BAD_LENGTH, ERROR_INVALID_PARAMETER, ERROR_NOT_ENOUGH_MEMORY, ERROR_NOT_SUPPORTED,
    FALSE, done, given, guarded,
};
use super::handle::{self, CURRENT_THREAD, HANDLE};
use super::object::INFINITE;
use super::pthread::this_thread;
use super::waitable::KernelObject;
use super::worker::{ContextPointer, Found, ListPointer, UMS_VERSION};
use crate::caller::{Array, Count, Out, Place};

/// `UMS_SYSTEM_THREAD_INFORMATION`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ThreadInformation {
    version: u32,
    /// Bit 0: the thread is a scheduler. Bit 1: it is a worker.
    flags: u32,
}

const USER_CONTEXT: u32 = 1;
const PRIORITY: u32 = 2;
const AFFINITY: u32 = 3;
const TEB: u32 = 4;
const IS_SUSPENDED: u32 = 5;
const IS_TERMINATED: u32 = 6;
/// Not a class of Windows: it exists only in this library.
const COUNTS: u32 = 0x100;

/// `UMS_THREAD_COUNTS`, with the names that Windows uses.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Counts {
    switches: u64,
    yields: u64,
    kernel_yields: u64,
    mixed_yields: u64,
}

/// Creates a completion list.
#[unsafe(no_mangle)]
pub extern "C" fn CreateUmsCompletionList(mut out: Out<'_, ListPointer>) -> BOOL {
    guarded(FALSE, || {
        if out.is_null() {
            return Err(ERROR_INVALID_PARAMETER);
        }
        out.put(ListPointer::make()?);
        Ok(1)
    })
}

/// Deletes a completion list. ERROR_BUSY: it still has workers, and it is not deleted.
#[unsafe(no_mangle)]
pub extern "C" fn DeleteUmsCompletionList(pointer: ListPointer) -> BOOL {
    guarded(FALSE, || pointer.delete().map(|()| 1))
}

/// Returns the event of a completion list. It is automatic, and is signalled when a worker is
/// queued to the empty list.
#[unsafe(no_mangle)]
pub extern "C" fn GetUmsCompletionListEvent(
    pointer: ListPointer,
    mut event: Out<'_, HANDLE>,
) -> BOOL {
    guarded(FALSE, || {
        let found = pointer.find()?;
        if event.is_null() {
            return Err(ERROR_INVALID_PARAMETER);
        }
        let own = found.event().map_err(|_| ERROR_NOT_ENOUGH_MEMORY)?;
        event.put(handle::make(KernelObject::List(own))?);
        Ok(1)
    })
}

/// Takes all items of a completion list. If it is empty, waits for at most this long. If no item
/// appeared in time, the result is true with NULL as the list, as on Windows: a time limit that has
/// expired is a success there.
#[unsafe(no_mangle)]
pub extern "C" fn DequeueUmsCompletionListItems(
    pointer: ListPointer,
    ms: u32,
    mut out: Out<'_, ContextPointer>,
) -> BOOL {
    let mut dequeue = || {
        if out.is_null() {
            return Err(ERROR_INVALID_PARAMETER);
        }
        out.put(ContextPointer::NULL);
        out.put(pointer.find()?.dequeue((ms != INFINITE).then_some(ms)));
        Ok(())
    };
    done(dequeue())
}

/// Unlinks the context from its chain of dequeued contexts, and returns the next context. So a
/// second call on the same context returns NULL.
#[unsafe(no_mangle)]
pub extern "C" fn GetNextUmsListItem(pointer: ContextPointer) -> ContextPointer {
    given(ContextPointer::NULL, pointer.find().map(Found::next_item))
}

/// Creates a worker context, without a worker yet.
#[unsafe(no_mangle)]
pub extern "C" fn CreateUmsThreadContext(mut out: Out<'_, ContextPointer>) -> BOOL {
    guarded(FALSE, || {
        if out.is_null() {
            return Err(ERROR_INVALID_PARAMETER);
        }
        out.put(ContextPointer::make());
        Ok(1)
    })
}

/// Deletes a context that has no worker, or whose worker has terminated.
#[unsafe(no_mangle)]
pub extern "C" fn DeleteUmsThreadContext(pointer: ContextPointer) -> BOOL {
    guarded(FALSE, || pointer.delete().map(|()| 1))
}

/// Returns the processor to the scheduler. The parameter is passed to the entry point.
#[unsafe(no_mangle)]
pub extern "C" fn UmsThreadYield(parameter: *mut c_void) -> BOOL {
    done(raw::thread_yield(parameter.expose_provenance()).map_err(|_| ERROR_INVALID_PARAMETER))
}

/// Returns the context of the calling worker or scheduler; NULL on a plain thread.
#[unsafe(no_mangle)]
pub extern "C" fn GetCurrentUmsThread() -> ContextPointer {
    ContextPointer::current()
}

fn counts(found: Found<'_>) -> Counts {
    let told = found.counts();
    Counts {
        switches: told.executed,
        yields: told.yields,
        kernel_yields: told.kernel_yields,
        mixed_yields: told.mixed_yields,
    }
}

/// Queries a worker. The length must be exactly that of the result.
#[unsafe(no_mangle)]
pub extern "C" fn QueryUmsThreadInformation<'a>(
    pointer: ContextPointer,
    class: u32,
    buffer: Place<'a>,
    length: Count<'a>,
    mut returned: Out<'_, u32>,
) -> BOOL {
    let mut buffer = buffer.of(length);
    let mut query = || {
        returned.put(0);
        let found = pointer.find_or_own()?;
        let size = match class {
            USER_CONTEXT | TEB => size_of::<usize>(),
            IS_SUSPENDED | IS_TERMINATED => 1,
            COUNTS => size_of::<Counts>(),
            PRIORITY | AFFINITY => return Err(ERROR_NOT_SUPPORTED),
            _ => return Err(ERROR_INVALID_PARAMETER),
        };
        if buffer.size() != size {
            return Err(ERROR_BAD_LENGTH);
        }
        if buffer.is_null() {
            return Err(ERROR_INVALID_PARAMETER);
        }
        match class {
            USER_CONTEXT => buffer.put(found.user_context()),
            TEB => buffer.put(found.teb()),
            COUNTS => buffer.put(counts(found)),
            IS_SUSPENDED => buffer.put(u8::from(found.is_suspended())),
            _ => buffer.put(u8::from(found.is_terminated())),
        }
        returned.put(size as u32);
        Ok(())
    };
    done(query())
}

/// Sets a worker's user context, which is the only information that can be set.
#[unsafe(no_mangle)]
pub extern "C" fn SetUmsThreadInformation<'a>(
    pointer: ContextPointer,
    class: u32,
    buffer: Array<'a, u8>,
    length: Count<'a>,
) -> BOOL {
    let set = || {
        let found = pointer.find_or_own()?;
        match class {
            USER_CONTEXT if length.number() != size_of::<usize>() => Err(ERROR_BAD_LENGTH),
            USER_CONTEXT => {
                let word = buffer.of(length, size_of::<usize>()).first_chunk();
                let word = word.copied().ok_or(ERROR_INVALID_PARAMETER)?;
                found.set_user_context(usize::from_ne_bytes(word));
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
pub extern "C" fn GetUmsSystemThreadInformation(
    thread: HANDLE,
    mut information: Out<'_, ThreadInformation>,
) -> BOOL {
    let mut ask = || {
        let before = information.read().ok_or(ERROR_INVALID_PARAMETER)?;
        if before.version != UMS_VERSION {
            return Err(ERROR_INVALID_PARAMETER);
        }
        let id =
            if thread == CURRENT_THREAD { this_thread() } else { handle::thread(thread)?.id() };
        let flags = match ums::windows::thread_kind(id) {
            ThreadKind::Plain => 0,
            ThreadKind::Scheduler => 1,
            ThreadKind::Worker => 2,
        };
        information.put(ThreadInformation { flags, ..before });
        Ok(())
    };
    done(ask())
}
