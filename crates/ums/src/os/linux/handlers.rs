//! Handlers of signals that stand before others: whoever was there first is called afterwards.
//!
//! Named invariant **Believed**: what a `sigaction` says of its handler is true, for whoever
//! installed it told the kernel the same, which would call it so.
//!
//! It does not do: the default actions. What becomes of a signal that nobody handled differs from
//! signal to signal.

#![allow(unsafe_code)]

use libc::{c_int, c_void, siginfo_t};

/// Calls the handler that was there before, as the kernel would have. False: there was none, the
/// action was the default or to ignore the signal. For use in a handler: it allocates nothing and
/// takes no lock.
///
/// # Safety
/// `before` is what `sigaction` gave for this signal, and the rest are the arguments of the calling
/// handler.
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
