//! Attempts that answer two questions which only the kernel can answer: whether perf events and
//! guard pages work.
//!
//! Each function makes one attempt, undoes it, and returns the kernel's answer. Afterwards nothing
//! is enabled, mapped or open.
//!
//! What this file does not do: it draws no conclusions; `facts` does.

use std::io;

use super::perf::{Attr, DISABLED};
pub(super) use super::plain::guard_install;
#[cfg(test)]
pub(super) use super::plain::unshare_descriptors;

/// Opens, in a disabled state, the event that notices a blocking worker and stops it.
///
/// # Errors
///
/// The errors of [`Attr::open`].
pub(super) fn perf_gate() -> io::Result<()> {
    let gate = Attr::gate();
    Attr { flags: gate.flags | DISABLED, ..gate }.open().map(drop)
}

/// Opens, in a disabled state, the event that only records context switches.
///
/// # Errors
///
/// The errors of [`Attr::open`].
pub(super) fn perf_notify() -> io::Result<()> {
    let notify = Attr::notify();
    Attr { flags: notify.flags | DISABLED, ..notify }.open().map(drop)
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
