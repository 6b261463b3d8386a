//! Clocks, sleeping, and the description of the computer.

use super::error::{BOOL, TRUE};
use super::object::INFINITE;
use super::system::{now, page_size, processor, sleep};
use crate::caller::Out;

/// Ticks of the performance counter per second: it counts nanoseconds.
pub const FREQUENCY: i64 = 1_000_000_000;

/// Reads the performance counter.
#[unsafe(no_mangle)]
pub extern "C" fn QueryPerformanceCounter(mut count: Out<'_, i64>) -> BOOL {
    let time = now(libc::CLOCK_MONOTONIC);
    count.put(time.tv_sec * FREQUENCY + time.tv_nsec);
    TRUE
}

/// Stores the ticks of the performance counter per second.
#[unsafe(no_mangle)]
pub extern "C" fn QueryPerformanceFrequency(mut frequency: Out<'_, i64>) -> BOOL {
    frequency.put(FREQUENCY);
    TRUE
}

/// Returns the milliseconds since the system started.
#[unsafe(no_mangle)]
pub extern "C" fn GetTickCount64() -> u64 {
    let time = now(libc::CLOCK_BOOTTIME);
    time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000
}

/// Like `GetTickCount64`, but wraps around after 49.7 days.
#[unsafe(no_mangle)]
pub extern "C" fn GetTickCount() -> u32 {
    GetTickCount64() as u32
}

/// Stores the time of day, in units of 100 ns since 1601, as two halves.
#[unsafe(no_mangle)]
pub extern "C" fn GetSystemTimeAsFileTime(mut halves: Out<'_, [u32; 2]>) {
    const FROM_1601_TO_1970_S: u64 = 11_644_473_600;
    let time = now(libc::CLOCK_REALTIME);
    let steps = (time.tv_sec as u64 + FROM_1601_TO_1970_S) * 10_000_000 + time.tv_nsec as u64 / 100;
    halves.put([steps as u32, (steps >> 32) as u32]);
}

/// Sleeps. A UMS worker that sleeps is blocked, so its scheduler runs other workers.
#[unsafe(no_mangle)]
pub extern "C" fn Sleep(ms: u32) {
    if ms == 0 {
        std::thread::yield_now();
        return;
    }
    let seconds = if ms == INFINITE { i64::MAX } else { i64::from(ms / 1000) };
    sleep(libc::timespec { tv_sec: seconds, tv_nsec: i64::from(ms % 1000) * 1_000_000 });
}

/// Like `Sleep`. `alertable` has no effect. Returns 0.
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

/// Describes the computer: the processors that the process may use, and the size of a page.
#[unsafe(no_mangle)]
pub extern "C" fn GetSystemInfo(mut info: Out<'_, SystemInfo>) {
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let page = page_size();
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
    info.put(found);
}

/// Returns the processor on which the caller runs at this moment.
#[unsafe(no_mangle)]
pub extern "C" fn GetCurrentProcessorNumber() -> u32 {
    processor()
}
