//! Thread-local values: `TlsAlloc` and, with a function for the thread's end,
//! `FlsAlloc`. Both are keys of the pthread library.
//!
//! Each worker is a thread, so each has its own values.

use std::ffi::c_void;

use super::error::{
    BOOL, ERROR_INVALID_PARAMETER, ERROR_NOT_ENOUGH_MEMORY, SetLastError, done, given,
};
use super::system::{self, Value};

/// The index that means that none is left.
pub const TLS_OUT_OF_INDEXES: u32 = u32::MAX;

/// The function that is called with a thread's value at its end.
pub type FlsCallback = Option<extern "C" fn(*mut c_void)>;

fn checked(known: bool) -> Result<(), u32> {
    if known { Ok(()) } else { Err(ERROR_INVALID_PARAMETER) }
}

/// Creates an index.
#[unsafe(no_mangle)]
pub extern "C" fn TlsAlloc() -> u32 {
    FlsAlloc(None)
}

/// Creates an index. At a thread's end the function is called with its value, unless that is NULL.
#[unsafe(no_mangle)]
pub extern "C" fn FlsAlloc(callback: FlsCallback) -> u32 {
    given(TLS_OUT_OF_INDEXES, system::key_new(callback).ok_or(ERROR_NOT_ENOUGH_MEMORY))
}

/// Returns the calling thread's value; NULL until it has set one. The last error is set either way.
#[unsafe(no_mangle)]
pub extern "C" fn TlsGetValue(index: u32) -> *mut c_void {
    SetLastError(0);
    system::key_get(index)
}

/// Sets the calling thread's value.
#[unsafe(no_mangle)]
pub extern "C" fn TlsSetValue(index: u32, value: Value) -> BOOL {
    done(checked(value.store(index)))
}

/// Frees the index.
#[unsafe(no_mangle)]
pub extern "C" fn TlsFree(index: u32) -> BOOL {
    done(checked(system::key_free(index)))
}

/// As `TlsGetValue`.
#[unsafe(no_mangle)]
pub extern "C" fn FlsGetValue(index: u32) -> *mut c_void {
    TlsGetValue(index)
}

/// As `TlsSetValue`.
#[unsafe(no_mangle)]
pub extern "C" fn FlsSetValue(index: u32, value: Value) -> BOOL {
    TlsSetValue(index, value)
}

/// As `TlsFree`.
#[unsafe(no_mangle)]
pub extern "C" fn FlsFree(index: u32) -> BOOL {
    TlsFree(index)
}
