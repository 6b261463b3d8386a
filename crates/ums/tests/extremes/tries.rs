//! How a wait is tried: with no time, after which it ends without what it waits for, and with all
//! the time that there is, which must last until another thread wakes it.
//!
//! An object is made for each try, so what one try leaves behind changes no other.

use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use crate::common::eventually;

const SHORT: Duration = Duration::from_millis(1);

/// No time, and the least.
pub const OVER: [Duration; 2] = [Duration::ZERO, Duration::from_nanos(1)];
/// Spans that do not end while a test runs: the longest, and those about which a count of
/// nanoseconds overflows.
pub const ENDLESS: [Duration; 5] = [
    Duration::MAX,
    Duration::from_secs(u64::MAX),
    Duration::from_nanos(u64::MAX),
    Duration::from_nanos(u64::MAX - 1),
    Duration::from_nanos(i64::MAX as u64),
];

/// Returns moments that are over: as long past as an instant can be, and now.
pub fn past() -> [Instant; 2] {
    [furthest(|at, span| at.checked_sub(span)), Instant::now()]
}

/// Returns moments that do not come while a test runs.
pub fn never() -> [Instant; 3] {
    let nearest = Instant::now() + Duration::from_nanos(u64::MAX);
    let half = Instant::now() + Duration::from_nanos(i64::MAX as u64);
    [furthest(|at, span| at.checked_add(span)), nearest, half]
}

fn furthest(step: impl Fn(Instant, Duration) -> Option<Instant>) -> Instant {
    let seconds = (0..64).rev().map(|bit| Duration::from_secs(1 << bit));
    seconds.fold(Instant::now(), |at, span| step(at, span).unwrap_or(at))
}

/// Limits of a wait: some that are over, and some that are endless.
pub struct Limits<L> {
    pub over: Vec<L>,
    pub endless: Vec<L>,
}

/// Returns the limits of functions whose names end in `_for`.
pub fn spans() -> Limits<Duration> {
    Limits { over: OVER.to_vec(), endless: ENDLESS.to_vec() }
}

/// Returns the limits of functions that refuse a span of zero.
pub fn spans_above_zero() -> Limits<Duration> {
    Limits { over: OVER[1..].to_vec(), ..spans() }
}

/// Returns the limits of functions whose names end in `_until`.
pub fn moments() -> Limits<Instant> {
    Limits { over: past().to_vec(), endless: never().to_vec() }
}

static CALLS: AtomicUsize = AtomicUsize::new(0);

/// Counts one call of a function with an extreme.
pub fn called() {
    CALLS.fetch_add(1, Relaxed);
}

/// Returns how many calls were made.
pub fn count() -> usize {
    CALLS.load(Relaxed)
}

/// Returns whether a wait got what it waited for. Fails if it ended otherwise than by its limit.
#[track_caller]
pub fn came<T, E: Debug>(result: Result<T, E>) -> bool {
    let Err(error) = result else { return true };
    assert!(format!("{error:?}").contains("TimedOut"), "it ended with {error:?}");
    false
}

/// Sets a flag when it is dropped, also by a panic.
struct Sets<'a>(&'a AtomicBool);

impl Drop for Sets<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// Tries a wait for what another thread does to an object. `wake` may be called more than once, and
/// when the wait is over.
#[track_caller]
pub fn woken<T: Sync, L: Copy + Debug>(
    limits: Limits<L>,
    make: impl Fn() -> T,
    wait: impl Fn(&T, L) -> bool,
    wake: impl Fn(&T) + Sync,
) {
    for limit in limits.over {
        let object = make();
        called();
        assert!(!wait(&object, limit), "{limit:?}: there was nothing to wait for");
        wake(&object);
    }
    for limit in limits.endless {
        let (object, wakes, is_over) = (make(), AtomicBool::new(false), AtomicBool::new(false));
        scope(|threads| {
            let is_over = Sets(&is_over);
            threads.spawn(|| {
                while !is_over.0.load(SeqCst) {
                    sleep(SHORT);
                    wakes.store(true, SeqCst);
                    wake(&object);
                }
            });
            called();
            assert!(wait(&object, limit), "{limit:?}: it timed out");
            assert!(wakes.load(SeqCst), "{limit:?}: it ended before it was woken");
        });
    }
}

/// Tries a wait for a lock. `hold` takes it, calls the closure that it gets, and releases it.
#[track_caller]
pub fn released<T: Sync, L: Copy + Debug>(
    limits: Limits<L>,
    make: impl Fn() -> T,
    wait: impl Fn(&T, L) -> bool,
    hold: impl Fn(&T, &dyn Fn()) + Sync,
) {
    let over = limits.over.into_iter().map(|limit| (limit, false));
    let endless = limits.endless.into_iter().map(|limit| (limit, true));
    for (limit, lasts) in over.chain(endless) {
        let object = make();
        let flags: [AtomicBool; 3] = std::array::from_fn(|_| AtomicBool::new(false));
        let [is_held, may_release, releases] = &flags;
        scope(|threads| {
            let may_release = Sets(may_release);
            let flag = may_release.0;
            threads.spawn(|| {
                hold(&object, &|| {
                    is_held.store(true, SeqCst);
                    eventually("the wait is about to begin", || flag.load(SeqCst));
                    sleep(SHORT);
                    releases.store(true, SeqCst);
                });
            });
            eventually("it is held", || is_held.load(SeqCst));
            flag.store(lasts, SeqCst);
            called();
            assert_eq!(wait(&object, limit), lasts, "{limit:?}");
            assert_eq!(releases.load(SeqCst), lasts, "{limit:?}: it ended before the release");
        });
    }
}

/// Keeps panics that a test expects from being printed.
pub fn be_quiet() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let is_expected = EXPECTS.with(|expects| expects.load(Relaxed));
        if !is_expected {
            usual(info);
        }
    }));
}

thread_local! {
    static EXPECTS: AtomicBool = const { AtomicBool::new(false) };
}

/// Calls a function that is documented to panic, and returns the text of the panic.
#[track_caller]
pub fn panics<R>(call: impl FnOnce() -> R) -> String {
    called();
    EXPECTS.with(|expects| expects.store(true, Relaxed));
    let result = catch_unwind(AssertUnwindSafe(|| {
        call();
    }));
    EXPECTS.with(|expects| expects.store(false, Relaxed));
    let Err(payload) = result else { panic!("it did not panic") };
    match (payload.downcast_ref::<&str>(), payload.downcast_ref::<String>()) {
        (Some(text), _) => (*text).to_owned(),
        (_, Some(text)) => text.clone(),
        _ => panic_any(payload),
    }
}
