//! Thread-local values: `TlsAlloc`, and `FlsAlloc`, which takes a function that is called at each
//! thread's end. Their indices are keys of the pthread library.
//!
//! Each worker is a thread, so each has its own values.
//!
//! Only indices that were made here are accepted. Any other pthread key belongs to other code,
//! whose destructor expects values of its own.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

use super::error::{
    BOOL, ERROR_INVALID_PARAMETER, ERROR_NOT_ENOUGH_MEMORY, SetLastError, done, given,
};
use super::system::{self, Value};

/// Returned instead of an index if none is left.
pub const TLS_OUT_OF_INDEXES: u32 = u32::MAX;

/// The function that is called with a thread's value at its end.
pub type FlsCallback = Option<extern "C" fn(*mut c_void)>;

/// The indices that were made here and not freed, one bit each. The C library has at most 1024 keys
/// (`PTHREAD_KEYS_MAX`), and numbers them from 0.
static MADE: [AtomicU64; 16] = [const { AtomicU64::new(0) }; 16];

/// Returns the word and the bit of an index.
fn bit(index: u32) -> Option<(&'static AtomicU64, u64)> {
    MADE.get(index as usize / 64).map(|word| (word, 1 << (index % 64)))
}

fn is_made(index: u32) -> bool {
    bit(index).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
}

fn make(callback: FlsCallback) -> Option<u32> {
    let index = system::key_new(callback)?;
    let Some((word, bit)) = bit(index) else {
        system::key_free(index);
        return None;
    };
    word.fetch_or(bit, Ordering::Relaxed);
    Some(index)
}

/// Frees an index. Returns false if it was not made here, or was freed already. Of two calls at the
/// same time, one returns true.
fn free(index: u32) -> bool {
    let made =
        bit(index).is_some_and(|(word, bit)| word.fetch_and(!bit, Ordering::Relaxed) & bit != 0);
    made && system::key_free(index)
}

fn checked(known: bool) -> Result<(), u32> {
    if known { Ok(()) } else { Err(ERROR_INVALID_PARAMETER) }
}

/// Creates an index.
#[unsafe(no_mangle)]
pub extern "C" fn TlsAlloc() -> u32 {
    FlsAlloc(None)
}

/// Creates an index. At a thread's end the function is called with the thread's value, unless that
/// is NULL.
#[unsafe(no_mangle)]
pub extern "C" fn FlsAlloc(callback: FlsCallback) -> u32 {
    given(TLS_OUT_OF_INDEXES, make(callback).ok_or(ERROR_NOT_ENOUGH_MEMORY))
}

/// Returns the calling thread's value; NULL until it has set one. The last error is set either way,
/// to ERROR_INVALID_PARAMETER for an index that was not made here.
#[unsafe(no_mangle)]
pub extern "C" fn TlsGetValue(index: u32) -> *mut c_void {
    let known = is_made(index);
    SetLastError(if known { 0 } else { ERROR_INVALID_PARAMETER });
    if known { system::key_get(index) } else { std::ptr::null_mut() }
}

/// Sets the calling thread's value.
#[unsafe(no_mangle)]
pub extern "C" fn TlsSetValue(index: u32, value: Value) -> BOOL {
    done(checked(is_made(index) && value.store(index)))
}

/// Frees the index.
#[unsafe(no_mangle)]
pub extern "C" fn TlsFree(index: u32) -> BOOL {
    done(checked(free(index)))
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
