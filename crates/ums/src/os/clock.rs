//! The clock: nanoseconds that never go back.
//!
//! Every deadline, wait and statistic in this crate is a `u64` of nanoseconds since the start of
//! the kernel's monotonic clock. Reading it costs one vDSO call (about 25 ns) and no system call.
//! The fast paths read it only when something waits for a time.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::time::{ClockId, clock_gettime};

pub use super::limits::NEVER;

/// Returns the time of the monotonic clock, in nanoseconds.
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

/// Returns the time in ticks, for statistics. Ticks are cheaper to read than [`now`], and are
/// converted by [`ticks_to_ns`] only when they are shown. On x86-64 they are the processor's
/// time-stamp counter (but not under miri, which cannot read it). On every computer of the last
/// decade that counter is constant and synchronous; otherwise the kernel would not use it for its
/// own clock.
#[inline]
pub fn ticks() -> u64 {
    if let Some(now) = super::sim::now() {
        return now;
    }
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        super::linux::plain::time_stamp()
    }
    #[cfg(any(not(target_arch = "x86_64"), miri))]
    {
        now()
    }
}

/// The first reading of both clocks, to which later readings are compared.
static START: OnceLock<(u64, u64)> = OnceLock::new();

/// Returns the first reading of both clocks (nanoseconds, ticks), which the first call takes. The
/// longer ago that was, the more exact is the conversion.
pub fn start() -> (u64, u64) {
    *START.get_or_init(pair)
}

/// Reads both clocks, the ticks just after the nanoseconds. If the thread loses the processor in
/// between, the readings do not fit together. So it also reads the ticks before, takes a few such
/// readings, and returns the one that took the shortest time.
fn pair() -> (u64, u64) {
    let read = |_| {
        let (before, ns, after) = (ticks(), now(), ticks());
        (after.saturating_sub(before), (ns, after))
    };
    (0..4).map(read).min().map_or_else(|| (now(), ticks()), |(_, pair)| pair)
}

/// Returns whether ticks are nanoseconds: on processors other than x86-64, and in a simulation.
#[inline]
fn ticks_are_ns() -> bool {
    if super::sim::is_here() {
        return true;
    }
    cfg!(any(not(target_arch = "x86_64"), miri))
}

/// The number of nanoseconds in 2^32 ticks. Measured once; 0 before.
static RATE: AtomicU64 = AtomicU64::new(0);

/// How long after the start the rate is measured. The two clocks are read within some 100 ns of
/// each other, so after this time the error of the rate is at most one in a hundred thousand.
const RATE_AFTER_NS: u64 = 10_000_000;

/// How many nanoseconds a tick takes. Spans that are compared with each other are converted at the
/// same rate, because the rate is measured again at each call until the process is 10 ms old.
#[derive(Clone, Copy)]
pub struct Rate {
    /// The number of nanoseconds in 2^32 ticks.
    scaled: u64,
}

impl Rate {
    /// Converts a number of ticks to nanoseconds.
    #[inline]
    pub fn ns(self, span: u64) -> u64 {
        ((u128::from(span) * u128::from(self.scaled)) >> 32) as u64
    }
}

/// Returns the rate of the ticks.
#[inline]
pub fn rate() -> Rate {
    known_rate().unwrap_or_else(measure_rate)
}

/// Returns the rate of the ticks, if it is known. For paths that make no call.
#[inline]
pub fn known_rate() -> Option<Rate> {
    if ticks_are_ns() {
        return Some(Rate { scaled: 1 << 32 });
    }
    let scaled = RATE.load(Ordering::Relaxed);
    (scaled != 0).then_some(Rate { scaled })
}

#[cold]
fn measure_rate() -> Rate {
    let (ns0, t0) = start();
    let (mut ns, mut ticks) = (0, 0);
    while ns < 100_000 {
        let (ns1, t1) = pair();
        (ns, ticks) = (ns1.saturating_sub(ns0), t1.saturating_sub(t0).max(1));
    }
    let scaled = ((u128::from(ns) << 32) / u128::from(ticks)) as u64;
    if ns >= RATE_AFTER_NS {
        RATE.store(scaled, Ordering::Relaxed);
    }
    Rate { scaled }
}

/// Returns `now`, which the caller has just read; if that is 0, reads the clock.
#[inline(always)]
pub fn ticks_or(now: u64) -> u64 {
    if now == 0 { ticks() } else { now }
}

/// Converts a number of ticks to nanoseconds.
#[inline]
pub fn ticks_to_ns(span: u64) -> u64 {
    rate().ns(span)
}

/// Returns a number of ticks that takes at most this many nanoseconds, and not much less. A thread
/// that waits for this number of ticks before it reads the clock again is never late.
pub fn ticks_within(span_ns: u64) -> u64 {
    if ticks_are_ns() {
        return span_ns;
    }
    let (ns0, t0) = start();
    // The ticks are read first. If the thread loses the processor between the two readings, a tick
    // seems to take longer than it does, the result is too small, and the caller is early instead
    // of late. `start` reads the clocks in the other order, for the same reason.
    let ticks = ticks().saturating_sub(t0);
    let ns = now() - ns0;
    if ns < 1_000_000 {
        // Not enough time has passed to measure the rate of the ticks.
        return 0;
    }
    let exact = u128::from(span_ns) * u128::from(ticks) / u128::from(ns);
    // The result is reduced a little, because the two clocks are not read at the same moment, and
    // the kernel adjusts the rate of one of them.
    u64::try_from(exact - exact / 64).unwrap_or(u64::MAX / 2)
}

/// Returns the deadline `span` from now, or [`NEVER`] if the clock cannot represent it.
pub fn after(span: std::time::Duration) -> u64 {
    u64::try_from(span.as_nanos()).map_or(NEVER, |ns| now().saturating_add(ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_converted_alike_whenever_it_is_converted() {
        while known_rate().is_none() {
            rate();
        }
        let first = ticks_to_ns(1 << 40);
        std::thread::sleep(std::time::Duration::from_millis(3));
        assert_eq!(ticks_to_ns(1 << 40), first);
    }
}
