//! Watches: the readiness of any descriptor, for selects, for futures, and for plain waits.
//!
//! ```text
//!   Watch<T>   readable, writable              arms of a select
//!              wait_readable, wait_writable    the caller waits
//!              poll_readable, poll_writable    a future waits
//! ```
//!
//! A watch says that the descriptor is ready. It does not read or write.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::task::{Context, Poll};

use super::readiness::Readiness;
use super::wait_for;
use crate::current::checkpoint_for;
use crate::os::clock::NEVER;
use crate::os::driver::{LiveOp, Side};
use crate::record::reason::WaitReason;
use crate::wait::Arm;

/// Says when a descriptor has input, or room for output: a socket, a pipe, an eventfd, whatever
/// `poll(2)` takes. The descriptor should be in non-blocking mode, because a reader that follows
/// may find that another has taken the input.
///
/// ```
/// use std::io::{Read, Write};
/// use std::os::unix::net::UnixStream;
/// use ums::io::Watch;
///
/// let node = ums::Node::builder().schedulers(1).build()?;
/// let (mut one, two) = UnixStream::pair()?;
/// node.run(move || {
///     let watch = Watch::new(two);
///     ums::spawn(move || one.write_all(b"hello"));
///     watch.wait_readable()?;
///     let mut bytes = [0; 16];
///     let n = (&mut watch.get_ref()).read(&mut bytes)?;
///     assert_eq!(&bytes[..n], b"hello");
///     std::io::Result::Ok(())
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Watch<T> {
    // Dropped before the descriptor is closed.
    input: Readiness,
    room: Readiness,
    inner: T,
}

impl<T: AsFd> Watch<T> {
    /// Watches this descriptor. It must stay the same while it is watched.
    pub fn new(inner: T) -> Watch<T> {
        let ready = |side| Readiness::new(inner.as_fd().as_raw_fd(), side);
        Watch { input: ready(Side::In), room: ready(Side::Out), inner }
    }

    fn fd(&self) -> RawFd {
        self.inner.as_fd().as_raw_fd()
    }

    /// Waits until a read would find input, the end, or an error.
    ///
    /// # Errors
    /// The system's error; an error whose source is a [`WaitError`](crate::WaitError) if the work
    /// request was cancelled or a time limit has passed.
    pub fn wait_readable(&self) -> io::Result<()> {
        self.wait(Side::In, WaitReason::NETWORK_READ)
    }

    /// Waits until a write would find room or an error.
    ///
    /// # Errors
    /// As [`wait_readable`](Watch::wait_readable).
    pub fn wait_writable(&self) -> io::Result<()> {
        self.wait(Side::Out, WaitReason::NETWORK_WRITE)
    }

    pub(crate) fn wait(&self, side: Side, reason: WaitReason) -> io::Result<()> {
        checkpoint_for(reason)?;
        wait_for(LiveOp::poll(self.fd(), side), reason, NEVER).map(drop)
    }

    /// Returns the arm of a [`Select`](crate::sync::Select) that waits until a read would find
    /// input, the end, or an error. Only a worker can wait for it, as for
    /// [`TcpStream::readable`](crate::net::TcpStream::readable).
    pub fn readable(&self) -> Arm<'_, io::Result<()>> {
        Arm::new(Readiness::new(self.fd(), Side::In))
    }

    /// Returns the arm of a [`Select`](crate::sync::Select) that waits until a write would find
    /// room or an error, in the same way.
    pub fn writable(&self) -> Arm<'_, io::Result<()>> {
        Arm::new(Readiness::new(self.fd(), Side::Out))
    }

    /// Polls for input, for a future that is polled on a worker. Call it when a read has returned
    /// `WouldBlock`. If it returns `Ready`, read again. If it returns `Pending`, the waker of the
    /// last call is called when there is input, the end, or an error.
    ///
    /// If the watch is then dropped elsewhere than on the scheduler of that call, the system may
    /// keep a socket open until that scheduler next looks at its I/O.
    ///
    /// # Errors
    /// `Unsupported` if it would have to wait on a plain thread or in preemptive code; the system's
    /// error, also if the scheduler ends.
    pub fn poll_readable(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.input.poll(context)
    }

    /// Polls for room, in the same way.
    ///
    /// # Errors
    /// As [`poll_readable`](Watch::poll_readable).
    pub fn poll_writable(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.room.poll(context)
    }

    /// Returns what is watched.
    pub fn get_ref(&self) -> &T {
        &self.inner
    }

    /// Ends the watch, and returns what was watched.
    pub fn into_inner(self) -> T {
        self.inner
    }
}

impl<T: fmt::Debug> fmt::Debug for Watch<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Watch").field(&self.inner).finish()
    }
}
