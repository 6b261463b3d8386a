//! Trying what only the kernel can answer: perf events and guard pages.
//!
//! Each function makes one attempt, undoes it, and gives back the kernel's answer. Named invariant
//! *Own Attempt*: the kernel is handed only memory and descriptors that the function made itself and
//! that live until it returns; nothing is enabled, mapped or open afterwards.
//!
//! It draws no conclusions; `facts` does.

#![allow(unsafe_code)] // Named invariant "Own Attempt", see above.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr;

/// `struct perf_event_attr` up to `sig_data` (size 128, Linux 5.13), written from perf_event_open(2);
/// libc has no such type.
#[repr(C)]
#[derive(Default)]
struct PerfEventAttr {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_watermark: u32,
    bp_type: u32,
    config1: u64,
    config2: u64,
    branch_sample_type: u64,
    sample_regs_user: u64,
    sample_stack_user: u32,
    clock: i32,
    sample_regs_intr: u64,
    aux_watermark: u32,
    sample_max_stack: u16,
    reserved_2: u16,
    aux_sample_size: u32,
    reserved_3: u32,
    sig_data: u64,
}

const _: () = assert!(size_of::<PerfEventAttr>() == 128);

const PERF_TYPE_SOFTWARE: u32 = 1;
const PERF_COUNT_SW_CONTEXT_SWITCHES: u64 = 3;
const PERF_COUNT_SW_DUMMY: u64 = 9;
const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 8;

// Bits of `flags`.
const DISABLED: u64 = 1 << 0;
const EXCLUDE_KERNEL: u64 = 1 << 5;
const EXCLUDE_HV: u64 = 1 << 6;
const WATERMARK: u64 = 1 << 14;
const CONTEXT_SWITCH: u64 = 1 << 26;
const REMOVE_ON_EXEC: u64 = 1 << 36;
const SIGTRAP: u64 = 1 << 37;

/// Opens, disabled, the event that notices and gates a blocking worker: every context switch of this
/// thread sends it SIGTRAP.
///
/// It includes the kernel on purpose: with `exclude_kernel` the event opens without privilege, but
/// never counts, because a switch happens in the kernel.
///
/// # Errors
///
/// `EACCES` without CAP_PERFMON while perf_event_paranoid is above 1; `EINVAL` or `E2BIG` before
/// Linux 5.13; `EPERM` or `ENOSYS` under a seccomp filter.
pub(super) fn perf_gate() -> io::Result<()> {
    let flags = DISABLED | EXCLUDE_HV | WATERMARK | CONTEXT_SWITCH | REMOVE_ON_EXEC | SIGTRAP;
    perf_open(&PerfEventAttr {
        config: PERF_COUNT_SW_CONTEXT_SWITCHES,
        sample_period: 1,
        wakeup_watermark: 0x7fff_ffff,
        flags,
        ..PerfEventAttr::default()
    })
}

/// Opens, disabled, the event that only records context switches, which needs no privilege.
///
/// # Errors
///
/// `EACCES` while perf_event_paranoid is above 2; `EPERM` or `ENOSYS` under a seccomp filter.
pub(super) fn perf_notify() -> io::Result<()> {
    perf_open(&PerfEventAttr {
        config: PERF_COUNT_SW_DUMMY,
        wakeup_watermark: 0x7fff_ffff,
        flags: DISABLED | EXCLUDE_KERNEL | EXCLUDE_HV | WATERMARK | CONTEXT_SWITCH,
        ..PerfEventAttr::default()
    })
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

/// Opens an event of software kind on the calling thread, and closes it.
fn perf_open(attr: &PerfEventAttr) -> io::Result<()> {
    let size = size_of::<PerfEventAttr>() as u32;
    let attr = PerfEventAttr { kind: PERF_TYPE_SOFTWARE, size, ..*attr };
    let (this_thread, any_cpu, no_group) = (0, -1, -1);
    // SAFETY: Own Attempt: `attr` is a local whose `size` field says how long it is; the kernel
    // only reads it.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            &attr,
            this_thread,
            any_cpu,
            no_group,
            PERF_FLAG_FD_CLOEXEC,
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: Own Attempt: the call has just returned this descriptor to us and no one else; as an
    // `OwnedFd` it is closed here.
    drop(unsafe { OwnedFd::from_raw_fd(fd as i32) });
    Ok(())
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
    // SAFETY: Own Attempt: `page` is the mapping made above, of this size, which no one touches.
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

    #[test]
    fn the_field_of_the_signal_lies_where_the_kernel_expects_it() {
        // E2BIG means that the kernel found something that is not 0 beyond what it knows; EINVAL
        // for an impossible kind shows that it got as far as reading the first field.
        let attr = PerfEventAttr { config: u64::MAX, ..PerfEventAttr::default() };
        assert!(perf_open(&attr).is_err(), "there is no software event of this number");
        assert_eq!(std::mem::offset_of!(PerfEventAttr, sig_data), 120);
        assert_eq!(std::mem::offset_of!(PerfEventAttr, flags), 40);
    }
}
