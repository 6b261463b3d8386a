//! Bounds on all waits of a piece of code: a time limit, and a shield against cancellation.
//!
//! ```text
//!   with_timeout(2 s, ..)        each wait inside fails with TimedOut after 2 s
//!     with_timeout(5 s, ..)      no longer than what is left of the 2 s
//!     shield(..)                 no cancellation and no limit from outside
//!       with_timeout(1 s, ..)    but its own
//! ```
//!
//! * The code inside passes nothing on and need not know of it. The bounds belong to the caller's
//!   worker, or plain thread, and end when the closure returns or panics.
//! * They hold for the waits that may fail: those that a cancellation of the work request ends. A
//!   wait for a mutex, for the end of a [`scope`](fn@crate::scope) or for a write to a file goes
//!   on.
//! * The tasks of a [`scope`](fn@crate::scope) or [`task_group`](crate::task_group) that is opened
//!   inside have the same limit. Tasks of [`spawn`](fn@crate::spawn) have none.
//! * As with cancellation, only waits fail: a call that need not wait succeeds. Reads of
//!   [`net`](crate::net) and [`fs`](crate::fs), and [`checkpoint`](crate::checkpoint), fail once
//!   the time is over.
//!
//! A limit does not stop code that computes. It reaches neither what runs in
//! [`go_preemptive`](crate::go_preemptive), where it can be set inside, nor what the call hands to
//! others: the look-up of a name, [`Node::run`](crate::Node::run).

use std::time::{Duration, Instant};

use crate::current;
use crate::os::clock::{self, NEVER};
use crate::scheduler::{away, here_with_baton};
use crate::wait::{Bounds, Waiter};

/// Calls `f`, in which each wait fails with [`WaitError::TimedOut`](crate::WaitError::TimedOut)
/// once this time has passed, unless its own time limit comes first. Within another such call, the
/// earlier limit holds. It is not heard inside a [`shield`] in `f`.
///
/// ```
/// use std::time::Duration;
/// use ums::WaitError::TimedOut;
///
/// let (_tx, rx) = ums::sync::channel::bounded::<u8>(1);
/// let answer = ums::with_timeout(Duration::from_millis(1), || {
///     rx.recv()?; // nothing comes
///     ums::sleep(Duration::from_secs(1)).map_err(ums::sync::channel::RecvError::Wait)
/// });
/// assert_eq!(answer, Err(ums::sync::channel::RecvError::Wait(TimedOut)));
/// ```
pub fn with_timeout<R>(time: Duration, f: impl FnOnce() -> R) -> R {
    with_limit(clock::after(time), f)
}

/// Like [`with_timeout`], until this moment.
pub fn with_deadline<R>(deadline: Instant, f: impl FnOnce() -> R) -> R {
    with_timeout(deadline.saturating_duration_since(Instant::now()), f)
}

fn with_limit<R>(limit: u64, f: impl FnOnce() -> R) -> R {
    let outside = Outside::leave(|outside| Bounds { limit: limit.min(outside.limit), ..outside });
    let result = f();
    drop(outside);
    result
}

/// Calls `f`, in which no wait hears that the work request was cancelled, or that the time of a
/// [`with_timeout`] around this call is over. [`is_cancelled`](crate::is_cancelled) returns false
/// in it. After it, waits fail again. This is for what must be finished once it has begun, such as
/// a commit, or a message to a peer that the work ends.
///
/// The code inside should not wait for long without a time limit of its own, because shutting the
/// node down waits for it. A limit that is set inside holds, as in `shield(|| with_timeout(..))`.
///
/// ```
/// use std::time::Duration;
/// let node = ums::Node::builder().schedulers(1).build()?;
/// # let (begun, begins) = std::sync::mpsc::channel();
/// let task = node.spawn(move || {
///     # begun.send(()).unwrap();
///     let waited = ums::sleep(Duration::from_secs(600));
///     // The request is cancelled, but there is something to clean up.
///     let cleaned_up = ums::shield(|| ums::sleep(Duration::from_millis(1)));
///     (waited, cleaned_up)
/// })?;
/// # begins.recv()?; // a task that has not begun would never run
/// task.cancel();
/// assert_eq!(task.join().unwrap(), (Err(ums::WaitError::Cancelled), Ok(())));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn shield<R>(f: impl FnOnce() -> R) -> R {
    let outside = Outside::leave(|outside| Bounds { shielded: true, limit: NEVER, ..outside });
    let result = f();
    drop(outside);
    result
}

/// Calls `f`, in which the limits around this call do not hold, but cancellation does.
pub(crate) fn without_limit<R>(f: impl FnOnce() -> R) -> R {
    let outside = Outside::leave(|outside| Bounds { limit: NEVER, ..outside });
    let result = f();
    drop(outside);
    result
}

/// Calls `f`, which polls a future that the caller waits for.
pub(crate) fn blocking_on<R>(f: impl FnOnce() -> R) -> R {
    let outside = Outside::leave(|outside| Bounds { blocks_on: true, ..outside });
    let result = f();
    drop(outside);
    result
}

/// Returns whether the calling code, a poll of a future, keeps a worker until that future is ready.
pub(crate) fn keeps_worker() -> bool {
    // In preemptive code, another executor may block on the future.
    if away().is_some() {
        return true;
    }
    let waiter = current::waiter();
    let blocks_on = waiter.bounds().blocks_on || waiter.origin.load().is_some();
    blocks_on && here_with_baton().is_some()
}

/// The bounds of the code around the caller's. They hold again when this is dropped.
struct Outside {
    waiter: &'static Waiter,
    bounds: Bounds,
}

impl Outside {
    /// Changes the caller's bounds to what `inside` makes of them.
    fn leave(inside: impl FnOnce(Bounds) -> Bounds) -> Outside {
        let waiter = current::waiter_with_bounds();
        let bounds = waiter.bounds();
        waiter.set_bounds(inside(bounds));
        Outside { waiter, bounds }
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        self.waiter.set_bounds(self.bounds);
    }
}
