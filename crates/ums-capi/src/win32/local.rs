//! Thread-local values: `TlsAlloc` and, with a function for the thread's end,
//! `FlsAlloc`. Both are keys of the pthread library.
//!
//! Each worker is a thread, so each has its own values.

#![allow(unsafe_code)] // Named invariants "Plain Call" of ARCHITECTURE.md, "C Caller" of lib.rs.

use std::ffi::c_void;

use super::error::{
    BOOL, ERROR_INVALID_PARAMETER, ERROR_NOT_ENOUGH_MEMORY, SetLastError, done, given,
};

/// The index that means that none is left.
pub const TLS_OUT_OF_INDEXES: u32 = u32::MAX;

/// The function that is called with a thread's value at its end.
pub type FlsCallback = Option<unsafe extern "C" fn(*mut c_void)>;

fn checked(failed: i32) -> Result<(), u32> {
    if failed == 0 { Ok(()) } else { Err(ERROR_INVALID_PARAMETER) }
}

/// Creates an index.
#[unsafe(no_mangle)]
pub extern "C" fn TlsAlloc() -> u32 {
    FlsAlloc(None)
}

/// Creates an index. At a thread's end the function is called with its value, unless that is NULL.
#[unsafe(no_mangle)]
pub extern "C" fn FlsAlloc(callback: FlsCallback) -> u32 {
    let mut key = 0;
    // SAFETY: Plain Call: `key` outlives it.
    let failed = unsafe { libc::pthread_key_create(&mut key, callback) };
    given(TLS_OUT_OF_INDEXES, checked(failed).map(|()| key).map_err(|_| ERROR_NOT_ENOUGH_MEMORY))
}

/// Returns the calling thread's value; NULL until it has set one. The last error is set either way.
#[unsafe(no_mangle)]
pub extern "C" fn TlsGetValue(index: u32) -> *mut c_void {
    SetLastError(0);
    // SAFETY: Plain Call: an invalid index gives NULL.
    unsafe { libc::pthread_getspecific(index) }
}

/// Sets the calling thread's value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TlsSetValue(index: u32, value: *mut c_void) -> BOOL {
    // SAFETY: Plain Call: an invalid index is an error; the value is not dereferenced.
    done(checked(unsafe { libc::pthread_setspecific(index, value) }))
}

/// Frees the index.
#[unsafe(no_mangle)]
pub extern "C" fn TlsFree(index: u32) -> BOOL {
    // SAFETY: Plain Call: an invalid index is an error.
    done(checked(unsafe { libc::pthread_key_delete(index) }))
}

/// As `TlsGetValue`.
#[unsafe(no_mangle)]
pub extern "C" fn FlsGetValue(index: u32) -> *mut c_void {
    TlsGetValue(index)
}

/// As `TlsSetValue`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn FlsSetValue(index: u32, value: *mut c_void) -> BOOL {
    // SAFETY: C Caller: passed on.
    unsafe { TlsSetValue(index, value) }
}

/// As `TlsFree`.
#[unsafe(no_mangle)]
pub extern "C" fn FlsFree(index: u32) -> BOOL {
    TlsFree(index)
}
