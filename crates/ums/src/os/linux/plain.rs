//! Calls and instructions that no safe crate offers, each behind a function that is safe to call
//! with any arguments. Calls that rustix offers are made through rustix.
//!
//! Invariant **Plain Call**: a wrong number leads to an error value. A descriptor that may have
//! been closed is only read from, and the caller recognises by the data whether it is the expected
//! file.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::io;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

/// Returns the processor's time-stamp counter.
#[cfg(target_arch = "x86_64")]
#[inline]
pub fn time_stamp() -> u64 {
    // SAFETY: Plain Call: the instruction only returns a value.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Lets the processor get the cache line at `at`, which will be needed soon. No effect otherwise;
/// `at` need not be valid.
#[inline(always)]
pub fn prefetch<T>(at: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: Plain Call: the instruction accesses no memory as far as the program can see.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Does the same for a cache line that is about to be written. Otherwise a load gets the line, and
/// the write that follows asks the other processors once more.
#[inline(always)]
pub fn prefetch_to_write<T>(at: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: Plain Call: as above: a 64-bit processor knows the instruction, or ignores it.
    unsafe {
        let at = at.addr();
        core::arch::asm!("prefetchw [{}]", in(reg) at, options(nomem, nostack, preserves_flags));
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = at;
}

/// Gives the calling thread idle priority: it runs only when its processor has nothing else to run.
pub fn become_idle_priority() -> io::Result<()> {
    // SAFETY: Plain Data: numbers. The priority is 0, and with some C libraries there are more.
    let parameter: libc::sched_param = unsafe { std::mem::zeroed() };
    // SAFETY: Plain Call: a borrowed local. A thread may always lower its own priority.
    match unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &parameter) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Closes a descriptor, and returns the error, which dropping it would hide.
pub fn close(fd: OwnedFd) -> io::Result<()> {
    // SAFETY: Handed Over: `fd` is owned, and its number is no longer used.
    match unsafe { libc::close(fd.into_raw_fd()) } {
        // On Linux the descriptor is closed even after EINTR.
        0 => Ok(()),
        _ => match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            error => Err(error),
        },
    }
}

/// Registers `call` to run in the only thread of a forked child, before `fork` returns there.
pub fn at_fork_in_the_child(call: extern "C" fn()) {
    // SAFETY: Plain Call: functions live as long as the process.
    unsafe { libc::pthread_atfork(None, None, Some(call)) };
}

/// Registers `call` to run on the calling thread after the destructors of its thread-locals. During
/// or after that run, `call` may be registered again, and the C library runs it again; the C
/// library guarantees at least four runs in all. If it has no room for another such function,
/// `call` is not run.
///
/// This works for one function in the process: only the first that is passed is ever run.
pub fn at_the_very_end(call: extern "C" fn(*mut c_void)) {
    static KEY: OnceLock<Option<libc::pthread_key_t>> = OnceLock::new();
    let make = || {
        let mut key = 0;
        // SAFETY: Plain Call: `key` is a local, and functions live as long as the process.
        (unsafe { libc::pthread_key_create(&mut key, Some(call)) } == 0).then_some(key)
    };
    if let Some(key) = *KEY.get_or_init(make) {
        // Any value other than null is sufficient.
        let value = std::ptr::from_ref(&KEY).cast();
        // SAFETY: Plain Call: the key was made; the value is only compared with null.
        unsafe { libc::pthread_setspecific(key, value) };
    }
}

/// Returns new zeroed pages, which no other code uses and which are never unmapped. Returns `None`
/// if there is no memory.
pub fn pages(bytes: usize) -> Option<NonNull<u8>> {
    let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: Own Memory: a new mapping, where the kernel finds room for it.
    let start = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, prot, flags) }.ok()?;
    NonNull::new(start.cast())
}

/// Installs a guard in a new mapping of one page with `MADV_GUARD_INSTALL`, and unmaps the page.
///
/// # Errors
///
/// `EINVAL` before Linux 6.13.
pub fn guard_install() -> io::Result<()> {
    const MADV_GUARD_INSTALL: libc::c_int = 102;
    let size = rustix::param::page_size();
    let page = pages(size).ok_or(io::ErrorKind::OutOfMemory)?.as_ptr().cast();
    // SAFETY: Own Memory: the page was made above, and nothing refers to it after this.
    unsafe {
        let answer = match libc::madvise(page, size, MADV_GUARD_INSTALL) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        };
        libc::munmap(page, size);
        answer
    }
}

/// Calls `each` for the active functions of the calling thread, the innermost first: with the
/// address to which the function's callee returns, and that of its first instruction. Stops when
/// `each` returns false.
#[cfg(feature = "symbols")]
pub fn each_caller(mut each: impl FnMut(usize, usize) -> bool) {
    use std::ffi::c_int;
    const GO_ON: c_int = 0;
    const STOP: c_int = 9;
    // The unwinder, which every Rust program has.
    unsafe extern "C" {
        fn _Unwind_Backtrace(each: extern "C" fn(Frame, *mut c_void) -> c_int, with: *mut c_void);
        fn _Unwind_GetIP(frame: Frame) -> usize;
        fn _Unwind_FindEnclosingFunction(address: usize) -> usize;
    }
    type Frame = *mut c_void;
    extern "C" fn call<F: FnMut(usize, usize) -> bool>(frame: Frame, each: *mut c_void) -> c_int {
        // SAFETY: Plain Call: the unwinder passes its own frame, and any address is allowed.
        let (address, function) = unsafe {
            let address = _Unwind_GetIP(frame);
            (address, _Unwind_FindEnclosingFunction(address))
        };
        // SAFETY: Own Memory: this is the closure that was passed below.
        let each = unsafe { &mut *each.cast::<F>() };
        if each(address, function) { GO_ON } else { STOP }
    }
    fn of<F: FnMut(usize, usize) -> bool>(_: &F) -> extern "C" fn(Frame, *mut c_void) -> c_int {
        call::<F>
    }
    // SAFETY: Plain Call: a function of the type that the unwinder calls, and what it expects.
    unsafe { _Unwind_Backtrace(of(&each), (&raw mut each).cast()) };
}

/// Gives the calling thread its own descriptor table, so that a test can count descriptors while
/// other tests open and close theirs.
#[cfg(test)]
pub fn unshare_descriptors() {
    use rustix::thread::{UnshareFlags, unshare_unsafe};
    // SAFETY: Own Thread: from here on this thread uses only descriptors that it opens itself, and
    // none that another thread opens later.
    unsafe { unshare_unsafe(UnshareFlags::FILES) }.unwrap();
}

/// A place for a descriptor of one thread that other threads may read from. They may read even
/// after it was closed; then they get an error, or the content of some other file. It has no
/// destructor, so it can be a thread-local that is needed until the end of the thread.
#[derive(Debug)]
pub struct FdSlot(AtomicI32);

impl FdSlot {
    /// Makes a place without a descriptor.
    pub const fn new() -> FdSlot {
        FdSlot(AtomicI32::new(-1))
    }

    /// Stores a descriptor, and closes the one that was stored before.
    pub fn put(&self, fd: Option<OwnedFd>) {
        let fd = fd.map_or(-1, IntoRawFd::into_raw_fd);
        let before = self.0.swap(fd, Ordering::AcqRel);
        if before >= 0 {
            // SAFETY: Handed Over: `put` made the number from an owned descriptor, and the exchange
            // gives it to this caller alone.
            drop(unsafe { OwnedFd::from_raw_fd(before) });
        }
    }

    /// Reads from the beginning of the file. Returns the number of bytes, or `None` on an error.
    pub fn read(&self, into: &mut [u8]) -> Option<usize> {
        let fd: RawFd = self.0.load(Ordering::Acquire);
        if fd < 0 {
            return None;
        }
        // SAFETY: Plain Call: a borrowed buffer and its length.
        let n = unsafe { libc::pread(fd, into.as_mut_ptr().cast(), into.len(), 0) };
        usize::try_from(n).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_reads_what_was_put_there_until_that_is_taken() {
        let slot = FdSlot::new();
        let mut text = [0; 2];
        assert_eq!(slot.read(&mut text), None);
        slot.put(Some(std::fs::File::open("/proc/self/stat").unwrap().into()));
        assert_eq!(slot.read(&mut text), Some(2));
        slot.put(None);
        assert_eq!(slot.read(&mut text), None);
    }

    #[test]
    fn an_error_of_closing_is_told() {
        close(std::fs::File::open("/proc/self/stat").unwrap().into()).unwrap();
    }
}
