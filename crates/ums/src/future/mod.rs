//! Futures: what is written with `async`, awaited from blocking code.
//!
//! [`block_on`] polls a future on the caller's stack. While the future is pending, the caller waits
//! as for anything else: a worker parks, and its scheduler runs other workers; a plain thread
//! blocks. So a library that offers only `async` functions can be used from a worker. The future's
//! waker may be called from any thread, also from another runtime's, but not in a signal handler.
//!
//! ```text
//!   caller:  poll -> lock -> rung? -> begin -> leave the ticket -> unlock -> park -> poll
//!   waker:   lock -> note "rung", claim the ticket -> unlock -> ready
//! ```
//!
//! The *bell* is what the waker rings: one for each call, so nested calls do not disturb each
//! other. A ring that comes late finds no ticket, and a ring without a cause costs one poll.
//!
//! * The future stays where it is: it need be neither `Send` nor `'static`, and it is dropped
//!   before the call returns, also if the wait fails.
//! * A call that need not wait succeeds, also in a cancelled request. If the wait ends because the
//!   request was cancelled or the time has passed, the future is polled once more, and if it is
//!   ready its output is returned. Otherwise it is dropped where it is, so it should lose nothing
//!   when it is dropped at an `await`.
//! * A future that wakes itself in `poll`, as `tokio::task::yield_now` does, lets the other workers
//!   run before it is polled again. If no other can run, it keeps its processor busy.
//! * `poll` runs as a part of the caller. A future that needs a runtime around it, such as tokio's
//!   timers and sockets, must be made inside it: spawn it there and await its handle here.
//! * On a fiber, do not keep what belongs to a thread over a call, such as the guard of
//!   `tokio::runtime::Handle::enter`: another fiber of the thread would find it. The crate
//!   `ums-compat` has a guard that finds that out. Other runtimes' `block_on` blocks the whole
//!   scheduler, and the [`monitor`](crate::monitor) names it; use this one, or
//!   [`go_preemptive`](crate::go_preemptive).
//!
//! A future of `block_on` keeps the stack of its caller while it is pending. [`spawn_future`]
//! starts a task that has no stack while its future is pending.

mod sleep;
mod spawn;

use std::future::IntoFuture;
use std::mem;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use crate::current::bounds::blocking_on;
use crate::current::{self, Operation};
use crate::os::clock::{self, NEVER};
use crate::os::short_lock::ShortLock;
use crate::os::threads::point;
use crate::record::reason::WaitReason;
use crate::wait::error::WaitError;
use crate::wait::{Arm, Outcome, Source, Ticket, What};

pub use sleep::{Sleep, sleep, sleep_until};
pub use spawn::{FutureTask, spawn_future};

/// Waits for a future's output.
///
/// # Errors
/// [`WaitError::Cancelled`] if the work request was cancelled.
///
/// # Panics
/// Passes on a panic of the future. Panics, after it has polled the future once, if the future is
/// pending where the caller must not wait: in a completion routine, and in the closure that puts
/// another wait into a queue.
///
/// ```
/// let node = ums::Node::builder().schedulers(1).build()?;
/// let sum = node.run(|| {
///     let (to, from) = tokio::sync::oneshot::channel();
///     ums::spawn(move || to.send(40));
///     ums::future::block_on(async { from.await.unwrap() + 2 })
/// });
/// assert_eq!(sum, Ok(42));
/// # Ok::<(), ums::BuildError>(())
/// ```
pub fn block_on<F: IntoFuture>(future: F) -> Result<F::Output, WaitError> {
    drive(future.into_future(), NEVER)
}

/// Like [`block_on`], for at most this time.
///
/// # Errors
/// [`WaitError`] if the time passed or the work request was cancelled.
///
/// # Panics
/// As [`block_on`].
///
/// ```
/// use std::time::Duration;
/// let never = std::future::pending::<()>();
/// let waited = ums::future::block_on_for(Duration::from_millis(1), never);
/// assert_eq!(waited, Err(ums::WaitError::TimedOut));
/// ```
pub fn block_on_for<F: IntoFuture>(time: Duration, future: F) -> Result<F::Output, WaitError> {
    drive(future.into_future(), clock::after(time))
}

/// Like [`block_on`], until this moment at the latest.
///
/// # Errors
/// [`WaitError`] if the moment came or the work request was cancelled.
///
/// # Panics
/// As [`block_on`].
pub fn block_on_until<F: IntoFuture>(deadline: Instant, future: F) -> Result<F::Output, WaitError> {
    block_on_for(deadline.saturating_duration_since(Instant::now()), future)
}

/// `deadline` is in nanoseconds of the clock.
fn drive<F: Future>(future: F, deadline: u64) -> Result<F::Output, WaitError> {
    let mut future = pin!(future);
    let bell = Arc::new(Bell(ShortLock::new(State::Silent)));
    let waker = Waker::from(Arc::clone(&bell));
    let mut failed = None;
    loop {
        let poll = || future.as_mut().poll(&mut Context::from_waker(&waker));
        if let Poll::Ready(output) = blocking_on(poll) {
            return Ok(output);
        }
        if let Some(error) = failed {
            return Err(error);
        }
        failed = bell.wait(deadline).err();
    }
}

/// Returns the arm of a [`Select`](crate::sync::Select) that polls a future until it is ready. The
/// future stays with the caller: if another arm is chosen, it is still pending. Then poll it again,
/// in another select for example, or drop it: what has woken it in between is not heard otherwise.
///
/// # Panics
/// The select passes on a panic of the future.
///
/// ```
/// use std::pin::pin;
/// use std::time::Duration;
/// use ums::sync::Select;
/// let (to, from) = tokio::sync::oneshot::channel();
/// let mut from = pin!(from);
/// to.send(40).unwrap();
/// let got = Select::new()
///     .on(ums::future::polled(from.as_mut()), |value| value.unwrap() + 2)
///     .on(Duration::from_secs(10), |()| 0)
///     .wait()?;
/// assert_eq!(got, 42);
/// # Ok::<(), ums::WaitError>(())
/// ```
pub fn polled<F: Future>(future: Pin<&mut F>) -> Arm<'_, F::Output> {
    Arm::new(Polled { future, bell: Arc::new(Bell(ShortLock::new(State::Rung))) })
}

struct Polled<'a, F> {
    future: Pin<&'a mut F>,
    /// Has rung if the future must be polled.
    bell: Arc<Bell>,
}

impl<F: Future> Source<F::Output> for Polled<'_, F> {
    fn try_now(&mut self) -> Option<F::Output> {
        // A ring during the poll is answered by the next one.
        match mem::replace(&mut *self.bell.0.lock(), State::Silent) {
            State::Silent => return None,
            State::Rung | State::Awaited(_) => (),
        }
        let waker = Waker::from(Arc::clone(&self.bell));
        let poll = || self.future.as_mut().poll(&mut Context::from_waker(&waker));
        match blocking_on(poll) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        }
    }

    fn queue(&self, ticket: Ticket) -> bool {
        let _settled = current::before_short_lock();
        let mut state = self.bell.0.lock();
        let waits = matches!(*state, State::Silent);
        if waits {
            *state = State::Awaited(ticket);
        }
        waits
    }

    fn unqueue(&self, _: Ticket, _: bool) {
        let mut state = self.bell.0.lock();
        if let State::Awaited(_) = *state {
            *state = State::Silent;
        }
    }

    /// The bell has rung, so the future must be polled.
    fn granted(&mut self) -> Option<F::Output> {
        None
    }
}

/// What the waker of one call rings.
struct Bell(ShortLock<State>);

enum State {
    Silent,
    /// Rung since the caller last began to poll.
    Rung,
    /// The caller waits.
    Awaited(Ticket),
}

impl Bell {
    /// Waits until the bell rings. If it has rung already, lets others run instead.
    fn wait(&self, deadline: u64) -> Result<(), WaitError> {
        point("future: pending");
        let caller = Operation::begin();
        // Refused here, before anything has changed, if the caller must not wait.
        let me = current::waiting_on(caller.scheduler());
        let begun = caller.locked(&self.0, |state| {
            // A ring comes under the lock: either before this look, or it finds the ticket.
            if matches!(state, State::Rung) {
                return None;
            }
            let ticket = me.begin(What::new(WaitReason::FUTURE).on(self));
            *state = State::Awaited(ticket);
            Some(ticket)
        });
        let waited = match begun {
            Some(ticket) => caller.park(ticket, deadline).ok(),
            None => {
                drop(caller);
                current::after_others(me, deadline)
            }
        };
        // Rings until now are answered by the poll that follows.
        *self.0.lock() = State::Silent;
        waited
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Bell>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Bell>) {
        let caller = Operation::begin_release();
        let claimed = caller.locked(&self.0, |state| match mem::replace(state, State::Rung) {
            State::Awaited(ticket) => ticket.claim(Outcome::Granted),
            State::Silent | State::Rung => None,
        });
        caller.ready_if(claimed);
    }
}
