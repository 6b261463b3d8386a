//! A memory barrier on all threads of the process at once (`membarrier`), so that what is done
//! often needs none, and what is done rarely makes it for both.
//!
//! Named invariant **Plain Call**: see ARCHITECTURE.md.

#![allow(unsafe_code)]

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{Ordering, fence};

const PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
const REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;

fn membarrier(command: libc::c_int) -> io::Result<()> {
    // SAFETY: Plain Call: numbers.
    let result = unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Why there is no such barrier here; None: there is. Asked for once.
pub fn is_refused() -> Option<&'static str> {
    static REFUSED: OnceLock<Option<String>> = OnceLock::new();
    let register = || membarrier(REGISTER_PRIVATE_EXPEDITED).err().map(|error| error.to_string());
    REFUSED.get_or_init(register).as_deref()
}

/// Every thread of the process executes a barrier, the caller too. On this machine that is not
/// refused.
pub fn on_all_threads() {
    fence(Ordering::SeqCst);
    if is_refused().is_none() {
        // Once registered it cannot fail.
        let _ = membarrier(PRIVATE_EXPEDITED);
    }
    fence(Ordering::SeqCst);
}
