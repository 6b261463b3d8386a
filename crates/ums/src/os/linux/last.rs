//! The very end of a thread: after the destructors of its thread-locals.
//!
//! Named invariant **Plain Call**: see ARCHITECTURE.md.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::sync::OnceLock;

/// Registers `call` to run on the calling thread after the destructors of its thread-locals. It may
/// be registered again from there on, also while it runs; the C library then runs it some more
/// times, at least four in all. If the C library can keep no more such calls, this one is not run.
///
/// It is for one function: only the first that is passed is ever run.
pub fn at_the_very_end(call: extern "C" fn(*mut c_void)) {
    static KEY: OnceLock<Option<libc::pthread_key_t>> = OnceLock::new();
    let make = || {
        let mut key = 0;
        // SAFETY: Plain Call: `key` is a local, and functions live as long as the process.
        (unsafe { libc::pthread_key_create(&mut key, Some(call)) } == 0).then_some(key)
    };
    if let Some(key) = *KEY.get_or_init(make) {
        // Any value other than null will do.
        let value = std::ptr::from_ref(&KEY).cast();
        // SAFETY: Plain Call: a key that was made; the value is only compared with null.
        unsafe { libc::pthread_setspecific(key, value) };
    }
}
