//! Time, for futures.
//!
//! ```text
//!   poll:   the deadline has come -> ready
//!           else -> a timer on the caller's scheduler -> its routine calls the waker
//! ```
//!
//! A timer is set when the future is first polled. A deadline that is moved to a later time keeps
//! the timer: it expires early, and the poll that follows sets the next one. So a timeout that is
//! moved for each request, and nearly never comes, costs no timer for each.

use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::current::before_short_lock;
use crate::os::clock;
use crate::os::short_lock::ShortLock;
use crate::scheduler::lists::timer_list::TimerId;
use crate::scheduler::{Scheduler, here};
use crate::wait::Letter;

/// Returns a future that is ready when this time is over. Blocking code calls
/// [`ums::sleep`](crate::sleep).
///
/// ```
/// use std::time::Duration;
/// let node = ums::Node::builder().schedulers(1).build()?;
/// let slept = node.run(|| {
///     let task = ums::future::spawn_future(async {
///         ums::future::sleep(Duration::from_millis(1)).await;
///         "slept, without a stack"
///     });
///     task.join().unwrap()
/// });
/// assert_eq!(slept, "slept, without a stack");
/// # Ok::<(), ums::BuildError>(())
/// ```
pub fn sleep(time: Duration) -> Sleep {
    Sleep { deadline: clock::after(time), known: None, timer: None }
}

/// Returns a future that is ready when this moment has come.
pub fn sleep_until(deadline: Instant) -> Sleep {
    let mut sleep = sleep(Duration::ZERO);
    sleep.reset(deadline);
    sleep
}

/// The future of [`sleep`]. When it is dropped, its timer is removed, on another scheduler a little
/// later. If the timer's scheduler ends first, the waker is called then.
///
/// # Panics
/// The poll panics on a plain thread and in preemptive code, unless the time is over.
#[must_use = "a future does nothing unless it is polled"]
pub struct Sleep {
    /// In nanoseconds of the clock.
    deadline: u64,
    /// A moment, and what the clock showed then.
    known: Option<(Instant, u64)>,
    timer: Option<Timer>,
}

impl Sleep {
    /// Changes the moment at which the future is ready. Poll it again after that.
    pub fn reset(&mut self, deadline: Instant) {
        let (then, clock) = *self.known.get_or_insert_with(|| (Instant::now(), clock::now()));
        let ns = |span: Duration| u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        self.deadline = match deadline.checked_duration_since(then) {
            Some(later) => clock.saturating_add(ns(later)),
            None => clock.saturating_sub(ns(then.saturating_duration_since(deadline))),
        };
    }

    /// Returns whether the time is over.
    pub fn is_elapsed(&self) -> bool {
        clock::now() >= self.deadline
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let (deadline, waker) = (self.deadline, context.waker());
        if self.timer.as_ref().is_some_and(|timer| timer.wakes(deadline, waker)) {
            return Poll::Pending; // without a look at the clock
        }
        // It has expired, or would be too late.
        self.timer = None;
        if self.is_elapsed() {
            return Poll::Ready(());
        }
        self.timer = Some(Timer::set(deadline, waker));
        Poll::Pending
    }
}

impl std::fmt::Debug for Sleep {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sleep").field("is_elapsed", &self.is_elapsed()).finish()
    }
}

/// A timer of a scheduler that calls a waker.
struct Timer {
    scheduler: Weak<Scheduler>,
    id: TimerId,
    expires: u64,
    /// `None` when the timer has expired.
    waker: Arc<ShortLock<Option<Waker>>>,
}

impl Timer {
    fn set(expires: u64, waker: &Waker) -> Timer {
        // Before the scheduler is borrowed, because the code of a waker is the application's.
        let waker = Arc::new(ShortLock::new(Some(waker.clone())));
        let expired = Arc::clone(&waker);
        let routine = Box::new(move |_| {
            let waker = expired.lock().take();
            waker.into_iter().for_each(Waker::wake);
        });
        let here = here().expect("a timer of a future is set on a worker: use Node::run");
        let id = here.with(|core| core.call_at(expires, routine));
        Timer { scheduler: Arc::downgrade(&here.arc()), id, expires, waker }
    }

    /// Makes the timer call this waker. Returns false if it does not do so by the deadline.
    fn wakes(&self, deadline: u64, waker: &Waker) -> bool {
        if self.expires > deadline {
            return false;
        }
        // The code of a waker is the application's, and is not called under the lock.
        match self.change(|kept| kept.as_ref().map(|kept| kept.will_wake(waker))) {
            None => return false,
            Some(true) => return true,
            Some(false) => {}
        }
        let mut waker = waker.clone();
        self.change(|kept| kept.as_mut().map(|kept| mem::swap(kept, &mut waker)).is_some())
    }

    fn change<R>(&self, change: impl FnOnce(&mut Option<Waker>) -> R) -> R {
        let _settled = before_short_lock();
        change(&mut self.waker.lock())
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        let Some(waker) = self.change(Option::take) else { return };
        drop(waker);
        let Some(scheduler) = self.scheduler.upgrade() else { return };
        match here() {
            Some(here) if here.is(&scheduler) => {
                drop(here.with(|core| core.do_not_call(self.id)));
            }
            _ => scheduler.inbox.send(Letter::DoNotCall(self.id.to_bits())),
        }
    }
}
