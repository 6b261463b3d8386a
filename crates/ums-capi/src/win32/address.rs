//! `WaitOnAddress`: waiting until a value in the program's memory changes.
//!
//! The address chooses one of a few buckets. A waiter sleeps on its bucket's word, and a waker
//! changes the word and wakes all that sleep there. So a waiter may wake although its own value has
//! not changed; it then compares again. Nothing is allocated and no lock is taken, so an entry
//! point may wake, too.
//!
//! No wake-up is lost: the waiter counts itself, reads the bucket's word and then compares. The
//! waker is called after the program has changed the value, and it looks at the count after that.
//! So either the waker sees the waiter and changes the word that the waiter is about to sleep on,
//! or the waiter's comparison sees the changed value.

use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::{Duration, Instant};

use super::error::{BOOL, ERROR_INVALID_PARAMETER, ERROR_TIMEOUT, done};
use super::object::INFINITE;
use super::system::{wait, wake};
use crate::caller::Shared;

/// The waiters whose addresses have the same hash.
struct Bucket {
    /// Changes with each wake-up.
    word: AtomicU32,
    waiters: AtomicU32,
}

static BUCKETS: [Bucket; 64] =
    [const { Bucket { word: AtomicU32::new(0), waiters: AtomicU32::new(0) } }; 64];

fn bucket(address: usize) -> &'static Bucket {
    // The lowest bits are those of an aligned value; the product mixes the rest.
    let hash = (address >> 3).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    &BUCKETS[hash >> 58]
}

/// Waits while the value at the address, of 1, 2, 4 or 8 bytes, is the one at `compare`, for at
/// most this many milliseconds. May return although the value has not changed.
#[unsafe(no_mangle)]
pub extern "C" fn WaitOnAddress(
    address: Shared<'_>,
    compare: Shared<'_>,
    size: usize,
    ms: u32,
) -> BOOL {
    let within = Instant::now().checked_add(Duration::from_millis(ms.into()));
    let until = within.filter(|_| ms != INFINITE);
    let bucket = bucket(address.address());
    bucket.waiters.fetch_add(1, Ordering::SeqCst);
    let waited = sleep_while_equal(bucket, &address, &compare, size, until);
    bucket.waiters.fetch_sub(1, Ordering::Relaxed);
    done(waited)
}

fn sleep_while_equal(
    bucket: &Bucket,
    address: &Shared<'_>,
    compare: &Shared<'_>,
    size: usize,
    until: Option<Instant>,
) -> Result<(), u32> {
    let read = |from: &Shared<'_>| from.read(size).ok_or(ERROR_INVALID_PARAMETER);
    loop {
        let seen = bucket.word.load(Ordering::SeqCst);
        if read(address)? != read(compare)? {
            return Ok(());
        }
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return Err(ERROR_TIMEOUT);
        }
        // Rounded up, so that the wait does not end before its time.
        wait(&bucket.word, seen, left.map(|left| left.as_micros().div_ceil(1000) as u32));
    }
}

/// Wakes at least one waiter of the address.
#[unsafe(no_mangle)]
pub extern "C" fn WakeByAddressSingle(address: Shared<'_>) {
    // Waiters of other addresses may sleep in the bucket, so all are woken.
    WakeByAddressAll(address);
}

/// Wakes all waiters of the address.
#[unsafe(no_mangle)]
pub extern "C" fn WakeByAddressAll(address: Shared<'_>) {
    let bucket = bucket(address.address());
    // Orders the program's change of the value before the look at the count.
    fence(Ordering::SeqCst);
    if bucket.waiters.load(Ordering::SeqCst) > 0 {
        bucket.word.fetch_add(1, Ordering::SeqCst);
        wake(&bucket.word, i32::MAX);
    }
}
