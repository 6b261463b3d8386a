//! Attempts at what only the kernel can answer: perf events and guard pages.
//!
//! Each function makes one attempt, undoes it, and returns the kernel's answer. Named invariant
//! *Own Attempt*: the kernel is handed only memory and descriptors that the function made itself
//! and that live until it returns; nothing is enabled, mapped or open afterwards.
//!
//! It draws no conclusions; `facts` does.

#![allow(unsafe_code)] // Named invariant "Own Attempt", see above.

use std::io;
use std::ptr;

use super::perf::{Attr, DISABLED};

/// Opens, disabled, the event that notices and gates a blocking worker.
///
/// # Errors
///
/// As [`Attr::open`].
pub(super) fn perf_gate() -> io::Result<()> {
    let gate = Attr::gate();
    Attr { flags: gate.flags | DISABLED, ..gate }.open().map(drop)
}

/// Opens, disabled, the event that only records context switches.
///
/// # Errors
///
/// As [`Attr::open`].
pub(super) fn perf_notify() -> io::Result<()> {
    let notify = Attr::notify();
    Attr { flags: notify.flags | DISABLED, ..notify }.open().map(drop)
}

/// Gives the calling thread a descriptor table of its own, so that a test can count in it while
/// other tests open and close theirs.
#[cfg(test)]
pub(super) fn unshare_descriptors() {
    use rustix::thread::{UnshareFlags, unshare_unsafe};
    // SAFETY: Own Attempt: the thread that asks for this only probes from here on, with descriptors
    // that it opens itself; it meets none that another thread opens later.
    unsafe { unshare_unsafe(UnshareFlags::FILES) }.unwrap();
}

/// Installs a guard in a fresh mapping of one page with `MADV_GUARD_INSTALL`.
///
/// # Errors
///
/// `EINVAL` before Linux 6.13.
pub(super) fn guard_install() -> io::Result<()> {
    const MADV_GUARD_INSTALL: libc::c_int = 102;
    let size = rustix::param::page_size();
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: Own Attempt: a new anonymous mapping at an address that the kernel chooses.
    let page = unsafe { libc::mmap(ptr::null_mut(), size, access, kind, -1, 0) };
    if page == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: Own Attempt: `page` is the mapping made above, of this size, and only used here.
    let answer = match unsafe { libc::madvise(page, size, MADV_GUARD_INSTALL) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    };
    // SAFETY: Own Attempt: the same mapping; nothing refers to it after this.
    unsafe { libc::munmap(page, size) };
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_success_or_an_error_that_the_manual_names() {
        let perf = [libc::EACCES, libc::EPERM, libc::ENOSYS, libc::EINVAL, libc::E2BIG];
        for answer in [perf_gate(), perf_notify()] {
            assert!(answer.is_ok() || perf.contains(&answer.unwrap_err().raw_os_error().unwrap()));
        }
        let guard = guard_install().map_err(|error| error.raw_os_error());
        assert!(matches!(guard, Ok(()) | Err(Some(libc::EINVAL | libc::EPERM))), "{guard:?}");
    }
}
