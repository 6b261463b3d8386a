//! Clocks, sleeping, and the description of the computer.

#![allow(unsafe_code)] // Named invariants "C Caller" of lib.rs, "Plain Call" of ARCHITECTURE.md.

use super::error::{BOOL, TRUE};
use super::object::INFINITE;

/// Ticks of the performance counter in a second: it counts nanoseconds.
pub const FREQUENCY: i64 = 1_000_000_000;

fn now(clock: libc::clockid_t) -> libc::timespec {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: Plain Call: `time` outlives it, and these clocks exist.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time
}

/// Reads the performance counter.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn QueryPerformanceCounter(count: *mut i64) -> BOOL {
    let time = now(libc::CLOCK_MONOTONIC);
    // SAFETY: C Caller: writable.
    unsafe { count.write_unaligned(time.tv_sec * FREQUENCY + time.tv_nsec) };
    TRUE
}

/// Stores how often the performance counter counts in a second.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn QueryPerformanceFrequency(frequency: *mut i64) -> BOOL {
    // SAFETY: C Caller: writable.
    unsafe { frequency.write_unaligned(FREQUENCY) };
    TRUE
}

/// Returns the milliseconds since the system started.
#[unsafe(no_mangle)]
pub extern "C" fn GetTickCount64() -> u64 {
    let time = now(libc::CLOCK_BOOTTIME);
    time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000
}

/// As `GetTickCount64`; it wraps after 49.7 days.
#[unsafe(no_mangle)]
pub extern "C" fn GetTickCount() -> u32 {
    GetTickCount64() as u32
}

/// Stores the time of day, in steps of 100 ns since 1601, as two halves.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn GetSystemTimeAsFileTime(halves: *mut [u32; 2]) {
    const FROM_1601_TO_1970_S: u64 = 11_644_473_600;
    let time = now(libc::CLOCK_REALTIME);
    let steps = (time.tv_sec as u64 + FROM_1601_TO_1970_S) * 10_000_000 + time.tv_nsec as u64 / 100;
    // SAFETY: C Caller: writable.
    unsafe { halves.write_unaligned([steps as u32, (steps >> 32) as u32]) };
}

/// Sleeps. A UMS worker that sleeps is blocked: its scheduler runs others meanwhile.
#[unsafe(no_mangle)]
pub extern "C" fn Sleep(ms: u32) {
    if ms == 0 {
        // SAFETY: Plain Call.
        unsafe { libc::sched_yield() };
        return;
    }
    let seconds = if ms == INFINITE { i64::MAX } else { i64::from(ms / 1000) };
    let mut left = libc::timespec { tv_sec: seconds, tv_nsec: i64::from(ms % 1000) * 1_000_000 };
    // SAFETY: Plain Call: `left` outlives it. A signal's handler does not shorten the sleep.
    while unsafe { libc::nanosleep(&left, &mut left) } != 0
        && std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted
    {}
}

/// As `Sleep`; nothing can alert it here. Returns 0.
#[unsafe(no_mangle)]
pub extern "C" fn SleepEx(ms: u32, _alertable: BOOL) -> u32 {
    Sleep(ms);
    0
}

/// `SYSTEM_INFO`.
#[repr(C)]
pub struct SystemInfo {
    architecture: u16,
    reserved: u16,
    page_size: u32,
    lowest_address: usize,
    highest_address: usize,
    processor_mask: usize,
    processors: u32,
    processor_type: u32,
    granularity: u32,
    level: u16,
    revision: u16,
}

/// Describes the computer: the processors that the process may use, the size of a page.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn GetSystemInfo(info: *mut SystemInfo) {
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    // SAFETY: Plain Call.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
    let found = SystemInfo {
        architecture: 9, // AMD64
        reserved: 0,
        page_size: page as u32,
        lowest_address: page,
        highest_address: 0x7fff_ffff_efff,
        processor_mask: usize::MAX >> (usize::BITS - processors.min(64) as u32),
        processors: processors as u32,
        processor_type: 8664,
        granularity: page as u32,
        level: 0,
        revision: 0,
    };
    // SAFETY: C Caller: writable.
    unsafe { info.write_unaligned(found) };
}

/// Returns the processor that the caller runs on at this moment.
#[unsafe(no_mangle)]
pub extern "C" fn GetCurrentProcessorNumber() -> u32 {
    // SAFETY: Plain Call.
    unsafe { libc::sched_getcpu() as u32 }
}
