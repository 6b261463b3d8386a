//! Heaps: gives memory that clients have given back to the system.
//!
//! The allocator keeps what is freed. Some seconds after accounts (`memory`) have given back much,
//! a thread calls the function that makes the allocator give its free memory back
//! ([`trim_heaps_by`]). The thread is started for that, so an idle server has none; and a trim
//! holds the allocator's locks for some milliseconds, so it is no worker.
//!
//! It does not know the allocator, which is the program's choice.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

/// After accounts have given back this much, the heaps are trimmed.
const TRIM_AFTER: usize = 16 << 20;
/// How long a trim waits, for more that is given back. What is needed again meanwhile stays.
const PAUSE: Duration = Duration::from_secs(if cfg!(test) { 0 } else { 10 });

/// What accounts have given back since the heaps were last trimmed, in bytes.
static GIVEN_BACK: AtomicUsize = AtomicUsize::new(0);
/// Whether a trim has been started and has not ended.
static STARTED: AtomicBool = AtomicBool::new(false);
static TRIM: OnceLock<fn()> = OnceLock::new();

/// Sets the function that makes the allocator of this process give its free memory back to the
/// system. A thread calls it some seconds after clients have given back at least 16 MiB. The first
/// function that is set stays.
///
/// ```
/// umsql::trim_heaps_by(|| {
///     // With the C library of GNU: malloc_trim(0).
/// });
/// ```
pub fn trim_heaps_by(trim: fn()) {
    let _ = TRIM.set(trim);
}

/// Counts what an account has given back.
pub(crate) fn given_back(bytes: usize) {
    GIVEN_BACK.fetch_add(bytes, Relaxed);
}

/// Starts a trim of the heaps if accounts have given back much and none has been started.
#[inline]
pub(crate) fn trim_soon() {
    if GIVEN_BACK.load(Relaxed) >= TRIM_AFTER && !STARTED.load(Relaxed) {
        start();
    }
}

#[cold]
fn start() {
    let Some(trim) = TRIM.get() else { return };
    if STARTED.swap(true, Relaxed) {
        return;
    }
    let run = || {
        thread::sleep(PAUSE);
        GIVEN_BACK.store(0, Relaxed);
        trim();
        STARTED.store(false, Relaxed);
        // Much may have been given back during the trim, by the last statement for a long time.
        trim_soon();
    };
    let thread = thread::Builder::new().name("ums-trim".into()).stack_size(64 << 10);
    if thread.spawn(run).is_err() {
        // The process has no thread left. The next try comes when as much was given back again.
        GIVEN_BACK.store(0, Relaxed);
        STARTED.store(false, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_heaps_are_trimmed_after_much_was_given_back() {
        static TRIMS: AtomicUsize = AtomicUsize::new(0);
        trim_heaps_by(|| {
            TRIMS.fetch_add(1, Relaxed);
        });
        for round in 1..=2 {
            given_back(TRIM_AFTER);
            while TRIMS.load(Relaxed) < round {
                trim_soon();
                thread::yield_now();
            }
        }
    }
}
