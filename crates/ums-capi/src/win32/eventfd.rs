//! Eventfds: what every object that can be waited for has.

#![allow(unsafe_code)] // Named invariant "Plain Call" of ARCHITECTURE.md.

use std::os::fd::{FromRawFd, OwnedFd, RawFd};

use super::error::os;

/// Creates an eventfd.
pub(super) fn eventfd(count: u32, flags: i32) -> Result<OwnedFd, u32> {
    // SAFETY: Plain Call; a descriptor that is not negative is new and belongs to this function.
    unsafe {
        let fd = libc::eventfd(count, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK | flags);
        if fd < 0 { Err(os()) } else { Ok(OwnedFd::from_raw_fd(fd)) }
    }
}

/// Adds to the count of an eventfd.
pub(super) fn signal(fd: RawFd, count: u64) {
    // SAFETY: Plain Call: eight bytes. It fails only when the count is full, which signals as well.
    unsafe { libc::write(fd, (&raw const count).cast(), 8) };
}

/// Reads the count of an eventfd, which resets it. Returns false if the count was 0.
pub(super) fn take(fd: RawFd) -> bool {
    let mut count = 0u64;
    // SAFETY: Plain Call: eight bytes.
    unsafe { libc::read(fd, (&raw mut count).cast(), 8) == 8 }
}

/// Returns true if the count of an eventfd is not 0.
pub(super) fn is_readable(fd: RawFd) -> bool {
    let mut set = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: Plain Call: the structure outlives it.
    unsafe { libc::poll(&mut set, 1, 0) > 0 }
}
