//! Waiting on a word.
//!
//! No wake-up is lost: the kernel compares the word with what the waiter saw before it sleeps.

#![allow(unsafe_code)] // Named invariant "Plain Call" of ARCHITECTURE.md.

use std::sync::atomic::{AtomicU32, Ordering};

use ums::watch::calls::may_block;

/// Sleeps while the word is `seen`, for at most this many milliseconds (None: no limit). Returns
/// false if the time is over.
pub fn wait(word: &AtomicU32, seen: u32, ms: Option<u32>) -> bool {
    let span = ms.map(|ms| libc::timespec {
        tv_sec: i64::from(ms / 1000),
        tv_nsec: i64::from(ms % 1000) * 1_000_000,
    });
    let span = span.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let op = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    let result = may_block(
        || word.load(Ordering::Relaxed) == seen,
        // SAFETY: Plain Call: the word and the time outlive it.
        || unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), op, seen, span) },
    );
    result == 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::ETIMEDOUT)
}

/// Wakes at most this many threads that sleep on the word.
pub fn wake(word: &AtomicU32, count: i32) {
    // SAFETY: Plain Call: the kernel uses the address as a name only.
    unsafe {
        let op = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
        libc::syscall(libc::SYS_futex, word.as_ptr(), op, count);
    }
}
