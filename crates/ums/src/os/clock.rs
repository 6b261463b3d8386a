//! The clock: nanoseconds that never go back.
//!
//! One `u64` of nanoseconds since the kernel's monotonic epoch is what every deadline, wait and
//! statistic in this crate is made of. A read costs one vDSO call (about 25 ns) and no system call,
//! so the fast paths read it only when something waits for time.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::time::{ClockId, clock_gettime};

pub use super::limits::NEVER;

/// Returns the nanoseconds on the monotonic clock.
#[inline]
pub fn now() -> u64 {
    if let Some(now) = super::sim::now() {
        return now;
    }
    let ts = clock_gettime(ClockId::Monotonic);
    ts.tv_sec as u64 * 1_000_000_000 + ts.tv_nsec as u64
}

/// Returns the nanoseconds of processor time that the calling kernel thread has used.
pub fn used_by_this_thread() -> u64 {
    let ts = clock_gettime(ClockId::ThreadCPUTime);
    ts.tv_sec as u64 * 1_000_000_000 + ts.tv_nsec as u64
}

/// Returns ticks for statistics: cheaper to read than [`now`], converted by [`ticks_to_ns`] only
/// when they are shown. On x86-64 the processor's time-stamp counter (which on every computer of
/// the last decade is constant and synchronous, or the kernel would not use it as its own clock).
#[inline]
pub fn ticks() -> u64 {
    if let Some(now) = super::sim::now() {
        return now;
    }
    #[cfg(target_arch = "x86_64")]
    {
        super::linux::plain::time_stamp()
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        now()
    }
}

/// A pair of readings to compare with: made once, early.
static START: OnceLock<(u64, u64)> = OnceLock::new();

/// Takes the first pair of readings. The longer ago that was, the better the conversion.
pub fn start() -> (u64, u64) {
    *START.get_or_init(pair)
}

/// Returns both clocks, the ticks read just after. The ticks before tell whether the thread lost
/// the processor in between, so it reads a few pairs and returns the closest.
fn pair() -> (u64, u64) {
    let read = |_| {
        let (before, ns, after) = (ticks(), now(), ticks());
        (after.saturating_sub(before), (ns, after))
    };
    (0..4).map(read).min().map_or_else(|| (now(), ticks()), |(_, pair)| pair)
}

/// Returns whether ticks are nanoseconds: without a counter, and in a simulated world.
#[inline]
fn ticks_are_ns() -> bool {
    if super::sim::is_here() {
        return true;
    }
    cfg!(not(target_arch = "x86_64"))
}

/// Converts a span of ticks to nanoseconds.
pub fn ticks_to_ns(span: u64) -> u64 {
    if ticks_are_ns() {
        return span;
    }
    let (ns0, t0) = start();
    let mut elapsed = (now() - ns0, ticks().saturating_sub(t0));
    while elapsed.0 < 100_000 {
        std::hint::spin_loop();
        elapsed = (now() - ns0, ticks().saturating_sub(t0));
    }
    (u128::from(span) * u128::from(elapsed.0) / u128::from(elapsed.1.max(1))) as u64
}

/// Nanoseconds in 2^32 ticks, measured once; 0 before.
static RATE: AtomicU64 = AtomicU64::new(0);

/// How long to measure. The two clocks are read within some 100 ns of each other, so the rate is
/// good to a hundred-thousandth.
const RATE_AFTER_NS: u64 = 10_000_000;

/// Converts as [`ticks_to_ns`] does, but by a multiplication, which is fast enough for a histogram
/// of durations.
#[inline]
pub fn ticks_to_ns_quickly(span: u64) -> u64 {
    if ticks_are_ns() {
        return span;
    }
    match RATE.load(Ordering::Relaxed) {
        0 => measure_rate(span),
        rate => ((u128::from(span) * u128::from(rate)) >> 32) as u64,
    }
}

#[cold]
fn measure_rate(span: u64) -> u64 {
    let (ns0, t0) = start();
    let (ns1, t1) = pair();
    let (ns, ticks) = (ns1.saturating_sub(ns0), t1.saturating_sub(t0).max(1));
    if ns >= RATE_AFTER_NS {
        let rate = (u128::from(ns) << 32) / u128::from(ticks);
        RATE.store(rate as u64, Ordering::Relaxed);
    }
    ticks_to_ns(span)
}

/// Returns a number of ticks that takes no longer than this span, and not much less: a thread that
/// sleeps for that many ticks before it reads the clock again is never late.
pub fn ticks_within(span_ns: u64) -> u64 {
    if ticks_are_ns() {
        return span_ns;
    }
    let (ns0, t0) = start();
    // In this order: if the thread loses the processor between the two readings, the ticks seem
    // slower than they are, and it looks too early. `start` reads in the other order, for the same
    // reason.
    let ticks = ticks().saturating_sub(t0);
    let ns = now() - ns0;
    if ns < 1_000_000 {
        // Too early to tell how fast they go.
        return 0;
    }
    let exact = u128::from(span_ns) * u128::from(ticks) / u128::from(ns);
    // The two clocks are read one after the other, and the kernel steers one of them.
    u64::try_from(exact - exact / 64).unwrap_or(u64::MAX / 2)
}

/// Returns the deadline that lies `span` from now, or [`NEVER`] if that is beyond the clock.
pub fn after(span: std::time::Duration) -> u64 {
    u64::try_from(span.as_nanos()).map_or(NEVER, |ns| now().saturating_add(ns))
}
