//! A memory barrier on all threads of the process at once (`membarrier`), so that the frequent side
//! of a protocol needs none, and the rare side makes it for both.
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

/// Returns why there is no such barrier here, or None if there is. The kernel is asked once.
pub fn is_refused() -> Option<&'static str> {
    static REFUSED: OnceLock<Option<String>> = OnceLock::new();
    let register = || membarrier(REGISTER_PRIVATE_EXPEDITED).err().map(|error| error.to_string());
    REFUSED.get_or_init(register).as_deref()
}

/// Makes every thread of the process execute a barrier, the caller too. Only for systems that do
/// not refuse it.
pub fn on_all_threads() {
    fence(Ordering::SeqCst);
    if is_refused().is_none() {
        // Once registered it cannot fail.
        let _ = membarrier(PRIVATE_EXPEDITED);
    }
    fence(Ordering::SeqCst);
}
