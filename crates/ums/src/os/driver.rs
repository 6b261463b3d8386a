//! The I/O driver: the interface between a scheduler and the system's I/O.
//!
//! A *driver* carries out the asynchronous operations of one scheduler. It does not use workers.
//! The scheduler submits a [`LiveOp`] together with a *token*, a number of its choice. Later the
//! driver returns the token with the result of the operation, in a [`Done`].
//!
//! ```text
//!   submit(token, op) --+--> Submitted::Done(result)        completed on the spot
//!                       |
//!                       +--> Submitted::Pending --> reap(out) / wait(.., out) --> Done { .. }
//!                                   ^                  (a turn)  (idle)
//!   cancel(token) ------------------+   asks; the one completion still comes
//!   waker().wake()                      from any thread: ends the wait, or the next one
//! ```
//!
//! The trait has three implementations (back ends), in the order of preference: io_uring, for a
//! scheduler whose baton stays on one thread; epoll, for a scheduler whose baton moves between
//! threads, where each operation is tried before its descriptor is polled; and plain synchronous
//! calls. `linux::open` tries them in this order, and reports why it did not use one.
//!
//! Invariants
//! * *One Holder*: only the holder of the scheduler's baton calls a driver, so a driver has no
//!   locks. A [`Waker`] is the exception: any thread may use it.
//! * *Frozen Buffer*: a driver keeps a [`LiveOp`] until the kernel no longer uses its buffers, and
//!   drops it before it delivers the completion. If the driver itself is dropped, it waits for the
//!   kernel first. As long as the `LiveOp` exists, the buffers are valid and no other code touches
//!   them.
//! * *One Completion*: a token for which `submit` returned `Pending` is returned exactly once,
//!   cancelled or not. Until then the token is not used for another operation.
//!
//! What a driver does not do: it does not choose the back end, has no deadlines (the timer list
//! cancels operations), guarantees no fairness between sockets, and does not own buffers.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};

use super::stderr::keep_standard_descriptors_taken;

pub use super::op::{CURRENT, LiveOp, Op, Side};

/// Tokens above this one are reserved for the drivers themselves.
pub const TOKEN_MAX: u64 = u64::MAX - 16;

/// The state of a submitted operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Submitted {
    /// The operation is under way. `reap` or `wait` will return its token.
    Pending,
    /// The operation completed before `submit` returned, with this result. Its token will not be
    /// returned.
    Done(i32),
}

/// One completion: the token of the operation and its result, `-errno` below zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Done {
    /// The token given at submission.
    pub token: u64,
    /// The result, as described at [`Op`].
    pub result: i32,
}

/// The I/O of one scheduler. The protocol is described at the top of this file.
pub trait Driver: Send {
    /// Returns which back end this is: `io_uring`, `epoll` or `sync`.
    #[cfg_attr(not(test), allow(dead_code))] // The tests of the back ends ask.
    fn name(&self) -> &'static str;

    /// Returns one sentence for the operator: the flags in use, and why no better back end was
    /// chosen.
    fn describe(&self) -> String;

    /// Starts an operation under a token, at most [`TOKEN_MAX`], whose lower half no pending
    /// operation has. A driver may use the lower half as the number of a place, so it is small. It
    /// cannot fail: an error is returned as the operation's result.
    fn submit(&mut self, token: u64, op: LiveOp<'static>) -> Submitted;

    /// Asks the system to end the operation early. Its completion is still delivered exactly once,
    /// with `-ECANCELED` or its real result. A token that is not pending is ignored.
    fn cancel(&mut self, token: u64);

    /// Returns whether there is something to reap or to flush. Costs a few loads and at most one
    /// reading of the clock, never a system call. `now` is the time, in ticks, that the caller has
    /// just read; 0 if it has not. The answer may be out of date for a short time.
    fn ready(&mut self, now: u64) -> bool;

    /// Appends the completed operations to `out`. Does not block. Makes no system call when there
    /// is nothing to do, and at most one when there is little.
    fn reap(&mut self, out: &mut Vec<Done>);

    /// Flushes; then blocks until an operation completes, the waker is used or the timeout has
    /// passed; then appends the completed operations to `out`. It may return early and without a
    /// completion.
    fn wait(&mut self, timeout_ns: Option<u64>, out: &mut Vec<Done>);

    /// Returns whether it is cheaper to submit an operation that could be carried out at once than
    /// to make its system call, because the driver enters the kernel for several operations
    /// together. `others_can_run` says whether the scheduler has something to run meanwhile. A
    /// driver that returns true carries the operation out soon, even if no worker waits.
    fn gathers(&mut self, others_can_run: bool) -> bool;

    /// Returns a handle by which any thread can end `wait`.
    fn waker(&self) -> Waker;

    /// Returns how many pending operations the system has completed that have not been reaped yet.
    fn done(&mut self) -> usize;

    /// Returns how many operations were submitted whose completion has not been delivered yet.
    #[cfg_attr(not(test), allow(dead_code))] // The tests of the back ends ask.
    fn pending(&self) -> usize;
}

/// Ends a driver's `wait`, from any thread. If no wait is under way, it ends the next one.
#[derive(Debug, Clone)]
pub struct Waker {
    bell: Arc<OwnedFd>,
    /// In models, the sleeper waits for this instead of the eventfd.
    #[cfg(loom)]
    pub heard: Arc<::loom::sync::Notify>,
}

impl Waker {
    /// Makes a waker with an eventfd that counts wakes. A driver that polls it edge-triggered need
    /// not read it.
    pub(crate) fn new() -> io::Result<Waker> {
        keep_standard_descriptors_taken();
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Waker {
            bell: Arc::new(bell),
            #[cfg(loom)]
            heard: Arc::new(::loom::sync::Notify::new()),
        })
    }

    /// Wakes the driver, by one `write(2)`. It never blocks and cannot fail: if the counter is
    /// full, the eventfd is readable already.
    pub fn wake(&self) {
        // The only possible error is EAGAIN, after 2^64 - 2 wakes that the driver did not read.
        let _ = rustix::io::write(&*self.bell, &1u64.to_ne_bytes());
        super::sim::wake(super::sim::On::Bell(self.fd()));
        #[cfg(loom)]
        self.heard.notify();
    }

    /// Resets the counter, for a driver that polls the eventfd level-triggered. Only the driver
    /// calls this, before it checks why it was woken.
    pub(in crate::os) fn silence(&self) {
        let _ = rustix::io::read(&*self.bell, &mut [0u8; 8]);
    }

    /// Returns the eventfd, which the driver polls.
    pub(crate) fn fd(&self) -> RawFd {
        self.bell.as_raw_fd()
    }
}
