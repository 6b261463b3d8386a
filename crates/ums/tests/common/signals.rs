//! Which signals a kernel thread blocks.
//!
//! Named invariant **Own Memory**: calls get memory of the caller's.

#![allow(unsafe_code)]

use std::collections::HashSet;

/// Those of the calling one.
pub fn blocked_signals() -> HashSet<i32> {
    // SAFETY: Own Memory: a local, which zeros are a value of.
    let set = unsafe {
        let mut set = std::mem::zeroed();
        libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &mut set);
        set
    };
    // SAFETY: Own Memory: as above.
    (1..32).filter(|signal| unsafe { libc::sigismember(&set, *signal) } == 1).collect()
}
