//! User-Mode Scheduling is not here yet: a worker cannot be created, as on Windows 11.

use std::ffi::c_void;

use super::error::ERROR_NOT_SUPPORTED;

/// The version of the structures.
pub const UMS_VERSION: u32 = 0x0100;

/// What a worker is created with.
pub(super) struct Worker {
    pub context: *mut c_void,
    pub list: *mut c_void,
}

/// Starts no worker.
pub(super) fn start(
    worker: &Worker,
    _stack: usize,
    _begin: extern "C-unwind" fn(*mut c_void) -> *mut c_void,
    _argument: *mut c_void,
) -> Result<(usize, u32), u32> {
    let _ = (worker.context, worker.list);
    Err(ERROR_NOT_SUPPORTED)
}

/// There is no worker to suspend.
pub(super) fn suspend(_address: usize) -> Option<u32> {
    None
}

/// There is no worker to resume.
pub(super) fn resume(_address: usize) -> Option<u32> {
    None
}
