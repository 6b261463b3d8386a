//! Signal handlers that stand before others, and call the earlier handler afterwards.
//!
//! Named invariant **Believed**: what a `sigaction` says of its handler is true, because its
//! installer told the kernel the same, and the kernel would call the handler so.
//!
//! What this file does not do: the default actions. They differ from signal to signal.

#![allow(unsafe_code)]

use libc::{c_int, c_void, siginfo_t};

/// Calls the earlier handler, as the kernel would have. Returns false if there was none: the action
/// was the default or to ignore the signal. For use in a handler: it allocates nothing and takes no
/// lock.
///
/// # Safety
/// `before` is what `sigaction` returned for this signal, and the rest are the arguments of the
/// calling handler.
pub unsafe fn call_before(
    before: &libc::sigaction,
    signal: c_int,
    info: *mut siginfo_t,
    context: *mut c_void,
) -> bool {
    match before.sa_sigaction {
        libc::SIG_DFL | libc::SIG_IGN => return false,
        handler if before.sa_flags & libc::SA_SIGINFO != 0 => {
            type Handler = extern "C" fn(c_int, *mut siginfo_t, *mut c_void);
            // SAFETY: Believed: by SA_SIGINFO it has this signature.
            let handler = unsafe { std::mem::transmute::<usize, Handler>(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: Believed: without SA_SIGINFO it has this one.
            let handler = unsafe { std::mem::transmute::<usize, extern "C" fn(c_int)>(handler) };
            handler(signal);
        }
    }
    true
}
