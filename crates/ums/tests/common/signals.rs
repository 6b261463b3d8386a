//! Which signals a kernel thread blocks.
//!
//! Named invariant **Own Memory**: the calls get only memory of their caller.

#![allow(unsafe_code)]

use std::collections::HashSet;

/// Returns the signals that the calling thread blocks.
pub fn blocked_signals() -> HashSet<i32> {
    // SAFETY: Own Memory: a local, for which all zeros are a valid value.
    let set = unsafe {
        let mut set = std::mem::zeroed();
        libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &mut set);
        set
    };
    // SAFETY: Own Memory: as above.
    (1..32).filter(|signal| unsafe { libc::sigismember(&set, *signal) } == 1).collect()
}
