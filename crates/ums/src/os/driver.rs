//! The I/O driver: tokens in, completions out.
//!
//! A *driver* carries out the asynchronous operations of one scheduler. It knows nothing of
//! workers: the scheduler hands it an [`Op`] under a *token*, and later gets the token back with
//! the result, in a [`Done`].
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
//! Three back ends stand behind the trait, in the order of preference: io_uring for a scheduler
//! whose baton stays on one thread, epoll with speculative calls for one whose baton moves between
//! threads, and plain synchronous calls. `linux::open` probes them in this order, and says why one
//! was not taken.
//!
//! Invariants
//! * *One Holder*: only the holder of the scheduler's baton calls a driver, so it has no locks. A
//!   [`Waker`] is the exception: any thread may ring it.
//! * *Frozen Buffer*: a driver keeps a [`LiveOp`] until the kernel is done with its buffers, and
//!   drops it before it delivers the completion (or waits for the kernel when it is dropped
//!   itself). As long as the value exists, the buffers are there and no other code touches them.
//! * *One Completion*: a token that was answered `Pending` is returned exactly once, cancelled or
//!   not. Until then the token is not used for another operation.
//!
//! It does not do: the choice of a back end, deadlines (the timer list cancels), fairness between
//! sockets, buffer ownership.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};

pub use super::op::{CURRENT, LiveOp, Op, Side};

/// Tokens from here on belong to the drivers themselves.
pub const TOKEN_MAX: u64 = u64::MAX - 16;

/// The state of a submitted operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Submitted {
    /// It is on its way; `reap` or `wait` will return its token.
    Pending,
    /// It completed before `submit` returned, with this result; the token will not come back.
    Done(i32),
}

/// One completion: the token of the operation and its result, `-errno` below zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Done {
    /// The token given at submission.
    pub token: u64,
    /// The result, as [`Op`] says.
    pub result: i32,
}

/// One scheduler's I/O. See the module's text for the protocol.
pub trait Driver: Send {
    /// Returns which back end this is: `io_uring`, `epoll` or `sync`.
    #[cfg_attr(not(test), allow(dead_code))] // The tests of the back ends ask.
    fn name(&self) -> &'static str;

    /// Returns one sentence for people: the flags in use, and why nothing better was chosen.
    fn describe(&self) -> String;

    /// Starts an operation under a token that no pending operation has, at most [`TOKEN_MAX`].
    /// Never fails: an error is a completion.
    fn submit(&mut self, token: u64, op: LiveOp<'static>) -> Submitted;

    /// Asks for an end of the operation. Its completion still comes exactly once, with
    /// `-ECANCELED` or its real result. A token that is not pending is ignored.
    fn cancel(&mut self, token: u64);

    /// Returns whether there is something to reap or to flush. Costs a few loads (epoll: one clock
    /// read while operations are pending), never a system call. It may be late, but does not stay
    /// wrong.
    fn ready(&mut self) -> bool;

    /// Appends what has completed. Does not block; at most one system call when there is little
    /// to do, and none when there is nothing.
    fn reap(&mut self, out: &mut Vec<Done>);

    /// Flushes, then blocks until a completion, a wake or the timeout, and appends what
    /// has completed. May return early and without a completion.
    fn wait(&mut self, timeout_ns: Option<u64>, out: &mut Vec<Done>);

    /// Returns a handle that ends `wait` from any thread.
    fn waker(&self) -> Waker;

    /// Returns how many pending operations the system has completed and that are not reaped yet.
    fn done(&mut self) -> usize;

    /// Returns how many operations were submitted and not yet delivered.
    #[cfg_attr(not(test), allow(dead_code))] // The tests of the back ends ask.
    fn pending(&self) -> usize;
}

/// Ends a driver's wait from any thread. A wake that comes before the wait ends that one.
#[derive(Debug, Clone)]
pub struct Waker {
    bell: Arc<OwnedFd>,
    /// Rung besides, in models: a sleeper there waits for this.
    #[cfg(loom)]
    pub heard: Arc<::loom::sync::Notify>,
}

impl Waker {
    /// Makes a new bell. Its descriptor counts wakes; drivers that see edges need not read it.
    pub(crate) fn new() -> io::Result<Waker> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Waker {
            bell: Arc::new(bell),
            #[cfg(loom)]
            heard: Arc::new(::loom::sync::Notify::new()),
        })
    }

    /// Rings: one `write(2)`. Never blocks and does not fail; a full counter rings as well.
    pub fn wake(&self) {
        // The only possible error is EAGAIN after 2^64 - 2 rings without a driver's drop.
        let _ = rustix::io::write(&*self.bell, &1u64.to_ne_bytes());
        super::sim::wake(super::sim::On::Bell(self.fd()));
        #[cfg(loom)]
        self.heard.notify();
    }

    /// Empties the counter, for a driver that sees levels instead of edges. Called by the driver
    /// alone, before it looks at what the wake was for.
    pub(in crate::os) fn silence(&self) {
        let _ = rustix::io::read(&*self.bell, &mut [0u8; 8]);
    }

    /// Returns the descriptor that a driver watches.
    pub(crate) fn fd(&self) -> RawFd {
        self.bell.as_raw_fd()
    }
}
