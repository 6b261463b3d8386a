//! The last error of the calling thread, with the numbers that Windows uses.

use std::cell::Cell;

/// A C truth value: 0 is false.
pub type BOOL = i32;

/// The call succeeded.
#[allow(dead_code)] // For the header.
pub const ERROR_SUCCESS: u32 = 0;
/// There is no such handle.
pub const ERROR_INVALID_HANDLE: u32 = 6;
/// The system is out of memory, or of a similar resource.
pub const ERROR_NOT_ENOUGH_MEMORY: u32 = 8;
/// A structure has the wrong size. Also used for `STATUS_INFO_LENGTH_MISMATCH`.
pub const ERROR_BAD_LENGTH: u32 = 24;
/// There is no room for another attribute.
pub const ERROR_GEN_FAILURE: u32 = 31;
/// This library does not support the feature.
pub const ERROR_NOT_SUPPORTED: u32 = 50;
/// A parameter is invalid.
pub const ERROR_INVALID_PARAMETER: u32 = 87;
/// The buffer is too small; the required size has been stored.
pub const ERROR_INSUFFICIENT_BUFFER: u32 = 122;
/// The object is in use.
pub const ERROR_BUSY: u32 = 170;
/// The caller does not own the mutex.
pub const ERROR_NOT_OWNER: u32 = 288;
/// The semaphore's count would exceed its maximum.
pub const ERROR_TOO_MANY_POSTS: u32 = 298;
/// The context is locked for a moment; the program should try again.
pub const ERROR_RETRY: u32 = 1237;
/// Another scheduler executes the context. Also used for an unexpected failure.
pub const ERROR_INTERNAL_ERROR: u32 = 1359;
/// The time limit has expired.
pub const ERROR_TIMEOUT: u32 = 1460;

/// False and true.
pub const FALSE: BOOL = 0;
/// See [`FALSE`].
pub const TRUE: BOOL = 1;

thread_local! {
    // It has no destructor and a constant initial value, so no use of it allocates.
    static LAST: Cell<u32> = const { Cell::new(0) };
}

/// Returns the last error of the calling thread.
#[unsafe(no_mangle)]
pub extern "C" fn GetLastError() -> u32 {
    LAST.get()
}

/// Sets the last error of the calling thread.
#[unsafe(no_mangle)]
pub extern "C" fn SetLastError(code: u32) {
    LAST.set(code);
}

/// Returns true for success. For an error, stores it as the last error and returns false.
pub(super) fn done(result: Result<(), u32>) -> BOOL {
    match result {
        Ok(()) => TRUE,
        Err(code) => {
            SetLastError(code);
            FALSE
        }
    }
}

/// Returns the value. For an error, stores it as the last error and returns `failed`.
pub(super) fn given<T>(failed: T, result: Result<T, u32>) -> T {
    result.unwrap_or_else(|code| {
        SetLastError(code);
        failed
    })
}

/// Like [`given`], for work that calls much code: a panic in it becomes `ERROR_INTERNAL_ERROR`. It
/// must not be used for functions whose stack may be cut off.
pub(super) fn guarded<T>(failed: T, work: impl FnOnce() -> Result<T, u32>) -> T {
    let work = std::panic::AssertUnwindSafe(work);
    given(failed, std::panic::catch_unwind(work).unwrap_or(Err(ERROR_INTERNAL_ERROR)))
}

/// Returns the Windows error that corresponds to the current `errno`.
pub(super) fn os() -> u32 {
    match std::io::Error::last_os_error().raw_os_error() {
        Some(libc::EINVAL) => ERROR_INVALID_PARAMETER,
        Some(libc::EPERM | libc::EACCES | libc::ENOSYS) => ERROR_NOT_SUPPORTED,
        _ => ERROR_NOT_ENOUGH_MEMORY,
    }
}
