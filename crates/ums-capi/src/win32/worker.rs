//! UMS workers: which contexts and completion lists are alive, and starting and suspending a
//! worker.
//!
//! Named invariant **Live Pointer**: a context or list is followed only after `Registry` has found
//! it, and a program does not delete what it uses at the same time.

#![allow(unsafe_code)]

use std::ffi::c_void;

use ums::windows::raw::{self, Context, List};

use super::error::{ERROR_INVALID_PARAMETER, ERROR_NOT_ENOUGH_MEMORY, ERROR_NOT_SUPPORTED};
use super::registry::Registry;

/// The version of the structures.
pub const UMS_VERSION: u32 = 0x0100;

/// The contexts that are alive.
pub(super) static CONTEXTS: Registry = Registry::new();
/// The completion lists that are alive.
pub(super) static LISTS: Registry = Registry::new();

/// The context and the list that a worker is created with.
pub(super) struct Worker {
    pub context: *mut c_void,
    pub list: *mut c_void,
}

/// Returns a worker's context, if it is alive.
pub(super) fn context(pointer: *mut c_void) -> Result<*const Context, u32> {
    let alive = CONTEXTS.has(pointer.addr());
    if alive { Ok(pointer.cast_const().cast()) } else { Err(ERROR_INVALID_PARAMETER) }
}

/// Returns a list, if it is alive.
pub(super) fn list(pointer: *mut c_void) -> Result<*const List, u32> {
    let alive = LISTS.has(pointer.addr());
    if alive { Ok(pointer.cast_const().cast()) } else { Err(ERROR_INVALID_PARAMETER) }
}

/// Starts a worker's thread, which waits to be executed. Returns the address of its context, and
/// its kernel thread id. If `own` is set it has its own context.
pub(super) fn start(
    worker: &Worker,
    own: bool,
    stack: usize,
    begin: extern "C-unwind" fn(*mut c_void) -> *mut c_void,
    argument: *mut c_void,
) -> Result<(usize, u32), u32> {
    let (context, list) = (context(worker.context)?, list(worker.list)?);
    // SAFETY: Live Pointer; the function accepts its argument.
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
    Ok((context.addr(), id))
}

/// Suspends a worker, given by the address of its context (0 for a thread that is no worker).
/// Returns how often it had been suspended.
pub(super) fn suspend(address: usize) -> Option<u32> {
    let found = context(std::ptr::with_exposed_provenance_mut(address)).ok()?;
    // SAFETY: Live Pointer.
    Some(unsafe { raw::suspend(found) })
}

/// Resumes a suspended worker. Returns how often it had been suspended.
pub(super) fn resume(address: usize) -> Option<u32> {
    let found = context(std::ptr::with_exposed_provenance_mut(address)).ok()?;
    // SAFETY: Live Pointer.
    Some(unsafe { raw::resume(found) })
}
